#ifndef MP_CUDART_ABI_H
#define MP_CUDART_ABI_H

#include <stddef.h>
#include <stdint.h>

/*
 * The part of the CUDA runtime's binary interface that programs call and the interposer serves or
 * passes on, declared here because nothing of a toolkit is needed to build moepager. Names and
 * numbers are those of NVIDIA's documentation of the runtime API, 12.x and 13.x. A stream, an event
 * and a kernel of the runtime are those of the driver under another name, as are results.
 *
 * The per-thread variants (_ptsz, _ptds) are what a program calls that was built with
 * --default-stream per-thread; they differ only in what stream 0 means.
 */
typedef int mp_rt_error;
typedef void *mp_rt_stream;
typedef void *mp_rt_event;
typedef void *mp_rt_graph;
typedef void *mp_rt_exec;
typedef void *mp_rt_kernel;

#define MP_RT_SUCCESS 0
#define MP_RT_INVALID_VALUE 1
#define MP_RT_NO_MEMORY 2
#define MP_RT_NOT_READY 600
#define MP_RT_NOT_SUPPORTED 801
#define MP_RT_UPDATE_FAILURE 910

/* Streams that nobody created. */
#define MP_RT_STREAM_LEGACY ((mp_rt_stream)1)
#define MP_RT_STREAM_PER_THREAD ((mp_rt_stream)2)

enum mp_rt_copy {
    MP_RT_HOST_TO_HOST,
    MP_RT_HOST_TO_DEVICE,
    MP_RT_DEVICE_TO_HOST,
    MP_RT_DEVICE_TO_DEVICE,
    MP_RT_COPY_DEFAULT, /* the addresses say it */
};

struct mp_rt_dim {
    unsigned x, y, z;
};

/* cudaLaunchConfig_t */
struct mp_rt_launch {
    struct mp_rt_dim grid, block;
    size_t shared_bytes;
    mp_rt_stream stream;
    const void *attributes;
    unsigned attribute_count;
};

/* cudaPointerAttributes, as far as 12.x and 13.x agree. */
#define MP_RT_MEMORY_UNREGISTERED 0
#define MP_RT_MEMORY_HOST 1
#define MP_RT_MEMORY_DEVICE 2
struct mp_rt_pointer {
    int type, device;
    void *device_pointer, *host_pointer;
};

#endif
