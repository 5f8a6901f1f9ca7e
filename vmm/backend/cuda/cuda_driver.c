/*
 * Loads the CUDA driver and converts its results to statuses; see cuda_driver.h.
 *
 * A process that was forked after cuInit() cannot use the driver again; it inherits the parent's
 * result, and calls fail with the driver's error (CUDA_ERROR_NOT_INITIALIZED).
 */
#include "vmm/backend/cuda/cuda_driver.h"

#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/backend/cuda/cuda_watchdog.h"

#define LIBRARY "libcuda.so.1"

static struct {
    pthread_once_t once;
    struct mp_cuda cuda;
    struct mp_error error; /* status MP_OK: cuda is ready */
} driver = { .once = PTHREAD_ONCE_INIT };

static const struct {
    const char *name;
    size_t offset;
} calls[] = {
#define X(member, name, parameters, arguments) { #name, offsetof(struct mp_cu_calls, member) },
    MP_CU_CALL_MAP(X)
#undef X
};

static enum mp_status off(const char *why, const char *detail)
{
    return mp_fail(MP_ERR_UNSUPPORTED, "E_CUDA_OFF", "CUDA is off: %s%s", why, detail);
}

/* The driver's word for a result, "unknown result" if it has none. */
static const char *describe(mp_cu_result (*ask)(mp_cu_result, const char **), mp_cu_result result)
{
    const char *text = NULL;

    if (ask == NULL || ask(result, &text) != MP_CU_SUCCESS || text == NULL)
        return "unknown result";
    return text;
}

static enum mp_status load(struct mp_cuda *cuda)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    const char *why;

    if (library == NULL) {
        why = dlerror();
        return off("the driver library cannot be loaded: ", why != NULL ? why : LIBRARY);
    }
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        void *symbol = dlsym(library, calls[i].name);

        if (symbol == NULL)
            return off("the driver is older than 12.2, it has no ", calls[i].name);
        memcpy((char *)&cuda->call + calls[i].offset, &symbol, sizeof(symbol));
    }
    mp_cuda_watchdog_wrap(&cuda->call);
    return MP_OK;
}

/* 700 to 799 are faults of a device, and MP_CU_NOT_RESPONDING; but some only say that what was
 * asked for is so already, or is too much. */
bool mp_cuda_is_sticky(mp_cu_result result)
{
    switch (result) {
    case MP_CU_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case MP_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
    case MP_CU_ERROR_HOST_MEMORY_NOT_REGISTERED: return false;
    default: break;
    }
    return result == MP_CU_ERROR_ECC_UNCORRECTABLE || result == MP_CU_ERROR_DEINITIALIZED ||
           result == MP_CU_ERROR_MPS_RPC_FAILURE || result == MP_CU_ERROR_MPS_CLIENT_TERMINATED ||
           (result >= MP_CU_ERROR_ILLEGAL_ADDRESS && result < MP_CU_ERROR_NOT_PERMITTED);
}

/* What to do about a result, as the end of a sentence. */
static const char *advice(mp_cu_result result)
{
    switch (result) {
    case MP_CU_ERROR_OUT_OF_MEMORY: return "; lower --budget";
    case MP_CU_ERROR_NO_DEVICE: return "; is CUDA_VISIBLE_DEVICES right?";
    case MP_CU_ERROR_MPS_CONNECTION_FAILED:
        return "; is the MPS control daemon running, and is CUDA_MPS_PIPE_DIRECTORY its own?";
    case MP_CU_ERROR_MPS_RPC_FAILURE:
    case MP_CU_ERROR_MPS_SERVER_NOT_READY:
    case MP_CU_ERROR_MPS_CLIENT_TERMINATED:
        return "; the MPS server is recovering: all its clients must exit, this one too";
    case MP_CU_ERROR_MPS_MAX_CLIENTS_REACHED:
    case MP_CU_ERROR_MPS_MAX_CONNECTIONS_REACHED:
        return "; the MPS server takes no more clients: end one of them";
    default: return mp_cuda_is_sticky(result) ? "; the device must be opened anew" : "";
    }
}

static enum mp_status start(struct mp_cuda *cuda)
{
    mp_cu_result result;
    int count = 0;
    enum mp_status status = load(cuda);

    if (status != MP_OK)
        return status;
    result = cuda->call.init(0);
    if (result == MP_CU_SUCCESS)
        result = cuda->call.driver_version(&cuda->version);
    if (result == MP_CU_SUCCESS)
        result = cuda->call.device_count(&count);
    if (result != MP_CU_SUCCESS)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_CUDA_OFF", "CUDA is off: the driver says %s: %s%s",
                       describe(cuda->call.error_name, result),
                       describe(cuda->call.error_string, result), advice(result));
    if (count <= 0)
        return off("the driver sees no device", "");
    cuda->devices = (unsigned)count;
    return MP_OK;
}

static void start_once(void)
{
    const struct mp_error before = *mp_error_last();

    if (start(&driver.cuda) != MP_OK)
        driver.error = *mp_error_last();
    mp_error_set(&before);
}

enum mp_status mp_cuda_get(const struct mp_cuda **cuda_p)
{
    pthread_once(&driver.once, start_once);
    if (driver.error.status != MP_OK) {
        mp_error_set(&driver.error);
        return driver.error.status;
    }
    mp_assert(driver.cuda.devices > 0);
    *cuda_p = &driver.cuda;
    return MP_OK;
}

static atomic_bool known_lost; /* relaxed: a line more or less */

bool mp_cuda_known_lost(mp_cu_result result)
{
    return mp_cuda_is_sticky(result) &&
           atomic_exchange_explicit(&known_lost, true, memory_order_relaxed);
}

enum mp_status mp_cuda_check(const struct mp_cuda *cuda, mp_cu_result result, const char *call,
                             const char *object)
{
    const bool memory = result == MP_CU_ERROR_OUT_OF_MEMORY;
    const bool refused = result == MP_CU_ERROR_NOT_SUPPORTED || result == MP_CU_ERROR_NOT_PERMITTED;
    struct mp_error hang;

    mp_assert(call != NULL && object != NULL);
    if (result == MP_CU_SUCCESS)
        return MP_OK;
    (void)mp_cuda_known_lost(result);
    if (result == MP_CU_NOT_RESPONDING && mp_cuda_watchdog_fired(&hang)) {
        mp_error_set(&hang);
        return hang.status;
    }
    return mp_fail(memory    ? MP_ERR_NO_SPACE
                   : refused ? MP_ERR_UNSUPPORTED
                             : MP_ERR_DEVICE,
                   memory ? "E_CUDA_MEMORY" : "E_CUDA", "%s of %s: %s (%d): %s%s", call, object,
                   describe(cuda->call.error_name, result), result,
                   describe(cuda->call.error_string, result), advice(result));
}

static struct {
    pthread_mutex_t lock; /* of users */
    struct mp_cuda_life of[64];
} lives = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct mp_cuda_life *life_of(mp_cu_device device)
{
    mp_assert(device >= 0);
    return &lives.of[(unsigned)device % MP_ARRAY_LEN(lives.of)];
}

struct mp_cuda_life *mp_cuda_life_get(mp_cu_device device)
{
    struct mp_cuda_life *life = life_of(device);

    pthread_mutex_lock(&lives.lock);
    if (life->users++ == 0)
        atomic_store_explicit(&life->lost, 0, memory_order_relaxed);
    pthread_mutex_unlock(&lives.lock);
    return life;
}

void mp_cuda_life_put(struct mp_cuda_life *life)
{
    pthread_mutex_lock(&lives.lock);
    mp_assert(life->users > 0);
    life->users--;
    pthread_mutex_unlock(&lives.lock);
}

void mp_cuda_lose(struct mp_cuda_life *life, mp_cu_result result)
{
    int none = 0;

    mp_assert(result != MP_CU_SUCCESS);
    atomic_compare_exchange_strong_explicit(&life->lost, &none, result, memory_order_relaxed,
                                            memory_order_relaxed);
}

enum mp_status mp_cuda_check_life(const struct mp_cuda *cuda, struct mp_cuda_life *life,
                                  mp_cu_result result, const char *call, const char *object)
{
    if (mp_cuda_is_sticky(result))
        mp_cuda_lose(life, result);
    return mp_cuda_check(cuda, result, call, object);
}

/* As CUDA_VISIBLE_DEVICES takes it. A slice of a device (MIG) has a UUID of its own, and is known
 * by its name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb". */
static void format_uuid(const struct mp_cu_uuid *uuid, const char *device, char out[48])
{
    static const unsigned dashes = 1u << 4 | 1u << 6 | 1u << 8 | 1u << 10; /* before these bytes */
    size_t used = (size_t)snprintf(out, 48, strstr(device, " MIG ") != NULL ? "MIG-" : "GPU-");

    for (unsigned i = 0; i < 16; i++)
        used += (size_t)snprintf(out + used, 48 - used, "%s%02x", dashes & 1u << i ? "-" : "",
                                 (unsigned char)uuid->bytes[i]);
}

/* An attribute that a driver does not know is `missing`. *lost_p: a result that means a lost
 * device; then nothing more is asked. */
static int attribute(const struct mp_cuda *cuda, mp_cu_device device, int which, int missing,
                     mp_cu_result *lost_p)
{
    int value = missing;
    mp_cu_result result;

    if (*lost_p != MP_CU_SUCCESS)
        return missing;
    result = cuda->call.device_attribute(&value, which, device);
    if (mp_cuda_is_sticky(result))
        *lost_p = result;
    return result == MP_CU_SUCCESS ? value : missing;
}

static mp_cu_result ask_attributes(const struct mp_cuda *cuda, struct mp_cuda_device *device)
{
    const mp_cu_device id = device->id;
    mp_cu_result lost = MP_CU_SUCCESS;

    device->capability = attribute(cuda, id, MP_CU_ATTR_CAPABILITY_MAJOR, 0, &lost) * 10 +
                         attribute(cuda, id, MP_CU_ATTR_CAPABILITY_MINOR, 0, &lost);
    device->processors = attribute(cuda, id, MP_CU_ATTR_MULTIPROCESSOR_COUNT, 0, &lost);
    device->integrated = attribute(cuda, id, MP_CU_ATTR_INTEGRATED, 0, &lost) != 0;
    device->vmm = attribute(cuda, id, MP_CU_ATTR_VMM_SUPPORTED, 0, &lost) != 0;
    device->cache_bytes = (uint64_t)attribute(cuda, id, MP_CU_ATTR_L2_CACHE_SIZE, 0, &lost);
    device->host_numa_id = attribute(cuda, id, MP_CU_ATTR_HOST_NUMA_ID, -1, &lost);
    return lost;
}

enum mp_status mp_cuda_describe(const struct mp_cuda *cuda, unsigned ordinal,
                                struct mp_cuda_device *device_p)
{
    struct mp_cuda_device device = { .id = (mp_cu_device)ordinal };
    struct mp_cu_uuid uuid;
    size_t bytes = 0;
    char object[32];
    mp_cu_result result;
    const char *call = "cuDeviceGet";

    mp_cuda_watchdog_device((mp_cu_device)ordinal);
    result = cuda->call.device_get(&device.id, (int)ordinal);
    snprintf(object, sizeof(object), "device %u", ordinal);
    if (result == MP_CU_SUCCESS) {
        call = "cuDeviceGetName";
        result = cuda->call.device_name(device.name, sizeof(device.name), device.id);
    }
    if (result == MP_CU_SUCCESS) {
        call = "cuDeviceGetPCIBusId";
        result = cuda->call.device_pci(device.pci, sizeof(device.pci), device.id);
    }
    if (result == MP_CU_SUCCESS) {
        call = "cuDeviceGetUuid_v2";
        result = cuda->call.device_uuid(&uuid, device.id);
    }
    if (result == MP_CU_SUCCESS) {
        call = "cuDeviceTotalMem_v2";
        result = cuda->call.device_memory(&bytes, device.id);
    }
    if (result == MP_CU_SUCCESS) {
        call = "cuDeviceGetAttribute";
        result = ask_attributes(cuda, &device);
    }
    if (result != MP_CU_SUCCESS) /* others may have it open */
        return mp_cuda_check_life(cuda, life_of(device.id), result, call, object);
    for (char *c = device.pci; *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
    format_uuid(&uuid, device.name, device.uuid);
    device.memory_bytes = bytes;
    *device_p = device;
    return MP_OK;
}
