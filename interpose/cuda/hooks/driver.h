#ifndef MP_INTERPOSE_HOOKS_DRIVER_H
#define MP_INTERPOSE_HOOKS_DRIVER_H

#include "interpose/cuda/hooks/hooks.h"
#include "vmm/backend/cuda/cuda_abi.h"

/*
 * The hooks of the driver, and the first line of each.
 */
#define NO_DRIVER MP_CU_ERROR_NOT_INITIALIZED

/* CUlaunchConfig */
struct launch_config {
    unsigned grid[3], block[3], shared_bytes;
    mp_cu_stream stream;
    void *attributes;
    unsigned attribute_count;
};

/* X(name, parameters, arguments): all hooks but those of gate.c. */
#define DRIVER_MAP(X)                                                                              \
    X(cuMemAlloc_v2, (mp_cu_ptr * address, size_t bytes), (address, bytes))                        \
    X(cuMemFree_v2, (mp_cu_ptr address), (address))                                                \
    X(cuDevicePrimaryCtxReset_v2, (mp_cu_device device), (device))                                 \
    X(cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes), (free_bytes, total_bytes))     \
    X(cuPointerGetAttribute, (void *value, int attribute, mp_cu_ptr address),                      \
      (value, attribute, address))                                                                 \
    X(cuPointerGetAttributes, (unsigned count, int *attributes, void **values, mp_cu_ptr address), \
      (count, attributes, values, address))                                                        \
    X(cuIpcGetMemHandle, (void *handle, mp_cu_ptr address), (handle, address))                     \
    X(cuCtxEnablePeerAccess, (mp_cu_context context, unsigned flags), (context, flags))            \
    X(cuMemcpyHtoDAsync_v2, (mp_cu_ptr dst, const void *src, size_t bytes, mp_cu_stream stream),   \
      (dst, src, bytes, stream))                                                                   \
    X(cuMemcpyDtoHAsync_v2, (void *dst, mp_cu_ptr src, size_t bytes, mp_cu_stream stream),         \
      (dst, src, bytes, stream))                                                                   \
    X(cuMemcpyDtoDAsync_v2, (mp_cu_ptr dst, mp_cu_ptr src, size_t bytes, mp_cu_stream stream),     \
      (dst, src, bytes, stream))                                                                   \
    X(cuMemcpyAsync, (mp_cu_ptr dst, mp_cu_ptr src, size_t bytes, mp_cu_stream stream),            \
      (dst, src, bytes, stream))                                                                   \
    X(cuMemsetD8Async, (mp_cu_ptr dst, unsigned char value, size_t bytes, mp_cu_stream stream),    \
      (dst, value, bytes, stream))                                                                 \
    X(cuLaunchKernel,                                                                              \
      (mp_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                 \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,                \
       mp_cu_stream stream, void **parameters, void **extra),                                      \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,          \
       parameters, extra))                                                                         \
    X(cuLaunchKernel_ptsz,                                                                         \
      (mp_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                 \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,                \
       mp_cu_stream stream, void **parameters, void **extra),                                      \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,          \
       parameters, extra))                                                                         \
    X(cuLaunchKernelEx,                                                                            \
      (const struct launch_config *config, mp_cu_function function, void **parameters,             \
       void **extra),                                                                              \
      (config, function, parameters, extra))                                                       \
    X(cuLaunchKernelEx_ptsz,                                                                       \
      (const struct launch_config *config, mp_cu_function function, void **parameters,             \
       void **extra),                                                                              \
      (config, function, parameters, extra))                                                       \
    X(cuGraphLaunch, (mp_cu_graph_exec exec, mp_cu_stream stream), (exec, stream))                 \
    X(cuStreamCreate, (mp_cu_stream * stream, unsigned flags), (stream, flags))                    \
    X(cuStreamCreateWithPriority, (mp_cu_stream * stream, unsigned flags, int priority),           \
      (stream, flags, priority))                                                                   \
    X(cuStreamDestroy_v2, (mp_cu_stream stream), (stream))                                         \
    X(cuStreamBeginCapture_v2, (mp_cu_stream stream, int mode), (stream, mode))                    \
    X(cuStreamEndCapture, (mp_cu_stream stream, mp_cu_graph * graph), (stream, graph))             \
    X(cuStreamSynchronize, (mp_cu_stream stream), (stream))                                        \
    X(cuEventSynchronize, (mp_cu_event event), (event))                                            \
    X(cuCtxSynchronize, (void), ())

#define X(name, parameters, arguments) mp_cu_result name parameters;
DRIVER_MAP(X)
#undef X

enum driver_hook {
#define X(name, parameters, arguments) DRIVER_##name,
    DRIVER_MAP(X)
#undef X
        DRIVER_COUNT
};

#define REAL(name)                                                                          \
    __typeof__(&name) const real = (__typeof__(&name))mp_driver_hook_behind(DRIVER_##name); \
    if (real == NULL)                                                                       \
    return NO_DRIVER

#endif
