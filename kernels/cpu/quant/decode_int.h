#ifndef MP_KERNEL_DECODE_INT_H
#define MP_KERNEL_DECODE_INT_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/quant/quant.h"

/* A 16-bit float at any address. */
static inline double decode_half(const unsigned char *p)
{
    float value;

    mp_wtype_info(MP_WTYPE_F16)->convert(&value, p, 1);
    return (double)value;
}

/* Blocks one after the other, each by `block`. */
static inline void decode_blocks(float *dst, const void *src, size_t count, enum mp_wtype type,
                                 void (*block)(float *dst, const unsigned char *p))
{
    const struct mp_wtype_info *info = mp_wtype_info(type);
    const unsigned char *from = src;

    for (size_t i = 0; i < count; i += info->block_elements, from += info->block_bytes)
        block(dst + i, from);
}

#endif
