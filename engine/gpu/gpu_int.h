#ifndef MP_GPU_INT_H
#define MP_GPU_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/gpu/gpu.h"
#include "kernels/cpu/types.h"
#include "vmm/backend/cuda/cuda_watchdog.h"

/* Shared by gpu.c (device, streams, kernels, graphs) and gpu_memory.c (memory and copies). */

#define MP_GPU_PLAIN_MAX 64 /* allocations of host memory that are not pinned */

struct mp_gpu_plain {
    char *address;
    uint64_t bytes; /* mapped */
};

struct mp_gpu {
    const struct mp_cuda *cuda;
    struct mp_cuda_device device;
    struct mp_cuda_life *life;
    mp_cu_context context;
    /* Kernels that every device has, those for tensor cores with weights of 16 bits, those of types
     * of weights, and of these for tensor cores. */
    mp_cu_module modules[2 + 2 * MP_WTYPE_COUNT];
    char image[600]; /* the file of the first module, or "PTX" */

    /* Kernels may begin early: then all wait for those before them. The stream where they do, and
     * whether the last that was queued there is a kernel: of the thread that uses the stream. */
    bool early;
    mp_cu_stream chain;
    bool chain_kernel;
    mp_cu_function functions[MP_CUDA_KERNEL_COUNT];
    /* Limit of dynamic shared memory set for each kernel. It only grows, under the lock, so that
     * the driver's last value is the largest. Relaxed: a thread that sees an old value checks again
     * under the lock. */
    _Atomic uint32_t shared_bytes[MP_CUDA_KERNEL_COUNT];
    pthread_mutex_t shared_lock;

    /* Host memory that could not be pinned. The count only grows, so that 0 needs no lock: a user
     * of a piece got it after the count had changed. */
    _Atomic uint32_t plain_made;
    pthread_mutex_t plain_lock; /* of the pieces, and of the bounce buffer's contents */
    struct mp_gpu_plain plain[MP_GPU_PLAIN_MAX];
    char *bounce; /* pinned: what copies of those pieces go through; NULL until it is needed */
};

/* mp_cuda_check_life() for this device. */
enum mp_status mp_gpu_check(const struct mp_gpu *gpu, mp_cu_result result, const char *call,
                            const char *object) MP_MUST_CHECK;

/* The kernels of `ptx` compiled for a device of this capability (90 is 9.0), to be freed by the
 * caller, and their file's name. NULL: there are none; an unusable file is warned about. */
void *mp_gpu_cubin_read(const char *ptx, int capability, char *path, size_t path_bytes);

/* Is programmatic dependent launch wanted? */
bool mp_gpu_wants_early(void);
/* A copy of `ptx` for compute capability 9.0 whose kernels may begin early; NULL: no memory. */
char *mp_gpu_early_ptx(const char *ptx);

/* For calls that release something: keeps the caller's error record. */
void mp_gpu_undone(const struct mp_gpu *gpu, mp_cu_result result, const char *call);
/* As mp_gpu_enter(), before calls that release something; false: there is no context any more. */
bool mp_gpu_enter_to_undo(const struct mp_gpu *gpu);

#endif
