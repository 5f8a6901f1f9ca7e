/*
 * PreSched: each of its four questions on lists small enough to work out by hand, the equations
 * against their brute-force form, and both policies on facts of a layer.
 */
#include <stdlib.h>

#include "policy/assign/presched_times.h"

#include "policy/builtins.h"
#include "tests/support/executors.h"
#include "tests/support/random.h"
#include "tests/support/test.h"

#define EXPERTS 8

static uint64_t random_state = 5;

/* c(n) = 2n + 1, T_io 10, T_g 1, T_a 4, D 0. */
static const struct mp_presched_times easy = {
    .cpu = true, .cpu_fixed_ns = 1, .cpu_token_ns = 2, .load_ns = 10, .device_ns = 1, .layer_ns = 4
};

/*
 * Tokens ascending 1 2 4 6 9: c = 3 5 9 13 19, sums 3 8 17 30 49.
 *     j = 5: G = 1 * 10 + 1 = 11 < 49: load 9
 *     j = 4: G = 21 < 30: load 6
 *     j = 3: G = 31, not < 17: stop. The queue is {6, 9}.
 * With D = 10 G is 21, 31: the second is no longer below 30, so the queue is {9}.
 */
static void q1_the_sides_cross_once(void)
{
    static const uint32_t tokens[5] = { 9, 6, 4, 2, 1 };
    struct mp_presched_times times = easy;

    CHECK_EQ(mp_presched_queue(&times, tokens, 5), 2);
    times.busy_ns = 10;
    CHECK_EQ(mp_presched_queue(&times, tokens, 5), 1);
    CHECK_EQ(mp_presched_queue(&easy, tokens + 4, 1), 0); /* 11 against 3 */
    CHECK_EQ(mp_presched_queue(&easy, tokens, 0), 0);
    times.cpu = false;
    CHECK_EQ(mp_presched_queue(&times, tokens, 5), 5);
}

/*
 * The recheck, eq. 5. Of the list above let 9 and 4 be of the current layer with 1 (c = 19 9 3) and
 * suppose that the queue holds two of them, 9 and 4 (as with other experts between them it can).
 *     s = 4's place: 2 loads, 21 < 3 + 9 = 12? no: 4 goes to the CPU
 *     s = 9's place: 1 load, 11 < 3 + 9 + 19 = 31? yes: load 9.
 * With one expert of 4 tokens: 11 < 9? no: nothing is loaded.
 */
static void q1_the_current_layer_is_rechecked(void)
{
    static const uint32_t tokens[3] = { 9, 4, 1 };

    CHECK_EQ(mp_presched_recheck(&easy, tokens, 3, 2), 1);
    CHECK_EQ(mp_presched_recheck(&easy, tokens, 3, 1), 1);
    CHECK_EQ(mp_presched_recheck(&easy, tokens, 3, 0), 0);
    CHECK_EQ(mp_presched_recheck(&easy, tokens + 1, 1, 1), 0);
}

/*
 * Q2: the CPU has 24 to do, attention 4, one load goes first: gap = 24 + 4 - 0 - 10 = 18, that is
 * 1.8 loads, rounded 2. With 5 less it is 1.3: 1; half rounds up: 15 / 10 = 2. Two loads and D 20
 * leave nothing.
 */
static void q2_prefetches_fill_the_gap(void)
{
    struct mp_presched_times times = easy;

    CHECK_EQ(mp_presched_gap_ns(&easy, 24, 1), 18);
    CHECK_EQ(mp_presched_fit(&easy, 18, 9), 2);
    CHECK_EQ(mp_presched_fit(&easy, 13, 9), 1);
    CHECK_EQ(mp_presched_fit(&easy, 15, 9), 2);
    CHECK_EQ(mp_presched_fit(&easy, 14, 9), 1);
    CHECK_EQ(mp_presched_fit(&easy, 4, 9), 0);
    CHECK_EQ(mp_presched_fit(&easy, 95, 3), 3); /* no more than are queued */
    times.load_ns = 3;
    CHECK_EQ(mp_presched_fit(&times, 1, 9), 0);
    CHECK_EQ(mp_presched_fit(&times, 2, 9), 1);
    CHECK_EQ(mp_presched_fit(&times, 4, 9), 1);
    CHECK_EQ(mp_presched_fit(&times, 5, 9), 2);
    times.load_ns = 10;
    times.busy_ns = 20;
    CHECK_EQ(mp_presched_gap_ns(&times, 24, 2), 0);
}

/*
 * Q3: two prefetches in a gap of 18 are 2 late. B = h * (10 - 2) - (1 - h) * 2 = 10 h - 2, above 0
 * for h > 0.2. One prefetch in a gap of 18 is not late: B = 10 h.
 */
static void q3_the_last_one_must_pay(void)
{
    CHECK(mp_presched_pays(&easy, 18, 2, 0.21));
    CHECK(!mp_presched_pays(&easy, 18, 2, 0.19));
    CHECK(mp_presched_pays(&easy, 18, 1, 0.01));
    CHECK(!mp_presched_pays(&easy, 18, 1, 0));
}

/* Eq. 4 and 5 as printed, from scratch for every index; lists ascending, indices from 1. */
static uint64_t cpu_upto(const struct mp_presched_times *t, const uint32_t *ascending, uint32_t j)
{
    uint64_t sum = 0;

    for (uint32_t i = 1; i <= j; i++)
        sum += t->cpu_token_ns * ascending[i - 1] + t->cpu_fixed_ns;
    return sum;
}

static bool eq4_holds(const struct mp_presched_times *t, const uint32_t *ascending, uint32_t n,
                      uint32_t j)
{
    return t->busy_ns + (n - j + 1) * t->load_ns + t->device_ns < cpu_upto(t, ascending, j);
}

static void the_pass_equals_the_equations(void)
{
    unsigned loaded = 0;

    for (unsigned round = 0; round < 20000; round++) {
        const uint32_t n = random_below(20);
        const struct mp_presched_times times = { .cpu = true,
                                                 .cpu_fixed_ns = random_below(20),
                                                 .cpu_token_ns = random_below(20),
                                                 .load_ns = 1 + random_below(200),
                                                 .device_ns = random_below(30),
                                                 .busy_ns = random_below(3) * random_below(200) };
        uint32_t down[20], up[20], queued = 0, s;

        for (uint32_t i = 0; i < n; i++) {
            up[i] = (i > 0 ? up[i - 1] : 1) + random_below(4);
            down[n - 1 - i] = up[i];
        }
        for (uint32_t j = 1; j <= n; j++)
            queued += eq4_holds(&times, up, n, j);
        /* Those for which it holds are the upper end of the list, without holes. */
        for (uint32_t j = 1; j <= n; j++)
            CHECK_EQ(eq4_holds(&times, up, n, j), j > n - queued);
        CHECK_EQ(mp_presched_queue(&times, down, n), queued);

        s = 1 + random_below(n + 1);
        queued = n - s + 1;
        while (s <= n && !eq4_holds(&times, up, n, s))
            s++;
        CHECK_EQ(mp_presched_recheck(&times, down, n, queued), n - s + 1);
        loaded += n - s + 1;
    }
    CHECK(loaded > 1000);
}

static const struct mp_shape shape = {
    .layers = 6, .experts = EXPERTS, .top_k = 4, .tokens_max = 16, .slots = 16
};
static const struct mp_costs costs = { TEST_THREE_EXECUTORS,
                                       .load_ns = 10,
                                       .executors[TEST_CPU].fixed_ns = 1,
                                       .executors[TEST_CPU].token_ns = 2,
                                       .executors[TEST_DEVICE].fixed_ns = 1,
                                       .layer_ns = 4 };
static const uint32_t ids[5] = { 0, 2, 3, 5, 7 };

static struct mp_assign_facts facts_of(const uint32_t *tokens, const uint8_t *resident)
{
    return (struct mp_assign_facts){
        .count = 5,
        .experts = ids,
        .tokens = tokens,
        .resident = resident,
        .costs = &costs,
    };
}

/* Two absent experts of this layer and two of the next by tokens; of equal ones this layer's first.
 */
static void the_merged_list_says_whose_experts_they_are(void)
{
    static const uint32_t tokens[5] = { 4, 9, 1, 9, 9 }, next[2] = { 3, 4 };
    static const uint8_t resident[5] = { 0, 1, 0, 1, 1 };
    static const struct {
        uint32_t tokens, index;
        bool is_next;
    } expected[4] = { { 4, 0, false }, { 4, 1, true }, { 3, 0, true }, { 1, 2, false } };
    const struct mp_assign_facts facts = facts_of(tokens, resident);
    struct mp_arena arena = { 0 };
    struct mp_presched_list list;

    mp_presched_list_take(&list, &shape, &arena);
    CHECK_EQ(mp_arena_open(&arena, "a test"), MP_OK);
    mp_presched_list_take(&list, &shape, &arena);
    mp_presched_merge(&list, &facts, next, 2);
    CHECK_EQ(list.count, 4);
    for (uint32_t p = 0; p < 4; p++) {
        CHECK_EQ(list.tokens[p], expected[p].tokens);
        CHECK_EQ(list.index[p], expected[p].index);
        CHECK_EQ(list.is_next[p], expected[p].is_next);
    }
    free(arena.block);
}

/*
 * Absent experts 0, 3, 5, 7 with 9, 4, 2, 1 tokens (2 is resident): c = 19 9 5 3, sum 36.
 * Alone: 11 < 36: load 0. 21 < 17? No. So 0 is loaded, 3, 5, 7 go to the CPU.
 *
 * With three absent experts of 8 tokens (c = 17 each) expected in the next layer the merged list is
 * 9 8 8 8 4 2 1, sum 87: 11 < 87, 21 < 68, 31 < 51, 41 < 34? No. The queue is 9 8 8; the current
 * layer's part is 0, and its recheck is 11 < 36: loaded.
 *
 * With twelve tokens for one of the next (c = 25) and D = 25: the list is 12 9 4 2 1, sum 61:
 * 25 + 11 = 36 < 61: queued; 46 < 36? No. Nothing of the current layer is queued: all to the CPU.
 */
static void assign_gives_the_small_ones_to_the_cpu(void)
{
    static const uint32_t tokens[5] = { 9, 3, 4, 2, 1 };
    static const uint8_t resident[5] = { 0, 1, 0, 0, 0 }, none[EXPERTS] = { 0 };
    static const uint32_t three[EXPERTS] = { 8, 8, 0, 8 }, one[EXPERTS] = { 0, 12 };
    const struct mp_assign_ops *ops = &mp_assign_presched;
    struct mp_assign_facts facts = facts_of(tokens, resident);
    struct mp_costs alone = costs;
    uint32_t who[5];
    struct mp_policy *policy;

    CHECK(ops->looks_ahead);
    CHECK_EQ(ops->create(NULL, &shape, &policy), MP_OK);
    for (unsigned round = 0; round < 2; round++) {
        ops->assign(policy, &facts, who);
        CHECK_EQ(who[0], TEST_DEVICE);
        CHECK_EQ(who[1], TEST_DEVICE);
        for (unsigned i = 2; i < 5; i++)
            CHECK_EQ(who[i], TEST_CPU);
        facts.next_tokens = three;
        facts.next_resident = none;
    }
    facts.next_tokens = one;
    facts.link_busy_ns = 25;
    ops->assign(policy, &facts, who);
    CHECK_EQ(who[0], TEST_CPU);
    CHECK_EQ(who[1], TEST_DEVICE); /* resident */

    alone.executor_count = 1;
    facts.costs = &alone;
    ops->assign(policy, &facts, who);
    for (unsigned i = 0; i < 5; i++)
        CHECK_EQ(who[i], TEST_DEVICE);
    ops->destroy(policy);
}

/* Scores of `tokens` tokens that all want the four experts given, best first. */
static void want(float *scores, uint32_t tokens, const uint32_t *experts)
{
    memset(scores, 0, (size_t)tokens * EXPERTS * sizeof(scores[0]));
    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t r = 0; r < 4; r++)
            scores[t * EXPERTS + experts[r]] = (float)(4 - r);
    }
}

/*
 * The layer of the test above: 0 is loaded (10), 3, 5, 7 take the CPU 17; the gap is
 * 17 + 4 - 10 = 11, one load, 1.1 rounded. All sixteen tokens want 6, 1, 4, 2 next (c = 33 each):
 * list 16 16 16 16 9 4 2 1, sum 168: 11 < 168, 21 < 135, 31 < 102, 41 < 69, 51 < 36? No: four
 * members. One fits, it is not late, h begins at 1: 6 is loaded.
 *
 * Then layer 1 does not choose 6 while all others that were predicted are right: h of rank 0 falls
 * to 0, so B = 0 and one less is loaded: none. After it was right once it is 1/2 and pays again.
 */
static void prefetch_loads_what_fits_and_pays(void)
{
    static const uint32_t tokens[5] = { 9, 3, 4, 2, 1 };
    static const uint8_t resident[5] = { 0, 1, 0, 0, 0 }, none[EXPERTS] = { 0 };
    static const uint32_t best[4] = { 6, 1, 4, 2 }, without[4] = { 1, 4, 2, 0 };
    static const uint32_t who[5] = { TEST_DEVICE, TEST_DEVICE, TEST_CPU, TEST_CPU, TEST_CPU };
    static const struct {
        uint64_t horizon, group;
    } config = { 3, 0 };
    const struct mp_prefetch_ops *ops = &mp_prefetch_presched;
    const struct mp_assign_facts current = facts_of(tokens, resident);
    float scores[16 * EXPERTS];
    struct mp_prefetch_facts facts = {
        .layer = 0,
        .target_layer = 1,
        .tokens = 16,
        .experts = EXPERTS,
        .k = 4,
        .scores = scores,
        .resident = none,
        .max = 4,
        .distance = 1,
        .current = &current,
        .executors = who,
    };
    struct mp_policy *policy;
    uint32_t wanted[EXPERTS];

    CHECK_EQ(sizeof(config), ops->info.config_size);
    CHECK_EQ(ops->create(&config, &shape, &policy), MP_OK);
    want(scores, 16, best);
    CHECK_EQ(ops->choose(policy, &facts, wanted), 1);
    CHECK_EQ(wanted[0], 6);
    ops->observe(policy, 1, 1, 4, without);
    CHECK_EQ(ops->choose(policy, &facts, wanted), 0);
    ops->observe(policy, 1, 1, 4, best);
    CHECK_EQ(ops->choose(policy, &facts, wanted), 1);
    facts.max = 0;
    CHECK_EQ(ops->choose(policy, &facts, wanted), 0);
    ops->destroy(policy);
}

/*
 * Q4: what the next layer wants is all resident, so the layer after it is asked, and the one after
 * that, but not a fourth, and none once a nearer one had something.
 */
static void q4_further_layers_are_asked_when_the_next_needs_nothing(void)
{
    static const uint32_t tokens[5] = { 9, 3, 4, 2, 1 };
    static const uint8_t resident[5] = { 0, 1, 0, 0, 0 }, none[EXPERTS] = { 0 };
    static const uint8_t all[EXPERTS] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    static const uint32_t best[4] = { 6, 1, 4, 2 };
    static const uint32_t who[5] = { TEST_DEVICE, TEST_DEVICE, TEST_CPU, TEST_CPU, TEST_CPU };
    const struct mp_prefetch_ops *ops = &mp_prefetch_presched;
    const struct mp_assign_facts current = facts_of(tokens, resident);
    float scores[16 * EXPERTS];
    struct mp_prefetch_facts facts = {
        .tokens = 16,
        .experts = EXPERTS,
        .k = 4,
        .scores = scores,
        .max = 4,
        .current = &current,
        .executors = who,
    };
    uint32_t wanted[EXPERTS];

    CHECK_EQ(ops->reach, 3);
    want(scores, 16, best);
    for (uint32_t horizon = 1; horizon <= 3; horizon++) {
        for (uint32_t absent_from = 1; absent_from <= 3; absent_from++) {
            const struct {
                uint64_t horizon, group;
            } config = { horizon, 0 };
            struct mp_policy *policy;

            CHECK_EQ(ops->create(&config, &shape, &policy), MP_OK);
            for (uint32_t layer = 0; layer < 2; layer++) {
                for (uint32_t d = 1; d <= 3; d++) {
                    facts.layer = layer;
                    facts.target_layer = layer + d;
                    facts.distance = d;
                    facts.resident = d < absent_from ? all : none;
                    CHECK_EQ(ops->choose(policy, &facts, wanted),
                             d == absent_from && d <= horizon ? 1 : 0);
                }
            }
            ops->destroy(policy);
        }
    }
}

/* Without times there is nothing to weigh: what is predicted and absent, up to the group. */
static void unknown_times_load_what_is_predicted(void)
{
    static const struct mp_costs unknown = { 0 };
    static const uint32_t tokens[5] = { 1, 1, 1, 1, 1 }, best[4] = { 6, 1, 4, 2 };
    static const uint8_t resident[5] = { 0 };
    static const uint8_t one[EXPERTS] = { 0, 1 };
    static const uint32_t who[5] = { TEST_DEVICE };
    const struct {
        uint64_t horizon, group;
    } config = { 3, 2 };
    const struct mp_prefetch_ops *ops = &mp_prefetch_presched;
    struct mp_assign_facts current = facts_of(tokens, resident);
    float scores[EXPERTS];
    const struct mp_prefetch_facts facts = {
        .target_layer = 1,
        .tokens = 1,
        .experts = EXPERTS,
        .k = 4,
        .scores = scores,
        .resident = one,
        .max = 4,
        .distance = 1,
        .current = &current,
        .executors = who,
    };
    struct mp_policy *policy;
    uint32_t wanted[EXPERTS];

    current.costs = &unknown;
    want(scores, 1, best);
    CHECK_EQ(ops->create(&config, &shape, &policy), MP_OK);
    CHECK_EQ(ops->choose(policy, &facts, wanted), 2);
    CHECK(wanted[0] == 6 && wanted[1] == 4); /* 1 is there */
    ops->destroy(policy);
}

int main(void)
{
    RUN(q1_the_sides_cross_once);
    RUN(q1_the_current_layer_is_rechecked);
    RUN(q2_prefetches_fill_the_gap);
    RUN(q3_the_last_one_must_pay);
    RUN(the_pass_equals_the_equations);
    RUN(the_merged_list_says_whose_experts_they_are);
    RUN(assign_gives_the_small_ones_to_the_cpu);
    RUN(prefetch_loads_what_fits_and_pays);
    RUN(q4_further_layers_are_asked_when_the_next_needs_nothing);
    RUN(unknown_times_load_what_is_predicted);
    return 0;
}
