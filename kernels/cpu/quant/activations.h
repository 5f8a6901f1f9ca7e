/*
 * Activations, rounded for product.h as round.c does it, and what else of them products want.
 */

/* Of one token. */
struct chunk {
    _Alignas(32) signed char q[CHUNK_COLS];
    _Alignas(32) int32_t base[CHUNK_COLS / 4]; /* the sums of 4 q times what offset_32() says */
    int16_t sums[CHUNK_COLS / 16]; /* of the q of each 16, as in struct scales_k; of each 32 */
    float scales[CHUNK_COLS / 32];
};

struct range {
    __m256 largest, bad; /* bad: zeros, NaN where a value is not finite */
};

INLINE void widen_range(struct range *range, const float *x)
{
    const __m256 a = _mm256_loadu_ps(x);

    range->largest = _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a), range->largest);
    range->bad = _mm256_add_ps(range->bad, _mm256_mul_ps(a, _mm256_setzero_ps()));
}

INLINE float largest_lane(__m256 a)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

INLINE __m256i round_8(const float *x, __m256 inverse)
{
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

/* As mp_quant_round() of 32 elements, and the sums of both halves. Returns the 32. */
INLINE __m256i round_32(signed char *q, const float *x, __m256 inverse, int sums[2])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i a = _mm256_packs_epi32(round_8(x, inverse), round_8(x + 8, inverse));
    const __m256i b = _mm256_packs_epi32(round_8(x + 16, inverse), round_8(x + 24, inverse));
    const __m256i all = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
    __m128i low, high;

    _mm256_storeu_si256((void *)q, all);
    a = _mm256_maddubs_epi16(_mm256_set1_epi8(1), all);
    a = _mm256_madd_epi16(a, _mm256_set1_epi16(1));
    low = _mm256_castsi256_si128(a);
    high = _mm256_extracti128_si256(a, 1);
    low = _mm_hadd_epi32(low, high);
    low = _mm_hadd_epi32(low, low);
    sums[0] = _mm_cvtsi128_si32(low);
    sums[1] = _mm_extract_epi32(low, 1);
    return all;
}

/* What each 4 of q make too much where elements of weights are stored `offset` too large. */
INLINE __m256i base_of(__m256i q, int offset)
{
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8((char)offset), q),
                             _mm256_set1_epi16(-1));
}

INLINE float invert(float largest, int half, float *scale_p)
{
    float inverse = 0, scale = 0;

    if (largest > 0 && half) {
        scale = largest / 127;
        inverse = 1 / scale;
        if (scale < 65520) /* else it is too large for 16 bits */
            scale = _cvtsh_ss(_cvtss_sh(scale, _MM_FROUND_TO_NEAREST_INT));
    } else if (largest > 0) {
        inverse = 127 / largest;
        scale = 1 / inverse;
    }
    *scale_p = scale;
    return inverse;
}

INLINE void round_chunk(struct chunk *to, const float *x, size_t cols, enum mp_wtype type)
{
    const size_t block = block_elements(type);

    for (size_t i = 0; i < cols; i += block) {
        struct range range = { _mm256_setzero_ps(), _mm256_setzero_ps() };
        float inverse, scale;

        for (size_t j = 0; j < block; j += 8)
            widen_range(&range, x + i + j);
        inverse = invert(largest_lane(range.largest), is_block_32(type), &scale);
        to->scales[i / block] = scale + add_lanes(range.bad);
        for (size_t j = i; j < i + block; j += 32) {
            int sums[2];
            const __m256i q = round_32(to->q + j, x + j, _mm256_set1_ps(inverse), sums);

            if (is_block_32(type)) {
                _mm256_store_si256((void *)(to->base + j / 4), base_of(q, offset_32(type)));
                to->sums[j / 32] = (int16_t)(sums[0] + sums[1]);
                continue;
            }
            to->sums[i / 16 + (j - i) / 32] = (int16_t)sums[0];
            to->sums[i / 16 + 8 + (j - i) / 32] = (int16_t)sums[1];
        }
    }
}
