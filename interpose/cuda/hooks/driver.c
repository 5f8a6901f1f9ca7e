/*
 * Hooks of the CUDA driver: for programs that call it themselves, for runtimes that are part of a
 * program, and for what only here can be seen of the calls of a runtime: a kernel's parameters, and
 * streams that it makes for itself.
 *
 * There is one driver in a process, so what is behind a hook is found once. A name has the suffix
 * of its version: each is a function of its own.
 */
#include "interpose/cuda/hooks/driver.h"

#include <stdatomic.h>
#include <stdint.h>

#include "vmm/base/compiler.h"

const struct mp_driver_hook mp_driver_hooks[] = {
#define X(name, parameters, arguments) { #name, (void *)name },
    DRIVER_MAP(X)
#undef X
};
const size_t mp_driver_hook_count = DRIVER_COUNT;

static _Atomic(void *) reals[DRIVER_COUNT]; /* found at the first call; the same for all */

void *mp_driver_hook_behind(size_t i)
{
    void *real = atomic_load_explicit(&reals[i], memory_order_acquire);

    if (real == NULL) {
        real = mp_hook_driver(mp_driver_hooks[i].name);
        atomic_store_explicit(&reals[i], real, memory_order_release);
    }
    return real;
}

/* ---- work */

/* `call` queues work on `stream`. */
#define WORK(stream, meaning, call)                          \
    do {                                                     \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu(); \
        mp_cu_result result_;                                \
                                                             \
        if (gpu == NULL)                                     \
            return call;                                     \
        mp_hook_enter();                                     \
        gpu->begin(stream, meaning);                         \
        result_ = call;                                      \
        gpu->end();                                          \
        mp_hook_leave();                                     \
        return result_;                                      \
    } while (0)

/* In parts of one tier each, all by the program's own call. */
#define COPY(name, dst_type, src_type, is_from_host)                                               \
    MOEPAGER_API mp_cu_result name(dst_type dst, src_type src, size_t bytes, mp_cu_stream stream)  \
    {                                                                                              \
        REAL(name);                                                                                \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu();                                       \
        const struct mp_gpu_copy copy = { (void *)(uintptr_t)dst, (const void *)(uintptr_t)src,    \
                                          bytes, is_from_host };                                   \
        mp_cu_result result = MP_CU_SUCCESS;                                                       \
                                                                                                   \
        if (gpu == NULL)                                                                           \
            return real(dst, src, bytes, stream);                                                  \
        mp_hook_enter();                                                                           \
        gpu->begin(stream, MP_GPU_LEGACY);                                                         \
        gpu->copies(&copy);                                                                        \
        for (uint64_t done = 0, n; result == MP_CU_SUCCESS && done < bytes; done += n) {           \
            n = gpu->part(&copy, done);                                                            \
            result = real((dst_type)((uintptr_t)dst + done), (src_type)((uintptr_t)src + done), n, \
                          stream);                                                                 \
        }                                                                                          \
        gpu->end();                                                                                \
        mp_hook_leave();                                                                           \
        return result;                                                                             \
    }

COPY(cuMemcpyHtoDAsync_v2, mp_cu_ptr, const void *, true)
COPY(cuMemcpyDtoHAsync_v2, void *, mp_cu_ptr, false)
COPY(cuMemcpyDtoDAsync_v2, mp_cu_ptr, mp_cu_ptr, false)
COPY(cuMemcpyAsync, mp_cu_ptr, mp_cu_ptr, true)

MOEPAGER_API mp_cu_result cuMemsetD8Async(mp_cu_ptr dst, unsigned char value, size_t bytes,
                                          mp_cu_stream stream)
{
    REAL(cuMemsetD8Async);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu();
    const struct mp_gpu_copy copy = { (void *)(uintptr_t)dst, NULL, bytes, false };
    mp_cu_result result = MP_CU_SUCCESS;

    if (gpu == NULL)
        return real(dst, value, bytes, stream);
    mp_hook_enter();
    gpu->begin(stream, MP_GPU_LEGACY);
    gpu->copies(&copy);
    for (uint64_t done = 0, n; result == MP_CU_SUCCESS && done < bytes; done += n) {
        n = gpu->part(&copy, done);
        result = real(dst + done, value, n, stream);
    }
    gpu->end();
    mp_hook_leave();
    return result;
}

typedef mp_cu_result param_info_fn(mp_cu_function function, size_t index, size_t *offset,
                                   size_t *bytes);

/* Report each parameter. The driver says what a kernel takes, since 12.4. */
static void report_parameters(const struct mp_gpu_interposer *gpu, mp_cu_function function,
                              void **parameters)
{
    static _Atomic(param_info_fn *) info;
    param_info_fn *ask = atomic_load_explicit(&info, memory_order_relaxed);
    size_t offset, bytes;

    if (ask == NULL) {
        ask = (param_info_fn *)mp_hook_driver("cuFuncGetParamInfo");
        atomic_store_explicit(&info, ask, memory_order_relaxed);
    }
    for (size_t p = 0; ask != NULL && parameters != NULL; p++) {
        if (ask(function, p, &offset, &bytes) != MP_CU_SUCCESS)
            break;
        if (bytes >= sizeof(uintptr_t))
            gpu->parameter(parameters[p], bytes);
    }
}

/* The outer hook has opened the gate, where it is one of the runtime. */
static const struct mp_gpu_interposer *begin_launch(mp_cu_function function, void **parameters)
{
    const struct mp_gpu_interposer *gpu = mp_hook_gpu_nested();

    if (gpu != NULL)
        report_parameters(gpu, function, parameters);
    return gpu;
}

#define LAUNCH(name, meaning)                                                                    \
    MOEPAGER_API mp_cu_result name(mp_cu_function function, unsigned grid_x, unsigned grid_y,    \
                                   unsigned grid_z, unsigned block_x, unsigned block_y,          \
                                   unsigned block_z, unsigned shared_bytes, mp_cu_stream stream, \
                                   void **parameters, void **extra)                              \
    {                                                                                            \
        REAL(name);                                                                              \
        begin_launch(function, parameters);                                                      \
        WORK(stream, meaning,                                                                    \
             real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,     \
                  stream, parameters, extra));                                                   \
    }

LAUNCH(cuLaunchKernel, MP_GPU_LEGACY)
LAUNCH(cuLaunchKernel_ptsz, MP_GPU_PER_THREAD)

#define LAUNCH_EX(name, meaning)                                                                \
    MOEPAGER_API mp_cu_result name(const struct launch_config *config, mp_cu_function function, \
                                   void **parameters, void **extra)                             \
    {                                                                                           \
        REAL(name);                                                                             \
        begin_launch(function, parameters);                                                     \
        WORK(config != NULL ? config->stream : NULL, meaning,                                   \
             real(config, function, parameters, extra));                                        \
    }

LAUNCH_EX(cuLaunchKernelEx, MP_GPU_LEGACY)
LAUNCH_EX(cuLaunchKernelEx_ptsz, MP_GPU_PER_THREAD)

MOEPAGER_API mp_cu_result cuGraphLaunch(mp_cu_graph_exec exec, mp_cu_stream stream)
{
    REAL(cuGraphLaunch);

    WORK(stream, MP_GPU_LEGACY, real(exec, stream));
}

/* ---- streams: also those that a runtime makes for itself */

static void note_stream(mp_cu_result result, const mp_cu_stream *stream)
{
    const struct mp_gpu_interposer *gpu = mp_hook_gpu_nested();

    if (gpu != NULL && result == MP_CU_SUCCESS)
        gpu->stream_made(*stream);
}

MOEPAGER_API mp_cu_result cuStreamCreate(mp_cu_stream *stream, unsigned flags)
{
    REAL(cuStreamCreate);
    const mp_cu_result result = real(stream, flags);

    (void)mp_hook_gpu_open();
    note_stream(result, stream);
    return result;
}

MOEPAGER_API mp_cu_result cuStreamCreateWithPriority(mp_cu_stream *stream, unsigned flags,
                                                     int priority)
{
    REAL(cuStreamCreateWithPriority);
    const mp_cu_result result = real(stream, flags, priority);

    (void)mp_hook_gpu_open();
    note_stream(result, stream);
    return result;
}

MOEPAGER_API mp_cu_result cuStreamDestroy_v2(mp_cu_stream stream)
{
    REAL(cuStreamDestroy_v2);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu();

    if (gpu != NULL)
        gpu->stream_ends(stream);
    return real(stream);
}

MOEPAGER_API mp_cu_result cuStreamBeginCapture_v2(mp_cu_stream stream, int mode)
{
    REAL(cuStreamBeginCapture_v2);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu();
    mp_cu_result result;

    if (gpu == NULL)
        return real(stream, mode);
    gpu->begin(stream, MP_GPU_LEGACY);
    result = real(stream, mode);
    if (result == MP_CU_SUCCESS)
        gpu->capture(true);
    gpu->end();
    return result;
}

MOEPAGER_API mp_cu_result cuStreamEndCapture(mp_cu_stream stream, mp_cu_graph *graph)
{
    REAL(cuStreamEndCapture);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu();
    const mp_cu_result result = real(stream, graph);

    if (gpu != NULL)
        gpu->capture(false);
    return result;
}

/* ---- waits */

#define WAIT(all, stream, call)                              \
    do {                                                     \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu(); \
        struct mp_gpu_wait wait;                             \
        mp_cu_result result;                                 \
                                                             \
        if (gpu == NULL)                                     \
            return call;                                     \
        mp_hook_enter();                                     \
        gpu->wait_begins(&wait);                             \
        result = call;                                       \
        if (result == MP_CU_SUCCESS)                         \
            gpu->waited(&wait, all, stream, MP_GPU_LEGACY);  \
        mp_hook_leave();                                     \
        return result;                                       \
    } while (0)

MOEPAGER_API mp_cu_result cuStreamSynchronize(mp_cu_stream stream)
{
    REAL(cuStreamSynchronize);

    WAIT(false, stream, real(stream));
}

MOEPAGER_API mp_cu_result cuEventSynchronize(mp_cu_event event)
{
    REAL(cuEventSynchronize);

    WAIT(false, event, real(event));
}

MOEPAGER_API mp_cu_result cuCtxSynchronize(void)
{
    REAL(cuCtxSynchronize);

    WAIT(true, NULL, real());
}
