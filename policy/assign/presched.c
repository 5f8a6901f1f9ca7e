/*
 * PreSched, the current layer's part (PreScope, section 4.3, Q1 and eq. 5; the paper's Algorithm 1
 * in one pass): the absent experts of this layer and those predicted for the next are merged by
 * tokens, and those at the large end are loaded as long as loading them takes less time than the
 * CPU would need for all up to there. Of these the current layer's are rechecked by themselves; the
 * rest of the layer goes to the CPU at once. policy/assign/presched_times.h has the equations.
 *
 * Departures: T_g is that of the largest expert of the list; a machine without a CPU executor, or
 * whose times are not known, has everything computed by the device. O(experts * log experts).
 */
#include "policy/builtins.h"

#include "policy/assign/times.h"
#include "policy/assign/presched_times.h"

struct presched {
    struct mp_policy super;
    struct mp_presched_list list;
    uint32_t experts;
    uint32_t *next;    // (experts): tokens of absent experts of the next layer
    uint32_t *current; // (experts): tokens of absent experts of this one, descending
};

static void presched_take(struct mp_policy *policy, const struct mp_shape *shape,
                          struct mp_arena *arena)
{
    struct presched *presched = (struct presched *)policy;

    mp_presched_list_take(&presched->list, shape, arena);
    presched->next = mp_arena_take(arena, shape->experts, sizeof(uint32_t));
    presched->current = mp_arena_take(arena, shape->experts, sizeof(uint32_t));
}

static enum mp_status presched_create(const void *config, const struct mp_shape *shape,
                                      struct mp_policy **policy_p)
{
    struct presched draft = {
        .super.info = &mp_assign_presched.info,
        .experts = shape->experts,
    };

    (void)config;
    return mp_policy_make(&draft.super, sizeof(draft), presched_take, shape, policy_p);
}

/* Merge, with what the next layer is expected to want and lacks. */
static void merge(struct presched *presched, const struct mp_assign_facts *facts)
{
    uint32_t count = 0;

    if (facts->next_tokens != NULL) {
        for (uint32_t e = 0; e < presched->experts; e++) {
            if (facts->next_tokens[e] > 0 && !facts->next_resident[e])
                presched->next[count++] = facts->next_tokens[e];
        }
    }
    mp_presched_merge(&presched->list, facts, presched->next, count);
}

static void presched_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                            uint32_t *executors)
{
    const uint32_t helper = mp_costs_helper(facts->costs);
    struct presched *presched = (struct presched *)policy;
    const struct mp_presched_list *list = &presched->list;
    struct mp_presched_times times;
    uint32_t count = 0, queued = 0, loads, all;

    mp_assign_all_home(facts, executors);
    merge(presched, facts);
    if (list->count == 0 || !mp_presched_times(facts, list->tokens[0], &times) || !times.cpu)
        return;
    all = mp_presched_queue(&times, list->tokens, list->count);
    for (uint32_t p = 0; p < list->count; p++) {
        if (!list->is_next[p]) {
            presched->current[count++] = list->tokens[p];
            queued += p < all;
        }
    }
    loads = mp_presched_recheck(&times, presched->current, count, queued);
    count = 0;
    for (uint32_t p = 0; p < list->count; p++) {
        if (!list->is_next[p] && count++ >= loads)
            executors[list->index[p]] = helper;
    }
}

const struct mp_assign_ops mp_assign_presched = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "presched",
              .summary =
                  "loads as long as that is quicker than the CPU, two layers seen (PreScope)",
              .costs = true },
    .create = presched_create,
    .destroy = mp_policy_free,
    .looks_ahead = true,
    .assign = presched_assign,
};
