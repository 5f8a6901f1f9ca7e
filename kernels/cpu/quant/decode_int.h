#ifndef MP_KERNEL_DECODE_INT_H
#define MP_KERNEL_DECODE_INT_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/quant/quant.h"

/* A 16-bit float at any address. */
static inline float decode_half(const unsigned char *p)
{
    float value;

    mp_wtype_info(MP_WTYPE_F16)->convert(&value, p, 1);
    return value;
}

/* Numbers of a list instead of their places in it. */
static inline void decode_listed(signed char *q, size_t count, const signed char list[16])
{
    for (size_t i = 0; i < count; i++)
        q[i] = list[(int)q[i]];
}

/* Blocks one after the other, as floats. All but the last addition is exact. */
static inline void decode_blocks(float *dst, const void *src, size_t count, enum mp_wtype type,
                                 void (*read)(struct mp_quant_block *, signed char *,
                                              const unsigned char *))
{
    const struct mp_wtype_info *info = mp_wtype_info(type);
    struct mp_quant_block b = { .m = -0.0f, .scales = { 1, 1 }, .mins = { 1, 1 } };
    const unsigned char *from = src;
    signed char q[256];

    for (size_t i = 0; i < count; i += info->block_elements, from += info->block_bytes) {
        read(&b, q, from);
        for (size_t j = 0; j < info->block_elements; j++)
            dst[i + j] = (float)((double)b.d * b.scales[j / 16] * (q[j] - b.offset) +
                                 (double)b.m * b.mins[j / 16]);
    }
}

#define MP_QUANT_DECODE(TYPE, name)                                            \
    void mp_quant_decode_##name(float *dst, const void *src, size_t count)     \
    {                                                                          \
        decode_blocks(dst, src, count, MP_WTYPE_##TYPE, mp_quant_read_##name); \
    }

#endif
