/*
 * Blocks of 256 elements as vectors, for product.h: 8 times 32 numbers in order, one byte each, and
 * the whole numbers that are the scales of 16 elements each. Layouts are in decode_k.c.
 */

/*
 * Scales and mins, what is subtracted, of two rows.
 *
 * Of 16 elements each: in 16-bit lanes, those of elements 0 to 15 of each 32 in the low half, of
 * the others in the high half. So do the sums of 16 activations, which `mins` are multiplied with.
 * Of 32 elements each: pairs, each scale twice, or of neighbours.
 * Mins of 6 bits are in mins[0], one row in each half; the sums of 32 activations are in both.
 */
struct scales_k {
    __m256i scales[2], mins[2];
    int32_t pairs[2][8], neighbours[2][4];
    float d[2][2]; /* d, and dmin, which mins are multiplied with */
};

/* What is subtracted: nothing; mins, as whole numbers; dmin * mins. */
enum { MINS_NONE, MINS_WHOLE, MINS_SCALED };

/* Are elements below zero? */
INLINE int is_signed_k(enum mp_wtype type)
{
    return type == MP_WTYPE_IQ4_XS || is_grid(type);
}

INLINE int mins_of(enum mp_wtype type)
{
    return is_signed_k(type)                                ? MINS_NONE
           : type == MP_WTYPE_Q6_K || type == MP_WTYPE_Q3_K ? MINS_WHOLE
                                                            : MINS_SCALED;
}

/* 16 signed bytes as 16-bit lanes, those of even numbers in the low half. */
INLINE __m256i even_odd(__m128i bytes)
{
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);

    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, order));
}

/* Is there one scale for each 32 elements? */
INLINE int has_pairs_k(enum mp_wtype type)
{
    return type == MP_WTYPE_Q4_K || type == MP_WTYPE_Q5_K || type == MP_WTYPE_IQ4_XS ||
           has_pairs_grid(type);
}

/* Have blocks 8 scales and 8 mins of 6 bits each? */
INLINE int has_6_bits(enum mp_wtype type)
{
    return type == MP_WTYPE_Q4_K || type == MP_WTYPE_Q5_K;
}

/* Are the products of 32 elements and of the next 32 multiplied with their scales at once? */
INLINE int has_neighbours(enum mp_wtype type)
{
    return V_WIDE && has_6_bits(type);
}

/* What such blocks begin with, two 16-bit floats and 12 bytes: those of a row in each half. */
INLINE __m256i heads_6(const unsigned char *a, const unsigned char *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)a)),
                                   _mm_loadu_si128((const void *)b), 1);
}

/* 8 scales and 8 mins in each half. */
INLINE __m256i bytes_6(__m256i heads)
{
    const __m256i first = _mm256_setr_epi32(0x07060504, 0x0f0e0d0c, 0x0b0a0908, 0x0f0e0d0c,
                                            0x07060504, 0x0f0e0d0c, 0x0b0a0908, 0x0f0e0d0c);
    const __m256i low =
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(heads, first),
                                           _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4)),
                         _mm256_set1_epi64x(0x0f0f0f0f3f3f3f3f));
    const __m256i second = _mm256_shuffle_epi8(
        heads, _mm256_setr_epi32(-1, 0x07060504, -1, 0x0b0a0908, -1, 0x07060504, -1, 0x0b0a0908));

    return v_or_masked(low, _mm256_srli_epi32(second, 2), _mm256_set1_epi8(0x30));
}

/* d and dmin of both rows. */
INLINE void d_of_6(float d[2][2], __m256i heads)
{
    _mm_storeu_ps(d[0], _mm_cvtph_ps(_mm_unpacklo_epi32(_mm256_castsi256_si128(heads),
                                                        _mm256_extracti128_si256(heads, 1))));
}

INLINE void scales_6(const unsigned char *a, const unsigned char *b, struct scales_k *s,
                     enum mp_wtype type)
{
    const __m128i twice =
        _mm_setr_epi32((int)0xff00ff00, (int)0xff01ff01, (int)0xff02ff02, (int)0xff03ff03);
    const __m256i zero = _mm256_setzero_si256(), heads = heads_6(a, b), bytes = bytes_6(heads);

    if (has_neighbours(type)) {
        _mm256_storeu_si256((void *)s->neighbours, _mm256_unpacklo_epi8(bytes, zero));
    } else {
        const __m256i low = _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(twice));
        const __m256i high = _mm256_shuffle_epi8(
            bytes, _mm256_broadcastsi128_si256(_mm_add_epi8(twice, _mm_set1_epi16(4))));

        _mm256_storeu_si256((void *)s->pairs[0], _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((void *)s->pairs[1], _mm256_permute2x128_si256(low, high, 0x31));
    }
    s->mins[0] = _mm256_unpackhi_epi8(bytes, zero);
    d_of_6(s->d, heads);
}

/* Of Q3_K: elements are stored 4 too large. */
INLINE void scales_3(const unsigned char *p, struct scales_k *s, int r)
{
    const uint32_t low = 0x0f0f0f0f, high = 0x30303030;
    uint32_t a[3];
    __m128i bytes;

    memcpy(a, p, sizeof(a));
    bytes = _mm_setr_epi32(
        (int)((a[0] & low) | (a[2] << 4 & high)), (int)((a[1] & low) | (a[2] << 2 & high)),
        (int)((a[0] >> 4 & low) | (a[2] & high)), (int)((a[1] >> 4 & low) | (a[2] >> 2 & high)));
    s->scales[r] = even_odd(_mm_sub_epi8(bytes, _mm_set1_epi8(32)));
    s->mins[r] = _mm256_slli_epi16(s->scales[r], 2);
}

/* Of IQ4_XS: 2 bytes of high bits, 4 of low ones. */
INLINE void scales_iq4(const unsigned char *p, struct scales_k *s, int r)
{
    const __m256i twice = _mm256_setr_epi32(0x01000100, 0x05040504, 0x09080908, 0x0d0c0d0c,
                                            0x01000100, 0x05040504, 0x09080908, 0x0d0c0d0c);
    int32_t low, high;
    __m256i a, b;

    memcpy(&high, p, sizeof(high)); /* two of the low ones with it */
    memcpy(&low, p + 2, sizeof(low));
    a = _mm256_srlv_epi32(_mm256_set1_epi32(low), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    b = _mm256_sllv_epi32(_mm256_set1_epi32(high), _mm256_setr_epi32(4, 2, 0, 0, 0, 0, 0, 0));
    b = _mm256_srlv_epi32(b, _mm256_setr_epi32(0, 0, 0, 2, 4, 6, 8, 10));
    a = _mm256_or_si256(_mm256_and_si256(a, _mm256_set1_epi32(15)),
                        _mm256_and_si256(b, _mm256_set1_epi32(48)));
    a = _mm256_sub_epi32(a, _mm256_set1_epi32(32));
    _mm256_storeu_si256((void *)s->pairs[r], _mm256_shuffle_epi8(a, twice));
}

/* Those of row r, of the types without mins of 6 bits. */
INLINE void scales_of_k(const unsigned char *p, enum mp_wtype type, struct scales_k *s, int r)
{
    __m128i a;

    switch (type) {
    case MP_WTYPE_Q2_K:
        a = _mm_loadu_si128((const void *)p);
        s->scales[r] = even_odd(_mm_and_si128(a, _mm_set1_epi8(15)));
        s->mins[r] = even_odd(_mm_and_si128(_mm_srli_epi16(a, 4), _mm_set1_epi8(15)));
        s->d[r][0] = half_at(p + 80);
        s->d[r][1] = half_at(p + 82);
        return;
    case MP_WTYPE_Q3_K:
        scales_3(p + 96, s, r);
        s->d[r][0] = half_at(p + 108);
        return;
    case MP_WTYPE_Q6_K: /* elements are stored 32 too large */
        s->scales[r] = even_odd(_mm_loadu_si128((const void *)(p + 192)));
        s->mins[r] = _mm256_slli_epi16(s->scales[r], 5);
        s->d[r][0] = half_at(p + 208);
        return;
    case MP_WTYPE_IQ2_XXS:
    case MP_WTYPE_IQ3_XXS:
    case MP_WTYPE_IQ3_S:
        UNROLL
        for (int j = 0; j < 8; j++)
            s->pairs[r][j] = scale_grid(p, type, j);
        s->d[r][0] = half_at(p) * step_grid(type);
        return;
    case MP_WTYPE_IQ2_XS:
    case MP_WTYPE_IQ2_S:
        s->scales[r] = even_odd(scales_2(p + (type == MP_WTYPE_IQ2_XS ? 66 : 74)));
        s->d[r][0] = half_at(p) * step_grid(type);
        return;
    default: scales_iq4(p + 2, s, r); s->d[r][0] = half_at(p);
    }
}

/* Those of the two rows at a and b; of one where b is NULL. */
INLINE void scales_of_rows(const unsigned char *a, const unsigned char *b, enum mp_wtype type,
                           struct scales_k *s)
{
    if (has_6_bits(type)) {
        scales_6(a, b != NULL ? b : a, s, type);
        return;
    }
    scales_of_k(a, type, s, 0);
    if (b != NULL)
        scales_of_k(b, type, s, 1);
}

INLINE __m256i load_32(const unsigned char *p)
{
    return _mm256_loadu_si256((const void *)p);
}

/* The same, of which a register is made where several want it, rather than a load for each. */
INLINE __m256i load_once(const unsigned char *p)
{
    __m256i a = load_32(p);

    __asm__("" : "+x"(a));
    return a;
}

/* `bits` bits of each byte from bit `bit` on become those from bit `to` on of a. */
INLINE __m256i insert_bits(__m256i a, __m256i from, int bit, int to, int bits)
{
    const __m256i mask = _mm256_set1_epi8((char)(((1 << bits) - 1) << to));

    if (bit != to)
        from = bit > to ? _mm256_srli_epi16(from, bit - to) : _mm256_slli_epi16(from, to - bit);
    return v_or_masked(a, from, mask);
}

/* Elements [32 j, 32 j + 32). */
INLINE __m256i bytes_k(const unsigned char *p, enum mp_wtype type, int j)
{
    if (is_grid(type))
        return bytes_grid(p, type, j);
    switch (type) {
    case MP_WTYPE_Q2_K: return bits_of(load_32(p + 16 + j / 4 * 32), j % 4 * 2, 3);
    case MP_WTYPE_Q3_K:
        return insert_bits(bits_of(load_32(p + 32 + j / 4 * 32), j % 4 * 2, 3), load_32(p), j, 2,
                           1);
    case MP_WTYPE_Q5_K:
        return insert_bits(bits_of(load_32(p + 48 + j / 2 * 32), j % 2 * 4, 15), load_32(p + 16), j,
                           4, 1);
    case MP_WTYPE_Q6_K:
        return insert_bits(bits_of(load_32(p + j / 4 * 64 + j % 2 * 32), j % 4 / 2 * 4, 15),
                           load_32(p + 128 + j / 4 * 32), j % 4 * 2, 4, 2);
    case MP_WTYPE_IQ4_XS: return listed(mp_quant_iq4, 0, nibbles(p + 8 + j * 16));
    default: return bits_of(load_once(p + 16 + j / 2 * 32), j % 2 * 4, 15);
    }
}

/* How much larger next_bytes_k() makes elements. */
INLINE int next_times(enum mp_wtype type)
{
    return V_WIDE && type == MP_WTYPE_Q4_K ? 16 : 1;
}

/* Elements [32 j + 32, 32 j + 64) of those that begin with [32 j, 32 j + 32), j even. */
INLINE __m256i next_bytes_k(const unsigned char *p, enum mp_wtype type, int j)
{
    if (next_times(type) == 16)
        return _mm256_and_si256(load_once(p + 16 + j / 2 * 32), _mm256_set1_epi8((char)0xf0));
    return bytes_k(p, type, j + 1);
}
