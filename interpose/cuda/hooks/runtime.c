/*
 * Hooks of the CUDA runtime.
 *
 * Each finds the real function first, passes on where nothing is to be done, and else brackets it.
 * copies.c has those that move bytes.
 *
 * The per-thread variants are functions of their own with the same body, so bodies are written once
 * and stamped by macros that do nothing but name.
 */
#include "interpose/cuda/hooks/hooks.h"

#include "interpose/cuda/hooks/real.h"
#include "vmm/base/compiler.h"

/* The program's current device; -1: it has none. */
static int current_device(const void *site)
{
    mp_rt_error (*get)(int *) = (mp_rt_error(*)(int *))mp_hook_find(site, "cudaGetDevice");
    int device = -1;

    return get != NULL && get(&device) == MP_RT_SUCCESS ? device : -1;
}

/* ---- memory */

/* The device has no memory. What the runtime remembers of that is forgotten where something else is
 * found: programs ask for it after their next launch. */
static mp_rt_error take_otherwise(const struct mp_gpu_interposer *gpu, int device, void **address,
                                  size_t bytes, const void *site)
{
    mp_rt_error (*managed)(void **, size_t, unsigned) =
        (mp_rt_error(*)(void **, size_t, unsigned))mp_hook_find(site, "cudaMallocManaged");
    mp_rt_error (*forget)(void) = (mp_rt_error(*)(void))mp_hook_find(site, "cudaGetLastError");
    mp_rt_error error = MP_RT_NO_MEMORY;

    if (forget == NULL)
        return error;
    if (gpu->allocate(device, bytes, true, address))
        error = MP_RT_SUCCESS;
    else if (gpu->manages() && managed != NULL)
        error = managed(address, bytes, 1);
    if (error == MP_RT_SUCCESS)
        (void)forget();
    return error;
}

/* A runtime looks for the driver's functions in the program's first call. Within a hook it would
 * get them without hooks, and no kernel's parameters would ever be seen. */
static void let_find_driver(const void *site)
{
    mp_rt_error (*count)(int *) = (mp_rt_error(*)(int *))mp_hook_find(site, "cudaGetDeviceCount");
    int devices;

    if (count != NULL)
        (void)count(&devices);
}

MOEPAGER_API mp_rt_error cudaMalloc(void **address, size_t bytes)
{
    REAL(cudaMalloc);
    const struct mp_gpu_interposer *gpu = bytes >= 1 << 16 ? mp_hook_gpu_open() : NULL;
    mp_rt_error error;
    int device;

    if (gpu == NULL || address == NULL || bytes < gpu->bytes_min())
        return real(address, bytes);
    let_find_driver(MP_HOOK_SITE);
    mp_hook_enter();
    device = current_device(MP_HOOK_SITE);
    if (gpu->allocate(device, bytes, false, address)) {
        mp_hook_leave();
        return MP_RT_SUCCESS;
    }
    error = real(address, bytes);
    if (error == MP_RT_SUCCESS)
        gpu->took(device, *address, bytes);
    else if (error == MP_RT_NO_MEMORY)
        error = take_otherwise(gpu, device, address, bytes, MP_HOOK_SITE);
    mp_hook_leave();
    return error;
}

/* The real one waits for the memory's device before it gives it back. */
static mp_rt_error wait_for_device(int device, const void *site)
{
    mp_rt_error (*wait)(void) = (mp_rt_error(*)(void))mp_hook_find(site, "cudaDeviceSynchronize");
    mp_rt_error (*set)(int) = (mp_rt_error(*)(int))mp_hook_find(site, "cudaSetDevice");
    const int current = current_device(site);
    mp_rt_error error = MP_RT_SUCCESS;

    if (wait == NULL || set == NULL)
        return NO_RUNTIME;
    if (current != device)
        error = set(device);
    if (error == MP_RT_SUCCESS)
        error = wait();
    if (current != device && current >= 0)
        (void)set(current);
    return error;
}

MOEPAGER_API mp_rt_error cudaFree(void *address)
{
    REAL(cudaFree);
    const struct mp_gpu_interposer *gpu = address != NULL ? mp_hook_gpu() : NULL;
    mp_rt_error error;
    int device;

    if (gpu == NULL)
        return real(address);
    mp_hook_enter();
    device = gpu->owner(address);
    if (device >= 0) {
        error = wait_for_device(device, MP_HOOK_SITE);
        if (error == MP_RT_SUCCESS)
            gpu->release(address);
    } else {
        gpu->gives(address);
        error = real(address);
    }
    mp_hook_leave();
    return error;
}

/* It ends what is under way; but memory must not go while that touches it. A device that is lost
 * cannot be waited for, and touches nothing. */
MOEPAGER_API mp_rt_error cudaDeviceReset(void)
{
    REAL(cudaDeviceReset);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu();
    mp_rt_error error;
    int device;

    if (gpu == NULL)
        return real();
    mp_hook_enter();
    device = current_device(MP_HOOK_SITE);
    (void)wait_for_device(device, MP_HOOK_SITE);
    gpu->reset(device);
    error = real();
    mp_hook_leave();
    return error;
}

MOEPAGER_API mp_rt_error cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    REAL(cudaMemGetInfo);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu_open();
    const mp_rt_error error = real(free_bytes, total_bytes);

    if (gpu == NULL || error != MP_RT_SUCCESS)
        return error;
    mp_hook_enter();
    gpu->memory_info(current_device(MP_HOOK_SITE), free_bytes, total_bytes);
    mp_hook_leave();
    return error;
}

/* A window is device memory, wherever its units lie: programs choose kernels and copies by it. */
MOEPAGER_API mp_rt_error cudaPointerGetAttributes(struct mp_rt_pointer *out, const void *address)
{
    REAL(cudaPointerGetAttributes);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu();
    const mp_rt_error error = real(out, address);

    if (gpu != NULL && error == MP_RT_SUCCESS && gpu->holds(address)) {
        out->type = MP_RT_MEMORY_DEVICE;
        out->device_pointer = (void *)(uintptr_t)address;
        out->host_pointer = NULL;
    }
    return error;
}

MOEPAGER_API mp_rt_error cudaIpcGetMemHandle(void *handle, void *address)
{
    REAL(cudaIpcGetMemHandle);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu_open();

    if (gpu != NULL)
        gpu->stand_aside("the program shares memory with other processes, which a window cannot "
                         "be");
    return real(handle, address);
}

MOEPAGER_API mp_rt_error cudaDeviceEnablePeerAccess(int device, unsigned flags)
{
    REAL(cudaDeviceEnablePeerAccess);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu_open();

    if (gpu != NULL)
        gpu->stand_aside("devices read each other's memory, which a window does not allow");
    return real(device, flags);
}

/* ---- work */

/* `call` queues work on `stream`. */
#define WORK(gpu, stream, meaning, call) \
    do {                                 \
        mp_rt_error error_;              \
                                         \
        if ((gpu) == NULL)               \
            return call;                 \
        mp_hook_enter();                 \
        (gpu)->begin(stream, meaning);   \
        error_ = call;                   \
        (gpu)->end();                    \
        mp_hook_leave();                 \
        return error_;                   \
    } while (0)

MOEPAGER_API mp_rt_error cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src,
                                             int src_device, size_t bytes, mp_rt_stream stream)
{
    REAL(cudaMemcpyPeerAsync);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu();

    WORK(gpu, stream, MP_GPU_LEGACY, real(dst, dst_device, src, src_device, bytes, stream));
}

#define LAUNCH(name, type, meaning)                                                             \
    MOEPAGER_API mp_rt_error name(type kernel, struct mp_rt_dim grid, struct mp_rt_dim block,   \
                                  void **arguments, size_t shared_bytes, mp_rt_stream stream)   \
    {                                                                                           \
        REAL(name);                                                                             \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu();                                    \
                                                                                                \
        WORK(gpu, stream, meaning, real(kernel, grid, block, arguments, shared_bytes, stream)); \
    }

LAUNCH(cudaLaunchKernel, const void *, MP_GPU_LEGACY)
LAUNCH(cudaLaunchKernel_ptsz, const void *, MP_GPU_PER_THREAD)
LAUNCH(cudaLaunchCooperativeKernel, const void *, MP_GPU_LEGACY)
LAUNCH(__cudaLaunchKernel, mp_rt_kernel, MP_GPU_LEGACY)
LAUNCH(__cudaLaunchKernel_ptsz, mp_rt_kernel, MP_GPU_PER_THREAD)

#define LAUNCH_EX(name, meaning)                                                         \
    MOEPAGER_API mp_rt_error name(const struct mp_rt_launch *config, const void *kernel, \
                                  void **arguments)                                      \
    {                                                                                    \
        REAL(name);                                                                      \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu();                             \
                                                                                         \
        WORK(gpu, config != NULL ? config->stream : NULL, meaning,                       \
             real(config, kernel, arguments));                                           \
    }

LAUNCH_EX(cudaLaunchKernelExC, MP_GPU_LEGACY)
LAUNCH_EX(cudaLaunchKernelExC_ptsz, MP_GPU_PER_THREAD)

#define GRAPH_LAUNCH(name, meaning)                                     \
    MOEPAGER_API mp_rt_error name(mp_rt_exec exec, mp_rt_stream stream) \
    {                                                                   \
        REAL(name);                                                     \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu();            \
                                                                        \
        WORK(gpu, stream, meaning, real(exec, stream));                 \
    }

GRAPH_LAUNCH(cudaGraphLaunch, MP_GPU_LEGACY)
GRAPH_LAUNCH(cudaGraphLaunch_ptsz, MP_GPU_PER_THREAD)

/* ---- streams. They are known from the first one on, also where nothing is to be done yet. */

MOEPAGER_API mp_rt_error cudaStreamCreate(mp_rt_stream *stream)
{
    REAL(cudaStreamCreate);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu_open();
    const mp_rt_error error = real(stream);

    if (gpu != NULL && error == MP_RT_SUCCESS)
        gpu->stream_made(*stream);
    return error;
}

MOEPAGER_API mp_rt_error cudaStreamCreateWithFlags(mp_rt_stream *stream, unsigned flags)
{
    REAL(cudaStreamCreateWithFlags);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu_open();
    const mp_rt_error error = real(stream, flags);

    if (gpu != NULL && error == MP_RT_SUCCESS)
        gpu->stream_made(*stream);
    return error;
}

MOEPAGER_API mp_rt_error cudaStreamCreateWithPriority(mp_rt_stream *stream, unsigned flags,
                                                      int priority)
{
    REAL(cudaStreamCreateWithPriority);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu_open();
    const mp_rt_error error = real(stream, flags, priority);

    if (gpu != NULL && error == MP_RT_SUCCESS)
        gpu->stream_made(*stream);
    return error;
}

MOEPAGER_API mp_rt_error cudaStreamDestroy(mp_rt_stream stream)
{
    REAL(cudaStreamDestroy);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu();
    mp_rt_error error;

    if (gpu == NULL)
        return real(stream);
    mp_hook_enter();
    gpu->stream_ends(stream);
    error = real(stream);
    mp_hook_leave();
    return error;
}

#define BEGIN_CAPTURE(name)                                           \
    MOEPAGER_API mp_rt_error name(mp_rt_stream stream, int mode)      \
    {                                                                 \
        REAL(name);                                                   \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu();          \
        mp_rt_error error;                                            \
                                                                      \
        if (gpu == NULL)                                              \
            return real(stream, mode);                                \
        mp_hook_enter();                                              \
        gpu->begin(stream, MP_GPU_LEGACY); /* nothing is moved now */ \
        error = real(stream, mode);                                   \
        if (error == MP_RT_SUCCESS)                                   \
            gpu->capture(true);                                       \
        gpu->end();                                                   \
        mp_hook_leave();                                              \
        return error;                                                 \
    }

BEGIN_CAPTURE(cudaStreamBeginCapture)
BEGIN_CAPTURE(cudaStreamBeginCapture_ptsz)

MOEPAGER_API mp_rt_error cudaStreamBeginCaptureToGraph(mp_rt_stream stream, mp_rt_graph graph,
                                                       const void *dependencies, const void *data,
                                                       size_t count, int mode)
{
    REAL(cudaStreamBeginCaptureToGraph);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu();
    mp_rt_error error;

    if (gpu == NULL)
        return real(stream, graph, dependencies, data, count, mode);
    mp_hook_enter();
    gpu->begin(stream, MP_GPU_LEGACY);
    error = real(stream, graph, dependencies, data, count, mode);
    if (error == MP_RT_SUCCESS)
        gpu->capture(true);
    gpu->end();
    mp_hook_leave();
    return error;
}

#define END_CAPTURE(name)                                                  \
    MOEPAGER_API mp_rt_error name(mp_rt_stream stream, mp_rt_graph *graph) \
    {                                                                      \
        REAL(name);                                                        \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu();               \
        mp_rt_error error;                                                 \
                                                                           \
        if (gpu == NULL)                                                   \
            return real(stream, graph);                                    \
        mp_hook_enter();                                                   \
        error = real(stream, graph);                                       \
        gpu->capture(false);                                               \
        mp_hook_leave();                                                   \
        return error;                                                      \
    }

END_CAPTURE(cudaStreamEndCapture)
END_CAPTURE(cudaStreamEndCapture_ptsz)

/* ---- waits */

#define WAIT(all, stream, meaning, call)                     \
    do {                                                     \
        const struct mp_gpu_interposer *gpu = mp_hook_gpu(); \
        struct mp_gpu_wait wait;                             \
        mp_rt_error error;                                   \
                                                             \
        if (gpu == NULL)                                     \
            return call;                                     \
        mp_hook_enter();                                     \
        gpu->wait_begins(&wait);                             \
        error = call;                                        \
        if (error == MP_RT_SUCCESS)                          \
            gpu->waited(&wait, all, stream, meaning);        \
        mp_hook_leave();                                     \
        return error;                                        \
    } while (0)

MOEPAGER_API mp_rt_error cudaDeviceSynchronize(void)
{
    REAL(cudaDeviceSynchronize);

    WAIT(true, NULL, MP_GPU_LEGACY, real());
}

MOEPAGER_API mp_rt_error cudaStreamSynchronize(mp_rt_stream stream)
{
    REAL(cudaStreamSynchronize);

    WAIT(false, stream, MP_GPU_LEGACY, real(stream));
}

MOEPAGER_API mp_rt_error cudaStreamSynchronize_ptsz(mp_rt_stream stream)
{
    REAL(cudaStreamSynchronize_ptsz);

    WAIT(false, stream, MP_GPU_PER_THREAD, real(stream));
}

/* Of the stream that the event was recorded on nothing is known: others than a stream of its own.
 */
MOEPAGER_API mp_rt_error cudaEventSynchronize(mp_rt_event event)
{
    REAL(cudaEventSynchronize);

    WAIT(false, event, MP_GPU_LEGACY, real(event));
}

/* Programs that do not wait ask again and again; that it has ended is as good as a wait. */
MOEPAGER_API mp_rt_error cudaStreamQuery(mp_rt_stream stream)
{
    REAL(cudaStreamQuery);

    WAIT(false, stream, MP_GPU_LEGACY, real(stream));
}

MOEPAGER_API mp_rt_error cudaEventQuery(mp_rt_event event)
{
    REAL(cudaEventQuery);

    WAIT(false, event, MP_GPU_LEGACY, real(event));
}
