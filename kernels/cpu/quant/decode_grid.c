/*
 * What blocks of 256 elements mean whose numbers come from a grid (grids.h): sizes of 8 or 4
 * elements are one entry, their signs a bit each. A group of 16 or 32 elements has 4 bits b as its
 * scale, 2b + 1; `d`, a 16-bit float, is the first field of each type.
 */
#include "kernels/cpu/quant/decode_int.h"

const signed char mp_quant_sizes_2[4] = { 8, 25, 43, 0 }; /* no entry has a 3 */
const signed char mp_quant_sizes_3_xxs[8] = { 4, 12, 20, 28, 36, 44, 52, 62 };
const signed char mp_quant_sizes_3_s[8] = { 1, 3, 5, 7, 9, 11, 13, 15 };

static unsigned word_16(const unsigned char *p)
{
    return p[0] | (unsigned)p[1] << 8;
}

static uint32_t word_32(const unsigned char *p)
{
    return word_16(p) | (uint32_t)word_16(p + 2) << 16;
}

/* Seven bits are stored of eight signs: the number of ones is even. */
static unsigned eight_signs(unsigned seven)
{
    unsigned ones = 0;

    for (int i = 0; i < 7; i++)
        ones += seven >> i & 1;
    return seven | (ones & 1) << 7;
}

/* Number i of those with 4 bits each, low ones first. */
static int half_byte(const unsigned char *p, size_t i)
{
    return p[i / 2] >> i % 2 * 4 & 15;
}

static float value_of(const unsigned char *p, int scale, double step, int size, unsigned sign)
{
    return (float)(decode_half(p) * (2 * scale + 1) * step * (sign != 0 ? -size : size));
}

static int size_2(unsigned entry, size_t i)
{
    return mp_quant_sizes_2[entry >> i % 8 * 2 & 3];
}

static unsigned code_3(unsigned entry, size_t i)
{
    return entry >> i % 4 * 4 & 7;
}

/* { d, 8 times { 4 entries of 8 bits, 4 times 7 signs and a scale } } */
static void iq2_xxs(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 256; i++) {
        const unsigned char *group = p + 2 + i / 32 * 8;
        const uint32_t rest = word_32(group + 4);
        const unsigned signs = eight_signs(rest >> i % 32 / 8 * 7 & 127);

        dst[i] = value_of(p, (int)(rest >> 28), 0.125,
                          size_2(mp_quant_grid_iq2_xxs[group[i % 32 / 8]], i), signs >> i % 8 & 1);
    }
}

/* { d, 32 times { 9 bits an entry, 7 signs }, 16 scales } */
static void iq2_xs(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 256; i++) {
        const unsigned word = word_16(p + 2 + i / 8 * 2);

        dst[i] = value_of(p, half_byte(p + 66, i / 16), 0.125,
                          size_2(mp_quant_grid_iq2_xs[word & 511], i),
                          eight_signs(word >> 9) >> i % 8 & 1);
    }
}

/* { d, 32 entries' low 8 bits, 32 times 8 signs, 32 entries' 2 high bits, 16 scales } */
static void iq2_s(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 256; i++) {
        const unsigned high = p[66 + i / 32] >> i % 32 / 8 * 2 & 3;

        dst[i] = value_of(p, half_byte(p + 74, i / 16), 0.125,
                          size_2(mp_quant_grid_iq2_s[p[2 + i / 8] | high << 8], i),
                          p[34 + i / 8] >> i % 8 & 1);
    }
}

/* { d, 64 entries of 8 bits, 8 times { 4 times 7 signs, a scale } } */
static void iq3_xxs(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 256; i++) {
        const uint32_t rest = word_32(p + 66 + i / 32 * 4);
        const unsigned signs = eight_signs(rest >> i % 32 / 8 * 7 & 127);
        const unsigned code = code_3(mp_quant_grid_iq3_xxs[p[2 + i / 4]], i);

        dst[i] =
            value_of(p, (int)(rest >> 28), 0.25, mp_quant_sizes_3_xxs[code], signs >> i % 8 & 1);
    }
}

/* { d, 64 entries' low 8 bits, 64 entries' ninth bits, 32 times 8 signs, 8 scales } */
static void iq3_s(float *dst, const unsigned char *p)
{
    for (size_t i = 0; i < 256; i++) {
        const unsigned high = p[66 + i / 32] >> i % 32 / 4 & 1;
        const unsigned code = code_3(mp_quant_grid_iq3_s[p[2 + i / 4] | high << 8], i);

        dst[i] = value_of(p, half_byte(p + 106, i / 32), 1, mp_quant_sizes_3_s[code],
                          p[74 + i / 8] >> i % 8 & 1);
    }
}

#define DECODE(TYPE, name)                                                 \
    void mp_quant_decode_##name(float *dst, const void *src, size_t count) \
    {                                                                      \
        decode_blocks(dst, src, count, MP_WTYPE_##TYPE, name);             \
    }
DECODE(IQ2_XXS, iq2_xxs)
DECODE(IQ2_XS, iq2_xs)
DECODE(IQ2_S, iq2_s)
DECODE(IQ3_XXS, iq3_xxs)
DECODE(IQ3_S, iq3_s)
