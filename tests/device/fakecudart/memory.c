/*
 * Memory, copies, fills.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/device/fakecudart/fakecudart.h"

/* Memory that the driver knows goes by itself. */
static bool is_known(const void *address)
{
    unsigned type;

    return rt.pointer(&type, 2, (uintptr_t)address) == MP_CU_SUCCESS;
}

static bool is_host(const void *address)
{
    unsigned type;

    return rt.pointer(&type, 2, (uintptr_t)address) != MP_CU_SUCCESS || type == MP_RT_MEMORY_HOST;
}

RT_EXPORT mp_rt_error cudaMalloc(void **address, size_t bytes)
{
    mp_cu_ptr place = 0;
    mp_rt_error error;

    RT_BEGIN();
    if (address == NULL)
        return rt_end(MP_RT_INVALID_VALUE);
    *address = NULL;
    if (bytes == 0)
        return MP_RT_SUCCESS;
    error = rt.cu.alloc(&place, bytes);
    if (error == MP_RT_SUCCESS)
        *address = (void *)(uintptr_t)place;
    return rt_end(error);
}

/* Managed memory is pinned memory of the host here. */
#define MANAGED_MAX 64
static void *managed[MANAGED_MAX];

static bool take_managed(void *address)
{
    bool found = false;

    pthread_mutex_lock(&rt.lock);
    for (unsigned i = 0; i < MANAGED_MAX && !found; i++) {
        found = managed[i] == address;
        managed[i] = found ? NULL : managed[i];
    }
    pthread_mutex_unlock(&rt.lock);
    return found;
}

/* Waits for the device, as the real one does. */
RT_EXPORT mp_rt_error cudaFree(void *address)
{
    mp_rt_error error;

    RT_BEGIN();
    if (address == NULL)
        return MP_RT_SUCCESS;
    error = rt_synchronize();
    if (error == MP_RT_SUCCESS)
        error = take_managed(address) ? rt.cu.host_free(address) : rt.cu.free((uintptr_t)address);
    return rt_end(error);
}

RT_EXPORT mp_rt_error cudaMallocAsync(void **address, size_t bytes, mp_rt_stream stream)
{
    mp_cu_stream s = NULL;
    mp_cu_ptr place = 0;
    mp_rt_error error;

    RT_BEGIN();
    error = rt_stream(stream, &s);
    if (error == MP_RT_SUCCESS)
        error = rt.alloc_async(&place, bytes, s);
    if (error == MP_RT_SUCCESS)
        *address = (void *)(uintptr_t)place;
    return rt_end(error);
}

RT_EXPORT mp_rt_error cudaFreeAsync(void *address, mp_rt_stream stream)
{
    mp_cu_stream s = NULL;
    mp_rt_error error;

    RT_BEGIN();
    error = rt_stream(stream, &s);
    return rt_end(error == MP_RT_SUCCESS ? rt.free_async((uintptr_t)address, s) : error);
}

RT_EXPORT mp_rt_error cudaHostAlloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    RT_BEGIN();
    return rt_end(rt.cu.host_alloc(address, bytes, MP_CU_HOST_PORTABLE | MP_CU_HOST_DEVICE_MAP));
}

RT_EXPORT mp_rt_error cudaMallocHost(void **address, size_t bytes)
{
    return cudaHostAlloc(address, bytes, 0);
}

RT_EXPORT mp_rt_error cudaFreeHost(void *address)
{
    mp_rt_error error;

    RT_BEGIN();
    error = rt_synchronize();
    return rt_end(error != MP_RT_SUCCESS ? error : rt.cu.host_free(address));
}

RT_EXPORT mp_rt_error cudaMallocManaged(void **address, size_t bytes, unsigned flags)
{
    const mp_rt_error error = cudaHostAlloc(address, bytes, flags);
    unsigned i = 0;

    pthread_mutex_lock(&rt.lock);
    while (error == MP_RT_SUCCESS && i < MANAGED_MAX && managed[i] != NULL)
        i++;
    if (error == MP_RT_SUCCESS && i < MANAGED_MAX)
        managed[i] = *address;
    pthread_mutex_unlock(&rt.lock);
    return error;
}

RT_EXPORT mp_rt_error cudaHostRegister(void *address, size_t bytes, unsigned flags)
{
    (void)flags;
    RT_BEGIN();
    return rt_end(rt.cu.host_register(address, bytes, MP_CU_HOST_PORTABLE | MP_CU_HOST_DEVICE_MAP));
}

RT_EXPORT mp_rt_error cudaHostUnregister(void *address)
{
    RT_BEGIN();
    return rt_end(rt.cu.host_unregister(address));
}

RT_EXPORT mp_rt_error cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    RT_BEGIN();
    return rt_end(rt.cu.memory_info(free_bytes, total_bytes));
}

RT_EXPORT mp_rt_error cudaPointerGetAttributes(struct mp_rt_pointer *out, const void *address)
{
    unsigned type = 0;

    RT_BEGIN();
    if (rt.pointer(&type, 2, (uintptr_t)address) != MP_CU_SUCCESS)
        type = MP_RT_MEMORY_UNREGISTERED;
    *out = (struct mp_rt_pointer){ .type = (int)type, .device = rt_device() };
    out->device_pointer = type != MP_RT_MEMORY_UNREGISTERED ? (void *)(uintptr_t)address : NULL;
    out->host_pointer = type == MP_RT_MEMORY_HOST ? (void *)(uintptr_t)address : NULL;
    return MP_RT_SUCCESS;
}

/* ---- copies */

static mp_rt_error copy_pageable(void *dst, const void *src, size_t bytes, bool up,
                                 mp_cu_stream stream)
{
    void *buffer = NULL;
    mp_rt_error error = rt.cu.host_alloc(&buffer, bytes, MP_CU_HOST_PORTABLE), freed;

    if (error != MP_RT_SUCCESS)
        return error;
    if (up) {
        memcpy(buffer, src, bytes);
        error = rt.cu.copy_to_device((uintptr_t)dst, buffer, bytes, stream);
    } else {
        error = rt.cu.copy_to_host(buffer, (uintptr_t)src, bytes, stream);
    }
    if (error == MP_RT_SUCCESS)
        error = rt.cu.stream_synchronize(stream);
    if (error == MP_RT_SUCCESS && !up)
        memcpy(dst, buffer, bytes);
    freed = rt.cu.host_free(buffer);
    return error != MP_RT_SUCCESS ? error : freed;
}

static enum mp_rt_copy direction(const void *dst, const void *src, enum mp_rt_copy kind)
{
    if (kind != MP_RT_COPY_DEFAULT)
        return kind;
    if (is_host(src))
        return is_host(dst) && !is_known(dst) ? MP_RT_HOST_TO_HOST : MP_RT_HOST_TO_DEVICE;
    return is_host(dst) && !is_known(dst) ? MP_RT_DEVICE_TO_HOST : MP_RT_DEVICE_TO_DEVICE;
}

static mp_rt_error copy(void *dst, const void *src, size_t bytes, enum mp_rt_copy kind,
                        mp_cu_stream stream)
{
    switch (direction(dst, src, kind)) {
    case MP_RT_HOST_TO_DEVICE:
        return is_known(src) ? rt.cu.copy_to_device((uintptr_t)dst, src, bytes, stream)
                             : copy_pageable(dst, src, bytes, true, stream);
    case MP_RT_DEVICE_TO_HOST:
        return is_known(dst) ? rt.cu.copy_to_host(dst, (uintptr_t)src, bytes, stream)
                             : copy_pageable(dst, src, bytes, false, stream);
    case MP_RT_DEVICE_TO_DEVICE:
        return rt.cu.copy_on_device((uintptr_t)dst, (uintptr_t)src, bytes, stream);
    default: memcpy(dst, src, bytes); return MP_RT_SUCCESS;
    }
}

RT_EXPORT mp_rt_error cudaMemcpyAsync(void *dst, const void *src, size_t bytes,
                                      enum mp_rt_copy kind, mp_rt_stream stream)
{
    mp_cu_stream s = NULL;
    mp_rt_error error;

    RT_BEGIN();
    error = rt_stream(stream, &s);
    if (error == MP_RT_SUCCESS && bytes > 0)
        error = copy(dst, src, bytes, kind, s);
    return rt_end(error);
}

RT_EXPORT mp_rt_error cudaMemcpy(void *dst, const void *src, size_t bytes, enum mp_rt_copy kind)
{
    mp_cu_stream s = NULL;
    mp_rt_error error;

    RT_BEGIN();
    error = rt_stream(NULL, &s);
    if (error == MP_RT_SUCCESS && bytes > 0)
        error = copy(dst, src, bytes, kind, s);
    if (error == MP_RT_SUCCESS)
        error = rt.cu.stream_synchronize(s);
    return rt_end(error);
}

RT_EXPORT mp_rt_error cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src,
                                        size_t src_pitch, size_t width, size_t height,
                                        enum mp_rt_copy kind, mp_rt_stream stream)
{
    mp_rt_error error = MP_RT_SUCCESS;

    for (size_t row = 0; row < height && error == MP_RT_SUCCESS; row++)
        error = cudaMemcpyAsync((char *)dst + row * dst_pitch, (const char *)src + row * src_pitch,
                                width, kind, stream);
    return error;
}

RT_EXPORT mp_rt_error cudaMemsetAsync(void *dst, int value, size_t bytes, mp_rt_stream stream)
{
    mp_cu_stream s = NULL;
    mp_rt_error error;

    RT_BEGIN();
    error = rt_stream(stream, &s);
    if (error == MP_RT_SUCCESS)
        error = rt.cu.set_bytes((uintptr_t)dst, (unsigned char)value, bytes, s);
    return rt_end(error);
}

RT_EXPORT mp_rt_error cudaMemset(void *dst, int value, size_t bytes)
{
    return cudaMemsetAsync(dst, value, bytes, NULL);
}

/* ---- with the thread's own default stream */

RT_EXPORT mp_rt_error cudaMemcpyAsync_ptsz(void *dst, const void *src, size_t bytes,
                                           enum mp_rt_copy kind, mp_rt_stream stream)
{
    return cudaMemcpyAsync(dst, src, bytes, kind,
                           stream != NULL ? stream : MP_RT_STREAM_PER_THREAD);
}

RT_EXPORT mp_rt_error cudaMemsetAsync_ptsz(void *dst, int value, size_t bytes, mp_rt_stream stream)
{
    return cudaMemsetAsync(dst, value, bytes, stream != NULL ? stream : MP_RT_STREAM_PER_THREAD);
}
