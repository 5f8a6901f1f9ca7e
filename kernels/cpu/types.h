#ifndef MP_KERNEL_TYPES_H
#define MP_KERNEL_TYPES_H

#include <stddef.h>

/*
 * The types that weights can have: the kernels' own table. A type is described by its block: a
 * number of elements in a number of bytes; a row of a matrix is whole blocks. A plain number is a
 * block of one element.
 *
 * A new type is a value of the enum and a row in types.c; a quantised one is a row of MP_QUANT_MAP.
 * Every implementation then multiplies with it: one that has no loop of its own for it (multiply_of
 * in product.h) converts a few rows at a time to float. Devices are another matter: see
 * mp_cuda_type() in kernels/cuda/cuda_kernels.h.
 */

/* X(TYPE, name, elements of a block, bytes of a block): the quantised ones, those with blocks of 32
 * first, those whose numbers come from a grid last: they are read, not written.
 * kernels/cpu/quant has their arithmetic. */
#define MP_QUANT_MAP(X)          \
    X(Q4_0, q4_0, 32, 18)        \
    X(Q4_1, q4_1, 32, 20)        \
    X(Q5_0, q5_0, 32, 22)        \
    X(Q5_1, q5_1, 32, 24)        \
    X(Q8_0, q8_0, 32, 34)        \
    X(IQ4_NL, iq4_nl, 32, 18)    \
    X(MXFP4, mxfp4, 32, 17)      \
    X(Q2_K, q2_k, 256, 84)       \
    X(Q3_K, q3_k, 256, 110)      \
    X(Q4_K, q4_k, 256, 144)      \
    X(Q5_K, q5_k, 256, 176)      \
    X(Q6_K, q6_k, 256, 210)      \
    X(IQ4_XS, iq4_xs, 256, 136)  \
    X(IQ2_XXS, iq2_xxs, 256, 66) \
    X(IQ2_XS, iq2_xs, 256, 74)   \
    X(IQ2_S, iq2_s, 256, 82)     \
    X(IQ3_XXS, iq3_xxs, 256, 98) \
    X(IQ3_S, iq3_s, 256, 110)

enum mp_wtype {
    MP_WTYPE_F32,
    MP_WTYPE_BF16,
    MP_WTYPE_F16,
    MP_WTYPE_PLAIN_COUNT, /* those before it are plain numbers */
    MP_WTYPE_LAST_PLAIN = MP_WTYPE_PLAIN_COUNT - 1,
#define X(TYPE, ...) MP_WTYPE_##TYPE,
    MP_QUANT_MAP(X)
#undef X
        MP_WTYPE_COUNT,
    MP_WTYPE_FIRST_GRID = MP_WTYPE_IQ2_XXS
};

struct mp_wtype_info {
    const char *name;
    size_t block_elements; /* a power of two, at most MP_KERNEL_BLOCK_COLS */
    size_t block_bytes;
    /* Decode: dst[i] = element i for i < count, whole blocks, src at any address. */
    void (*convert)(float *dst, const void *src, size_t count);
    /* Products round activations to 8 bits and a scale for so many columns, 32 or 256
     * (kernels/cpu/quant/quant.h); 0: they take them as they are. */
    size_t x_block;
};

/* NULL for values not listed. The table is constant. */
const struct mp_wtype_info *mp_wtype_info(enum mp_wtype type);

/* "bf16"; "unknown" for values not listed. */
static inline const char *mp_wtype_name(enum mp_wtype type)
{
    const struct mp_wtype_info *info = mp_wtype_info(type);

    return info != NULL ? info->name : "unknown";
}

/* Bytes of `elements` elements, a multiple of the type's block; 0 for values not listed. Does not
 * look for overflow: callers have checked the matrix that the elements are a part of. */
static inline size_t mp_wtype_bytes(enum mp_wtype type, size_t elements)
{
    const struct mp_wtype_info *info = mp_wtype_info(type);

    return info != NULL ? elements / info->block_elements * info->block_bytes : 0;
}

#endif
