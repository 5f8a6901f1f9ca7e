/*
 * MoEpic's cache configuration, on cases worked out by hand and while its window moves.
 */
#include <math.h>
#include <stdlib.h>

#include "policy/builtins.h"
#include "policy/partition/fixed_point_config.h"
#include "policy/hot.h"
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

/* After a revision: of each layer as many as its slots hold, each once, that was used; first the
 * best of every layer. */
static void check_tops(const struct mp_partition_ops *ops, struct mp_policy *policy,
                       const struct mp_shape *shape, const uint32_t *quota)
{
    uint32_t ids[64], held[4] = { 0 };
    uint8_t named[64] = { 0 };
    const uint32_t count = ops->first(policy, shape, ids);

    CHECK(count > 12 && count <= shape->slots);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(ids[i] < 64 && !named[ids[i]]);
        named[ids[i]] = 1;
        held[ids[i] / 16]++;
    }
    for (uint32_t l = 0; l < 4; l++) {
        CHECK_EQ(ids[l] / 16, l);
        CHECK(held[l] <= quota[l]);
        CHECK_EQ(held[l], l == 3 && quota[3] > 2 ? 2 : quota[l]);
    }
    CHECK(named[3 * 16] && named[3 * 16 + 8]);
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
    CHECK_EQ(ops->first(policy, &shape, quota), 0); /* none has been used */
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
    check_tops(ops, policy, &shape, quota);
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
    return 0;
}
