/*
 * What policies decide, pinned: made-up facts full of ties, and one number for all that each policy
 * answers to them. Logs of earlier versions replay only while these numbers stay. A change that is
 * meant changes a number here, and says so; what a policy should decide is asserted by the tests
 * about it.
 */
#include "policy/builtins.h"
#include "tests/unit/policy/instance.h"
#include "tests/unit/policy/pinned_cache.h"

/* One question after the other; those that evict are in pinned_cache.h. */

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
            note(r, ops->wants(policy, 0, 1));
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
    { "assign cost", UINT64_C(0x9772267ab6dc260f) },
    { "predict history", UINT64_C(0x20433543a865f95e) },
    { "predict activation", UINT64_C(0xbef8cb3261f49216) },
    { "prefetch top", UINT64_C(0xd0ff5206fde43d74) },
    { "prefetch top-score", UINT64_C(0x76050bfc2a0350f4) },
    { "prefetch workload", UINT64_C(0x7010d39e7ce90dc2) },
    { "prefetch hot", UINT64_C(0x237d4ac9fca2a509) },
    { "prefetch impact", UINT64_C(0xcb956039c3fc7945) },
    { "prefetch window", UINT64_C(0x60c04edd418055df) },
    { "prefetch presched", UINT64_C(0xc936be3f5ea078cc) },
    { "prefetch idle", UINT64_C(0x14e991c71e321125) },
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
    { "evict lcp", UINT64_C(0xc685ee447e16a02a) },
    { "evict shadow", UINT64_C(0xed462bd22e274b25) },
    { "evict activation", UINT64_C(0x7a4a486100ada785) },
    { "evict ema", UINT64_C(0xad4db0d1f9384a36) },
    { "evict best", UINT64_C(0xa052a14c02ef280b) },
    { "partition global", UINT64_C(0x41491c81a1124dd5) },
    { "partition uniform", UINT64_C(0xeb98443c82954680) },
    { "partition random", UINT64_C(0x6ed333517bdada3d) },
    { "partition hot-table", UINT64_C(0x6ca07e8f7ec719dd) },
    { "partition static-layers", UINT64_C(0x815dac7edc3afb87) },
    { "partition adapmoe", UINT64_C(0x57568434b1d168be) },
    { "partition fixed-point", UINT64_C(0x4398f36a3452293e) },
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
