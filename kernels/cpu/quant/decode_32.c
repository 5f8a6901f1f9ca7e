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

static void nibbles(signed char q[32], const unsigned char *p)
{
    for (size_t i = 0; i < 16; i++)
        q[i] = p[i] & 15;
    for (size_t i = 0; i < 16; i++)
        q[16 + i] = (signed char)(p[i] >> 4);
}

/* The fifth bits stand in 4 bytes of their own, that of element 0 lowest. */
static void five_bits(signed char q[32], const unsigned char *high, const unsigned char *low)
{
    nibbles(q, low);
    for (size_t i = 0; i < 32; i++)
        q[i] = (signed char)(q[i] | (high[i / 8] >> i % 8 & 1) << 4);
}

static void subtract(signed char q[32], int offset)
{
    for (size_t i = 0; i < 32; i++)
        q[i] = (signed char)(q[i] - offset);
}

/* { d, 16 bytes }: (q - 8) d */
void mp_quant_read_q4_0(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    nibbles(q, p + 2);
    subtract(q, 8);
    b->d = decode_half(p);
}

/* { d, m, 16 bytes }: q d + m */
void mp_quant_read_q4_1(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    nibbles(q, p + 4);
    b->d = decode_half(p);
    b->m = decode_half(p + 2);
}

/* { d, fifth bits, 16 bytes }: (q - 16) d */
void mp_quant_read_q5_0(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    five_bits(q, p + 2, p + 6);
    subtract(q, 16);
    b->d = decode_half(p);
}

/* { d, m, fifth bits, 16 bytes }: q d + m */
void mp_quant_read_q5_1(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    five_bits(q, p + 4, p + 8);
    b->d = decode_half(p);
    b->m = decode_half(p + 2);
}

/* { d, 32 signed bytes }: q d */
void mp_quant_read_q8_0(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    memcpy(q, p + 2, 32);
    b->d = decode_half(p);
}

/* { d, 16 bytes }: number q of a list, times d */
void mp_quant_read_iq4_nl(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    nibbles(q, p + 2);
    decode_listed(q, 32, mp_quant_iq4);
    b->d = decode_half(p);
}

/* { exponent, 16 bytes }: half of number q of a list, times 2^(exponent - 127) */
void mp_quant_read_mxfp4(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    nibbles(q, p + 1);
    decode_listed(q, 32, mp_quant_fp4);
    b->d = ldexpf(1, p[0] - 128);
}

MP_QUANT_DECODE(Q4_0, q4_0)
MP_QUANT_DECODE(Q4_1, q4_1)
MP_QUANT_DECODE(Q5_0, q5_0)
MP_QUANT_DECODE(Q5_1, q5_1)
MP_QUANT_DECODE(Q8_0, q8_0)
MP_QUANT_DECODE(IQ4_NL, iq4_nl)
MP_QUANT_DECODE(MXFP4, mxfp4)
