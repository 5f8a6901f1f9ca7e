/*
 * Tiles of product.h for blocks of 256.
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

/* acc[r * tokens + t] += w[r] . x[t], of one block. */
TILE void add_block_k(__m256 *acc, const struct scales_k *s, const unsigned char *w,
                      size_t apart_bytes, const struct chunk *x, size_t c, enum mp_wtype type,
                      int rows, int tokens)
{
    __m256i whole[TILE_SUMS_MAX], mins[TILE_SUMS_MAX];

    UNROLL
    for (int i = 0; i < rows * tokens; i++) {
        const __m256i zero = _mm256_setzero_si256();

        if (mins_of(type) != MINS_NONE)
            mins[i] = _mm256_madd_epi16(s[i / tokens].mins,
                                        load_32((const void *)(x[i % tokens].sums + c / 16)));
        whole[i] = mins_of(type) == MINS_WHOLE ? _mm256_sub_epi32(zero, mins[i]) : zero;
    }
    add_whole_k(whole, s, w, apart_bytes, x, c, type, rows, tokens);
    UNROLL
    for (int i = 0; i < rows * tokens; i++) {
        const float scale = x[i % tokens].scales[c / 256];

        acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[i]),
                                 _mm256_set1_ps(s[i / tokens].d * scale), acc[i]);
        if (mins_of(type) == MINS_SCALED)
            acc[i] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(mins[i]),
                                      _mm256_set1_ps(s[i / tokens].dmin * scale), acc[i]);
    }
}

/* The same of all blocks. Their scales come first: each takes many steps, one after the other, but
 * those of several blocks go side by side. */
TILE void add_part_k(__m256 *acc, const struct part *p, enum mp_wtype type, int rows, int tokens)
{
    const size_t bytes = block_bytes_of(type), apart_bytes = p->w_apart_bytes,
                 units = p->cols / 256;
    struct scales_k s[UNITS_MAX][TILE_ROWS_MAX];
    const unsigned char *w = p->w;

    for (size_t u = 0; u < units; u++) {
        UNROLL
        for (int r = 0; r < rows; r++)
            scales_of_k(w + (size_t)r * apart_bytes + u * bytes, type, &s[u][r]);
    }
    for (size_t u = 0; u < units; u++, w += bytes) {
        fetch(w, apart_bytes, p->ahead, bytes, rows);
        add_block_k(acc, s[u], w, apart_bytes, p->x, p->c + u * 256, type, rows, tokens);
    }
}
