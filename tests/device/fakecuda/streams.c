/*
 * Streams: queues of operations, and what is known of their order.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/device/fakecuda/stream.h"

#define DEFAULT_STREAM 1u /* CU_STREAM_LEGACY */

struct fake_stream fake_streams[FAKE_STREAMS_MAX];
struct fake_clock fake_host;
/* Of each stream, the last failure that the thread has got. */
static __thread uint64_t reported[FAKE_STREAMS_MAX];
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static unsigned moved_waiters;

void fake_moved(void)
{
    if (moved_waiters > 0)
        pthread_cond_broadcast(&moved);
}

void fake_wait_moved(void)
{
    moved_waiters++;
    pthread_cond_wait(&moved, &fake.lock);
    moved_waiters--;
}

void fake_wake_all(void)
{
    for (unsigned s = 0; s < FAKE_STREAMS_MAX; s++) {
        if (fake_streams[s].has_thread)
            pthread_cond_signal(&fake_streams[s].work);
    }
    fake_moved();
}

void fake_clock_join(struct fake_clock *clock, const struct fake_clock *other)
{
    for (unsigned s = 0; s < FAKE_STREAMS_MAX; s++) {
        if (clock->seen[s] < other->seen[s])
            clock->seen[s] = other->seen[s];
    }
}

struct fake_op *fake_op_new(enum fake_op_kind kind, const char *name)
{
    struct fake_op *op = calloc(1, sizeof(*op));

    if (op != NULL) {
        op->kind = kind;
        op->name = name;
    }
    return op;
}

void fake_op_free(struct fake_op *op)
{
    fake_undeclare(op);
    free(op->accesses);
    free(op->params);
    free(op);
}

/* ---- what the host has seen */

static void forget_seen(struct fake_stream *stream)
{
    while (stream->first != NULL && stream->first != stream->next && stream->first->finished &&
           stream->first->number <= fake_host.seen[stream->index]) {
        struct fake_op *op = stream->first;

        stream->first = op->next;
        if (stream->first == NULL)
            stream->last = NULL;
        fake_op_free(op);
    }
}

/* The host has seen an operation's end, and so that of all before it. */
static void learn(const struct fake_clock *clock, unsigned stream, uint64_t number)
{
    fake_clock_join(&fake_host, clock);
    if (fake_host.seen[stream] < number)
        fake_host.seen[stream] = number;
    for (unsigned s = 0; s < FAKE_STREAMS_MAX; s++)
        forget_seen(&fake_streams[s]);
}

/* Lazy streams move when somebody wants it. */
static void want(const struct fake_clock *clock, unsigned stream, uint64_t number)
{
    for (unsigned s = 0; s < FAKE_STREAMS_MAX; s++) {
        const uint64_t wanted = s == stream ? number : clock->seen[s];

        if (fake_streams[s].wanted < wanted) {
            fake_streams[s].wanted = wanted;
            if (fake_streams[s].has_thread)
                pthread_cond_signal(&fake_streams[s].work);
        }
    }
}

int fake_see_end(const struct fake_clock *clock, unsigned stream, uint64_t number, bool block)
{
    want(clock, stream, number);
    while (block && fake.lost == 0 && fake_streams[stream].done < number)
        fake_wait_moved();
    if (fake.lost != 0)
        return fake.lost;
    if (fake_streams[stream].done < number)
        return MP_CU_ERROR_NOT_READY;
    learn(clock, stream, number);
    return MP_CU_SUCCESS;
}

/* ---- queueing */

/* What can be said of a kernel's memory before it runs. */
struct declaring {
    struct fake_op *op;
    bool ok;
};

/* What device memory holds is not known yet, so nothing in it may be looked at. */
static bool declare_touch(void *ctx, uint64_t address, uint64_t bytes, bool write)
{
    struct declaring *d = ctx;

    d->ok &= fake_declare(d->op, address, (size_t)bytes, write);
    return false;
}

static bool declare_all(struct fake_op *op)
{
    struct declaring d = { op, true };

    switch (op->kind) {
    case FAKE_COPY:
        d.ok = fake_declare(op, op->src, op->bytes, false);
        d.ok &= fake_declare(op, op->dst, op->bytes, true);
        break;
    case FAKE_FILL: d.ok = fake_declare(op, op->dst, op->bytes, true); break;
    case FAKE_KERNEL: op->function->kernel->touches(op->params, declare_touch, &d); break;
    default: break;
    }
    return d.ok;
}

/*
 * The host must leave alone what a copy reads until it has seen its end, so the source is summed up
 * now; and must not look at what a copy writes, so rubbish stands there until the copy is done.
 */
static void check_host_memory(struct fake_op *op)
{
    const struct fake_region *source = fake_region_at(op->src);
    const struct fake_region *target = fake_region_at(op->dst);

    if (op->kind != FAKE_COPY)
        return;
    if (source->host_access != MP_CU_ACCESS_NONE && !fake_is_used(op->src, op->bytes, true)) {
        op->sum = fake_sum((const void *)(uintptr_t)op->src, op->bytes);
        op->has_sum = true;
    }
    if (target->host_access == MP_CU_ACCESS_READ_WRITE &&
        !fake_is_used(op->dst, op->bytes, false) && source->physical != target->physical)
        memset((void *)(uintptr_t)op->dst, FAKE_RUBBISH, op->bytes);
}

static void count_work(const struct fake_op *op)
{
    fake.work.copies += op->kind == FAKE_COPY;
    fake.work.fills += op->kind == FAKE_FILL;
    if (op->kind != FAKE_KERNEL)
        return;
    fake.work.kernels++;
    fake.work.early += op->early;
    fake.work.blocks += (uint64_t)op->grid.x * op->grid.y * op->grid.z;
}

int fake_queue_now(struct fake_stream *stream, struct fake_op *op)
{
    stream->behind_waiting = op->kind == FAKE_KERNEL && op->function->waits;
    op->stream = stream->index;
    op->number = stream->queued + 1;
    op->queued = ++fake.now;
    op->queued_ns = fake_time_ns();
    fake_clock_join(&stream->clock, &fake_host);
    stream->clock.seen[stream->index] = stream->queued;
    op->clock = stream->clock;
    op->failure = fake_planned_later(op->name);
    op->reported = reported[stream->index];
    if (!declare_all(op) && op->kind != FAKE_KERNEL) { /* a kernel is taken, and falls later */
        fake_op_free(op);
        return MP_CU_ERROR_INVALID_VALUE;
    }
    check_host_memory(op);
    fake_check_order(op);
    if (op->kind == FAKE_KERNEL)
        fake_module_launched(op);
    stream->queued = op->number;
    fake_count(op);
    count_work(op);
    if (stream->last != NULL)
        stream->last->next = op;
    else
        stream->first = op;
    stream->last = op;
    if (stream->next == NULL)
        stream->next = op;
    pthread_cond_signal(&stream->work);
    return MP_CU_SUCCESS;
}

int fake_queue(struct fake_stream *stream, struct fake_op *op)
{
    if (stream->capture == NULL)
        return fake_queue_now(stream, op);
    stream->behind_waiting = op->kind == FAKE_KERNEL && op->function->waits;
    return fake_graph_add(stream->capture, op, stream->index);
}

/* ---- calls */

FAKE_EXPORT mp_cu_result cuStreamCreateWithPriority(mp_cu_stream *stream, unsigned flags,
                                                    int priority)
{
    struct fake_stream *place = NULL;

    (void)priority;
    FAKE_BEGIN(cuStreamCreateWithPriority);
    FAKE_NEED_CONTEXT();
    if (stream == NULL || (flags & ~(unsigned)MP_CU_STREAM_NON_BLOCKING) != 0)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    if (flags == 0)
        fake_violation("a stream that waits for the default stream");
    for (unsigned s = FAKE_STREAMS_MAX; s-- > 0;) {
        if (!fake_streams[s].used && fake_streams[s].next == NULL)
            place = &fake_streams[s];
    }
    if (place == NULL)
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    fake_faults_begin();
    place->index = (unsigned)(place - fake_streams);
    place->handle = fake_object_add(FAKE_STREAM, place);
    if (place->handle == 0 || !fake_worker_start(place)) {
        fake_object_remove(place->handle);
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    }
    place->used = true;
    place->device = (unsigned)(fake_current - 1);
    place->failure = 0;
    place->capture = NULL;
    place->random = (fake.seed + 1) * 0x9e3779b97f4a7c15u ^ (place->handle + 1);
    *stream = (mp_cu_stream)(uintptr_t)place->handle;
    return fake_leave(MP_CU_SUCCESS);
}

static void end_stream(struct fake_stream *stream)
{
    fake_object_remove(stream->handle);
    stream->used = false;
    stream->capture = NULL;
    stream->wanted = UINT64_MAX; /* what is queued is still done */
    pthread_cond_signal(&stream->work);
}

struct fake_stream *fake_stream_of(mp_cu_stream stream)
{
    return fake_object(FAKE_STREAM, (uintptr_t)stream);
}

FAKE_EXPORT mp_cu_result cuStreamDestroy_v2(mp_cu_stream stream)
{
    struct fake_stream *s;

    FAKE_BEGIN(cuStreamDestroy_v2);
    FAKE_NEED_CONTEXT();
    s = fake_stream_of(stream);
    if (s == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (s->capture != NULL)
        fake_violation("stream %u is destroyed while it is captured", s->index);
    if (fake_host.seen[s->index] < s->queued)
        fake_violation("stream %u is destroyed with work whose end the host has not seen",
                       s->index);
    end_stream(s);
    return fake_leave(MP_CU_SUCCESS);
}

bool fake_is_spoilt(const struct fake_op *op)
{
    return op->reported < fake_streams[op->stream].failure;
}

int fake_report(struct fake_stream *stream, uint64_t number)
{
    if (reported[stream->index] >= stream->failure || number < stream->failed)
        return MP_CU_SUCCESS;
    reported[stream->index] = stream->failure;
    return stream->error;
}

static int stream_state(struct fake_stream *stream, bool block)
{
    const uint64_t number = stream->queued;
    int result = fake_see_end(&stream->clock, stream->index, number, block);

    return result == MP_CU_SUCCESS ? fake_report(stream, number) : result;
}

FAKE_EXPORT mp_cu_result cuStreamSynchronize(mp_cu_stream stream)
{
    struct fake_stream *s;

    FAKE_BEGIN(cuStreamSynchronize);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    s = fake_stream_of(stream);
    if (s == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (s->capture != NULL)
        return fake_leave(fake_capture_break(s, "waited for"));
    return fake_leave(stream_state(s, true));
}

FAKE_EXPORT mp_cu_result cuStreamQuery(mp_cu_stream stream)
{
    struct fake_stream *s;

    FAKE_BEGIN(cuStreamQuery);
    FAKE_NEED_CONTEXT();
    if ((uintptr_t)stream == DEFAULT_STREAM)
        return fake_leave(MP_CU_SUCCESS); /* nothing is ever queued there */
    s = fake_stream_of(stream);
    if (s == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (s->capture != NULL)
        return fake_leave(fake_capture_break(s, "asked"));
    return fake_leave(stream_state(s, false));
}

/* ---- the end */

void fake_clear_streams(void)
{
    const int lost = fake.lost;

    if (fake.lost == 0)
        fake.lost = MP_CU_ERROR_DEINITIALIZED; /* what is queued is not done */
    fake_wake_all();
    for (unsigned s = 0; s < FAKE_STREAMS_MAX; s++) {
        while (fake_streams[s].next != NULL)
            fake_wait_moved();
        fake_streams[s].capture = NULL;
        fake_streams[s].used = false;
        fake_streams[s].failure = 0;
        fake_host.seen[s] = fake_streams[s].queued;
        forget_seen(&fake_streams[s]);
    }
    fake_object_each(FAKE_EVENT, free);
    fake_object_each(FAKE_MODULE, free);
    fake_graphs_clear();
    fake_objects_clear();
    fake.lost = lost;
}

void fake_clear_streams_of(unsigned device)
{
    for (unsigned s = 0; s < FAKE_STREAMS_MAX; s++) {
        if (fake_streams[s].used && fake_streams[s].device == device)
            end_stream(&fake_streams[s]);
    }
}

/* With a lost device its context is all that can be given back, and takes everything with it. */
void fake_end_context(void)
{
    const unsigned streams = fake_object_count(FAKE_STREAM), events = fake_object_count(FAKE_EVENT);
    const unsigned modules = fake_object_count(FAKE_MODULE);
    const unsigned graphs = fake_object_count(FAKE_GRAPH) + fake_object_count(FAKE_EXEC);

    if (fake.lost != 0) {
        fake_clear_streams();
        fake_clear_memory();
    } else if (streams + events + modules + graphs > 0 && !fake.failed_calls) {
        fake_violation("the context ended with %u streams, %u events, %u modules and %u graphs",
                       streams, events, modules, graphs);
    }
}
