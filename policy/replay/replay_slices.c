/*
 * The slices of each expert that a replay holds: as in the pager, the last ones leave first, and
 * surplus slices use the slots that no scope owns. With whole experts there is one slice each and
 * none is surplus.
 */
#include <string.h>

#include "vmm/base/assert.h"

#include "policy/replay/replay_int.h"

static uint32_t retained_of(const struct mp_replay_run *run, uint32_t id)
{
    return run->retained[id / run->trace->experts];
}

bool mp_replay_is_full(const struct mp_replay_run *run, uint32_t scope)
{
    mp_assert(scope < run->trace->layers);
    return run->used[scope] >= run->slots[scope] * run->slices;
}

bool mp_replay_next_is_surplus(const struct mp_replay_run *run, uint32_t id)
{
    return run->part[id] >= retained_of(run, id);
}

void mp_replay_grow(struct mp_replay_run *run, uint32_t id)
{
    mp_assert(run->part[id] < run->slices);
    if (mp_replay_next_is_surplus(run, id))
        run->surplus++;
    else
        run->used[mp_replay_scope(&run->set, id)]++;
    if (run->part[id]++ > 0)
        return;
    mp_replay_add(&run->set, id);
    run->policies.evict_ops->on_insert(run->policies.evict, id, run->now);
}

void mp_replay_shrink(struct mp_replay_run *run, uint32_t id)
{
    mp_assert(run->part[id] > 0);
    run->part[id]--;
    if (mp_replay_next_is_surplus(run, id))
        run->surplus--;
    else
        run->used[mp_replay_scope(&run->set, id)]--;
    if (run->part[id] > 0)
        return;
    mp_replay_remove(&run->set, id);
    run->evictable[id] = 0;
    run->policies.evict_ops->on_remove(run->policies.evict, id, run->now);
}

void mp_replay_peel(struct mp_replay_run *run, uint32_t id)
{
    while (run->part[id] > retained_of(run, id))
        mp_replay_shrink(run, id);
    mp_replay_shrink(run, id);
}

void mp_replay_drop(struct mp_replay_run *run, uint32_t id)
{
    while (run->part[id] > 0)
        mp_replay_shrink(run, id);
}

bool mp_replay_free_surplus(struct mp_replay_run *run, uint32_t for_id)
{
    const uint32_t ids = run->trace->layers * run->trace->experts;
    const struct mp_evict_query query = {
        .for_id = for_id,
        .scope_layer = MP_LAYER_ANY,
        .experts = run->trace->experts,
        .evictable = run->candidates,
    };
    uint32_t id;

    if (run->surplus < run->room)
        return true;
    for (uint32_t u = 0; u < ids; u++)
        run->candidates[u] = run->evictable[u] && run->part[u] > retained_of(run, u);
    id = run->policies.evict_ops->pick(run->policies.evict, &query);
    if (id >= ids || !mp_evict_allows(&query, id))
        id = 0;
    while (id < ids && !run->candidates[id])
        id++;
    if (id == ids)
        return false;
    mp_replay_shrink(run, id);
    return true;
}

void mp_replay_ask_retained(struct mp_replay_run *run)
{
    const struct mp_partition_ops *ops = run->policies.partition_ops;
    const uint32_t layers = run->trace->layers, experts = run->trace->experts;
    const bool split = run->slices > 1 && run->per_layer && ops->retained != NULL;
    uint32_t sum = 0;

    if (split)
        ops->retained(run->policies.partition, &run->shape, run->retained);
    memset(run->used, 0, layers * sizeof(run->used[0]));
    run->surplus = 0;
    for (uint32_t l = 0; l < layers; l++) {
        if (!split || run->retained[l] < 1 || run->retained[l] > run->slices)
            run->retained[l] = run->slices;
        sum += run->set.per_layer ? run->slots[l] : 0;
    }
    for (uint32_t u = 0; u < layers * experts; u++) {
        const uint32_t retained = retained_of(run, u), part = run->part[u];

        run->used[mp_replay_scope(&run->set, u)] += part < retained ? part : retained;
        run->surplus += part > retained ? part - retained : 0;
    }
    run->room = split && run->shape.slots > sum ? (run->shape.slots - sum) * run->slices : 0;
    for (uint32_t u = 0; u < layers * experts; u++) {
        while (run->surplus > run->room && run->part[u] > retained_of(run, u))
            mp_replay_shrink(run, u);
    }
}
