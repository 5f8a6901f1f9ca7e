/*
 * Least recently used: `lru` over all layers, `layer-lru` within a layer, where each layer is
 * entitled to an equal share of the slots and a layer below its share takes from the one that
 * exceeds its own most. Under one token cycle a global order evicts every expert before its next
 * use; the pager then divides the slots among the layers.
 */
#include "policy/builtins.h"

#include "policy/residents.h"

static enum mp_status create_as(const struct mp_policy_info *info, const struct mp_shape *shape,
                                struct mp_policy **policy_p)
{
    struct mp_evict_base draft = { .super.info = info };

    return mp_policy_make(&draft.super, sizeof(draft), mp_evict_take, shape, policy_p);
}

static enum mp_status lru_create(const void *config, const struct mp_shape *shape,
                                 struct mp_policy **policy_p)
{
    (void)config;
    return create_as(&mp_evict_lru.info, shape, policy_p);
}

static enum mp_status layer_create(const void *config, const struct mp_shape *shape,
                                   struct mp_policy **policy_p)
{
    (void)config;
    return create_as(&mp_evict_layer_lru.info, shape, policy_p);
}

static void lru_on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    struct mp_evict_base *lru = (struct mp_evict_base *)policy;

    (void)tokens;
    (void)now;
    mp_residents_use(&lru->set, id);
}

static uint32_t lru_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct mp_evict_base *lru = (const struct mp_evict_base *)policy;

    return mp_residents_min(&lru->set, query, MP_LAYER_ANY, lru->set.stamp, NULL);
}

static uint32_t layer_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct mp_evict_base *lru = (const struct mp_evict_base *)policy;

    return mp_residents_min_fair(&lru->set, query, lru->set.stamp, NULL);
}

const struct mp_evict_ops mp_evict_lru = {
    .info = { .abi = MP_POLICY_ABI, .name = "lru", .summary = "least recently used" },
    .create = lru_create,
    .destroy = mp_policy_free,

    .on_insert = mp_evict_insert,
    .on_remove = mp_evict_remove,
    .on_access = lru_on_access,
    .pick = lru_pick,
};

const struct mp_evict_ops mp_evict_layer_lru = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "layer-lru",
              .summary = "least recently used within equal shares per layer" },
    .create = layer_create,
    .destroy = mp_policy_free,
    .per_layer = true,
    .on_insert = mp_evict_insert,
    .on_remove = mp_evict_remove,
    .on_access = lru_on_access,
    .pick = layer_pick,
};
