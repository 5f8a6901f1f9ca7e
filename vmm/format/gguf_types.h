#ifndef MP_FORMAT_GGUF_TYPES_H
#define MP_FORMAT_GGUF_TYPES_H

#include <stdint.h>

/*
 * Tensor types of GGUF files: their number, and elements and bytes of a block. A row of a tensor is
 * a whole number of blocks. How bytes are decoded is not known here.
 */
struct mp_gguf_type {
    uint32_t number;
    const char *name; /* "Q4_K" */
    uint32_t block_elements, block_bytes;
};

/* NULL: no type has this number (any more). The table is constant. */
const struct mp_gguf_type *mp_gguf_type_find(uint64_t number);

#endif
