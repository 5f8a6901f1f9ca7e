/*
 * Recorded requests: reads a routing trace (docs/trace-format.md) whose requests follow one
 * another, each from step 0 and position 0 on.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/record/trace.h"
#include "policy/sim/cluster/cluster.h"
#include "vmm/base/error.h"

/* A batch goes through all layers; `layer` is the one that is being read, and `seen` how many of
 * its tokens there were. */
struct reading {
    const char *path;
    struct mp_trace_reader *trace;
    struct mp_cluster_routing *routing;
    size_t request_room, batch_room, row_room, rows;
    uint32_t layer, seen;
};

static enum mp_status bad(const struct reading *r, const char *what)
{
    char file[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_CLUSTER", "trace '%s', request %u: %s",
                   mp_quote(file, r->path, strlen(r->path)), r->routing->requests, what);
}

/* Room for one more element. */
static enum mp_status grow(void **array_p, size_t count, size_t *room_p, size_t bytes)
{
    const size_t room = *room_p > 0 ? 2 * *room_p : 256;
    void *more;

    if (count < *room_p)
        return MP_OK;
    if (room > SIZE_MAX / bytes)
        return mp_fail_no_memory("recorded requests", SIZE_MAX);
    more = realloc(*array_p, room * bytes);
    if (more == NULL)
        return mp_fail_no_memory("recorded requests", room * bytes);
    *array_p = more;
    *room_p = room;
    return MP_OK;
}

static struct mp_cluster_batch *last_batch(const struct mp_cluster_routing *routing)
{
    return &routing->batch[routing->batches - 1];
}

/* All layers of the batch were there, with as many tokens each. */
static bool is_complete(const struct reading *r)
{
    return r->routing->batches == 0 ||
           (r->layer + 1 == r->routing->layers && r->seen == last_batch(r->routing)->tokens);
}

static enum mp_status begin_request(struct reading *r)
{
    struct mp_cluster_routing *routing = r->routing;
    void *first = routing->first_batch;
    enum mp_status status =
        grow(&first, routing->requests + 1, &r->request_room, sizeof(*routing->first_batch));

    routing->first_batch = first;
    if (status == MP_OK)
        routing->first_batch[routing->requests++] = routing->batches;
    return status;
}

static enum mp_status begin_batch(struct reading *r)
{
    struct mp_cluster_routing *routing = r->routing;
    void *batch = routing->batch;
    enum mp_status status = grow(&batch, routing->batches, &r->batch_room, sizeof(*routing->batch));

    routing->batch = batch;
    if (status == MP_OK)
        routing->batch[routing->batches++] = (struct mp_cluster_batch){ .first_row = r->rows };
    r->layer = r->seen = 0;
    return status;
}

static enum mp_status add_row(struct reading *r, const struct mp_trace_row *row)
{
    struct mp_cluster_routing *routing = r->routing;
    const size_t bytes = routing->top_k * sizeof(*routing->chosen);
    void *chosen = routing->chosen;
    enum mp_status status = grow(&chosen, r->rows, &r->row_room, bytes);

    routing->chosen = chosen;
    if (status != MP_OK)
        return status;
    memcpy(routing->chosen + r->rows++ * routing->top_k, row->experts, bytes);
    r->seen++;
    if (r->layer == 0)
        last_batch(routing)->tokens = r->seen;
    if (last_batch(routing)->tokens > routing->tokens_max)
        routing->tokens_max = last_batch(routing)->tokens;
    return MP_OK;
}

/* In layer 0 a batch begins with the first row behind the last layer of another one. */
static enum mp_status take_row(struct reading *r, const struct mp_trace_row *row)
{
    const bool begins = row->layer == 0 && (r->routing->batches == 0 || r->layer > 0 ||
                                            (r->routing->layers == 1 && row->step > 0) ||
                                            (row->step == 0 && row->position == 0));
    enum mp_status status = MP_OK;

    if (row->sequence != 0)
        return bad(r, "more than one sequence at once");
    if (begins) {
        if (!is_complete(r))
            return bad(r, "a batch does not go through all layers");
        if (row->step == 0 && row->position == 0)
            status = begin_request(r);
        else if (r->routing->requests == 0)
            return bad(r, "does not begin with a prompt");
        if (status == MP_OK)
            status = begin_batch(r);
    } else if (r->routing->batches == 0) {
        return bad(r, "does not begin with a prompt");
    } else if (row->layer == r->layer + 1 && r->seen == last_batch(r->routing)->tokens) {
        r->layer++;
        r->seen = 0;
    } else if (row->layer != r->layer ||
               (r->layer > 0 && r->seen == last_batch(r->routing)->tokens)) {
        return bad(r, "a layer has not the tokens of the one before");
    }
    return status == MP_OK ? add_row(r, row) : status;
}

static enum mp_status take_rows(struct reading *r)
{
    const struct mp_trace_shape *shape = mp_trace_get_shape(r->trace);
    struct mp_trace_row row = { 0 };
    enum mp_status status;

    r->routing->layers = shape->layers;
    r->routing->experts = shape->experts;
    r->routing->top_k = shape->top_k;
    do {
        status = mp_trace_read(r->trace, &row);
        if (status == MP_OK && row.experts != NULL)
            status = take_row(r, &row);
    } while (status == MP_OK && row.experts != NULL);
    if (status == MP_OK && r->routing->requests == 0)
        return bad(r, "nothing is recorded");
    if (status == MP_OK && !is_complete(r))
        return bad(r, "a batch does not go through all layers");
    if (status == MP_OK)
        r->routing->first_batch[r->routing->requests] = r->routing->batches;
    return status;
}

enum mp_status mp_cluster_routing_read(const char *path, struct mp_cluster_routing *routing)
{
    struct reading r = { .path = path, .routing = routing };
    enum mp_status status = mp_trace_open(path, &r.trace);

    memset(routing, 0, sizeof(*routing));
    if (status != MP_OK)
        return status;
    status = take_rows(&r);
    mp_trace_reader_destroy(r.trace);
    if (status != MP_OK)
        mp_cluster_routing_fini(routing);
    return status;
}

void mp_cluster_routing_fini(struct mp_cluster_routing *routing)
{
    free(routing->first_batch);
    free(routing->batch);
    free(routing->chosen);
    memset(routing, 0, sizeof(*routing));
}
