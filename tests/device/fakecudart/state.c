/*
 * The runtime's state: driver, devices, streams.
 */
#include <dlfcn.h>
#include <string.h>

#include "tests/device/fakecudart/fakecudart.h"

struct rt_state rt = { .lock = PTHREAD_MUTEX_INITIALIZER };
static __thread int current_device;
static __thread mp_rt_error last_error;
static __thread mp_cu_stream per_thread[RT_DEVICES_MAX];
static __thread unsigned per_thread_resets[RT_DEVICES_MAX]; /* rt.resets when it was made */

typedef mp_cu_result lookup_fn(const char *name, void **function, int version,
                               unsigned long long flags, int *status);

/* Names are asked for without the suffix of their version. */
static bool look_up(lookup_fn *lookup, const char *name, void *function_p)
{
    const size_t length = strlen(name);
    void *function = NULL;
    char asked[64] = "";

    memcpy(asked, name, length);
    if (strcmp(name + length - 3, "_v2") == 0)
        asked[length - 3] = '\0';
    if (lookup(asked, &function, 12020, 0, NULL) != MP_CU_SUCCESS || function == NULL)
        return false;
    memcpy(function_p, &function, sizeof(function));
    return true;
}

/* Whoever had the lock is not here. The driver says that it cannot be used. */
static void in_child(void)
{
    pthread_mutex_init(&rt.lock, NULL);
}

static int find_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *symbol = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    lookup_fn *lookup;
    bool ok = true;

    if (symbol == NULL)
        return -35; /* cudaErrorInsufficientDriver */
    memcpy(&lookup, &symbol, sizeof(symbol));
    if (pthread_atfork(NULL, NULL, in_child) != 0)
        return -MP_RT_NO_MEMORY;
#define X(member, name, parameters, arguments) ok &= look_up(lookup, #name, &rt.cu.member);
    MP_CU_CALL_MAP(X)
#undef X
    ok &= look_up(lookup, "cuPointerGetAttribute", &rt.pointer);
    ok &= look_up(lookup, "cuDevicePrimaryCtxReset_v2", &rt.reset);
    ok &= look_up(lookup, "cuMemAllocAsync", &rt.alloc_async);
    ok &= look_up(lookup, "cuMemFreeAsync", &rt.free_async);
    return ok ? 1 : -35;
}

mp_rt_error rt_begin(void)
{
    mp_rt_error error = MP_RT_SUCCESS;

    pthread_mutex_lock(&rt.lock);
    for (int d = 0; d < RT_DEVICES_MAX; d++) {
        if (per_thread_resets[d] != rt.resets[d])
            per_thread[d] = NULL;
        per_thread_resets[d] = rt.resets[d];
    }
    if (rt.found == 0)
        rt.found = find_driver();
    if (rt.found < 0)
        error = -rt.found;
    else if (rt.contexts[current_device] == NULL)
        error = rt.cu.init(0);
    if (error == MP_RT_SUCCESS && rt.contexts[current_device] == NULL)
        error = rt.cu.context_retain(&rt.contexts[current_device], current_device);
    if (error == MP_RT_SUCCESS)
        error = rt.cu.context_set(rt.contexts[current_device]);
    pthread_mutex_unlock(&rt.lock);
    return error;
}

mp_rt_error rt_end(mp_rt_error error)
{
    if (error != MP_RT_SUCCESS && error != MP_RT_NOT_READY)
        last_error = error;
    return error;
}

int rt_device(void)
{
    return current_device;
}

static mp_rt_error make(mp_cu_stream *stream)
{
    return *stream != NULL ? MP_RT_SUCCESS
                           : rt.cu.stream_create(stream, MP_CU_STREAM_NON_BLOCKING, 0);
}

/* With the lock held, which nobody needs meanwhile: tests have no streams that wait for others. */
static mp_rt_error wait_for_blocking(void)
{
    mp_rt_error error = MP_RT_SUCCESS;

    for (unsigned s = 0; s < RT_STREAMS_MAX && error == MP_RT_SUCCESS; s++) {
        int capturing = 0;

        if (rt.streams[s].stream == NULL || !rt.streams[s].blocking)
            continue;
        error = rt.cu.capturing(rt.streams[s].stream, &capturing);
        if (error == MP_RT_SUCCESS && !capturing)
            error = rt.cu.stream_synchronize(rt.streams[s].stream);
    }
    return error;
}

static bool is_blocking(mp_rt_stream stream)
{
    for (unsigned s = 0; s < RT_STREAMS_MAX; s++) {
        if (rt.streams[s].stream == stream && rt.streams[s].blocking)
            return true;
    }
    return false;
}

mp_rt_error rt_stream(mp_rt_stream stream, mp_cu_stream *stream_p)
{
    mp_cu_stream *legacy = &rt.legacy[current_device];
    mp_rt_error error = MP_RT_SUCCESS;
    int capturing = 0;

    if (stream == MP_RT_STREAM_PER_THREAD) {
        error = make(&per_thread[current_device]);
        *stream_p = per_thread[current_device];
        return error;
    }
    pthread_mutex_lock(&rt.lock);
    if (stream == NULL || stream == MP_RT_STREAM_LEGACY) {
        error = wait_for_blocking();
        if (error == MP_RT_SUCCESS)
            error = make(legacy);
        *stream_p = *legacy;
    } else {
        *stream_p = stream;
        if (*legacy != NULL && is_blocking(stream))
            error = rt.cu.capturing(stream, &capturing);
        if (*legacy != NULL && is_blocking(stream) && error == MP_RT_SUCCESS && !capturing)
            error = rt.cu.stream_synchronize(*legacy);
    }
    pthread_mutex_unlock(&rt.lock);
    return error;
}

mp_rt_error rt_synchronize(void)
{
    mp_rt_error error = MP_RT_SUCCESS;

    pthread_mutex_lock(&rt.lock);
    for (unsigned s = 0; s < RT_STREAMS_MAX && error == MP_RT_SUCCESS; s++) {
        if (rt.streams[s].stream != NULL)
            error = rt.cu.stream_synchronize(rt.streams[s].stream);
    }
    if (error == MP_RT_SUCCESS && rt.legacy[current_device] != NULL)
        error = rt.cu.stream_synchronize(rt.legacy[current_device]);
    pthread_mutex_unlock(&rt.lock);
    if (error == MP_RT_SUCCESS && per_thread[current_device] != NULL)
        error = rt.cu.stream_synchronize(per_thread[current_device]);
    return error;
}

/* ---- calls */

RT_EXPORT mp_rt_error cudaGetDeviceCount(int *count)
{
    RT_BEGIN();
    return rt_end(rt.cu.device_count(count));
}

RT_EXPORT mp_rt_error cudaGetDevice(int *device)
{
    *device = current_device;
    return MP_RT_SUCCESS;
}

RT_EXPORT mp_rt_error cudaSetDevice(int device)
{
    if (device < 0 || device >= RT_DEVICES_MAX)
        return rt_end(101);
    current_device = device;
    return rt_end(rt_begin());
}

RT_EXPORT mp_rt_error cudaDeviceSynchronize(void)
{
    RT_BEGIN();
    return rt_end(rt_synchronize());
}

RT_EXPORT mp_rt_error cudaDeviceReset(void)
{
    mp_rt_error error;

    RT_BEGIN();
    error = rt_synchronize();
    pthread_mutex_lock(&rt.lock);
    if (error == MP_RT_SUCCESS)
        error = rt.reset(current_device);
    if (error == MP_RT_SUCCESS) {
        for (unsigned s = 0; s < RT_STREAMS_MAX; s++) {
            if (rt.streams[s].device == current_device)
                rt.streams[s].stream = NULL;
        }
        rt.legacy[current_device] = NULL;
        rt.contexts[current_device] = NULL;
        rt.resets[current_device]++;
        rt_unload(current_device);
    }
    pthread_mutex_unlock(&rt.lock);
    return rt_end(error);
}

RT_EXPORT mp_rt_error cudaGetLastError(void)
{
    const mp_rt_error error = last_error;

    last_error = MP_RT_SUCCESS;
    return error;
}

RT_EXPORT mp_rt_error cudaPeekAtLastError(void)
{
    return last_error;
}

RT_EXPORT const char *cudaGetErrorString(mp_rt_error error)
{
    const char *text = NULL;

    if (rt.found != 1 || rt.cu.error_string(error, &text) != MP_CU_SUCCESS)
        return "unrecognized error code";
    return text;
}

RT_EXPORT mp_rt_error cudaDeviceEnablePeerAccess(int device, unsigned flags)
{
    (void)flags;
    return rt_end(device == current_device ? 101 : MP_RT_SUCCESS);
}

/* Nothing here is shared with other processes. */
RT_EXPORT mp_rt_error cudaIpcGetMemHandle(void *handle, void *address)
{
    (void)handle;
    (void)address;
    return rt_end(MP_RT_NOT_SUPPORTED);
}
