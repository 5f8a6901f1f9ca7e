/*
 * Tiles of product.h for blocks of 256, of few tokens. Each block of a part is a sum of its own.
 */

/* 16-bit lanes for the products of elements [32 j, 32 j + 32). */
INLINE __m256i scale_k(const struct scales_k *s, enum mp_wtype type, int j)
{
    if (has_pairs_k(type))
        return _mm256_set1_epi32(s->pairs[j]);
    return _mm256_shuffle_epi8(s->scales, _mm256_set1_epi16((short)(0x0100 + 0x0202 * j)));
}

/* Whole numbers, of the whole block: whole[r * tokens + t] += w[r] . x[t] */
TILE void add_whole_k(__m256i *whole, const struct scales_k *s, const unsigned char *w,
                      size_t apart_bytes, const struct chunk *x, size_t c, enum mp_wtype type,
                      int rows, int tokens)
{
    UNROLL
    for (int j = 0; j < 8; j++) {
        UNROLL
        for (int r = 0; r < rows; r++) {
            const __m256i bytes = bytes_k(w + (size_t)r * apart_bytes, type, j);
            const __m256i large = is_signed_k(type) ? _mm256_abs_epi8(bytes) : bytes;
            const __m256i scale = scale_k(&s[r], type, j);

            UNROLL
            for (int t = 0; t < tokens; t++) {
                const __m256i q = _mm256_load_si256((const void *)(x[t].q + c + 32 * (size_t)j));
                __m256i *sum = &whole[r * tokens + t];

                *sum = v_add_scaled(*sum, large, is_signed_k(type) ? _mm256_sign_epi8(q, bytes) : q,
                                    scale);
            }
        }
    }
}

/* Number i: all 8 numbers of a[i]. */
INLINE __m128i add_whole_4(const __m256i *a)
{
    __m256 b[4], c[2];
    __m256i d;

    UNROLL
    for (int i = 0; i < 4; i++)
        b[i] = _mm256_castsi256_ps(a[i]);
    UNROLL
    for (int i = 0; i < 2; i++)
        c[i] = fold_two(_mm256_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                        _mm256_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee), FOLD_SUM);
    d = _mm256_castps_si256(fold_two(_mm256_shuffle_ps(c[0], c[1], 0x88),
                                     _mm256_shuffle_ps(c[0], c[1], 0xdd), FOLD_SUM));
    return _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
}

/* The same of up to 8, of which those behind `count` are not read. */
TILE __m256 add_whole(const __m256i *a, int count)
{
    __m256i all[TILE_SUMS_MAX];

    UNROLL
    for (int i = 0; i < TILE_SUMS_MAX; i++)
        all[i] = i < count ? a[i] : _mm256_setzero_si256();
    return _mm256_cvtepi32_ps(
        count <= 4 ? _mm256_zextsi128_si256(add_whole_4(all))
                   : _mm256_inserti128_si256(_mm256_castsi128_si256(add_whole_4(all)),
                                             add_whole_4(all + 4), 1));
}

/* Sum r * tokens + t: w[r] . x[t] of one block. */
TILE __m256 block_k(const struct scales_k *s, const unsigned char *w, size_t apart_bytes,
                    const struct chunk *x, size_t c, enum mp_wtype type, int rows, int tokens)
{
    float d[TILE_SUMS_MAX] = { 0 }, dmin[TILE_SUMS_MAX] = { 0 };
    __m256i whole[TILE_SUMS_MAX], mins[TILE_SUMS_MAX];
    __m256 sum;

    UNROLL
    for (int i = 0; i < rows * tokens; i++) {
        const __m256i zero = _mm256_setzero_si256();
        const float scale = x[i % tokens].scales[c / 256];

        if (mins_of(type) != MINS_NONE)
            mins[i] = _mm256_madd_epi16(s[i / tokens].mins,
                                        load_32((const void *)(x[i % tokens].sums + c / 16)));
        whole[i] = mins_of(type) == MINS_WHOLE ? _mm256_sub_epi32(zero, mins[i]) : zero;
        d[i] = s[i / tokens].d * scale;
        if (mins_of(type) == MINS_SCALED)
            dmin[i] = s[i / tokens].dmin * scale;
    }
    add_whole_k(whole, s, w, apart_bytes, x, c, type, rows, tokens);
    sum = _mm256_mul_ps(add_whole(whole, rows * tokens), set_8(d));
    if (mins_of(type) == MINS_SCALED)
        sum = _mm256_fnmadd_ps(add_whole(mins, rows * tokens), set_8(dmin), sum);
    return sum;
}

/* One y for each of some rows and tokens. Scales come first: each takes many steps, one after the
 * other, but those of several blocks go side by side. */
TILE void part_k(float *sums, const struct tiles *p, const unsigned char *w, const struct chunk *x,
                 size_t c, size_t cols, enum mp_wtype type, int rows, int tokens)
{
    const size_t bytes = block_bytes_of(type), apart_bytes = p->w_apart_bytes, units = cols / 256;
    struct scales_k s[UNITS_MAX][TILE_ROWS_MAX];
    __m256 of[UNITS_MAX];

    for (size_t u = 0; u < units; u++) {
        UNROLL
        for (int r = 0; r < rows; r++)
            scales_of_k(w + (size_t)r * apart_bytes + u * bytes, type, &s[u][r]);
    }
    for (size_t u = 0; u < UNITS_MAX; u++)
        of[u] = _mm256_setzero_ps();
    for (size_t u = 0; u < units; u++, w += bytes) {
        fetch(w, apart_bytes, p->ahead, bytes, rows);
        of[u] = block_k(s[u], w, apart_bytes, x, c + u * 256, type, rows, tokens);
    }
    _mm256_store_ps(sums, add_units(of[0], of[1], of[2], of[3]));
}
