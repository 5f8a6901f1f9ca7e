#ifndef MP_BASE_CHECKED_H
#define MP_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/compiler.h"

/*
 * Arithmetic on sizes that come from a file, the user or the environment. Nothing else in the
 * tree adds or multiplies such numbers. Each returns false, and leaves *out alone, when the exact
 * result does not fit; none has undefined behaviour for any argument.
 */
static inline bool MP_MUST_CHECK mp_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t sum;

    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *out = sum;
    return true;
}

static inline bool MP_MUST_CHECK mp_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t product;

    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *out = product;
    return true;
}

/* The smallest multiple of `align` that is not below `value`; align 0 is refused. */
static inline bool MP_MUST_CHECK mp_round_up_u64(uint64_t value, uint64_t align, uint64_t *out)
{
    uint64_t rest;

    if (align == 0)
        return false;
    rest = value % align;
    if (rest == 0) {
        *out = value;
        return true;
    }
    return mp_add_u64(value, align - rest, out);
}

static inline uint64_t mp_round_down_u64(uint64_t value, uint64_t align)
{
    return align == 0 ? value : value - value % align;
}

/* count * bytes as a size_t, for allocations. */
static inline bool MP_MUST_CHECK mp_mul_size(uint64_t count, uint64_t bytes, size_t *out)
{
    uint64_t product;

    if (!mp_mul_u64(count, bytes, &product) || product > SIZE_MAX / 2)
        return false;
    *out = (size_t)product;
    return true;
}

#endif
