/*
 * Vectors of 8 floats: AVX2, FMA and F16C. The kernels are in kernels/cpu/vector.h.
 */
#include "kernels/cpu/inline.h"
#include "kernels/cpu/kernels.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define LANES 8
#define TILE_TOKENS 4
#define TILE_ROWS_OF(tokens) ((tokens) == 4 ? 3 : 6)
#define IN_ORDER 0
#define TILE_ROWS_MAX 6
#define TILE_SUMS_MAX 16
#define VECTOR_NAME "avx2"
#define VECTOR_QUANT "avx2"
#define VECTOR_KERNELS mp_kernels_avx2
#define BF16_PAIRS 0

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

/* A load that compilers do not repeat for each use. */
INLINE vec v_load_once(const float *p)
{
    vec a = v_load(p);

    __asm__("" : "+x"(a));
    return a;
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

/* LANES weights in order. */
INLINE vec w_widen(const unsigned char *p, enum mp_wtype type)
{
    __m128i a;

    if (type == MP_WTYPE_F32)
        return _mm256_loadu_ps((const void *)p);
    a = _mm_loadu_si128((const void *)p);
    if (type == MP_WTYPE_F16)
        return _mm256_cvtph_ps(a);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16));
}

/* The first n, n < LANES, as v_load_n(). There is no masked load of 16-bit lanes: they go through
 * a zeroed copy. */
INLINE vec w_widen_n(const unsigned char *p, enum mp_wtype type, size_t n)
{
    unsigned char halves[2 * LANES] = { 0 };

    if (type == MP_WTYPE_F32)
        return _mm256_maskload_ps((const void *)p, v_mask(n));
    memcpy(halves, p, 2 * n);
    return w_widen(halves, type);
}

/* Pairs of BF16 as floats: the even columns (half 0) by a shift, the odd ones by a mask. */
INLINE vec w_pairs(const unsigned char *p, int half)
{
    __m256i a = _mm256_loadu_si256((const void *)p);

    if (half == 0)
        return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
    return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32((int)0xffff0000)));
}

/* Of the 2 * LANES weights at p: even and odd columns of BF16, first and second half of others. */
INLINE vec w_load(const unsigned char *p, enum mp_wtype type, int half)
{
    if (type == MP_WTYPE_BF16)
        return w_pairs(p, half);
    return w_widen(p + (size_t)half * LANES * (type == MP_WTYPE_F32 ? 4 : 2), type);
}

/* The same of the first n, n < 2 * LANES; the others are zero and their memory is not touched. */
INLINE vec w_load_n(const unsigned char *p, enum mp_wtype type, int half, size_t n)
{
    unsigned char pairs[4 * LANES] = { 0 };

    if (type == MP_WTYPE_BF16) {
        memcpy(pairs, p, 2 * n);
        return w_pairs(pairs, half);
    }
    if (half == 0)
        return n >= LANES ? w_widen(p, type) : w_widen_n(p, type, n);
    p += LANES * (type == MP_WTYPE_F32 ? 4 : 2);
    return w_widen_n(p, type, n > LANES ? n - LANES : 0);
}

/* 2 * LANES floats in order become the even and the odd ones. */
INLINE void x_split(vec *a, vec *b)
{
    __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(*a, *b, 0x88));
    __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(*a, *b, 0xDD));

    *a = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xD8));
    *b = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xD8));
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

/*
 * One level of adding up lanes, of two vectors at once: lanes of `a` and `b` that are 4 >> level
 * apart are added; where that bit of the lane's number is 0 the result is of `a`, else of `b`.
 */
INLINE vec v_fold(vec a, vec b, int level)
{
    if (level == 0)
        return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
    if (level == 1)
        return _mm256_add_ps(_mm256_blend_ps(a, b, 0xcc), _mm256_shuffle_ps(a, b, 0x4e));
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xaa),
                         _mm256_permute_ps(_mm256_blend_ps(b, a, 0xaa), 0xb1));
}

/* After all levels vector i is in the lane whose number is i with the bits in reverse. */
INLINE void v_store_folded(float *p, vec a)
{
    v_store(p, _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7)));
}

INLINE float v_max_lane(vec a)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

#include "kernels/cpu/vector.h"
