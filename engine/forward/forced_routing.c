/*
 * Turns a trace's one-token steps into a table, and a row of it into scores. Routes nothing itself.
 */
#include "engine/forward/forced_routing.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/forward/engine.h"
#include "policy/replay/replay.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"

/* Sequences begin this many steps apart. */
#define APART 17

struct mp_forced_routing {
    uint32_t layers, experts, top_k, steps;
    uint32_t *chosen; // (steps, layers, top_k)
};

static enum mp_status check_shape(const struct mp_replay_trace *trace, uint32_t layers,
                                  uint32_t experts, uint32_t top_k, const char *path)
{
    char quoted[MP_QUOTE_BYTES];

    if (trace->layers >= layers && trace->experts == experts && trace->top_k == top_k)
        return MP_OK;
    return mp_fail(MP_ERR_CONFIG, "E_FORCED_ROUTING",
                   "'%s' has %u layers of %u experts, %u per token; the model has %u of %u, %u",
                   mp_quote(quoted, path, strlen(path)), trace->layers, trace->experts,
                   trace->top_k, layers, experts, top_k);
}

/* A decode step of one token in a layer that the model has. */
static bool is_step(const struct mp_replay_trace *trace, const struct mp_replay_group *group,
                    uint32_t layers)
{
    return group->decode && group->layer < layers && group->count == trace->top_k;
}

/* Whole steps: those that every layer has. */
static uint32_t count_steps(const struct mp_replay_trace *trace, uint32_t layers, uint32_t *seen)
{
    uint32_t steps = UINT32_MAX;

    for (size_t g = 0; g < trace->group_count; g++) {
        if (is_step(trace, &trace->groups[g], layers))
            seen[trace->groups[g].layer]++;
    }
    for (uint32_t l = 0; l < layers; l++) {
        steps = seen[l] < steps ? seen[l] : steps;
        seen[l] = 0;
    }
    return steps;
}

static enum mp_status take_steps(const struct mp_replay_trace *trace, uint32_t *seen,
                                 struct mp_forced_routing *from)
{
    size_t bytes;

    if (from->steps == 0)
        return mp_fail(MP_ERR_CONFIG, "E_FORCED_ROUTING",
                       "the trace has no decode steps of one token");
    if (!mp_mul_size((size_t)from->steps * from->layers, from->top_k * sizeof(uint32_t), &bytes))
        return mp_fail_no_memory("the routing of a trace", UINT64_MAX);
    from->chosen = malloc(bytes);
    if (from->chosen == NULL)
        return mp_fail_no_memory("the routing of a trace", bytes);
    for (size_t g = 0; g < trace->group_count; g++) {
        const struct mp_replay_group *group = &trace->groups[g];
        const uint32_t step =
            is_step(trace, group, from->layers) ? seen[group->layer]++ : UINT32_MAX;

        if (step < from->steps) {
            for (uint32_t i = 0; i < group->count; i++)
                from->chosen[((size_t)step * from->layers + group->layer) * from->top_k + i] =
                    trace->uses[group->first + i].id % from->experts;
        }
    }
    return MP_OK;
}

enum mp_status mp_forced_routing_make(const struct mp_replay_trace *trace, const char *name,
                                      uint32_t layers, uint32_t experts, uint32_t top_k,
                                      struct mp_forced_routing **from_p)
{
    struct mp_forced_routing *from = calloc(1, sizeof(*from));
    uint32_t *seen = calloc(layers, sizeof(*seen));
    enum mp_status status = from != NULL && seen != NULL
                                ? check_shape(trace, layers, experts, top_k, name)
                                : mp_fail_no_memory("the routing of a trace", sizeof(*from));

    if (status == MP_OK) {
        *from = (struct mp_forced_routing){ .layers = layers, .experts = experts, .top_k = top_k };
        from->steps = count_steps(trace, layers, seen);
        status = take_steps(trace, seen, from);
    }
    free(seen);
    if (status != MP_OK) {
        mp_forced_routing_destroy(from);
        return status;
    }
    *from_p = from;
    return MP_OK;
}

enum mp_status mp_forced_routing_load(const char *path, uint32_t layers, uint32_t experts,
                                      uint32_t top_k, struct mp_forced_routing **from_p)
{
    struct mp_replay_trace trace = { 0 };
    enum mp_status status = mp_replay_trace_read(path, &trace);

    if (status == MP_OK)
        status = mp_forced_routing_make(&trace, path, layers, experts, top_k, from_p);
    mp_replay_trace_fini(&trace);
    return status;
}

void mp_forced_routing_destroy(struct mp_forced_routing *from)
{
    if (from == NULL)
        return;
    free(from->chosen);
    free(from);
}

uint32_t mp_forced_routing_steps(const struct mp_forced_routing *from)
{
    return from->steps;
}

const uint32_t *mp_forced_routing_chosen(const struct mp_forced_routing *from, uint32_t step,
                                         uint32_t layer)
{
    return from->chosen + ((size_t)step * from->layers + layer) * from->top_k;
}

void mp_forced_routing_scores(const struct mp_forced_routing *from, const struct mp_batch *batch,
                              uint32_t layer, float *scores)
{
    const uint32_t E = from->experts, R = from->top_k;

    for (uint32_t t = 0; t < batch->count; t++) {
        const uint64_t step =
            (batch->position[t] + (uint64_t)batch->sequence[t] * APART) % from->steps;
        const uint32_t *chosen = mp_forced_routing_chosen(from, (uint32_t)step, layer);
        float *row = scores + (size_t)t * E;

        for (uint32_t e = 0; e < E; e++)
            row[e] = 0.1f / (float)E;
        for (uint32_t r = 0; r < R; r++)
            row[chosen[r]] += 0.9f * 2 * (float)(R - r) / (float)(R * (R + 1));
    }
}
