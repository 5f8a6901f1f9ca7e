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
    struct mp_policy super;
    struct mp_residents residents;
    uint64_t *stamp; // (layers * experts): order of last use
    uint64_t uses;
};

static void lru_destroy(struct mp_policy *policy)
{
    struct lru *lru = (struct lru *)policy;

    mp_residents_fini(&lru->residents);
    free(lru->stamp);
    free(lru);
}

static enum mp_status create_as(const struct mp_policy_info *info, const struct mp_shape *shape,
                                struct mp_policy **policy_p)
{
    const size_t units = (size_t)shape->layers * shape->experts;
    struct lru *lru = calloc(1, sizeof(*lru));
    enum mp_status status;

    if (lru == NULL)
        return mp_fail_no_memory("an evict policy", sizeof(*lru));
    lru->super.info = info;
    lru->stamp = calloc(units, sizeof(uint64_t));
    status = lru->stamp == NULL ? mp_fail_no_memory("an evict policy", units * 8)
                                : mp_residents_init(&lru->residents, shape);
    if (status != MP_OK) {
        lru_destroy(&lru->super);
        return status;
    }
    *policy_p = &lru->super;
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

static void lru_on_insert(struct mp_policy *policy, uint32_t unit, uint64_t now)
{
    struct lru *lru = (struct lru *)policy;

    (void)now;
    mp_residents_add(&lru->residents, unit);
    lru->stamp[unit] = ++lru->uses;
}

static void lru_on_remove(struct mp_policy *policy, uint32_t unit, uint64_t now)
{
    (void)now;
    mp_residents_remove(&((struct lru *)policy)->residents, unit);
}

static void lru_on_access(struct mp_policy *policy, uint32_t unit, uint32_t tokens, uint64_t now)
{
    struct lru *lru = (struct lru *)policy;

    (void)tokens;
    (void)now;
    lru->stamp[unit] = ++lru->uses;
}

static uint32_t lru_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct lru *lru = (const struct lru *)policy;

    return mp_residents_min(&lru->residents, query, MP_LAYER_ANY, lru->stamp, NULL);
}

static uint32_t layer_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct lru *lru = (const struct lru *)policy;
    const uint32_t from = mp_residents_victim_layer(&lru->residents, query);
    uint32_t unit = mp_residents_min(&lru->residents, query, from, lru->stamp, NULL);

    if (unit == MP_UNIT_NONE && from != MP_LAYER_ANY)
        unit = mp_residents_min(&lru->residents, query, MP_LAYER_ANY, lru->stamp, NULL);
    return unit;
}

const struct mp_evict_ops mp_evict_lru = {
    .info = { .abi = MP_POLICY_ABI, .name = "lru", .summary = "least recently used" },
    .create = lru_create,
    .destroy = lru_destroy,

    .on_insert = lru_on_insert,
    .on_remove = lru_on_remove,
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
    .on_insert = lru_on_insert,
    .on_remove = lru_on_remove,
    .on_access = lru_on_access,
    .pick = layer_pick,
};
