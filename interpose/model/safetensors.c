/*
 * All of libmoepager_safetensors.so that is not vmm's.
 */
#include "interpose/model/safetensors.h"

MOEPAGER_API const struct mp_safetensors mp_safetensors_v1 = {
    .abi = MP_SAFETENSORS_ABI,
    .header_bytes = mp_st_header_bytes,
    .parse = mp_st_parse,
    .fini = mp_st_table_fini,
};
