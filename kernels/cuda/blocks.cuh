/*
 * Blocks of quantised weights, 8 columns at a time; kernels/cpu/quant/decode_*.c says what they
 * mean. A weight is
 *
 *     scale (number - zero) + added
 *
 * where `number` is a byte, `zero` a constant of the type, and scale and added are those of the
 * block's group of columns. The product is exact (at most 11 + 7 + 5 bits, and 24 have room), so
 * there is one rounding, that of the sum, and every weight has the bits that the CPU decodes.
 */
#ifndef MP_BLOCKS_CUH
#define MP_BLOCKS_CUH

#include "kernels/cpu/types.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/grids.cuh"

MP_DEVICE int mp_is_quant(const int type)
{
    return type >= MP_WTYPE_PLAIN_COUNT;
}

/* Of a plain number. */
MP_DEVICE uint32_t mp_type_bytes(const int type)
{
    return type == MP_WTYPE_F32 ? 4 : 2;
}

MP_DEVICE uint32_t mp_block_cols(const int type)
{
    switch (type) {
#define X(TYPE, name, elements, bytes) \
    case MP_WTYPE_##TYPE: return elements;
        MP_QUANT_MAP(X)
#undef X
    default: return 1;
    }
}

MP_DEVICE uint32_t mp_block_bytes(const int type)
{
    switch (type) {
#define X(TYPE, name, elements, bytes) \
    case MP_WTYPE_##TYPE: return bytes;
        MP_QUANT_MAP(X)
#undef X
    default: return mp_type_bytes(type);
    }
}

/* Bytes of so many elements, which are whole blocks. */
MP_DEVICE uint64_t mp_bytes_of(const int type, uint64_t elements)
{
    return elements / mp_block_cols(type) * mp_block_bytes(type);
}

/* What addresses of rows must be multiples of to be read 8 columns at a time: the largest power of
 * two that all blocks are at multiples of, or 16. */
MP_DEVICE uint32_t mp_type_align(const int type)
{
    const uint32_t bytes = mp_block_bytes(type), power = bytes & (0u - bytes);

    return mp_is_quant(type) && power < 16 ? power : 16;
}

MP_DEVICE int mp_has_added(const int type)
{
    return type == MP_WTYPE_Q4_1 || type == MP_WTYPE_Q5_1 || type == MP_WTYPE_Q2_K ||
           type == MP_WTYPE_Q4_K || type == MP_WTYPE_Q5_K;
}

MP_DEVICE float mp_zero_of(const int type)
{
    switch (type) {
    case MP_WTYPE_Q3_K: return 4.0f;
    case MP_WTYPE_Q4_0: return 8.0f;
    case MP_WTYPE_MXFP4: return 12.0f;
    case MP_WTYPE_Q5_0: return 16.0f;
    case MP_WTYPE_Q6_K: return 32.0f;
    case MP_WTYPE_Q8_0:
    case MP_WTYPE_IQ4_NL:
    case MP_WTYPE_IQ4_XS: return 128.0f;
    default: return type >= MP_WTYPE_FIRST_GRID ? 128.0f : 0.0f;
    }
}

/* Weight i of 8, whose number is byte i % 4 of `word`. */
MP_DEVICE float mp_decoded(const struct mp_eight *from, const int type, uint32_t word, uint32_t i)
{
    const float number = mp_byte_less(word, i % 4, mp_zero_of(type));
    const float scale = mp_as_float(from->word[2]);

    return mp_has_added(type) ? mp_fma(scale, number, mp_as_float(from->word[3])) : scale * number;
}

/* Four numbers of 4 bits, one in each byte, become those bytes of a list of 16. */
MP_DEVICE uint32_t mp_listed(uint32_t numbers, const uint32_t first, const uint32_t second,
                             const uint32_t third, const uint32_t fourth)
{
    const uint32_t halves = mp_permute(numbers | numbers >> 4, 0, 0x4420u);
    const uint32_t select = halves & 0x7777u, high = halves & 0x8888u;

    return mp_permute(mp_permute(first, second, select), mp_permute(third, fourth, select),
                      0x3210u | high >> 1);
}

/* The list of IQ4_NL and IQ4_XS, with 128 added. */
MP_DEVICE uint32_t mp_listed_iq4(uint32_t numbers)
{
    return mp_listed(numbers, 0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u);
}

/* 0, 1, 2, 3, 4, 6, 8, 12 and the negative ones, with 12 added. */
MP_DEVICE uint32_t mp_listed_fp4(uint32_t numbers)
{
    return mp_listed(numbers, 0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u);
}

/* ---- blocks of 32: kernels/cpu/quant/decode_32.c */

/* { d, 16 bytes } */
MP_DEVICE void mp_load_q4_0(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                            const uint32_t align)
{
    mp_load_nibbles(to->word, block + 2 + c % 16, c / 16, align);
    to->word[2] = mp_as_bits(mp_half_low(mp_load_half(block, align)));
}

/* { d, m, 16 bytes } */
MP_DEVICE void mp_load_q4_1(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                            const uint32_t align)
{
    const uint32_t head = mp_load_word(block, align);

    mp_load_nibbles(to->word, block + 4 + c % 16, c / 16, align);
    to->word[2] = mp_as_bits(mp_half_low(head));
    to->word[3] = mp_as_bits(mp_half_high(head));
}

/* { d, fifth bits, 16 bytes } */
MP_DEVICE void mp_load_q5_0(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                            const uint32_t align)
{
    const uint32_t fifth = mp_load_byte(block + 2 + c / 8);

    mp_load_nibbles(to->word, block + 6 + c % 16, c / 16, align);
    to->word[0] |= mp_apart(fifth) << 4;
    to->word[1] |= mp_apart(fifth >> 4) << 4;
    to->word[2] = mp_as_bits(mp_half_low(mp_load_half(block, align)));
}

/* { d, m, fifth bits, 16 bytes } */
MP_DEVICE void mp_load_q5_1(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                            const uint32_t align)
{
    uint32_t head[2], fifth;

    mp_load_words(head, 2, block, align);
    fifth = head[1] >> c / 8 * 8;
    mp_load_nibbles(to->word, block + 8 + c % 16, c / 16, align);
    to->word[0] |= mp_apart(fifth) << 4;
    to->word[1] |= mp_apart(fifth >> 4) << 4;
    to->word[2] = mp_as_bits(mp_half_low(head[0]));
    to->word[3] = mp_as_bits(mp_half_high(head[0]));
}

/* { d, 32 signed bytes } */
MP_DEVICE void mp_load_q8_0(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                            const uint32_t align)
{
    mp_load_words(to->word, 2, block + 2 + c, align);
    to->word[0] ^= 0x80808080u;
    to->word[1] ^= 0x80808080u;
    to->word[2] = mp_as_bits(mp_half_low(mp_load_half(block, align)));
}

/* { d, 16 bytes } */
MP_DEVICE void mp_load_iq4_nl(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                              const uint32_t align)
{
    mp_load_nibbles(to->word, block + 2 + c % 16, c / 16, align);
    to->word[0] = mp_listed_iq4(to->word[0]);
    to->word[1] = mp_listed_iq4(to->word[1]);
    to->word[2] = mp_as_bits(mp_half_low(mp_load_half(block, align)));
}

/* { exponent, 16 bytes }; the scale is 2^(exponent - 128), below 2^-126 a denormal number. */
MP_DEVICE void mp_load_mxfp4(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                             const uint32_t align)
{
    const uint32_t exponent = mp_load_byte(block);

    (void)align;
    mp_load_any(to->word, block + 1 + c % 16);
    MP_UNROLL
    for (int i = 0; i < 2; i++)
        to->word[i] = mp_listed_fp4(to->word[i] >> c / 16 * 4 & 0x0f0f0f0fu);
    to->word[2] = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
}

/* ---- blocks of 256: kernels/cpu/quant/decode_k.c */

/* 8 numbers of 2 bits, of which those of elements 32 apart share a byte. */
MP_DEVICE void mp_load_pairs(uint32_t *to, const MP_GLOBAL char *from, uint32_t c,
                             const uint32_t align)
{
    mp_load_words(to, 2, from + c / 128 * 32 + c % 32, align);
    MP_UNROLL
    for (int i = 0; i < 2; i++)
        to[i] = to[i] >> c / 32 % 4 * 2 & 0x03030303u;
}

/* { 16 bytes scale | subtrahend << 4, 64 bytes, d, dmin } */
MP_DEVICE void mp_load_q2_k(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                            const uint32_t align)
{
    uint32_t group, d;

    c = mp_here(c); /* what follows from it is not kept meanwhile */
    group = mp_load_byte(block + c / 16);
    d = mp_load_word(block + 80, align);
    to->word[2] = mp_as_bits(mp_half_low(d) * mp_byte_less(group & 15, 0, 0.0f));
    to->word[3] = mp_as_bits(-(mp_half_high(d) * mp_byte_less(group >> 4, 0, 0.0f)));
    mp_load_pairs(to->word, block + 16, c, align);
}

/* { 32 bytes third bits, one group of 32 each, 64 bytes, 12 bytes scales, d } */
MP_DEVICE void mp_load_q3_k(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                            const uint32_t align)
{
    uint32_t third[2], scale;

    c = mp_here(c);
    scale = (mp_load_byte(block + 96 + c / 16 % 8) >> c / 128 * 4 & 15) |
            (mp_load_byte(block + 104 + c / 16 % 4) >> c / 64 * 2 & 3) << 4;
    to->word[2] =
        mp_as_bits(mp_half_low(mp_load_half(block + 108, align)) * mp_byte_less(scale, 0, 32.0f));
    mp_load_words(third, 2, block + c % 32, align);
    mp_load_pairs(to->word, block + 32, c, align);
    MP_UNROLL
    for (int i = 0; i < 2; i++)
        to->word[i] |= (third[i] >> c / 32 & 0x01010101u) << 2;
}

/* Scale number g of 8, and its subtrahend, of 6 bits each: the first four's are in words 0 and 1;
 * of the others the low four bits are in word 2, two more above the former. */
MP_DEVICE uint32_t mp_scale_6(const uint32_t *word, uint32_t g)
{
    const uint32_t low = word[0] >> g % 4 * 8, high = word[2] >> g % 4 * 8;

    return g < 4 ? low & 63 : (high & 15) | (low >> 2 & 48);
}

MP_DEVICE uint32_t mp_min_6(const uint32_t *word, uint32_t g)
{
    const uint32_t low = word[1] >> g % 4 * 8, high = word[2] >> g % 4 * 8;

    return g < 4 ? low & 63 : (high >> 4 & 15) | (low >> 2 & 48);
}

/* The scale and what is added of group g, of { d, dmin, 12 bytes scales }. */
MP_DEVICE void mp_put_scales_6(struct mp_eight *to, const uint32_t *head, uint32_t g)
{
    to->word[2] = mp_as_bits(mp_half_low(head[0]) * mp_byte_less(mp_scale_6(head + 1, g), 0, 0.0f));
    to->word[3] =
        mp_as_bits(-(mp_half_high(head[0]) * mp_byte_less(mp_min_6(head + 1, g), 0, 0.0f)));
}

/* { d, dmin, 12 bytes scales, 128 bytes } */
MP_DEVICE void mp_load_q4_k(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                            const uint32_t align)
{
    uint32_t head[4];

    c = mp_here(c);
    mp_load_words(head, 4, block, align);
    mp_load_nibbles(to->word, block + 16 + c / 64 * 32 + c % 32, c / 32 % 2, align);
    mp_put_scales_6(to, head, c / 32);
}

/* { d, dmin, 12 bytes scales, 32 bytes fifth bits, one group of 32 each, 128 bytes } */
MP_DEVICE void mp_load_q5_k(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                            const uint32_t align)
{
    uint32_t head[4], fifth[2];

    c = mp_here(c);
    mp_load_words(head, 4, block, align);
    mp_put_scales_6(to, head, c / 32);
    mp_load_words(fifth, 2, block + 16 + c % 32, align);
    mp_load_nibbles(to->word, block + 48 + c / 64 * 32 + c % 32, c / 32 % 2, align);
    MP_UNROLL
    for (int i = 0; i < 2; i++)
        to->word[i] |= (fifth[i] >> c / 32 & 0x01010101u) << 4;
}

/* { 128 bytes, 64 bytes two high bits, 16 signed scales, d } */
MP_DEVICE void mp_load_q6_k(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                            const uint32_t align)
{
    const uint32_t scale = mp_load_byte(block + 192 + c / 16) ^ 0x80u;
    const float d = mp_half_low(mp_load_half(block + 208, align));
    uint32_t high[2];

    mp_load_nibbles(to->word, block + c / 128 * 64 + c % 64, c / 64 % 2, align);
    mp_load_words(high, 2, block + 128 + c / 128 * 32 + c % 32, align);
    MP_UNROLL
    for (int i = 0; i < 2; i++)
        to->word[i] |= (high[i] >> c / 32 % 4 * 2 & 0x03030303u) << 4;
    to->word[2] = mp_as_bits(d * mp_byte_less(scale, 0, 128.0f));
}

/* { d, 2 bytes with 2 high bits of 8 scales, 4 bytes with 4 low ones, 128 bytes } */
MP_DEVICE void mp_load_iq4_xs(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                              const uint32_t align)
{
    uint32_t head[2], scale;

    c = mp_here(c);
    mp_load_nibbles(to->word, block + 8 + c / 32 * 16 + c % 16, c / 16 % 2, align);
    to->word[0] = mp_listed_iq4(to->word[0]);
    to->word[1] = mp_listed_iq4(to->word[1]);
    mp_load_words(head, 2, block, align);
    scale = (head[1] >> c / 32 * 4 & 15) | (head[0] >> (16 + c / 32 * 2) & 3) << 4;
    to->word[2] = mp_as_bits(mp_half_low(head[0]) * mp_byte_less(scale, 0, 32.0f));
}

/* Columns c to c + 8 of a block at a multiple of `align`; c: a multiple of 8. */
MP_DEVICE void mp_load_block(struct mp_eight *to, const int type, const MP_GLOBAL char *block,
                             uint32_t c, const uint32_t align)
{
    switch (type) {
#define X(TYPE, name) \
    case MP_WTYPE_##TYPE: mp_load_##name(to, block, c, align); break;
        MP_CUDA_QUANT_MAP(X)
#undef X
    default: break;
    }
}

/* One weight of a row at any address. */
MP_DEVICE float mp_block_weight(const MP_GLOBAL char *row, const int type, uint64_t i)
{
    const uint32_t c = (uint32_t)i % mp_block_cols(type);
    struct mp_eight e = { { 0, 0, 0, 0, 0, 0, 0, 0 } };

    mp_load_block(&e, type, row + i / mp_block_cols(type) * mp_block_bytes(type), c - c % 8, 1);
    return mp_decoded(&e, type, c % 8 < 4 ? e.word[0] : e.word[1], c);
}

#endif
