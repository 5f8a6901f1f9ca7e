#ifndef MP_SERVE_KEYS_H
#define MP_SERVE_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "vmm/base/status.h"

/*
 * API keys from a file: one per line, of 16 to 256 printable characters; empty lines and those that
 * begin with # do not count. A file that others than its owner and group can read is refused.
 */
struct mp_keys;

#define MP_KEYS_MAX 1024

enum mp_status mp_keys_load(const char *path, struct mp_keys **keys_p) MP_MUST_CHECK;
void mp_keys_destroy(struct mp_keys *keys);

/* Takes the same time for every key of a length, right or wrong. */
bool mp_keys_have(const struct mp_keys *keys, const char *key, size_t bytes);

#endif
