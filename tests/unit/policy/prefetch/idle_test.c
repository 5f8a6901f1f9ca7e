/*
 * Prefetch into idle time, as profile `auto` has it.
 */
#include "policy/builtins.h"
#include "tests/support/executors.h"
#include "tests/support/test.h"
#include "tests/unit/policy/auto_layer.h"

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

/*
 * Load 10, window 2 * 4 + 22 = 30. What is on its way for the layer is no load of its own: with one
 * that arrives in 4 there are 26 left, which are three loads (half ones are rounded up), not two.
 */
static void idle_counts_what_is_on_its_way_once(void)
{
    static const uint32_t tokens[2] = { 1, 1 }, who[2] = { TEST_DEVICE, TEST_DEVICE };
    static const uint8_t resident[2] = { 1, 0 }, next[EXPERTS] = { 0 };
    static const uint64_t arrival[2] = { 0, 4 }, never[2] = { 0, MP_ARRIVAL_NEVER };
    static const float scores[EXPERTS] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 10,
                              .executors[TEST_DEVICE].fixed_ns = 4, .layer_ns = 22 };
    const struct mp_shape shape = { .layers = 2, .experts = EXPERTS, .top_k = 4 };
    struct mp_assign_facts current = facts_of(2, tokens, resident, &costs);
    const struct mp_prefetch_facts facts = { .tokens = 1,
                                             .experts = EXPERTS,
                                             .k = 4,
                                             .scores = scores,
                                             .resident = next,
                                             .max = 4,
                                             .distance = 1,
                                             .current = &current,
                                             .executors = who };
    struct mp_policy *policy;
    uint32_t wanted[EXPERTS];

    CHECK_EQ(mp_prefetch_idle.create(NULL, &shape, &policy), MP_OK);
    current.link_busy_ns = 4;
    current.arrival_ns = arrival;
    CHECK_EQ(mp_prefetch_idle.choose(policy, &facts, wanted), 3);
    current.link_busy_ns = 0; /* the later of both counts */
    CHECK_EQ(mp_prefetch_idle.choose(policy, &facts, wanted), 3);
    current.link_busy_ns = 4;
    current.arrival_ns = never; /* something else is on its way */
    CHECK_EQ(mp_prefetch_idle.choose(policy, &facts, wanted), 2);
    mp_prefetch_idle.destroy(policy);
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
    wants = ops->wants(policy, 0, 1); /* 1200 layers: no multiple of 17 */
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
static uint32_t guess(struct mp_policy *policy, const struct mp_costs *costs, bool right,
                      uint32_t count)
{
    static const float scores[2 * EXPERTS] = { [7] = 1, [EXPERTS + 7] = 1 };
    static const uint8_t absent[EXPERTS] = { 0 }, resident[1] = { 1 };
    static const uint32_t tokens[1] = { 1 }, who[1] = { TEST_DEVICE };
    const struct mp_assign_facts current = facts_of(1, tokens, resident, costs);
    const struct mp_prefetch_facts facts = { .target_layer = 1,
                                             .tokens = count,
                                             .experts = EXPERTS,
                                             .k = 1,
                                             .scores = scores,
                                             .resident = absent,
                                             .max = 4,
                                             .distance = 1,
                                             .current = &current,
                                             .executors = who };
    const uint32_t first[2] = { 0 }, second[2] = { right ? 7 : 0, 0 };
    uint32_t wanted[EXPERTS];
    const uint32_t named = mp_prefetch_idle.choose(policy, &facts, wanted);

    mp_prefetch_idle.observe(policy, 0, count, 1, first);
    mp_prefetch_idle.observe(policy, 1, count, 1, second);
    return named;
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
    CHECK(ops->wants(policy, 0, 1));
    for (; layers < 2 * 1000; layers += 2) {
        CHECK_EQ(ops->wants(policy, 0, 1), layers < 2 * 45 || layers % 17 == 0);
        CHECK_EQ(guess(policy, &costs, false, 1), 1);
    }
    for (uint32_t n = 0; n < 40; n++, layers += 2) {
        CHECK_EQ(ops->wants(policy, 0, 1), n >= 23 || layers % 17 == 0);
        CHECK_EQ(guess(policy, &costs, true, 1), 1);
    }
    ops->destroy(policy);
}

/*
 * Of a load of 100 the link has time for 30 before the next layer. That pays if more than 70 % of
 * first guesses are right: the share begins with a half and is an average over 64, so that
 * 1 - 0.5 * (63/64)^n is more after 33 right ones, and less after a wrong one.
 */
static void idle_begins_a_load_that_it_cannot_end_if_guesses_are_right(void)
{
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 100, .layer_ns = 30 };
    const struct mp_shape shape = { .layers = 2, .experts = EXPERTS, .top_k = 1, .costs = &costs };
    struct mp_policy *policy;

    CHECK_EQ(mp_prefetch_idle.create(NULL, &shape, &policy), MP_OK);
    for (uint32_t n = 0; n < 33; n++)
        CHECK_EQ(guess(policy, &costs, true, 2), 0);
    CHECK_EQ(guess(policy, &costs, true, 1), 0); /* not for one token */
    CHECK_EQ(guess(policy, &costs, false, 2), 1);
    CHECK_EQ(guess(policy, &costs, true, 2), 0);
    CHECK_EQ(guess(policy, &costs, false, 2), 1);
    CHECK_EQ(guess(policy, &costs, false, 2), 0);
    mp_prefetch_idle.destroy(policy);
}

/*
 * Two of three experts are guessed and absent, one of them rightly. The link and a CPU share what
 * is absent: 100 and 50 each are 33.3 for one. The device computes 3 experts meanwhile, which hides
 * nothing if they take 10 each, but all if they take 30.
 */
static bool wants_beside_a_cpu(uint64_t device_ns)
{
    static const float scores[EXPERTS] = { [5] = 1, [6] = 2, [7] = 3 };
    static const uint8_t next[EXPERTS] = { [7] = 1 }, resident[1] = { 1 };
    static const uint32_t tokens[1] = { 1 }, who[1] = { TEST_DEVICE };
    const struct mp_costs costs = { TEST_THREE_EXECUTORS,
                                    .load_ns = 100,
                                    .layer_ns = 900,
                                    .predict_ns = 30,
                                    .executors[TEST_DEVICE].fixed_ns = device_ns,
                                    .executors[TEST_CPU].fixed_ns = 50 };
    const struct mp_shape shape = { .layers = 2, .experts = EXPERTS, .top_k = 3, .costs = &costs };
    const struct mp_assign_facts current = facts_of(1, tokens, resident, &costs);
    const struct mp_prefetch_facts facts = { .target_layer = 1,
                                             .tokens = 1,
                                             .experts = EXPERTS,
                                             .k = 3,
                                             .scores = scores,
                                             .resident = next,
                                             .max = 4,
                                             .distance = 1,
                                             .current = &current,
                                             .executors = who };
    const uint32_t chosen[2][3] = { { 0, 1, 2 }, { 7, 6, 0 } };
    struct mp_policy *policy;
    uint32_t wanted[EXPERTS];
    bool wants;

    CHECK_EQ(mp_prefetch_idle.create(NULL, &shape, &policy), MP_OK);
    for (uint32_t n = 0; n < 1000; n++) {
        (void)mp_prefetch_idle.choose(policy, &facts, wanted);
        mp_prefetch_idle.observe(policy, 0, 1, 3, chosen[0]);
        mp_prefetch_idle.observe(policy, 1, 1, 3, chosen[1]);
    }
    wants = mp_prefetch_idle.wants(policy, 0, 1);
    mp_prefetch_idle.destroy(policy);
    return wants;
}

static void idle_saves_what_link_and_cpu_share(void)
{
    CHECK(wants_beside_a_cpu(10));
    CHECK(!wants_beside_a_cpu(30));
}

int main(void)
{
    RUN(idle_counts_what_is_on_its_way_once);
    RUN(idle_saves_what_link_and_cpu_share);
    RUN(idle_prefetches_only_into_idle_time);
    RUN(idle_learns_from_every_layer);
    RUN(idle_begins_a_load_that_it_cannot_end_if_guesses_are_right);
    RUN(idle_averages_over_64_layers_and_probes_one_of_17);
    return 0;
}
