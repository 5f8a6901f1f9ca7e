#ifndef MP_TEST_GGML_TENSORS_H
#define MP_TEST_GGML_TENSORS_H

#include <stdbool.h>
#include <stddef.h>

#include "interpose/pager/ggml.h"

/*
 * As much of ggml as makes tensors, for programs that stand in for one of ggml's: names, argument
 * lists and results as in ggml. Tensors have the layout that moepager knows.
 *
 * Tensors of a context are few, without data, and there is one context at a time. With NULL for a
 * context a tensor is allocated, and stays.
 */
struct ggml_params {
    size_t bytes;
    void *memory;
    bool no_alloc;
};
void *ggml_init(struct ggml_params params);
void ggml_free(void *context);
struct mp_ggml_tensor *ggml_new_tensor_2d(void *context, int type, int64_t ne0, int64_t ne1);
struct mp_ggml_tensor *ggml_new_tensor_3d(void *context, int type, int64_t ne0, int64_t ne1,
                                          int64_t ne2);
struct mp_ggml_tensor *ggml_mul_mat_id(void *context, struct mp_ggml_tensor *as,
                                       struct mp_ggml_tensor *b, struct mp_ggml_tensor *ids);
struct mp_ggml_tensor *ggml_set_name(struct mp_ggml_tensor *tensor, const char *name);
const char *ggml_get_name(const struct mp_ggml_tensor *tensor);
void *ggml_get_data(const struct mp_ggml_tensor *tensor);

#endif
