/*
 * Host frames of the CUDA backend: three kinds; each is used if the one before it is refused.
 *
 *     handles on the device's NUMA node, which it maps with large pages
 *     ordinary memory in huge pages on that node, pinned by registering it with the driver
 *     the same, not pinned: copies go through a buffer (staging.c)
 *
 * Large frames are registered in chunks, cut at multiples of the chunk in the address space. A copy
 * must not cross such a cut, and no call pins for longer than a chunk takes.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "vmm/backend/cuda/backend_cuda_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/backend/cuda/cuda_nodes.h"

/* Of mp_frame.handle: the driver has none for these. */
#define REGISTERED UINT64_MAX
#define PAGEABLE (UINT64_MAX - 1)

uint64_t mp_cuda_to_cut(const void *address)
{
    return MP_CUDA_PIN_BYTES - (uintptr_t)address % MP_CUDA_PIN_BYTES;
}

/* Bytes of the registration that begins `done` bytes into the frame. */
static uint64_t pin_bytes(const struct mp_frame *frame, uint64_t done)
{
    const uint64_t left = frame->bytes - done;
    const uint64_t cut = mp_cuda_to_cut((const char *)frame->alias + done);

    mp_assert(done < frame->bytes);
    return frame->bytes <= MP_CUDA_PIN_BYTES || left < cut ? left : cut;
}

/* Of the first `bytes` bytes. False: the driver still has some. */
static bool unpin(struct cuda_backend *self, const struct mp_frame *frame, uint64_t bytes)
{
    bool ok = true;

    mp_assert(bytes <= frame->bytes);
    for (uint64_t done = 0; done < bytes; done += pin_bytes(frame, done))
        ok &= mp_cuda_lost(self->life) == 0 &&
              mp_cuda_undone(self, self->cuda->call.host_unregister((char *)frame->alias + done),
                             "cuMemHostUnregister");
    return ok;
}

/* *lost_p: it failed, and what had been pinned so far stays so. */
static mp_cu_result pin(struct cuda_backend *self, const struct mp_frame *frame, bool *lost_p)
{
    const struct mp_cu_calls *call = &self->cuda->call;
    const unsigned flags = MP_CU_HOST_PORTABLE | MP_CU_HOST_DEVICE_MAP;
    mp_cu_result result = MP_CU_SUCCESS;
    uint64_t done = 0;

    while (result == MP_CU_SUCCESS && done < frame->bytes) {
        const uint64_t bytes = pin_bytes(frame, done);
        char *address = (char *)frame->alias + done;
        mp_cu_ptr seen = 0;

        result = call->host_register(address, bytes, flags);
        if (result != MP_CU_SUCCESS)
            break;
        done += bytes;
        /* Everybody uses one address for both; a system where they differ has no use for it. */
        result = call->host_device_pointer(&seen, address, 0);
        if (result == MP_CU_SUCCESS && seen != (uintptr_t)address)
            result = MP_CU_ERROR_NOT_SUPPORTED;
    }
    if (mp_cuda_is_sticky(result))
        mp_cuda_lose(self->life, result);
    mp_assert(done <= frame->bytes);
    *lost_p = result != MP_CU_SUCCESS && !unpin(self, frame, done);
    return result;
}

static void warn_pageable(struct cuda_backend *self)
{
    mp_assert(mp_error_last()->status != MP_OK);
    if (atomic_exchange_explicit(&self->staged, true, memory_order_relaxed))
        return;
    mp_log_warn("cuda",
                "host memory is not pinned: %s; experts go to the device through a small buffer, "
                "so the CPU copies each byte once more (not measured here), and the device cannot "
                "read them in place",
                mp_error_last()->text);
}

/* Memory of ours, pinned if the driver likes. */
static enum mp_status create_ours(struct cuda_backend *self, uint64_t bytes,
                                  struct mp_frame *frame_p)
{
    struct mp_frame frame;
    bool lost = false;
    char object[64];
    mp_cu_result result;
    enum mp_status status = self->ram->ops->frame_create(self->ram, MP_TIER_HOST, bytes, &frame);

    mp_assert(self->ram != NULL);
    if (status != MP_OK)
        return status;
    result = pin(self, &frame, &lost);
    frame.handle = REGISTERED;
    if (result != MP_CU_SUCCESS) {
        snprintf(object, sizeof(object), "a host frame of %" PRIu64 " bytes", bytes);
        status = mp_cuda_note(self, result, "cuMemHostRegister", object);
        if (lost) {
            mp_cuda_count_lost(self, bytes);
            return status;
        }
        frame.handle = PAGEABLE;
        if (mp_cuda_is_sticky(result)) {
            mp_cuda_host_frame_destroy(self, &frame);
            return status;
        }
        warn_pageable(self);
        mp_error_clear();
    }
    *frame_p = frame;
    return MP_OK;
}

enum mp_status mp_cuda_host_frame_create(struct cuda_backend *self, uint64_t bytes,
                                         struct mp_frame *frame_p)
{
    enum mp_status status;

    mp_assert(bytes > 0);
    if (!self->host_handles)
        return create_ours(self, bytes, frame_p);
    status = mp_cuda_create_mapped(self, MP_TIER_HOST, bytes, frame_p);
    if (status != MP_ERR_NO_SPACE && status != MP_ERR_UNSUPPORTED)
        return status;
    mp_log_once(MP_LOG_INFO, "cuda", "host frames are registered memory, because %s",
                mp_error_last()->text);
    return create_ours(self, bytes, frame_p);
}

bool mp_cuda_host_frame_destroy(struct cuda_backend *self, const struct mp_frame *frame)
{
    struct mp_frame ours = *frame;

    mp_assert(frame->handle != 0);
    if (frame->handle != REGISTERED && frame->handle != PAGEABLE)
        return false;
    if (frame->handle == REGISTERED && !unpin(self, frame, frame->bytes)) {
        mp_cuda_count_lost(self, frame->bytes); /* the device may still use the pages */
        return true;
    }
    ours.handle = (uint64_t)(uintptr_t)frame->alias;
    self->ram->ops->frame_destroy(self->ram, &ours);
    return true;
}

/* Frames of both tiers have one granule: the larger one. */
static bool try_handle(struct cuda_backend *self)
{
    struct mp_backend_caps *caps = &self->super.caps;
    const uint64_t device_bytes = caps->granule_bytes;
    uint64_t host_bytes;
    struct mp_frame frame;

    if (mp_cuda_granule(self, MP_TIER_HOST, &host_bytes) != MP_OK)
        return false;
    if (host_bytes > device_bytes)
        caps->granule_bytes = caps->alias_align_bytes = host_bytes;
    if (mp_cuda_create_mapped(self, MP_TIER_HOST, caps->granule_bytes, &frame) != MP_OK) {
        caps->granule_bytes = caps->alias_align_bytes = device_bytes;
        return false;
    }
    mp_backend_cuda.frame_destroy(&self->super, &frame);
    return true;
}

/* Whether host handles work here, and where, is found out by making one, not by asking. */
static void choose_node(struct cuda_backend *self, const struct mp_backend_config *config)
{
    int nodes[MP_CUDA_NODES_MAX];
    const unsigned count = mp_cuda_host_nodes(&self->device, config->numa_node, nodes);

    mp_assert(count >= 1 && count <= MP_CUDA_NODES_MAX);
    for (unsigned i = 0; i < count && !config->no_host_handles; i++) {
        self->numa_node = nodes[i];
        self->host_handles = try_handle(self);
        if (self->host_handles) {
            mp_error_clear();
            return;
        }
        mp_log_info("cuda", "no host frames by handle on NUMA node %d: %s", nodes[i],
                    mp_error_last()->text);
        mp_error_clear();
        if (mp_cuda_lost(self->life) != 0)
            break;
    }
    self->numa_node = nodes[0];
    mp_log_info("cuda", "host frames are registered memory");
}

enum mp_status mp_cuda_host_open(struct cuda_backend *self, const struct mp_backend_config *config)
{
    struct mp_backend_config ours = { .huge_pages = config->huge_pages,
                                      .align_bytes = self->super.caps.alias_align_bytes };
    enum mp_status status;
    int lost;

    mp_assert(self->super.caps.granule_bytes > 0 && self->ram == NULL);
    choose_node(self, config);
    lost = mp_cuda_lost(self->life);
    if (lost != 0)
        return mp_cuda_check(self->cuda, lost, "an earlier call", self->device.name);
    ours.numa_node = self->numa_node;
    status = mp_backend_host.open(&ours, NULL, &self->ram);
    if (status == MP_ERR_CONFIG) { /* the device's node has no memory for this process */
        mp_log_info("cuda", "host frames lie anywhere: %s", mp_error_last()->text);
        mp_error_clear();
        ours.numa_node = -1;
        status = mp_backend_host.open(&ours, NULL, &self->ram);
    }
    return status;
}
