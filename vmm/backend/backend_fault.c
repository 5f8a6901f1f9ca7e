/*
 * A wrapper that fails calls on demand, for tests: after `countdown` calls that pass, one or all
 * that follow. A failed call never reaches the wrapped backend and does not set out-parameters.
 */
#include "vmm/backend/backend.h"

#include <inttypes.h>
#include <stdlib.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/lock.h"

struct fault_backend {
    struct mp_backend super;
    struct mp_backend *inner;
    struct mp_mutex lock; /* streams are used by threads of their own */
    /* Calls that still pass; < 0: all do. */
    int64_t countdown MP_GUARDED_BY(lock);
    bool once MP_GUARDED_BY(lock);
    enum mp_status status MP_GUARDED_BY(lock);
    uint64_t calls MP_GUARDED_BY(lock); /* since the last set */
};

static struct fault_backend *fault_of(struct mp_backend *backend)
{
    mp_assert(backend->ops == &mp_backend_fault);
    return mp_container_of(backend, struct fault_backend, super);
}

static enum mp_status fault_open(const struct mp_backend_config *config, struct mp_backend *inner,
                                 struct mp_backend **backend_p)
{
    struct fault_backend *fault = calloc(1, sizeof(*fault));

    (void)config;
    mp_assert(inner != NULL);
    if (fault == NULL)
        return mp_fail_no_memory("the fault backend", sizeof(*fault));
    fault->super.ops = &mp_backend_fault;
    fault->super.caps = inner->caps;
    fault->inner = inner;
    mp_mutex_init(&fault->lock, MP_LOCK_LEAF, "backend.fault");
    fault->countdown = -1;
    *backend_p = &fault->super;
    return MP_OK;
}

static void fault_close(struct mp_backend *backend)
{
    struct fault_backend *fault = fault_of(backend);

    mp_backend_close(fault->inner);
    mp_mutex_fini(&fault->lock);
    free(fault);
}

uint64_t mp_backend_fault_set(struct mp_backend *fault_backend, int64_t countdown, bool once,
                              enum mp_status status)
{
    struct fault_backend *fault = fault_of(fault_backend);
    uint64_t calls;

    mp_assert(fault_backend->ops == &mp_backend_fault);
    mp_assert(countdown < 0 || status != MP_OK);
    mp_lock(&fault->lock);
    calls = fault->calls;
    fault->countdown = countdown;
    fault->once = once;
    fault->status = status;
    fault->calls = 0;
    mp_unlock(&fault->lock);
    return calls;
}

/* One call that can fail: its status if it is to fail now. */
static enum mp_status step(struct fault_backend *fault, const char *call)
{
    enum mp_status status = MP_OK;

    mp_lock(&fault->lock);
    fault->calls++;
    mp_assert(fault->calls > 0);
    if (fault->countdown > 0) {
        fault->countdown--;
    } else if (fault->countdown == 0) {
        if (fault->once)
            fault->countdown = -1;
        status = mp_fail(fault->status, "E_INJECTED", "injected failure in %s, call %" PRIu64, call,
                         fault->calls);
    }
    mp_unlock(&fault->lock);
    return status;
}

static enum mp_status fault_memory_info(struct mp_backend *backend, enum mp_tier_kind tier,
                                        uint64_t *free_bytes_p, uint64_t *total_bytes_p)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "memory_info");

    if (status != MP_OK)
        return status;
    return fault->inner->ops->memory_info(fault->inner, tier, free_bytes_p, total_bytes_p);
}

static enum mp_status fault_frame_create(struct mp_backend *backend, enum mp_tier_kind tier,
                                         uint64_t bytes, struct mp_frame *frame_p)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "frame_create");

    if (status != MP_OK)
        return status;
    return fault->inner->ops->frame_create(fault->inner, tier, bytes, frame_p);
}

static void fault_frame_destroy(struct mp_backend *backend, struct mp_frame *frame)
{
    struct fault_backend *fault = fault_of(backend);

    mp_assert(frame->handle != 0);
    fault->inner->ops->frame_destroy(fault->inner, frame);
}

static enum mp_status fault_stream_open(struct mp_backend *backend, struct mp_stream **stream_p)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "stream_open");

    return status != MP_OK ? status : fault->inner->ops->stream_open(fault->inner, stream_p);
}

static void fault_stream_close(struct mp_backend *backend, struct mp_stream *stream)
{
    struct fault_backend *fault = fault_of(backend);

    fault->inner->ops->stream_close(fault->inner, stream);
}

static enum mp_status fault_stream_copy(struct mp_backend *backend, struct mp_stream *stream,
                                        enum mp_copy copy, void *dst, const void *src,
                                        uint64_t bytes)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "stream_copy");

    mp_assert((unsigned)copy < MP_COPY_COUNT);
    return status != MP_OK
               ? status
               : fault->inner->ops->stream_copy(fault->inner, stream, copy, dst, src, bytes);
}

static enum mp_status fault_event_record(struct mp_backend *backend, struct mp_stream *stream,
                                         unsigned event)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "event_record");

    mp_assert(event < MP_STREAM_EVENTS);
    return status != MP_OK ? status : fault->inner->ops->event_record(fault->inner, stream, event);
}

static enum mp_status fault_event_wait(struct mp_backend *backend, struct mp_stream *stream,
                                       unsigned event)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "event_wait");

    mp_assert(event < MP_STREAM_EVENTS);
    return status != MP_OK ? status : fault->inner->ops->event_wait(fault->inner, stream, event);
}

static enum mp_status fault_event_query(struct mp_backend *backend, struct mp_stream *stream,
                                        unsigned event, bool *reached_p)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "event_query");

    mp_assert(event < MP_STREAM_EVENTS);
    return status != MP_OK ? status
                           : fault->inner->ops->event_query(fault->inner, stream, event, reached_p);
}

static enum mp_status fault_event_elapsed(struct mp_backend *backend, struct mp_stream *stream,
                                          unsigned from, unsigned to, uint64_t *ns_p)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "event_elapsed");

    mp_assert(from < MP_STREAM_EVENTS && to < MP_STREAM_EVENTS);
    return status != MP_OK ? status
                           : fault->inner->ops->event_elapsed(fault->inner, stream, from, to, ns_p);
}

static bool fault_lost(struct mp_backend *backend)
{
    struct mp_backend *inner = fault_of(backend)->inner;

    return inner->ops->lost != NULL && inner->ops->lost(inner);
}

static uint64_t fault_lost_bytes(struct mp_backend *backend)
{
    struct mp_backend *inner = fault_of(backend)->inner;

    return inner->ops->lost_bytes != NULL ? inner->ops->lost_bytes(inner) : 0;
}

static bool fault_reads_host(struct mp_backend *backend)
{
    struct mp_backend *inner = fault_of(backend)->inner;

    return inner->ops->reads_host == NULL || inner->ops->reads_host(inner);
}

static enum mp_status fault_window_reserve(struct mp_backend *backend, uint64_t bytes,
                                           void **address_p)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "window_reserve");

    return status != MP_OK ? status
                           : fault->inner->ops->window_reserve(fault->inner, bytes, address_p);
}

static void fault_window_free(struct mp_backend *backend, void *address, uint64_t bytes)
{
    struct fault_backend *fault = fault_of(backend);

    fault->inner->ops->window_free(fault->inner, address, bytes);
}

static enum mp_status fault_window_map(struct mp_backend *backend, void *place,
                                       const struct mp_frame *frame)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "window_map");

    return status != MP_OK ? status : fault->inner->ops->window_map(fault->inner, place, frame);
}

static enum mp_status fault_window_unmap(struct mp_backend *backend, void *place, uint64_t bytes)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "window_unmap");

    return status != MP_OK ? status : fault->inner->ops->window_unmap(fault->inner, place, bytes);
}

/* Beyond caps.file_target and caps.windows nobody calls streams and windows. */
const struct mp_backend_ops mp_backend_fault = {
    .name = "fault",
    .summary = "wrapper that fails chosen calls, for tests",
    .wrapper = true,
    .open = fault_open,
    .close = fault_close,
    .memory_info = fault_memory_info,
    .frame_create = fault_frame_create,
    .frame_destroy = fault_frame_destroy,
    .stream_open = fault_stream_open,
    .stream_close = fault_stream_close,
    .stream_copy = fault_stream_copy,
    .event_record = fault_event_record,
    .event_wait = fault_event_wait,
    .event_query = fault_event_query,
    .event_elapsed = fault_event_elapsed,
    .lost = fault_lost,
    .lost_bytes = fault_lost_bytes,
    .reads_host = fault_reads_host,
    .window_reserve = fault_window_reserve,
    .window_free = fault_window_free,
    .window_map = fault_window_map,
    .window_unmap = fault_window_unmap,
};
