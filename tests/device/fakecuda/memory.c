/*
 * Memory of the fake driver: reservations, handles, mappings, access.
 *
 * A handle is a memory file. A mapping of it lies in the reservation at its address, closed to the
 * CPU unless the memory is the host's and the host was given access, as on a real machine.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/device/fakecuda/stream.h"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static size_t granule_of(const struct mp_cu_location *location)
{
    return location->type == MP_CU_LOCATION_DEVICE ? fake.granule : fake.host_granule;
}

/* Of addresses: the smaller one. */
static bool in_granules(unsigned long long value)
{
    return value % (fake.granule < fake.host_granule ? fake.granule : fake.host_granule) == 0;
}

/* Reasons of cuMemCreate and cuMemGetAllocationGranularity to refuse, or success. */
static int check_allocation(const struct mp_cu_allocation *allocation)
{
    if (allocation == NULL || allocation->type != MP_CU_ALLOCATION_PINNED)
        return MP_CU_ERROR_INVALID_VALUE;
    if (allocation->handle_types != 0)
        return MP_CU_ERROR_NOT_SUPPORTED; /* nothing here is exported */
    switch (allocation->location.type) {
    case MP_CU_LOCATION_DEVICE:
        return allocation->location.id >= 0 && (unsigned)allocation->location.id < fake.devices
                   ? MP_CU_SUCCESS
                   : MP_CU_ERROR_INVALID_DEVICE;
    case MP_CU_LOCATION_HOST_NUMA:
        if (!fake.host_numa)
            return MP_CU_ERROR_NOT_SUPPORTED;
        return allocation->location.id >= 0 && (unsigned)allocation->location.id < fake.host_nodes
                   ? MP_CU_SUCCESS
                   : MP_CU_ERROR_INVALID_VALUE;
    default: return MP_CU_ERROR_INVALID_VALUE;
    }
}

FAKE_EXPORT mp_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    FAKE_BEGIN(cuMemGetInfo_v2);
    FAKE_NEED_CONTEXT();
    if (free_bytes == NULL || total_bytes == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    *total_bytes = fake.memory_bytes;
    *free_bytes = fake.memory_bytes - fake_taken((unsigned)(fake_current - 1));
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuMemGetAllocationGranularity(size_t *bytes,
                                                       const struct mp_cu_allocation *allocation,
                                                       int option)
{
    int result;

    FAKE_BEGIN(cuMemGetAllocationGranularity);
    FAKE_NEED_INIT();
    result = check_allocation(allocation);
    if (bytes == NULL || option < MP_CU_GRANULARITY_MINIMUM ||
        option > MP_CU_GRANULARITY_RECOMMENDED)
        result = MP_CU_ERROR_INVALID_VALUE;
    if (result == MP_CU_SUCCESS)
        *bytes = granule_of(&allocation->location);
    return fake_leave(result);
}

FAKE_EXPORT mp_cu_result cuMemAddressReserve(mp_cu_ptr *address, size_t bytes, size_t align,
                                             mp_cu_ptr hint, unsigned long long flags)
{
    size_t i = 0, spare;
    uintptr_t start, aligned;
    void *place;

    FAKE_BEGIN(cuMemAddressReserve);
    FAKE_NEED_CONTEXT();
    if (address == NULL || bytes == 0 || !in_granules(bytes) || flags != 0 || hint != 0 ||
        (align & (align - 1)) != 0)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    while (i < COUNT(fake.reservations) && fake.reservations[i].used)
        i++;
    if (align < fake.granule)
        align = fake.granule;
    spare = bytes + align;
    place = i < COUNT(fake.reservations) && spare > bytes
                ? mmap(NULL, spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                : MAP_FAILED;
    if (place == MAP_FAILED)
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    start = (uintptr_t)place;
    aligned = (start + align - 1) & ~(uintptr_t)(align - 1);
    if (aligned > start)
        munmap(place, aligned - start);
    if (start + spare > aligned + bytes)
        munmap((char *)aligned + bytes, start + spare - aligned - bytes);
    fake.reservations[i] = (struct fake_reservation){ true, aligned, bytes };
    *address = aligned;
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuMemAddressFree(mp_cu_ptr address, size_t bytes)
{
    const struct fake_region *region;
    size_t i = 0;

    FAKE_BEGIN(cuMemAddressFree);
    FAKE_NEED_CONTEXT();
    while (i < COUNT(fake.reservations) &&
           !(fake.reservations[i].used && fake.reservations[i].address == address &&
             fake.reservations[i].bytes == bytes))
        i++;
    if (i == COUNT(fake.reservations))
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    region = fake_region_in(address, bytes);
    if (region != NULL) {
        fake_violation("free of the reservation %#llx with a mapping at %#llx", address,
                       region->address);
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    }
    munmap((void *)(uintptr_t)address, bytes);
    fake.reservations[i].used = false;
    return fake_leave(MP_CU_SUCCESS);
}

/* New memory is not zero: what reads it before writing shall be seen. */
static int make_file(size_t bytes)
{
    static const unsigned char rubbish[1 << 16] = { [0 ...(1 << 16) - 1] = FAKE_RUBBISH };
    const int fd = memfd_create("fakecuda", MFD_CLOEXEC);

    if (fd >= 0) {
        for (size_t at = 0; at < bytes; at += sizeof(rubbish)) {
            const size_t part = bytes - at < sizeof(rubbish) ? bytes - at : sizeof(rubbish);

            if (pwrite(fd, rubbish, part, (off_t)at) != (ssize_t)part) {
                close(fd);
                return -1;
            }
        }
    }
    return fd;
}

FAKE_EXPORT mp_cu_result cuMemCreate(mp_cu_handle *handle, size_t bytes,
                                     const struct mp_cu_allocation *allocation,
                                     unsigned long long flags)
{
    bool on_device;
    size_t i = 0;
    int result, fd;

    FAKE_BEGIN(cuMemCreate);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    result = check_allocation(allocation);
    if (result != MP_CU_SUCCESS || handle == NULL || bytes == 0 ||
        bytes % granule_of(&allocation->location) != 0 || flags != 0)
        return fake_leave(result != MP_CU_SUCCESS ? result : MP_CU_ERROR_INVALID_VALUE);
    if (fake.host_numa_breaks && allocation->location.type == MP_CU_LOCATION_HOST_NUMA) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    on_device = allocation->location.type == MP_CU_LOCATION_DEVICE;
    if (on_device && !fake_take((unsigned)allocation->location.id, bytes))
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    while (i < FAKE_TABLE_MAX && fake.memories[i].used)
        i++;
    fd = i < FAKE_TABLE_MAX ? make_file(bytes) : -1;
    if (fd < 0) {
        if (on_device)
            fake_give((unsigned)allocation->location.id, bytes);
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    }
    fake.memories[i] = (struct fake_memory){ .used = true,
                                             .location = allocation->location,
                                             .bytes = bytes,
                                             .fd = fd,
                                             .physical = ++fake.last_physical };
    if (!on_device)
        fake.host_bytes[allocation->location.id] += bytes;
    *handle = i + 1;
    return fake_leave(MP_CU_SUCCESS);
}

/* A handle ends when it was released and nothing maps it. */
static void end_if_unused(struct fake_memory *memory)
{
    if (!memory->released || memory->mappings > 0)
        return;
    close(memory->fd);
    if (memory->location.type == MP_CU_LOCATION_DEVICE)
        fake_give((unsigned)memory->location.id, memory->bytes);
    else
        fake.host_bytes[memory->location.id] -= memory->bytes;
    memory->used = false;
}

static struct fake_memory *find_memory(mp_cu_handle handle)
{
    struct fake_memory *memory =
        handle >= 1 && handle <= FAKE_TABLE_MAX ? &fake.memories[handle - 1] : NULL;

    return memory != NULL && memory->used && !memory->released ? memory : NULL;
}

FAKE_EXPORT mp_cu_result cuMemRelease(mp_cu_handle handle)
{
    struct fake_memory *memory;

    FAKE_BEGIN(cuMemRelease);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    memory = find_memory(handle);
    if (memory == NULL) {
        fake_violation("release of handle %llu, which does not exist", handle);
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    }
    memory->released = true;
    end_if_unused(memory);
    return fake_leave(MP_CU_SUCCESS);
}

/* Does [address, +bytes) lie in one reservation and touch no mapping? */
static bool is_free_range(unsigned long long address, size_t bytes)
{
    bool reserved = false;

    for (size_t i = 0; i < COUNT(fake.reservations); i++) {
        const struct fake_reservation *r = &fake.reservations[i];

        reserved |= r->used && address >= r->address && bytes <= r->bytes &&
                    address - r->address <= r->bytes - bytes;
    }
    return reserved && fake_region_in(address, bytes) == NULL;
}

FAKE_EXPORT mp_cu_result cuMemMap(mp_cu_ptr address, size_t bytes, size_t offset,
                                  mp_cu_handle handle, unsigned long long flags)
{
    struct fake_region region = { .kind = FAKE_MAPPING, .address = address, .bytes = bytes };
    struct fake_memory *memory;

    FAKE_BEGIN(cuMemMap);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    memory = find_memory(handle);
    if (memory == NULL || offset != 0 || flags != 0 ||
        address % granule_of(&memory->location) != 0 || bytes != memory->bytes ||
        !is_free_range(address, bytes))
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    region.memory = (unsigned)(handle - 1);
    region.physical = memory->physical;
    region.host_memory = memory->location.type != MP_CU_LOCATION_DEVICE;
    if (mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, 0) ==
            MAP_FAILED ||
        fake_region_add(&region) == NULL)
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    memory->mappings++;
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuMemUnmap(mp_cu_ptr address, size_t bytes)
{
    struct fake_region *region;
    struct fake_memory *memory;

    FAKE_BEGIN(cuMemUnmap);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    region = fake_region_at(address);
    if (region == NULL || region->kind != FAKE_MAPPING || region->address != address ||
        region->bytes != bytes)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    fake_check_unused("unmap", address, bytes);
    if (mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return fake_leave(MP_CU_ERROR_UNKNOWN);
    memory = &fake.memories[region->memory];
    fake_region_remove(region);
    memory->mappings--;
    end_if_unused(memory);
    return fake_leave(MP_CU_SUCCESS);
}

/* May the accessor have this memory? Only the host's memory is open to the host. */
static bool may_access(const struct mp_cu_access *access, const struct fake_region *region)
{
    if (access->flags != MP_CU_ACCESS_NONE && access->flags != MP_CU_ACCESS_READ &&
        access->flags != MP_CU_ACCESS_READ_WRITE)
        return false;
    if (access->location.type == MP_CU_LOCATION_DEVICE)
        return access->location.id >= 0 && (unsigned)access->location.id < fake.devices;
    return region->host_memory && (access->location.type == MP_CU_LOCATION_HOST_NUMA ||
                                   access->location.type == MP_CU_LOCATION_HOST);
}

static void give_access(const struct mp_cu_access *access, struct fake_region *region)
{
    int *flags = access->location.type == MP_CU_LOCATION_DEVICE ? &region->device_access
                                                                : &region->host_access;

    if (*flags != MP_CU_ACCESS_NONE && *flags != access->flags)
        fake_check_unused("change of access", region->address, region->bytes);
    *flags = access->flags;
}

FAKE_EXPORT mp_cu_result cuMemSetAccess(mp_cu_ptr address, size_t bytes,
                                        const struct mp_cu_access *access, size_t count)
{
    const unsigned long long end = address + bytes;
    struct fake_region *first, *r;

    FAKE_BEGIN(cuMemSetAccess);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    if (bytes == 0 || !in_granules(address) || !in_granules(bytes) || access == NULL || count == 0)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    first = fake_region_at(address);
    if (first == NULL || first->address != address)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    for (r = first; address < end; r = fake_region_after(r)) {
        /* no holes, and no mapping that only begins in the range */
        if (r == NULL || r->kind != FAKE_MAPPING || r->address != address ||
            r->bytes > end - address)
            return fake_leave(MP_CU_ERROR_INVALID_VALUE);
        for (size_t a = 0; a < count; a++) {
            if (!may_access(&access[a], r))
                return fake_leave(MP_CU_ERROR_INVALID_VALUE);
        }
        address += r->bytes;
    }
    for (r = first; r != NULL && r->address < end; r = fake_region_after(r)) {
        for (size_t a = 0; a < count; a++)
            give_access(&access[a], r);
        if (!fake_region_protect(r))
            return fake_leave(MP_CU_ERROR_UNKNOWN);
    }
    return fake_leave(MP_CU_SUCCESS);
}

void fake_clear_memory(void)
{
    for (struct fake_region *r = fake_region_in(0, SIZE_MAX); r != NULL;
         r = fake_region_in(0, SIZE_MAX)) {
        /* Addresses are closed and not given back: a late look shall fault, not read others'. */
        mmap((void *)(uintptr_t)r->address, r->bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        fake_region_remove(r);
    }
    for (size_t i = 0; i < FAKE_TABLE_MAX; i++) {
        if (fake.memories[i].used)
            close(fake.memories[i].fd);
        fake.memories[i].used = false;
    }
    for (unsigned d = 0; d < FAKE_DEVICES_MAX; d++)
        fake_give(d, fake.device_bytes[d]);
    for (size_t i = 0; i < COUNT(fake.reservations); i++)
        fake.reservations[i].used = false;
    memset(fake.host_bytes, 0, sizeof(fake.host_bytes));
    fake.registered_bytes = 0;
}

void fake_clear_memory_of(unsigned device)
{
    struct fake_region *region = fake_region_in(0, SIZE_MAX);

    while (region != NULL) {
        struct fake_region *next = fake_region_after(region);

        if (region->kind == FAKE_ALLOCATED && region->device == device) {
            mmap((void *)(uintptr_t)region->address, region->bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
            fake_region_remove(region);
        }
        region = next;
    }
    fake_give(device, fake.device_bytes[device]);
}
