/*
 * Events: points in streams that the host and other streams can wait for.
 */
#include <stdlib.h>

#include "tests/device/fakecuda/stream.h"

FAKE_EXPORT mp_cu_result cuEventCreate(mp_cu_event *event, unsigned flags)
{
    const unsigned known = MP_CU_EVENT_BLOCKING_SYNC | MP_CU_EVENT_DISABLE_TIMING;
    struct fake_event *e;
    uint64_t handle;

    FAKE_BEGIN(cuEventCreate);
    FAKE_NEED_CONTEXT();
    if (event == NULL || (flags & ~known) != 0)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    e = calloc(1, sizeof(*e));
    handle = e != NULL ? fake_object_add(FAKE_EVENT, e) : 0;
    if (handle == 0) {
        free(e);
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    }
    e->flags = flags;
    *event = (mp_cu_event)(uintptr_t)handle;
    return fake_leave(MP_CU_SUCCESS);
}

static struct fake_event *event_of(mp_cu_event event)
{
    return fake_object(FAKE_EVENT, (uintptr_t)event);
}

FAKE_EXPORT mp_cu_result cuEventDestroy_v2(mp_cu_event event)
{
    struct fake_event *e;

    FAKE_BEGIN(cuEventDestroy_v2);
    FAKE_NEED_CONTEXT();
    e = event_of(event);
    if (e == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (e->capture == NULL && fake_host.seen[e->stream] < e->number)
        fake_violation("an event is destroyed whose end the host has not seen (stream %u)",
                       e->stream);
    fake_object_remove((uintptr_t)event);
    free(e);
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuEventRecord(mp_cu_event event, mp_cu_stream stream)
{
    struct fake_event *e;
    struct fake_stream *s;
    struct fake_op *op;

    FAKE_BEGIN(cuEventRecord);
    FAKE_NEED_CONTEXT();
    e = event_of(event);
    s = fake_stream_of(stream);
    if (e == NULL || s == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (s->capture != NULL) {
        fake_capture_record(s, e);
        return fake_leave(MP_CU_SUCCESS);
    }
    op = fake_op_new(FAKE_RECORD, "cuEventRecord");
    if (op == NULL)
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    op->event = (uintptr_t)event;
    op->record = e->records + 1;
    (void)fake_queue_now(s, op); /* touches nothing, so it is taken */
    e->records++;
    e->capture = NULL;
    e->error = 0;
    e->time_ns = 0;
    e->stream = s->index;
    e->number = op->number;
    e->clock = op->clock;
    return fake_leave(MP_CU_SUCCESS);
}

static int event_state(struct fake_event *event, bool block)
{
    const uint64_t number = event->number;
    const unsigned index = event->stream;
    struct fake_stream *stream = &fake_streams[index];
    const struct fake_clock clock = event->clock; /* it may be recorded again meanwhile */
    int result;

    if (event->capture != NULL) {
        fake_violation("an event of a capture is waited for by the host");
        return FAKE_CAPTURE_FORBIDDEN;
    }
    if (event->records == 0)
        return MP_CU_SUCCESS;
    result = fake_see_end(&clock, index, number, block);
    if (result == MP_CU_SUCCESS && event->error != 0) {
        result = event->error;
        (void)fake_report(stream, number);
    }
    return result;
}

FAKE_EXPORT mp_cu_result cuEventQuery(mp_cu_event event)
{
    struct fake_event *e;

    FAKE_BEGIN(cuEventQuery);
    FAKE_NEED_CONTEXT();
    e = event_of(event);
    return fake_leave(e != NULL ? event_state(e, false) : MP_CU_ERROR_INVALID_HANDLE);
}

FAKE_EXPORT mp_cu_result cuEventSynchronize(mp_cu_event event)
{
    struct fake_event *e;

    FAKE_BEGIN(cuEventSynchronize);
    FAKE_NEED_CONTEXT();
    e = event_of(event);
    return fake_leave(e != NULL ? event_state(e, true) : MP_CU_ERROR_INVALID_HANDLE);
}

FAKE_EXPORT mp_cu_result cuEventElapsedTime(float *ms, mp_cu_event start, mp_cu_event end)
{
    struct fake_event *a, *b;

    FAKE_BEGIN(cuEventElapsedTime);
    FAKE_NEED_CONTEXT();
    a = event_of(start);
    b = event_of(end);
    if (ms == NULL || a == NULL || b == NULL || a->records == 0 || b->records == 0 ||
        ((a->flags | b->flags) & MP_CU_EVENT_DISABLE_TIMING) != 0)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (fake_streams[a->stream].done < a->number || fake_streams[b->stream].done < b->number)
        return fake_leave(MP_CU_ERROR_NOT_READY);
    *ms = fake.elapsed_ms > 0 ? fake.elapsed_ms
                              : (float)((double)(int64_t)(b->time_ns - a->time_ns) / 1e6);
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuStreamWaitEvent(mp_cu_stream stream, mp_cu_event event, unsigned flags)
{
    struct fake_event *e;
    struct fake_stream *s;
    struct fake_op *op;

    FAKE_BEGIN(cuStreamWaitEvent);
    FAKE_NEED_CONTEXT();
    e = event_of(event);
    s = fake_stream_of(stream);
    if (e == NULL || s == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (flags != 0)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    if (e->capture != NULL)
        return fake_leave(fake_capture_join(s, e));
    if (s->capture != NULL && e->records > 0 && fake_host.seen[e->stream] < e->number) {
        fake_violation("a captured stream waits for work outside of the capture");
        return fake_leave(905); /* CUDA_ERROR_STREAM_CAPTURE_ISOLATION */
    }
    if (e->records == 0 || s->capture != NULL)
        return fake_leave(MP_CU_SUCCESS);
    op = fake_op_new(FAKE_WAIT, "cuStreamWaitEvent");
    if (op == NULL)
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    op->wait_stream = e->stream;
    op->wait_number = e->number;
    fake_clock_join(&s->clock, &e->clock);
    if (s->clock.seen[e->stream] < e->number)
        s->clock.seen[e->stream] = e->number;
    return fake_leave(fake_queue_now(s, op));
}
