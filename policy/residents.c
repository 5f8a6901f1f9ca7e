/*
 * The set of resident experts and its smallest member; see residents.h. It knows no policy: keys
 * come from the caller.
 */
#include "policy/residents.h"

#include <string.h>

#include "vmm/base/assert.h"

void mp_residents_take(struct mp_residents *set, const struct mp_shape *shape,
                       struct mp_arena *arena)
{
    const size_t ids = (size_t)shape->layers * shape->experts;

    *set = (struct mp_residents){
        .experts = shape->experts,
        .layers = shape->layers,
        .slots = shape->slots,
    };
    set->id = mp_arena_take(arena, ids, sizeof(uint32_t));
    set->place = mp_arena_take(arena, ids, sizeof(uint32_t));
    set->held = mp_arena_take(arena, shape->layers, sizeof(uint32_t));
    set->stamp = mp_arena_take(arena, ids, sizeof(uint64_t));
    if (arena->block != NULL)
        memset(set->place, 0xff, ids * sizeof(uint32_t));
}

void mp_evict_take(struct mp_policy *policy, const struct mp_shape *shape, struct mp_arena *arena)
{
    mp_residents_take(&((struct mp_evict_base *)policy)->set, shape, arena);
}

void mp_residents_add(struct mp_residents *set, uint32_t id)
{
    mp_assert(id < set->layers * set->experts);
    if (set->place[id] != MP_EXPERT_NONE)
        return;
    set->place[id] = set->count;
    set->id[set->count++] = id;
    set->held[id / set->experts]++;
}

void mp_residents_remove(struct mp_residents *set, uint32_t id)
{
    const uint32_t place = set->place[id];

    mp_assert(id < set->layers * set->experts);
    if (place == MP_EXPERT_NONE)
        return;
    set->id[place] = set->id[--set->count];
    set->place[set->id[place]] = place;
    set->place[id] = MP_EXPERT_NONE;
    set->held[id / set->experts]--;
}

void mp_evict_insert(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct mp_residents *set = &((struct mp_evict_base *)policy)->set;

    (void)now;
    mp_residents_add(set, id);
    mp_residents_use(set, id);
}

void mp_evict_remove(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    (void)now;
    mp_residents_remove(&((struct mp_evict_base *)policy)->set, id);
}

/* The smallest so far. */
struct smallest {
    uint64_t key, second;
    uint32_t id;
};

/* The key first: of thousands of experts only a few are lower than all before them. */
static inline void consider(struct smallest *best, const struct mp_evict_query *query, uint32_t id,
                            const uint64_t *key, const uint64_t *second)
{
    uint64_t mine;

    if (key[id] > best->key)
        return;
    mine = second != NULL ? second[id] : 0;
    if (key[id] == best->key && (mine > best->second || (mine == best->second && id > best->id)))
        return;
    if (mp_evict_allows(query, id))
        *best = (struct smallest){ key[id], mine, id };
}

uint32_t mp_residents_min(const struct mp_residents *set, const struct mp_evict_query *query,
                          uint32_t layer, const uint64_t *key, const uint64_t *second)
{
    const uint32_t only = layer != MP_LAYER_ANY ? layer : query->scope_layer;
    struct smallest best = { UINT64_MAX, UINT64_MAX, MP_EXPERT_NONE };

    mp_assert(only == MP_LAYER_ANY || only < set->layers);
    if (only == MP_LAYER_ANY) {
        for (uint32_t i = 0; i < set->count; i++)
            consider(&best, query, set->id[i], key, second);
        return best.id;
    }
    for (uint32_t id = only * set->experts; id < (only + 1) * set->experts; id++) {
        if (set->place[id] != MP_EXPERT_NONE)
            consider(&best, query, id, key, second);
    }
    return best.id;
}

static uint32_t share_of(const struct mp_residents *set, uint32_t layer)
{
    return mp_equal_share(set->slots, set->layers, layer);
}

uint32_t mp_residents_victim_layer(const struct mp_residents *set,
                                   const struct mp_evict_query *query)
{
    const uint32_t own = query->for_id / set->experts;
    uint32_t worst = MP_LAYER_ANY, worst_excess = 0;

    mp_assert(own < set->layers);
    if (set->held[own] > 0 && set->held[own] >= share_of(set, own))
        return own;
    for (uint32_t l = 0; l < set->layers; l++) {
        const uint32_t share = share_of(set, l);

        if (set->held[l] > share && set->held[l] - share > worst_excess) {
            worst_excess = set->held[l] - share;
            worst = l;
        }
    }
    return worst;
}

uint32_t mp_residents_min_fair(const struct mp_residents *set, const struct mp_evict_query *query,
                               const uint64_t *key, const uint64_t *second)
{
    const uint32_t from = mp_residents_victim_layer(set, query);
    const uint32_t id = mp_residents_min(set, query, from, key, second);

    return id == MP_EXPERT_NONE && from != MP_LAYER_ANY
               ? mp_residents_min(set, query, MP_LAYER_ANY, key, second)
               : id;
}

uint32_t mp_residents_planned(const struct mp_shape *shape, uint32_t layer)
{
    uint32_t reserve = shape->slots / 4;

    mp_assert(layer < shape->layers);
    if (reserve > 2 * shape->top_k)
        reserve = 2 * shape->top_k;
    if (reserve < 2)
        reserve = 2;
    if (shape->slots <= reserve)
        return 0;
    return mp_equal_share(shape->slots - reserve, shape->layers, layer);
}
