/*
 * Vectors of 16 floats: AVX-512 F, BW, DQ and VL. BF16 is widened by a shift, F16 by vcvtph2ps,
 * so no processor needs the BF16 or FP16 extensions. The kernels are in kernels/vector.h.
 */
#include "kernels/kernels.h"

#include <immintrin.h>
#include <math.h>

#define LANES 16
#define TILE_ROWS_OF_4 6
#define VECTOR_NAME "avx512"
#define VECTOR_KERNELS mp_kernels_avx512
#define INLINE static inline __attribute__((always_inline))

typedef __m512 vec;

INLINE vec v_set1(float a)
{
    return _mm512_set1_ps(a);
}

INLINE vec v_load(const float *p)
{
    return _mm512_loadu_ps(p);
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

INLINE vec w_widen(__m256i a, enum mp_wtype type)
{
    if (type == MP_WTYPE_F16)
        return _mm512_cvtph_ps(a);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16));
}

INLINE vec w_load(const unsigned char *p, enum mp_wtype type)
{
    if (type == MP_WTYPE_F32)
        return _mm512_loadu_ps(p);
    return w_widen(_mm256_loadu_si256((const void *)p), type);
}

INLINE vec w_load_n(const unsigned char *p, enum mp_wtype type, size_t n)
{
    __mmask16 mask = (__mmask16)((1u << n) - 1);

    if (type == MP_WTYPE_F32)
        return _mm512_maskz_loadu_ps(mask, p);
    return w_widen(_mm256_maskz_loadu_epi16(mask, p), type);
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

/* v_sum() of four vectors, by the same additions. */
INLINE __m128 v_sum4(const vec *a)
{
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    vec b = _mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x44),
                          _mm512_shuffle_f32x4(a[0], a[1], 0xEE));
    vec c = _mm512_add_ps(_mm512_shuffle_f32x4(a[2], a[3], 0x44),
                          _mm512_shuffle_f32x4(a[2], a[3], 0xEE));
    vec d = _mm512_add_ps(_mm512_shuffle_f32x4(b, c, 0x88), _mm512_shuffle_f32x4(b, c, 0xDD));

    d = _mm512_add_ps(d, _mm512_permute_ps(d, 0x4E));
    d = _mm512_add_ps(d, _mm512_movehdup_ps(d));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, d));
}

INLINE float v_max_lane(vec a)
{
    return _mm512_reduce_max_ps(a);
}

#include "kernels/vector.h"
