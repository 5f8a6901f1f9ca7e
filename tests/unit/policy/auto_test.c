/*
 * What profile `auto` is made of: eviction that follows the best of several policies is never worse
 * than the best by more than its stated bound, falls back on a static placement where that is
 * cheaper, and assignment and prefetch by measured times, on layers worked out by hand.
 */
#include "policy/assign/plan.h"
#include "policy/builtins.h"
#include "tests/unit/policy/calibration.h"
#include "tests/support/executors.h"
#include "tests/support/random.h"
#include "tests/support/test.h"

#define LAYERS 3
#define EXPERTS 8
#define UNITS (LAYERS * EXPERTS)
#define REQUESTS 6000
#define HYSTERESIS 100

static uint64_t random_state = 17;

static struct mp_policy *create(const struct mp_evict_ops *ops, const struct mp_shape *shape)
{
    static _Alignas(16) char config[1024];
    struct mp_policy *policy;

    CHECK(ops->info.config_size <= sizeof(config));
    if (ops->info.opts != NULL)
        CHECK_EQ(mp_opt_load(ops->info.opts, "UNSET_", config), 0);
    CHECK_EQ(ops->create(ops->info.opts != NULL ? config : NULL, shape, &policy), MP_OK);
    return policy;
}

static uint32_t static_notices; /* how often a static placement was reported to lead */

/* Misses of the policy on single requests, all of one batch each; *changes_p of shadow's leader. */
static uint32_t replay(const struct mp_evict_ops *ops, const struct mp_shape *shape,
                       const uint32_t *trace, uint32_t *changes_p)
{
    struct mp_policy *policy = create(ops, shape);
    uint8_t resident[UNITS] = { 0 };
    const struct mp_evict_query query = { .scope_layer = MP_LAYER_ANY,
                                          .experts = EXPERTS,
                                          .evictable = resident };
    const char *notice = NULL, *before;
    uint32_t misses = 0, held = 0;

    static_notices = 0;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const uint32_t unit = trace[i];
        struct mp_evict_query asked = query;

        asked.for_id = unit;
        ops->on_access(policy, unit, 1, i + 1);
        before = notice;
        notice = ops->notice != NULL ? ops->notice(policy) : NULL;
        if (notice != NULL && notice != before)
            static_notices += strstr(notice, "static placement") != NULL;
        if (resident[unit])
            continue;
        misses++;
        if (held == shape->slots) {
            const uint32_t victim = ops->pick(policy, &asked);

            CHECK(victim < UNITS && resident[victim]);
            resident[victim] = 0;
            ops->on_remove(policy, victim, i + 1);
            held--;
        }
        resident[unit] = 1;
        ops->on_insert(policy, unit, i + 1);
        held++;
    }
    if (changes_p != NULL)
        *changes_p = mp_evict_shadow_changes(policy);
    ops->destroy(policy);
    return misses;
}

/* Phases of a loop, uniform choices, and a favoured third, of a random length each. */
static void make_trace(uint32_t *trace)
{
    uint32_t kind = 0, left = 0, units = UNITS;

    for (uint32_t i = 0; i < REQUESTS; i++, left--) {
        if (left == 0) {
            kind = random_below(3);
            left = 100 + random_below(3000);
            units = 4 + random_below(UNITS - 3);
        }
        trace[i] = kind == 0   ? i % units
                   : kind == 1 ? random_below(units)
                               : UNITS - 1 - random_below(random_below(4) ? units / 3 + 1 : units);
    }
}

/*
 * The bound of evict_shadow.c with batches of one unit. The ghosts are the policies themselves, as
 * they would do alone.
 */
static void shadow_is_never_much_worse_than_its_best_ghost(void)
{
    static const struct mp_evict_ops *const ghosts[] = { &mp_evict_layer_lru, &mp_evict_lfu,
                                                         &mp_evict_lcp };
    static uint32_t trace[REQUESTS];
    uint32_t all_changes = 0;
    double worst = 0;

    for (unsigned round = 0; round < 150; round++) {
        const struct mp_shape shape = { .layers = LAYERS,
                                        .experts = EXPERTS,
                                        .top_k = 1,
                                        .tokens_max = 1,
                                        .slots = 2 + random_below(UNITS - 2) };
        const uint32_t step = HYSTERESIS * shape.slots / 100 + 1;
        uint32_t best = UINT32_MAX, changes, misses;

        make_trace(trace);
        for (size_t g = 0; g < MP_ARRAY_LEN(ghosts); g++) {
            const uint32_t one = replay(ghosts[g], &shape, trace, NULL);

            best = one < best ? one : best;
        }
        misses = replay(&mp_evict_shadow, &shape, trace, &changes);
        CHECK(misses <= best + (changes + 1) * step + changes * shape.slots);
        /* Against few misses the changes of a mind weigh much; the bound covers that. */
        if (best >= 50 * shape.slots && (double)misses / best > worst)
            worst = (double)misses / best;
        all_changes += changes;
    }
    fprintf(stderr, "    at worst %.3f times the misses of the best, %u changes in 150 runs\n",
            worst, all_changes);
    CHECK(all_changes > 50);
    CHECK(worst > 0 && worst < 1.25); /* the bound allows for more */
}

/* A loop over all experts with half of the slots: every policy that replaces misses always, static
 * placement half the time. */
static void a_static_placement_takes_over_where_it_is_cheaper(void)
{
    static uint32_t trace[REQUESTS];
    struct mp_shape shape = {
        .layers = LAYERS, .experts = EXPERTS, .top_k = 1, .tokens_max = 1, .slots = UNITS / 2
    };
    uint32_t changes, lru, misses;

    for (uint32_t i = 0; i < REQUESTS; i++)
        trace[i] = i % UNITS;
    shape.calibration = test_calibration(LAYERS, EXPERTS);
    lru = replay(&mp_evict_layer_lru, &shape, trace, NULL);
    misses = replay(&mp_evict_shadow, &shape, trace, &changes);
    CHECK_EQ(lru, REQUESTS);
    CHECK(misses < REQUESTS * 6 / 10);
    CHECK(changes >= 1);
    CHECK_EQ(static_notices, 1); /* said once */
}

/*
 * The same loop. While a static placement leads, it is looked at again every 16 tokens, and of what
 * it lacks two come in after a layer, or as many as the caller takes.
 */
static void a_placement_is_looked_at_every_16_tokens_and_comes_in_by_twos(void)
{
    const struct mp_calibration *calibration = test_calibration(LAYERS, EXPERTS);
    const struct mp_shape shape = { .layers = LAYERS,
                                    .experts = EXPERTS,
                                    .top_k = 1,
                                    .tokens_max = 1,
                                    .slots = UNITS / 2,
                                    .calibration = calibration };
    const struct mp_evict_ops *ops = &mp_evict_shadow;
    struct mp_policy *policy = create(ops, &shape);
    uint8_t resident[UNITS] = { 0 };
    struct mp_evict_query query = { .experts = EXPERTS, .evictable = resident };
    struct mp_swap swaps[EXPERTS];
    uint32_t held = 0, looked = 0, before;

    for (uint32_t i = 0; i < REQUESTS; i++) {
        before = mp_evict_shadow_changes(policy);
        query.for_id = i % UNITS;
        query.scope_layer = MP_LAYER_ANY;
        ops->on_access(policy, query.for_id, 1, i + 1);
        if (i >= REQUESTS / 2 && mp_evict_shadow_changes(policy) != before) {
            CHECK_EQ((i + 1) % (16 * LAYERS), 0);
            looked++;
        }
        if (resident[query.for_id])
            continue;
        if (held == shape.slots) {
            const uint32_t victim = ops->pick(policy, &query);

            CHECK(victim < UNITS && resident[victim]);
            resident[victim] = 0;
            ops->on_remove(policy, victim, i + 1);
            held--;
        }
        resident[query.for_id] = 1;
        ops->on_insert(policy, query.for_id, i + 1);
        held++;
    }
    CHECK_EQ(looked, REQUESTS / (16 * LAYERS) - REQUESTS / 2 / (16 * LAYERS));

    for (uint32_t u = 0; u < UNITS; u++) {
        if (resident[u])
            ops->on_remove(policy, u, REQUESTS + 1);
        resident[u] = 0;
    }
    query.scope_layer = 0;
    CHECK_EQ(ops->replace(policy, &query, REQUESTS + 1, swaps, EXPERTS), 2);
    CHECK_EQ(ops->replace(policy, &query, REQUESTS + 1, swaps, 1), 1);
    ops->destroy(policy);
}

static struct mp_assign_facts facts_of(uint32_t count, const uint32_t *tokens,
                                       const uint8_t *resident, const struct mp_costs *costs)
{
    static const uint32_t ids[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };

    return (struct mp_assign_facts){
        .count = count,
        .experts = ids,
        .tokens = tokens,
        .resident = resident,
        .costs = costs,
    };
}

/*
 * Load 10, device 1 + n, CPU 2 + 3 n, in place 6 + 2 n.
 * Experts with 8 5 2 1 tokens, the second resident: the device is busy with it until 6.
 *   8: load until 10, device until 19; in place 6 + 22 = 28; CPU 26: device.
 *   2: load until 20, device until 23; in place 19 + 10 = 29; CPU 8: CPU.
 *   1: load until 20, device until 22; in place 27; CPU 8 + 5 = 13: CPU.
 * The layer ends at 19. Without the CPU 2 is loaded (23) and 1 read in place (23 + 8 = 31, loaded
 * 32): 31. With loads of 100 all absent ones are read in place: 28, 38, 46.
 */
static void cost_gives_each_to_who_is_done_first(void)
{
    static const uint32_t tokens[4] = { 8, 5, 2, 1 };
    static const uint8_t resident[4] = { 0, 1, 0, 0 };
    struct mp_costs costs = { TEST_THREE_EXECUTORS,
                              .load_ns = 10,
                              .executors[TEST_CPU].fixed_ns = 2,
                              .executors[TEST_CPU].token_ns = 3,
                              .executors[TEST_DEVICE].fixed_ns = 1,
                              .executors[TEST_DEVICE].token_ns = 1,
                              .executors[TEST_IN_PLACE].fixed_ns = 6,
                              .executors[TEST_IN_PLACE].token_ns = 2 };
    const struct mp_shape shape = { .layers = 1, .experts = 8 };
    struct mp_assign_facts facts = facts_of(4, tokens, resident, &costs);
    uint32_t who[4];
    struct mp_policy *policy;

    CHECK_EQ(mp_assign_cost.create(NULL, &shape, &policy), MP_OK);
    mp_assign_cost.assign(policy, &facts, who);
    CHECK(who[0] == TEST_DEVICE && who[1] == TEST_DEVICE);
    CHECK(who[2] == TEST_CPU && who[3] == TEST_CPU);
    CHECK_EQ(mp_assign_span_ns(&facts, who), 19);
    costs.executors[TEST_CPU].handoff_ns =
        30; /* with it the CPU would have been done at 38, and later */
    mp_assign_cost.assign(policy, &facts, who);
    CHECK(who[2] == TEST_DEVICE && who[3] == TEST_IN_PLACE);
    costs.executors[TEST_CPU].handoff_ns = 0;
    costs.executor_count = TEST_CPU;
    mp_assign_cost.assign(policy, &facts, who);
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(who[i], TEST_DEVICE);
    CHECK_EQ(who[3], TEST_IN_PLACE);
    CHECK_EQ(mp_assign_span_ns(&facts, who), 31);
    costs.load_ns = 100;
    mp_assign_cost.assign(policy, &facts, who);
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(who[i], resident[i] ? TEST_DEVICE : TEST_IN_PLACE);
    costs.load_ns = 0; /* nothing is known */
    mp_assign_cost.assign(policy, &facts, who);
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(who[i], TEST_DEVICE);
    mp_assign_cost.destroy(policy);
}

/* Eight residents of 2 each, 5 on the CPU: two of them there, 12 and 10; a third would end at 15.
 */
static void the_cpu_relieves_the_device(void)
{
    static const uint32_t tokens[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    static const uint8_t resident[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    const struct mp_costs costs = { TEST_THREE_EXECUTORS,
                                    .load_ns = 10,
                                    .executors[TEST_CPU].fixed_ns = 2,
                                    .executors[TEST_CPU].token_ns = 3,
                                    .executors[TEST_DEVICE].fixed_ns = 1,
                                    .executors[TEST_DEVICE].token_ns = 1 };
    const struct mp_shape shape = { .layers = 1, .experts = 8 };
    const struct mp_assign_facts facts = facts_of(8, tokens, resident, &costs);
    uint32_t who[8];
    struct mp_policy *policy;

    CHECK_EQ(mp_assign_cost.create(NULL, &shape, &policy), MP_OK);
    mp_assign_cost.assign(policy, &facts, who);
    for (unsigned i = 0; i < 8; i++)
        CHECK_EQ(who[i], i < 6 ? TEST_DEVICE : TEST_CPU);
    CHECK_EQ(mp_assign_span_ns(&facts, who), 12);
    mp_assign_cost.destroy(policy);
}

/* A fourth executor, a second helper that takes 6 beside a CPU that takes 5, and four absent
 * experts: they are done at 5, 6, 10 and 12. */
static void another_executor_is_another_entry(void)
{
    static const uint32_t tokens[4] = { 1, 1, 1, 1 };
    static const uint8_t resident[4] = { 0, 0, 0, 0 };
    struct mp_costs costs = {
        TEST_THREE_EXECUTORS, .load_ns = 100, .executors[TEST_CPU].fixed_ns = 5,
        .executors[TEST_DEVICE].fixed_ns = 1,
        .executors[TEST_EXECUTORS] = { .fixed_ns = 6, .reads = MP_READS_HOST, .processor = 2 }
    };
    const struct mp_shape shape = { .layers = 1, .experts = 4 };
    const struct mp_assign_facts facts = facts_of(4, tokens, resident, &costs);
    uint32_t who[4];
    struct mp_policy *policy;

    costs.executor_count = TEST_EXECUTORS + 1;
    CHECK_EQ(mp_assign_cost.create(NULL, &shape, &policy), MP_OK);
    mp_assign_cost.assign(policy, &facts, who);
    CHECK(who[0] == TEST_CPU && who[1] == TEST_EXECUTORS);
    CHECK(who[2] == TEST_CPU && who[3] == TEST_EXECUTORS);
    CHECK_EQ(mp_assign_span_ns(&facts, who), 12);
    costs.executors[TEST_EXECUTORS].processor = 1; /* now both take turns */
    CHECK_EQ(mp_assign_span_ns(&facts, who), 22);
    mp_assign_cost.destroy(policy);
}

/* Whatever work costs, the plan is not longer than a static placement's with the same residents. */
static void a_plan_is_never_longer_than_static_placement(void)
{
    const struct mp_shape shape = { .layers = 1, .experts = 8 };
    struct mp_policy *cost, *fixed;

    CHECK_EQ(mp_assign_cost.create(NULL, &shape, &cost), MP_OK);
    CHECK_EQ(mp_assign_resident.create(NULL, &shape, &fixed), MP_OK);
    for (unsigned round = 0; round < 20000; round++) {
        const uint32_t most = 1 + random_below(20);
        const struct mp_costs costs = { TEST_THREE_EXECUTORS,
                                        .load_ns = 1 + random_below(100),
                                        .executors[TEST_CPU].fixed_ns = 1 + random_below(60),
                                        .executors[TEST_CPU].token_ns = random_below(30),
                                        .executors[TEST_DEVICE].fixed_ns = 1 + random_below(10),
                                        .executors[TEST_DEVICE].token_ns = random_below(5),
                                        .executors[TEST_IN_PLACE].fixed_ns = random_below(60),
                                        .executors[TEST_IN_PLACE].token_ns = random_below(5),
                                        .executors[TEST_CPU].handoff_ns = random_below(40) };
        uint32_t tokens[8];
        uint8_t resident[8];
        struct mp_assign_facts facts;
        uint32_t planned[8], simple[8];

        for (unsigned i = 0; i < 8; i++) {
            tokens[i] = 1 + random_below(most);
            resident[i] = random_below(3) > 0;
        }
        facts = facts_of(1 + random_below(8), tokens, resident, &costs);
        facts.link_busy_ns = random_below(50);
        mp_assign_cost.assign(cost, &facts, planned);
        mp_assign_resident.assign(fixed, &facts, simple);
        if (most == 1) /* in any order the same */
            CHECK(mp_assign_span_ns(&facts, planned) <= mp_assign_span_ns(&facts, simple));
        else
            CHECK(mp_assign_span_ns(&facts, planned) <=
                  mp_assign_span_ns(&facts, simple) +
                      costs.executors[TEST_DEVICE].token_ns * most * 8);
    }
    mp_assign_cost.destroy(cost);
    mp_assign_resident.destroy(fixed);
}

/*
 * Load 10, device 4 each, the rest of the layer 9. Three residents: 12 + 9 = 21, two loads fit.
 * One of them absent: 10 are taken, 11 left: one. Two absent: 1 left: none. D 11: none either.
 */
static void idle_prefetches_only_into_idle_time(void)
{
    static const uint32_t tokens[3] = { 1, 1, 1 };
    static const uint8_t next[EXPERTS] = { 0, 0, 0, 0, 0, 0, 0, 1 };
    static const float scores[EXPERTS] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    static const uint32_t who[3] = { TEST_DEVICE, TEST_DEVICE, TEST_DEVICE };
    struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 10,
                              .executors[TEST_DEVICE].fixed_ns = 4, .layer_ns = 9 };
    const struct mp_shape shape = { .layers = 2, .experts = EXPERTS, .top_k = 4 };
    uint8_t resident[3] = { 1, 1, 1 };
    struct mp_assign_facts current = facts_of(3, tokens, resident, &costs);
    const struct mp_prefetch_facts facts = { .tokens = 1,
                                             .experts = EXPERTS,
                                             .k = 4,
                                             .scores = scores,
                                             .resident = next,
                                             .max = 4,
                                             .distance = 1,
                                             .current = &current,
                                             .executors = who };
    const struct mp_prefetch_ops *ops = &mp_prefetch_idle;
    struct mp_policy *policy;
    uint32_t wanted[EXPERTS];

    CHECK_EQ(ops->create(NULL, &shape, &policy), MP_OK);
    CHECK_EQ(ops->choose(policy, &facts, wanted), 3); /* 7 is there and kept, 6 and 5 are loaded */
    CHECK(wanted[0] == 7 && wanted[1] == 6 && wanted[2] == 5);
    resident[0] = 0;
    CHECK_EQ(ops->choose(policy, &facts, wanted), 2);
    resident[1] = 0;
    CHECK_EQ(ops->choose(policy, &facts, wanted), 0);
    resident[0] = resident[1] = 1;
    current.link_busy_ns = 17; /* 4 left */
    CHECK_EQ(ops->choose(policy, &facts, wanted), 0);

    costs.load_ns = 0;
    CHECK_EQ(ops->choose(policy, &facts, wanted), 0); /* not known, but busy */
    current.link_busy_ns = 0;
    CHECK_EQ(ops->choose(policy, &facts, wanted), 4);
    resident[0] = 0;
    CHECK_EQ(ops->choose(policy, &facts, wanted), 0);
    ops->destroy(policy);
}

/* Tokens through six layers: each layer guesses the best expert of the next one, 7, before it is
 * given what it chose itself. right[l]: is 7 what layer l chooses? What is wanted at the end. */
static bool wants_after(const uint8_t right[6])
{
    static const float scores[EXPERTS] = { [7] = 1 };
    static const uint8_t absent[EXPERTS] = { 0 }, resident[1] = { 1 };
    static const uint32_t tokens[1] = { 1 };
    static const uint32_t who[1] = { TEST_DEVICE };
    struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 100, .layer_ns = 900,
                              .predict_ns = 30 };
    const struct mp_shape shape = { .layers = 6, .experts = EXPERTS, .top_k = 1, .costs = &costs };
    const struct mp_assign_facts current = facts_of(1, tokens, resident, &costs);
    const struct mp_prefetch_ops *ops = &mp_prefetch_idle;
    struct mp_prefetch_facts facts = { .tokens = 1,
                                       .experts = EXPERTS,
                                       .k = 1,
                                       .scores = scores,
                                       .resident = absent,
                                       .max = 4,
                                       .distance = 1,
                                       .current = &current,
                                       .executors = who };
    struct mp_policy *policy;
    uint32_t wanted[EXPERTS];
    bool wants;

    CHECK_EQ(ops->create(NULL, &shape, &policy), MP_OK);
    for (uint32_t token = 0; token < 200; token++) {
        for (uint32_t l = 0; l < 6; l++) {
            const uint32_t chosen[1] = { right[l] ? 7 : 0 };

            facts.layer = l;
            facts.target_layer = l + 1;
            if (l < 5)
                CHECK_EQ(ops->choose(policy, &facts, wanted), 1);
            ops->observe(policy, l, 1, 1, chosen);
        }
    }
    wants = ops->wants(policy); /* 1200 layers: no multiple of 17 */
    ops->destroy(policy);
    return wants;
}

/* A right guess saves 100, a prediction takes 30. Of five layers that are guessed one is right, 20
 * on average; then four, 80. */
static void idle_learns_from_every_layer(void)
{
    CHECK(!wants_after((const uint8_t[]){ 0, 0, 0, 0, 0, 1 }));
    CHECK(wants_after((const uint8_t[]){ 0, 1, 1, 1, 1, 0 }));
}

/* Layer 0 guesses the best expert of layer 1, 7, which then chooses that or another one. */
static void guess(struct mp_policy *policy, const struct mp_costs *costs, bool right)
{
    static const float scores[EXPERTS] = { [7] = 1 };
    static const uint8_t absent[EXPERTS] = { 0 }, resident[1] = { 1 };
    static const uint32_t tokens[1] = { 1 }, who[1] = { TEST_DEVICE };
    const struct mp_assign_facts current = facts_of(1, tokens, resident, costs);
    const struct mp_prefetch_facts facts = { .target_layer = 1,
                                             .tokens = 1,
                                             .experts = EXPERTS,
                                             .k = 1,
                                             .scores = scores,
                                             .resident = absent,
                                             .max = 4,
                                             .distance = 1,
                                             .current = &current,
                                             .executors = who };
    const uint32_t first[1] = { 0 }, second[1] = { right ? 7 : 0 };
    uint32_t wanted[EXPERTS];

    CHECK_EQ(mp_prefetch_idle.choose(policy, &facts, wanted), 1);
    mp_prefetch_idle.observe(policy, 0, 1, 1, first);
    mp_prefetch_idle.observe(policy, 1, 1, 1, second);
}

/*
 * A right guess saves 100, a prediction takes 30, and the gain begins with twice that. It is an
 * average over 64 layers: 60 * (63/64)^n falls below 30 with the 45th wrong guess. From about 0,
 * 100 * (1 - (63/64)^n) reaches 30 with the 23rd right one. Meanwhile one layer of 17 is predicted.
 */
static void idle_averages_over_64_layers_and_probes_one_of_17(void)
{
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 100, .layer_ns = 900,
                                    .predict_ns = 30 };
    const struct mp_shape shape = { .layers = 2, .experts = EXPERTS, .top_k = 1, .costs = &costs };
    const struct mp_prefetch_ops *ops = &mp_prefetch_idle;
    struct mp_policy *policy;
    uint32_t layers = 0;

    CHECK_EQ(ops->create(NULL, &shape, &policy), MP_OK);
    CHECK(ops->wants(policy));
    for (; layers < 2 * 1000; layers += 2) {
        CHECK_EQ(ops->wants(policy), layers < 2 * 45 || layers % 17 == 0);
        guess(policy, &costs, false);
    }
    for (uint32_t n = 0; n < 40; n++, layers += 2) {
        CHECK_EQ(ops->wants(policy), n >= 23 || layers % 17 == 0);
        guess(policy, &costs, true);
    }
    ops->destroy(policy);
}

int main(void)
{
    RUN(shadow_is_never_much_worse_than_its_best_ghost);
    RUN(a_static_placement_takes_over_where_it_is_cheaper);
    RUN(a_placement_is_looked_at_every_16_tokens_and_comes_in_by_twos);
    RUN(cost_gives_each_to_who_is_done_first);
    RUN(the_cpu_relieves_the_device);
    RUN(another_executor_is_another_entry);
    RUN(a_plan_is_never_longer_than_static_placement);
    RUN(idle_prefetches_only_into_idle_time);
    RUN(idle_learns_from_every_layer);
    RUN(idle_averages_over_64_layers_and_probes_one_of_17);
    return 0;
}
