/*
 * The kernels in vectors of 16 floats, but products with BF16 weights round activations to BF16 and
 * multiply pairs (AVX512-BF16): class `native`. Its sums are F32; it takes denormals for zeros.
 */
#include "kernels/cpu/avx512.h"

#define VECTOR_NAME "avx512bf16"
#define VECTOR_KERNELS mp_kernels_avx512bf16
#define BF16_PAIRS 1

/* Of the 2 * LANES weights at p: those of the half as they are multiplied. */
INLINE vec w_part(const unsigned char *p, enum mp_wtype type, int half)
{
    return type == MP_WTYPE_BF16 ? _mm512_loadu_ps(p) : w_load(p, type, half);
}

INLINE vec w_part_n(const unsigned char *p, enum mp_wtype type, int half, size_t n)
{
    if (type == MP_WTYPE_BF16)
        return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p));
    return w_load_n(p, type, half, n);
}

/* sum + w * x; of BF16 two products for each lane. */
INLINE vec w_fma(vec w, vec x, vec sum, enum mp_wtype type)
{
    if (type == MP_WTYPE_BF16)
        return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
    return v_fma(w, x, sum);
}

/* The 2 * LANES activations of a step as they are multiplied: for BF16 all of them are in *a. */
INLINE void x_parts(vec *a, vec *b, enum mp_wtype type)
{
    if (type == MP_WTYPE_BF16)
        *a = (vec)_mm512_cvtne2ps_pbh(*b, *a);
}

#include "kernels/cpu/vector.h"
