/*
 * Tiles of product.h for blocks of 32. The scales of 8 blocks are brought together first, because
 * that is one conversion for all of them; so a block is left with little more than its 32 products.
 */

/* Number `b` of each is that of block b. */
struct scales_32 {
    _Alignas(32) float d[8], m[8];
};

/* Those of 8 blocks (or 1) of a row, times those of a token's activations. */
INLINE void scales_of_32(struct scales_32 *s, const unsigned char *w, const struct chunk *x,
                         size_t c, enum mp_wtype type, int blocks)
{
    const size_t bytes = block_bytes_of(type);
    const float *scales = x->scales + c / 32;
    const int16_t *sums = x->sums + c / 32;

    if (blocks == 1) {
        s->d[0] = scale_32(w, type) * scales[0];
        if (has_min_32(type))
            s->m[0] = half_at(w + 2) * scales[0] * (float)sums[0];
        return;
    }
    _mm256_store_ps(s->d, _mm256_mul_ps(block_scales_8(w, type), _mm256_loadu_ps(scales)));
    if (has_min_32(type)) {
        const __m256i whole = _mm256_cvtepi16_epi32(_mm_loadu_si128((const void *)sums));
        const __m256 m = _mm256_mul_ps(halves_8(w + 2, bytes), _mm256_loadu_ps(scales));

        _mm256_store_ps(s->m, _mm256_mul_ps(m, _mm256_cvtepi32_ps(whole)));
    }
}

/* 8 sums of 4 products each, of a block and activations. */
INLINE __m256i dot_32(__m256i bytes, __m256i q, __m256i base, enum mp_wtype type)
{
    if (is_signed_32(type))
        return v_dot(base, _mm256_abs_epi8(bytes), _mm256_sign_epi8(q, bytes));
    return v_dot(base, bytes, q);
}

/* acc[r * tokens + t] += w[r] . x[t], of some blocks. */
TILE void add_blocks_32(__m256 *acc, const struct scales_32 *s, const unsigned char *w,
                        size_t apart_bytes, const struct chunk *x, size_t c, enum mp_wtype type,
                        int rows, int tokens, int blocks)
{
    for (int b = 0; b < blocks; b++, w += block_bytes_of(type), c += 32) {
        __m256i q[TOKENS_MAX], base[TOKENS_MAX];

        UNROLL
        for (int t = 0; t < tokens; t++) {
            q[t] = _mm256_load_si256((const void *)(x[t].q + c));
            base[t] = offset_32(type) != 0 ? _mm256_load_si256((const void *)(x[t].base + c / 4))
                                           : _mm256_setzero_si256();
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            const __m256i bytes = bytes_32(w + (size_t)r * apart_bytes, type);

            UNROLL
            for (int t = 0; t < tokens; t++) {
                const int i = r * tokens + t;
                const __m256 sums = _mm256_cvtepi32_ps(dot_32(bytes, q[t], base[t], type));

                acc[i] = _mm256_fmadd_ps(sums, _mm256_set1_ps(s[i].d[b]), acc[i]);
                if (has_min_32(type))
                    acc[i] = _mm256_add_ps(acc[i], _mm256_zextps128_ps256(_mm_set_ss(s[i].m[b])));
            }
        }
    }
}

/* The same of 256 columns at a time, then of 32. */
TILE void add_part_32(__m256 *acc, const struct part *p, enum mp_wtype type, int rows, int tokens)
{
    const size_t bytes = block_bytes_of(type), apart_bytes = p->w_apart_bytes,
                 units = p->cols / 256;
    struct scales_32 s[UNITS_MAX][TILE_SUMS_MAX];
    const unsigned char *w = p->w;
    size_t c = p->c;

    for (size_t u = 0; u < units; u++) {
        UNROLL
        for (int i = 0; i < rows * tokens; i++)
            scales_of_32(&s[u][i], w + (size_t)(i / tokens) * apart_bytes + u * 8 * bytes,
                         p->x + i % tokens, c + u * 256, type, 8);
    }
    for (size_t u = 0; u < units; u++, w += 8 * bytes, c += 256) {
        fetch(w, apart_bytes, p->ahead, 8 * bytes, rows);
        add_blocks_32(acc, s[u], w, apart_bytes, p->x, c, type, rows, tokens, 8);
    }
    for (; c < p->c + p->cols; c += 32, w += bytes) {
        UNROLL
        for (int i = 0; i < rows * tokens; i++)
            scales_of_32(&s[0][i], w + (size_t)(i / tokens) * apart_bytes, p->x + i % tokens, c,
                         type, 1);
        fetch(w, apart_bytes, p->ahead, bytes, rows);
        add_blocks_32(acc, s[0], w, apart_bytes, p->x, c, type, rows, tokens, 1);
    }
}
