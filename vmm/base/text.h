#ifndef MP_BASE_TEXT_H
#define MP_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "vmm/base/compiler.h"

/*
 * Room in a text that grows: `bytes` and a NUL behind them in *text_p, which free() frees. NULL and
 * a capacity of 0 are an empty one. False: there is no memory, and nothing has changed.
 *
 * Thread safety: the text belongs to one thread.
 */
bool mp_text_reserve(char **text_p, size_t *capacity_p, size_t bytes) MP_MUST_CHECK;

#endif
