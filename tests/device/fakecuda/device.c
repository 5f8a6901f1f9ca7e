/*
 * Driver, devices and contexts of the fake driver.
 */
#include <stdio.h>
#include <string.h>

#include "tests/device/fakecuda/stream.h"

static const struct {
    int value;
    const char *name;
} results[] = {
#define X(name, value) { value, "CUDA_" #name },
    MP_CU_RESULT_MAP(X)
#undef X
};

FAKE_EXPORT mp_cu_result cuInit(unsigned flags)
{
    FAKE_BEGIN(cuInit);
    if (flags != 0)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    if (fake.init_result != 0 || fake.forked)
        return fake_leave(fake.forked ? MP_CU_ERROR_NOT_INITIALIZED : fake.init_result);
    if (fake.devices == 0 && fake.hidden)
        return fake_leave(MP_CU_ERROR_NO_DEVICE);
    fake.initialised = true;
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuDriverGetVersion(int *version)
{
    FAKE_BEGIN(cuDriverGetVersion);
    if (version == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    *version = (int)fake.version;
    return fake_leave(MP_CU_SUCCESS);
}

/* Not counted and never failed: they only have words. */
FAKE_EXPORT mp_cu_result cuGetErrorName(mp_cu_result result, const char **text)
{
    *text = NULL;
    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        if (results[i].value == result)
            *text = i == 0 ? "CUDA_SUCCESS" : results[i].name;
    }
    return *text != NULL ? MP_CU_SUCCESS : MP_CU_ERROR_INVALID_VALUE;
}

FAKE_EXPORT mp_cu_result cuGetErrorString(mp_cu_result result, const char **text)
{
    const mp_cu_result status = cuGetErrorName(result, text);

    if (status == MP_CU_SUCCESS)
        *text = result == MP_CU_SUCCESS ? "no error" : "said by the fake driver";
    return status;
}

FAKE_EXPORT mp_cu_result cuDeviceGetCount(int *count)
{
    FAKE_BEGIN(cuDeviceGetCount);
    FAKE_NEED_INIT();
    *count = (int)fake.devices;
    return fake_leave(MP_CU_SUCCESS);
}

static bool is_device(mp_cu_device device)
{
    return device >= 0 && (unsigned)device < fake.devices;
}

FAKE_EXPORT mp_cu_result cuDeviceGet(mp_cu_device *device, int ordinal)
{
    FAKE_BEGIN(cuDeviceGet);
    FAKE_NEED_INIT();
    if (!is_device(ordinal))
        return fake_leave(MP_CU_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuDeviceGetName(char *name, int bytes, mp_cu_device device)
{
    FAKE_BEGIN(cuDeviceGetName);
    FAKE_NEED_INIT();
    if (!is_device(device))
        return fake_leave(MP_CU_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)bytes, "Fake device %u%s", fake.visible[device],
             fake.mig ? " MIG 1g.5gb" : "");
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuDeviceGetUuid_v2(struct mp_cu_uuid *uuid, mp_cu_device device)
{
    FAKE_BEGIN(cuDeviceGetUuid_v2);
    FAKE_NEED_INIT();
    if (!is_device(device))
        return fake_leave(MP_CU_ERROR_INVALID_DEVICE);
    fake_uuid(fake.visible[device], uuid);
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuDeviceTotalMem_v2(size_t *bytes, mp_cu_device device)
{
    FAKE_BEGIN(cuDeviceTotalMem_v2);
    FAKE_NEED_INIT();
    if (!is_device(device))
        return fake_leave(MP_CU_ERROR_INVALID_DEVICE);
    *bytes = fake.memory_bytes;
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuDeviceGetPCIBusId(char *text, int bytes, mp_cu_device device)
{
    FAKE_BEGIN(cuDeviceGetPCIBusId);
    FAKE_NEED_INIT();
    if (!is_device(device))
        return fake_leave(MP_CU_ERROR_INVALID_DEVICE);
    snprintf(text, (size_t)bytes, "0000:%02X:00.0", 0x1a + fake.visible[device]);
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuDeviceGetAttribute(int *value, int attribute, mp_cu_device device)
{
    FAKE_BEGIN(cuDeviceGetAttribute);
    FAKE_NEED_INIT();
    if (!is_device(device))
        return fake_leave(MP_CU_ERROR_INVALID_DEVICE);
    switch (attribute) {
    case MP_CU_ATTR_MULTIPROCESSOR_COUNT: *value = 4; break;
    case MP_CU_ATTR_INTEGRATED: *value = 0; break;
    case MP_CU_ATTR_L2_CACHE_SIZE: *value = 1 << 20; break;
    case MP_CU_ATTR_CAN_MAP_HOST_MEMORY:
    case MP_CU_ATTR_UNIFIED_ADDRESSING:
    case MP_CU_ATTR_VMM_SUPPORTED: *value = 1; break;
    case MP_CU_ATTR_CAPABILITY_MAJOR: *value = (int)(fake.capability / 10); break;
    case MP_CU_ATTR_CAPABILITY_MINOR: *value = (int)(fake.capability % 10); break;
    case MP_CU_ATTR_HOST_NUMA_ID: *value = fake.numa_id[fake.visible[device]]; break;
    default: return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    }
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuDevicePrimaryCtxRetain(mp_cu_context *context, mp_cu_device device)
{
    FAKE_BEGIN(cuDevicePrimaryCtxRetain);
    FAKE_NEED_INIT();
    if (!is_device(device))
        return fake_leave(MP_CU_ERROR_INVALID_DEVICE);
    fake.retained[device]++;
    *context = (mp_cu_context)(uintptr_t)(device + 1);
    return fake_leave(MP_CU_SUCCESS);
}

static unsigned all_retained(void)
{
    unsigned count = 0;

    for (unsigned d = 0; d < FAKE_DEVICES_MAX; d++)
        count += fake.retained[d];
    return count;
}

FAKE_EXPORT mp_cu_result cuDevicePrimaryCtxRelease_v2(mp_cu_device device)
{
    FAKE_BEGIN(cuDevicePrimaryCtxRelease_v2);
    if (!fake.initialised || !is_device(device) || fake.retained[device] == 0)
        return fake_leave(MP_CU_ERROR_INVALID_CONTEXT);
    fake.retained[device]--;
    if (fake.retained[device] == 0 && fake.device_bytes[device] > 0 && fake.lost == 0 &&
        !fake.failed_calls)
        fake_violation("the context of device %d ended with %zu bytes of its memory alive", device,
                       fake.device_bytes[device]);
    if (all_retained() == 0)
        fake_end_context();
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuCtxSetCurrent(mp_cu_context context)
{
    const uintptr_t number = (uintptr_t)context;

    FAKE_BEGIN(cuCtxSetCurrent);
    FAKE_NEED_INIT();
    if (number > fake.devices || (number != 0 && fake.retained[number - 1] == 0))
        return fake_leave(MP_CU_ERROR_INVALID_CONTEXT);
    fake_current = number;
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuCtxGetCurrent(mp_cu_context *context)
{
    FAKE_BEGIN(cuCtxGetCurrent);
    FAKE_NEED_INIT();
    *context = (mp_cu_context)fake_current;
    return fake_leave(MP_CU_SUCCESS);
}

/* The vendor's private tables; there are none here, and their check is not imitated. */
FAKE_EXPORT mp_cu_result cuGetExportTable(const void **table, const struct mp_cu_uuid *id)
{
    (void)id;
    if (table != NULL)
        *table = NULL;
    return MP_CU_ERROR_NOT_FOUND;
}
