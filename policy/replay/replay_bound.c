/*
 * The resident experts of a replay, and the offline optimum.
 *
 * Between two batches an expert is kept or not; it is worth one hit if it is kept from one use to
 * the next. So an expert's history is a sequence of intervals, and the optimum keeps as many
 * intervals as possible with at most `slots` open at a time: whenever there are too many, the one
 * that ends last is dropped (Belady with bypass). No policy that only loads on demand within the
 * budget can have more hits.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/replay/replay_int.h"
#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

static void take_set(struct mp_replay_set *set, struct mp_arena *arena)
{
    const size_t ids = (size_t)set->trace->layers * set->trace->experts;

    set->id = mp_arena_take(arena, ids, sizeof(uint32_t));
    set->place = mp_arena_take(arena, ids, sizeof(uint32_t));
    set->count = mp_arena_take(arena, set->trace->layers, sizeof(uint32_t));
    set->key = mp_arena_take(arena, ids, sizeof(uint64_t));
    set->second = mp_arena_take(arena, ids, sizeof(uint64_t));
    set->touched = mp_arena_take(arena, ids, sizeof(uint32_t));
}

enum mp_status mp_replay_set_init(struct mp_replay_set *set, const struct mp_replay_trace *trace,
                                  bool per_layer)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    *set = (struct mp_replay_set){ .trace = trace, .per_layer = per_layer };
    take_set(set, &arena);
    status = mp_arena_open(&arena, "a replay");
    if (status != MP_OK)
        return status;
    set->block = arena.block;
    take_set(set, &arena);
    memset(set->place, 0xff, (size_t)trace->layers * trace->experts * sizeof(uint32_t));
    return MP_OK;
}

void mp_replay_set_fini(struct mp_replay_set *set)
{
    free(set->block);
    *set = (struct mp_replay_set){ 0 };
}

uint32_t mp_replay_scope(const struct mp_replay_set *set, uint32_t id)
{
    return set->per_layer ? id / set->trace->experts : 0;
}

bool mp_replay_holds(const struct mp_replay_set *set, uint32_t id)
{
    return set->place[id] != MP_EXPERT_NONE;
}

void mp_replay_add(struct mp_replay_set *set, uint32_t id)
{
    const uint32_t scope = mp_replay_scope(set, id);

    mp_assert(id < set->trace->layers * set->trace->experts);
    if (mp_replay_holds(set, id))
        return;
    set->place[id] = scope * set->trace->experts + set->count[scope]++;
    set->id[set->place[id]] = id;
}

void mp_replay_remove(struct mp_replay_set *set, uint32_t id)
{
    const uint32_t scope = mp_replay_scope(set, id);
    uint32_t last;

    mp_assert(id < set->trace->layers * set->trace->experts);
    if (!mp_replay_holds(set, id))
        return;
    last = set->id[scope * set->trace->experts + --set->count[scope]];
    set->id[set->place[id]] = last;
    set->place[last] = set->place[id];
    set->place[id] = MP_EXPERT_NONE;
}

uint32_t mp_replay_first(const struct mp_replay_set *set, uint32_t scope, uint32_t except)
{
    const uint32_t *ids = set->id + (size_t)scope * set->trace->experts;
    uint32_t best = MP_EXPERT_NONE;

    mp_assert(scope < set->trace->layers);
    for (uint32_t i = 0; i < set->count[scope]; i++) {
        const uint32_t u = ids[i];

        if (except != 0 && set->touched[u] == except)
            continue;
        if (best == MP_EXPERT_NONE || set->key[u] < set->key[best] ||
            (set->key[u] == set->key[best] && (set->second[u] < set->second[best] ||
                                               (set->second[u] == set->second[best] && u < best))))
            best = u;
    }
    return best;
}

void mp_replay_count(struct mp_replay_result *result, const struct mp_replay_trace *trace,
                     const struct mp_replay_group *group, bool hit)
{
    result->lookups++;
    result->hits += hit;
    result->decode_lookups += group->decode;
    result->decode_hits += group->decode && hit;
    result->bytes_read += hit ? 0 : trace->layer_bytes[group->layer];
}

enum mp_status mp_replay_optimum(const struct mp_replay_trace *trace, bool per_layer,
                                 const uint32_t *slots, bool decode_only,
                                 struct mp_replay_result *result)
{
    struct mp_replay_set set;
    enum mp_status status = mp_replay_set_init(&set, trace, per_layer);

    if (status != MP_OK)
        return status;
    for (size_t g = 0; g < trace->group_count; g++) {
        const struct mp_replay_group *group = &trace->groups[g];
        const uint32_t scope = per_layer ? group->layer : 0;

        for (uint32_t i = 0; i < group->count; i++) {
            const struct mp_replay_use *use = &trace->uses[group->first + i];
            const bool useful =
                use->next != MP_REPLAY_NEVER && (!decode_only || trace->groups[use->next].decode);

            mp_replay_count(result, trace, group, mp_replay_holds(&set, use->id));
            set.key[use->id] = UINT64_MAX - use->next;
            if (useful)
                mp_replay_add(&set, use->id);
            else
                mp_replay_remove(&set, use->id);
        }
        while (set.count[scope] > slots[scope])
            mp_replay_remove(&set, mp_replay_first(&set, scope, 0));
    }
    mp_replay_set_fini(&set);
    return MP_OK;
}
