/*
 * A CUDA device to compute on; see gpu.h.
 *
 * The image of the kernels is PTX, which the driver compiles when it is loaded: its compiler's
 * words are part of the error, because no other machine may show it again.
 */
#include "engine/gpu.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/cuda_watch.h"

/* More dynamic shared memory than this has to be asked for, per kernel. */
#define SHARED_BYTES_FREE (48u << 10)

/* Of the driver's compiler: options of cuModuleLoadDataEx. */
enum { JIT_ERROR_LOG_BUFFER = 5, JIT_ERROR_LOG_BYTES = 6 };

/* Through which copies of memory that is not pinned go, and how many such pieces there may be. */
#define BOUNCE_BYTES (UINT64_C(64) << 10)
#define PLAIN_MAX 64

struct plain {
    char *address;
    uint64_t bytes; /* mapped */
};

struct mp_gpu {
    const struct mp_cuda *cuda;
    struct mp_cuda_device device;
    struct mp_cuda_life *life;
    mp_cu_context context;
    mp_cu_module module;
    mp_cu_function functions[MP_CUDA_KERNEL_COUNT];
    /* Dynamic shared memory that each kernel may have; grows, under the lock, or the driver could
     * hear of a smaller number last. Relaxed: a thread that sees an old value looks again there. */
    _Atomic uint32_t shared_bytes[MP_CUDA_KERNEL_COUNT];
    pthread_mutex_t shared_lock;

    /* Host memory that could not be pinned. The count only grows, so that 0 needs no lock: who uses
     * a piece got it after the count had changed. */
    _Atomic uint32_t plain_made;
    pthread_mutex_t plain_lock; /* of the pieces, and of the bounce buffer's contents */
    struct plain plain[PLAIN_MAX];
    char *bounce; /* pinned; NULL until it is needed */
};

static enum mp_status check(const struct mp_gpu *gpu, mp_cu_result result, const char *call,
                            const char *object)
{
    return mp_cuda_check_life(gpu->cuda, gpu->life, result, call, object);
}

/* For calls that undo something: the caller's error stays what it was. */
static void undone(const struct mp_gpu *gpu, mp_cu_result result, const char *call)
{
    if (mp_cuda_is_sticky(result))
        mp_cuda_lose(gpu->life, result);
    if (result != MP_CU_SUCCESS && !mp_cuda_known_lost(result))
        mp_log_warn("cuda", "%s failed (%d) while giving something back", call, result);
}

static mp_cu_result make_current(const struct mp_gpu *gpu)
{
    mp_cu_context current = NULL;
    mp_cu_result result;

    mp_cuda_watch_device(gpu->device.id);
    result = gpu->cuda->call.context_get(&current);
    if ((result == MP_CU_SUCCESS && current == gpu->context) || mp_cuda_is_sticky(result))
        return result;
    return gpu->cuda->call.context_set(gpu->context);
}

bool mp_gpu_is_lost(const struct mp_gpu *gpu)
{
    return mp_cuda_lost(gpu->life) != 0;
}

void mp_gpu_lose(struct mp_gpu *gpu)
{
    mp_cuda_lose(gpu->life, MP_CU_ERROR_UNKNOWN);
}

enum mp_status mp_gpu_enter(const struct mp_gpu *gpu)
{
    const int lost = mp_cuda_lost(gpu->life);

    return lost != 0 ? mp_cuda_check(gpu->cuda, lost, "an earlier call", gpu->device.name)
                     : check(gpu, make_current(gpu), "cuCtxSetCurrent", gpu->device.name);
}

/* As mp_gpu_enter(), for what gives back: false where there is no context any more. */
static bool enter_to_undo(const struct mp_gpu *gpu)
{
    mp_cu_result result;

    if (mp_gpu_is_lost(gpu))
        return false;
    result = make_current(gpu);
    undone(gpu, result, "cuCtxSetCurrent");
    return result == MP_CU_SUCCESS;
}

static enum mp_status load_kernels(struct mp_gpu *gpu)
{
    const struct mp_cu_calls *call = &gpu->cuda->call;
    char log[1024] = "";
    int keys[] = { JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BYTES };
    void *values[] = { log, (void *)(uintptr_t)(sizeof(log) - 1) };
    const mp_cu_result result = call->module_load(&gpu->module, mp_cuda_image, 2, keys, values);
    enum mp_status status = MP_OK;

    log[sizeof(log) - 1] = '\0';
    if (result != MP_CU_SUCCESS && log[0] != '\0')
        mp_log_warn("cuda", "compiling the kernels: %s", log);
    if (result != MP_CU_SUCCESS)
        return check(gpu, result, "cuModuleLoadDataEx", "the kernels");
    for (unsigned k = 0; k < MP_CUDA_KERNEL_COUNT && status == MP_OK; k++) {
        const char *name = mp_cuda_kernel_name((enum mp_cuda_kernel)k);

        status = check(gpu, call->module_function(&gpu->functions[k], gpu->module, name),
                       "cuModuleGetFunction", name);
    }
    return status;
}

enum mp_status mp_gpu_open(unsigned ordinal, struct mp_gpu **gpu_p)
{
    const struct mp_cuda *cuda;
    struct mp_cuda_device device;
    struct mp_gpu *gpu;
    enum mp_status status = mp_cuda_get(&cuda);

    if (status == MP_OK && ordinal >= cuda->devices)
        return mp_fail(MP_ERR_CONFIG, "E_CUDA_DEVICE",
                       "there is no CUDA device %u; the driver sees %u", ordinal, cuda->devices);
    if (status == MP_OK)
        status = mp_cuda_describe(cuda, ordinal, &device);
    if (status != MP_OK)
        return status;
    gpu = calloc(1, sizeof(*gpu));
    if (gpu == NULL)
        return mp_fail_no_memory("the CUDA device", sizeof(*gpu));
    gpu->cuda = cuda;
    gpu->device = device;
    gpu->life = mp_cuda_life_get(device.id);
    pthread_mutex_init(&gpu->plain_lock, NULL);
    pthread_mutex_init(&gpu->shared_lock, NULL);
    status = check(gpu, cuda->call.context_retain(&gpu->context, device.id),
                   "cuDevicePrimaryCtxRetain", device.name);
    if (status != MP_OK) {
        pthread_mutex_destroy(&gpu->shared_lock);
        pthread_mutex_destroy(&gpu->plain_lock);
        mp_cuda_life_put(gpu->life);
        free(gpu);
        return status;
    }
    status = mp_gpu_enter(gpu);
    if (status == MP_OK)
        status = load_kernels(gpu);
    if (status != MP_OK) {
        mp_gpu_close(gpu);
        return status;
    }
    *gpu_p = gpu;
    return MP_OK;
}

void mp_gpu_close(struct mp_gpu *gpu)
{
    if (gpu == NULL)
        return;
    if (gpu->bounce != NULL && enter_to_undo(gpu))
        undone(gpu, gpu->cuda->call.host_free(gpu->bounce), "cuMemFreeHost");
    if (gpu->module != NULL && enter_to_undo(gpu))
        undone(gpu, gpu->cuda->call.module_unload(gpu->module), "cuModuleUnload");
    if (mp_cuda_lost(gpu->life) == 0)
        undone(gpu, gpu->cuda->call.context_release(gpu->device.id), "cuDevicePrimaryCtxRelease");
    mp_cuda_life_put(gpu->life);
    pthread_mutex_destroy(&gpu->shared_lock);
    pthread_mutex_destroy(&gpu->plain_lock);
    free(gpu);
}

const struct mp_cuda *mp_gpu_driver(const struct mp_gpu *gpu)
{
    return gpu->cuda;
}

const struct mp_cuda_device *mp_gpu_device(const struct mp_gpu *gpu)
{
    return &gpu->device;
}

/* ---- memory */

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
    status =
        check(gpu, gpu->cuda->call.alloc(&address, bytes > 0 ? bytes : 1), "cuMemAlloc", object);
    if (status != MP_OK)
        return status;
    status = clear_new(gpu, address, bytes, &busy);
    if (status != MP_OK) {
        if (busy)
            mp_log_error("cuda", "%s stay in use: the device does not answer", object);
        else
            mp_gpu_free(gpu, address);
        return status;
    }
    *address_p = address;
    return MP_OK;
}

void mp_gpu_free(struct mp_gpu *gpu, mp_cu_ptr address)
{
    if (address != 0 && enter_to_undo(gpu))
        undone(gpu, gpu->cuda->call.free(address), "cuMemFree");
}

/*
 * Memory that is not pinned, in the place of memory that could not be: what is copied to and from
 * it goes through a small pinned buffer, and is waited for. False: that is not to be had either.
 */
static bool alloc_plain(struct mp_gpu *gpu, uint64_t bytes, void **address_p)
{
    struct plain *free_one = NULL;
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
    for (unsigned i = 0; i < PLAIN_MAX && free_one == NULL; i++) {
        if (gpu->plain[i].address == NULL)
            free_one = &gpu->plain[i];
    }
    if (gpu->bounce != NULL && free_one != NULL)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
        *free_one = (struct plain){ .address = memory, .bytes = bytes };
        atomic_fetch_add_explicit(&gpu->plain_made, 1, memory_order_relaxed);
        *address_p = memory;
    }
    pthread_mutex_unlock(&gpu->plain_lock);
    return memory != MAP_FAILED;
}

/* The piece in which `address` lies; NULL: it is pinned, or nothing of ours. */
static struct plain *find_plain_locked(struct mp_gpu *gpu, const void *address)
{
    for (unsigned i = 0; i < PLAIN_MAX; i++) {
        struct plain *p = &gpu->plain[i];

        if (p->address != NULL && (uintptr_t)address - (uintptr_t)p->address < p->bytes)
            return p;
    }
    return NULL;
}

static bool free_plain(struct mp_gpu *gpu, void *address)
{
    struct plain found = { NULL, 0 }, *p;

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
    for (uint64_t at = 0; *done_p && at < bytes && status == MP_OK; at += BOUNCE_BYTES) {
        const uint64_t part = bytes - at < BOUNCE_BYTES ? bytes - at : BOUNCE_BYTES;

        if (upload) {
            memcpy(gpu->bounce, host + at, part);
            status = check(gpu, call->copy_to_device(device + at, gpu->bounce, part, stream),
                           "cuMemcpyHtoDAsync", gpu->device.name);
        } else {
            status = check(gpu, call->copy_to_host(gpu->bounce, device + at, part, stream),
                           "cuMemcpyDtoHAsync", gpu->device.name);
        }
        if (status == MP_OK)
            status = finish_bounce(gpu, stream);
        if (status == MP_OK && !upload)
            memcpy(host + at, gpu->bounce, part);
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
    status = check(gpu, result, "cuMemHostAlloc", object);
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
    if (address != NULL && !free_plain(gpu, address) && enter_to_undo(gpu))
        undone(gpu, gpu->cuda->call.host_free(address), "cuMemFreeHost");
}

/* ---- streams and events */

enum mp_status mp_gpu_stream_open(struct mp_gpu *gpu, mp_cu_stream *stream_p)
{
    enum mp_status status = mp_gpu_enter(gpu);

    if (status == MP_OK)
        status = check(gpu, gpu->cuda->call.stream_create(stream_p, MP_CU_STREAM_NON_BLOCKING, 0),
                       "cuStreamCreateWithPriority", gpu->device.name);
    return status;
}

void mp_gpu_stream_close(struct mp_gpu *gpu, mp_cu_stream stream)
{
    if (stream != NULL && enter_to_undo(gpu))
        undone(gpu, gpu->cuda->call.stream_destroy(stream), "cuStreamDestroy");
}

enum mp_status mp_gpu_finish(struct mp_gpu *gpu, mp_cu_stream stream)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    return status != MP_OK ? status
                           : check(gpu, gpu->cuda->call.stream_synchronize(stream),
                                   "cuStreamSynchronize", gpu->device.name);
}

enum mp_status mp_gpu_event_open(struct mp_gpu *gpu, bool timing, mp_cu_event *event_p)
{
    const unsigned flags = MP_CU_EVENT_BLOCKING_SYNC | (timing ? 0 : MP_CU_EVENT_DISABLE_TIMING);
    const enum mp_status status = mp_gpu_enter(gpu);

    return status != MP_OK ? status
                           : check(gpu, gpu->cuda->call.event_create(event_p, flags),
                                   "cuEventCreate", gpu->device.name);
}

void mp_gpu_event_close(struct mp_gpu *gpu, mp_cu_event event)
{
    if (event != NULL && enter_to_undo(gpu))
        undone(gpu, gpu->cuda->call.event_destroy(event), "cuEventDestroy");
}

enum mp_status mp_gpu_record(struct mp_gpu *gpu, mp_cu_event event, mp_cu_stream stream)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    return status != MP_OK ? status
                           : check(gpu, gpu->cuda->call.event_record(event, stream),
                                   "cuEventRecord", gpu->device.name);
}

enum mp_status mp_gpu_wait(struct mp_gpu *gpu, mp_cu_event event)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    return status != MP_OK ? status
                           : check(gpu, gpu->cuda->call.event_synchronize(event),
                                   "cuEventSynchronize", gpu->device.name);
}

enum mp_status mp_gpu_order(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_event event)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    return status != MP_OK ? status
                           : check(gpu, gpu->cuda->call.stream_wait_event(stream, event, 0),
                                   "cuStreamWaitEvent", gpu->device.name);
}

enum mp_status mp_gpu_query(struct mp_gpu *gpu, mp_cu_event event, bool *done_p)
{
    const enum mp_status status = mp_gpu_enter(gpu);
    mp_cu_result result;

    if (status != MP_OK)
        return status;
    result = gpu->cuda->call.event_query(event);
    if (result != MP_CU_SUCCESS && result != MP_CU_ERROR_NOT_READY)
        return check(gpu, result, "cuEventQuery", gpu->device.name);
    *done_p = result == MP_CU_SUCCESS;
    return MP_OK;
}

enum mp_status mp_gpu_elapsed(struct mp_gpu *gpu, mp_cu_event start, mp_cu_event end, float *ms_p)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    return status != MP_OK ? status
                           : check(gpu, gpu->cuda->call.event_elapsed(ms_p, start, end),
                                   "cuEventElapsedTime", gpu->device.name);
}

/* ---- work */

enum mp_status mp_gpu_upload(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_ptr dst,
                             const void *src, uint64_t bytes)
{
    enum mp_status status = mp_gpu_enter(gpu);
    bool done = false;

    if (status == MP_OK)
        status = copy_plain(gpu, stream, dst, (char *)(uintptr_t)src, bytes, true, &done);
    if (status == MP_OK && bytes > 0 && !done)
        status = check(gpu, gpu->cuda->call.copy_to_device(dst, src, bytes, stream),
                       "cuMemcpyHtoDAsync", gpu->device.name);
    return status;
}

enum mp_status mp_gpu_download(struct mp_gpu *gpu, mp_cu_stream stream, void *dst, mp_cu_ptr src,
                               uint64_t bytes)
{
    enum mp_status status = mp_gpu_enter(gpu);
    bool done = false;

    if (status == MP_OK)
        status = copy_plain(gpu, stream, src, dst, bytes, false, &done);
    if (status == MP_OK && bytes > 0 && !done)
        status = check(gpu, gpu->cuda->call.copy_to_host(dst, src, bytes, stream),
                       "cuMemcpyDtoHAsync", gpu->device.name);
    return status;
}

enum mp_status mp_gpu_copy(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_ptr dst, mp_cu_ptr src,
                           uint64_t bytes)
{
    enum mp_status status = mp_gpu_enter(gpu);

    if (status == MP_OK && bytes > 0)
        status = check(gpu, gpu->cuda->call.copy_on_device(dst, src, bytes, stream),
                       "cuMemcpyDtoDAsync", gpu->device.name);
    return status;
}

enum mp_status mp_gpu_clear(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_ptr dst, uint64_t bytes)
{
    enum mp_status status = mp_gpu_enter(gpu);

    if (status == MP_OK && bytes > 0)
        status = check(gpu, gpu->cuda->call.set_bytes(dst, 0, bytes, stream), "cuMemsetD8Async",
                       gpu->device.name);
    return status;
}

static enum mp_status allow_shared(struct mp_gpu *gpu, enum mp_cuda_kernel kernel, uint32_t bytes)
{
    _Atomic uint32_t *allowed = &gpu->shared_bytes[kernel];
    enum mp_status status = MP_OK;

    if (bytes <= SHARED_BYTES_FREE || bytes <= atomic_load_explicit(allowed, memory_order_relaxed))
        return MP_OK;
    pthread_mutex_lock(&gpu->shared_lock);
    if (bytes > atomic_load_explicit(allowed, memory_order_relaxed)) {
        status = check(gpu,
                       gpu->cuda->call.function_set(gpu->functions[kernel],
                                                    MP_CU_FUNCTION_SHARED_BYTES_MAX, (int)bytes),
                       "cuFuncSetAttribute", mp_cuda_kernel_name(kernel));
        if (status == MP_OK)
            atomic_store_explicit(allowed, bytes, memory_order_relaxed);
    }
    pthread_mutex_unlock(&gpu->shared_lock);
    return status;
}

enum mp_status mp_gpu_launch(struct mp_gpu *gpu, mp_cu_stream stream, enum mp_cuda_kernel kernel,
                             const void *params)
{
    const struct mp_cuda_grid grid = mp_cuda_kernel_grid(kernel, params);
    void *parameters[] = { (void *)(uintptr_t)params }; /* the driver reads them during the call */
    enum mp_status status;

    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return MP_OK;
    status = mp_gpu_enter(gpu);
    if (status == MP_OK)
        status = allow_shared(gpu, kernel, grid.shared_bytes);
    if (status == MP_OK)
        status = check(gpu,
                       gpu->cuda->call.launch(gpu->functions[kernel], grid.x, grid.y, grid.z,
                                              grid.threads, 1, 1, grid.shared_bytes, stream,
                                              parameters, NULL),
                       "cuLaunchKernel", mp_cuda_kernel_name(kernel));
    return status;
}

/* ---- graphs */

enum mp_status mp_gpu_capture_begin(struct mp_gpu *gpu, mp_cu_stream stream)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    return status != MP_OK
               ? status
               : check(gpu, gpu->cuda->call.capture_begin(stream, MP_CU_CAPTURE_THREAD_LOCAL),
                       "cuStreamBeginCapture", gpu->device.name);
}

enum mp_status mp_gpu_capture_end(struct mp_gpu *gpu, mp_cu_stream stream,
                                  mp_cu_graph_exec *graph_p)
{
    const struct mp_cu_calls *call = &gpu->cuda->call;
    mp_cu_graph graph = NULL;
    mp_cu_graph_exec exec = NULL;
    enum mp_status status = mp_gpu_enter(gpu);

    if (status == MP_OK)
        status =
            check(gpu, call->capture_end(stream, &graph), "cuStreamEndCapture", gpu->device.name);
    if (status != MP_OK)
        return status;
    status = check(gpu, call->graph_instantiate(&exec, graph, 0), "cuGraphInstantiate",
                   gpu->device.name);
    if (graph != NULL && mp_cuda_lost(gpu->life) == 0)
        undone(gpu, call->graph_destroy(graph), "cuGraphDestroy");
    if (status == MP_OK)
        *graph_p = exec;
    return status;
}

enum mp_status mp_gpu_replay(struct mp_gpu *gpu, mp_cu_stream stream, mp_cu_graph_exec graph)
{
    const enum mp_status status = mp_gpu_enter(gpu);

    return status != MP_OK ? status
                           : check(gpu, gpu->cuda->call.graph_launch(graph, stream),
                                   "cuGraphLaunch", gpu->device.name);
}

void mp_gpu_graph_close(struct mp_gpu *gpu, mp_cu_graph_exec graph)
{
    if (graph != NULL && enter_to_undo(gpu))
        undone(gpu, gpu->cuda->call.graph_exec_destroy(graph), "cuGraphExecDestroy");
}
