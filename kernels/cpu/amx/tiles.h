#ifndef MP_KERNEL_AMX_TILES_H
#define MP_KERNEL_AMX_TILES_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/inline.h"

/*
 * What both kinds of product do with tiles. A tile of weights is 16 rows of some columns, as they
 * stand in memory; a tile of activations has 16 tokens side by side, four bytes of each in a row; a
 * tile of sums has a row for each row of weights and a column for each token.
 */
#define SIDE 16       /* rows of a tile, tokens of a tile */
#define RUN_TOKENS 64 /* that are packed together */

/* The layout that LDTILECFG reads. */
struct tile_config {
    unsigned char palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    unsigned char rows[16];
};

INLINE void configure_tile(struct tile_config *config, int tile, size_t rows, size_t row_bytes)
{
    config->rows[tile] = (unsigned char)rows;
    config->row_bytes[tile] = (uint16_t)row_bytes;
}

/* What was written to `at` must be there before tiles are loaded from it. GCC's intrinsics do not
 * say that they read memory, so that it may drop or delay the writes. */
INLINE void write_out(const void *at)
{
    __asm__ volatile("" : : "r"(at) : "memory");
}

INLINE void load_config(const struct tile_config *config)
{
    write_out(config);
    _tile_loadconfig(config);
}

/* Rows and columns of 16 by 16 elements of 4 bytes change places. */
INLINE void transpose(__m512i a[SIDE])
{
    __m512i b[SIDE];

    for (int i = 0; i < SIDE; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < SIDE; i += 8) {
        for (int j = i; j < i + 4; j++) {
            b[j] = _mm512_shuffle_i32x4(a[j], a[j + 4], 0x88);
            b[j + 4] = _mm512_shuffle_i32x4(a[j], a[j + 4], 0xdd);
        }
    }
    for (int i = 0; i < SIDE / 2; i++) {
        a[i] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88);
        a[i + 8] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd);
    }
}

/* The first n of 16. */
INLINE __mmask16 first_of(size_t n)
{
    return (__mmask16)((1u << n) - 1);
}

/* y[t * stride + r] (+)= sums[r][t], for some rows and tokens. */
INLINE void add_sums(float *y, size_t stride, __m512 sums[SIDE], size_t rows, size_t tokens,
                     int add)
{
    __m512i a[SIDE];

    for (int i = 0; i < SIDE; i++)
        a[i] = _mm512_castps_si512(sums[i]);
    transpose(a);
    for (size_t t = 0; t < tokens; t++) {
        __m512 sum = _mm512_castsi512_ps(a[t]);

        if (add)
            sum = _mm512_add_ps(_mm512_maskz_loadu_ps(first_of(rows), y + t * stride), sum);
        _mm512_mask_storeu_ps(y + t * stride, first_of(rows), sum);
    }
}

#endif
