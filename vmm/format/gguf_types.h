#ifndef MP_FORMAT_GGUF_TYPES_H
#define MP_FORMAT_GGUF_TYPES_H

#include <stdint.h>

/*
 * The types that tensors have in GGUF files: their number there, elements and bytes of a block. A
 * row of a tensor is whole blocks. What the bytes mean is not known here.
 */
struct mp_gguf_type {
    uint32_t number;
    const char *name; /* "Q4_K" */
    uint32_t block_elements, block_bytes;
};

/* NULL: no type has this number, or no longer. The table is constant. */
const struct mp_gguf_type *mp_gguf_type_find(uint64_t number);

#endif
