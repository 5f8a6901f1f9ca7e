/*
 * A little of ggml; see fakeggml.h.
 */
#include "tests/device/interpose/fakeggml.h"

#include <stdio.h>
#include <stdlib.h>

#include "interpose/cuda/cudart_calls.h"

#define EXPORT __attribute__((visibility("default")))

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
