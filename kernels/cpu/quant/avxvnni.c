/*
 * With AVX-VNNI, which processors without AVX-512 have.
 */
#include <immintrin.h>

#include "kernels/cpu/inline.h"
#include "kernels/cpu/quant/quant.h"

#define VARIANT mp_quant_avxvnni
#define VARIANT_NAME "avxvnni"
#define VARIANT_KERNELS "avx2"

#define V_WIDE 1 /* products of bytes up to 255 fit */
#define V_LANES 0

/* sum + 8 sums of 4 products each; a is not negative. */
INLINE __m256i v_dot(__m256i sum, __m256i a, __m256i b)
{
    return _mm256_dpbusd_avx_epi32(sum, a, b);
}

/* sum + 8 sums of pairs of 16-bit lanes, each times its scale. */
INLINE __m256i v_add_pairs(__m256i sum, __m256i lanes, __m256i scales)
{
    return _mm256_dpwssd_avx_epi32(sum, lanes, scales);
}

/* a | (b & mask) */
INLINE __m256i v_or_masked(__m256i a, __m256i b, __m256i mask)
{
    return _mm256_or_si256(a, _mm256_and_si256(b, mask));
}

#include "kernels/cpu/quant/product.h"
