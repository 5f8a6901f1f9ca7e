/*
 * How a runtime library finds the driver: one symbol by dlsym(), all others through that.
 *
 * Names are asked for without the suffix of their version; which one a caller gets, the version
 * that it names decides. Of what is here no two versions exist, so the table is one of names. The
 * variants for per-thread default streams are the same functions: stream 0 is nobody's here.
 */
#include <string.h>

#include "tests/device/fakecuda/stream.h"

#define NOT_FOUND 1 /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
#define FLAGS (1ull | 2ull)

mp_cu_result cuGetProcAddress_v2(const char *name, void **function, int version,
                                 unsigned long long flags, int *status);
mp_cu_result cuGetProcAddress(const char *name, void **function, int version,
                              unsigned long long flags);
mp_cu_result cuFuncGetParamInfo(mp_cu_function function, size_t index, size_t *offset,
                                size_t *bytes);
mp_cu_result cuPointerGetAttribute(void *value, int attribute, mp_cu_ptr address);
mp_cu_result cuCtxGetDevice(mp_cu_device *device);
mp_cu_result cuCtxSynchronize(void);
mp_cu_result cuDevicePrimaryCtxReset_v2(mp_cu_device device);
mp_cu_result cuMemAllocAsync(mp_cu_ptr *address, size_t bytes, mp_cu_stream stream);
mp_cu_result cuMemFreeAsync(mp_cu_ptr address, mp_cu_stream stream);

static const struct {
    const char *name;
    void (*function)(void);
} table[] = {
#define X(member, name, parameters, arguments) { #name, (void (*)(void))name },
    MP_CU_CALL_MAP(X)
#undef X
        { "cuGetProcAddress_v2", (void (*)(void))cuGetProcAddress_v2 },
    { "cuFuncGetParamInfo", (void (*)(void))cuFuncGetParamInfo },
    { "cuPointerGetAttribute", (void (*)(void))cuPointerGetAttribute },
    { "cuCtxGetDevice", (void (*)(void))cuCtxGetDevice },
    { "cuCtxSynchronize", (void (*)(void))cuCtxSynchronize },
    { "cuDevicePrimaryCtxReset_v2", (void (*)(void))cuDevicePrimaryCtxReset_v2 },
    { "cuMemAllocAsync", (void (*)(void))cuMemAllocAsync },
    { "cuMemFreeAsync", (void (*)(void))cuMemFreeAsync },
};

/* "cuMemAlloc" is "cuMemAlloc_v2". */
static bool is_name(const char *exact, const char *asked)
{
    const size_t length = strlen(asked);

    return strncmp(exact, asked, length) == 0 &&
           (exact[length] == '\0' || strcmp(exact + length, "_v2") == 0);
}

FAKE_EXPORT mp_cu_result cuGetProcAddress_v2(const char *name, void **function, int version,
                                             unsigned long long flags, int *status)
{
    if (name == NULL || function == NULL || version < 2000 || (flags & ~FLAGS) != 0)
        return MP_CU_ERROR_INVALID_VALUE;
    *function = NULL;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (is_name(table[i].name, name)) {
            memcpy(function, &table[i].function, sizeof(*function));
            break;
        }
    }
    if (status != NULL)
        *status = *function != NULL ? 0 : NOT_FOUND;
    return *function != NULL ? MP_CU_SUCCESS : MP_CU_ERROR_NOT_FOUND;
}

FAKE_EXPORT mp_cu_result cuGetProcAddress(const char *name, void **function, int version,
                                          unsigned long long flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

FAKE_EXPORT mp_cu_result cuFuncGetParamInfo(mp_cu_function function, size_t index, size_t *offset,
                                            size_t *bytes)
{
    const struct fake_function *f;
    int result = MP_CU_SUCCESS;

    pthread_mutex_lock(&fake.lock);
    f = fake_object_quietly(FAKE_FUNCTION, (uintptr_t)function);
    if (f == NULL || index >= f->param_count || offset == NULL) {
        result = f == NULL ? MP_CU_ERROR_INVALID_HANDLE : MP_CU_ERROR_INVALID_VALUE;
    } else {
        *offset = f->param_offsets[index];
        if (bytes != NULL)
            *bytes = f->param_sizes[index];
    }
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* CU_POINTER_ATTRIBUTE_MEMORY_TYPE: of the host (1) or of a device (2). */
FAKE_EXPORT mp_cu_result cuPointerGetAttribute(void *value, int attribute, mp_cu_ptr address)
{
    const struct fake_region *region;
    int result = MP_CU_ERROR_INVALID_VALUE;

    if (value == NULL || attribute != 2)
        return result;
    pthread_mutex_lock(&fake.lock);
    region = fake_region_at(address);
    if (region != NULL) {
        *(unsigned *)value = region->host_memory ? 1 : 2;
        result = MP_CU_SUCCESS;
    }
    pthread_mutex_unlock(&fake.lock);
    return result;
}

FAKE_EXPORT mp_cu_result cuCtxGetDevice(mp_cu_device *device)
{
    if (device == NULL || fake_current == 0)
        return device == NULL ? MP_CU_ERROR_INVALID_VALUE : MP_CU_ERROR_INVALID_CONTEXT;
    *device = (mp_cu_device)(fake_current - 1);
    return MP_CU_SUCCESS;
}

/* The host sees the end of all that is queued now. */
FAKE_EXPORT mp_cu_result cuCtxSynchronize(void)
{
    int result = fake_current != 0 ? MP_CU_SUCCESS : MP_CU_ERROR_INVALID_CONTEXT;

    pthread_mutex_lock(&fake.lock);
    for (unsigned s = 0; s < FAKE_STREAMS_MAX && result == MP_CU_SUCCESS; s++) {
        struct fake_stream *stream = &fake_streams[s];

        if (stream->used && stream->capture == NULL)
            result = fake_see_end(&stream->clock, s, stream->queued, true);
        if (result == MP_CU_SUCCESS && stream->used && stream->capture == NULL)
            result = fake_report(stream, stream->queued);
    }
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* Ends everything of the device; what the program mapped itself is to be gone by then, because
 * nobody says what becomes of it. Of several devices, events, modules and graphs of this one stay.
 */
FAKE_EXPORT mp_cu_result cuDevicePrimaryCtxReset_v2(mp_cu_device device)
{
    unsigned handles = 0;

    pthread_mutex_lock(&fake.lock);
    if (!fake.initialised || device < 0 || (unsigned)device >= fake.devices) {
        pthread_mutex_unlock(&fake.lock);
        return MP_CU_ERROR_INVALID_DEVICE;
    }
    for (size_t i = 0; i < FAKE_TABLE_MAX; i++)
        handles += fake.memories[i].used &&
                   (fake.devices == 1 || (fake.memories[i].location.type == MP_CU_LOCATION_DEVICE &&
                                          fake.memories[i].location.id == device));
    if (handles > 0)
        fake_violation("the device is reset with %u handles of memory", handles);
    if (fake.devices == 1) {
        fake_clear_streams();
        fake_clear_memory();
        fake.found += fake.lost != 0;
        fake.lost = 0;
    } else {
        fake_clear_streams_of((unsigned)device);
        fake_clear_memory_of((unsigned)device);
    }
    fake.retained[device] = 0;
    pthread_mutex_unlock(&fake.lock);
    return MP_CU_SUCCESS;
}

/* Pools: at once, and after all that the stream has. */
FAKE_EXPORT mp_cu_result cuMemAllocAsync(mp_cu_ptr *address, size_t bytes, mp_cu_stream stream)
{
    (void)stream;
    return cuMemAlloc_v2(address, bytes);
}

FAKE_EXPORT mp_cu_result cuMemFreeAsync(mp_cu_ptr address, mp_cu_stream stream)
{
    const mp_cu_result result = cuStreamSynchronize(stream);

    return result == MP_CU_SUCCESS ? cuMemFree_v2(address) : result;
}
