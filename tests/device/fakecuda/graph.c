/*
 * Graphs: operations kept instead of queued while a stream is captured, and queued again at every
 * launch, in the order in which they were captured.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/device/fakecuda/stream.h"

struct fake_graph {
    struct fake_op *first, *last;
    int mode;
    pthread_t thread;
    unsigned origin;
    uint64_t open; /* streams with work that the origin has not waited for */
    bool broken;
    struct fake_clock clocks[FAKE_STREAMS_MAX]; /* what is captured before the next on a stream */
    uint64_t launched[FAKE_STREAMS_MAX];        /* last operation of a launch */
    unsigned device;                            /* that a whole one takes memory of */
    size_t bytes;
};

#define CAPTURES_MAX 8
static struct fake_graph *captures[CAPTURES_MAX];
static unsigned capture_count;

static void free_graph(struct fake_graph *graph)
{
    while (graph->first != NULL) {
        struct fake_op *op = graph->first;

        graph->first = op->next;
        fake_op_free(op);
    }
    free(graph);
}

/* ---- while capturing */

int fake_graph_add(struct fake_graph *graph, struct fake_op *op, unsigned stream)
{
    if (graph->broken) {
        fake_op_free(op);
        return FAKE_CAPTURE_INVALID;
    }
    if (stream != graph->origin)
        graph->open |= UINT64_C(1) << stream;
    if (op->branch.number == 0) { /* else it comes from another graph */
        op->branch.clock = graph->clocks[stream];
        op->branch.stream = stream;
        op->branch.number = ++graph->clocks[stream].seen[stream];
    }
    if (graph->last != NULL)
        graph->last->next = op;
    else
        graph->first = op;
    graph->last = op;
    return MP_CU_SUCCESS;
}

void fake_capture_record(struct fake_stream *stream, struct fake_event *event)
{
    event->capture = stream->capture;
    event->stream = stream->index;
    event->clock = stream->capture->clocks[stream->index];
}

int fake_capture_join(struct fake_stream *stream, const struct fake_event *event)
{
    if (stream->capture != NULL && stream->capture != event->capture) {
        fake_violation("a stream joins a second capture");
        return FAKE_CAPTURE_INVALID;
    }
    if (stream->capture == NULL && stream->queued > fake_host.seen[stream->index])
        fake_violation("stream %u joins a capture with work whose end the host has not seen",
                       stream->index);
    stream->capture = event->capture;
    fake_clock_join(&stream->capture->clocks[stream->index], &event->clock);
    event->capture->open &= ~(UINT64_C(1) << event->stream);
    return MP_CU_SUCCESS;
}

int fake_capture_break(struct fake_stream *stream, const char *what)
{
    fake_violation("stream %u is %s while it is captured", stream->index, what);
    stream->capture->broken = true;
    return FAKE_CAPTURE_FORBIDDEN;
}

static bool moves_mappings(enum fake_call call)
{
    return call == FAKE_CALL_cuMemMap || call == FAKE_CALL_cuMemUnmap ||
           call == FAKE_CALL_cuMemSetAccess || call == FAKE_CALL_cuMemRelease;
}

static void drop_graph(void *object)
{
    free_graph(object);
}

void fake_graphs_clear(void)
{
    for (unsigned i = 0; i < capture_count; i++)
        free_graph(captures[i]);
    capture_count = 0;
    fake_object_each(FAKE_GRAPH, drop_graph);
    fake_object_each(FAKE_EXEC, drop_graph);
}

bool fake_capture_forbids(enum fake_call call)
{
    for (unsigned i = 0; i < capture_count; i++) {
        struct fake_graph *graph = captures[i];

        /* The driver looks at one thread; that nobody maps meanwhile is our own law. */
        if (!pthread_equal(graph->thread, pthread_self()) && !moves_mappings(call))
            continue;
        if (graph->mode == MP_CU_CAPTURE_RELAXED && !moves_mappings(call))
            continue;
        fake_violation("%s while a stream is captured", fake_call_name(call));
        graph->broken = true;
        return true;
    }
    return false;
}

FAKE_EXPORT mp_cu_result cuStreamBeginCapture_v2(mp_cu_stream stream, int mode)
{
    struct fake_graph *graph;
    struct fake_stream *s;

    FAKE_BEGIN(cuStreamBeginCapture_v2);
    FAKE_NEED_CONTEXT();
    s = fake_stream_of(stream);
    if (s == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (mode < 0 || mode > MP_CU_CAPTURE_RELAXED)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    graph = s->capture == NULL && capture_count < CAPTURES_MAX ? calloc(1, sizeof(*graph)) : NULL;
    if (graph == NULL)
        return fake_leave(MP_CU_ERROR_ILLEGAL_STATE);
    graph->mode = mode;
    graph->thread = pthread_self();
    graph->origin = s->index;
    captures[capture_count++] = graph;
    s->capture = graph;
    s->behind_waiting = false;
    return fake_leave(MP_CU_SUCCESS);
}

static const struct fake_graph *ending;

static void leave_ending(void *object)
{
    struct fake_event *event = object;

    if (event->capture == ending)
        event->capture = NULL;
}

static void end_capture(struct fake_graph *graph)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < capture_count; i++) {
        if (captures[i] != graph)
            captures[kept++] = captures[i];
    }
    capture_count = kept;
    for (unsigned s = 0; s < FAKE_STREAMS_MAX; s++) {
        if (fake_streams[s].capture != graph)
            continue;
        fake_streams[s].capture = NULL;
        fake_streams[s].behind_waiting = false;
    }
    ending = graph;
    fake_object_each(FAKE_EVENT, leave_ending);
}

/* A capture ends here also where the call fails. */
static int failed_end(mp_cu_stream stream, int result)
{
    struct fake_stream *s;
    struct fake_graph *g;

    pthread_mutex_lock(&fake.lock);
    s = fake_object_quietly(FAKE_STREAM, (uintptr_t)stream);
    g = s != NULL ? s->capture : NULL;
    if (g != NULL) {
        end_capture(g);
        free_graph(g);
    }
    pthread_mutex_unlock(&fake.lock);
    return result;
}

FAKE_EXPORT mp_cu_result cuStreamEndCapture(mp_cu_stream stream, mp_cu_graph *graph)
{
    struct fake_graph *g;
    struct fake_stream *s;
    uint64_t handle;
    int result;

    if (!fake_enter(FAKE_CALL_cuStreamEndCapture, __builtin_return_address(0), &result))
        return failed_end(stream, result);
    FAKE_NEED_CONTEXT();
    s = fake_stream_of(stream);
    if (s == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    g = s->capture;
    if (g == NULL || graph == NULL)
        return fake_leave(MP_CU_ERROR_ILLEGAL_STATE);
    result = s->index != g->origin ? 903 /* UNMATCHED */
             : g->broken           ? FAKE_CAPTURE_INVALID
             : g->open != 0        ? FAKE_CAPTURE_UNJOINED
                                   : MP_CU_SUCCESS;
    if (g->mode != MP_CU_CAPTURE_RELAXED && !pthread_equal(g->thread, pthread_self()))
        result = 908; /* WRONG_THREAD */
    end_capture(g);
    handle = result == MP_CU_SUCCESS ? fake_object_add(FAKE_GRAPH, g) : 0;
    *graph = (mp_cu_graph)(uintptr_t)handle;
    if (handle == 0)
        free_graph(g);
    return fake_leave(result != MP_CU_SUCCESS ? result
                      : handle == 0           ? MP_CU_ERROR_OUT_OF_MEMORY
                                              : MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuStreamIsCapturing(mp_cu_stream stream, int *status)
{
    struct fake_stream *s;

    FAKE_BEGIN(cuStreamIsCapturing);
    FAKE_NEED_CONTEXT();
    s = fake_stream_of(stream);
    if (s == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (status == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    *status = s->capture == NULL   ? MP_CU_CAPTURE_NONE
              : s->capture->broken ? 2
                                   : MP_CU_CAPTURE_ACTIVE;
    return fake_leave(MP_CU_SUCCESS);
}

/* ---- when it is whole */

static struct fake_op *copy_op(const struct fake_op *from)
{
    struct fake_op *op = fake_op_new(from->kind, from->name);

    if (op == NULL)
        return NULL;
    op->branch = from->branch;
    op->dst = from->dst;
    op->src = from->src;
    op->bytes = from->bytes;
    op->value = from->value;
    op->function = from->function;
    op->grid = from->grid;
    op->block = from->block;
    op->shared_bytes = from->shared_bytes;
    op->early = from->early;
    if (from->params == NULL)
        return op;
    op->params = malloc(from->function->param_bytes + 1);
    if (op->params == NULL) {
        fake_op_free(op);
        return NULL;
    }
    memcpy(op->params, from->params, from->function->param_bytes);
    return op;
}

FAKE_EXPORT mp_cu_result cuGraphInstantiateWithFlags(mp_cu_graph_exec *exec, mp_cu_graph graph,
                                                     unsigned long long flags)
{
    struct fake_graph *g, *copy;
    uint64_t handle;
    size_t bytes = 0;

    FAKE_BEGIN(cuGraphInstantiateWithFlags);
    FAKE_NEED_CONTEXT();
    FAKE_NO_CAPTURE();
    g = fake_object(FAKE_GRAPH, (uintptr_t)graph);
    if (g == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (exec == NULL || flags != 0)
        return fake_leave(MP_CU_ERROR_INVALID_VALUE);
    copy = calloc(1, sizeof(*copy));
    for (const struct fake_op *op = g->first; copy != NULL && op != NULL; op = op->next) {
        struct fake_op *added = copy_op(op);

        if (added == NULL) {
            free_graph(copy);
            copy = NULL;
        } else {
            (void)fake_graph_add(copy, added, copy->origin);
            bytes += fake.node_bytes;
        }
    }
    if (copy != NULL && !fake_take((unsigned)(fake_current - 1), bytes)) {
        free_graph(copy);
        copy = NULL;
    }
    handle = copy != NULL ? fake_object_add(FAKE_EXEC, copy) : 0;
    if (handle == 0)
        return fake_leave(MP_CU_ERROR_OUT_OF_MEMORY);
    copy->device = (unsigned)(fake_current - 1);
    copy->bytes = bytes;
    *exec = (mp_cu_graph_exec)(uintptr_t)handle;
    return fake_leave(MP_CU_SUCCESS);
}

static uint64_t launches;

FAKE_EXPORT mp_cu_result cuGraphLaunch(mp_cu_graph_exec exec, mp_cu_stream stream)
{
    struct fake_graph *g;
    struct fake_stream *s;
    int result = MP_CU_SUCCESS;

    FAKE_BEGIN(cuGraphLaunch);
    FAKE_NEED_CONTEXT();
    g = fake_object(FAKE_EXEC, (uintptr_t)exec);
    s = g != NULL ? fake_stream_of(stream) : NULL;
    if (s == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    if (s->capture != NULL)
        return fake_leave(MP_CU_ERROR_NOT_SUPPORTED); /* a graph in a graph */
    launches++;
    for (const struct fake_op *op = g->first; op != NULL && result == MP_CU_SUCCESS;
         op = op->next) {
        struct fake_op *again = copy_op(op);

        if (again != NULL)
            again->launch = launches;
        result = again != NULL ? fake_queue_now(s, again) : MP_CU_ERROR_OUT_OF_MEMORY;
    }
    g->launched[s->index] = s->queued;
    s->behind_waiting = false;
    return fake_leave(result);
}

FAKE_EXPORT mp_cu_result cuGraphExecDestroy(mp_cu_graph_exec exec)
{
    struct fake_graph *g;

    FAKE_BEGIN(cuGraphExecDestroy);
    FAKE_NEED_CONTEXT();
    g = fake_object(FAKE_EXEC, (uintptr_t)exec);
    if (g == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    for (unsigned s = 0; s < FAKE_STREAMS_MAX; s++) {
        if (fake_host.seen[s] < g->launched[s])
            fake_violation("a graph is destroyed under a launch whose end the host has not seen");
    }
    fake_object_remove((uintptr_t)exec);
    fake_give(g->device, g->bytes);
    free_graph(g);
    return fake_leave(MP_CU_SUCCESS);
}

FAKE_EXPORT mp_cu_result cuGraphDestroy(mp_cu_graph graph)
{
    struct fake_graph *g;

    FAKE_BEGIN(cuGraphDestroy);
    FAKE_NEED_CONTEXT();
    g = fake_object(FAKE_GRAPH, (uintptr_t)graph);
    if (g == NULL)
        return fake_leave(MP_CU_ERROR_INVALID_HANDLE);
    fake_object_remove((uintptr_t)graph);
    free_graph(g);
    return fake_leave(MP_CU_SUCCESS);
}
