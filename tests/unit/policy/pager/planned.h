#ifndef MP_TESTS_PLANNED_H
#define MP_TESTS_PLANNED_H

/* Policies that do as a test says, one set at a time, and a pager over them. */
#include <string.h>

#include "policy/builtins.h"
#include "policy/pager/pager.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/test.h"

#define UB WORLD_UNIT_BYTES

static const uint32_t ids[] = { 0, 1, 2, 3, 4, 5, 6, 7 };

static uint32_t plan_units[32], plan_count;
static struct mp_swap plan_swaps[8];
static struct mp_clock *plan_clock; // of reads
static uint32_t plan_swap_count, plan_sizes = 1;
static uint32_t plan_quota[4], revisions, seen_needed, seen_hits, seen_layer;
static bool plan_revises, plan_due, seen_idle, plan_admits;

static inline uint32_t first(struct mp_policy *policy, const struct mp_shape *shape,
                             uint32_t *units)
{
    (void)policy;
    (void)shape;
    memcpy(units, plan_units, (plan_count > 32 ? 0 : plan_count) * sizeof(units[0]));
    return plan_count;
}

static inline void observe(struct mp_policy *policy, uint32_t layer, uint32_t needed, uint32_t hits,
                           uint64_t now)
{
    (void)policy;
    (void)now;
    seen_layer = layer;
    seen_needed = needed;
    seen_hits = hits;
}

static inline bool revise(struct mp_policy *policy, const struct mp_shape *shape, bool idle,
                          uint32_t *quota)
{
    (void)policy;
    revisions++;
    seen_idle = idle;
    if (plan_revises)
        memcpy(quota, plan_quota, shape->layers * sizeof(quota[0]));
    return plan_revises;
}

static inline uint32_t replace(struct mp_policy *policy, const struct mp_evict_query *query,
                               uint64_t now, struct mp_swap *swaps, uint32_t max)
{
    (void)policy;
    (void)query;
    (void)now;
    (void)max;
    memcpy(swaps, plan_swaps, plan_swap_count > 8 ? 0 : plan_swap_count * sizeof(swaps[0]));
    return plan_swap_count;
}

static struct mp_partition_ops partition_ops;
static struct mp_evict_ops evict_ops;
static struct mp_admit_ops admit_ops;
static struct mp_prefetch_ops prefetch_ops;
static struct mp_policies set;

/* The set `lru` with room for other tables; world->policies is a copy of it. */
static inline void open_planned(struct world *w, uint32_t layers, uint32_t slots, bool global)
{
    static struct mp_policies base;
    static struct mp_shape shape;
    const struct mp_policy_names names = { .profile = "lru" };
    struct world_options options = {
        .layers = layers, .experts = 8, .top_k = 2, .slots = slots, .set = &set
    };
    struct mp_profile profile;

    options.reads_clock = plan_clock;
    options.sizes = plan_sizes;
    mp_policies_destroy(&base);
    shape = (struct mp_shape){ .layers = layers, .experts = 8, .top_k = 2, .slots = slots };
    shape.tokens_max = 1;
    shape.expert_bytes = UB;
    CHECK_EQ(mp_policy_resolve(&names, &profile), MP_OK);
    CHECK_EQ(mp_policies_create(&profile, &shape, NULL, &base), MP_OK);
    set = base;
    partition_ops = global ? mp_partition_global : mp_partition_uniform;
    partition_ops.first = first;
    partition_ops.observe = observe;
    partition_ops.revise = revise;
    evict_ops = *base.evict_ops;
    evict_ops.replace = replace;
    admit_ops = *base.admit_ops;
    prefetch_ops = *base.prefetch_ops;
    set.partition_ops = &partition_ops;
    set.evict_ops = &evict_ops;
    set.admit_ops = &admit_ops;
    set.prefetch_ops = &prefetch_ops;
    world_open(&options, w);
}

static inline void reset_plan(void)
{
    plan_count = plan_swap_count = revisions = 0;
    plan_revises = plan_due = false;
    plan_admits = true;
}

static inline uint32_t residents(struct world *w, uint32_t layer)
{
    uint8_t resident[8];
    uint32_t bits = 0;

    mp_pager_residents(w->pager, layer, true, resident);
    for (uint32_t e = 0; e < 8; e++)
        bits |= (uint32_t)resident[e] << e;
    return bits;
}

#endif
