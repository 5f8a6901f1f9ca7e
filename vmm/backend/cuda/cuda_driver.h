#ifndef MP_CUDA_DRIVER_H
#define MP_CUDA_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/status.h"
#include "vmm/backend/cuda/cuda_abi.h"

/*
 * The CUDA driver of this machine, found when it is first asked for: libcuda.so.1 by dlopen(),
 * every call by dlsym(), cuInit(). Nothing of it is linked.
 *
 * Thread safety: all functions may be called from any thread. What the driver returns in the way
 * of devices belongs to the process; nothing here is ever unloaded, because a driver cannot be.
 */
struct mp_cuda {
    struct mp_cu_calls call;
    int version; /* 13000 is 13.0 */
    unsigned devices;
};

/*
 * *cuda_p := the driver, the same for all callers, ready to use with at least one device.
 * MP_ERR_UNSUPPORTED E_CUDA_OFF: there is none, or it cannot be used, and why: no library, a symbol
 * that is missing (driver older than 12.2), what cuInit() said, or no device. The result is kept,
 * so later calls cost nothing.
 */
enum mp_status mp_cuda_get(const struct mp_cuda **cuda_p) MP_MUST_CHECK;

/*
 * The one place that turns a result into a status: MP_OK for CUDA_SUCCESS, MP_ERR_NO_SPACE for out
 * of memory, MP_ERR_UNSUPPORTED for what is not supported or not permitted, else MP_ERR_DEVICE. The
 * text has the driver's own name and sentence for the result, the call (of MP_CU_CALL_MAP), and
 * `object`, what it was done to ("a frame of 2097152 bytes"). E_CUDA, E_CUDA_MEMORY, or E_CUDA_HANG
 * (vmm/backend/cuda/cuda_watchdog.h).
 */
enum mp_status mp_cuda_check(const struct mp_cuda *cuda, mp_cu_result result, const char *call,
                             const char *object) MP_MUST_CHECK;

/* Has the device, or its context, been lost for good with this result (a fault, ECC, a reset)?
 * Every later call then fails the same way. */
bool mp_cuda_is_sticky(mp_cu_result result);

/*
 * For results of giving something back: is this the loss of the device, and does the process know
 * of it already, by mp_cuda_check() or an earlier call of this? Then nothing can be given back any
 * more, and nobody needs another report.
 */
bool mp_cuda_known_lost(mp_cu_result result);

/*
 * What a device was lost by, for all who have it open in this process. It begins anew when nobody
 * has it open.
 *
 * Who begins something looks here first, and so does who gives back what a failed call had led to:
 * after the first who learns of the loss nobody begins another call. That is a look and then a
 * call, not one thing. A thread that has looked already makes the call that it was about to make,
 * or is in it while another one learns; that call gives the same result, and it is this thread's
 * last. So a lost device gets at most one call from each thread after the first that saw the error,
 * and none from one that saw it. Calls in which a thread hangs are those of
 * vmm/backend/cuda/cuda_watchdog.h.
 */
struct mp_cuda_life {
    _Atomic(int) lost; /* a result, or 0. Relaxed: it says nothing about other memory */
    unsigned users;    /* under a lock of cuda_driver.c */
};
struct mp_cuda_life *mp_cuda_life_get(mp_cu_device device);
void mp_cuda_life_put(struct mp_cuda_life *life);

static inline int mp_cuda_lost(const struct mp_cuda_life *life)
{
    return atomic_load_explicit(&life->lost, memory_order_relaxed);
}

/* The first result stays. */
void mp_cuda_lose(struct mp_cuda_life *life, mp_cu_result result);

/* mp_cuda_check(), that remembers what is final. */
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
    bool integrated;      /* shares memory with the host */
    bool vmm;             /* the virtual memory calls work */
    uint64_t cache_bytes; /* of its L2 cache; 0: the driver does not say */
    int host_numa_id;     /* as the driver says it; -1 where it does not */
};

/* Facts of device `ordinal` < cuda->devices. */
enum mp_status mp_cuda_describe(const struct mp_cuda *cuda, unsigned ordinal,
                                struct mp_cuda_device *device_p) MP_MUST_CHECK;

#endif
