/*
 * Blocks of 256 whose numbers come from a grid: kernels/cpu/quant/decode_grid.c. The grids are in
 * global memory, 512 bytes to 2 KiB, which stay in the first-level cache: lanes read other entries,
 * and constant memory answers one address at a time. A byte is 128 + size, or 128 - size.
 */
#ifndef MP_GRIDS_CUH
#define MP_GRIDS_CUH

#include "kernels/cuda/bytes.cuh"

#define MP_GRID(name, entries) MP_TABLE uint16_t mp_grid_##name[entries]
#include "kernels/cpu/quant/grids.h"
#undef MP_GRID

/* The eighth of these signs is such that ones are even. */
MP_DEVICE uint32_t mp_even_signs(uint32_t seven)
{
    return seven | mp_count_bits(seven) << 7;
}

/* Four sizes with the lowest four signs. */
MP_DEVICE uint32_t mp_signed(uint32_t sizes, uint32_t signs)
{
    const uint32_t ones = mp_apart(signs);

    return ((sizes | 0x80808080u) ^ ones * 255) + ones;
}

/* Of an entry's eight codes of 2 bits, those at even places come first, then the others. */
MP_DEVICE void mp_put_sizes_2(struct mp_eight *to, uint32_t entry, uint32_t signs)
{
    const uint32_t list = 0x002b1908u; /* 8, 25, 43 */
    const uint32_t even = mp_permute(list, 0, entry & 0x3333u);
    const uint32_t odd = mp_permute(list, 0, entry >> 2 & 0x3333u);

    to->word[0] = mp_signed(mp_permute(even, odd, 0x5140u), signs);
    to->word[1] = mp_signed(mp_permute(even, odd, 0x7362u), signs >> 4);
}

/* An entry's four codes are what a permutation takes; `low`, `high`: the eight sizes. */
MP_DEVICE void mp_put_sizes_3(struct mp_eight *to, uint32_t first, uint32_t second, uint32_t signs,
                              const uint32_t low, const uint32_t high)
{
    to->word[0] = mp_signed(mp_permute(low, high, first), signs);
    to->word[1] = mp_signed(mp_permute(low, high, second), signs >> 4);
}

/* d (2b + 1) step; b: the lowest 4 bits */
MP_DEVICE void mp_put_scale_4(struct mp_eight *to, uint32_t d, uint32_t b, const float step)
{
    to->word[2] = mp_as_bits(mp_half_low(d) * (step * mp_byte_less((b & 15) * 2 + 1, 0, 0.0f)));
}

/* { d, 8 times { 4 entries of 8 bits, 4 times 7 signs and a scale } } */
MP_DEVICE void mp_load_iq2_xxs(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                               const uint32_t align)
{
    const MP_GLOBAL char *group = block + 2 + c / 32 * 8;
    const uint32_t rest = mp_load_word(group + 4, align);

    mp_put_sizes_2(to, mp_grid_iq2_xxs[mp_load_byte(group + c / 8 % 4)],
                   mp_even_signs(rest >> c / 8 % 4 * 7 & 127));
    mp_put_scale_4(to, mp_load_half(block, align), rest >> 28, 0.125f);
}

/* { d, 32 times { 9 bits an entry, 7 signs }, 16 scales } */
MP_DEVICE void mp_load_iq2_xs(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                              const uint32_t align)
{
    const uint32_t word = mp_load_half(block + 2 + c / 4, align);

    mp_put_sizes_2(to, mp_grid_iq2_xs[word & 511], mp_even_signs(word >> 9));
    mp_put_scale_4(to, mp_load_half(block, align),
                   mp_load_byte(block + 66 + c / 32) >> c / 16 % 2 * 4, 0.125f);
}

/* { d, 32 entries' low 8 bits, 32 times 8 signs, 32 entries' 2 high bits, 16 scales } */
MP_DEVICE void mp_load_iq2_s(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                             const uint32_t align)
{
    const uint32_t high = mp_load_byte(block + 66 + c / 32) >> c / 8 % 4 * 2 & 3;

    mp_put_sizes_2(to, mp_grid_iq2_s[mp_load_byte(block + 2 + c / 8) | high << 8],
                   mp_load_byte(block + 34 + c / 8));
    mp_put_scale_4(to, mp_load_half(block, align),
                   mp_load_byte(block + 74 + c / 32) >> c / 16 % 2 * 4, 0.125f);
}

/* { d, 64 entries of 8 bits, 8 times { 4 times 7 signs, a scale } } */
MP_DEVICE void mp_load_iq3_xxs(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                               const uint32_t align)
{
    const uint32_t entries = mp_load_half(block + 2 + c / 4, align);
    const uint32_t rest = mp_load_word(block + 66 + c / 32 * 4, align);

    mp_put_sizes_3(to, mp_grid_iq3_xxs[entries & 255], mp_grid_iq3_xxs[entries >> 8],
                   mp_even_signs(rest >> c / 8 % 4 * 7 & 127), 0x1c140c04u, 0x3e342c24u);
    mp_put_scale_4(to, mp_load_half(block, align), rest >> 28, 0.25f);
}

/* { d, 64 entries' low 8 bits, 64 entries' ninth bits, 32 times 8 signs, 8 scales } */
MP_DEVICE void mp_load_iq3_s(struct mp_eight *to, const MP_GLOBAL char *block, uint32_t c,
                             const uint32_t align)
{
    const uint32_t entries = mp_load_half(block + 2 + c / 4, align);
    const uint32_t ninth = mp_load_byte(block + 66 + c / 32) >> c / 8 % 4 * 2;

    mp_put_sizes_3(to, mp_grid_iq3_s[(entries & 255) | (ninth & 1) << 8],
                   mp_grid_iq3_s[entries >> 8 | (ninth & 2) << 7], mp_load_byte(block + 74 + c / 8),
                   0x07050301u, 0x0f0d0b09u);
    mp_put_scale_4(to, mp_load_half(block, align),
                   mp_load_byte(block + 106 + c / 64) >> c / 32 % 2 * 4, 1.0f);
}

#endif
