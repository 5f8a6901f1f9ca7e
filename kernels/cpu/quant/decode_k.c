/*
 * What blocks of 256 elements mean: 8 or 16 groups, each with a small whole number as its scale;
 * `d` (and `dmin`, for what is subtracted) are 16-bit floats that all groups share.
 */
#include "kernels/cpu/quant/decode_int.h"

/* 8 scales and 8 subtrahends of 6 bits in 12 bytes: of the first four of each the low 6 bits of a
 * byte; the others have 4 bits in the last four bytes and 2 in the high bits of the first eight. */
static void scales_6(struct mp_quant_block *b, const unsigned char *p)
{
    for (size_t i = 0; i < 16; i++) {
        const size_t group = i / 2;
        const int scale = group < 4 ? p[group] & 63 : (p[group + 4] & 15) | p[group - 4] >> 6 << 4;
        const int min = group < 4 ? p[group + 4] & 63 : p[group + 4] >> 4 | p[group] >> 6 << 4;

        b->scales[i] = (int16_t)scale;
        b->mins[i] = (int16_t)min;
    }
}

/* 16 scales of 6 bits in 12 bytes: 4 bits in the halves of the first eight, 2 in the last four. */
static void scales_3(struct mp_quant_block *b, const unsigned char *p)
{
    for (size_t i = 0; i < 16; i++) {
        const int low = p[i % 8] >> (i < 8 ? 0 : 4) & 15;

        b->scales[i] = (int16_t)((low | (p[8 + i % 4] >> 2 * (i / 4) & 3) << 4) - 32);
    }
}

/* Two bits of 4 elements that are 32 apart share a byte; so twice in a block. */
static void two_bits(signed char q[256], const unsigned char *p)
{
    for (size_t j = 0; j < 8; j++) {
        for (size_t i = 0; i < 32; i++)
            q[32 * j + i] = (signed char)(p[j / 4 * 32 + i] >> j % 4 * 2 & 3);
    }
}

/* Four bits of 2 elements that are `apart` apart share a byte, and so on. */
static void four_bits(signed char q[256], const unsigned char *p, size_t apart)
{
    for (size_t j = 0; j < 256 / apart; j++) {
        for (size_t i = 0; i < apart; i++)
            q[apart * j + i] = (signed char)(p[j / 2 * apart + i] >> j % 2 * 4 & 15);
    }
}

/* Bit j of a byte is bit `to` of its element of each group j of 32. */
static void one_bit(signed char q[256], const unsigned char *p, int to)
{
    for (size_t j = 0; j < 8; j++) {
        for (size_t i = 0; i < 32; i++)
            q[32 * j + i] = (signed char)(q[32 * j + i] | (p[i] >> j & 1) << to);
    }
}

/* { 16 bytes scale | subtrahend << 4, 64 bytes, d, dmin } */
void mp_quant_read_q2_k(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    two_bits(q, p + 16);
    for (size_t i = 0; i < 16; i++) {
        b->scales[i] = p[i] & 15;
        b->mins[i] = p[i] >> 4;
    }
    b->offset = 0;
    b->d = decode_half(p + 80);
    b->m = -decode_half(p + 82);
}

/* { 32 bytes third bits, one group of 32 each, 64 bytes, 12 bytes scales, d } */
void mp_quant_read_q3_k(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    two_bits(q, p + 32);
    one_bit(q, p, 2);
    scales_3(b, p + 96);
    b->offset = 4;
    b->d = decode_half(p + 108);
}

/* { d, dmin, 12 bytes scales, 128 bytes } */
void mp_quant_read_q4_k(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    four_bits(q, p + 16, 32);
    scales_6(b, p + 4);
    b->offset = 0;
    b->d = decode_half(p);
    b->m = -decode_half(p + 2);
}

/* { d, dmin, 12 bytes scales, 32 bytes fifth bits, one group of 32 each, 128 bytes } */
void mp_quant_read_q5_k(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    mp_quant_read_q4_k(b, q, p);
    four_bits(q, p + 48, 32);
    one_bit(q, p + 16, 4);
}

/* { 128 bytes, 64 bytes two high bits, 16 signed scales, d }. The four bits of elements 64 apart
 * share a byte. */
void mp_quant_read_q6_k(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    signed char high[256];

    four_bits(q, p, 64);
    two_bits(high, p + 128);
    for (size_t i = 0; i < 256; i++)
        q[i] = (signed char)(q[i] | high[i] << 4);
    for (size_t i = 0; i < 16; i++)
        b->scales[i] = (signed char)p[192 + i];
    b->offset = 32;
    b->d = decode_half(p + 208);
}

/* { d, 2 bytes with 2 high bits of 8 scales, 4 bytes with 4 low ones, 128 bytes }: a number of a
 * list; 4 bits of elements 16 apart share a byte. */
void mp_quant_read_iq4_xs(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    four_bits(q, p + 8, 16);
    decode_listed(q, 256, mp_quant_iq4);
    for (size_t i = 0; i < 16; i++) {
        const size_t group = i / 2;
        const int low = p[4 + group / 2] >> group % 2 * 4 & 15;

        b->scales[i] = (int16_t)((low | (p[2 + group / 4] >> group % 4 * 2 & 3) << 4) - 32);
    }
    b->offset = 0;
    b->d = decode_half(p);
}

MP_QUANT_DECODE(Q2_K, q2_k)
MP_QUANT_DECODE(Q3_K, q3_k)
MP_QUANT_DECODE(Q4_K, q4_k)
MP_QUANT_DECODE(Q5_K, q5_k)
MP_QUANT_DECODE(Q6_K, q6_k)
MP_QUANT_DECODE(IQ4_XS, iq4_xs)
