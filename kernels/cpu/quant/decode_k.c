/*
 * What blocks of 256 elements mean: 8 or 16 groups, each with a small whole number as its scale;
 * `d` (and `dmin`, for what is subtracted) are 16-bit floats that all groups share.
 */
#include "kernels/cpu/quant/decode_int.h"

/* 8 scales and 8 subtrahends of 6 bits in 12 bytes: of the first four of each the low 6 bits of a
 * byte; the others have 4 bits in the last four bytes and 2 in the high bits of the first eight. */
static int scale_6(const unsigned char *p, size_t group)
{
    return group < 4 ? p[group] & 63 : (p[group + 4] & 15) | p[group - 4] >> 6 << 4;
}

static int min_6(const unsigned char *p, size_t group)
{
    return group < 4 ? p[group + 4] & 63 : p[group + 4] >> 4 | p[group] >> 6 << 4;
}

/* 16 scales of 6 bits in 12 bytes: 4 bits in the halves of the first eight, 2 in the last four. */
static int scale_3(const unsigned char *p, size_t group)
{
    const int low = p[group % 8] >> (group < 8 ? 0 : 4) & 15;

    return (low | (p[8 + group % 4] >> 2 * (group / 4) & 3) << 4) - 32;
}

/* Two bits of 4 elements that are 32 apart share a byte; so twice in a block. */
static int two_bits(const unsigned char *p, size_t i)
{
    return p[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

/* Four bits of 2 elements that are 32 apart share a byte; so four times in a block. */
static int four_bits(const unsigned char *p, size_t i)
{
    return p[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15;
}

/* { 16 bytes scale | subtrahend << 4, 64 bytes, d, dmin } */
static void q2_k(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 256; i++)
        dst[i] = (float)(decode_half(p + 80) * (p[i / 16] & 15) * two_bits(p + 16, i) -
                         decode_half(p + 82) * (p[i / 16] >> 4));
}

/* { 32 bytes third bits, one group of 32 each, 64 bytes, 12 bytes scales, d } */
static void q3_k(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 256; i++) {
        const int high = p[i % 32] >> i / 32 & 1;

        dst[i] = (float)(decode_half(p + 108) * scale_3(p + 96, i / 16) *
                         ((two_bits(p + 32, i) | high << 2) - 4));
    }
}

/* { d, dmin, 12 bytes scales, 128 bytes } */
static void q4_k(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 256; i++)
        dst[i] = (float)(decode_half(p) * scale_6(p + 4, i / 32) * four_bits(p + 16, i) -
                         decode_half(p + 2) * min_6(p + 4, i / 32));
}

/* { d, dmin, 12 bytes scales, 32 bytes fifth bits, one group of 32 each, 128 bytes } */
static void q5_k(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 256; i++) {
        const int q = four_bits(p + 48, i) | (p[16 + i % 32] >> i / 32 & 1) << 4;

        dst[i] = (float)(decode_half(p) * scale_6(p + 4, i / 32) * q -
                         decode_half(p + 2) * min_6(p + 4, i / 32));
    }
}

/* { 128 bytes, 64 bytes two high bits, 16 signed scales, d }. The four bits of elements 64 apart
 * share a byte. */
static void q6_k(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 256; i++) {
        const int low = p[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15;
        const int q = (low | two_bits(p + 128, i) << 4) - 32;

        dst[i] = (float)(decode_half(p + 208) * (signed char)p[192 + i / 16] * q);
    }
}

/* { d, 2 bytes with 2 high bits of 8 scales, 4 bytes with 4 low ones, 128 bytes }: a number of a
 * list; 4 bits of elements 16 apart share a byte. */
static void iq4_xs(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 256; i++) {
        const size_t group = i / 32;
        const int low = p[4 + group / 2] >> group % 2 * 4 & 15;
        const int scale = (low | (p[2 + group / 4] >> group % 4 * 2 & 3) << 4) - 32;
        const int q = p[8 + group * 16 + i % 16] >> i % 32 / 16 * 4 & 15;

        dst[i] = (float)(decode_half(p) * scale * mp_quant_iq4[q]);
    }
}

#define DECODE(TYPE, name)                                                 \
    void mp_quant_decode_##name(float *dst, const void *src, size_t count) \
    {                                                                      \
        decode_blocks(dst, src, count, MP_WTYPE_##TYPE, name);             \
    }
DECODE(Q2_K, q2_k)
DECODE(Q3_K, q3_k)
DECODE(Q4_K, q4_k)
DECODE(Q5_K, q5_k)
DECODE(Q6_K, q6_k)
DECODE(IQ4_XS, iq4_xs)
