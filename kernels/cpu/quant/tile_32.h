/*
 * Tiles of product.h for blocks of 32, of few tokens: 8 blocks of a row at a time. Sum i of a
 * vector is block i's.
 */

/* The scales of 8 blocks; of those behind the first `blocks` zero. */
INLINE __m256 scales_of_32(const unsigned char *w, enum mp_wtype type, size_t blocks)
{
    _Alignas(32) float scales[8] = { 0 };

    if (blocks == 8)
        return block_scales_8(w, type);
    for (size_t b = 0; b < blocks; b++)
        scales[b] = scale_32(w + b * block_bytes_of(type), type);
    return _mm256_load_ps(scales);
}

/* What is added to their elements. */
INLINE __m256 mins_of_32(const unsigned char *w, enum mp_wtype type, size_t blocks)
{
    const size_t bytes = block_bytes_of(type);
    _Alignas(32) float mins[8] = { 0 };

    if (blocks == 8)
        return halves_8(w + 2, bytes);
    for (size_t b = 0; b < blocks; b++)
        mins[b] = half_at(w + b * bytes + 2);
    return _mm256_load_ps(mins);
}

/* acc + the sums of 8 blocks, which are `whole` but for the base, times their scales. */
INLINE __m256 add_scaled_32(__m256 acc, __m256i whole, __m256 scales, __m256 mins,
                            const struct chunk *x, size_t c, enum mp_wtype type)
{
    const __m256 x_scales = _mm256_load_ps(x->scales + c / 32);
    const __m128i sums = _mm_load_si128((const void *)(x->sums + c / 32));

    if (offset_32(type) != 0)
        whole = _mm256_add_epi32(whole, _mm256_load_si256((const void *)(x->base + c / 32)));
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_mul_ps(scales, x_scales), acc);
    if (!has_min_32(type))
        return acc;
    return _mm256_add_ps(acc, _mm256_mul_ps(_mm256_mul_ps(mins, x_scales),
                                            _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(sums))));
}

/* 8 sums of 4 products each, of a block and activations. */
INLINE __m256i dot_32(__m256i bytes, __m256i q, enum mp_wtype type)
{
    if (is_signed_32(type))
        return v_dot(_mm256_setzero_si256(), _mm256_abs_epi8(bytes), _mm256_sign_epi8(q, bytes));
    return v_dot(_mm256_setzero_si256(), bytes, q);
}

/* 8 sums of 4 products each, of halves of two blocks. 4 products fit 16 bits if none is signed. */
INLINE __m256i dot_halves_32(const __m256i bytes[2], const signed char *q, enum mp_wtype type)
{
    const __m256i a = _mm256_load_si256((const void *)q);
    const __m256i b = _mm256_load_si256((const void *)(q + 32));

    if (is_signed_32(type))
        return _mm256_add_epi32(dot_32(bytes[0], a, type), dot_32(bytes[1], b, type));
    return _mm256_madd_epi16(
        _mm256_add_epi16(_mm256_maddubs_epi16(bytes[0], a), _mm256_maddubs_epi16(bytes[1], b)),
        _mm256_set1_epi16(1));
}

/* whole[t]: the sums of 8 blocks. */
TILE void sum_halves_32(__m256i *whole, const unsigned char *w, const struct chunk *x, size_t c,
                        enum mp_wtype type, int tokens)
{
    const size_t block = block_bytes_of(type);
    __m256 sums[TOKENS_MAX][4];

    UNROLL
    for (size_t b = 0; b < 4; b++) {
        __m256i bytes[2];

        bytes_of_two_32(bytes, w + b * block, w + (b + 4) * block, type);
        UNROLL
        for (int t = 0; t < tokens; t++)
            sums[t][b] = _mm256_castsi256_ps(dot_halves_32(bytes, x[t].q + c + 64 * b, type));
    }
    UNROLL
    for (int t = 0; t < tokens; t++)
        whole[t] = _mm256_castps_si256(fold_halves_4(sums[t], FOLD_SUM));
}

/* The same of 8 blocks in order, or fewer. */
TILE void sum_whole_32(__m256i *whole, const unsigned char *w, const struct chunk *x, size_t c,
                       enum mp_wtype type, int tokens, size_t blocks)
{
    __m256 sums[TOKENS_MAX][8];

    UNROLL
    for (size_t b = 0; b < 8; b++) {
        __m256i bytes;

        if (b >= blocks) {
            UNROLL
            for (int t = 0; t < tokens; t++)
                sums[t][b] = _mm256_setzero_ps();
            continue;
        }
        bytes = bytes_32(w + b * block_bytes_of(type), type);
        UNROLL
        for (int t = 0; t < tokens; t++) {
            const __m256i q = _mm256_load_si256((const void *)(x[t].q + c + 32 * b));

            sums[t][b] = _mm256_castsi256_ps(dot_32(bytes, q, type));
        }
    }
    UNROLL
    for (int t = 0; t < tokens; t++)
        whole[t] = _mm256_castps_si256(fold_8(sums[t], FOLD_SUM));
}

/* acc[r * tokens + t] += w[r] . x[t], of 8 blocks, or fewer. */
TILE void add_blocks_32(__m256 *acc, const unsigned char *w, size_t apart_bytes,
                        const struct chunk *x, size_t c, enum mp_wtype type, int rows, int tokens,
                        size_t blocks)
{
    UNROLL
    for (int r = 0; r < rows; r++, w += apart_bytes) {
        const __m256 scales = scales_of_32(w, type, blocks);
        const __m256 mins = has_min_32(type) ? mins_of_32(w, type, blocks) : _mm256_setzero_ps();
        __m256i whole[TOKENS_MAX];

        if (has_halves_32(type, (size_t)tokens) && blocks == 8)
            sum_halves_32(whole, w, x, c, type, tokens);
        else
            sum_whole_32(whole, w, x, c, type, tokens, blocks);
        UNROLL
        for (int t = 0; t < tokens; t++)
            acc[r * tokens + t] =
                add_scaled_32(acc[r * tokens + t], whole[t], scales, mins, &x[t], c, type);
    }
}

/* One y for each of some rows and tokens. */
TILE void part_32(float *sums, const struct tiles *p, const unsigned char *w, const struct chunk *x,
                  size_t c, size_t cols, enum mp_wtype type, int rows, int tokens)
{
    const size_t bytes = block_bytes_of(type), end = c + cols;
    __m256 acc[TILE_SUMS_MAX];

    UNROLL
    for (int i = 0; i < rows * tokens; i++)
        acc[i] = _mm256_setzero_ps();
    for (; c + 256 <= end; c += 256, w += 8 * bytes) {
        fetch(1, w, p->w_apart_bytes, p->ahead, 8 * bytes, rows);
        add_blocks_32(acc, w, p->w_apart_bytes, x, c, type, rows, tokens, 8);
    }
    if (c < end)
        add_blocks_32(acc, w, p->w_apart_bytes, x, c, type, rows, tokens, (end - c) / 32);
    if (rows * tokens == 8) {
        _mm256_store_ps(sums, fold_8(acc, FOLD_FLOATS));
        return;
    }
    UNROLL
    for (int i = 0; i < rows * tokens; i++)
        sums[i] = add_lanes(acc[i]);
}
