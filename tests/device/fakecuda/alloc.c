/*
 * Memory that is there when it is asked for: of a device, and pinned memory of the host.
 */
#include <string.h>
#include <sys/mman.h>

#include "tests/device/fakecuda/stream.h"

#define PAGE 4096u

static size_t in_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static void *map_pages(size_t bytes)
{
    void *place = bytes + PAGE > bytes ? mmap(NULL, in_pages(bytes), PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                       : MAP_FAILED;

    return place != MAP_FAILED ? place : NULL;
}

FAKE_EXPORT mp_cu_result cuMemAlloc_v2(mp_cu_ptr *address, size_t bytes)
{
    struct fake_region region = { .kind = FAKE_ALLOCATED,
                                  .bytes = bytes,
                                  .device_access = MP_CU_ACCESS_READ_WRITE };
    struct fake_region *added;
    void *place;

    FAKE_BEGIN(cuMemAlloc_v2);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    if (address == NULL || bytes == 0)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    region.device = (unsigned)(fake_current - 1);
    if (!fake_take(region.device, in_pages(bytes)))
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    place = map_pages(bytes);
    if (place != NULL) {
        memset(place, FAKE_RUBBISH, in_pages(bytes)); /* memory is not zero */
        region.address = (uintptr_t)place;
        region.physical = ++fake.last_physical;
    }
    added = place != NULL ? fake_region_add(&region) : NULL;
    if (added == NULL || !fake_region_protect(added)) {
        fake_give(region.device, in_pages(bytes));
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    }
    *address = region.address;
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuMemFree_v2(mp_cu_ptr address)
{
    struct fake_region *region;

    FAKE_BEGIN(cuMemFree_v2);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    region = fake_region_at(address);
    if (region == NULL || region->kind != FAKE_ALLOCATED || region->address != address) {
        fake_violation("free of %#llx, which is no allocation", address);
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    }
    fake_check_unused("free", address, region->bytes);
    munmap((void *)(uintptr_t)address, in_pages(region->bytes));
    fake_give(region->device, in_pages(region->bytes));
    fake_region_remove(region);
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    struct fake_region region = { .kind = FAKE_PINNED, .bytes = bytes, .host_memory = true };
    void *place;

    FAKE_BEGIN(cuMemHostAlloc);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    if (address == NULL || bytes == 0 ||
        (flags & ~(unsigned)(MP_CU_HOST_PORTABLE | MP_CU_HOST_DEVICE_MAP)) != 0)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    place = map_pages(bytes);
    region.address = (uintptr_t)place;
    region.physical = ++fake.last_physical;
    region.host_access = MP_CU_ACCESS_READ_WRITE;
    region.device_access = MP_CU_ACCESS_READ_WRITE;
    if (place == NULL || fake_region_add(&region) == NULL)
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    *address = place;
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuMemFreeHost(void *address)
{
    struct fake_region *region;

    FAKE_BEGIN(cuMemFreeHost);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    region = fake_region_at((uintptr_t)address);
    if (region == NULL || region->kind != FAKE_PINNED || region->registered ||
        region->address != (uintptr_t)address)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    fake_check_unused("free", (uintptr_t)address, region->bytes);
    munmap(address, in_pages(region->bytes));
    fake_region_remove(region);
    return fake_leave(MP_CU_SUCCESS);
}

/* Memory of the program's own, in whole pages. */
FAKE_EXPORT mp_cu_result cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    struct fake_region region = { .kind = FAKE_PINNED,
                                  .registered = true,
                                  .address = (uintptr_t)address,
                                  .bytes = bytes,
                                  .host_memory = true,
                                  .host_access = MP_CU_ACCESS_READ_WRITE,
                                  .device_access = MP_CU_ACCESS_READ_WRITE };

    FAKE_BEGIN(cuMemHostRegister_v2);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    if (bytes == 0 || bytes % PAGE != 0 || (uintptr_t)address % PAGE != 0 ||
        (flags & ~(unsigned)(MP_CU_HOST_PORTABLE | MP_CU_HOST_DEVICE_MAP)) != 0)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    if (fake_region_in((uintptr_t)address, bytes) != NULL)
        return fake_leave(MP_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    region.physical = ++fake.last_physical;
    if (bytes > fake.registered_max - fake.registered_bytes || fake_region_add(&region) == NULL)
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    fake.registered_bytes += bytes;
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuMemHostUnregister(void *address)
{
    struct fake_region *region;

    FAKE_BEGIN(cuMemHostUnregister);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    region = fake_region_at((uintptr_t)address);
    if (region == NULL || !region->registered || region->address != (uintptr_t)address) {
        fake_violation("unregister of %p, which is not registered", address);
        return fake_leave(MP_CU_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    fake_check_unused("unregister", (uintptr_t)address, region->bytes);
    fake.registered_bytes -= region->bytes;
    fake_region_remove(region);
    return fake_leave(MP_CU_SUCCESS);
}

/* One address space: the device sees pinned memory where the host does. */
FAKE_EXPORT mp_cu_result cuMemHostGetDevicePointer_v2(mp_cu_ptr *device, void *address,
                                                      unsigned flags)
{
    const struct fake_region *region;

    FAKE_BEGIN(cuMemHostGetDevicePointer_v2);
    FAKE_NEED_CONTEXT();
    region = fake_region_at((uintptr_t)address);
    if (device == NULL || flags != 0 || region == NULL || region->kind != FAKE_PINNED)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    *device = (uintptr_t)address;
    return fake_leave(MP_CU_SUCCESS);
}
