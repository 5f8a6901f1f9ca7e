/*
 * Tensors of ggml; see ggml_tensors.h.
 */
#include "tests/support/ggml_tensors.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define TENSORS_MAX 16

static struct context {
    struct mp_ggml_tensor tensors[TENSORS_MAX];
    unsigned count;
} the_context;

EXPORT void *ggml_init(struct ggml_params params)
{
    (void)params;
    the_context.count = 0;
    return &the_context;
}

EXPORT void ggml_free(void *context)
{
    (void)context;
}

static struct mp_ggml_tensor *take_tensor(struct context *context)
{
    struct mp_ggml_tensor *tensor;

    if (context == NULL)
        tensor = calloc(1, sizeof(*tensor));
    else
        tensor = context->count < TENSORS_MAX ? &context->tensors[context->count++] : NULL;
    if (tensor == NULL)
        abort(); /* as ggml does */
    return tensor;
}

EXPORT struct mp_ggml_tensor *ggml_new_tensor_3d(void *context, int type, int64_t ne0, int64_t ne1,
                                                 int64_t ne2)
{
    struct mp_ggml_tensor *tensor = take_tensor(context);
    const size_t row = 4 * (size_t)ne0, plane = row * (size_t)ne1;

    *tensor = (struct mp_ggml_tensor){
        .type = type,
        .ne = { ne0, ne1, ne2, 1 },
        .nb = { 4, row, plane, plane * (size_t)ne2 },
        .data = context != NULL ? tensor : NULL, /* any address; nobody reads it */
    };
    return tensor;
}

EXPORT struct mp_ggml_tensor *ggml_new_tensor_2d(void *context, int type, int64_t ne0, int64_t ne1)
{
    return ggml_new_tensor_3d(context, type, ne0, ne1, 1);
}

EXPORT struct mp_ggml_tensor *ggml_mul_mat_id(void *context, struct mp_ggml_tensor *as,
                                              struct mp_ggml_tensor *b, struct mp_ggml_tensor *ids)
{
    struct mp_ggml_tensor *result = ggml_new_tensor_3d(context, 0, as->ne[1], ids->ne[0], b->ne[2]);

    result->src[0] = as;
    result->src[1] = b;
    result->src[2] = ids;
    return result;
}

EXPORT struct mp_ggml_tensor *ggml_set_name(struct mp_ggml_tensor *tensor, const char *name)
{
    strncpy(tensor->name, name, sizeof(tensor->name) - 1);
    return tensor;
}

EXPORT const char *ggml_get_name(const struct mp_ggml_tensor *tensor)
{
    return tensor->name;
}

EXPORT void *ggml_get_data(const struct mp_ggml_tensor *tensor)
{
    return (void *)(uintptr_t)tensor->data;
}
