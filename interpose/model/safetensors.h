#ifndef MP_INTERPOSE_SAFETENSORS_H
#define MP_INTERPOSE_SAFETENSORS_H

#include "vmm/format/safetensors.h"

/*
 * The reader of safetensors headers, in a separate library: libmoepager_safetensors.so needs a JSON
 * library, which may be missing where only GGUF files are paged, so it is opened on demand. Its
 * errors have no text here.
 */
#define MP_SAFETENSORS_ABI 1u
#define MP_SAFETENSORS_SYMBOL "mp_safetensors_v1"

struct mp_safetensors {
    unsigned abi; /* MP_SAFETENSORS_ABI */
    enum mp_status (*header_bytes)(const void *first, uint64_t file_bytes, const char *name,
                                   uint64_t *header_bytes_p);
    enum mp_status (*parse)(const char *header, uint64_t header_bytes, uint64_t file_bytes,
                            const char *name, struct mp_st_table *table);
    void (*fini)(struct mp_st_table *table);
};

extern const struct mp_safetensors mp_safetensors_v1;

#endif
