/* A wrapper that logs every call with its arguments and result: changes at level debug, queries at
 * level trace. */
#include "vmm/backend/backend.h"

#include <inttypes.h>
#include <stdlib.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

struct trace_backend {
    struct mp_backend super;
    struct mp_backend *inner;
};

static struct mp_backend *inner_of(struct mp_backend *backend)
{
    mp_assert(backend->ops == &mp_backend_trace);
    return mp_container_of(backend, struct trace_backend, super)->inner;
}

static enum mp_status trace_open(const struct mp_backend_config *config, struct mp_backend *inner,
                                 struct mp_backend **backend_p)
{
    struct trace_backend *trace = malloc(sizeof(*trace));

    mp_assert(inner != NULL);
    if (trace == NULL)
        return mp_fail_no_memory("the trace backend", sizeof(*trace));
    trace->super.ops = &mp_backend_trace;
    trace->super.caps = inner->caps;
    trace->inner = inner;
    mp_log_debug("trace", "open %s numa_node %d huge_pages %d granule %" PRIu64, inner->ops->name,
                 config->numa_node, config->huge_pages, inner->caps.granule_bytes);
    *backend_p = &trace->super;
    return MP_OK;
}

static void trace_close(struct mp_backend *backend)
{
    struct trace_backend *trace = mp_container_of(backend, struct trace_backend, super);

    mp_assert(trace->inner != NULL);
    mp_log_debug("trace", "close %s", trace->inner->ops->name);
    mp_backend_close(trace->inner);
    free(trace);
}

static enum mp_status trace_memory_info(struct mp_backend *backend, enum mp_tier_kind tier,
                                        uint64_t *free_bytes_p, uint64_t *total_bytes_p)
{
    struct mp_backend *inner = inner_of(backend);
    uint64_t free_bytes = 0, total_bytes = 0;
    const enum mp_status status = inner->ops->memory_info(inner, tier, &free_bytes, &total_bytes);

    mp_log_trace("trace", "memory_info %s free %" PRIu64 " of %" PRIu64 ": %s",
                 mp_tier_kind_name(tier), free_bytes, total_bytes, mp_status_str(status));
    if (status != MP_OK)
        return status;
    *free_bytes_p = free_bytes;
    *total_bytes_p = total_bytes;
    return MP_OK;
}

static enum mp_status trace_frame_create(struct mp_backend *backend, enum mp_tier_kind tier,
                                         uint64_t bytes, struct mp_frame *frame_p)
{
    struct mp_backend *inner = inner_of(backend);
    const enum mp_status status = inner->ops->frame_create(inner, tier, bytes, frame_p);

    mp_log_debug("trace", "frame_create %s %" PRIu64 " bytes at %p: %s", mp_tier_kind_name(tier),
                 bytes, status == MP_OK ? frame_p->alias : NULL, mp_status_str(status));
    return status;
}

static void trace_frame_destroy(struct mp_backend *backend, struct mp_frame *frame)
{
    struct mp_backend *inner = inner_of(backend);

    mp_assert(frame->handle != 0);
    mp_log_debug("trace", "frame_destroy %s %" PRIu64 " bytes at %p",
                 mp_tier_kind_name(frame->tier), frame->bytes, frame->alias);
    inner->ops->frame_destroy(inner, frame);
}

static enum mp_status trace_stream_open(struct mp_backend *backend, struct mp_stream **stream_p)
{
    struct mp_backend *inner = inner_of(backend);
    const enum mp_status status = inner->ops->stream_open(inner, stream_p);

    mp_log_debug("trace", "stream_open: %s", mp_status_str(status));
    return status;
}

static void trace_stream_close(struct mp_backend *backend, struct mp_stream *stream)
{
    struct mp_backend *inner = inner_of(backend);

    mp_log_debug("trace", "stream_close");
    inner->ops->stream_close(inner, stream);
}

static enum mp_status trace_stream_copy(struct mp_backend *backend, struct mp_stream *stream,
                                        enum mp_copy copy, void *dst, const void *src,
                                        uint64_t bytes)
{
    static const char *const names[] = { "to device", "to host", "on device" };
    struct mp_backend *inner = inner_of(backend);
    const enum mp_status status = inner->ops->stream_copy(inner, stream, copy, dst, src, bytes);

    mp_assert((unsigned)copy < MP_COPY_COUNT);
    mp_log_debug("trace", "stream_copy %s %" PRIu64 " bytes from %p to %p: %s", names[copy], bytes,
                 src, dst, mp_status_str(status));
    return status;
}

static enum mp_status trace_event_record(struct mp_backend *backend, struct mp_stream *stream,
                                         unsigned event)
{
    struct mp_backend *inner = inner_of(backend);
    const enum mp_status status = inner->ops->event_record(inner, stream, event);

    mp_assert(event < MP_STREAM_EVENTS);
    mp_log_trace("trace", "event_record %u: %s", event, mp_status_str(status));
    return status;
}

static enum mp_status trace_event_wait(struct mp_backend *backend, struct mp_stream *stream,
                                       unsigned event)
{
    struct mp_backend *inner = inner_of(backend);
    const enum mp_status status = inner->ops->event_wait(inner, stream, event);

    mp_assert(event < MP_STREAM_EVENTS);
    mp_log_trace("trace", "event_wait %u: %s", event, mp_status_str(status));
    return status;
}

static enum mp_status trace_event_query(struct mp_backend *backend, struct mp_stream *stream,
                                        unsigned event, bool *reached_p)
{
    struct mp_backend *inner = inner_of(backend);
    const enum mp_status status = inner->ops->event_query(inner, stream, event, reached_p);

    mp_assert(event < MP_STREAM_EVENTS);
    mp_log_trace("trace", "event_query %u: %s", event, mp_status_str(status));
    return status;
}

static enum mp_status trace_event_elapsed(struct mp_backend *backend, struct mp_stream *stream,
                                          unsigned from, unsigned to, uint64_t *ns_p)
{
    struct mp_backend *inner = inner_of(backend);
    const enum mp_status status = inner->ops->event_elapsed(inner, stream, from, to, ns_p);

    mp_assert(from < MP_STREAM_EVENTS && to < MP_STREAM_EVENTS);
    mp_log_trace("trace", "event_elapsed %u %u: %s", from, to, mp_status_str(status));
    return status;
}

static bool trace_lost(struct mp_backend *backend)
{
    struct mp_backend *inner = inner_of(backend);

    return inner->ops->lost != NULL && inner->ops->lost(inner);
}

static uint64_t trace_lost_bytes(struct mp_backend *backend)
{
    struct mp_backend *inner = inner_of(backend);

    return inner->ops->lost_bytes != NULL ? inner->ops->lost_bytes(inner) : 0;
}

static bool trace_reads_host(struct mp_backend *backend)
{
    struct mp_backend *inner = inner_of(backend);

    return inner->ops->reads_host == NULL || inner->ops->reads_host(inner);
}

static enum mp_status trace_window_reserve(struct mp_backend *backend, uint64_t bytes,
                                           void **address_p)
{
    struct mp_backend *inner = inner_of(backend);
    const enum mp_status status = inner->ops->window_reserve(inner, bytes, address_p);

    mp_log_debug("trace", "window_reserve %" PRIu64 " bytes at %p: %s", bytes,
                 status == MP_OK ? *address_p : NULL, mp_status_str(status));
    return status;
}

static void trace_window_free(struct mp_backend *backend, void *address, uint64_t bytes)
{
    struct mp_backend *inner = inner_of(backend);

    mp_log_debug("trace", "window_free %" PRIu64 " bytes at %p", bytes, address);
    inner->ops->window_free(inner, address, bytes);
}

static enum mp_status trace_window_map(struct mp_backend *backend, void *place,
                                       const struct mp_frame *frame)
{
    struct mp_backend *inner = inner_of(backend);
    const enum mp_status status = inner->ops->window_map(inner, place, frame);

    mp_log_debug("trace", "window_map frame at %p to %p: %s", frame->alias, place,
                 mp_status_str(status));
    return status;
}

static enum mp_status trace_window_unmap(struct mp_backend *backend, void *place, uint64_t bytes)
{
    struct mp_backend *inner = inner_of(backend);
    const enum mp_status status = inner->ops->window_unmap(inner, place, bytes);

    mp_log_debug("trace", "window_unmap %" PRIu64 " bytes at %p: %s", bytes, place,
                 mp_status_str(status));
    return status;
}

const struct mp_backend_ops mp_backend_trace = {
    .name = "trace",
    .summary = "wrapper that logs every call",
    .wrapper = true,
    .open = trace_open,
    .close = trace_close,
    .memory_info = trace_memory_info,
    .frame_create = trace_frame_create,
    .frame_destroy = trace_frame_destroy,
    .stream_open = trace_stream_open,
    .stream_close = trace_stream_close,
    .stream_copy = trace_stream_copy,
    .event_record = trace_event_record,
    .event_wait = trace_event_wait,
    .event_query = trace_event_query,
    .event_elapsed = trace_event_elapsed,
    .lost = trace_lost,
    .lost_bytes = trace_lost_bytes,
    .reads_host = trace_reads_host,
    .window_reserve = trace_window_reserve,
    .window_free = trace_window_free,
    .window_map = trace_window_map,
    .window_unmap = trace_window_unmap,
};
