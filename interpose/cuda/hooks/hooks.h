#ifndef MP_INTERPOSE_HOOKS_H
#define MP_INTERPOSE_HOOKS_H

#include <stdbool.h>
#include <stddef.h>

#include "interpose/cuda/cudart_calls.h"
#include "interpose/cuda/gpu.h"

/*
 * The hooks of CUDA calls in the library that is preloaded.
 *
 *     runtime.c        what programs call of the runtime: memory, launches, waits
 *     copies.c         those of them that move bytes
 *     driver.c         what the runtime, or a program, calls of the driver
 *     driver_memory.c  its part for memory
 *     gate.c           the driver's other ways to queue work
 *     lookup.c         dlsym() and cuGetProcAddress(), which hand functions of both out
 *     hooks.c          what is behind a hook, and whether it is to do anything
 *
 * A call of the runtime leads to calls of the driver. The outer hook acts; the inner ones pass on,
 * but for what only they can see: the parameters of a kernel. Without a budget a hook is a call
 * of the real function.
 */

/* X(name): runtime functions with a hook. */
#define MP_RT_HOOK_MAP(X)            \
    X(cudaMalloc)                    \
    X(cudaFree)                      \
    X(cudaMemGetInfo)                \
    X(cudaPointerGetAttributes)      \
    X(cudaIpcGetMemHandle)           \
    X(cudaDeviceEnablePeerAccess)    \
    X(cudaDeviceReset)               \
    X(cudaDeviceSynchronize)         \
    X(cudaMemcpy)                    \
    X(cudaMemcpy_ptds)               \
    X(cudaMemcpyAsync)               \
    X(cudaMemcpyAsync_ptsz)          \
    X(cudaMemcpy2DAsync)             \
    X(cudaMemcpyPeerAsync)           \
    X(cudaMemset)                    \
    X(cudaMemset_ptds)               \
    X(cudaMemsetAsync)               \
    X(cudaMemsetAsync_ptsz)          \
    X(cudaStreamCreate)              \
    X(cudaStreamCreateWithFlags)     \
    X(cudaStreamCreateWithPriority)  \
    X(cudaStreamDestroy)             \
    X(cudaStreamSynchronize)         \
    X(cudaStreamSynchronize_ptsz)    \
    X(cudaStreamBeginCapture)        \
    X(cudaStreamBeginCapture_ptsz)   \
    X(cudaStreamBeginCaptureToGraph) \
    X(cudaStreamQuery)               \
    X(cudaEventQuery)                \
    X(cudaStreamEndCapture)          \
    X(cudaStreamEndCapture_ptsz)     \
    X(cudaEventSynchronize)          \
    X(cudaGraphLaunch)               \
    X(cudaGraphLaunch_ptsz)          \
    X(cudaLaunchKernel)              \
    X(cudaLaunchKernel_ptsz)         \
    X(cudaLaunchCooperativeKernel)   \
    X(cudaLaunchKernelExC)           \
    X(cudaLaunchKernelExC_ptsz)      \
    X(__cudaLaunchKernel)            \
    X(__cudaLaunchKernel_ptsz)

enum mp_rt_hook {
#define X(name) MP_RT_HOOK_##name,
    MP_RT_HOOK_MAP(X)
#undef X
        MP_RT_HOOK_COUNT
};

/* What a hook calls that stands for runtime function `hook`, when it was called from `site`: which
 * runtime that is depends on the caller's library. NULL: there is none. */
void *mp_hook_behind(enum mp_rt_hook hook, const void *site);

/* The same for a runtime function without a hook; asked for each time. */
void *mp_hook_find(const void *site, const char *name);

/* The interposer, for a call that is the outer one; NULL: there is nothing to do. open: a large
 * allocation is a reason to begin. */
const struct mp_gpu_interposer *mp_hook_gpu(void);
const struct mp_gpu_interposer *mp_hook_gpu_open(void);

/* What lies at so many addresses of the host changes. Also from a thread that has all but ended. */
void mp_hook_unmapped(size_t bytes);

/* Between these, hooks of this thread pass on. They nest. */
void mp_hook_enter(void);
void mp_hook_leave(void);
bool mp_hook_is_nested(void);

/* Also within: for what only the inner hook sees. */
const struct mp_gpu_interposer *mp_hook_gpu_nested(void);

/* lookup.c: the function of the real driver with this exact name; NULL: there is no driver,
 * or it has none. */
void *mp_hook_driver(const char *name);

/* driver.c: hooks of the driver by exact name, and what they call. */
struct mp_driver_hook {
    const char *name;
    void *hook;
};
extern const struct mp_driver_hook mp_driver_hooks[];
extern const size_t mp_driver_hook_count;

/* What hook number `i` stands for; NULL: this driver has no such function. */
void *mp_driver_hook_behind(size_t i);

/* gate.c: the same. */
extern const struct mp_driver_hook mp_gate_hooks[];
extern const size_t mp_gate_hook_count;
void *mp_gate_hook_behind(size_t i);

#define MP_HOOK_SITE __builtin_return_address(0)

#endif
