/* Encoders in vectors of 8 floats. */
#include <immintrin.h>

#include "kernels/cpu/inline.h"
#include "kernels/cpu/quant/encode_int.h"

#define VARIANT mp_encode_avx2
#define VARIANT_NAME "avx2"

#define LANES 8

typedef __m256 vec;

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

INLINE vec v_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

INLINE vec v_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}

INLINE vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

#include "kernels/cpu/quant/encode_blocks.h"
