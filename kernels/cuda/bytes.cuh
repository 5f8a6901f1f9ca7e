/* Bytes of blocks of quantised weights, read at a multiple of `align`, a power of two. */
#ifndef MP_BYTES_CUH
#define MP_BYTES_CUH

#include "kernels/cuda/math.cuh"

/* 8 weights as they are in memory; of a quantised type: 8 numbers, scale, and where it has it, what
 * is added. */
struct mp_eight {
    uint32_t word[8];
};

/* Byte i of the word as a float: 0x4b000000 is 2^23, the byte becomes its last eight bits. */
MP_DEVICE float mp_byte_less(uint32_t word, uint32_t i, float zero)
{
    return mp_as_float(mp_permute(word, 0x4b000000u, 0x7440u + i)) - (8388608.0f + zero);
}

MP_DEVICE uint32_t mp_load_byte(const MP_GLOBAL char *at)
{
    return *(const MP_GLOBAL uint8_t *)at;
}

MP_DEVICE uint32_t mp_load_half(const MP_GLOBAL char *at, const uint32_t align)
{
    return align == 1 ? mp_load_byte(at) | mp_load_byte(at + 1) << 8
                      : *(const MP_GLOBAL uint16_t *)at;
}

MP_DEVICE uint32_t mp_load_word(const MP_GLOBAL char *at, const uint32_t align)
{
    return align < 4 ? mp_load_half(at, align) | mp_load_half(at + 2, align) << 16
                     : *(const MP_GLOBAL uint32_t *)at;
}

/* Two words or four. */
MP_DEVICE void mp_load_words(uint32_t *to, const int count, const MP_GLOBAL char *at,
                             const uint32_t align)
{
    if (align >= 4 * (uint32_t)count) {
        const struct mp_words words = count == 4 ? mp_load(at) : mp_load_pair(at);

        MP_UNROLL
        for (int i = 0; i < count; i++)
            to[i] = words.word[i];
        return;
    }
    MP_UNROLL
    for (int i = 0; i < count; i++)
        to[i] = mp_load_word(at + 4 * i, align);
}

/* 8 bytes at any address by five loads, and none beyond them: halves of words at even addresses;
 * of what is left one byte is the first or the last but one, the other one the last. */
MP_DEVICE void mp_load_any(uint32_t *to, const MP_GLOBAL char *at)
{
    const uint32_t odd = (uint32_t)(uint64_t)at & 1;
    const uint32_t front = mp_load_word(at + odd, 2);
    const uint32_t back = mp_load_half(at + odd + 4, 2) | mp_load_byte(at + (odd ? 0 : 6)) << 16 |
                          mp_load_byte(at + 7) << 24;

    to[0] = mp_permute(front, back, odd ? 0x2106u : 0x3210u);
    to[1] = mp_permute(front, back, odd ? 0x7543u : 0x7654u);
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

/* Four bits of `bits` become the lowest bits of the bytes of a word. */
MP_DEVICE uint32_t mp_apart(uint32_t bits)
{
    return (bits & 15) * 0x00204081u & 0x01010101u;
}

#endif
