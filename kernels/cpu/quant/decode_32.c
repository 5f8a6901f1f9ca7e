/*
 * What blocks of 32 elements mean. `d` is a scale, `m` a smallest value, both 16-bit floats; 4 bits
 * of element i and of element i + 16 share byte i, the former in the low half.
 */
#include <math.h>

#include "kernels/cpu/quant/decode_int.h"

const signed char mp_quant_iq4[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
};

/* Sign, two bits of exponent, one of fraction: 0, 0.5, 1, 1.5, 2, 3, 4, 6. */
const signed char mp_quant_fp4[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

static int nibble(const unsigned char *p, size_t i)
{
    return p[i % 16] >> (i < 16 ? 0 : 4) & 15;
}

/* The fifth bits stand in 4 bytes of their own, that of element 0 lowest. */
static int five_bits(const unsigned char *high, const unsigned char *low, size_t i)
{
    return nibble(low, i) | (high[i / 8] >> i % 8 & 1) << 4;
}

/* { d, 16 bytes }: (q - 8) d */
static void q4_0(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 32; i++)
        dst[i] = (float)((nibble(p + 2, i) - 8) * decode_half(p));
}

/* { d, m, 16 bytes }: q d + m */
static void q4_1(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 32; i++)
        dst[i] = (float)(nibble(p + 4, i) * decode_half(p) + decode_half(p + 2));
}

/* { d, fifth bits, 16 bytes }: (q - 16) d */
static void q5_0(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 32; i++)
        dst[i] = (float)((five_bits(p + 2, p + 6, i) - 16) * decode_half(p));
}

/* { d, m, fifth bits, 16 bytes }: q d + m */
static void q5_1(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 32; i++)
        dst[i] = (float)(five_bits(p + 4, p + 8, i) * decode_half(p) + decode_half(p + 2));
}

/* { d, 32 signed bytes }: q d */
static void q8_0(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 32; i++)
        dst[i] = (float)((signed char)p[2 + i] * decode_half(p));
}

/* { d, 16 bytes }: number q of a list, times d */
static void iq4_nl(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 32; i++)
        dst[i] = (float)(mp_quant_iq4[nibble(p + 2, i)] * decode_half(p));
}

/* { exponent, 16 bytes }: half of number q of a list, times 2^(exponent - 127) */
static void mxfp4(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 32; i++)
        dst[i] = (float)ldexp(mp_quant_fp4[nibble(p + 1, i)], p[0] - 128);
}

#define DECODE(TYPE, name)                                                 \
    void mp_quant_decode_##name(float *dst, const void *src, size_t count) \
    {                                                                      \
        decode_blocks(dst, src, count, MP_WTYPE_##TYPE, name);             \
    }
DECODE(Q4_0, q4_0)
DECODE(Q4_1, q4_1)
DECODE(Q5_0, q5_0)
DECODE(Q5_1, q5_1)
DECODE(Q8_0, q8_0)
DECODE(IQ4_NL, iq4_nl)
DECODE(MXFP4, mxfp4)
