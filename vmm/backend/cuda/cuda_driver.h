#ifndef MP_CUDA_DRIVER_H
#define MP_CUDA_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/status.h"
#include "vmm/backend/cuda/cuda_abi.h"

/*
 * The CUDA driver of this machine, loaded at the first use: libcuda.so.1 by dlopen(), every call by
 * dlsym(), then cuInit(). Nothing of it is linked.
 *
 * Thread safety: any thread. The driver is never unloaded, because it does not support that.
 */
struct mp_cuda {
    struct mp_cu_calls call;
    int version; /* 13000 is 13.0 */
    unsigned devices;
};

/*
 * *cuda_p := the driver, shared by all callers, initialised, with at least one device.
 * MP_ERR_UNSUPPORTED E_CUDA_OFF: there is no usable driver; the text has the reason: no library, a
 * missing symbol (driver older than 12.2), the result of cuInit(), or no device. The result is
 * cached.
 */
enum mp_status mp_cuda_get(const struct mp_cuda **cuda_p) MP_MUST_CHECK;

/*
 * The one place that turns a result into a status: MP_OK for CUDA_SUCCESS, MP_ERR_NO_SPACE for out
 * of memory, MP_ERR_UNSUPPORTED for what is not supported or not permitted, else MP_ERR_DEVICE. The
 * text has the driver's name and description of the result, the call (of MP_CU_CALL_MAP), and its
 * `object` ("a frame of 2097152 bytes"). E_CUDA, E_CUDA_MEMORY, or E_CUDA_HANG
 * (vmm/backend/cuda/cuda_watchdog.h).
 */
enum mp_status mp_cuda_check(const struct mp_cuda *cuda, mp_cu_result result, const char *call,
                             const char *object) MP_MUST_CHECK;

/* True if this result means that the device or its context is lost for good (a fault, ECC, a
 * reset): every later call fails the same way. */
bool mp_cuda_is_sticky(mp_cu_result result);

/*
 * For results of calls that release something: true if the result means that the device is lost,
 * and this loss was reported before, by mp_cuda_check() or an earlier call of this function. Then
 * nothing can be released any more, and no further report is needed.
 */
bool mp_cuda_known_lost(mp_cu_result result);

/*
 * The error that a device was lost with, shared by all its users in this process. It is reset when
 * the last user has closed the device.
 *
 * Every user checks it before a driver call, also before calls that clean up after a failure. Check
 * and call are not atomic: while one thread records the loss, others may be in a call or about to
 * make one; that call returns the same result and is their last. So a lost device gets at most one
 * more call from each other thread, and none from a thread that has seen the error. Calls that hang
 * are the subject of vmm/backend/cuda/cuda_watchdog.h.
 */
struct mp_cuda_life {
    _Atomic(int) lost; /* a result, or 0. Relaxed: no other memory depends on it */
    unsigned users;    /* guarded by a lock of cuda_driver.c */
};
struct mp_cuda_life *mp_cuda_life_get(mp_cu_device device);
void mp_cuda_life_put(struct mp_cuda_life *life);

static inline int mp_cuda_lost(const struct mp_cuda_life *life)
{
    return atomic_load_explicit(&life->lost, memory_order_relaxed);
}

/* Record the loss. Only the first result counts. */
void mp_cuda_lose(struct mp_cuda_life *life, mp_cu_result result);

/* mp_cuda_check() that also records a sticky result in `life`. */
enum mp_status mp_cuda_check_life(const struct mp_cuda *cuda, struct mp_cuda_life *life,
                                  mp_cu_result result, const char *call,
                                  const char *object) MP_MUST_CHECK;

#define MP_CUDA_NAME_BYTES 128

struct mp_cuda_device {
    mp_cu_device id;
    char name[MP_CUDA_NAME_BYTES];
    char pci[32];  /* "0000:17:00.0", lower case */
    char uuid[48]; /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", "MIG-..." of a slice */
    uint64_t memory_bytes;
    int capability; /* 90 is 9.0 */
    int processors;
    bool integrated;      /* shares its memory with the host */
    bool vmm;             /* supports the virtual memory calls */
    uint64_t cache_bytes; /* of its L2 cache; 0: unknown */
    int host_numa_id;     /* as the driver reports it; -1: unknown */
};

/* Facts of device `ordinal` < cuda->devices. */
enum mp_status mp_cuda_describe(const struct mp_cuda *cuda, unsigned ordinal,
                                struct mp_cuda_device *device_p) MP_MUST_CHECK;

#endif
