/*
 * Vectors of 16 floats: AVX-512 F, BW, DQ and VL, for the two files that include this one (there is
 * no other use and hence no guard). BF16 is widened by shift and mask, F16 by vcvtph2ps: no
 * processor needs the BF16 or FP16 extensions for it.
 */
#include "kernels/cpu/inline.h"
#include "kernels/cpu/kernels.h"

#include <immintrin.h>
#include <math.h>

#define LANES 16
#define TILE_TOKENS 8
#define TILE_ROWS_OF(tokens) ((tokens) == 8 ? 3 : 6)
#define IN_ORDER __builtin_cpu_is("amd") /* from Zen 4 on; measured there */
#define TILE_ROWS_MAX 6
#define TILE_SUMS_MAX 32
#define VECTOR_QUANT "avx512" /* the variants of kernels/cpu/quant that go with it */

typedef __m512 vec;

INLINE vec v_set1(float a)
{
    return _mm512_set1_ps(a);
}

INLINE vec v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

/* A load that compilers do not repeat for each use. */
INLINE vec v_load_once(const float *p)
{
    vec a = v_load(p);

    __asm__("" : "+v"(a));
    return a;
}

INLINE void v_store(float *p, vec a)
{
    _mm512_storeu_ps(p, a);
}

/* The first n lanes, n < LANES; the others are zero and their memory is not touched. */
INLINE vec v_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

INLINE void v_store_n(float *p, size_t n, vec a)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a);
}

/* Lanes from n on are replaced by those of `other`. */
INLINE vec v_keep_n(vec a, size_t n, vec other)
{
    return _mm512_mask_mov_ps(other, (__mmask16)((1u << n) - 1), a);
}

/* LANES weights in order. */
INLINE vec w_widen(const unsigned char *p, enum mp_wtype type)
{
    __m256i a;

    if (type == MP_WTYPE_F32)
        return _mm512_loadu_ps(p);
    a = _mm256_loadu_si256((const void *)p);
    if (type == MP_WTYPE_F16)
        return _mm512_cvtph_ps(a);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16));
}

/* The first n, n < LANES, as v_load_n(). */
INLINE vec w_widen_n(const unsigned char *p, enum mp_wtype type, size_t n)
{
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    __m256i a;

    if (type == MP_WTYPE_F32)
        return _mm512_maskz_loadu_ps(mask, p);
    a = _mm256_maskz_loadu_epi16(mask, p);
    if (type == MP_WTYPE_F16)
        return _mm512_cvtph_ps(a);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16));
}

/* Pairs of BF16 as floats: the even columns (half 0) by a shift, the odd ones by a mask. */
INLINE vec w_pairs(__m512i a, int half)
{
    if (half == 0)
        return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
    return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000)));
}

/* Of the 2 * LANES weights at p: even and odd columns of BF16, first and second half of others. */
INLINE vec w_load(const unsigned char *p, enum mp_wtype type, int half)
{
    if (type == MP_WTYPE_BF16)
        return w_pairs(_mm512_loadu_si512(p), half);
    return w_widen(p + (size_t)half * LANES * (type == MP_WTYPE_F32 ? 4 : 2), type);
}

/* The same of the first n, n < 2 * LANES; the others are zero and their memory is not touched. */
INLINE vec w_load_n(const unsigned char *p, enum mp_wtype type, int half, size_t n)
{
    if (type == MP_WTYPE_BF16)
        return w_pairs(_mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p), half);
    if (half == 0)
        return n >= LANES ? w_widen(p, type) : w_widen_n(p, type, n);
    p += LANES * (type == MP_WTYPE_F32 ? 4 : 2);
    return w_widen_n(p, type, n > LANES ? n - LANES : 0);
}

/* 2 * LANES floats in order become the even and the odd ones. */
INLINE void x_split(vec *a, vec *b)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    vec first = *a, second = *b;

    *a = _mm512_permutex2var_ps(first, even, second);
    *b = _mm512_permutex2var_ps(first, odd, second);
}

INLINE vec v_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

INLINE vec v_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}

INLINE vec v_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

INLINE vec v_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c and c - a * b, rounded once. */
INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vec v_fnma(vec a, vec b, vec c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* Where a or b is NaN the result is b. */
INLINE vec v_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

INLINE vec v_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}

/* To the nearest whole number. */
INLINE vec v_round(vec a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a * 2^n, rounded once, for whole n. */
INLINE vec v_scale(vec a, vec n)
{
    return _mm512_scalef_ps(a, n);
}

/* All lanes, always in the same order. */
INLINE float v_sum(vec a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));

    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/*
 * One level of adding up lanes, of two vectors at once: lanes of `a` and `b` that are 8 >> level
 * apart are added; where that bit of the lane's number is 0 the result is of `a`, else of `b`.
 */
INLINE vec v_fold(vec a, vec b, int level)
{
    const __m512i quads =
        _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
    const __m512i singles =
        _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);

    if (level == 0)
        return _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
    if (level == 1)
        return _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, a, b),
                             _mm512_permutex2var_ps(a, quads, b));
    if (level == 2)
        return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, 0x4e));
    return _mm512_add_ps(_mm512_mask_blend_ps(0xaaaa, a, b), _mm512_permutex2var_ps(a, singles, b));
}

/* After all levels vector i is in the lane whose number is i with the bits in reverse. */
INLINE void v_store_folded(float *p, vec a)
{
    const __m512i order = _mm512_setr_epi32(0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15);

    v_store(p, _mm512_permutexvar_ps(order, a));
}

INLINE float v_max_lane(vec a)
{
    return _mm512_reduce_max_ps(a);
}
