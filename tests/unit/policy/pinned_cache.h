#ifndef MP_TESTS_PINNED_CACHE_H
#define MP_TESTS_PINNED_CACHE_H

/* Made-up facts full of ties, a hash of what policies answer, and a pager of few lines for those
 * that evict. */
#include "policy/builtins.h"
#include "policy/evict/shadow.h"
#include "policy/top_k.h"
#include "tests/unit/policy/instance.h"

enum { LAYERS = 4, EXPERTS = 8, UNITS = LAYERS * EXPERTS, TOKENS = 4, K = 2 };

#define HASH_START UINT64_C(0xcbf29ce484222325)

struct run {
    uint64_t random, hash;
    struct mp_costs costs;
    struct mp_calibration calibration;
    float hot[UNITS], similarity[UNITS * EXPERTS];
    float scores[TOKENS * EXPERTS];
    uint32_t chosen[TOKENS * EXPERTS];
    uint8_t resident[UNITS];
};

static inline uint32_t below(struct run *r, uint32_t count)
{
    r->random += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mp_policy_mix(r->random) >> 33) % count;
}

static inline void note(struct run *r, uint32_t value)
{
    r->hash = (r->hash ^ value) * UINT64_C(0x100000001b3);
}

static inline void note_all(struct run *r, const uint32_t *values, uint32_t count)
{
    note(r, count);
    for (uint32_t i = 0; i < count; i++)
        note(r, values[i]);
}

/* Small whole numbers, so that equal times and equal sums are common. */
static inline void make_costs(struct run *r)
{
    static const enum mp_reads reads[] = { MP_READS_DEVICE, MP_READS_LINK, MP_READS_HOST,
                                           MP_READS_HOST };

    r->costs = (struct mp_costs){
        .load_ns = below(r, 8) == 0 ? 0 : 4 * (1 + below(r, 4)),
        .predict_ns = below(r, 6),
        .layer_ns = 4 * below(r, 4),
        .transient = below(r, 4),
        .executor_count = 1 + below(r, 4),
    };
    for (uint32_t x = 0; x < r->costs.executor_count; x++)
        r->costs.executors[x] = (struct mp_executor){
            .name = "one",
            .fixed_ns = 2 * below(r, 3),
            .token_ns = below(r, 8) == 0 ? 0 : 1 + below(r, 4),
            .handoff_ns = below(r, 2),
            .reads = reads[x],
            .processor = x == 1 ? 0 : x,
        };
}

static inline void make_calibration(struct run *r)
{
    for (uint32_t u = 0; u < UNITS; u++)
        r->hot[u] = (float)below(r, 6) / 16;
    for (uint32_t i = 0; i < UNITS * EXPERTS; i++)
        r->similarity[i] = (float)below(r, 9) / 8;
    r->calibration = (struct mp_calibration){ .hot = r->hot, .similarity = r->similarity };
}

static inline struct mp_shape make_shape(struct run *r, uint32_t slots)
{
    make_costs(r);
    make_calibration(r);
    return (struct mp_shape){
        .layers = LAYERS,
        .experts = EXPERTS,
        .top_k = K,
        .tokens_max = TOKENS,
        .slots = slots,
        .seed = below(r, 1000),
        .calibration = &r->calibration,
        .costs = &r->costs,
    };
}

/* Scores in steps of 1/16, some experts likelier than others, and what follows from them. */
static inline void make_scores(struct run *r, uint32_t tokens, uint32_t favoured)
{
    float best[K];

    for (uint32_t i = 0; i < tokens * EXPERTS; i++)
        r->scores[i] = (float)(below(r, 8) + 5 * ((i + favoured) % EXPERTS < K)) / 16;
    for (uint32_t t = 0; t < tokens; t++)
        mp_top_k(r->scores + t * EXPERTS, EXPERTS, K, r->chosen + t * K, best);
}

/* ---- a pager of few lines ---- */

struct cache {
    struct run *r;
    const struct mp_evict_ops *ops;
    struct mp_policy *policy;
    uint32_t slots, held;
    uint64_t now;
    bool per_layer;
    uint8_t evictable[UNITS];
};

static inline void drop(struct cache *c, uint32_t unit)
{
    c->r->resident[unit] = 0;
    c->held--;
    c->ops->on_remove(c->policy, unit, c->now);
}

/* False: nobody leaves for it. */
static inline bool bring(struct cache *c, uint32_t unit, bool demand)
{
    const uint32_t layer = unit / EXPERTS;
    uint32_t held = 0;

    for (uint32_t e = 0; e < EXPERTS; e++)
        held += c->r->resident[layer * EXPERTS + e];
    if (c->held == c->slots ||
        (c->per_layer && held > 0 && held >= mp_equal_share(c->slots, LAYERS, layer))) {
        const struct mp_evict_query query = { .for_unit = unit,
                                              .scope_layer =
                                                  c->per_layer && held > 0 ? layer : MP_LAYER_ANY,
                                              .experts = EXPERTS,
                                              .evictable = c->evictable };
        uint32_t out = c->ops->pick(c->policy, &query);

        note(c->r, out);
        for (uint32_t u = 0; u < UNITS && out == MP_UNIT_NONE && demand; u++) {
            if (mp_evict_allows(&query, u))
                out = u;
        }
        if (out == MP_UNIT_NONE)
            return false;
        c->evictable[out] = 0;
        drop(c, out);
    }
    c->r->resident[unit] = 1;
    c->held++;
    c->ops->on_insert(c->policy, unit, c->now);
    return true;
}

static inline void swap(struct cache *c, uint32_t layer)
{
    const struct mp_evict_query query = { .for_unit = MP_UNIT_NONE,
                                          .scope_layer = layer,
                                          .experts = EXPERTS,
                                          .shared = !c->per_layer,
                                          .evictable = c->evictable };
    struct mp_swap swaps[EXPERTS];
    uint32_t count;

    for (uint32_t u = 0; u < UNITS; u++) /* some are in use */
        c->evictable[u] = c->r->resident[u] && below(c->r, 8) > 0;
    count = c->ops->replace(c->policy, &query, c->now, swaps, EXPERTS);
    note(c->r, count);
    for (uint32_t i = 0; i < count; i++) {
        note(c->r, swaps[i].in);
        note(c->r, swaps[i].out);
        if (c->r->resident[swaps[i].in] || below(c->r, 8) == 0) /* or it comes too late */
            continue;
        if (swaps[i].out != MP_UNIT_NONE && c->r->resident[swaps[i].out])
            drop(c, swaps[i].out);
        if (c->held < c->slots) {
            c->r->resident[swaps[i].in] = 1;
            c->held++;
            c->ops->on_insert(c->policy, swaps[i].in, c->now);
        }
    }
}

static inline void run_layer(struct cache *c, uint32_t layer, uint32_t tokens, uint32_t favoured)
{
    uint32_t wanted[EXPERTS] = { 0 };

    c->now++;
    make_scores(c->r, tokens, favoured + 3 * layer);
    for (uint32_t i = 0; i < tokens * K; i++)
        wanted[c->r->chosen[i]]++;
    if (c->ops->on_scores != NULL && !(c->ops->scores_optional && c->slots % 2 == 0))
        c->ops->on_scores(c->policy, layer, tokens, K, c->r->scores, c->r->chosen, c->now);
    for (uint32_t e = 0; e < EXPERTS && c->ops->on_access != NULL; e++) {
        if (wanted[e] > 0)
            c->ops->on_access(c->policy, layer * EXPERTS + e, wanted[e], c->now);
    }
    memcpy(c->evictable, c->r->resident, UNITS);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        if (wanted[e] > 0)
            c->evictable[layer * EXPERTS + e] = 0;
    }
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const uint32_t unit = layer * EXPERTS + e;

        if (wanted[e] > 0 && !c->r->resident[unit])
            (void)bring(c, unit, true);
    }
    if (below(c->r, 4) == 0) { /* a guess */
        const uint32_t unit = (layer + 1) % LAYERS * EXPERTS + below(c->r, EXPERTS);

        if (!c->r->resident[unit])
            (void)bring(c, unit, false);
    }
    if (c->ops->replace != NULL)
        swap(c, layer);
    if (c->ops->notice != NULL)
        note(c->r, c->ops->notice(c->policy) != NULL);
}

static inline void run_evict(struct run *r, const struct mp_policy_info *info, uint32_t round)
{
    const struct mp_evict_ops *ops = (const void *)info;
    struct cache cache = {
        .r = r, .ops = ops, .slots = 4 + round * 5 % 27, .per_layer = round % 4 == 3
    };
    struct mp_shape shape = make_shape(r, cache.slots);
    const bool shadow = info == &mp_evict_shadow.info && round % 2 == 1;
    uint32_t favoured = 0;

    if (round % 3 == 0 && !info->calibrated)
        shape.calibration = NULL;
    if (round % 5 == 0)
        shape.costs = NULL;
    memset(r->resident, 0, sizeof(r->resident));
    cache.policy = shadow ? instance(info, ops->create, &shape, "HYSTERESIS", "5", NULL)
                          : instance(info, ops->create, &shape, NULL);
    for (uint32_t u = 0; u < UNITS && u < cache.slots / 2 && round % 2 == 0; u++)
        (void)bring(&cache, u * 3 % UNITS, false);
    for (uint32_t step = 0; step < (shadow ? 1000 : 200); step++) {
        if (step % (shadow ? 150 : 40) == 0)
            favoured = below(r, EXPERTS);
        for (uint32_t l = 0; l < LAYERS; l++)
            run_layer(&cache, l, step % 40 == 0 ? TOKENS : 1, favoured);
    }
    if (info == &mp_evict_shadow.info)
        note(r, mp_evict_shadow_changes(cache.policy));
    ops->destroy(cache.policy);
}

#endif
