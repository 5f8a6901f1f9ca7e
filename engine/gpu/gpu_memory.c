/*
 * Memory of a device to compute on, pinned memory beside it, and copies between them; see gpu.h.
 * Not the memory of experts, which is a backend's (vmm/backend/cuda).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/gpu/gpu_int.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* Of the pinned buffer through which copies of memory that is not pinned go. */
#define BOUNCE_BYTES (UINT64_C(64) << 10)

/* *busy_p: the end was not seen, so nobody may have this memory again. */
static enum mp_status clear_new(struct mp_gpu *gpu, mp_cu_ptr address, uint64_t bytes, bool *busy_p)
{
    mp_cu_stream stream;
    enum mp_status status = mp_gpu_stream_open(gpu, &stream);
    struct mp_error first;

    *busy_p = false;
    if (status != MP_OK)
        return status;
    status = mp_gpu_clear(gpu, stream, address, bytes);
    if (status == MP_OK) {
        status = mp_gpu_finish(gpu, stream);
        first = *mp_error_last();
        if (status != MP_OK)
            *busy_p = mp_gpu_finish(gpu, stream) != MP_OK;
        if (status != MP_OK)
            mp_error_set(&first);
    }
    if (!*busy_p)
        mp_gpu_stream_close(gpu, stream);
    return status;
}

enum mp_status mp_gpu_alloc(struct mp_gpu *gpu, uint64_t bytes, const char *what,
                            mp_cu_ptr *address_p)
{
    mp_cu_ptr address = 0;
    char object[128];
    bool busy;
    enum mp_status status = mp_gpu_enter(gpu);

    if (status != MP_OK)
        return status;
    snprintf(object, sizeof(object), "%s, %" PRIu64 " bytes", what, bytes);
    status = mp_gpu_check(gpu, gpu->cuda->call.alloc(&address, bytes > 0 ? bytes : 1), "cuMemAlloc",
                          object);
    if (status != MP_OK)
        return status;
    status = clear_new(gpu, address, bytes, &busy);
    if (status != MP_OK) {
        if (busy)
            mp_log_error("cuda", "%s stay in use: the device does not respond", object);
        else
            mp_gpu_free(gpu, address);
        return status;
    }
    *address_p = address;
    return MP_OK;
}

void mp_gpu_free(struct mp_gpu *gpu, mp_cu_ptr address)
{
    if (address != 0 && mp_gpu_enter_to_undo(gpu))
        mp_gpu_undone(gpu, gpu->cuda->call.free(address), "cuMemFree");
}

/*
 * Memory that is not pinned, in the place of memory that could not be: what is copied to and from
 * it goes through a small pinned buffer, and is waited for. False: that is not to be had either.
 */
static bool alloc_plain(struct mp_gpu *gpu, uint64_t bytes, void **address_p)
{
    struct mp_gpu_plain *free_one = NULL;
    void *memory = MAP_FAILED, *bounce = NULL;

    pthread_mutex_lock(&gpu->plain_lock);
    if (gpu->bounce == NULL) {
        const mp_cu_result result =
            gpu->cuda->call.host_alloc(&bounce, BOUNCE_BYTES, MP_CU_HOST_PORTABLE);

        if (result == MP_CU_SUCCESS)
            gpu->bounce = bounce;
        else if (mp_cuda_is_sticky(result))
            mp_cuda_lose(gpu->life, result);
    }
    for (unsigned i = 0; i < MP_GPU_PLAIN_MAX && free_one == NULL; i++) {
        if (gpu->plain[i].address == NULL)
            free_one = &gpu->plain[i];
    }
    if (gpu->bounce != NULL && free_one != NULL)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
        *free_one = (struct mp_gpu_plain){ .address = memory, .bytes = bytes };
        atomic_fetch_add_explicit(&gpu->plain_made, 1, memory_order_relaxed);
        *address_p = memory;
    }
    pthread_mutex_unlock(&gpu->plain_lock);
    return memory != MAP_FAILED;
}

/* The piece in which `address` lies; NULL: it is pinned, or nothing of ours. */
static struct mp_gpu_plain *find_plain_locked(struct mp_gpu *gpu, const void *address)
{
    for (unsigned i = 0; i < MP_GPU_PLAIN_MAX; i++) {
        struct mp_gpu_plain *p = &gpu->plain[i];

        if (p->address != NULL && (uintptr_t)address - (uintptr_t)p->address < p->bytes)
            return p;
    }
    return NULL;
}

static bool free_plain(struct mp_gpu *gpu, void *address)
{
    struct mp_gpu_plain found = { NULL, 0 }, *p;

    if (atomic_load_explicit(&gpu->plain_made, memory_order_relaxed) == 0)
        return false;
    pthread_mutex_lock(&gpu->plain_lock);
    p = find_plain_locked(gpu, address);
    if (p != NULL) {
        found = *p;
        p->address = NULL;
    }
    pthread_mutex_unlock(&gpu->plain_lock);
    if (found.address != NULL)
        munmap(found.address, found.bytes);
    return found.address != NULL;
}

/* Wait for a copy of the bounce buffer. A wait that fails is tried once more: the buffer is used
 * again, so nothing may be left that reads or writes it. */
static enum mp_status finish_bounce(struct mp_gpu *gpu, mp_cu_stream stream)
{
    const enum mp_status status = mp_gpu_finish(gpu, stream);
    const struct mp_error first = *mp_error_last();

    if (status == MP_OK)
        return MP_OK;
    if (mp_gpu_finish(gpu, stream) != MP_OK)
        mp_gpu_lose(gpu);
    mp_error_set(&first);
    return status;
}

/* Is this memory not pinned? Then it is copied here and now, in the stream's order; *done_p. */
static enum mp_status copy_plain(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_ptr device,
                                 char *host, uint64_t bytes, bool upload, bool *done_p)
{
    const struct mp_cu_calls *call = &gpu->cuda->call;
    enum mp_status status = MP_OK;

    *done_p = false;
    if (atomic_load_explicit(&gpu->plain_made, memory_order_relaxed) == 0)
        return MP_OK;
    pthread_mutex_lock(&gpu->plain_lock);
    *done_p = find_plain_locked(gpu, host) != NULL;
    if (*done_p) {
        for (uint64_t at = 0; at < bytes && status == MP_OK; at += BOUNCE_BYTES) {
            const uint64_t part = bytes - at < BOUNCE_BYTES ? bytes - at : BOUNCE_BYTES;

            if (upload) {
                memcpy(gpu->bounce, host + at, part);
                status =
                    mp_gpu_check(gpu, call->copy_to_device(device + at, gpu->bounce, part, stream),
                                 "cuMemcpyHtoDAsync", gpu->device.name);
            } else {
                status =
                    mp_gpu_check(gpu, call->copy_to_host(gpu->bounce, device + at, part, stream),
                                 "cuMemcpyDtoHAsync", gpu->device.name);
            }
            if (status == MP_OK)
                status = finish_bounce(gpu, stream);
            if (status == MP_OK && !upload)
                memcpy(host + at, gpu->bounce, part);
        }
    }
    pthread_mutex_unlock(&gpu->plain_lock);
    return status;
}

enum mp_status mp_gpu_alloc_host(struct mp_gpu *gpu, uint64_t bytes, const char *what,
                                 void **address_p)
{
    void *address = NULL;
    char object[128];
    mp_cu_result result;
    enum mp_status status = mp_gpu_enter(gpu);

    if (status != MP_OK)
        return status;
    snprintf(object, sizeof(object), "%s, %" PRIu64 " bytes of pinned memory", what, bytes);
    result = gpu->cuda->call.host_alloc(&address, bytes > 0 ? bytes : 1,
                                        MP_CU_HOST_PORTABLE | MP_CU_HOST_DEVICE_MAP);
    status = mp_gpu_check(gpu, result, "cuMemHostAlloc", object);
    if (status == MP_OK) {
        memset(address, 0, bytes);
    } else {
        if (mp_cuda_is_sticky(result) || !alloc_plain(gpu, bytes > 0 ? bytes : 1, &address))
            return status;
        mp_log_once(MP_LOG_WARN, "cuda",
                    "%s; memory that is not pinned takes its place, and what is copied there is "
                    "waited for",
                    mp_error_last()->text);
        mp_error_clear();
    }
    *address_p = address;
    return MP_OK;
}

void mp_gpu_free_host(struct mp_gpu *gpu, void *address)
{
    if (address != NULL && !free_plain(gpu, address) && mp_gpu_enter_to_undo(gpu))
        mp_gpu_undone(gpu, gpu->cuda->call.host_free(address), "cuMemFreeHost");
}

enum mp_status mp_gpu_upload(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_ptr dst,
                             const void *src, uint64_t bytes)
{
    enum mp_status status = mp_gpu_enter(gpu);
    bool done = false;

    mp_gpu_chain_cut(gpu, stream);
    if (status == MP_OK)
        status = copy_plain(gpu, stream, dst, (char *)(uintptr_t)src, bytes, true, &done);
    if (status == MP_OK && bytes > 0 && !done)
        status = mp_gpu_check(gpu, gpu->cuda->call.copy_to_device(dst, src, bytes, stream),
                              "cuMemcpyHtoDAsync", gpu->device.name);
    return status;
}

enum mp_status mp_gpu_download(struct mp_gpu *gpu, mp_cu_stream stream, void *dst, mp_cu_ptr src,
                               uint64_t bytes)
{
    enum mp_status status = mp_gpu_enter(gpu);
    bool done = false;

    mp_gpu_chain_cut(gpu, stream);
    if (status == MP_OK)
        status = copy_plain(gpu, stream, src, dst, bytes, false, &done);
    if (status == MP_OK && bytes > 0 && !done)
        status = mp_gpu_check(gpu, gpu->cuda->call.copy_to_host(dst, src, bytes, stream),
                              "cuMemcpyDtoHAsync", gpu->device.name);
    return status;
}

enum mp_status mp_gpu_copy(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_ptr dst, mp_cu_ptr src,
                           uint64_t bytes)
{
    enum mp_status status = mp_gpu_enter(gpu);

    mp_gpu_chain_cut(gpu, stream);
    if (status == MP_OK && bytes > 0)
        status = mp_gpu_check(gpu, gpu->cuda->call.copy_on_device(dst, src, bytes, stream),
                              "cuMemcpyDtoDAsync", gpu->device.name);
    return status;
}

enum mp_status mp_gpu_clear(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_ptr dst, uint64_t bytes)
{
    enum mp_status status = mp_gpu_enter(gpu);

    mp_gpu_chain_cut(gpu, stream);
    if (status == MP_OK && bytes > 0)
        status = mp_gpu_check(gpu, gpu->cuda->call.set_bytes(dst, 0, bytes, stream),
                              "cuMemsetD8Async", gpu->device.name);
    return status;
}
