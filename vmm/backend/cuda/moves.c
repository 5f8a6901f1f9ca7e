/*
 * Copies and windows of the CUDA backend; frames are made elsewhere.
 *
 * Each stream is a non-blocking stream of the driver with its own events, so copies run in parallel
 * with kernels and can be waited for one by one. Asynchronous failures are reported by the next
 * wait.
 *
 * A window is an address range without memory; frames are mapped into it at places that the caller
 * chooses. Neither mapping nor unmapping waits for running work: the caller guarantees that there
 * is none.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/backend/cuda/backend_cuda_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* Attempts to see a stream end before what it may still touch counts as out of control. */
#define CLOSE_TRIES 3

struct mp_stream {
    mp_cu_stream handle;
    mp_cu_event events[MP_STREAM_EVENTS];
    struct mp_cuda_stage *stage; /* NULL: was not needed yet */
};

static enum mp_status note(struct cuda_backend *self, mp_cu_result result, const char *call,
                           uint64_t bytes, const char *what)
{
    char object[64];

    mp_assert(what != NULL);
    if (result == MP_CU_SUCCESS)
        return MP_OK;
    snprintf(object, sizeof(object), "%s of %" PRIu64 " bytes", what, bytes);
    return mp_cuda_note(self, result, call, object);
}

enum mp_status mp_cuda_stream_open(struct mp_backend *backend, struct mp_stream **stream_p)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    const struct mp_cu_calls *call = &self->cuda->call;
    struct mp_stream *stream;
    enum mp_status status = mp_cuda_enter(self);

    if (status != MP_OK)
        return status;
    stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return mp_fail_no_memory("a stream", sizeof(*stream));
    status = mp_cuda_note(self, call->stream_create(&stream->handle, MP_CU_STREAM_NON_BLOCKING, 0),
                          "cuStreamCreateWithPriority", self->device.name);
    for (unsigned i = 0; status == MP_OK && i < MP_STREAM_EVENTS; i++)
        status =
            mp_cuda_note(self, call->event_create(&stream->events[i], MP_CU_EVENT_BLOCKING_SYNC),
                         "cuEventCreate", self->device.name);
    if (status != MP_OK) {
        mp_cuda_stream_close(backend, stream);
        return status;
    }
    mp_assert(stream->handle != NULL);
    *stream_p = stream;
    return MP_OK;
}

static void lose(struct cuda_backend *self, mp_cu_result result, const char *call)
{
    mp_assert(result != MP_CU_SUCCESS);
    mp_cuda_lose(self->life, result);
    if (!mp_cuda_known_lost(result))
        mp_log_error("cuda", "%s failed (%d); the device counts as lost", call, result);
}

/* Nobody may reuse memory that a stream could still write. If it cannot be seen to end, the device
 * counts as lost. */
static void drain(struct cuda_backend *self, mp_cu_stream stream)
{
    mp_cu_result result = MP_CU_SUCCESS;

    mp_assert(stream != NULL);
    for (unsigned i = 0; i < CLOSE_TRIES; i++) {
        result = self->cuda->call.stream_synchronize(stream);
        if (result == MP_CU_SUCCESS)
            return;
        if (mp_cuda_is_sticky(result))
            break;
    }
    lose(self, result, "cuStreamSynchronize");
}

/* Also takes a half-made stream. */
void mp_cuda_stream_close(struct mp_backend *backend, struct mp_stream *stream)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    const struct mp_cu_calls *call = &self->cuda->call;
    const struct mp_error before = *mp_error_last();

    if (mp_cuda_enter(self) == MP_OK) {
        if (stream->handle != NULL)
            drain(self, stream->handle);
        for (unsigned i = 0; i < MP_STREAM_EVENTS && stream->events[i] != NULL; i++) {
            if (mp_cuda_lost(self->life) == 0)
                (void)mp_cuda_undone(self, call->event_destroy(stream->events[i]),
                                     "cuEventDestroy");
        }
        if (stream->handle != NULL && mp_cuda_lost(self->life) == 0)
            (void)mp_cuda_undone(self, call->stream_destroy(stream->handle), "cuStreamDestroy");
    } else if (stream->handle != NULL && mp_cuda_lost(self->life) == 0) {
        lose(self, MP_CU_ERROR_UNKNOWN, "cuCtxSetCurrent");
    }
    mp_cuda_stage_close(self, stream->stage);
    mp_error_set(&before);
    free(stream);
}

/* A copy failed after a part of it may have been queued: nothing of it may run on. */
static void end_partial(struct cuda_backend *self, struct mp_stream *stream)
{
    const struct mp_error error = *mp_error_last();

    mp_assert(error.status != MP_OK);
    if (mp_cuda_lost(self->life) == 0)
        drain(self, stream->handle);
    if (stream->stage != NULL)
        mp_cuda_stage_reset(stream->stage);
    mp_error_set(&error);
}

static enum mp_status copy_staged(struct cuda_backend *self, struct mp_stream *stream,
                                  enum mp_copy copy, void *dst, const void *src, uint64_t bytes)
{
    enum mp_status status = MP_OK;

    mp_assert(copy != MP_COPY_ON_DEVICE);
    if (stream->stage == NULL)
        status = mp_cuda_stage_open(self, &stream->stage);
    if (status != MP_OK)
        return status;
    status = mp_cuda_stage_copy(self, stream->stage, stream->handle, copy, dst, src, bytes);
    if (status != MP_OK)
        end_partial(self, stream);
    return status;
}

static enum mp_status queue_copy(struct cuda_backend *self, struct mp_stream *stream,
                                 enum mp_copy copy, void *dst, const void *src, uint64_t bytes)
{
    const struct mp_cu_calls *call = &self->cuda->call;
    const mp_cu_ptr to = (uintptr_t)dst, from = (uintptr_t)src;

    mp_assert(bytes > 0);
    switch (copy) {
    case MP_COPY_TO_DEVICE:
        return note(self, call->copy_to_device(to, src, bytes, stream->handle), "cuMemcpyHtoDAsync",
                    bytes, "a copy");
    case MP_COPY_TO_HOST:
        return note(self, call->copy_to_host(dst, from, bytes, stream->handle), "cuMemcpyDtoHAsync",
                    bytes, "a copy");
    case MP_COPY_ON_DEVICE:
        return note(self, call->copy_on_device(to, from, bytes, stream->handle),
                    "cuMemcpyDtoDAsync", bytes, "a copy");
    case MP_COPY_COUNT: break;
    }
    mp_unreachable();
}

/* In pieces of the host's memory that were pinned together. */
static enum mp_status copy_pinned(struct cuda_backend *self, struct mp_stream *stream,
                                  enum mp_copy copy, char *dst, const char *src, uint64_t bytes)
{
    enum mp_status status = MP_OK;

    for (uint64_t done = 0, n; status == MP_OK && done < bytes; done += n) {
        const uint64_t cut = mp_cuda_to_cut(copy == MP_COPY_TO_HOST ? dst + done : src + done);

        n = bytes - done < cut || copy == MP_COPY_ON_DEVICE ? bytes - done : cut;
        mp_assert(n > 0); /* or it would not end */
        status = queue_copy(self, stream, copy, dst + done, src + done, n);
        if (status != MP_OK && done > 0)
            end_partial(self, stream);
    }
    return status;
}

enum mp_status mp_cuda_stream_copy(struct mp_backend *backend, struct mp_stream *stream,
                                   enum mp_copy copy, void *dst, const void *src, uint64_t bytes)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    const bool staged = copy != MP_COPY_ON_DEVICE && !backend->ops->reads_host(backend);
    const enum mp_status status = mp_cuda_enter(self);

    mp_assert((unsigned)copy < MP_COPY_COUNT && bytes > 0);
    if (status != MP_OK)
        return status;
    return staged ? copy_staged(self, stream, copy, dst, src, bytes)
                  : copy_pinned(self, stream, copy, dst, src, bytes);
}

enum mp_status mp_cuda_event_record(struct mp_backend *backend, struct mp_stream *stream,
                                    unsigned event)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    const enum mp_status status = mp_cuda_enter(self);

    mp_assert(event < MP_STREAM_EVENTS);
    if (status != MP_OK)
        return status;
    return mp_cuda_note(self, self->cuda->call.event_record(stream->events[event], stream->handle),
                        "cuEventRecord", "copies");
}

enum mp_status mp_cuda_event_wait(struct mp_backend *backend, struct mp_stream *stream,
                                  unsigned event)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    const enum mp_status status = mp_cuda_enter(self);

    mp_assert(event < MP_STREAM_EVENTS);
    if (status != MP_OK)
        return status;
    return mp_cuda_note(self, self->cuda->call.event_synchronize(stream->events[event]),
                        "cuEventSynchronize", "copies");
}

enum mp_status mp_cuda_event_query(struct mp_backend *backend, struct mp_stream *stream,
                                   unsigned event, bool *reached_p)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    const enum mp_status status = mp_cuda_enter(self);
    mp_cu_result result;

    mp_assert(event < MP_STREAM_EVENTS);
    if (status != MP_OK)
        return status;
    result = self->cuda->call.event_query(stream->events[event]);
    *reached_p = result == MP_CU_SUCCESS;
    return result == MP_CU_ERROR_NOT_READY ? MP_OK
                                           : mp_cuda_note(self, result, "cuEventQuery", "copies");
}

enum mp_status mp_cuda_event_elapsed(struct mp_backend *backend, struct mp_stream *stream,
                                     unsigned from, unsigned to, uint64_t *ns_p)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    enum mp_status status = mp_cuda_enter(self);
    float ms = 0;

    mp_assert(from < MP_STREAM_EVENTS && to < MP_STREAM_EVENTS);
    if (status == MP_OK)
        status = mp_cuda_note(
            self, self->cuda->call.event_elapsed(&ms, stream->events[from], stream->events[to]),
            "cuEventElapsedTime", "copies");
    if (status == MP_OK)
        *ns_p = (uint64_t)((double)ms * 1e6);
    return status;
}

enum mp_status mp_cuda_window_reserve(struct mp_backend *backend, uint64_t bytes, void **address_p)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    mp_cu_ptr address = 0;
    enum mp_status status = mp_cuda_enter(self);

    mp_assert(bytes > 0 && bytes % backend->caps.alias_align_bytes == 0);
    if (status == MP_OK)
        status = note(self,
                      self->cuda->call.address_reserve(&address, bytes,
                                                       backend->caps.alias_align_bytes, 0, 0),
                      "cuMemAddressReserve", bytes, "a window");
    if (status == MP_OK)
        *address_p = (void *)(uintptr_t)address;
    return status;
}

void mp_cuda_window_free(struct mp_backend *backend, void *address, uint64_t bytes)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    const struct mp_error before = *mp_error_last();

    mp_assert(address != NULL && bytes % backend->caps.alias_align_bytes == 0);
    if (mp_cuda_enter(self) == MP_OK)
        (void)mp_cuda_undone(self, self->cuda->call.address_free((uintptr_t)address, bytes),
                             "cuMemAddressFree");
    mp_error_set(&before);
}

enum mp_status mp_cuda_window_map(struct mp_backend *backend, void *place,
                                  const struct mp_frame *frame)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    const struct mp_cu_calls *call = &self->cuda->call;
    const mp_cu_ptr address = (uintptr_t)place;
    struct mp_cu_access access[2];
    enum mp_status status = mp_cuda_enter(self);

    mp_assert(frame->handle != 0 && address % backend->caps.alias_align_bytes == 0);
    if (status != MP_OK)
        return status;
    memset(access, 0, sizeof(access));
    access[0].location.type = MP_CU_LOCATION_DEVICE;
    access[0].location.id = self->device.id;
    access[1].location.type = MP_CU_LOCATION_HOST_NUMA;
    access[1].location.id = self->numa_node;
    access[0].flags = access[1].flags = MP_CU_ACCESS_READ_WRITE;
    status = note(self, call->map(address, frame->bytes, 0, frame->handle, 0), "cuMemMap",
                  frame->bytes, "a place in a window");
    if (status != MP_OK)
        return status;
    status = note(
        self, call->set_access(address, frame->bytes, access, frame->tier == MP_TIER_HOST ? 2 : 1),
        "cuMemSetAccess", frame->bytes, "a place in a window");
    if (status != MP_OK &&
        (mp_cuda_lost(self->life) != 0 ||
         !mp_cuda_undone(self, call->unmap(address, frame->bytes), "cuMemUnmap")))
        return MP_ERR_BUSY;
    return status;
}

enum mp_status mp_cuda_window_unmap(struct mp_backend *backend, void *place, uint64_t bytes)
{
    struct cuda_backend *self = mp_cuda_self(backend);
    const enum mp_status status = mp_cuda_enter(self);

    mp_assert((uintptr_t)place % backend->caps.alias_align_bytes == 0);
    if (status != MP_OK)
        return status;
    return note(self, self->cuda->call.unmap((uintptr_t)place, bytes), "cuMemUnmap", bytes,
                "a place in a window");
}
