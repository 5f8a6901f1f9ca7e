/*
 * A little of ggml; see fakeggml.h.
 */
#include "tests/device/interpose/fakeggml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/cuda/cudart_calls.h"

#define EXPORT __attribute__((visibility("default")))
#define TENSORS_MAX 16

struct context {
    struct mp_ggml_tensor *tensors[TENSORS_MAX];
    unsigned count;
};

struct sched {
    fakeggml_copy *callback;
    void *data;
};

static void check(mp_rt_error error)
{
    if (error == MP_RT_SUCCESS)
        return;
    fprintf(stderr, "CUDA error %d: %s\n", error, cudaGetErrorString(error));
    abort(); /* as ggml does */
}

EXPORT void *ggml_init(struct fakeggml_params params)
{
    (void)params;
    return calloc(1, sizeof(struct context));
}

EXPORT void ggml_free(void *context)
{
    struct context *c = context;

    for (unsigned t = 0; t < c->count; t++) {
        free((void *)(uintptr_t)c->tensors[t]->view_src);
        free(c->tensors[t]);
    }
    free(c);
}

EXPORT struct mp_ggml_tensor *ggml_new_tensor_3d(void *context, int type, int64_t ne0, int64_t ne1,
                                                 int64_t ne2)
{
    struct context *c = context;
    struct mp_ggml_tensor *tensor = calloc(1, sizeof(*tensor));

    if (tensor == NULL || (c != NULL && c->count == TENSORS_MAX))
        abort();
    tensor->type = type;
    tensor->ne[0] = ne0;
    tensor->ne[1] = ne1;
    tensor->ne[2] = ne2;
    tensor->ne[3] = 1;
    tensor->nb[0] = 4;
    for (int d = 1; d < 4; d++)
        tensor->nb[d] = tensor->nb[d - 1] * (size_t)tensor->ne[d - 1];
    if (c != NULL) { /* with data of its own, which view_src keeps */
        tensor->data = tensor->view_src = calloc(1, tensor->nb[3]);
        c->tensors[c->count++] = tensor;
    }
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

/* ---- backends: a backend is its stream */

EXPORT void *fakeggml_backend(mp_rt_stream stream)
{
    return stream;
}

EXPORT void ggml_backend_tensor_set_async(void *backend, void *tensor, const void *data,
                                          size_t offset_bytes, size_t bytes)
{
    const struct mp_ggml_tensor *t = tensor;

    check(cudaMemcpyAsync((char *)(uintptr_t)t->data + offset_bytes, data, bytes,
                          MP_RT_HOST_TO_DEVICE, backend));
}

EXPORT void ggml_backend_tensor_get_async(void *backend, const void *tensor, void *data,
                                          size_t offset_bytes, size_t bytes)
{
    const struct mp_ggml_tensor *t = tensor;

    check(cudaMemcpyAsync(data, (const char *)t->data + offset_bytes, bytes, MP_RT_DEVICE_TO_HOST,
                          backend));
}

EXPORT void ggml_backend_tensor_get(const void *tensor, void *data, size_t offset_bytes,
                                    size_t bytes)
{
    const struct mp_ggml_tensor *t = tensor;

    check(cudaMemcpy(data, (const char *)t->data + offset_bytes, bytes, MP_RT_DEVICE_TO_HOST));
}

EXPORT void ggml_backend_synchronize(void *backend)
{
    check(cudaStreamSynchronize(backend));
}

EXPORT void ggml_backend_free(void *backend)
{
    check(cudaStreamDestroy(backend));
}

/* ---- a scheduler */

EXPORT void *fakeggml_sched(void)
{
    return calloc(1, sizeof(struct sched));
}

EXPORT void ggml_backend_sched_set_copy_callback(void *sched, fakeggml_copy *callback, void *data)
{
    *(struct sched *)sched = (struct sched){ callback, data };
}

EXPORT void fakeggml_copy_input(void *sched, void *backend, const struct mp_ggml_tensor *src,
                                struct mp_ggml_tensor *dst)
{
    const struct sched *s = sched;

    if (s->callback == NULL || !s->callback(backend, src, dst, NULL, s->data))
        check(cudaMemcpyAsync((void *)(uintptr_t)dst->data, src->data, src->nb[3],
                              MP_RT_HOST_TO_DEVICE, backend));
}
