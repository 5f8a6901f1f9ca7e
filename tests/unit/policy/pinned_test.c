/*
 * What policies decide, pinned: made-up facts full of ties, and one number for all that each policy
 * answers to them. Logs of earlier versions replay only while these numbers stay. A change that is
 * meant changes a number here, and says so; what a policy should decide is asserted by the tests
 * about it.
 */
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

static uint32_t below(struct run *r, uint32_t count)
{
    r->random += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mp_policy_mix(r->random) >> 33) % count;
}

static void note(struct run *r, uint32_t value)
{
    r->hash = (r->hash ^ value) * UINT64_C(0x100000001b3);
}

static void note_all(struct run *r, const uint32_t *values, uint32_t count)
{
    note(r, count);
    for (uint32_t i = 0; i < count; i++)
        note(r, values[i]);
}

/* Small whole numbers, so that equal times and equal sums are common. */
static void make_costs(struct run *r)
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

static void make_calibration(struct run *r)
{
    for (uint32_t u = 0; u < UNITS; u++)
        r->hot[u] = (float)below(r, 6) / 16;
    for (uint32_t i = 0; i < UNITS * EXPERTS; i++)
        r->similarity[i] = (float)below(r, 9) / 8;
    r->calibration = (struct mp_calibration){ .hot = r->hot, .similarity = r->similarity };
}

static struct mp_shape make_shape(struct run *r, uint32_t slots)
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
static void make_scores(struct run *r, uint32_t tokens, uint32_t favoured)
{
    float best[K];

    for (uint32_t i = 0; i < tokens * EXPERTS; i++)
        r->scores[i] = (float)(below(r, 8) + 5 * ((i + favoured) % EXPERTS < K)) / 16;
    for (uint32_t t = 0; t < tokens; t++)
        mp_top_k(r->scores + t * EXPERTS, EXPERTS, K, r->chosen + t * K, best);
}

/* ---- evict: a pager of few lines ---- */

struct cache {
    struct run *r;
    const struct mp_evict_ops *ops;
    struct mp_policy *policy;
    uint32_t slots, held;
    uint64_t now;
    bool per_layer;
    uint8_t evictable[UNITS];
};

static void drop(struct cache *c, uint32_t unit)
{
    c->r->resident[unit] = 0;
    c->held--;
    c->ops->on_remove(c->policy, unit, c->now);
}

/* False: nobody leaves for it. */
static bool bring(struct cache *c, uint32_t unit, bool demand)
{
    const uint32_t layer = unit / EXPERTS;
    uint32_t held = 0;

    for (uint32_t e = 0; e < EXPERTS; e++)
        held += c->r->resident[layer * EXPERTS + e];
    if (c->held == c->slots ||
        (c->per_layer && held > 0 && held >= mp_equal_share(c->slots, LAYERS, layer))) {
        const struct mp_evict_query query = { .for_id = unit,
                                              .scope_layer =
                                                  c->per_layer && held > 0 ? layer : MP_LAYER_ANY,
                                              .experts = EXPERTS,
                                              .evictable = c->evictable };
        uint32_t out = c->ops->pick(c->policy, &query);

        note(c->r, out);
        for (uint32_t u = 0; u < UNITS && out == MP_EXPERT_NONE && demand; u++) {
            if (mp_evict_allows(&query, u))
                out = u;
        }
        if (out == MP_EXPERT_NONE)
            return false;
        c->evictable[out] = 0;
        drop(c, out);
    }
    c->r->resident[unit] = 1;
    c->held++;
    c->ops->on_insert(c->policy, unit, c->now);
    return true;
}

static void swap(struct cache *c, uint32_t layer)
{
    const struct mp_evict_query query = { .for_id = MP_EXPERT_NONE,
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
        if (swaps[i].out != MP_EXPERT_NONE && c->r->resident[swaps[i].out])
            drop(c, swaps[i].out);
        if (c->held < c->slots) {
            c->r->resident[swaps[i].in] = 1;
            c->held++;
            c->ops->on_insert(c->policy, swaps[i].in, c->now);
        }
    }
}

static void run_layer(struct cache *c, uint32_t layer, uint32_t tokens, uint32_t favoured)
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

static void run_evict(struct run *r, const struct mp_policy_info *info, uint32_t round)
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

/* ---- the others: one question after the other ---- */

static uint32_t make_needs(struct run *r, struct mp_assign_facts *facts, uint32_t layer)
{
    static uint32_t experts[EXPERTS], tokens[EXPERTS], next_tokens[EXPERTS];
    static uint8_t resident[EXPERTS], next_resident[EXPERTS];
    static float scores[EXPERTS];
    uint32_t count = 0;

    for (uint32_t e = 0; e < EXPERTS; e++) {
        next_tokens[e] = below(r, 3);
        next_resident[e] = below(r, 2) == 0;
        if (below(r, 3) == 0 && (count > 0 || e + 1 < EXPERTS))
            continue;
        experts[count] = e;
        tokens[count] = 1 + below(r, TOKENS);
        scores[count] = (float)below(r, 5) / 8;
        resident[count++] = below(r, 3) == 0;
    }
    *facts = (struct mp_assign_facts){
        .layer = layer,
        .count = count,
        .experts = experts,
        .tokens = tokens,
        .scores = scores,
        .resident = resident,
        .costs = &r->costs,
        .link_busy_ns = 2 * below(r, 4),
    };
    if (below(r, 4) > 0) {
        facts->next_tokens = next_tokens;
        facts->next_resident = next_resident;
    }
    return count;
}

static void run_assign(struct run *r, const struct mp_policy_info *info, uint32_t round)
{
    const struct mp_assign_ops *ops = (const void *)info;
    const struct mp_shape shape = make_shape(r, 16);
    struct mp_policy *policy =
        info == &mp_assign_exact.info && round % 2 == 0
            ? instance(info, ops->create, &shape, "NODES", round % 4 == 0 ? "1" : "7", NULL)
            : instance(info, ops->create, &shape, NULL);

    for (uint32_t i = 0; i < 300; i++) {
        struct mp_assign_facts facts;
        uint32_t executors[EXPERTS], count;

        make_costs(r);
        count = make_needs(r, &facts, i % LAYERS);
        ops->assign(policy, &facts, executors);
        note_all(r, executors, count);
    }
    ops->destroy(policy);
}

static void run_prefetch(struct run *r, const struct mp_policy_info *info, uint32_t round)
{
    const struct mp_prefetch_ops *ops = (const void *)info;
    const struct mp_shape shape = make_shape(r, 16);
    struct mp_policy *policy = instance(info, ops->create, &shape, NULL);

    for (uint32_t i = 0; i < 300 && ops->choose != NULL; i++) {
        const uint32_t layer = i % LAYERS, tokens = 1 + below(r, TOKENS);
        struct mp_assign_facts current;
        uint32_t executors[EXPERTS], named[EXPERTS + 1];

        if (ops->wants != NULL)
            note(r, ops->wants(policy));
        (void)make_needs(r, &current, layer);
        for (uint32_t n = 0; n < current.count; n++)
            executors[n] = below(r, r->costs.executor_count);
        for (uint32_t d = 1; d <= (ops->reach > 1 ? ops->reach : 1); d++) {
            struct mp_prefetch_facts facts = {
                .layer = layer,
                .target_layer = (layer + d) % LAYERS,
                .tokens = tokens,
                .experts = EXPERTS,
                .k = K,
                .scores = r->scores,
                .resident = r->resident,
                .max = below(r, EXPERTS),
                .distance = d,
                .current = &current,
                .executors = executors,
            };

            make_scores(r, tokens, round + layer + d);
            for (uint32_t e = 0; e < EXPERTS; e++)
                r->resident[e] = below(r, 3) == 0;
            note_all(r, named, ops->choose(policy, &facts, named));
        }
        if (ops->observe != NULL) {
            make_scores(r, tokens, round + layer);
            ops->observe(policy, layer, tokens, K, r->chosen);
        }
    }
    ops->destroy(policy);
}

static void run_route(struct run *r, const struct mp_policy_info *info, uint32_t round)
{
    static const char *const alphas[] = { "-1", "0", "0.25", "0.5" };
    const struct mp_route_ops *ops = (const void *)info;
    const struct mp_shape shape = make_shape(r, 16);
    struct mp_policy *policy = info->opts != NULL
                                   ? instance(info, ops->create, &shape, "ALPHA", alphas[round % 4],
                                              "TPOT_MS", round < 4 ? "0" : "20", NULL)
                                   : instance(info, ops->create, &shape, NULL);

    for (uint32_t i = 0; i < 300; i++) {
        const uint32_t tokens = round < 4 ? 1 + below(r, TOKENS) : 1 + i / 200;
        uint32_t experts[TOKENS * K];
        float weights[TOKENS * K];
        const struct mp_route_facts facts = { .layer = i % LAYERS,
                                              .tokens = tokens,
                                              .experts = EXPERTS,
                                              .k = K,
                                              .scores = r->scores,
                                              .resident = r->resident,
                                              .costs = &r->costs };

        if (i == 0) { /* milliseconds */
            r->costs.load_ns = 1000000 * (1 + round);
            r->costs.layer_ns = 1000000;
        }
        make_scores(r, tokens, i);
        for (uint32_t e = 0; e < EXPERTS; e++)
            r->resident[e] = below(r, 2) == 0;
        ops->route(policy, &facts, experts, weights);
        note_all(r, experts, tokens * K);
        for (uint32_t w = 0; w < tokens * K; w++)
            note(r, (uint32_t)(weights[w] * 16));
    }
    ops->destroy(policy);
}

static void run_predict(struct run *r, const struct mp_policy_info *info, uint32_t round)
{
    const struct mp_predict_ops *ops = (const void *)info;
    const struct mp_shape shape = make_shape(r, 16);
    struct mp_policy *policy = instance(info, ops->create, &shape, NULL);

    for (uint32_t i = 0; i < 400 && ops->observe != NULL; i++) {
        const uint32_t layer = i % LAYERS, tokens = i / LAYERS % 7 == 0 ? TOKENS : 1;
        const struct mp_predict_facts facts = { .layer = layer,
                                                .target_layer = (layer + 1) % LAYERS,
                                                .tokens = tokens,
                                                .experts = EXPERTS,
                                                .k = K,
                                                .chosen = r->chosen };
        float scores[TOKENS * EXPERTS];

        make_scores(r, tokens, round + i / 28);
        ops->observe(policy, layer, tokens, K, r->chosen);
        if (!ops->predict(policy, &facts, scores))
            continue;
        for (uint32_t s = 0; s < tokens * EXPERTS; s++)
            note(r, (uint32_t)(scores[s] * 65536));
    }
    ops->destroy(policy);
}

static void run_partition(struct run *r, const struct mp_policy_info *info, uint32_t round)
{
    const struct mp_partition_ops *ops = (const void *)info;
    struct mp_shape shape = make_shape(r, 3 + round);
    struct mp_policy *policy;
    uint32_t units[UNITS + 1], quota[LAYERS] = { 0 }, retained[LAYERS] = { 0 };

    shape.slices = round % 2 == 0 ? 4 : 1;
    policy = info == &mp_partition_fixed_point.info
                 ? instance(info, ops->create, &shape, "TAU", "12", "ZETA", "0.1", NULL)
                 : instance(info, ops->create, &shape, NULL);
    if (ops->first != NULL)
        note_all(r, units, ops->first(policy, &shape, units));
    if (ops->quota != NULL)
        ops->quota(policy, &shape, quota);
    note_all(r, quota, LAYERS);
    for (uint32_t i = 0; i < 400 && ops->revise != NULL; i++) {
        const uint32_t layer = i % LAYERS, tokens = i / LAYERS % 9 == 0 ? TOKENS : 1;

        make_scores(r, tokens, layer + i / 80);
        if (ops->predicted != NULL && below(r, 8) > 0)
            ops->predicted(policy, layer, tokens, r->scores);
        if (below(r, 2) == 0)
            make_scores(r, tokens, layer + i / 80);
        if (ops->routed != NULL)
            ops->routed(policy, layer, tokens, K, r->chosen);
        if (layer + 1 < LAYERS)
            continue;
        if (ops->due != NULL)
            note(r, ops->due(policy, &shape));
        if (ops->revise(policy, &shape, below(r, 2) == 0, quota))
            note_all(r, quota, LAYERS);
        if (ops->retained != NULL && shape.slices > 1) {
            ops->retained(policy, &shape, retained);
            note_all(r, retained, LAYERS);
        }
    }
    ops->destroy(policy);
}

static const struct {
    enum mp_policy_kind kind;
    void (*run)(struct run *r, const struct mp_policy_info *info, uint32_t round);
    uint32_t rounds;
} kinds[] = {
    { MP_POLICY_ROUTE, run_route, 8 },     { MP_POLICY_ASSIGN, run_assign, 8 },
    { MP_POLICY_PREDICT, run_predict, 8 }, { MP_POLICY_PREFETCH, run_prefetch, 16 },
    { MP_POLICY_EVICT, run_evict, 30 },    { MP_POLICY_PARTITION, run_partition, 30 },
};

static const struct {
    const char *name; /* kind and policy */
    uint64_t hash;
} pinned[] = {
    { "route exact", UINT64_C(0xaab51701bb900a3f) },
    { "route smoe", UINT64_C(0x42f37806f2812854) },
    { "route smoe-similar", UINT64_C(0x1d1cd5c89ea4596b) },
    { "assign gpu-only", UINT64_C(0x0f0255882fea6f70) },
    { "assign threshold", UINT64_C(0xa82f4fe1d25b634c) },
    { "assign two-pointer", UINT64_C(0x76224c78895fb7e4) },
    { "assign greedy", UINT64_C(0x293c1172db84adb2) },
    { "assign beam", UINT64_C(0xb37d3f2a3769450a) },
    { "assign exact", UINT64_C(0x86efa9db3465e83e) },
    { "assign queue", UINT64_C(0x186c9a9788aae9d2) },
    { "assign resident", UINT64_C(0xdcdd1276f814a5f4) },
    { "assign presched", UINT64_C(0x312188d7bddbb07c) },
    { "assign cost", UINT64_C(0xeab25ff8ea30cb12) },
    { "predict history", UINT64_C(0x20433543a865f95e) },
    { "predict activation", UINT64_C(0xbef8cb3261f49216) },
    { "prefetch top", UINT64_C(0xd0ff5206fde43d74) },
    { "prefetch top-score", UINT64_C(0x76050bfc2a0350f4) },
    { "prefetch workload", UINT64_C(0x7010d39e7ce90dc2) },
    { "prefetch hot", UINT64_C(0x237d4ac9fca2a509) },
    { "prefetch impact", UINT64_C(0xcb956039c3fc7945) },
    { "prefetch window", UINT64_C(0x60c04edd418055df) },
    { "prefetch presched", UINT64_C(0xc7ab5a128219adaa) },
    { "prefetch idle", UINT64_C(0xf555874e48c5d4ef) },
    { "evict lru", UINT64_C(0x2f4ffad24e747cea) },
    { "evict lfu", UINT64_C(0x88974ef5b011025a) },
    { "evict random", UINT64_C(0xae3c628be90fe263) },
    { "evict layer-lru", UINT64_C(0xcf347de2af5e881a) },
    { "evict layer-lfu", UINT64_C(0xe7285355b765e56e) },
    { "evict score", UINT64_C(0xa87ac7ee5028925b) },
    { "evict mrs", UINT64_C(0x537e1626d7819fc4) },
    { "evict workload", UINT64_C(0x536d22ad313a1b6e) },
    { "evict none", UINT64_C(0x555f773a91528adb) },
    { "evict lfru", UINT64_C(0x854430fc58933677) },
    { "evict class-lru", UINT64_C(0x837912db472552f7) },
    { "evict lcp", UINT64_C(0xc55d9c91fec39f6c) },
    { "evict shadow", UINT64_C(0xeaa9514345a7e9df) },
    { "evict activation", UINT64_C(0x7a4a486100ada785) },
    { "evict ema", UINT64_C(0x59466c4be52ea527) },
    { "partition global", UINT64_C(0x41491c81a1124dd5) },
    { "partition uniform", UINT64_C(0xeb98443c82954680) },
    { "partition random", UINT64_C(0x6ed333517bdada3d) },
    { "partition hot-table", UINT64_C(0x6ca07e8f7ec719dd) },
    { "partition static-layers", UINT64_C(0x815dac7edc3afb87) },
    { "partition adapmoe", UINT64_C(0x57568434b1d168be) },
    { "partition fixed-point", UINT64_C(0xb01b4f643f48fe71) },
};

static uint64_t pinned_of(const char *name)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(pinned); i++) {
        if (strcmp(pinned[i].name, name) == 0)
            return pinned[i].hash;
    }
    return 0;
}

static void every_policy_decides_as_it_did(void)
{
    unsigned wrong = 0;

    for (size_t k = 0; k < MP_ARRAY_LEN(kinds); k++) {
        const struct mp_policy_info *info;

        for (size_t i = 0; (info = mp_policy_builtin(kinds[k].kind, i)) != NULL; i++) {
            struct run r = { .hash = HASH_START };
            char name[64];

            for (uint32_t round = 0; round < kinds[k].rounds; round++) {
                r.random = round + 1;
                kinds[k].run(&r, info, round);
            }
            snprintf(name, sizeof(name), "%s %s", mp_policy_kind_name(kinds[k].kind), info->name);
            if (r.hash == pinned_of(name) || r.hash == HASH_START) /* or nothing to decide */
                continue;
            fprintf(stderr, "    { \"%s\", UINT64_C(0x%016llx) },\n", name,
                    (unsigned long long)r.hash);
            wrong++;
        }
    }
    CHECK_EQ(wrong, 0);
}

int main(void)
{
    RUN(every_policy_decides_as_it_did);
    return 0;
}
