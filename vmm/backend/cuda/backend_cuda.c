/*
 * Frames on a CUDA device and in its host memory, by the virtual memory calls of the driver.
 *
 * A frame is one handle, mapped at its own alias as long as it exists: cuMemMap accepts only offset
 * 0 and cuMemUnmap only whole mappings, so handles are never split. For other kinds of host frames
 * see host_frames.c.
 *
 * A device frame cannot be read or written by the CPU, nor can files be read into it: data for
 * slots must pass through host frames.
 *
 * If a call that releases something fails, the memory is lost: it is counted, logged once, and
 * never reused.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/backend/cuda/backend_cuda_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/topo/memory_room.h"

/* With fewer mappings left, that is what memory ran out of. */
#define MAPS_MARGIN 64

enum mp_status mp_cuda_note(struct cuda_backend *self, mp_cu_result result, const char *call,
                            const char *object)
{
    uint64_t maps, maps_max;

    mp_assert(call != NULL && object != NULL);
    if (result == MP_CU_SUCCESS)
        return MP_OK;
    if (mp_cuda_is_sticky(result))
        mp_cuda_lose(self->life, result);
    if (result == MP_CU_ERROR_OUT_OF_MEMORY && mp_memory_maps_read("", &maps, &maps_max) &&
        maps + MAPS_MARGIN > maps_max)
        return mp_fail(MP_ERR_NO_SPACE, "E_CUDA_MAPPINGS",
                       "%s of %s: out of memory, and this process has %" PRIu64 " of %" PRIu64
                       " mappings; raise the limit (sysctl vm.max_map_count) or lower --budget",
                       call, object, maps, maps_max);
    return mp_cuda_check(self->cuda, result, call, object);
}

/* Calls need the device's context on the thread that makes them. */
enum mp_status mp_cuda_enter(struct cuda_backend *self)
{
    const int lost = mp_cuda_lost(self->life);
    mp_cu_context current = NULL;
    mp_cu_result result;

    mp_assert(self->context != NULL);
    if (lost != 0)
        return mp_cuda_check(self->cuda, lost, "an earlier call", self->device.name);
    mp_cuda_watchdog_device(self->device.id);
    result = self->cuda->call.context_get(&current);
    if (result == MP_CU_SUCCESS && current == self->context)
        return MP_OK;
    if (!mp_cuda_is_sticky(result))
        result = self->cuda->call.context_set(self->context);
    return mp_cuda_note(self, result, "cuCtxSetCurrent", self->device.name);
}

bool mp_cuda_undone(struct cuda_backend *self, mp_cu_result result, const char *call)
{
    if (result == MP_CU_SUCCESS)
        return true;
    if (mp_cuda_is_sticky(result))
        mp_cuda_lose(self->life, result);
    if (!mp_cuda_known_lost(result))
        mp_log_error("cuda", "%s failed (%d) while giving something back; it stays lost", call,
                     result);
    return false;
}

void mp_cuda_count_lost(struct cuda_backend *self, uint64_t bytes)
{
    mp_assert(bytes > 0);
    atomic_fetch_add_explicit(&self->lost_bytes, bytes, memory_order_relaxed);
}

static struct mp_cu_allocation allocation_of(const struct cuda_backend *self,
                                             enum mp_tier_kind tier)
{
    struct mp_cu_allocation allocation;

    mp_assert(tier == MP_TIER_DEVICE || tier == MP_TIER_HOST);
    memset(&allocation, 0, sizeof(allocation));
    allocation.type = MP_CU_ALLOCATION_PINNED;
    allocation.location.type =
        tier == MP_TIER_DEVICE ? MP_CU_LOCATION_DEVICE : MP_CU_LOCATION_HOST_NUMA;
    allocation.location.id = tier == MP_TIER_DEVICE ? self->device.id : self->numa_node;
    return allocation;
}

/* The way back from a frame that was made as far as `steps`: 1 address, 2 handle, 3 mapping. */
static void take_back(struct cuda_backend *self, mp_cu_ptr address, mp_cu_handle handle,
                      uint64_t bytes, unsigned steps)
{
    const struct mp_cu_calls *call = &self->cuda->call;
    bool ok = true;

    mp_assert(steps >= 1 && steps <= 3);
    if (mp_cuda_lost(self->life) != 0)
        ok = false;
    else if (steps >= 3)
        ok = mp_cuda_undone(self, call->unmap(address, bytes), "cuMemUnmap");
    if (steps >= 2 && mp_cuda_lost(self->life) == 0)
        ok &= mp_cuda_undone(self, call->release(handle), "cuMemRelease");
    /* An address whose mapping would not go must never be handed out again. */
    if (ok)
        ok = mp_cuda_undone(self, call->address_free(address, bytes), "cuMemAddressFree");
    if (!ok)
        mp_cuda_count_lost(self, bytes);
}

/* A handle of `tier`, mapped and accessible. The frame is filled in only on success. */
enum mp_status mp_cuda_create_mapped(struct cuda_backend *self, enum mp_tier_kind tier,
                                     uint64_t bytes, struct mp_frame *frame_p)
{
    const struct mp_cu_calls *call = &self->cuda->call;
    const struct mp_cu_allocation allocation = allocation_of(self, tier);
    struct mp_cu_access access[2];
    const size_t accessors = tier == MP_TIER_DEVICE ? 1 : 2;
    mp_cu_ptr address = 0;
    mp_cu_handle handle = 0;
    const char *name = "cuMemAddressReserve";
    unsigned steps = 0;
    char object[64];
    mp_cu_result result;

    mp_assert(bytes > 0 && bytes % self->super.caps.granule_bytes == 0);
    memset(access, 0, sizeof(access));
    access[0].location.type = MP_CU_LOCATION_DEVICE;
    access[0].location.id = self->device.id;
    access[1].location = allocation.location;
    access[0].flags = access[1].flags = MP_CU_ACCESS_READ_WRITE;

    result = call->address_reserve(&address, bytes, self->super.caps.alias_align_bytes, 0, 0);
    if (result == MP_CU_SUCCESS) {
        steps = 1;
        name = "cuMemCreate";
        result = call->create(&handle, bytes, &allocation, 0);
    }
    if (result == MP_CU_SUCCESS) {
        steps = 2;
        name = "cuMemMap";
        result = call->map(address, bytes, 0, handle, 0);
    }
    if (result == MP_CU_SUCCESS) {
        steps = 3;
        name = "cuMemSetAccess";
        result = call->set_access(address, bytes, access, accessors);
    }
    if (result != MP_CU_SUCCESS) {
        enum mp_status status;

        snprintf(object, sizeof(object), "a %s frame of %" PRIu64 " bytes", mp_tier_kind_name(tier),
                 bytes);
        status = mp_cuda_note(self, result, name, object);
        if (steps > 0)
            take_back(self, address, handle, bytes, steps);
        return status;
    }
    *frame_p = (struct mp_frame){
        .handle = handle, .alias = (void *)(uintptr_t)address, .bytes = bytes, .tier = tier
    };
    return MP_OK;
}

static enum mp_status cuda_frame_create(struct mp_backend *backend, enum mp_tier_kind tier,
                                        uint64_t bytes, struct mp_frame *frame_p)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    enum mp_status status;

    if ((unsigned)tier >= MP_TIER_KIND_COUNT || !(backend->caps.tiers & 1u << tier) || bytes == 0 ||
        bytes % backend->caps.granule_bytes != 0 || bytes > backend->caps.frame_bytes_max)
        return mp_fail(MP_ERR_INVALID, "E_INTERNAL",
                       "backend cuda cannot make a %s frame of %" PRIu64 " bytes",
                       mp_tier_kind_name(tier), bytes);
    status = mp_cuda_enter(self);
    if (status != MP_OK)
        return status;
    return tier == MP_TIER_HOST ? mp_cuda_host_frame_create(self, bytes, frame_p)
                                : mp_cuda_create_mapped(self, tier, bytes, frame_p);
}

static void cuda_frame_destroy(struct mp_backend *backend, struct mp_frame *frame)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    const struct mp_error before = *mp_error_last();

    mp_assert(frame->handle != 0);
    if (mp_cuda_lost(self->life) != 0) {
        mp_cuda_count_lost(self, frame->bytes); /* with the device, which was reported */
    } else if (mp_cuda_enter(self) != MP_OK) {
        if (mp_cuda_lost(self->life) == 0)
            mp_log_error("cuda", "no context to give a frame back: %s", mp_error_last()->text);
        mp_cuda_count_lost(self, frame->bytes);
    } else if (!mp_cuda_host_frame_destroy(self, frame)) {
        take_back(self, (uintptr_t)frame->alias, frame->handle, frame->bytes, 3);
    }
    mp_error_set(&before);
    memset(frame, 0, sizeof(*frame));
}

static enum mp_status cuda_memory_info(struct mp_backend *backend, enum mp_tier_kind tier,
                                       uint64_t *free_bytes_p, uint64_t *total_bytes_p)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    size_t free_bytes = 0, total_bytes = 0;
    struct mp_memory_room room;
    enum mp_status status;

    if ((unsigned)tier >= MP_TIER_KIND_COUNT || !(backend->caps.tiers & 1u << tier))
        return mp_fail(MP_ERR_INVALID, "E_INTERNAL", "backend cuda has no %s tier",
                       mp_tier_kind_name(tier));
    if (tier == MP_TIER_HOST) {
        mp_memory_room_read("", &room);
        *free_bytes_p = room.room_bytes;
        *total_bytes_p = room.limit_bytes < room.total_bytes ? room.limit_bytes : room.total_bytes;
        return MP_OK;
    }
    status = mp_cuda_enter(self);
    if (status == MP_OK)
        status = mp_cuda_note(self, self->cuda->call.memory_info(&free_bytes, &total_bytes),
                              "cuMemGetInfo", self->device.name);
    if (status == MP_OK) {
        *free_bytes_p = free_bytes;
        *total_bytes_p = total_bytes;
    }
    return status;
}

enum mp_status mp_cuda_granule(struct cuda_backend *self, enum mp_tier_kind tier, uint64_t *bytes_p)
{
    const struct mp_cu_allocation allocation = allocation_of(self, tier);
    size_t bytes = 0;
    const mp_cu_result result =
        self->cuda->call.granularity(&bytes, &allocation, MP_CU_GRANULARITY_RECOMMENDED);

    if (result != MP_CU_SUCCESS)
        return mp_cuda_note(self, result, "cuMemGetAllocationGranularity", self->device.name);
    if (bytes < 4096 || (bytes & (bytes - 1)) != 0)
        return mp_fail(MP_ERR_DEVICE, "E_CUDA",
                       "the driver's granule is %zu bytes, need a power of two of at least 4096",
                       bytes);
    mp_assert(bytes >= 4096);
    *bytes_p = bytes;
    return MP_OK;
}

/* With a context. */
static enum mp_status prepare(struct cuda_backend *self, const struct mp_backend_config *config)
{
    uint64_t granule = 0;
    enum mp_status status = mp_cuda_enter(self);

    mp_assert(self->life != NULL);
    if (status == MP_OK)
        status = mp_cuda_granule(self, MP_TIER_DEVICE, &granule);
    if (status != MP_OK)
        return status;
    self->super.caps = (struct mp_backend_caps){
        .granule_bytes = granule,
        .alias_align_bytes = granule,
        .frame_bytes_max = UINT64_C(1) << 40,
        .frames_max = 1u << 20,
        .tiers = 1u << MP_TIER_DEVICE | 1u << MP_TIER_HOST,
        .layouts = 1u << MP_LAYOUT_PACKED,
        .windows = true,
        .parallel_frames = true,
    };
    return mp_cuda_host_open(self, config);
}

static enum mp_status cuda_open(const struct mp_backend_config *config, struct mp_backend *inner,
                                struct mp_backend **backend_p)
{
    const struct mp_cuda *cuda;
    struct mp_cuda_device device;
    struct cuda_backend *self;
    enum mp_status status = mp_cuda_get(&cuda);

    mp_assert(inner == NULL);
    (void)inner;
    if (status == MP_OK && config->device >= cuda->devices)
        return mp_fail(MP_ERR_CONFIG, "E_CUDA_DEVICE",
                       "there is no CUDA device %u; the driver sees %u", config->device,
                       cuda->devices);
    if (status == MP_OK)
        status = mp_cuda_describe(cuda, config->device, &device);
    if (status != MP_OK)
        return status;
    if (!device.vmm)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_CUDA_OFF",
                       "CUDA is off: device '%s' has no virtual memory management", device.name);
    self = calloc(1, sizeof(*self));
    if (self == NULL)
        return mp_fail_no_memory("the cuda backend", sizeof(*self));
    self->super.ops = &mp_backend_cuda;
    self->cuda = cuda;
    self->device = device;
    self->life = mp_cuda_life_get(device.id);
    status = mp_cuda_note(self, cuda->call.context_retain(&self->context, device.id),
                          "cuDevicePrimaryCtxRetain", device.name);
    if (status == MP_OK) {
        status = prepare(self, config);
        if (status == MP_OK) {
            *backend_p = &self->super;
            return MP_OK;
        }
        if (mp_cuda_lost(self->life) == 0)
            (void)mp_cuda_undone(self, cuda->call.context_release(device.id),
                                 "cuDevicePrimaryCtxRelease");
    }
    mp_cuda_life_put(self->life);
    free(self);
    return status;
}

static uint64_t cuda_lost_bytes(struct mp_backend *backend)
{
    return atomic_load_explicit(&mp_cuda_self(backend)->lost_bytes, memory_order_relaxed);
}

static void cuda_close(struct mp_backend *backend)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    const uint64_t lost_bytes = cuda_lost_bytes(backend);
    const bool lost = mp_cuda_lost(self->life) != 0;

    mp_assert(self->ram != NULL);
    if (lost_bytes > 0 && !lost)
        mp_log_warn("cuda", "%" PRIu64 " bytes could not be given back to the driver", lost_bytes);
    /* A device that does not respond can keep its callers waiting for minutes. */
    if (!lost)
        (void)mp_cuda_undone(self, self->cuda->call.context_release(self->device.id),
                             "cuDevicePrimaryCtxRelease");
    mp_backend_close(self->ram);
    mp_cuda_life_put(self->life);
    free(self);
}

static bool cuda_reads_host(struct mp_backend *backend)
{
    return !atomic_load_explicit(&mp_cuda_self(backend)->staged, memory_order_relaxed);
}

static bool cuda_lost(struct mp_backend *backend)
{
    return mp_cuda_lost(mp_cuda_self(backend)->life) != 0;
}

const struct mp_backend_ops mp_backend_cuda = {
    .name = "cuda",
    .summary = "HBM of a CUDA device and host memory that it can reach",
    .open = cuda_open,
    .close = cuda_close,
    .memory_info = cuda_memory_info,
    .frame_create = cuda_frame_create,
    .frame_destroy = cuda_frame_destroy,
    .stream_open = mp_cuda_stream_open,
    .stream_close = mp_cuda_stream_close,
    .stream_copy = mp_cuda_stream_copy,
    .event_record = mp_cuda_event_record,
    .event_wait = mp_cuda_event_wait,
    .event_query = mp_cuda_event_query,
    .event_elapsed = mp_cuda_event_elapsed,
    .lost = cuda_lost,
    .lost_bytes = cuda_lost_bytes,
    .reads_host = cuda_reads_host,
    .window_reserve = mp_cuda_window_reserve,
    .window_free = mp_cuda_window_free,
    .window_map = mp_cuda_window_map,
    .window_unmap = mp_cuda_window_unmap,
};
