#ifndef MP_FAKECUDART_H
#define MP_FAKECUDART_H

#include <pthread.h>
#include <stdbool.h>

#include "interpose/cuda/cudart_calls.h"
#include "vmm/backend/cuda/cuda_abi.h"

/*
 * A CUDA runtime over the driver without a device, for tests of programs that use one:
 * libcudart.so.12 and libcudart.so.13, built of the same source, with the names, versions of
 * symbols and argument lists of the real ones. It finds the driver as they do: dlopen(), one
 * dlsym(), all else through cuGetProcAddress().
 *
 * Thin: memory that is not pinned goes through a pinned buffer and is waited for; the default
 * stream is a stream of its own that waits for those that programs created without
 * cudaStreamNonBlocking, and they for it. Kernels are entries of a module whose text is what a
 * program registers.
 */
#define RT_EXPORT __attribute__((visibility("default")))
#define RT_STREAMS_MAX 64
#define RT_DEVICES_MAX 4

struct rt_state {
    pthread_mutex_t lock;
    struct mp_cu_calls cu;
    mp_cu_result (*pointer)(void *value, int attribute, mp_cu_ptr address);
    mp_cu_result (*reset)(mp_cu_device device);
    mp_cu_result (*alloc_async)(mp_cu_ptr *address, size_t bytes, mp_cu_stream stream);
    mp_cu_result (*free_async)(mp_cu_ptr address, mp_cu_stream stream);
    int found; /* 0: not tried, 1: yes, else minus the error */
    mp_cu_context contexts[RT_DEVICES_MAX];

    /* Streams that programs made, and the default one of each device. */
    struct rt_stream {
        mp_cu_stream stream;
        bool blocking;
        int device;
    } streams[RT_STREAMS_MAX];
    mp_cu_stream legacy[RT_DEVICES_MAX];
    unsigned resets[RT_DEVICES_MAX];
};
extern struct rt_state rt;

/* The driver is found and the thread's device has a context; else the error. */
mp_rt_error rt_begin(void);
/* Keeps what cudaGetLastError() returns. */
mp_rt_error rt_end(mp_rt_error error);
int rt_device(void);

/* The driver's stream for a program's, 0 and the special ones included; after what it has to wait
 * for by the rules of the default stream. */
mp_rt_error rt_stream(mp_rt_stream stream, mp_cu_stream *stream_p);
/* All streams of this process are done. */
mp_rt_error rt_synchronize(void);

/* The device was reset: nothing is loaded. With the lock held. */
void rt_unload(int device);

#define RT_BEGIN()                               \
    do {                                         \
        const mp_rt_error rt_error = rt_begin(); \
        if (rt_error != MP_RT_SUCCESS)           \
            return rt_end(rt_error);             \
    } while (0)

#endif
