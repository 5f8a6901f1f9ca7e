/*
 * Blocks of quantised weights, and activations, as vectors: what every kind of product begins with.
 * For the files that multiply; each includes it once, hence no guard. They define INLINE, V_WIDE,
 * v_or_masked() and CHUNK_COLS, the columns of activations that are rounded together.
 */
#include <stdint.h>
#include <string.h>

/* Instrumented builds keep loops, as compilers need many minutes for unrolled checks. */
#if MP_KERNELS_LOOPS
#define TILE static __attribute__((noinline))
#define UNROLL
#else
#define TILE INLINE
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#endif

#include "kernels/cpu/quant/unpack_32.h"
#include "kernels/cpu/quant/unpack_grid.h"
#include "kernels/cpu/quant/unpack_k.h"

INLINE size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

INLINE int is_block_32(enum mp_wtype type)
{
    return type < MP_WTYPE_Q2_K; /* the order of the table */
}

INLINE size_t block_elements(enum mp_wtype type)
{
    return is_block_32(type) ? 32 : 256;
}

INLINE size_t block_bytes_of(enum mp_wtype type)
{
    switch (type) {
#define X(TYPE, name, elements, bytes) \
    case MP_WTYPE_##TYPE: return bytes;
        MP_QUANT_MAP(X)
#undef X
    default: return 0;
    }
}

/* All 8 floats, always in the same order. */
INLINE float add_lanes(__m256 a)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

#include "kernels/cpu/quant/activations.h"
