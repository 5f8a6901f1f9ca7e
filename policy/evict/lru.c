/*
 * Least recently used: `lru` over all layers, `layer-lru` within a layer, where each layer is
 * entitled to an equal share of the slots and a layer below its share takes from the one that
 * exceeds its own most. Under one token cycle a global order evicts every unit before its next use;
 * the pager then divides the slots among the layers.
 */
#include "policy/builtins.h"

#include <stdlib.h>

#include "policy/residents.h"
#include "vmm/base/error.h"

struct lru {
    struct mp_evict_base base;
};

static void lru_destroy(struct mp_policy *policy)
{
    struct lru *lru = (struct lru *)policy;

    mp_residents_fini(&lru->base.set);
    free(lru);
}

static enum mp_status create_as(const struct mp_policy_info *info, const struct mp_shape *shape,
                                struct mp_policy **policy_p)
{
    struct lru *lru = calloc(1, sizeof(*lru));
    enum mp_status status;

    if (lru == NULL)
        return mp_fail_no_memory("an evict policy", sizeof(*lru));
    lru->base.super.info = info;
    status = mp_residents_init(&lru->base.set, shape);
    if (status != MP_OK) {
        lru_destroy(&lru->base.super);
        return status;
    }
    *policy_p = &lru->base.super;
    return MP_OK;
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

static void lru_on_access(struct mp_policy *policy, uint32_t unit, uint32_t tokens, uint64_t now)
{
    struct lru *lru = (struct lru *)policy;

    (void)tokens;
    (void)now;
    mp_residents_use(&lru->base.set, unit);
}

static uint32_t lru_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct lru *lru = (const struct lru *)policy;

    return mp_residents_min(&lru->base.set, query, MP_LAYER_ANY, lru->base.set.stamp, NULL);
}

static uint32_t layer_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct lru *lru = (const struct lru *)policy;

    return mp_residents_min_fair(&lru->base.set, query, lru->base.set.stamp, NULL);
}

const struct mp_evict_ops mp_evict_lru = {
    .info = { .abi = MP_POLICY_ABI, .name = "lru", .summary = "least recently used" },
    .create = lru_create,
    .destroy = lru_destroy,

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
    .destroy = lru_destroy,
    .per_layer = true,
    .on_insert = mp_evict_insert,
    .on_remove = mp_evict_remove,
    .on_access = lru_on_access,
    .pick = layer_pick,
};
