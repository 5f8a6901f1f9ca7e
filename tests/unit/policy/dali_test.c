/*
 * DALI: replacement by workload on hand-made counts (eq. 12, Alg. 2), its first residents, and what
 * is loaded ahead; HybriMoE's and Klotski's prefetching beside it.
 */
#include <math.h>

#include "policy/builtins.h"
#include "policy/residents.h"
#include "tests/support/executors.h"
#include "tests/unit/policy/instance.h"
#include "tests/unit/policy/pager/pager_world.h"

#define EXPERTS 8

/* One layer of 8 experts, 6 slots: 4 residents and 2 for what comes and goes. */
static const struct mp_shape shape = {
    .layers = 1, .experts = EXPERTS, .top_k = 2, .tokens_max = 4, .slots = 6
};

struct bench {
    const struct mp_evict_ops *ops;
    struct mp_policy *policy;
    uint64_t now;
    uint8_t evictable[EXPERTS];
};

static void insert(struct bench *b, uint32_t unit)
{
    b->ops->on_insert(b->policy, unit, b->now);
    b->evictable[unit] = 1;
}

static void take_away(struct bench *b, uint32_t unit)
{
    b->ops->on_remove(b->policy, unit, b->now);
    b->evictable[unit] = 0;
}

static struct mp_evict_query query_of(const struct bench *b, uint32_t for_id)
{
    return (struct mp_evict_query){ .for_id = for_id,
                                    .scope_layer = for_id == MP_EXPERT_NONE ? 0 : MP_LAYER_ANY,
                                    .experts = EXPERTS,
                                    .evictable = b->evictable };
}

static uint32_t pick(struct bench *b, uint32_t for_id)
{
    const struct mp_evict_query query = query_of(b, for_id);

    return b->ops->pick(b->policy, &query);
}

/* One step with these tokens per expert; returns the swaps, which are carried out. */
static uint32_t step(struct bench *b, const uint32_t tokens[EXPERTS], struct mp_swap *swaps)
{
    const struct mp_evict_query query = query_of(b, MP_EXPERT_NONE);
    uint32_t count;

    b->now++;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        if (tokens[e] > 0)
            b->ops->on_access(b->policy, e, tokens[e], b->now);
    }
    count = b->ops->replace(b->policy, &query, b->now, swaps, EXPERTS);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(swaps[i].in < EXPERTS && !b->evictable[swaps[i].in]);
        if (swaps[i].out != MP_EXPERT_NONE)
            take_away(b, swaps[i].out);
        insert(b, swaps[i].in);
    }
    return count;
}

static struct bench open_bench(const char *w, const char *u)
{
    struct bench b = { .ops = &mp_evict_workload };

    b.policy = instance(&b.ops->info, b.ops->create, &shape, "W", w, "U", u, NULL);
    return b;
}

/*
 * Figure 11's parameters: 8 experts, 4 of them cached (0 to 3), w = 4, u = 2; a batch of 4, each
 * token with 2 experts, so 8 choices in a step.
 *
 *     expert      0  1  2  3  4  5  6  7
 *     step 1      3  .  .  .  3  2  .  .
 *     step 2      2  .  .  .  4  .  2  .
 *     step 3      .  4  .  .  2  2  .  .
 *     step 4      .  .  1  .  .  3  4  .
 *     sum         5  4  1  0  9  7  6  0      in: 4 (9), 5 (7); out: 3 (0), 2 (1)
 */
static void the_worked_example(void)
{
    static const uint32_t window[4][EXPERTS] = {
        { 3, 0, 0, 0, 3, 2, 0, 0 },
        { 2, 0, 0, 0, 4, 0, 2, 0 },
        { 0, 4, 0, 0, 2, 2, 0, 0 },
        { 0, 0, 1, 0, 0, 3, 4, 0 },
    };
    /* Residents 0 1 4 5. Sums 8 8 0 0 6 5 5 0: what would come, 6 with 5, is no better than 5. */
    static const uint32_t second[4][EXPERTS] = {
        { 2, 2, 0, 0, 2, 1, 1, 0 },
        { 2, 2, 0, 0, 2, 1, 1, 0 },
        { 2, 2, 0, 0, 1, 1, 2, 0 },
        { 2, 2, 0, 0, 1, 2, 1, 0 },
    };
    /* Only 7 and 0 are wanted: 7 for 1, the lowest of those without tokens. */
    static const uint32_t third[EXPERTS] = { 3, 0, 0, 0, 0, 0, 0, 5 };
    struct bench b = open_bench("4", "2");
    struct mp_swap swaps[EXPERTS];

    CHECK_EQ(mp_residents_planned(&shape, 0), 4);
    for (uint32_t e = 0; e < 4; e++)
        insert(&b, e);
    for (uint32_t s = 0; s < 3; s++)
        CHECK_EQ(step(&b, window[s], swaps), 0); /* not after the first token, as printed */
    CHECK_EQ(step(&b, window[3], swaps), 2);
    CHECK_EQ(swaps[0].in, 4);
    CHECK_EQ(swaps[0].out, 3);
    CHECK_EQ(swaps[1].in, 5);
    CHECK_EQ(swaps[1].out, 2);
    for (uint32_t s = 0; s < 4; s++)
        CHECK_EQ(step(&b, second[s], swaps), 0);
    for (uint32_t s = 0; s < 3; s++)
        CHECK_EQ(step(&b, third, swaps), 0);
    CHECK_EQ(step(&b, third, swaps), 1);
    CHECK_EQ(swaps[0].in, 7);
    CHECK_EQ(swaps[0].out, 1);
    b.ops->destroy(b.policy);
}

/* Of equal sums the lower expert leaves; one that may not leave stays, though it has the lowest. */
static void what_is_in_use_is_not_swapped_out(void)
{
    static const uint32_t tokens[EXPERTS] = { 2, 1, 1, 0, 5, 0, 0, 4 };
    struct bench b = open_bench("1", "2");
    struct mp_swap swaps[EXPERTS];

    for (uint32_t e = 0; e < 4; e++)
        insert(&b, e);
    b.evictable[3] = 0;
    CHECK_EQ(step(&b, tokens, swaps), 2);
    CHECK_EQ(swaps[0].in, 4);
    CHECK_EQ(swaps[0].out, 1);
    CHECK_EQ(swaps[1].in, 7);
    CHECK_EQ(swaps[1].out, 2);
    b.ops->destroy(b.policy);
}

static void what_only_passes_through_leaves_first(void)
{
    static const uint32_t first[EXPERTS] = { 5, 0, 4, 3, 0, 1, 1, 0 };
    struct bench b = open_bench("100", "2");
    struct mp_swap swaps[EXPERTS];

    for (uint32_t e = 0; e < 4; e++)
        insert(&b, e);
    CHECK_EQ(pick(&b, 7), MP_EXPERT_NONE); /* a guess takes no resident's slot */
    CHECK_EQ(step(&b, first, swaps), 0);
    insert(&b, 5);
    insert(&b, 6);
    CHECK_EQ(pick(&b, 7), 5); /* not planned, and used before 6 */
    CHECK_EQ(pick(&b, 2), 5); /* for a demand too */
    take_away(&b, 5);
    take_away(&b, 6);
    CHECK_EQ(pick(&b, 7), MP_EXPERT_NONE);
    CHECK_EQ(pick(&b, 6), 1); /* a demand gets the resident with the fewest tokens */
    b.evictable[1] = 0;
    CHECK_EQ(pick(&b, 6), 3);
    b.ops->destroy(b.policy);
}

/* Without first residents a layer fills up to its 4 at the ends of windows, from free slots. */
static void an_empty_layer_fills_up(void)
{
    static const uint32_t tokens[EXPERTS] = { 1, 2, 3, 4, 5, 6, 0, 0 };
    struct bench b = open_bench("1", "3");
    struct mp_swap swaps[EXPERTS];

    CHECK_EQ(step(&b, tokens, swaps), 3);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQ(swaps[i].in, 5 - i);
        CHECK_EQ(swaps[i].out, MP_EXPERT_NONE);
    }
    /* One more fits: 2. Then 1 for nobody: all residents have more tokens. */
    CHECK_EQ(step(&b, tokens, swaps), 1);
    CHECK_EQ(swaps[0].in, 2);
    CHECK_EQ(swaps[0].out, MP_EXPERT_NONE);
    CHECK_EQ(step(&b, tokens, swaps), 0);
    /* A resident that was lost is made up for; a guess that stayed is adopted first. */
    take_away(&b, 5);
    insert(&b, 0);
    CHECK_EQ(step(&b, tokens, swaps), 1);
    CHECK_EQ(swaps[0].in, 5);
    CHECK_EQ(swaps[0].out, 0);
    b.ops->destroy(b.policy);
}

static void the_defaults_follow_the_layer(void)
{
    static const uint32_t all[EXPERTS] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    struct bench b = { .ops = &mp_evict_workload };
    struct mp_swap swaps[EXPERTS];

    b.policy = instance(&b.ops->info, b.ops->create, &shape, NULL);
    for (uint32_t s = 0; s < 3; s++)
        CHECK_EQ(step(&b, all, swaps), 0);
    CHECK_EQ(step(&b, all, swaps), 1); /* w 4, u 1 for layers of 8 */
    b.ops->destroy(b.policy);
}

static void first_residents_are_spread_and_repeat(void)
{
    struct mp_shape many = { .layers = 5, .experts = 16, .top_k = 2, .slots = 44, .seed = 3 };
    const struct mp_partition_ops *ops = &mp_partition_random;
    unsigned times[16] = { 0 };
    uint32_t units[44], again[44];

    CHECK(ops->global);
    CHECK_EQ(mp_residents_planned(&many, 0), 8); /* (44 - 4) / 5 */
    for (many.seed = 0; many.seed < 200; many.seed++) {
        struct mp_policy *policy = instance(&ops->info, ops->create, &many, NULL);
        bool seen[80] = { false };

        CHECK_EQ(ops->first(policy, &many, units), 40);
        CHECK_EQ(ops->first(policy, &many, again), 40);
        CHECK(memcmp(units, again, 40 * sizeof(units[0])) == 0);
        for (uint32_t i = 0; i < 40; i++) {
            CHECK(units[i] < 80 && !seen[units[i]] && units[i] / 16 == i / 8);
            seen[units[i]] = true;
            times[units[i] % 16]++;
        }
        ops->destroy(policy);
    }
    /* 200 seeds, 5 layers, 8 of 16: 500 each expected, deviation 16. */
    for (uint32_t e = 0; e < 16; e++)
        CHECK(times[e] > 420 && times[e] < 580);
    many.slots = 2; /* none to spare */
    CHECK_EQ(mp_residents_planned(&many, 0), 0);
}

/*
 * With the pager: 3 layers of 8 experts, 14 slots, so (14 - 3) / 3 = 3 residents in each layer, by
 * chance at first. Experts 2, 5 and 7 are needed in every step, another one now and then. After
 * some windows of 4 steps they are the residents, and stay though others are loaded in between.
 */
static void the_pager_carries_the_windows_out(void)
{
    static const uint32_t favourites[3] = { 2, 5, 7 };
    struct world_options options = { .layers = 3,
                                     .experts = EXPERTS,
                                     .top_k = 2,
                                     .slots = 12,
                                     .deterministic = true,
                                     .seed = 11,
                                     .names = { .profile = "dali" } };
    uint8_t resident[EXPERTS];
    struct world w;

    world_prepare();
    world_open(&options, &w);
    CHECK_EQ(mp_residents_planned(&w.shape, 0), 3);
    CHECK_EQ(mp_residents_planned(&w.shape, 2), 3);
    w.shape.slots = 14; /* three to spare; two are left over and go to the first layers */
    CHECK_EQ(mp_residents_planned(&w.shape, 1), 4);
    CHECK_EQ(mp_residents_planned(&w.shape, 2), 3);
    for (uint32_t s = 0; s < 40; s++) {
        for (uint32_t l = 0; l < 3; l++) {
            static const uint32_t with_0[] = { 0, 2, 5, 7 }, with_6[] = { 2, 5, 6, 7 };

            if (s % 3 == 0)
                world_run(&w, l, with_0, 4);
            else if (s % 3 == 1)
                world_run(&w, l, with_6, 4);
            else
                world_run(&w, l, favourites, 3);
            mp_pager_residents(w.pager, l, true, resident);
            for (uint32_t e = 0, held = 0; e < EXPERTS; e++) {
                held += resident[e];
                CHECK(e < EXPERTS - 1 || held == 3); /* whatever happens */
            }
        }
    }
    for (uint32_t l = 0; l < 3; l++) {
        mp_pager_residents(w.pager, l, true, resident);
        for (uint32_t i = 0; i < 3; i++)
            CHECK(resident[favourites[i]]);
    }
    CHECK_EQ(w.counters.invalid_decisions, 0);
    /* From the fourth window on all favourites hit: 3 layers, 28 steps; the others never do. */
    CHECK(w.counters.hits >= 3 * 28 * 3);
    CHECK(w.counters.misses >= 3 * 26);
    world_close(&w);
}

/* k = 2: tokens want 0 1, 0 2, 0 3, 1 4: by tokens 0 (3), 1 (2), then 4 before 2 and 3 by score. */
static const float predicted[4 * EXPERTS] = {
    0.5f, 0.3f, 0, 0,    0, 0.1f, 0.1f, 0, /**/ 0.5f, 0,    0.3f, 0, 0,    0.1f, 0.1f, 0,
    0.5f, 0,    0, 0.3f, 0, 0.1f, 0.1f, 0, /**/ 0,    0.4f, 0,    0, 0.6f, 0,    0,    0,
};

static void prefetches_by_workload(void)
{
    uint8_t resident[EXPERTS] = { 0 };
    const struct mp_prefetch_facts facts = { .target_layer = 1,
                                             .tokens = 4,
                                             .experts = EXPERTS,
                                             .k = 2,
                                             .scores = predicted,
                                             .resident = resident,
                                             .max = 4 };
    const struct mp_prefetch_ops *ops = &mp_prefetch_workload;
    struct mp_policy *one = instance(&ops->info, ops->create, &shape, NULL);
    struct mp_policy *three = instance(&ops->info, ops->create, &shape, "COUNT", "3", NULL);
    struct mp_policy *hot = instance(&mp_prefetch_hot.info, mp_prefetch_hot.create, &shape, NULL);
    uint32_t experts[EXPERTS];

    CHECK_EQ(ops->choose(one, &facts, experts), 1);
    CHECK_EQ(experts[0], 0);
    resident[0] = 1; /* passed over */
    CHECK_EQ(ops->choose(one, &facts, experts), 1);
    CHECK_EQ(experts[0], 1);
    CHECK_EQ(ops->choose(three, &facts, experts), 3);
    CHECK(experts[0] == 1 && experts[1] == 4 && experts[2] == 2);
    CHECK_EQ(mp_prefetch_hot.choose(hot, &facts, experts), 2); /* k of them */
    CHECK(experts[0] == 1 && experts[1] == 4);
    memset(resident, 1, sizeof(resident));
    CHECK_EQ(ops->choose(three, &facts, experts), 0);
    ops->destroy(one);
    ops->destroy(three);
    mp_prefetch_hot.destroy(hot);
}

/*
 * HybriMoE. Loads 100, the CPU 30 for each token, the device 5 for each. Tokens of the five: 0: 3,
 * 1: 2, 4, 2, 3: 1. Nothing resident:
 *     link: 0 at 100 + 15 = 115; CPU: 3 at 30, 2 at 60, 4 at 90; then 1 at 150 against 115: 0
 *     loads; 1 at 200 + 10 = 210 against 150: CPU. The layer takes 150.
 * With 0 resident: device 15; CPU 3, 2, 4 at 90; 1 at 110 (loaded) against 150: 110. Gains 40.
 * With 1 resident: device 10; CPU to 90; 0 at 115 against 180: 115. Gains 35.
 * With 4 (or 2, 3): CPU to 60; 1 at 120 against 0's 115: 0 loads; 1 at 210 against 120: 120, gains
 *     30.
 */
static void prefetches_by_impact(void)
{
    uint8_t resident[EXPERTS] = { 0 };
    struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 100,
                              .executors[TEST_CPU].token_ns = 30,
                              .executors[TEST_DEVICE].token_ns = 5 };
    struct mp_assign_facts current = { .costs = &costs };
    const struct mp_prefetch_facts facts = { .target_layer = 1,
                                             .tokens = 4,
                                             .experts = EXPERTS,
                                             .k = 2,
                                             .scores = predicted,
                                             .resident = resident,
                                             .max = 4,
                                             .current = &current };
    const struct mp_prefetch_ops *ops = &mp_prefetch_impact;
    struct mp_policy *impact = instance(&ops->info, ops->create, &shape, NULL);
    uint32_t experts[EXPERTS];

    CHECK_EQ(ops->reach, 3);
    CHECK_EQ(ops->choose(impact, &facts, experts), 5);
    CHECK(experts[0] == 0 && experts[1] == 1 && experts[2] == 4 && experts[3] == 2 &&
          experts[4] == 3);

    /* A CPU that is quicker than the device: nothing is gained, nothing is loaded. */
    costs.executors[TEST_CPU].token_ns = 1;
    costs.executors[TEST_DEVICE].token_ns = 500;
    CHECK_EQ(ops->choose(impact, &facts, experts), 0);
    /* No CPU: as prefetch policy top, without what is there. */
    costs.executor_count = 1;
    resident[1] = 1;
    CHECK_EQ(ops->choose(impact, &facts, experts), 4);
    CHECK(experts[0] == 0 && experts[1] == 4 && experts[2] == 2 && experts[3] == 3);
    ops->destroy(impact);
}

/* Where nothing is known of times, all gain the same: expert 5 has three tokens, then of one each
 * 2 has the highest score, and of 0 and 3 the lower number is first. */
static void ties_of_impact_go_to_tokens_then_scores_then_numbers(void)
{
    static const float scores[6 * EXPERTS] = {
        [0 * EXPERTS + 5] = 0.1f, [1 * EXPERTS + 3] = 0.3f, [2 * EXPERTS + 5] = 0.1f,
        [3 * EXPERTS + 0] = 0.3f, [4 * EXPERTS + 5] = 0.1f, [5 * EXPERTS + 2] = 0.5f,
    };
    static const uint8_t resident[EXPERTS] = { 0 };
    const struct mp_prefetch_facts facts = { .target_layer = 1,
                                             .tokens = 6,
                                             .experts = EXPERTS,
                                             .k = 1,
                                             .scores = scores,
                                             .resident = resident,
                                             .max = 4 };
    struct mp_policy *impact =
        instance(&mp_prefetch_impact.info, mp_prefetch_impact.create, &shape, NULL);
    uint32_t experts[EXPERTS];

    CHECK_EQ(mp_prefetch_impact.choose(impact, &facts, experts), 4);
    CHECK(experts[0] == 5 && experts[1] == 2 && experts[2] == 0 && experts[3] == 3);
    mp_prefetch_impact.destroy(impact);
}

static void predictors_hand_on_their_source(void)
{
    static const struct mp_predict_ops *const all[] = { &mp_predict_residual, &mp_predict_partial };
    static const enum mp_score_source sources[] = { MP_SCORES_RESIDUAL, MP_SCORES_PARTIAL };
    const struct mp_predict_facts facts = {
        .target_layer = 1, .tokens = 4, .experts = EXPERTS, .k = 2, .source = predicted
    };

    for (size_t i = 0; i < 2; i++) {
        struct mp_policy *policy = instance(&all[i]->info, all[i]->create, &shape, NULL);
        float scores[4 * EXPERTS] = { NAN };

        CHECK_EQ(all[i]->source, sources[i]);
        CHECK(!all[i]->wraps);
        CHECK(all[i]->predict(policy, &facts, scores));
        CHECK(memcmp(scores, predicted, sizeof(predicted)) == 0);
        all[i]->destroy(policy);
    }
    CHECK(!mp_admit_window.admit(NULL, 3, 9, 1));
}

int main(void)
{
    RUN(the_worked_example);
    RUN(what_is_in_use_is_not_swapped_out);
    RUN(what_only_passes_through_leaves_first);
    RUN(an_empty_layer_fills_up);
    RUN(the_defaults_follow_the_layer);
    RUN(first_residents_are_spread_and_repeat);
    RUN(the_pager_carries_the_windows_out);
    RUN(prefetches_by_workload);
    RUN(prefetches_by_impact);
    RUN(ties_of_impact_go_to_tokens_then_scores_then_numbers);
    RUN(predictors_hand_on_their_source);
    return 0;
}
