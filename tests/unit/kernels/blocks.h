#ifndef MP_TEST_KERNELS_BLOCKS_H
#define MP_TEST_KERNELS_BLOCKS_H

#include "kernels/cpu/quant/quant.h"
#include "tests/unit/kernels/common.h"

/* Blocks of quantised weights from a sequence of random bytes that is the same everywhere. */

#define HASH_START UINT64_C(0xcbf29ce484222325)

static uint32_t lcg = 1;

static inline unsigned char next_byte(void)
{
    lcg = lcg * 1664525 + 1013904223;
    return (unsigned char)(lcg >> 24);
}

/* Where a type has 16-bit floats; -1: none. */
static inline void half_fields(enum mp_wtype type, int at[2])
{
    at[0] = at[1] = -1;
    if (type == MP_WTYPE_MXFP4)
        return;
    at[0] = type == MP_WTYPE_Q2_K   ? 80
            : type == MP_WTYPE_Q3_K ? 108
            : type == MP_WTYPE_Q6_K ? 208
                                    : 0;
    if (type == MP_WTYPE_Q4_1 || type == MP_WTYPE_Q5_1 || type == MP_WTYPE_Q4_K ||
        type == MP_WTYPE_Q5_K || type == MP_WTYPE_Q2_K)
        at[1] = at[0] + 2;
}

static inline void put_half(unsigned char *p, uint16_t half)
{
    memcpy(p, &half, sizeof(half));
}

/* Any bytes are a block; its floats get exponents about 2^-6, and that of MXFP4 too. */
static inline void random_blocks(unsigned char *w, enum mp_wtype type, size_t blocks)
{
    const size_t bytes = mp_wtype_info(type)->block_bytes;
    int at[2];

    half_fields(type, at);
    for (size_t b = 0; b < blocks; b++, w += bytes) {
        for (size_t i = 0; i < bytes; i++)
            w[i] = next_byte();
        for (int i = 0; i < 2; i++) {
            if (at[i] >= 0)
                w[at[i] + 1] = (unsigned char)((w[at[i] + 1] & 0x83) | 0x24);
        }
        if (type == MP_WTYPE_MXFP4)
            w[0] = (unsigned char)(120 + (w[0] & 7));
    }
}

static inline uint64_t hash_floats(const float *p, size_t count)
{
    uint64_t hash = HASH_START;

    for (size_t i = 0; i < count; i++) /* no zero below zero: the sign of 0 is left open */
        hash = (hash ^ float_bits(p[i] + 0.0f)) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
