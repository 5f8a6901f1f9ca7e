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
    return (seven & 127) | (ones & 1) << 7;
}

/* Number i of those with 4 bits each, low ones first. */
static unsigned half_byte(const unsigned char *p, size_t i)
{
    return p[i / 2] >> i % 2 * 4 & 15;
}

static signed char with_sign(signed char size, unsigned signs, size_t i)
{
    return (signed char)((signs >> i & 1) != 0 ? -size : size);
}

/* Eight elements: one entry of 2 bits each, or two of 4 bits each. */
static void eight_2(signed char *q, unsigned entry, unsigned signs)
{
    for (size_t i = 0; i < 8; i++)
        q[i] = with_sign(mp_quant_sizes_2[entry >> 2 * i & 3], signs, i);
}

static void eight_3(signed char *q, const signed char sizes[8], unsigned low, unsigned high,
                    unsigned signs)
{
    for (size_t i = 0; i < 8; i++)
        q[i] = with_sign(sizes[(i < 4 ? low : high) >> i % 4 * 4 & 7], signs, i);
}

static void set_scale(struct mp_quant_block *b, size_t group, unsigned bits)
{
    b->scales[group] = (int16_t)(2 * bits + 1);
}

static void set_step(struct mp_quant_block *b, const unsigned char *p, float step)
{
    b->offset = 0;
    b->d = decode_half(p) * step;
}

/* { d, 8 times { 4 entries of 8 bits, 4 times 7 signs and a scale } } */
void mp_quant_read_iq2_xxs(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    for (size_t i = 0; i < 32; i++) {
        const unsigned char *group = p + 2 + i / 4 * 8;
        const uint32_t rest = word_32(group + 4);

        eight_2(q + 8 * i, mp_quant_grid_iq2_xxs[group[i % 4]], eight_signs(rest >> i % 4 * 7));
        set_scale(b, i / 2, rest >> 28);
    }
    set_step(b, p, 0.125f);
}

/* { d, 32 times { 9 bits an entry, 7 signs }, 16 scales } */
void mp_quant_read_iq2_xs(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    for (size_t i = 0; i < 32; i++) {
        const unsigned word = word_16(p + 2 + 2 * i);

        eight_2(q + 8 * i, mp_quant_grid_iq2_xs[word & 511], eight_signs(word >> 9));
        set_scale(b, i / 2, half_byte(p + 66, i / 2));
    }
    set_step(b, p, 0.125f);
}

/* { d, 32 entries' low 8 bits, 32 times 8 signs, 32 entries' 2 high bits, 16 scales } */
void mp_quant_read_iq2_s(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    for (size_t i = 0; i < 32; i++) {
        const unsigned high = p[66 + i / 4] >> i % 4 * 2 & 3;

        eight_2(q + 8 * i, mp_quant_grid_iq2_s[p[2 + i] | high << 8], p[34 + i]);
        set_scale(b, i / 2, half_byte(p + 74, i / 2));
    }
    set_step(b, p, 0.125f);
}

/* { d, 64 entries of 8 bits, 8 times { 4 times 7 signs, a scale } } */
void mp_quant_read_iq3_xxs(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    for (size_t i = 0; i < 32; i++) {
        const uint32_t rest = word_32(p + 66 + i / 4 * 4);

        eight_3(q + 8 * i, mp_quant_sizes_3_xxs, mp_quant_grid_iq3_xxs[p[2 + 2 * i]],
                mp_quant_grid_iq3_xxs[p[3 + 2 * i]], eight_signs(rest >> i % 4 * 7));
        set_scale(b, i / 2, rest >> 28);
    }
    set_step(b, p, 0.25f);
}

/* { d, 64 entries' low 8 bits, 64 entries' ninth bits, 32 times 8 signs, 8 scales } */
void mp_quant_read_iq3_s(struct mp_quant_block *b, signed char *q, const unsigned char *p)
{
    for (size_t i = 0; i < 32; i++) {
        const unsigned high = p[66 + i / 4] >> i % 4 * 2;

        eight_3(q + 8 * i, mp_quant_sizes_3_s, mp_quant_grid_iq3_s[p[2 + 2 * i] | (high & 1) << 8],
                mp_quant_grid_iq3_s[p[3 + 2 * i] | (high >> 1 & 1) << 8], p[74 + i]);
        set_scale(b, i / 2, half_byte(p + 106, i / 4));
    }
    set_step(b, p, 1);
}

MP_QUANT_DECODE(IQ2_XXS, iq2_xxs)
MP_QUANT_DECODE(IQ2_XS, iq2_xs)
MP_QUANT_DECODE(IQ2_S, iq2_s)
MP_QUANT_DECODE(IQ3_XXS, iq3_xxs)
MP_QUANT_DECODE(IQ3_S, iq3_s)
