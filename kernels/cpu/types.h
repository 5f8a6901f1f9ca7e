#ifndef MP_KERNEL_TYPES_H
#define MP_KERNEL_TYPES_H

#include <stddef.h>

/*
 * The types that weights can have: the kernels' own table. A type is described by its block: a
 * number of elements in a number of bytes; a row of a matrix is whole blocks. A plain number is a
 * block of one element.
 *
 * A new type is a value of the enum and a row in types.c. Every CPU implementation then supports
 * it: without a specialised loop (multiply_of in product.h) a few rows at a time are converted to
 * float. For devices see mp_cuda_type() in kernels/cuda/cuda_kernels.h.
 */
enum mp_wtype { MP_WTYPE_F32, MP_WTYPE_BF16, MP_WTYPE_F16, MP_WTYPE_COUNT };

struct mp_wtype_info {
    const char *name;
    size_t block_elements; /* a power of two, at most MP_KERNEL_BLOCK_COLS */
    size_t block_bytes;
    /* Decode: dst[i] = element i for i < count, whole blocks, src at any address. */
    void (*convert)(float *dst, const void *src, size_t count);
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
