/*
 * Blocks of quantised weights, and activations, as vectors: what every kind of product begins with.
 * For the files that multiply; each includes it once, hence no guard. They define V_WIDE,
 * v_or_masked() and CHUNK_COLS, the columns of activations that are rounded together.
 */
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/inline.h"
#include "kernels/cpu/quant/unpack_32.h"
#include "kernels/cpu/quant/unpack_grid.h"
#include "kernels/cpu/quant/unpack_k.h"

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

/* Number k of a and of the 16 bytes at p, where bit k of `those` is set. */
#define PICK(a, p, those) _mm_blend_epi16(a, _mm_loadu_si128((const void *)(p)), those)

/* The 16-bit floats that 8 blocks of `bytes` begin with, from p on, or those behind them: number k
 * is k-th of the 16 bytes that begin 2 k before it. */
INLINE __m256 halves_8(const unsigned char *p, size_t bytes)
{
    const size_t step = bytes - 2;
    __m128i a = _mm_loadu_si128((const void *)p);

    a = PICK(a, p + step, 1 << 1);
    a = PICK(a, p + 2 * step, 1 << 2);
    a = PICK(a, p + 3 * step, 1 << 3);
    a = PICK(a, p + 4 * step, 1 << 4);
    a = PICK(a, p + 5 * step, 1 << 5);
    a = PICK(a, p + 6 * step, 1 << 6);
    return _mm256_cvtph_ps(PICK(a, p + 7 * step, 1 << 7));
}

/* 2^(exponent - 128), below 2^-126 denormal numbers, of the bytes that 8 blocks begin with. */
INLINE __m256 powers_8(const unsigned char *p, size_t bytes)
{
    const __m256i one = _mm256_set1_epi32(1);
    const size_t step = bytes - 1;
    __m128i even = _mm_loadu_si128((const void *)p);
    __m128i odd = _mm_loadu_si128((const void *)(p + step));
    __m256i e, small, large;

    even = PICK(even, p + 2 * step, 1 << 1);
    even = PICK(even, p + 4 * step, 1 << 2);
    even = PICK(even, p + 6 * step, 1 << 3);
    odd = PICK(odd, p + 3 * step, 1 << 1);
    odd = PICK(odd, p + 5 * step, 1 << 2);
    odd = PICK(odd, p + 7 * step, 1 << 3);
    e = _mm256_cvtepu8_epi32(_mm_blendv_epi8(even, odd, _mm_set1_epi16((short)0xff00)));
    small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    large = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(small, large, _mm256_cmpgt_epi32(e, one)));
}
#undef PICK

/* The scales of 8 blocks of a row. */
INLINE __m256 block_scales_8(const unsigned char *w, enum mp_wtype type)
{
    const size_t bytes = block_bytes_of(type);

    return type == MP_WTYPE_MXFP4 ? powers_8(w, bytes) : halves_8(w, bytes);
}

INLINE __m256 set_8(const float a[8])
{
    return _mm256_setr_ps(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
}

/* All 8 floats, always in the same order. */
INLINE float add_lanes(__m256 a)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* What the lanes of a vector become one of: of numbers as floats, as add_lanes() adds them. */
enum fold { FOLD_FLOATS, FOLD_SUM, FOLD_LARGEST };

INLINE __m256 fold_two(__m256 a, __m256 b, const enum fold how)
{
    const __m256i x = _mm256_castps_si256(a), y = _mm256_castps_si256(b);

    if (how == FOLD_FLOATS)
        return _mm256_add_ps(a, b);
    return _mm256_castsi256_ps(how == FOLD_SUM ? _mm256_add_epi32(x, y) : _mm256_max_epi32(x, y));
}

/* Elements i and i + 4: what the lanes of the low and of the high half of a[i] become. */
INLINE __m256 fold_halves_4(const __m256 a[4], const enum fold how)
{
    __m256 b[2];

    UNROLL
    for (int i = 0; i < 2; i++)
        b[i] = fold_two(_mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44),
                        _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee), how);
    return fold_two(_mm256_shuffle_ps(b[0], b[1], 0x88), _mm256_shuffle_ps(b[0], b[1], 0xdd), how);
}

/* Element i: what all lanes of a[i] become. */
INLINE __m256 fold_8(const __m256 a[8], const enum fold how)
{
    __m256 b[4];

    UNROLL
    for (int i = 0; i < 4; i++)
        b[i] = fold_two(_mm256_permute2f128_ps(a[i], a[4 + i], 0x20),
                        _mm256_permute2f128_ps(a[i], a[4 + i], 0x31), how);
    return fold_halves_4(b, how);
}

/* The sum of what four blocks of 256 come to, of a part; those behind its end are zero. */
INLINE __m256 add_units(__m256 a, __m256 b, __m256 c, __m256 d)
{
    return _mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d));
}

#include "kernels/cpu/quant/activations.h"
