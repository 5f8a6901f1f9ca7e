/*
 * Activations, rounded for product.h as round.c does it, and what else of them products want.
 */

/* Of one token. */
struct chunk {
    _Alignas(32) signed char q[CHUNK_COLS]; /* in order; or of 8 blocks of 32 each b and b + 4 as
                                               bytes_of_two_32() has their weights */
    _Alignas(32) int32_t base[CHUNK_COLS / 32]; /* less the sums of 32 q times offset_32() */
    _Alignas(32) int16_t sums[CHUNK_COLS / 16]; /* of the q of each 16, or of each 32 twice, in
                                                   the order of struct scales_k; of each 32 */
    _Alignas(32) float scales[CHUNK_COLS / 32];
};

/* The largest magnitudes of each eighth of 32 numbers, as bits, which are ordered as numbers are;
 * those of what is no finite number are larger than all others. */
INLINE __m256i magnitudes_32(const float *x)
{
    const __m256i sign = _mm256_set1_epi32(INT32_MAX);
    __m256i largest = _mm256_setzero_si256();

    UNROLL
    for (int i = 0; i < 32; i += 8)
        largest = _mm256_max_epi32(largest, _mm256_and_si256(load_32((const void *)(x + i)), sign));
    return largest;
}

/* What 8 blocks are multiplied with, from their largest magnitudes, and their scales. */
INLINE __m256 invert_8(__m256i magnitudes, int half, __m256 *scales)
{
    const __m256 largest = _mm256_castsi256_ps(magnitudes), most = _mm256_set1_ps(127);
    const __m256 one = _mm256_set1_ps(1), zero = _mm256_setzero_ps();
    const __m256i bad = _mm256_cmpgt_epi32(magnitudes, _mm256_set1_epi32(0x7f7fffff));
    const __m256 positive = _mm256_cmp_ps(largest, zero, _CMP_GT_OQ);
    __m256 inverse, scale;

    if (half) {
        __m256 rounded;

        scale = _mm256_div_ps(largest, most);
        inverse = _mm256_div_ps(one, scale);
        rounded = _mm256_cvtph_ps(_mm256_cvtps_ph(scale, _MM_FROUND_TO_NEAREST_INT));
        scale = _mm256_blendv_ps(scale, rounded, /* else it is too large for 16 bits */
                                 _mm256_cmp_ps(scale, _mm256_set1_ps(65520), _CMP_LT_OQ));
    } else {
        inverse = _mm256_div_ps(most, largest);
        scale = _mm256_div_ps(one, inverse);
    }
    scale = _mm256_and_ps(scale, positive);
    *scales = _mm256_or_ps(scale, _mm256_castsi256_ps(bad)); /* NaN */
    return _mm256_and_ps(inverse, positive);
}

INLINE __m256i round_8(const float *x, __m256 inverse)
{
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

/* As mp_quant_round() of 32 elements. */
INLINE __m256i round_32(const float *x, __m256 inverse)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i a = _mm256_packs_epi32(round_8(x, inverse), round_8(x + 8, inverse));
    const __m256i b = _mm256_packs_epi32(round_8(x + 16, inverse), round_8(x + 24, inverse));

    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
}

/* Those of block b of 8, whose place begins at q. */
INLINE void store_32(signed char *q, size_t b, __m256i all, int halves)
{
    if (!halves) {
        _mm256_storeu_si256((void *)(q + 32 * b), all);
        return;
    }
    q += b % 4 * 64 + b / 4 * 16;
    _mm_storeu_si128((void *)q, _mm256_castsi256_si128(all));
    _mm_storeu_si128((void *)(q + 32), _mm256_extracti128_si256(all, 1));
}

/* Sums of 4 elements each. */
INLINE __m256i sums_of_4(__m256i q)
{
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
}

/* Blocks of 32 from column c on, eight at most. Of those that are missing the scales are 0. */
INLINE void round_blocks_32(struct chunk *to, const float *x, size_t c, size_t blocks,
                            enum mp_wtype type, int halves)
{
    _Alignas(32) float inverses[8];
    __m256 all[8], scales;
    __m256i sums;

    for (size_t b = 0; b < 8; b++)
        all[b] = b < blocks ? _mm256_castsi256_ps(magnitudes_32(x + 32 * b)) : _mm256_setzero_ps();
    _mm256_store_ps(inverses, invert_8(_mm256_castps_si256(fold_8(all, FOLD_LARGEST)), 1, &scales));
    _mm256_storeu_ps(to->scales + c / 32, scales);
    for (size_t b = 0; b < blocks; b++) {
        const __m256i q = round_32(x + 32 * b, _mm256_set1_ps(inverses[b]));

        store_32(to->q + c, b, q, halves);
        all[b] = _mm256_castsi256_ps(sums_of_4(q));
    }
    sums = _mm256_castps_si256(fold_8(all, FOLD_SUM));
    if (offset_32(type) != 0) /* what each 32 of q make too much */
        _mm256_store_si256((void *)(to->base + c / 32),
                           _mm256_mullo_epi32(sums, _mm256_set1_epi32(-offset_32(type))));
    _mm_storeu_si128(
        (void *)(to->sums + c / 32),
        _mm_packs_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)));
}

/* A block of 256. */
INLINE void round_block_k(struct chunk *to, const float *x, size_t c, enum mp_wtype type)
{
    __m256i all[8], sums, largest = _mm256_setzero_si256();
    __m256 inverse, scales;

    for (int b = 0; b < 8; b++)
        largest = _mm256_max_epi32(largest, magnitudes_32(x + 32 * (size_t)b));
    largest = _mm256_max_epi32(largest, _mm256_permute2x128_si256(largest, largest, 1));
    largest = _mm256_max_epi32(largest, _mm256_shuffle_epi32(largest, 0x4e));
    largest = _mm256_max_epi32(largest, _mm256_shuffle_epi32(largest, 0xb1));
    inverse = invert_8(largest, 0, &scales);
    to->scales[c / 256] = _mm256_cvtss_f32(scales);
    for (size_t b = 0; b < 8; b++) {
        const __m256i q = round_32(x + 32 * b, inverse);

        store_32(to->q + c, b, q, 0);
        all[b] = sums_of_4(q);
    }
    UNROLL
    for (int b = 0; b < 8; b += 4)
        all[b] = _mm256_hadd_epi32(_mm256_hadd_epi32(all[b], all[b + 1]),
                                   _mm256_hadd_epi32(all[b + 2], all[b + 3]));
    sums = _mm256_packs_epi32(all[0], all[4]);
    if (has_6_bits(type)) /* of 32, twice */
        sums = _mm256_add_epi16(sums, _mm256_permute2x128_si256(sums, sums, 1));
    _mm256_storeu_si256((void *)(to->sums + c / 16), sums);
}

/* Asks for the 256 columns that stand `ahead` bytes behind x: rows of activations are too short for
 * hardware to see what comes next. */
INLINE void fetch_ahead(const float *x, size_t ahead)
{
    const uintptr_t at = (uintptr_t)x + ahead;

    UNROLL
    for (size_t i = 0; i < 256 * sizeof(*x); i += 64)
        _mm_prefetch((const void *)(at + i), _MM_HINT_T0);
}

/* A function of its own: there are many types. What the next call rounds is `apart` numbers on;
 * `tokens` are in the tile that multiplies it. */
static __attribute__((noinline)) void round_chunk(struct chunk *to, const float *x, size_t apart,
                                                  size_t cols, enum mp_wtype type, size_t tokens)
{
    const size_t ahead = apart * sizeof(*x);
    size_t c = 0;

    if (!is_block_32(type))
        _mm256_store_ps(to->scales, _mm256_setzero_ps()); /* of blocks that are missing */
    for (; !is_block_32(type) && c < cols; c += 256) {
        fetch_ahead(x + c, ahead);
        round_block_k(to, x + c, c, type);
    }
    for (; c + 256 <= cols; c += 256) {
        fetch_ahead(x + c, ahead);
        round_blocks_32(to, x + c, c, 8, type, has_halves_32(type, tokens));
    }
    if (c < cols)
        round_blocks_32(to, x + c, c, (cols - c) / 32, type, 0);
}
