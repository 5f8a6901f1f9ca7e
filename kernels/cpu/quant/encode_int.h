#ifndef MP_KERNEL_ENCODE_INT_H
#define MP_KERNEL_ENCODE_INT_H

#include <stdint.h>

#include "kernels/cpu/quant/encode.h"

/*
 * Private to the encoders. Blocks are encoded by variants: the same code (encode_blocks.h) for
 * several instruction sets, with the same bits.
 */

struct mp_encode {
    const char *name; /* "plain", "avx2", "avx512" */

    /* A block of a type; p is all zero. */
    void (*block_32)(enum mp_wtype type, unsigned char *p, const float *x, const float *weight);
    void (*block_256)(enum mp_wtype type, unsigned char *p, const float *x, const float *weight);
};

/* Names in the order of preference, NULL-terminated; the last one runs everywhere. */
extern const char *const mp_encode_names[];

/* NULL: there is none of that name, or this processor has not what it needs. */
const struct mp_encode *mp_encode_find(const char *name);

/* Numbers that codes stand for: those of a list in ascending order, or all from low to high. */
struct encode_levels {
    const signed char *list; /* [high - low + 1] or NULL; code `low` is its first */
    int low, high;           /* codes */
};

/* The number of a code. */
static inline float encode_level(const struct encode_levels *levels, int code)
{
    return (float)(levels->list != NULL ? levels->list[code - levels->low] : code);
}

/* nearbyintf() of numbers up to 2^22, without a call: the sum has no room for a fraction. */
static inline float encode_round(float value)
{
    return (value + 0x1.8p23f) - 0x1.8p23f;
}

/* The bits of the nearest 16-bit float, finite ones up to the largest; that float as a number. */
uint16_t encode_half_bits(float value);
float encode_half(float value);

static inline void encode_put_half(unsigned char *p, float value)
{
    const uint16_t bits = encode_half_bits(value);

    p[0] = (unsigned char)(bits & 0xff);
    p[1] = (unsigned char)(bits >> 8);
}

#endif
