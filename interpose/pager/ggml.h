#ifndef MP_INTERPOSE_GGML_H
#define MP_INTERPOSE_GGML_H

#include "interpose/entry.h"

/*
 * The few fields of ggml's tensors that are looked at. ggml has no stable ABI, so nothing is
 * believed: mp_ggml_check() makes tensors with the program's own functions and compares.
 */
#define MP_GGML_F32 0

struct mp_ggml_tensor {
    int type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int op;
    int32_t op_params[16];
    int32_t flags;
    const struct mp_ggml_tensor *src[10];
    const void *view_src;
    size_t view_offset_bytes;
    const void *data;
    char name[64];
};

/* Do the tensors of the ggml that `site` calls look like that? */
bool mp_ggml_check(mp_find_fn find, const void *site);

#endif
