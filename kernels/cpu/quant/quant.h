#ifndef MP_KERNEL_QUANT_H
#define MP_KERNEL_QUANT_H

#include <stdint.h>

#include "kernels/cpu/types.h"

/*
 * Products with quantised weights: types whose blocks hold small whole numbers and their scales.
 * Activations are rounded first, to 8 bits and a scale for each block of them, so that the sum of a
 * block is one of whole numbers, which is exact in any order; only the sums of scaled blocks round.
 *
 * One loop (product.h), compiled for several instruction sets, the variants, and one for ARM
 * (neon.c). All of them give the same bits: a whole number has no other value on another processor,
 * and what rounds is the same sequence of operations on 8 floats. What a type's bytes mean is here
 * once in plain C (decode_*.c, from the published layout of the blocks) and once for vectors
 * (unpack_*.h).
 */

/* As mp_kernels.matmul_blocked() with partial sums of `block_cols` columns. */
struct mp_quant_product {
    float *y;
    size_t y_stride;
    const unsigned char *w;
    size_t w_row_bytes;
    const float *x;
    size_t x_stride;
    size_t rows, cols, tokens;
    size_t block_cols; /* a multiple of 256 that divides MP_QUANT_PART_COLS */
    int accumulate;
};

/* Columns of a partial sum of mp_kernels.matmul(). */
#define MP_QUANT_PART_COLS 1024

struct mp_quant {
    const char *name; /* "avx2", "avxvnni", "avx512vnni", "dotprod" */
    /* The struct mp_kernels from which on it is used: "avx2" or "avx512"; "neon". */
    const char *kernels;
    /* By type; NULL: the type is not quantised. */
    void (*multiply[MP_WTYPE_COUNT])(const struct mp_quant_product *product);
};

/* Names in the order of preference, NULL-terminated. */
extern const char *const mp_quant_names[];

/* The variant called `name`, or NULL: there is none, this processor has not what it needs, or it
 * fails the self-test, small products of each type, by each kind of tile, against plain C. */
const struct mp_quant *mp_quant_find(const char *name);

/* Does this processor announce what `name` needs, and are the kernels there from which on it is
 * used? */
int mp_quant_announced(const char *name);

/* The self-test; false: the variant must not be used. */
int mp_quant_passes(const struct mp_quant *quant);

/* The fastest one for the kernels called so; NULL: none. Looks once and remembers. */
const struct mp_quant *mp_quant_best(const char *kernels);

/* The product in plain C, for where no variant passes. */
void mp_quant_multiply_ref(const struct mp_quant_product *product, enum mp_wtype type);

/*
 * Round a block of activations: x[i] is about scale * q[i], |q[i]| <= 127. Returns the scale.
 * `half` rounds it to 16 bits, as where blocks have 32 elements. Where an x is no finite number the
 * scale is NaN, and so is every product. Plain C, the truth for the variants.
 */
float mp_quant_round(signed char *q, const float *x, size_t count, int half);

/* x rounded, as numbers: what a product with weights of this type multiplies. */
void mp_quant_rounded(double *out, const float *x, const struct mp_wtype_info *type, size_t count);

/*
 * A block as whole numbers q: element i is d * scales[i / 16] * (q[i] - offset) + m * mins[i / 16].
 * Blocks of 32 have scales and mins of 1 and an offset of 0, which are not written; nor are m and
 * mins in types without them.
 */
struct mp_quant_block {
    float d, m;
    int offset;
    int16_t scales[16], mins[16];
};

/* The block at p, in plain C: what its bytes mean, for convert() and for the variants of ARM. */
#define X(TYPE, name, ...) \
    void mp_quant_read_##name(struct mp_quant_block *b, signed char *q, const unsigned char *p);
MP_QUANT_MAP(X)
#undef X

/* convert() of the types, for types.c. */
#define X(TYPE, name, ...) void mp_quant_decode_##name(float *dst, const void *src, size_t count);
MP_QUANT_MAP(X)
#undef X

/* The 16 numbers that IQ4_NL and IQ4_XS choose from; those of MXFP4, twice as large. */
extern const signed char mp_quant_iq4[16], mp_quant_fp4[16];

/* The grids of the IQ2 and IQ3 types (grids.c) and the numbers that their codes stand for. */
extern const uint16_t mp_quant_grid_iq2_xxs[256], mp_quant_grid_iq2_xs[512],
    mp_quant_grid_iq2_s[1024], mp_quant_grid_iq3_xxs[256], mp_quant_grid_iq3_s[512];
extern const signed char mp_quant_sizes_2[4], mp_quant_sizes_3_xxs[8], mp_quant_sizes_3_s[8];

#endif
