#ifndef MP_KERNEL_ENCODE_INT_H
#define MP_KERNEL_ENCODE_INT_H

#include <stdint.h>

#include "kernels/cpu/quant/encode.h"

/* Private to the encoders: searches for scales (encode_search.c) and what types share. */

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

/* The code of the number that is nearest to `value`. */
int encode_nearest(const struct encode_levels *levels, float value);

/* The scale with which the levels come nearest to x; 0: all x are. */
float encode_scale(const struct encode_levels *levels, const float *x, const float *weight,
                   size_t count);

/* x is about scale * code - least, codes 0 to `most`, scale >= 0. `below`: least >= 0. */
struct encode_line {
    float scale, least;
};

struct encode_line encode_affine(int most, int below, const float *x, const float *weight,
                                 size_t count);

/* Codes under given scales; all that of 0 if the scale is 0. */
void encode_codes(const struct encode_levels *levels, const float *x, float scale, signed char *q,
                  size_t count);
void encode_line_codes(int most, const float *x, struct encode_line line, signed char *q,
                       size_t count);

/* The bits of the nearest 16-bit float, finite ones up to the largest; that float as a number. */
uint16_t encode_half_bits(float value);
float encode_half(float value);

static inline void encode_put_half(unsigned char *p, float value)
{
    const uint16_t bits = encode_half_bits(value);

    p[0] = (unsigned char)(bits & 0xff);
    p[1] = (unsigned char)(bits >> 8);
}

/* A block of each type. */
void encode_block_32(enum mp_wtype type, unsigned char *p, const float *x, const float *weight);
void encode_block_256(enum mp_wtype type, unsigned char *p, const float *x, const float *weight);

#endif
