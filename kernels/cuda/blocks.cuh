/*
 * Blocks of quantised weights, 8 columns at a time; kernels/cpu/quant/decode_*.c says what they
 * mean. A weight is
 *
 *     scale (number - zero) + added
 *
 * where `number` is a byte, `zero` a constant of the type, and scale and added are those of the
 * block's group of columns. The product is exact (at most 11 + 7 + 5 bits), so there is one
 * rounding, that of the sum, and every weight has the bits that the CPU decodes.
 */
#ifndef MP_BLOCKS_CUH
#define MP_BLOCKS_CUH

#include "kernels/cpu/types.h"
#include "kernels/cuda/math.cuh"

/* 8 weights as they are in memory; of a quantised type: 8 numbers, scale, added. */
struct mp_eight {
    uint32_t word[8];
};

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

/* What addresses of rows must be multiples of to be read 8 columns at a time. */
MP_DEVICE uint32_t mp_type_align(const int type)
{
    return mp_is_quant(type) && type != MP_WTYPE_Q4_K ? 2 : 16;
}

MP_DEVICE int mp_has_added(const int type)
{
    return type == MP_WTYPE_Q4_K;
}

MP_DEVICE float mp_zero_of(const int type)
{
    return type == MP_WTYPE_Q8_0 ? 128.0f : type == MP_WTYPE_Q6_K ? 32.0f : 0.0f;
}

/* Byte i of the word as a float: 0x4b000000 is 2^23, the byte becomes its last eight bits. */
MP_DEVICE float mp_byte_less(uint32_t word, uint32_t i, float zero)
{
    return mp_as_float(mp_permute(word, 0x4b000000u, 0x7440u + i)) - (8388608.0f + zero);
}

/* Weight i of 8, whose number is byte i % 4 of `word`. */
MP_DEVICE float mp_decoded(const struct mp_eight *from, const int type, uint32_t word, uint32_t i)
{
    const float number = mp_byte_less(word, i % 4, mp_zero_of(type));
    const float scale = mp_as_float(from->word[2]);

    return mp_has_added(type) ? mp_fma(scale, number, mp_as_float(from->word[3]))
                              : scale * number;
}

/* ---- bytes at a multiple of `align`, which is 1, 2 or 16 */

MP_DEVICE uint32_t mp_load_half(const MP_GLOBAL char *at, const uint32_t align)
{
    const MP_GLOBAL uint8_t *bytes = (const MP_GLOBAL uint8_t *)at;

    return align == 1 ? bytes[0] | (uint32_t)bytes[1] << 8 : *(const MP_GLOBAL uint16_t *)at;
}

/* Two words or four. */
MP_DEVICE void mp_load_words(uint32_t *to, const int count, const MP_GLOBAL char *at,
                             const uint32_t align)
{
    if (align == 16) {
        const struct mp_words words = count == 4 ? mp_load(at) : mp_load_pair(at);

        MP_UNROLL
        for (int i = 0; i < count; i++)
            to[i] = words.word[i];
        return;
    }
    MP_UNROLL
    for (int i = 0; i < count; i++)
        to[i] = mp_load_half(at + 4 * i, align) | mp_load_half(at + 4 * i + 2, align) << 16;
}

/* 8 numbers of 4 bits, the lower halves of bytes or the others. */
MP_DEVICE void mp_load_nibbles(uint32_t *to, const MP_GLOBAL char *at, uint32_t high,
                               const uint32_t align)
{
    mp_load_words(to, 2, at, align);
    MP_UNROLL
    for (int i = 0; i < 2; i++)
        to[i] = to[i] >> 4 * high & 0x0f0f0f0fu;
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

/* { d, dmin, 12 bytes scales, 128 bytes } */
MP_DEVICE void mp_load_q4_k(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                            const uint32_t align)
{
    uint32_t head[4], g;

    c = mp_here(c); /* what follows from it is not kept meanwhile */
    g = c / 32;
    mp_load_words(head, 4, block, align);
    mp_load_nibbles(to->word, block + 16 + c / 64 * 32 + c % 32, g % 2, align);
    to->word[2] =
        mp_as_bits(mp_half_low(head[0]) * mp_byte_less(mp_scale_6(head + 1, g), 0, 0.0f));
    to->word[3] =
        mp_as_bits(-(mp_half_high(head[0]) * mp_byte_less(mp_min_6(head + 1, g), 0, 0.0f)));
}

/* { 128 bytes, 64 bytes two high bits, 16 signed scales, d } */
MP_DEVICE void mp_load_q6_k(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                            const uint32_t align)
{
    const uint32_t scale = *(const MP_GLOBAL uint8_t *)(block + 192 + c / 16) ^ 0x80u;
    const float d = mp_half_low(mp_load_half(block + 208, align));
    uint32_t high[2];

    mp_load_nibbles(to->word, block + c / 128 * 64 + c % 64, c / 64 % 2, align);
    mp_load_words(high, 2, block + 128 + c / 128 * 32 + c % 32, align);
    MP_UNROLL
    for (int i = 0; i < 2; i++)
        to->word[i] |= (high[i] >> c / 32 % 4 * 2 & 0x03030303u) << 4;
    to->word[2] = mp_as_bits(d * mp_byte_less(scale, 0, 128.0f));
}

/* Columns c to c + 8 of a block at a multiple of `align`; c: a multiple of 8. */
MP_DEVICE void mp_load_block(struct mp_eight *to, const int type, const MP_GLOBAL char *block,
                             uint32_t c, const uint32_t align)
{
    if (type == MP_WTYPE_Q8_0)
        mp_load_q8_0(to, block, c, align);
    else if (type == MP_WTYPE_Q4_K)
        mp_load_q4_k(to, block, c, align);
    else
        mp_load_q6_k(to, block, c, align);
}

/* One weight of a row at any address. */
MP_DEVICE float mp_block_weight(const MP_GLOBAL char *row, const int type, uint64_t i)
{
    const uint32_t c = (uint32_t)i % mp_block_cols(type);
    struct mp_eight e;

    e.word[3] = 0;
    mp_load_block(&e, type, row + i / mp_block_cols(type) * mp_block_bytes(type), c - c % 8, 1);
    return mp_decoded(&e, type, c % 8 < 4 ? e.word[0] : e.word[1], c);
}

#endif
