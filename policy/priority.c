/*
 * MoEpic's cache priority; priority.h has the equation. It chooses no victim: evict policy `lcp`
 * and partition `fixed-point` compare the values.
 */
#include "policy/priority.h"

#include <math.h>

#include "vmm/base/assert.h"

void mp_priority_init(struct mp_priority *priority, const struct mp_shape *shape, double rho,
                      double omega)
{
    mp_assert(rho > 0 && rho < 1 && omega > 0);
    *priority = (struct mp_priority){
        .layers = shape->layers,
        .experts = shape->experts,
        .fade = -log(rho) / omega / shape->top_k,
    };
}

void mp_priority_take(struct mp_priority *priority, struct mp_arena *arena)
{
    const size_t ids = (size_t)priority->layers * priority->experts;

    priority->pairs = mp_arena_take(arena, priority->layers, sizeof(uint64_t));
    priority->moment = mp_arena_take(arena, priority->layers, sizeof(uint64_t));
    priority->seen = mp_arena_take(arena, ids, sizeof(uint64_t));
    priority->since = mp_arena_take(arena, ids, sizeof(uint64_t));
    priority->count = mp_arena_take(arena, ids, sizeof(uint64_t));
    priority->log_count = mp_arena_take(arena, ids, sizeof(double));
}

/* A new batch of the layer: what the one before activated begins to age. */
static void turn(struct mp_priority *priority, uint32_t layer, uint64_t moment)
{
    const uint32_t first = layer * priority->experts;

    mp_assert(layer < priority->layers);
    for (uint32_t u = first; u < first + priority->experts; u++) {
        if (priority->seen[u] == priority->moment[layer])
            priority->since[u] = priority->pairs[layer];
    }
    priority->moment[layer] = moment;
}

void mp_priority_access(struct mp_priority *priority, uint32_t id, uint32_t tokens, uint64_t moment)
{
    const uint32_t layer = id / priority->experts;

    mp_assert(layer < priority->layers);
    mp_assert(tokens > 0);
    if (priority->moment[layer] != moment)
        turn(priority, layer, moment);
    priority->pairs[layer] += tokens;
    priority->count[id]++;
    priority->log_count[id] = log((double)priority->count[id]);
    priority->seen[id] = moment;
}
