/*
 * What a step refuses and what it does without: errors of operations, scores and numbers that
 * cannot be, policies that talk nonsense.
 */
#include "policy/pager/step.h"
#include "tests/unit/policy/pager/step_fake.h"

#include <math.h>

#include "policy/builtins.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/executors.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

static void what_is_optional_may_be_missing(void)
{
    struct mp_step_ops ops = all_ops;

    ops.source_scores = NULL;
    ops.shared = NULL;
    ops.routed = NULL;
    open_fake(&with_gate, &ops);
    set_scores(three_tokens, 1);
    CHECK_EQ(run_layer(0), MP_OK);
    CHECK_STR(fake.log, "scores 0\nexpert 1: 0.1\nexpert 3: 0.0\ncombine 0\n");
    CHECK_EQ(fake.world.counters.prefetch_issued, 0);
    close_fake();
}

static void scores_that_are_not_finite_name_layer_and_token(void)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };

    open_fake(&with_gate, &all_ops);
    for (size_t i = 0; i < 3; i++) {
        set_scores(three_tokens, 3);
        fake.scores[1 * EXPERTS + 3] = bad[i];
        CHECK_EQ(run_layer(2), MP_ERR_MODEL);
        CHECK_STR(mp_error_last()->code, "E_ROUTER_NAN");
        CHECK(strstr(mp_error_last()->text, "layer 2, token 1") != NULL);
        CHECK(strstr(mp_error_last()->text, "expert 3") != NULL);
        CHECK_STR(fake.log, "scores 2\n");
        layer_is_closed_and_sound();
    }
    set_scores(three_tokens, 3);
    fake.scores[3 * EXPERTS] = NAN; /* beyond the batch */
    CHECK_EQ(run_layer(2), MP_OK);
    close_fake();
}

static void an_error_of_any_operation_closes_the_layer(void)
{
    char expected[sizeof(fake.log)];

    for (enum op op = OP_SCORES; op < OP_COUNT; op++) {
        for (unsigned after = 0; after < (op == OP_EXPERT ? 3u : 1u); after++) {
            open_fake(&with_gate, &all_ops);
            set_scores(three_tokens, 3);
            fake.fail = op;
            fake.fail_after = after;
            CHECK_EQ(run_layer(0), MP_ERR_DEVICE);
            CHECK_STR(mp_error_last()->code, "E_TEST");
            CHECK_EQ(fake.fail, OP_NONE);
            layer_is_closed_and_sound();
            CHECK_EQ(run_layer(0), MP_OK);
            layer_is_closed_and_sound();
            CHECK_EQ(run_layer(1), MP_OK);
            CHECK(fake.experts[0] == 3 && fake.experts[1] == 1);
            snprintf(expected, sizeof(expected), "%s", fake.log);
            CHECK(strstr(expected, "combine 1\n") != NULL);
            close_fake();
            CHECK(fake.world.counters.prefetch_unused_bytes <= fake.world.counters.prefetch_bytes);
        }
    }
}

static void numbers_out_of_range_are_refused(void)
{
    struct mp_step_config config = { .ops = &all_ops, .executors = fake_executors };
    struct mp_step *step = NULL;

    open_fake(&demand_only, &all_ops);
    fake.tokens = 1;
    CHECK_EQ(mp_step_layer(fake.step, LAYERS, 1), MP_ERR_INVALID);
    CHECK_EQ(mp_step_layer(fake.step, 0, 0), MP_ERR_INVALID);
    CHECK_EQ(mp_step_layer(fake.step, 0, TOKENS_MAX + 1), MP_ERR_INVALID);
    CHECK_STR(fake.log, "");
    config.shape = fake.world.shape;
    config.shape.tokens_max = 0;
    CHECK_EQ(mp_step_create(&config, &step), MP_ERR_INVALID);
    config.shape.tokens_max = 1;
    config.shape.top_k = EXPERTS + 1;
    CHECK_EQ(mp_step_create(&config, &step), MP_ERR_INVALID);
    config.shape.tokens_max = UINT32_MAX;
    config.shape.top_k = 2;
    CHECK_EQ(mp_step_create(&config, &step), MP_ERR_INVALID);
    CHECK(step == NULL);
    mp_step_destroy(NULL);
    close_fake();
}

/* A batch of the largest size, with every token and rank computed once (checked in combine). */
static void the_largest_batch(void)
{
    float scores[TOKENS_MAX * EXPERTS];

    open_fake(&with_gate, &all_ops);
    for (uint32_t i = 0; i < TOKENS_MAX * EXPERTS; i++)
        scores[i] = (float)(i * 7919 % 101);
    set_scores(scores, TOKENS_MAX);
    for (uint32_t l = 0; l < LAYERS; l++)
        CHECK_EQ(run_layer(l), MP_OK);
    close_fake();
}

/* Policies that decide nonsense. */
static int nonsense;

static void route_nonsense(struct mp_policy *policy, const struct mp_route_facts *facts,
                           uint32_t *experts, float *weights)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->tokens * facts->k; i++) {
        experts[i] = nonsense == 0 ? EXPERTS + i : nonsense == 1 ? 1 : i % facts->k;
        weights[i] = nonsense == 2 ? NAN : 1;
    }
}

static void assign_nonsense(struct mp_policy *policy, const struct mp_assign_facts *facts,
                            uint32_t *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = i == 0 ? TEST_CPU : (99 + i);
}

static uint32_t choose_too_many(struct mp_policy *policy, const struct mp_prefetch_facts *facts,
                                uint32_t *experts)
{
    (void)policy;
    for (uint32_t e = 0; e < facts->experts; e++)
        experts[e] = e;
    return facts->experts + 1;
}

static void nonsense_is_replaced_and_counted(void)
{
    for (nonsense = 0; nonsense < 3; nonsense++) {
        struct mp_route_ops route = mp_route_exact;
        struct mp_assign_ops assign = mp_assign_gpu_only;
        struct mp_prefetch_ops prefetch = mp_prefetch_top;

        open_fake(&with_gate, &all_ops);
        route.route = route_nonsense;
        assign.assign = assign_nonsense;
        prefetch.choose = choose_too_many;
        fake.world.policies.route_ops = &route;
        fake.world.policies.assign_ops = &assign;
        fake.world.policies.prefetch_ops = &prefetch;
        set_scores(three_tokens, 3);
        CHECK_EQ(run_layer(0), MP_OK);
        CHECK_EQ(fake.world.counters.invalid_decisions, 1 + 3 + 1);
        CHECK_EQ(fake.world.counters.prefetch_issued, 0);
        CHECK(fake.experts[0] == 3 && fake.experts[1] == 1); /* the exact routing */
        CHECK(fake.weights[0] == 0.6f && fake.weights[5] == 0.3f);
        fake.world.policies.route_ops = &mp_route_exact;
        fake.world.policies.assign_ops = &mp_assign_gpu_only;
        fake.world.policies.prefetch_ops = &mp_prefetch_top;
        close_fake();
    }
}

int main(void)
{
    world_prepare();
    RUN(what_is_optional_may_be_missing);
    RUN(scores_that_are_not_finite_name_layer_and_token);
    RUN(an_error_of_any_operation_closes_the_layer);
    RUN(numbers_out_of_range_are_refused);
    RUN(the_largest_batch);
    RUN(nonsense_is_replaced_and_counted);
    return 0;
}
