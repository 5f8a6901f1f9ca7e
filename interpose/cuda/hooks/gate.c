/*
 * Hooks of the driver's other ways to queue work: nothing is looked at, but while they queue nobody
 * changes what addresses mean. What a program copies so between windows goes as one call.
 */
#include "interpose/cuda/hooks/hooks.h"

#include <stdatomic.h>

#include "vmm/backend/cuda/cuda_abi.h"
#include "vmm/base/compiler.h"

/* X(name, parameters, arguments, stream, what stream 0 means) */
#define GATE_MAP(X)                                                                               \
    X(cuMemcpyHtoD_v2, (mp_cu_ptr dst, const void *src, size_t bytes), (dst, src, bytes), NULL,   \
      MP_GPU_LEGACY)                                                                              \
    X(cuMemcpyDtoH_v2, (void *dst, mp_cu_ptr src, size_t bytes), (dst, src, bytes), NULL,         \
      MP_GPU_LEGACY)                                                                              \
    X(cuMemcpyDtoD_v2, (mp_cu_ptr dst, mp_cu_ptr src, size_t bytes), (dst, src, bytes), NULL,     \
      MP_GPU_LEGACY)                                                                              \
    X(cuMemcpy, (mp_cu_ptr dst, mp_cu_ptr src, size_t bytes), (dst, src, bytes), NULL,            \
      MP_GPU_LEGACY)                                                                              \
    X(cuMemcpyHtoDAsync_v2_ptsz,                                                                  \
      (mp_cu_ptr dst, const void *src, size_t bytes, mp_cu_stream stream),                        \
      (dst, src, bytes, stream), stream, MP_GPU_PER_THREAD)                                       \
    X(cuMemcpyDtoHAsync_v2_ptsz, (void *dst, mp_cu_ptr src, size_t bytes, mp_cu_stream stream),   \
      (dst, src, bytes, stream), stream, MP_GPU_PER_THREAD)                                       \
    X(cuMemcpyDtoDAsync_v2_ptsz,                                                                  \
      (mp_cu_ptr dst, mp_cu_ptr src, size_t bytes, mp_cu_stream stream),                          \
      (dst, src, bytes, stream), stream, MP_GPU_PER_THREAD)                                       \
    X(cuMemcpyAsync_ptsz, (mp_cu_ptr dst, mp_cu_ptr src, size_t bytes, mp_cu_stream stream),      \
      (dst, src, bytes, stream), stream, MP_GPU_PER_THREAD)                                       \
    X(cuMemcpy2DAsync_v2, (const void *copy, mp_cu_stream stream), (copy, stream), stream,        \
      MP_GPU_LEGACY)                                                                              \
    X(cuMemcpy2DAsync_v2_ptsz, (const void *copy, mp_cu_stream stream), (copy, stream), stream,   \
      MP_GPU_PER_THREAD)                                                                          \
    X(cuMemcpy3DAsync_v2, (const void *copy, mp_cu_stream stream), (copy, stream), stream,        \
      MP_GPU_LEGACY)                                                                              \
    X(cuMemcpy3DAsync_v2_ptsz, (const void *copy, mp_cu_stream stream), (copy, stream), stream,   \
      MP_GPU_PER_THREAD)                                                                          \
    X(cuMemcpyBatchAsync,                                                                         \
      (mp_cu_ptr * dsts, mp_cu_ptr * srcs, size_t * sizes, size_t count, void *attributes,        \
       size_t *indexes, size_t attribute_count, size_t *failed, mp_cu_stream stream),             \
      (dsts, srcs, sizes, count, attributes, indexes, attribute_count, failed, stream), stream,   \
      MP_GPU_LEGACY)                                                                              \
    X(cuMemcpyBatchAsync_ptsz,                                                                    \
      (mp_cu_ptr * dsts, mp_cu_ptr * srcs, size_t * sizes, size_t count, void *attributes,        \
       size_t *indexes, size_t attribute_count, size_t *failed, mp_cu_stream stream),             \
      (dsts, srcs, sizes, count, attributes, indexes, attribute_count, failed, stream), stream,   \
      MP_GPU_PER_THREAD)                                                                          \
    X(cuMemcpyBatchAsync_v2,                                                                      \
      (mp_cu_ptr * dsts, mp_cu_ptr * srcs, size_t * sizes, size_t count, void *attributes,        \
       size_t *indexes, size_t attribute_count, mp_cu_stream stream),                             \
      (dsts, srcs, sizes, count, attributes, indexes, attribute_count, stream), stream,           \
      MP_GPU_LEGACY)                                                                              \
    X(cuMemcpyBatchAsync_v2_ptsz,                                                                 \
      (mp_cu_ptr * dsts, mp_cu_ptr * srcs, size_t * sizes, size_t count, void *attributes,        \
       size_t *indexes, size_t attribute_count, mp_cu_stream stream),                             \
      (dsts, srcs, sizes, count, attributes, indexes, attribute_count, stream), stream,           \
      MP_GPU_PER_THREAD)                                                                          \
    X(cuMemcpy2D_v2, (const void *copy), (copy), NULL, MP_GPU_LEGACY)                             \
    X(cuMemcpy2DUnaligned_v2, (const void *copy), (copy), NULL, MP_GPU_LEGACY)                    \
    X(cuMemcpy3D_v2, (const void *copy), (copy), NULL, MP_GPU_LEGACY)                             \
    X(cuMemsetD16Async, (mp_cu_ptr dst, unsigned short value, size_t count, mp_cu_stream stream), \
      (dst, value, count, stream), stream, MP_GPU_LEGACY)                                         \
    X(cuMemsetD2D8Async,                                                                          \
      (mp_cu_ptr dst, size_t pitch, unsigned char value, size_t width, size_t height,             \
       mp_cu_stream stream),                                                                      \
      (dst, pitch, value, width, height, stream), stream, MP_GPU_LEGACY)                          \
    X(cuMemsetD2D32Async,                                                                         \
      (mp_cu_ptr dst, size_t pitch, unsigned value, size_t width, size_t height,                  \
       mp_cu_stream stream),                                                                      \
      (dst, pitch, value, width, height, stream), stream, MP_GPU_LEGACY)                          \
    X(cuMemcpyPeerAsync,                                                                          \
      (mp_cu_ptr dst, mp_cu_context to, mp_cu_ptr src, mp_cu_context from, size_t bytes,          \
       mp_cu_stream stream),                                                                      \
      (dst, to, src, from, bytes, stream), stream, MP_GPU_LEGACY)                                 \
    X(cuMemsetD8_v2, (mp_cu_ptr dst, unsigned char value, size_t count), (dst, value, count),     \
      NULL, MP_GPU_LEGACY)                                                                        \
    X(cuMemsetD32_v2, (mp_cu_ptr dst, unsigned value, size_t count), (dst, value, count), NULL,   \
      MP_GPU_LEGACY)                                                                              \
    X(cuMemsetD32Async, (mp_cu_ptr dst, unsigned value, size_t count, mp_cu_stream stream),       \
      (dst, value, count, stream), stream, MP_GPU_LEGACY)                                         \
    X(cuMemsetD8Async_ptsz,                                                                       \
      (mp_cu_ptr dst, unsigned char value, size_t count, mp_cu_stream stream),                    \
      (dst, value, count, stream), stream, MP_GPU_PER_THREAD)                                     \
    X(cuMemsetD32Async_ptsz, (mp_cu_ptr dst, unsigned value, size_t count, mp_cu_stream stream),  \
      (dst, value, count, stream), stream, MP_GPU_PER_THREAD)                                     \
    X(cuGraphLaunch_ptsz, (mp_cu_graph_exec exec, mp_cu_stream stream), (exec, stream), stream,   \
      MP_GPU_PER_THREAD)                                                                          \
    X(cuLaunchCooperativeKernel,                                                                  \
      (mp_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,               \
       mp_cu_stream stream, void **parameters),                                                   \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,         \
       parameters),                                                                               \
      stream, MP_GPU_LEGACY)

#define X(name, parameters, arguments, stream, meaning) mp_cu_result name parameters;
GATE_MAP(X)
#undef X

const struct mp_driver_hook mp_gate_hooks[] = {
#define X(name, parameters, arguments, stream, meaning) { #name, (void *)name },
    GATE_MAP(X)
#undef X
};
const size_t mp_gate_hook_count = MP_ARRAY_LEN(mp_gate_hooks);

static _Atomic(void *) reals[MP_ARRAY_LEN(mp_gate_hooks)]; /* found at the first call */

void *mp_gate_hook_behind(size_t i)
{
    void *real = atomic_load_explicit(&reals[i], memory_order_acquire);

    if (real == NULL) {
        real = mp_hook_driver(mp_gate_hooks[i].name);
        atomic_store_explicit(&reals[i], real, memory_order_release);
    }
    return real;
}

enum {
#define X(name, parameters, arguments, stream, meaning) GATE_##name,
    GATE_MAP(X)
#undef X
};

/* One body for all: they differ in names only. */
#define X(name, parameters, arguments, stream_, meaning)                                    \
    MOEPAGER_API mp_cu_result name parameters                                               \
    {                                                                                       \
        __typeof__(&name) const real = (__typeof__(&name))mp_gate_hook_behind(GATE_##name); \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu();                                \
        mp_cu_result result;                                                                \
                                                                                            \
        if (real == NULL)                                                                   \
            return MP_CU_ERROR_NOT_INITIALIZED;                                             \
        if (gpu == NULL)                                                                    \
            return real arguments;                                                          \
        mp_hook_enter();                                                                    \
        gpu->begin(stream_, meaning);                                                       \
        result = real arguments;                                                            \
        gpu->end();                                                                         \
        mp_hook_leave();                                                                    \
        return result;                                                                      \
    }
GATE_MAP(X)
#undef X
