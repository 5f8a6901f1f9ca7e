/*
 * Vectors of 8 floats: AVX2, FMA and F16C. The kernels are in kernels/vector.h.
 */
#include "kernels/kernels.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define LANES 8
#define TILE_ROWS_OF_4 3
#define VECTOR_NAME "avx2"
#define VECTOR_KERNELS mp_kernels_avx2
#define INLINE static inline __attribute__((always_inline))

typedef __m256 vec;

static const int32_t lane_masks[2 * LANES] = { -1, -1, -1, -1, -1, -1, -1, -1 };

/* Ones in the first n lanes. */
INLINE __m256i v_mask(size_t n)
{
    return _mm256_loadu_si256((const void *)(lane_masks + LANES - n));
}

INLINE vec v_set1(float a)
{
    return _mm256_set1_ps(a);
}

INLINE vec v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

INLINE void v_store(float *p, vec a)
{
    _mm256_storeu_ps(p, a);
}

/* The first n lanes, n < LANES; the others are zero and their memory is not touched. */
INLINE vec v_load_n(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, v_mask(n));
}

INLINE void v_store_n(float *p, size_t n, vec a)
{
    _mm256_maskstore_ps(p, v_mask(n), a);
}

/* Lanes from n on are replaced by those of `other`. */
INLINE vec v_keep_n(vec a, size_t n, vec other)
{
    return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(v_mask(n)));
}

INLINE vec w_widen(__m128i a, enum mp_wtype type)
{
    if (type == MP_WTYPE_F16)
        return _mm256_cvtph_ps(a);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16));
}

INLINE vec w_load(const unsigned char *p, enum mp_wtype type)
{
    if (type == MP_WTYPE_F32)
        return _mm256_loadu_ps((const void *)p);
    return w_widen(_mm_loadu_si128((const void *)p), type);
}

/* There is no masked load of 16-bit lanes: fewer than 8 go through a zeroed copy. */
INLINE vec w_load_n(const unsigned char *p, enum mp_wtype type, size_t n)
{
    uint16_t halves[LANES] = { 0 };

    if (type == MP_WTYPE_F32)
        return _mm256_maskload_ps((const void *)p, v_mask(n));
    memcpy(halves, p, n * sizeof(halves[0]));
    return w_widen(_mm_loadu_si128((const void *)halves), type);
}

INLINE vec v_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

INLINE vec v_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}

INLINE vec v_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

INLINE vec v_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}

/* a * b + c and c - a * b, rounded once. */
INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

INLINE vec v_fnma(vec a, vec b, vec c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

/* Where a or b is NaN the result is b. */
INLINE vec v_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

INLINE vec v_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}

/* To the nearest whole number. */
INLINE vec v_round(vec a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/*
 * a * 2^n, rounded once, for whole n in [-200, 200] and a near 1. Two factors, because 2^n itself
 * may be out of range; only the second product can round.
 */
INLINE vec v_scale(vec a, vec n)
{
    __m256i whole = _mm256_cvtps_epi32(n), bias = _mm256_set1_epi32(127);
    __m256i half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half);
    __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i second = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);

    return v_mul(v_mul(a, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

/* All lanes, always in the same order. */
INLINE float v_sum(vec a)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* v_sum() of four vectors, by the same additions. */
INLINE __m128 v_sum4(const vec *a)
{
    vec b = _mm256_add_ps(_mm256_permute2f128_ps(a[0], a[2], 0x20),
                          _mm256_permute2f128_ps(a[0], a[2], 0x31));
    vec c = _mm256_add_ps(_mm256_permute2f128_ps(a[1], a[3], 0x20),
                          _mm256_permute2f128_ps(a[1], a[3], 0x31));
    vec d = _mm256_add_ps(_mm256_shuffle_ps(b, c, 0x44), _mm256_shuffle_ps(b, c, 0xEE));

    d = _mm256_add_ps(d, _mm256_movehdup_ps(d));
    return _mm_shuffle_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1), 0x88);
}

INLINE float v_max_lane(vec a)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

#include "kernels/vector.h"
