#ifndef MP_FORMAT_TYPES_H
#define MP_FORMAT_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/base/checked.h"

/*
 * Tensor types in files: one table with a row for each. A type is described by its block: a number
 * of elements in a number of bytes. A plain number is a block of one element; numbers that share
 * bytes, and quantised ones that share a scale, form blocks of several. How bytes are decoded is
 * not known here, except what a scan for broken values needs; kernels/cpu/types.h has the types
 * that kernels compute with.
 */

/*
 * X(name as in safetensors or GGUF files, elements of a block, bytes of a block, exponent,
 * fraction)
 *
 * The last two are masks of a plain floating-point number as a little-endian word: all ones in the
 * exponent is infinity or NaN. 0: values of this type are not scanned.
 */
#define MP_DTYPE_MAP(X)                                  \
    X(BOOL, 1, 1, 0, 0)                                  \
    X(U8, 1, 1, 0, 0)                                    \
    X(I8, 1, 1, 0, 0)                                    \
    X(U16, 1, 2, 0, 0)                                   \
    X(I16, 1, 2, 0, 0)                                   \
    X(U32, 1, 4, 0, 0)                                   \
    X(I32, 1, 4, 0, 0)                                   \
    X(U64, 1, 8, 0, 0)                                   \
    X(I64, 1, 8, 0, 0)                                   \
    X(F16, 1, 2, 0x7c00, 0x03ff)                         \
    X(BF16, 1, 2, 0x7f80, 0x007f)                        \
    X(F32, 1, 4, 0x7f800000, 0x007fffff)                 \
    X(F64, 1, 8, 0x7ff0000000000000, 0x000fffffffffffff) \
    X(C64, 1, 8, 0, 0)                                   \
    X(F8_E4M3, 1, 1, 0, 0)                               \
    X(F8_E5M2, 1, 1, 0, 0)                               \
    X(F8_E8M0, 1, 1, 0, 0)                               \
    X(F8_E4M3FNUZ, 1, 1, 0, 0)                           \
    X(F8_E5M2FNUZ, 1, 1, 0, 0)                           \
    X(F6_E2M3, 4, 3, 0, 0)                               \
    X(F6_E3M2, 4, 3, 0, 0)                               \
    X(F4, 2, 1, 0, 0)                                    \
    X(Q4_0, 32, 18, 0, 0)                                \
    X(Q4_1, 32, 20, 0, 0)                                \
    X(Q5_0, 32, 22, 0, 0)                                \
    X(Q5_1, 32, 24, 0, 0)                                \
    X(Q8_0, 32, 34, 0, 0)                                \
    X(IQ4_NL, 32, 18, 0, 0)                              \
    X(MXFP4, 32, 17, 0, 0)                               \
    X(Q2_K, 256, 84, 0, 0)                               \
    X(Q3_K, 256, 110, 0, 0)                              \
    X(Q4_K, 256, 144, 0, 0)                              \
    X(Q5_K, 256, 176, 0, 0)                              \
    X(Q6_K, 256, 210, 0, 0)                              \
    X(IQ4_XS, 256, 136, 0, 0)                            \
    X(IQ2_XXS, 256, 66, 0, 0)                            \
    X(IQ2_XS, 256, 74, 0, 0)                             \
    X(IQ2_S, 256, 82, 0, 0)                              \
    X(IQ3_XXS, 256, 98, 0, 0)                            \
    X(IQ3_S, 256, 110, 0, 0)

enum mp_dtype {
#define X(name, elements, bytes, exponent, fraction) MP_DTYPE_##name,
    MP_DTYPE_MAP(X)
#undef X
        MP_DTYPE_COUNT
};

struct mp_dtype_info {
    const char *name; /* "BF16" */
    uint32_t block_elements, block_bytes;
    uint64_t exponent, fraction; /* as in the map */
};

/* NULL for values not listed. The table is constant. */
const struct mp_dtype_info *mp_dtype_info(enum mp_dtype dtype);

/* Find a type by name; false: there is none. `name` may be NULL. */
bool mp_dtype_find(const char *name, enum mp_dtype *dtype_p) MP_MUST_CHECK;

/* "BF16"; "?" for values not listed. */
static inline const char *mp_dtype_name(enum mp_dtype dtype)
{
    const struct mp_dtype_info *info = mp_dtype_info(dtype);

    return info != NULL ? info->name : "?";
}

/* Bytes of `elements` elements. False: they are not whole blocks, the result does not fit in 64
 * bits, or the type is not listed. */
static inline bool MP_MUST_CHECK mp_dtype_bytes(enum mp_dtype dtype, uint64_t elements,
                                                uint64_t *bytes_p)
{
    const struct mp_dtype_info *info = mp_dtype_info(dtype);

    return info != NULL && elements % info->block_elements == 0 &&
           mp_mul_u64(elements / info->block_elements, info->block_bytes, bytes_p);
}

#endif
