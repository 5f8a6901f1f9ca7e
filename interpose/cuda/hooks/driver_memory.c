/*
 * Hooks of the driver's calls for memory; as those of the runtime in runtime.c.
 */
#include "interpose/cuda/hooks/driver.h"

#include <stdint.h>

#include "vmm/base/compiler.h"

static int current_device(void)
{
    mp_cu_result (*get)(mp_cu_device *) =
        (mp_cu_result(*)(mp_cu_device *))mp_hook_driver("cuCtxGetDevice");
    mp_cu_device device = -1;

    return get != NULL && get(&device) == MP_CU_SUCCESS ? device : -1;
}

MOEPAGER_API mp_cu_result cuMemAlloc_v2(mp_cu_ptr *address, size_t bytes)
{
    REAL(cuMemAlloc_v2);
    const struct mp_gpu_interposer *gpu = bytes >= 1 << 16 ? mp_hook_gpu_open() : NULL;
    void *place = NULL;
    mp_cu_result result;
    int device;

    if (gpu == NULL || address == NULL || bytes < gpu->bytes_min())
        return real(address, bytes);
    mp_hook_enter();
    device = current_device();
    if (gpu->allocate(device, bytes, false, &place)) {
        result = MP_CU_SUCCESS;
    } else {
        result = real(address, bytes);
        if (result == MP_CU_SUCCESS)
            gpu->took(device, (const void *)(uintptr_t)*address, bytes);
        else if (result == MP_CU_ERROR_OUT_OF_MEMORY && gpu->allocate(device, bytes, true, &place))
            result = MP_CU_SUCCESS;
    }
    if (place != NULL)
        *address = (uintptr_t)place;
    mp_hook_leave();
    return result;
}

/* The real one waits for the memory's device before it gives it back. */
static mp_cu_result wait_for_device(int device)
{
    mp_cu_result (*wait)(void) =
        (mp_cu_result(*)(void))mp_driver_hook_behind(DRIVER_cuCtxSynchronize);
    mp_cu_result (*get)(mp_cu_context *) =
        (mp_cu_result(*)(mp_cu_context *))mp_hook_driver("cuCtxGetCurrent");
    mp_cu_result (*set)(mp_cu_context) =
        (mp_cu_result(*)(mp_cu_context))mp_hook_driver("cuCtxSetCurrent");
    mp_cu_result (*retain)(mp_cu_context *, mp_cu_device) =
        (mp_cu_result(*)(mp_cu_context *, mp_cu_device))mp_hook_driver("cuDevicePrimaryCtxRetain");
    mp_cu_result (*release)(mp_cu_device) =
        (mp_cu_result(*)(mp_cu_device))mp_hook_driver("cuDevicePrimaryCtxRelease_v2");
    mp_cu_context before = NULL, own = NULL;
    mp_cu_result result;

    if (wait == NULL || get == NULL || set == NULL || retain == NULL || release == NULL)
        return NO_DRIVER;
    result = get(&before);
    if (result == MP_CU_SUCCESS)
        result = retain(&own, device);
    if (result != MP_CU_SUCCESS)
        return result;
    result = set(own);
    if (result == MP_CU_SUCCESS)
        result = wait();
    (void)set(before);
    (void)release(device); /* the window's keeps it */
    return result;
}

MOEPAGER_API mp_cu_result cuMemFree_v2(mp_cu_ptr address)
{
    REAL(cuMemFree_v2);
    const struct mp_gpu_interposer *gpu = address != 0 ? mp_hook_gpu() : NULL;
    mp_cu_result result;
    int device;

    if (gpu == NULL)
        return real(address);
    mp_hook_enter();
    device = gpu->owner((const void *)(uintptr_t)address);
    if (device >= 0) {
        result = wait_for_device(device);
        if (result == MP_CU_SUCCESS)
            gpu->release((const void *)(uintptr_t)address);
    } else {
        gpu->gives((const void *)(uintptr_t)address);
        result = real(address);
    }
    mp_hook_leave();
    return result;
}

/* As cudaDeviceReset(). */
MOEPAGER_API mp_cu_result cuDevicePrimaryCtxReset_v2(mp_cu_device device)
{
    REAL(cuDevicePrimaryCtxReset_v2);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu();
    mp_cu_result result;

    if (gpu == NULL)
        return real(device);
    mp_hook_enter();
    (void)wait_for_device(device);
    gpu->reset(device);
    result = real(device);
    mp_hook_leave();
    return result;
}

/* Either pointer may be NULL, as some programs have it. */
MOEPAGER_API mp_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    REAL(cuMemGetInfo_v2);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu_open();
    const mp_cu_result result = real(free_bytes, total_bytes);

    if (gpu == NULL || result != MP_CU_SUCCESS)
        return result;
    mp_hook_enter();
    gpu->memory_info(current_device(), free_bytes, total_bytes);
    mp_hook_leave();
    return result;
}

#define MEMORY_TYPE 2         /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
#define MEMORY_TYPE_DEVICE 2u /* CU_MEMORYTYPE_DEVICE */

/* A window is device memory, wherever its units lie: programs choose kernels and copies by it. */
MOEPAGER_API mp_cu_result cuPointerGetAttribute(void *value, int attribute, mp_cu_ptr address)
{
    REAL(cuPointerGetAttribute);
    const struct mp_gpu_interposer *gpu = attribute == MEMORY_TYPE ? mp_hook_gpu() : NULL;
    const mp_cu_result result = real(value, attribute, address);

    if (gpu != NULL && result == MP_CU_SUCCESS && gpu->holds((const void *)(uintptr_t)address))
        *(unsigned *)value = MEMORY_TYPE_DEVICE;
    return result;
}

MOEPAGER_API mp_cu_result cuPointerGetAttributes(unsigned count, int *attributes, void **values,
                                                 mp_cu_ptr address)
{
    REAL(cuPointerGetAttributes);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu();
    const mp_cu_result result = real(count, attributes, values, address);

    if (gpu == NULL || result != MP_CU_SUCCESS || !gpu->holds((const void *)(uintptr_t)address))
        return result;
    for (unsigned i = 0; i < count; i++) {
        if (attributes[i] == MEMORY_TYPE && values[i] != NULL)
            *(unsigned *)values[i] = MEMORY_TYPE_DEVICE;
    }
    return result;
}

MOEPAGER_API mp_cu_result cuIpcGetMemHandle(void *handle, mp_cu_ptr address)
{
    REAL(cuIpcGetMemHandle);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu_open();

    if (gpu != NULL)
        gpu->stand_aside("the program shares memory with other processes, which a window cannot "
                         "be");
    return real(handle, address);
}

MOEPAGER_API mp_cu_result cuCtxEnablePeerAccess(mp_cu_context context, unsigned flags)
{
    REAL(cuCtxEnablePeerAccess);
    const struct mp_gpu_interposer *gpu = mp_hook_gpu_open();

    if (gpu != NULL)
        gpu->stand_aside("devices read each other's memory, which a window does not allow");
    return real(context, flags);
}
