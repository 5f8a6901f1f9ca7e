#ifndef MP_POLICY_RESIDENTS_H
#define MP_POLICY_RESIDENTS_H

#include "policy/policy.h"
#include "vmm/base/arena.h"

/*
 * The set of resident experts as a dense array, with a count per layer: what evict policies share.
 * All operations but pick are O(1); pick looks at every resident expert once.
 *
 *     id[place[u]] == u  and  place[u] < count    for every expert u in the set
 *     sum of held[l] == count
 */
struct mp_residents {
    uint32_t *id;    // (layers * experts): the first `count` are the set
    uint32_t *place; // (layers * experts): MP_EXPERT_NONE if not in the set
    uint32_t *held;  // (layers)
    uint64_t *stamp; // (layers * experts): order of last use, for mp_residents_use()
    uint64_t uses;
    uint32_t count, experts, layers, slots;
};

/*
 * Base of evict policies that keep the order of insertion or last use. The functions below are then
 * on_insert and on_remove and, if it has no other arrays, `take`. The policy calls
 * mp_residents_use() in on_access.
 */
struct mp_evict_base {
    struct mp_policy super;
    struct mp_residents set;
};

void mp_evict_take(struct mp_policy *policy, const struct mp_shape *shape, struct mp_arena *arena);
void mp_evict_insert(struct mp_policy *policy, uint32_t id, uint64_t now);
void mp_evict_remove(struct mp_policy *policy, uint32_t id, uint64_t now);

/* An empty set; called twice, before and after mp_arena_open(). */
void mp_residents_take(struct mp_residents *set, const struct mp_shape *shape,
                       struct mp_arena *arena);

/* Adding a member, or removing a non-member, has no effect. */
void mp_residents_add(struct mp_residents *set, uint32_t id);
void mp_residents_remove(struct mp_residents *set, uint32_t id);

/* A mean score as a key, in units of 2^-48; NaN and negative scores give 0, scores above 4096 are
 * clamped. */
static inline uint64_t mp_residents_key(double score)
{
    return score > 0 ? (uint64_t)((score < 4096 ? score : 4096) * 0x1p48) : 0;
}

/* Mark the expert, resident or not, as used last. */
static inline void mp_residents_use(struct mp_residents *set, uint32_t id)
{
    set->stamp[id] = ++set->uses;
}

/*
 * The expert with the smallest (key, second, id) among those that the query allows and that are in
 * `layer` (MP_LAYER_ANY: in any), or MP_EXPERT_NONE. key and second are indexed by id; second may
 * be NULL.
 */
uint32_t mp_residents_min(const struct mp_residents *set, const struct mp_evict_query *query,
                          uint32_t layer, const uint64_t *key, const uint64_t *second);

/*
 * For policies that give each layer an equal share of the slots: the layer that should give up a
 * expert for query->for_id. That is its own layer if it has its share, else the layer that exceeds
 * its share most (lowest number on a tie), else MP_LAYER_ANY.
 */
uint32_t mp_residents_victim_layer(const struct mp_residents *set,
                                   const struct mp_evict_query *query);

/* The expert of that layer with the smallest (key, second, id), or of any if the layer has none
 * that may go. */
uint32_t mp_residents_min_fair(const struct mp_residents *set, const struct mp_evict_query *query,
                               const uint64_t *key, const uint64_t *second);

/*
 * For policies that keep a fixed number of residents in each layer (DALI): that number. A quarter
 * of the slots, at least two and at most 2 * top_k, is reserved for demands and prefetches. The
 * rest is divided equally; the remainder goes to the first layers.
 */
uint32_t mp_residents_planned(const struct mp_shape *shape, uint32_t layer);

#endif
