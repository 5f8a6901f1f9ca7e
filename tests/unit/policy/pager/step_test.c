/*
 * The step over a real pager, with operations that write down their arguments.
 */
#include <math.h>

#include "policy/builtins.h"
#include "tests/support/executors.h"
#include "tests/support/test.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/unit/policy/pager/step_fake.h"

static void calls_come_in_order_grouped_by_expert(void)
{
    static const uint32_t experts[] = { 3, 1, 1, 0, 3, 0 };
    static const float weights[] = { 0.6f, 0.3f, 0.5f, 0.4f, 0.6f, 0.3f };

    open_fake(&with_gate, &all_ops);
    set_scores(three_tokens, 3);
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK_STR(fake.log, "scores 0\nrouted 0\nsource 0 of 1\nshared 0\n"
                        "expert 0: 1.1 2.1\nexpert 1: 0.1 1.0\nexpert 3: 0.0 2.0\n"
                        "combine 0\n");
    for (size_t i = 0; i < 6; i++) {
        CHECK_EQ(fake.experts[i], experts[i]);
        CHECK(fake.weights[i] == weights[i]);
    }
    /* 8 slots: two prefetches of what layer 1 will want most: 3 (1.2) and 1 (0.8; 0 has 0.7). */
    CHECK_EQ(fake.world.counters.prefetch_issued, 2);
    CHECK_EQ(run_layer(1), MP_OK);
    CHECK_EQ(fake.world.counters.prefetch_used, 2);
    CHECK_EQ(fake.world.counters.hits, 2);
    CHECK_STR(fake.log, "scores 1\nrouted 1\nsource 1 of 2\nshared 1\n"
                        "expert 1: 0.1 1.0\nexpert 3: 0.0 2.0\nexpert 0: 1.1 2.1\n"
                        "combine 1\n");
    CHECK(fake.together >= 2);     /* the prefetched ones */
    CHECK_EQ(run_layer(2), MP_OK); /* the last: nothing to look ahead to */
    CHECK(strstr(fake.log, "source") == NULL);
    CHECK_EQ(fake.world.counters.invalid_decisions, 0);
    layer_is_closed_and_sound();
    close_fake();
}

/* A load is cheap beside the CPU, but the device tier has two slots: what would be a third is the
 * CPU's, and beside two residents that are used there is room for one at a time. */
static void what_the_device_tier_cannot_take_goes_to_the_cpu(void)
{
    static const char *const bounded[] = { "greedy", "beam", "exact" };
    static const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 10,
                                           .executors[TEST_CPU].fixed_ns = 100,
                                           .executors[TEST_DEVICE].fixed_ns = 1 };
    static const float all_four[2 * EXPERTS] = { 0.6f, 0.4f, 0, 0, 0, 0, 0.6f, 0.4f };
    struct mp_policy_names names = demand_only;

    for (size_t i = 0; i < sizeof(bounded) / sizeof(bounded[0]); i++) {
        names.policy[MP_POLICY_ASSIGN] = bounded[i];
        fake_costs = &costs;
        for (uint32_t tight = 0; tight < 2; tight++) {
            fake_slots = tight ? 2 : 8;
            open_fake(&names, &all_ops);
            set_scores(all_four, 2);
            CHECK_EQ(run_layer(0), MP_OK);
            CHECK_EQ(fake.on_cpu, tight ? 2 : 0);
            CHECK_EQ(run_layer(0), MP_OK);
            CHECK_EQ(fake.on_cpu, tight ? 3 : 0);
            layer_is_closed_and_sound();
            close_fake();
        }
        fake_costs = NULL;
        fake_slots = 8;
    }
}

static void assign_in_turn(struct mp_policy *policy, const struct mp_assign_facts *facts,
                           uint32_t *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = i % 3 == 2 ? TEST_CPU : TEST_EXECUTORS;
}

static uint64_t reads_when_asked;

static enum mp_status begin_peers(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                  uint32_t count)
{
    (void)ctx;
    (void)layer;
    CHECK_EQ(count, 1);
    reads_when_asked = fake.world.counters.loads;
    fake.computed[work->rows.token[0] * K + work->rows.rank[0]]++;
    return result(&fake, OP_EXPERT);
}

static void one_elsewhere(struct mp_policy *policy, const struct mp_assign_facts *facts,
                          uint32_t *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = i == 0;
}

/* Another machine has its rows before any read of the layer has begun; where that fails the layer
 * does, and nothing was opened. */
static void other_machines_are_asked_before_reads_begin(void)
{
    static const float scores[EXPERTS] = { 0.6f, 0.4f };
    const struct mp_step_executor executors[] = { fake_executors[0], { .begin = begin_peers } };
    struct mp_costs costs = { .executor_count = 2,
                              .executors[1] = { .reads = MP_READS_PEER, .processor = 1 } };
    struct mp_assign_ops ops;

    fake_costs = &costs;
    fake_table = executors;
    open_fake(&demand_only, &all_ops);
    ops = *fake.world.policies.assign_ops;
    ops.assign = one_elsewhere;
    fake.world.policies.assign_ops = &ops;
    set_scores(scores, 1);
    fake.fail = OP_EXPERT;
    CHECK_EQ(run_layer(0), MP_ERR_DEVICE);
    CHECK_EQ(fake.world.counters.loads, 0);
    reads_when_asked = 99;
    memset(fake.computed, 0, sizeof(fake.computed));
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK_EQ(reads_when_asked, 0);
    CHECK_EQ(fake.world.counters.loads, 1);
    layer_is_closed_and_sound();
    close_fake();
    fake_costs = NULL;
    fake_table = fake_executors;
}

/* Experts 0, 1, 2 and 3: the fourth executor gets 0 and 3, cannot have 1, and 2 is the CPU's. */
static void each_executor_gets_its_own_work(void)
{
    static const float scores[2 * EXPERTS] = { 0.6f, 0.4f, 0, 0, 0, 0, 0.6f, 0.4f };
    struct mp_costs costs = { TEST_THREE_EXECUTORS,
                              .executors[TEST_EXECUTORS] = { .reads = MP_READS_HOST } };
    struct mp_assign_ops ops;

    costs.executor_count = TEST_EXECUTORS + 1;
    fourth.begun = 0;
    fake_costs = &costs;
    open_fake(&demand_only, &all_ops);
    ops = *fake.world.policies.assign_ops;
    ops.assign = assign_in_turn;
    fake.world.policies.assign_ops = &ops;
    set_scores(scores, 2);
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK_EQ(fourth.begun, 2);
    CHECK_EQ(fake.on_cpu, 3);
    CHECK_EQ(fake.world.counters.loads, 1);
    CHECK_EQ(fake.world.counters.invalid_decisions, 0);
    layer_is_closed_and_sound();
    close_fake();
    fake_costs = NULL;
}

/* All slots there are: the next layer is guessed until all of it is resident, then never again. */
/* What is ready of one expert comes side by side and in order, however the pager hands it out. */
static void slices_of_an_expert_stand_together(void)
{
    static const float scores[EXPERTS] = { 0.4f, 0.3f, 0.2f, 0.1f };

    fake_slices = 2;
    fake_slots = 5;
    open_fake(&demand_only, &all_ops);
    fake_slices = 1;
    fake_slots = 8;
    set_scores(scores, 1);
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK_STR(fake.log, "scores 0\nrouted 0\nshared 0\n"
                        "expert 0.0: 0.0\nexpert 0.1: 0.0\nexpert 1.0: 0.1\nexpert 1.1: 0.1\n"
                        "combine 0\n");
    CHECK_EQ(run_layer(1), MP_OK); /* takes slots of layer 0, ends first */
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK(fake.world.counters.partial_hits > 0);
    close_fake();
}

/* Work ends when it is asked for. */
static uint32_t under_way[2 * EXPERTS], under_way_count;

static enum mp_status begin_only(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                 uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        under_way[under_way_count++] = work[i].need;
    return fake_experts(ctx, layer, work, count);
}

static enum mp_status end_all(void *ctx, uint32_t *needs, uint32_t *count_p)
{
    CHECK(ctx == &fake);
    memcpy(needs, under_way, under_way_count * sizeof(needs[0]));
    *count_p = under_way_count;
    under_way_count = 0;
    return MP_OK;
}

static bool any_under_way(void *ctx)
{
    (void)ctx;
    return under_way_count > 0;
}

/* A device computes residents while the host waits for scores of the next layer. */
static void residents_begin_before_a_prediction(void)
{
    static const struct mp_step_executor executor = { .ctx = &fake, .begin = begin_only };
    static const float scores[EXPERTS] = { 0.6f, 0.4f, 0, 0 };
    struct mp_step_ops ops = all_ops;

    ops.ended = end_all;
    ops.any_ended = any_under_way;
    for (int beside = 0; beside < 2; beside++) {
        ops.predicts_beside = beside;
        fake_table = &executor;
        open_fake(&with_gate, &ops);
        fake_table = fake_executors;
        set_scores(scores, 1);
        CHECK_EQ(run_layer(1), MP_OK);
        CHECK_EQ(run_layer(1), MP_OK);
        CHECK(strstr(fake.log, "source") != NULL && strstr(fake.log, "expert") != NULL);
        CHECK_EQ(strstr(fake.log, "expert") < strstr(fake.log, "source"), beside == 1);
        CHECK_EQ(fake.world.counters.hits, 2);
        layer_is_closed_and_sound();
        close_fake();
    }
}

static void run_two(uint32_t layer, uint32_t a, uint32_t b)
{
    const float guessed[EXPERTS] = { 0.6f, 0.4f, 0, 0 };
    float scores[EXPERTS] = { 0 };

    scores[a] = 0.6f;
    scores[b] = 0.4f;
    set_scores(scores, 1);
    memcpy(fake.source, guessed, sizeof(guessed));
    CHECK_EQ(run_layer(layer), MP_OK);
}

/* Prefetch policy `window` names what is absent only. Residents that are predicted stay all the
 * same, though nothing has been used for longer. */
static void what_is_predicted_is_no_victim(void)
{
    const struct mp_policy_names names = { .profile = "gate-lru",
                                           .policy[MP_POLICY_PREFETCH] = "window" };
    uint64_t misses;

    open_fake(&names, &all_ops);
    run_two(1, 0, 1);
    run_two(2, 0, 1);
    run_two(0, 0, 1); /* predicts experts 0 and 1 of layer 1 */
    run_two(2, 2, 3); /* all slots are taken */
    run_two(0, 2, 3); /* two have to leave */
    misses = fake.world.counters.misses;
    run_two(1, 0, 1);
    CHECK_EQ(fake.world.counters.misses, misses);
    layer_is_closed_and_sound();
    close_fake();
}

static void nobody_guesses_what_cannot_move(void)
{
    fake_slots = LAYERS * EXPERTS;
    open_fake(&with_gate, &all_ops);
    fake_slots = 8;
    for (int round = 0; round < 2; round++) {
        for (uint32_t e = 0; e < EXPERTS; e++) {
            const float scores[EXPERTS] = {
                [0] = e == 0, [1] = e == 1, [2] = e == 2, [3] = e == 3
            };

            set_scores(scores, 1);
            for (uint32_t layer = 0; layer < LAYERS; layer++) {
                CHECK_EQ(run_layer(layer), MP_OK);
                if (layer + 1 < LAYERS && round == 0 && e == 0)
                    CHECK(strstr(fake.log, "source") != NULL);
                if (round == 1)
                    CHECK(strstr(fake.log, "source") == NULL);
            }
        }
    }
    CHECK(fake.world.counters.layers_ns >= fake.world.counters.decisions_ns);
    close_fake();
}

/* A predictor that wraps and observes. */
static void observe(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                    const uint32_t *chosen)
{
    (void)policy;
    CHECK_EQ(tokens, fake.tokens);
    CHECK_EQ(k, K);
    write_log(&fake, "observe %u: %u %u\n", layer, chosen[0], chosen[1]);
}

static bool predict_ranks(struct mp_policy *policy, const struct mp_predict_facts *facts,
                          float *scores)
{
    (void)policy;
    CHECK(facts->source == NULL);
    write_log(&fake, "predict %u from %u\n", facts->target_layer, facts->layer);
    for (uint32_t i = 0; i < facts->tokens * facts->experts; i++)
        scores[i] = (float)(i % facts->experts);
    return facts->layer != 1; /* has no idea of layer 2 */
}

static void predictors_that_wrap_look_into_the_next_step(void)
{
    struct mp_predict_ops predict = mp_predict_none;

    open_fake(&with_gate, &all_ops);
    predict.wraps = true;
    predict.observe = observe;
    predict.predict = predict_ranks;
    fake.world.policies.predict_ops = &predict;
    set_scores(three_tokens, 1);
    CHECK_EQ(run_layer(1), MP_OK);
    CHECK_EQ(fake.world.counters.prefetch_issued, 0);
    CHECK_EQ(run_layer(2), MP_OK);
    CHECK_STR(fake.log, "scores 2\nrouted 2\npredict 0 from 2\nshared 2\n"
                        "expert 1: 0.1\nexpert 3: 0.0\ncombine 2\nobserve 2: 3 1\n");
    CHECK_EQ(fake.world.counters.prefetch_issued, 2); /* 3 and 2 of layer 0 */
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK_EQ(fake.world.counters.prefetch_used, 1);
    fake.world.policies.predict_ops = &mp_predict_gate;
    close_fake();
}

/* However far the predictor sees, the layer itself is none of those ahead of it. */
static void no_layer_is_ahead_of_itself(void)
{
    struct mp_predict_ops predict = mp_predict_none;
    struct mp_prefetch_ops prefetch = mp_prefetch_top;

    open_fake(&with_gate, &all_ops);
    predict.wraps = true;
    predict.reach = LAYERS + 1;
    predict.predict = predict_ranks;
    prefetch.reach = LAYERS + 1;
    fake.world.policies.predict_ops = &predict;
    fake.world.policies.prefetch_ops = &prefetch;
    set_scores(three_tokens, 1);
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK_STR(fake.log, "scores 0\nrouted 0\npredict 1 from 0\npredict 2 from 0\nshared 0\n"
                        "expert 1: 0.1\nexpert 3: 0.0\ncombine 0\n");
    fake.world.policies.predict_ops = &mp_predict_gate;
    fake.world.policies.prefetch_ops = &mp_prefetch_top;
    close_fake();
}

static void expect_forecast(struct mp_policy *policy, const struct mp_assign_facts *facts,
                            uint32_t *executors)
{
    (void)policy;
    CHECK(facts->next_tokens != NULL);
    memset(executors, 0, facts->count * sizeof(*executors));
}

static uint32_t most_distant; /* for which choose() may be called */

static bool wants_near(const struct mp_policy *policy, uint32_t layer, uint32_t distance)
{
    (void)policy;
    (void)layer;
    return distance <= most_distant;
}

/* However many policies ask, a layer is predicted once, and not at all if nobody would use it. */
static void all_share_one_prediction(void)
{
    struct mp_assign_ops assign = mp_assign_gpu_only;
    struct mp_predict_ops predict = mp_predict_none;
    struct mp_prefetch_ops prefetch = mp_prefetch_top;

    open_fake(&with_gate, &all_ops);
    assign.looks_ahead = true;
    assign.assign = expect_forecast;
    predict.reach = prefetch.reach = 2;
    predict.predict = predict_ranks;
    prefetch.wants = wants_near;
    fake.world.policies.assign_ops = &assign;
    fake.world.policies.predict_ops = &predict;
    fake.world.policies.prefetch_ops = &prefetch;
    set_scores(three_tokens, 1);
    most_distant = 1;
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK_STR(fake.log, "scores 0\nrouted 0\npredict 1 from 0\nshared 0\n"
                        "expert 1: 0.1\nexpert 3: 0.0\ncombine 0\n");
    most_distant = 2;
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK_STR(fake.log, "scores 0\nrouted 0\npredict 1 from 0\npredict 2 from 0\nshared 0\n"
                        "expert 1: 0.1\nexpert 3: 0.0\ncombine 0\n");
    fake.world.policies.assign_ops = &mp_assign_gpu_only;
    fake.world.policies.predict_ops = &mp_predict_gate;
    fake.world.policies.prefetch_ops = &mp_prefetch_top;
    close_fake();
}

/* Exact are 3 and 1, then 2 and 0. */
static void route_two_others(struct mp_policy *policy, const struct mp_route_facts *facts,
                             uint32_t *experts, float *weights)
{
    static const uint32_t chosen[2 * K] = { 3, 0, 2, 1 };

    (void)policy;
    CHECK_EQ(facts->tokens, 2);
    memcpy(experts, chosen, sizeof(chosen));
    for (uint32_t i = 0; i < 2 * K; i++)
        weights[i] = facts->scores[i / K * EXPERTS + chosen[i]];
}

/* An expert that another token of the batch has exactly is a substitute all the same. */
static void substitutes_are_counted_by_token(void)
{
    static const float scores[2 * EXPERTS] = { 0, 0.3f, 0, 0.6f, 0.3f, 0, 0.6f, 0 };
    struct mp_route_ops route = mp_route_exact;

    open_fake(&demand_only, &all_ops);
    route.exact = false;
    route.route = route_two_others;
    fake.world.policies.route_ops = &route;
    set_scores(scores, 2);
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK_EQ(fake.world.counters.route_choices, 4);
    CHECK_EQ(fake.world.counters.route_substituted, 2);
    CHECK_EQ(fake.world.counters.invalid_decisions, 0);
    fake.world.policies.route_ops = &mp_route_exact;
    close_fake();
}

/* A stream: what is begun ends when it is asked. */
static struct stream {
    uint32_t needs[EXPERTS], count;
} stream;

static enum mp_status begin_on_stream(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                      uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        stream.needs[stream.count++] = work[i].need;
    return fake_experts(ctx, layer, work, count);
}

static enum mp_status stream_ended(void *ctx, uint32_t *needs, uint32_t *count_p)
{
    CHECK(stream.count > 0);
    write_log(ctx, "ended\n");
    memcpy(needs, stream.needs, stream.count * sizeof(needs[0]));
    *count_p = stream.count;
    stream.count = 0;
    return result(ctx, OP_ENDED);
}

static bool nothing_ended(void *ctx)
{
    (void)ctx;
    return false;
}

static uint32_t leased_units(void)
{
    uint32_t count = 0;

    for (uint32_t u = 0; u < fake.world.unit_count; u++)
        count += mp_space_leases(fake.world.space, u) > 0;
    return count;
}

static void open_stream(bool ordered)
{
    static struct mp_step_executor table[TEST_EXECUTORS + 1];
    struct mp_step_ops ops = { .scores = fake_scores, .combine = fake_combine };
    static struct mp_step_ops kept;

    ops.ended = stream_ended;
    ops.any_ended = nothing_ended;
    kept = ops;
    table[0] =
        (struct mp_step_executor){ .ctx = &fake, .begin = begin_on_stream, .ordered = ordered };
    fake_table = table;
    stream.count = 0;
    open_fake(&demand_only, &kept);
    set_scores(three_tokens, 1);
}

/* The sum and the next scores are queued behind ordered work; leases last until those are there. */
static void a_layer_does_not_wait_for_ordered_work(void)
{
    open_stream(true);
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK_STR(fake.log, "scores 0\nexpert 1: 0.1\nexpert 3: 0.0\ncombine 0\n");
    CHECK_EQ(leased_units(), 2);
    CHECK_EQ(run_layer(1), MP_OK);
    CHECK_STR(fake.log, "scores 1\nended\nexpert 1: 0.1\nexpert 3: 0.0\ncombine 1\n");
    CHECK_EQ(leased_units(), 2);
    CHECK_EQ(run_layer(2), MP_OK); /* the last: nothing comes after it */
    CHECK_STR(fake.log, "scores 2\nended\nexpert 1: 0.1\nexpert 3: 0.0\nended\ncombine 2\n");
    layer_is_closed_and_sound();

    CHECK_EQ(run_layer(0), MP_OK);
    mp_step_abandon(fake.step);
    CHECK(strstr(fake.log, "combine 0\nended\n") != NULL);
    mp_step_abandon(fake.step); /* nothing is left open */
    layer_is_closed_and_sound();
    close_fake();

    open_stream(false);
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK_STR(fake.log, "scores 0\nexpert 1: 0.1\nexpert 3: 0.0\nended\ncombine 0\n");
    layer_is_closed_and_sound();
    close_fake();
    fake_table = fake_executors;
}

/* Whatever fails meanwhile, no lease is left. */
static void an_error_closes_a_layer_that_was_left(void)
{
    static const enum op ops[] = { OP_SCORES, OP_ENDED, OP_COMBINE };

    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        open_stream(true);
        if (ops[i] == OP_COMBINE)
            fake.fail = OP_COMBINE;
        CHECK_EQ(run_layer(0), ops[i] == OP_COMBINE ? MP_ERR_DEVICE : MP_OK);
        if (ops[i] != OP_COMBINE) {
            fake.fail = ops[i];
            CHECK_EQ(run_layer(1), MP_ERR_DEVICE);
        }
        CHECK_STR(mp_error_last()->code, "E_TEST");
        layer_is_closed_and_sound();
        CHECK_EQ(run_layer(0), MP_OK);
        mp_step_abandon(fake.step);
        layer_is_closed_and_sound();
        close_fake();
    }
    fake_table = fake_executors;
}

int main(void)
{
    world_prepare();
    RUN(calls_come_in_order_grouped_by_expert);
    RUN(what_the_device_tier_cannot_take_goes_to_the_cpu);
    RUN(each_executor_gets_its_own_work);
    RUN(other_machines_are_asked_before_reads_begin);
    RUN(slices_of_an_expert_stand_together);
    RUN(residents_begin_before_a_prediction);
    RUN(what_is_predicted_is_no_victim);
    RUN(nobody_guesses_what_cannot_move);
    RUN(predictors_that_wrap_look_into_the_next_step);
    RUN(no_layer_is_ahead_of_itself);
    RUN(all_share_one_prediction);
    RUN(substitutes_are_counted_by_token);
    RUN(a_layer_does_not_wait_for_ordered_work);
    RUN(an_error_closes_a_layer_that_was_left);
    return 0;
}
