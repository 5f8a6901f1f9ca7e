/*
 * Blocks whose numbers come from a grid as vectors, for unpack_k.h: sizes by a few shuffles of
 * entries, then signs. Layouts are in decode_grid.c.
 */

INLINE int is_grid(enum mp_wtype type)
{
    return type >= MP_WTYPE_FIRST_GRID;
}

INLINE uint32_t word_at(const unsigned char *p)
{
    uint32_t word;

    memcpy(&word, p, sizeof(word));
    return word;
}

/* Four times seven signs, as bytes or one after the other: the eighth makes ones even. */
INLINE uint32_t even_signs(uint32_t bytes)
{
    uint32_t odd = bytes ^ bytes >> 4;

    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return bytes | (odd & 0x01010101) << 7;
}

INLINE uint32_t sevens_apart(uint32_t bits)
{
    return (bits & 0x7f) | (bits << 1 & 0x7f00) | (bits << 2 & 0x7f0000) | (bits << 3 & 0x7f000000);
}

INLINE __m256i negate_where(__m256i a, uint32_t signs)
{
    const __m256i mask = mask_of(signs);

    return _mm256_sub_epi8(_mm256_xor_si256(a, mask), mask);
}

INLINE uint64_t four_entries(const uint16_t *grid, unsigned a, unsigned b, unsigned c, unsigned d)
{
    return grid[a] | (uint64_t)grid[b] << 16 | (uint64_t)grid[c] << 32 | (uint64_t)grid[d] << 48;
}

/* Sizes of four entries with 8 elements: code c of 2 bits stands for number c, or 4c. */
INLINE __m256i sizes_2(uint64_t entries)
{
    const __m256i spread = _mm256_setr_epi32(0x00000000, 0x01010101, 0x02020202, 0x03030303,
                                             0x04040404, 0x05050505, 0x06060606, 0x07070707);
    const __m256i list = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(8, 25, 43, 0, 25, 0, 0, 0, 43, 0, 0, 0, 0, 0, 0, 0));
    __m256i a = _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)entries), spread);

    a = _mm256_blend_epi16(a, _mm256_srli_epi16(a, 4), 0xaa); /* codes 2 and 3 of a byte */
    return _mm256_shuffle_epi8(list, _mm256_and_si256(a, _mm256_set1_epi16(0x0c03)));
}

/* Sizes of eight entries with 4 elements; `high`: what is added to their numbers. */
INLINE __m256i sizes_3(const uint16_t *grid, const signed char sizes[8], const unsigned char *p,
                       unsigned high)
{
    const __m256i list = _mm256_broadcastsi128_si256(_mm_loadl_epi64((const void *)sizes));
    unsigned e[8];
    __m256i a;

    UNROLL
    for (int i = 0; i < 8; i++)
        e[i] = p[i] | (high >> i & 1) << 8;
    a = _mm256_cvtepu8_epi16(_mm_set_epi64x((long long)four_entries(grid, e[4], e[5], e[6], e[7]),
                                            (long long)four_entries(grid, e[0], e[1], e[2], e[3])));
    a = _mm256_or_si256(a, _mm256_slli_epi16(a, 4));
    return _mm256_shuffle_epi8(list, _mm256_and_si256(a, _mm256_set1_epi8(15)));
}

INLINE __m256i bytes_iq2_xs(const unsigned char *p)
{
    uint16_t w[4];

    memcpy(w, p, sizeof(w));
    return negate_where(
        sizes_2(four_entries(mp_quant_grid_iq2_xs, w[0] & 511, w[1] & 511, w[2] & 511, w[3] & 511)),
        even_signs((uint32_t)(w[0] >> 9) | (uint32_t)(w[1] >> 9) << 8 |
                   (uint32_t)(w[2] >> 9) << 16 | (uint32_t)(w[3] >> 9) << 24));
}

/* Elements [32 j, 32 j + 32). */
INLINE __m256i bytes_grid(const unsigned char *p, enum mp_wtype type, int j)
{
    const unsigned char *q = p + 2 + 8 * j;
    unsigned high;

    switch (type) {
    case MP_WTYPE_IQ2_XXS:
        return negate_where(sizes_2(four_entries(mp_quant_grid_iq2_xxs, q[0], q[1], q[2], q[3])),
                            even_signs(sevens_apart(word_at(q + 4))));
    case MP_WTYPE_IQ2_XS: return bytes_iq2_xs(q);
    case MP_WTYPE_IQ2_S:
        q = p + 2 + 4 * j;
        high = p[66 + j];
        return negate_where(
            sizes_2(four_entries(mp_quant_grid_iq2_s, q[0] | (high & 3) << 8,
                                 q[1] | (high >> 2 & 3) << 8, q[2] | (high >> 4 & 3) << 8,
                                 q[3] | high >> 6 << 8)),
            word_at(q + 32));
    case MP_WTYPE_IQ3_XXS:
        return negate_where(sizes_3(mp_quant_grid_iq3_xxs, mp_quant_sizes_3_xxs, q, 0),
                            even_signs(sevens_apart(word_at(p + 66 + 4 * j))));
    default:
        return negate_where(sizes_3(mp_quant_grid_iq3_s, mp_quant_sizes_3_s, q, p[66 + j]),
                            word_at(p + 74 + 4 * j));
    }
}

/* Is there one scale for each 32 elements? */
INLINE int has_pairs_grid(enum mp_wtype type)
{
    return type == MP_WTYPE_IQ2_XXS || type == MP_WTYPE_IQ3_XXS || type == MP_WTYPE_IQ3_S;
}

/* Those for 32 elements, group j: 4 bits b as 2b + 1. */
INLINE int32_t scale_grid(const unsigned char *p, enum mp_wtype type, int j)
{
    const uint32_t b = type == MP_WTYPE_IQ2_XXS   ? p[2 + 8 * j + 7] >> 4
                       : type == MP_WTYPE_IQ3_XXS ? p[66 + 4 * j + 3] >> 4
                                                  : p[106 + j / 2] >> j % 2 * 4 & 15;

    return (int32_t)((2 * b + 1) * 0x00010001);
}

INLINE float step_grid(enum mp_wtype type)
{
    return type == MP_WTYPE_IQ3_S ? 1 : type == MP_WTYPE_IQ3_XXS ? 0.25f : 0.125f;
}

/* Those for 16 elements: 8 bytes, low halves first. Returns 16 bytes. */
INLINE __m128i scales_2(const unsigned char *p)
{
    __m128i a = _mm_cvtepu8_epi16(_mm_loadl_epi64((const void *)p));

    a = _mm_and_si128(_mm_or_si128(a, _mm_slli_epi16(a, 4)), _mm_set1_epi8(15));
    return _mm_add_epi8(_mm_add_epi8(a, a), _mm_set1_epi8(1));
}
