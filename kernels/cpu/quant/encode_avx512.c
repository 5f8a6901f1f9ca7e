/* Encoders in vectors of 16 floats. */
#include <immintrin.h>

#include "kernels/cpu/inline.h"
#include "kernels/cpu/quant/encode_int.h"

#define VARIANT mp_encode_avx512
#define VARIANT_NAME "avx512"

#define LANES 16

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

INLINE vec v_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

INLINE vec v_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}

INLINE vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}

#include "kernels/cpu/quant/encode_blocks.h"
