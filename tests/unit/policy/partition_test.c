/*
 * Partitions: MoEpic's cache configuration on cases worked out by hand, AdapMoE's sizes against
 * dynamic programming, first residents in the right order, and that no partition gives away more
 * slots than there are.
 */
#include <math.h>
#include <stdlib.h>

#include "policy/builtins.h"
#include "policy/partition/fixed_point_config.h"
#include "policy/hot.h"
#include "tests/unit/policy/calibration.h"
#include "tests/unit/policy/instance.h"
#include "tests/support/executors.h"
#include "tests/support/random.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

static uint64_t random_state = 11;

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-9;
}

/* Its arrays, as one block that the caller frees. */
static void *make_point(struct mp_fixed_point *point, const struct mp_shape *shape)
{
    struct mp_arena arena = { 0 };

    mp_fixed_point_take(point, shape, 1, &arena);
    CHECK_EQ(mp_arena_open(&arena, "a test"), MP_OK);
    mp_fixed_point_take(point, shape, 1, &arena);
    return arena.block;
}

/*
 * Two layers of 4 experts, k = 1, T_load 10, T_exp 2, T_att 3; 100 tokens counted in each.
 *
 * Layer 0: priority ranks of what was active 40 30 20 10, so H = .4 .7 .9 1. Nothing predicted.
 * Layer 1: 25 each, so H = .25 .5 .75 1. The best guess was active 60 times of 100, and stood at
 * ranks 0 to 3 25 times each.
 *
 * Whole experts, 2 slots each:
 *   layer 0: m = .7. hide = 1.4, miss = 3, late = 1.6. Window of layer 1: 2 - 1.4 + 3 = 3.6.
 *   layer 1: cached .5; the guess takes (1 - .5) * 10 = 5 > 3.6: none. late = 5 - 1 = 4.
 * 1 and 3 slots:
 *   layer 0: m = .4: hide .8, miss 6, late 5.2; window 2 - .8 + 3 = 4.2
 *   layer 1: cached .75; the guess takes 2.5, then 1.7 are left: m = .75 + .25 * .6 = .9.
 *            hide 1.8, miss 1: late 0.
 */
static void *make_hand_case(struct mp_fixed_point *point, uint32_t slices)
{
    static const uint32_t falling[4] = { 40, 30, 20, 10 };
    const struct mp_shape shape = { .layers = 2, .experts = 4, .top_k = 1, .slices = slices };
    void *block = make_point(point, &shape);

    point->load_ns = 10;
    point->expert_ns = 2;
    point->attention_ns = 3;
    point->tokens[0] = point->tokens[1] = point->asked[1] = 100;
    for (uint32_t r = 0; r < 4; r++) {
        point->active[r] = falling[r];
        point->active[4 + r] = 25;
        point->held[4 + r] = 25;
    }
    point->right[1] = 60;
    mp_fixed_point_sum(point);
    return block;
}

static void exposed_times_are_those_worked_out_by_hand(void)
{
    static const uint32_t even[2] = { 2, 2 }, uneven[2] = { 1, 3 };
    struct mp_fixed_point point;
    void *block;
    double late[2];
    uint32_t retained[2];

    block = make_hand_case(&point, 0);
    mp_fixed_point_split(&point, even, late, retained);
    CHECK(near(late[0], 1.6) && near(late[1], 4));
    CHECK(retained[0] == 1 && retained[1] == 1);
    mp_fixed_point_split(&point, uneven, late, retained);
    CHECK(near(late[0], 5.2) && near(late[1], 0));
    free(block);
}

/*
 * From 2 and 2 (sum 5.6), step 1. One more: layer 0 m = .9, late 1 - 1.8 < 0: gain 1.6; the windows
 * of the others change with it: layer 1 with 3 slots behind layer 0 with 3 has 2 - 1 + 3 = 4:
 * late 0: gain 4. The taker is layer 1, the donor layer 0: sum 5.2 < 5.6, so the move stays.
 * From 1 and 3 layer 1 would take again (late stays 0: gain 0), layer 0 gains 5.2 - 1.6 = 3.6, and
 * the donor is layer 1: back to 2 and 2, 5.6 >= 5.2: taken back. One move.
 */
static void slots_move_while_the_sum_falls(void)
{
    struct mp_fixed_point point;
    void *block;
    uint32_t slots[2] = { 2, 2 }, retained[2], numbers[6];
    double late[8];

    block = make_hand_case(&point, 0);
    CHECK_EQ(mp_fixed_point_allocate(&point, 1, slots, retained, late, numbers), 1);
    CHECK(slots[0] == 1 && slots[1] == 3);
    CHECK(near(late[0] + late[1], 5.2));
    free(block);
}

/* Layer 0 is worth every slot, layer 1 none: one slot at a time moves, 1000 times at most. */
static void a_search_ends_after_1000_moves(void)
{
    const struct mp_shape shape = { .layers = 2, .experts = 4096, .top_k = 1 };
    struct mp_fixed_point point;
    void *block = make_point(&point, &shape);
    uint32_t slots[2] = { 2048, 2048 }, retained[2], numbers[6];
    double late[8];

    point.load_ns = 10;
    point.tokens[0] = point.tokens[1] = 4096;
    for (uint32_t r = 0; r < 4096; r++)
        point.active[r] = 1;
    point.active[4096] = 4096;
    mp_fixed_point_sum(&point);
    CHECK_EQ(mp_fixed_point_allocate(&point, 1, slots, retained, late, numbers), 1000);
    CHECK(slots[0] == 3048 && slots[1] == 1048);
    free(block);
}

/*
 * Split experts, layer 1 alone with 2 slots and a window of 3: theta 1 keeps 2 experts: .5, and the
 * guess takes 5: none. theta 1/2 keeps 4 of 4: H 1 * 1/2 = .5, the guess takes (1 - 1/2) * 10 = 5:
 * none. theta 11/16 keeps floor(32 / 11) = 2: worse than 1. theta 10/16 keeps 3: .75 * .625 = .469.
 * So with this window the whole is best (a tie goes to the larger part). With a window of 6 the
 * guess fits: theta 1: .5 + .5 * .6 = .8. theta 1/2: .5 + .5 * .6 = .8, a tie; 10/16: PH = .75:
 * .469 + (1 - .469) * .6 = .788. With loads of 12 and a window of 7 theta 1 and 1/2 take 6.
 */
static void theta_follows_from_the_window(void)
{
    static const uint32_t falling[4] = { 70, 10, 10, 10 };
    const struct mp_shape shape = { .layers = 1, .experts = 4, .top_k = 1, .slices = 16 };
    const uint32_t slots[1] = { 2 };
    struct mp_fixed_point point;
    void *block;
    double late[1];
    uint32_t retained[1];

    block = make_point(&point, &shape);
    point.load_ns = 10;
    point.expert_ns = 2;
    point.attention_ns = 3;
    point.tokens[0] = point.asked[0] = 100;
    for (uint32_t r = 0; r < 4; r++)
        point.active[r] = point.held[r] = 25;
    point.right[0] = 60;
    mp_fixed_point_sum(&point);
    mp_fixed_point_split(&point, slots, late, retained);
    CHECK_EQ(retained[0], 16);
    CHECK(near(late[0], 5 - 1));
    point.attention_ns = 6;
    mp_fixed_point_split(&point, slots, late, retained);
    CHECK_EQ(retained[0], 16);
    CHECK(near(late[0], 2 - 1.6));

    /*
     * The guess is nearly always right (90) and stands at the lower ranks that a small part of all
     * experts would cover (0 10 10 80 at ranks 0 to 3). Window 6: theta 1 holds ranks 0, 1: PH .1,
     * 9 > 6: m = .8. theta 1/2 holds all: PH 1, the guess takes 5: m = 1 * .5 + .5 * .9 = .95.
     */
    for (uint32_t r = 0; r < 4; r++)
        point.active[r] = falling[r];
    point.held[0] = 0;
    point.held[1] = point.held[2] = 10;
    point.held[3] = 80;
    point.right[0] = 90;
    mp_fixed_point_sum(&point);
    mp_fixed_point_split(&point, slots, late, retained);
    CHECK_EQ(retained[0], 8);
    CHECK(near(late[0], 0));

    /* Given, nothing is searched: the whole, m = .8 as above, miss 2, hide 1.6. */
    point.fixed_top = 16;
    mp_fixed_point_split(&point, slots, late, retained);
    CHECK_EQ(retained[0], 16);
    CHECK(near(late[0], 2 - 1.6));
    free(block);
}

/* Feed one partition with random routing; its shares must keep their sum. */
static void fixed_point_learns_and_keeps_the_sum(void)
{
    static const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 1000,
                                           .executors[TEST_DEVICE].fixed_ns = 100, .layer_ns = 50 };
    const struct mp_shape shape = {
        .layers = 4, .experts = 16, .top_k = 2, .tokens_max = 8, .slots = 24, .costs = &costs
    };
    const struct {
        double zeta;
        uint64_t tau, theta;
    } config = { 0.01, 50, 0 };
    const struct mp_partition_ops *ops = &mp_partition_fixed_point;
    const struct mp_shape unknown = { .layers = 4, .experts = 16, .top_k = 2, .slots = 24 };
    uint32_t quota[4], retained[4], sum = 0, revisions = 0;
    bool due, revised;
    struct mp_policy *policy;
    float scores[3 * 16];

    CHECK_EQ(sizeof(config), ops->info.config_size);
    CHECK_EQ(ops->create(&config, &shape, &policy), MP_OK);
    ops->quota(policy, &shape, quota);
    for (uint32_t l = 0; l < 4; l++)
        CHECK_EQ(quota[l], 6);
    for (uint32_t round = 0; round < 200; round++) {
        for (uint32_t l = 0; l < 4; l++) {
            const uint32_t tokens = 1 + round % 3;
            uint32_t chosen[6];

            for (uint32_t i = 0; i < 3 * 16; i++)
                scores[i] = (float)random_below(1000) - 500;
            if (round % 5 != 0)
                ops->predicted(policy, l, tokens, scores);
            for (uint32_t t = 0; t < tokens; t++) {
                /* Layer 3 uses two experts only, the others all. */
                chosen[2 * t] = random_below(l == 3 ? 1 : 8);
                chosen[2 * t + 1] = 8 + random_below(l == 3 ? 1 : 8);
            }
            ops->routed(policy, l, tokens, 2, chosen);
        }
        due = ops->due(policy, &shape);
        CHECK(!ops->due(policy, &unknown));                /* it could not compute anything */
        CHECK(!ops->revise(policy, &shape, false, quota)); /* due or not, it waits for idle */
        CHECK_EQ(ops->due(policy, &shape), due);
        revised = ops->revise(policy, &shape, true, quota);
        CHECK_EQ(revised, due);
        CHECK(!ops->due(policy, &shape));
        if (revised) {
            revisions++;
            sum = 0;
            for (uint32_t l = 0; l < 4; l++) {
                sum += quota[l];
                CHECK(quota[l] >= 1 && quota[l] <= 16);
            }
            CHECK_EQ(sum, 24);
        }
    }
    /* 400 tokens; each run is due 50 tokens after the last, tokens come in threes at most. */
    CHECK(revisions >= 6 && revisions <= 8);
    CHECK(quota[3] < 6); /* two experts always: more slots than a few are worth nothing to it */
    ops->retained(policy, &shape, retained);
    for (uint32_t l = 0; l < 4; l++)
        CHECK_EQ(retained[l], 1); /* units are whole */
    ops->destroy(policy);
}

/*
 * Slots of layer 0 after 200 batches of five tokens, four of expert 0 and one of another, the same
 * in both layers: the other one is token `place` in layer 0, the last in layer 1.
 */
static uint32_t slots_with(uint32_t place)
{
    static const uint8_t others[16] = { 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5, 6, 7 };
    static const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 1000,
                                           .executors[TEST_DEVICE].fixed_ns = 1 };
    const struct mp_shape shape = {
        .layers = 2, .experts = 8, .top_k = 1, .tokens_max = 5, .slots = 8, .costs = &costs
    };
    const struct mp_partition_ops *ops = &mp_partition_fixed_point;
    struct mp_policy *policy = instance(&ops->info, ops->create, &shape, "TAU", "1000", NULL);
    uint32_t quota[2];

    for (uint32_t round = 0; round < 200; round++) {
        uint32_t first[5] = { 0 }, second[5] = { 0 };

        first[place] = second[4] = others[round * 7 % 16];
        ops->routed(policy, 0, 5, 1, first);
        ops->routed(policy, 1, 5, 1, second);
    }
    CHECK(ops->revise(policy, &shape, true, quota));
    ops->destroy(policy);
    return quota[0];
}

/* Of a batch the last four tokens are counted, and their order does not matter. */
static void the_last_four_tokens_of_a_batch_are_counted(void)
{
    for (uint32_t place = 1; place < 5; place++)
        CHECK_EQ(slots_with(place), slots_with(4));
    CHECK(slots_with(0) < slots_with(4));
    CHECK_EQ(slots_with(0), 1);
}

/*
 * Slots of layer 0 of two that choose alike, where its expert is always the one predicted at
 * `place` and there is time to load whatever is guessed.
 */
static uint32_t slots_with_guess(uint32_t place)
{
    enum { EXPERTS = 16 };
    static const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 1000,
                                           .executors[TEST_DEVICE].fixed_ns = 1,
                                           .layer_ns = 100000 };
    const struct mp_shape shape = {
        .layers = 2, .experts = EXPERTS, .top_k = 1, .tokens_max = 1, .slots = 16, .costs = &costs
    };
    const struct mp_partition_ops *ops = &mp_partition_fixed_point;
    struct mp_policy *policy = instance(&ops->info, ops->create, &shape, "TAU", "1000", NULL);
    uint32_t quota[2];

    for (uint32_t round = 0; round < 1000; round++) {
        const uint32_t chosen = random_below(EXPERTS);
        float scores[EXPERTS];

        for (uint32_t p = 0; p < EXPERTS; p++)
            scores[(chosen + (p < place ? p + 1 : p == place ? 0 : p)) % EXPERTS] = -(float)p;
        ops->predicted(policy, 0, 1, scores);
        for (uint32_t l = 0; l < 2; l++)
            ops->routed(policy, l, 1, 1, &chosen);
    }
    CHECK(ops->revise(policy, &shape, true, quota));
    ops->destroy(policy);
    return quota[0];
}

/* What is always guessed needs no slot; the fifth guess of a token with one expert does not count.
 */
static void four_guesses_count_for_each_expert_of_a_token(void)
{
    CHECK_EQ(slots_with_guess(0), 1);
    CHECK_EQ(slots_with_guess(3), 1);
    CHECK(slots_with_guess(4) >= 7);
}

/* THETA is in sixteenths, whatever an expert is cut into, and one slice at least; it outlasts
 * revisions. Whole experts have no parts. */
static void theta_can_be_given(void)
{
    static const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 1000,
                                           .executors[TEST_DEVICE].fixed_ns = 100 };
    static const struct {
        uint32_t slices, theta, top;
    } cases[] = { { 16, 0, 8 }, { 16, 6, 6 }, { 16, 16, 16 }, { 4, 6, 2 },
                  { 4, 1, 1 },  { 4, 16, 4 }, { 1, 6, 1 } };
    const struct mp_partition_ops *ops = &mp_partition_fixed_point;

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const struct mp_shape shape = { .layers = 2,
                                        .experts = 4,
                                        .top_k = 1,
                                        .tokens_max = 1,
                                        .slots = 4,
                                        .costs = &costs,
                                        .slices = cases[i].slices };
        char theta[8];
        struct mp_policy *policy;
        uint32_t retained[2], quota[2], chosen = 0;

        snprintf(theta, sizeof(theta), "%u", cases[i].theta);
        policy = instance(&ops->info, ops->create, &shape, "TAU", "1", "THETA", theta, NULL);
        ops->retained(policy, &shape, retained);
        CHECK(retained[0] == cases[i].top && retained[1] == cases[i].top);
        for (uint32_t l = 0; l < 2; l++)
            ops->routed(policy, l, 1, 1, &chosen);
        CHECK(ops->revise(policy, &shape, true, quota));
        ops->retained(policy, &shape, retained);
        CHECK(cases[i].theta == 0 || (retained[0] == cases[i].top && retained[1] == cases[i].top));
        ops->destroy(policy);
    }
}

/* Least expected loads with `slots` for layers l.. by trying every size: dynamic programming. */
static double least_loads(const struct mp_shape *shape, uint32_t slots)
{
    static double best[65], next[65];

    for (uint32_t s = 0; s <= slots; s++)
        best[s] = s == 0 ? 0 : INFINITY;
    for (uint32_t l = 0; l < shape->layers; l++) {
        float share[32];

        memcpy(share, shape->calibration->hot + l * shape->experts,
               shape->experts * sizeof(share[0]));
        for (uint32_t i = 1; i < shape->experts; i++) {
            for (uint32_t j = i; j > 0 && share[j] > share[j - 1]; j--) {
                const float swap = share[j];

                share[j] = share[j - 1];
                share[j - 1] = swap;
            }
        }
        for (uint32_t s = 0; s <= slots; s++) {
            double covered = 0;

            next[s] = INFINITY;
            for (uint32_t mine = 0; mine <= s && mine <= shape->experts; mine++) {
                if (mine > 0)
                    covered += (double)share[mine - 1];
                if (mine > 0 && best[s - mine] + 1 - covered < next[s])
                    next[s] = best[s - mine] + 1 - covered;
            }
        }
        memcpy(best, next, sizeof(best));
    }
    return best[slots];
}

static void adapmoe_finds_the_optimum_of_dynamic_programming(void)
{
    float hot[4 * 12];
    const struct mp_calibration calibration = { .hot = hot };

    for (unsigned round = 0; round < 300; round++) {
        struct mp_shape shape = { .layers = 4, .experts = 12, .calibration = &calibration };
        struct mp_policy *policy;
        uint32_t quota[4], sum = 0;
        double loads = 0;

        for (uint32_t l = 0; l < 4; l++) {
            float all = 0;

            for (uint32_t e = 0; e < 12; e++)
                all += hot[l * 12 + e] = (float)(1 + random_below(l == 0 ? 2 : 200));
            for (uint32_t e = 0; e < 12; e++)
                hot[l * 12 + e] /= all;
        }
        shape.slots = 4 + random_below(45);
        CHECK_EQ(mp_partition_adapmoe.create(NULL, &shape, &policy), MP_OK);
        mp_partition_adapmoe.quota(policy, &shape, quota);
        for (uint32_t l = 0; l < 4; l++) {
            bool taken[12] = { false };

            CHECK(quota[l] >= 1 && quota[l] <= 12);
            sum += quota[l];
            loads += 1;
            for (uint32_t i = 0; i < quota[l]; i++) {
                uint32_t top = 12;

                for (uint32_t e = 0; e < 12; e++) {
                    if (!taken[e] && (top == 12 || hot[l * 12 + e] > hot[l * 12 + top]))
                        top = e;
                }
                taken[top] = true;
                loads -= (double)hot[l * 12 + top];
            }
        }
        CHECK_EQ(sum, shape.slots);
        CHECK(fabs(loads - least_loads(&shape, shape.slots)) < 1e-5);
        mp_partition_adapmoe.destroy(policy);
    }
}

/* Shares: expert 0 of every layer is hottest, and layer 0 falls steepest (see calibration.h). */
static void first_residents_are_the_hottest_or_whole_layers(void)
{
    struct mp_shape shape = { .layers = 3, .experts = 8, .top_k = 1, .slots = 12 };
    struct {
        uint64_t value;
    } config = { 0 };
    struct mp_policy *policy;
    uint32_t units[24], count;
    float last = 1;

    shape.calibration = test_calibration(3, 8);
    CHECK_EQ(mp_partition_hot_table.create(&config, &shape, &policy), MP_OK);
    count = mp_partition_hot_table.first(policy, &shape, units);
    CHECK_EQ(mp_buffer_slots(&shape), 3); /* a quarter of 12 is less than 2 + 2 */
    CHECK_EQ(count, 9);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(shape.calibration->hot[units[i]] <= last);
        last = shape.calibration->hot[units[i]];
    }
    CHECK_EQ(units[0], 0);
    mp_partition_hot_table.destroy(policy);
    config.value = 11;
    CHECK_EQ(mp_partition_hot_table.create(&config, &shape, &policy), MP_OK);
    CHECK_EQ(mp_partition_hot_table.first(policy, &shape, units), 1);
    mp_partition_hot_table.destroy(policy);

    for (uint64_t at_end = 0; at_end < 2; at_end++) {
        config.value = at_end;
        CHECK_EQ(mp_partition_static_layers.create(&config, &shape, &policy), MP_OK);
        CHECK_EQ(mp_partition_static_layers.first(policy, &shape, units), 9);
        for (uint32_t i = 0; i < 8; i++)
            CHECK_EQ(units[i], at_end ? 16 + i : i);
        CHECK_EQ(units[8], 8); /* one of the next layer, which does not fit as a whole */
        mp_partition_static_layers.destroy(policy);
    }
}

static void without_a_calibration_they_are_refused(void)
{
    const struct mp_shape shape = { .layers = 3, .experts = 8, .top_k = 1, .slots = 12 };
    const uint64_t config = 0;
    struct mp_policy *policy;

    CHECK_EQ(mp_partition_hot_table.create(&config, &shape, &policy), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_CALIBRATION");
    CHECK(strstr(mp_error_last()->text, "'hot-table'") != NULL);
    CHECK(strstr(mp_error_last()->text, "moepager calibrate") != NULL);
    CHECK_EQ(mp_partition_adapmoe.create(NULL, &shape, &policy), MP_ERR_CONFIG);
    CHECK(strstr(mp_error_last()->text, "'adapmoe'") != NULL);
}

/* Every partition that divides: the shares of all slots, or of all experts if there are fewer. */
static void no_partition_gives_away_more_than_there_is(void)
{
    const struct mp_partition_ops *ops;

    for (size_t i = 0; (ops = (const void *)mp_policy_builtin(MP_POLICY_PARTITION, i)) != NULL;
         i++) {
        static _Alignas(16) char config[1024];

        CHECK(ops->info.config_size <= sizeof(config));
        if (ops->info.opts != NULL)
            CHECK_EQ(mp_opt_load(ops->info.opts, "UNSET_", config), 0);
        for (uint32_t slots = 0; slots <= 40; slots++) {
            struct mp_shape shape = {
                .layers = 4, .experts = 8, .top_k = 2, .tokens_max = 4, .slots = slots
            };
            uint32_t quota[4] = { 0 }, units[32], count = 0;
            struct mp_policy *policy;
            uint64_t sum = 0;

            shape.calibration = test_calibration(4, 8);
            CHECK_EQ(ops->create(ops->info.opts != NULL ? config : NULL, &shape, &policy), MP_OK);
            if (!ops->global)
                ops->quota(policy, &shape, quota);
            for (uint32_t l = 0; l < 4; l++)
                sum += quota[l];
            CHECK(sum <= slots);
            if (!ops->global)
                CHECK(sum >= (slots < 32 ? slots : 32));
            if (ops->first != NULL)
                count = ops->first(policy, &shape, units);
            CHECK(count <= slots && count <= 32);
            for (uint32_t u = 0; u < count; u++) {
                CHECK(units[u] < 32);
                for (uint32_t v = 0; v < u; v++)
                    CHECK(units[v] != units[u]);
            }
            ops->destroy(policy);
        }
    }
}

int main(void)
{
    RUN(exposed_times_are_those_worked_out_by_hand);
    RUN(slots_move_while_the_sum_falls);
    RUN(a_search_ends_after_1000_moves);
    RUN(theta_follows_from_the_window);
    RUN(the_last_four_tokens_of_a_batch_are_counted);
    RUN(four_guesses_count_for_each_expert_of_a_token);
    RUN(theta_can_be_given);
    RUN(fixed_point_learns_and_keeps_the_sum);
    RUN(adapmoe_finds_the_optimum_of_dynamic_programming);
    RUN(first_residents_are_the_hottest_or_whole_layers);
    RUN(without_a_calibration_they_are_refused);
    RUN(no_partition_gives_away_more_than_there_is);
    return 0;
}
