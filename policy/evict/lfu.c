/*
 * Least frequently used: `lfu` over all layers, `layer-lfu` within equal shares as in lru.c.
 * The count of an expert grows by one for each batch that needs it and survives eviction; ties go
 * to the least recently used.
 */
#include "policy/builtins.h"

#include "policy/residents.h"

struct lfu {
    struct mp_evict_base base;
    uint64_t *count; // (layers * experts): batches that needed the expert
};

static void lfu_take(struct mp_policy *policy, const struct mp_shape *shape, struct mp_arena *arena)
{
    struct lfu *lfu = (struct lfu *)policy;

    mp_residents_take(&lfu->base.set, shape, arena);
    lfu->count = mp_arena_take(arena, (uint64_t)shape->layers * shape->experts, sizeof(uint64_t));
}

static enum mp_status create_as(const struct mp_policy_info *info, const struct mp_shape *shape,
                                struct mp_policy **policy_p)
{
    struct lfu draft = { .base.super.info = info };

    return mp_policy_make(&draft.base.super, sizeof(draft), lfu_take, shape, policy_p);
}

static enum mp_status lfu_create(const void *config, const struct mp_shape *shape,
                                 struct mp_policy **policy_p)
{
    (void)config;
    return create_as(&mp_evict_lfu.info, shape, policy_p);
}

static enum mp_status layer_create(const void *config, const struct mp_shape *shape,
                                   struct mp_policy **policy_p)
{
    (void)config;
    return create_as(&mp_evict_layer_lfu.info, shape, policy_p);
}

static void lfu_on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    struct lfu *lfu = (struct lfu *)policy;

    (void)tokens;
    (void)now;
    lfu->count[id]++;
    mp_residents_use(&lfu->base.set, id);
}

static uint32_t lfu_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct lfu *lfu = (const struct lfu *)policy;

    return mp_residents_min(&lfu->base.set, query, MP_LAYER_ANY, lfu->count, lfu->base.set.stamp);
}

static uint32_t layer_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct lfu *lfu = (const struct lfu *)policy;

    return mp_residents_min_fair(&lfu->base.set, query, lfu->count, lfu->base.set.stamp);
}

const struct mp_evict_ops mp_evict_lfu = {
    .info = { .abi = MP_POLICY_ABI, .name = "lfu", .summary = "least frequently used" },
    .create = lfu_create,
    .destroy = mp_policy_free,

    .on_insert = mp_evict_insert,
    .on_remove = mp_evict_remove,
    .on_access = lfu_on_access,
    .pick = lfu_pick,
};

const struct mp_evict_ops mp_evict_layer_lfu = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "layer-lfu",
              .summary = "least frequently used within equal shares per layer" },
    .create = layer_create,
    .destroy = mp_policy_free,
    .per_layer = true,
    .on_insert = mp_evict_insert,
    .on_remove = mp_evict_remove,
    .on_access = lfu_on_access,
    .pick = layer_pick,
};
