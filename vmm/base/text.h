#ifndef MP_BASE_TEXT_H
#define MP_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/base/compiler.h"

/*
 * Room in a text that grows: `bytes` and a NUL behind them in *text_p, which free() frees. NULL and
 * a capacity of 0 are an empty one. False: there is no memory, and nothing has changed.
 *
 * Thread safety: the text belongs to one thread.
 */
bool mp_text_reserve(char **text_p, size_t *capacity_p, size_t bytes) MP_MUST_CHECK;

/* A size for people, rounded, in the unit that fits: "4.5 KiB", "96.0 MiB", "1.49 GiB". Returns
 * `out`. */
#define MP_TEXT_SIZE_BYTES 32
const char *mp_text_size(uint64_t bytes, char out[MP_TEXT_SIZE_BYTES]);

#endif
