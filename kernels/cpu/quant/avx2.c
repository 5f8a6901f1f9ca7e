/*
 * Without instructions for sums of products of bytes: AVX2 adds pairs, then pairs of those.
 */
#include <immintrin.h>

#include "kernels/cpu/inline.h"
#include "kernels/cpu/quant/quant.h"

#define VARIANT mp_quant_avx2
#define VARIANT_NAME "avx2"
#define VARIANT_KERNELS "avx2"

#define V_WIDE 0 /* products of bytes up to 128 fit */
#define V_LANES 0

/* sum + 8 sums of 4 products each; a is not negative, and no two products exceed 16 bits. */
INLINE __m256i v_dot(__m256i sum, __m256i a, __m256i b)
{
    return _mm256_add_epi32(sum,
                            _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}

/* sum + 8 sums of pairs of 16-bit lanes, each times its scale. */
INLINE __m256i v_add_pairs(__m256i sum, __m256i lanes, __m256i scales)
{
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(lanes, scales));
    __asm__ volatile(""
                     : "+x"(sum)); /* else gcc keeps a tile's products in memory, adds them last */
    return sum;
}

/* a | (b & mask) */
INLINE __m256i v_or_masked(__m256i a, __m256i b, __m256i mask)
{
    return _mm256_or_si256(a, _mm256_and_si256(b, mask));
}

#include "kernels/cpu/quant/product.h"
