/*
 * The step over a real pager, with operations that write down their arguments.
 */
#include "policy/pager/step.h"

#include <math.h>
#include <stdarg.h>

#include "policy/builtins.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/executors.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define LAYERS 3
#define EXPERTS 4
#define K 2
#define TOKENS_MAX 16

enum op { OP_NONE, OP_SCORES, OP_SOURCE, OP_SHARED, OP_EXPERT, OP_COMBINE, OP_COUNT };

/* What the operations see and do. */
struct fake {
    struct world world;
    struct mp_step *step;
    float scores[TOKENS_MAX * EXPERTS], source[TOKENS_MAX * EXPERTS];
    uint32_t tokens;
    enum op fail;
    unsigned fail_after; /* so many calls of `fail` pass first */
    char log[8192];
    size_t log_used;
    uint32_t experts[TOKENS_MAX * K]; /* as combine got them */
    float weights[TOKENS_MAX * K];
    uint32_t computed[TOKENS_MAX * K]; /* (token, rank): slices */
    uint32_t together;                 /* most experts of one call */
    uint32_t on_cpu;
};

static void write_log(struct fake *f, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    f->log_used +=
        (size_t)vsnprintf(f->log + f->log_used, sizeof(f->log) - f->log_used, format, args);
    va_end(args);
    CHECK(f->log_used < sizeof(f->log));
}

static enum mp_status result(struct fake *f, enum op op)
{
    if (f->fail != op || f->fail_after-- > 0)
        return MP_OK;
    f->fail = OP_NONE;
    return mp_fail(MP_ERR_DEVICE, "E_TEST", "operation %d fails", op);
}

static enum mp_status fake_scores(void *ctx, uint32_t layer, float *scores)
{
    struct fake *f = ctx;

    write_log(f, "scores %u\n", layer);
    memcpy(scores, f->scores, f->tokens * EXPERTS * sizeof(*scores));
    return result(f, OP_SCORES);
}

static enum mp_status fake_source(void *ctx, uint32_t layer, uint32_t target_layer,
                                  enum mp_score_source source, float *scores)
{
    struct fake *f = ctx;

    CHECK_EQ(source, MP_SCORES_GATE);
    write_log(f, "source %u of %u\n", layer, target_layer);
    memcpy(scores, f->source, f->tokens * EXPERTS * sizeof(*scores));
    return result(f, OP_SOURCE);
}

static enum mp_status fake_shared(void *ctx, uint32_t layer)
{
    write_log(ctx, "shared %u\n", layer);
    return result(ctx, OP_SHARED);
}

static enum mp_status fake_expert(struct fake *f, uint32_t layer, const struct mp_expert_work *work)
{
    const struct mp_rows *rows = &work->rows;

    const bool here = work->executor == TEST_DEVICE;
    const uint32_t slices = f->world.shape.slices > 1 ? f->world.shape.slices : 1;
    const uint32_t unit = (layer * EXPERTS + work->expert) * slices + work->slice;

    CHECK(here || work->executor == TEST_CPU || work->executor == TEST_EXECUTORS);
    CHECK(!here || world_pieces_are_right(&f->world, unit, work->pieces));
    CHECK_EQ(work->slices, 1);
    f->on_cpu += !here;
    write_log(f, slices > 1 ? "expert %u.%u:" : "expert %u:", work->expert, work->slice);
    for (uint32_t i = 0; i < rows->count; i++) {
        CHECK(i == 0 || rows->token[i] > rows->token[i - 1]);
        CHECK(rows->token[i] < f->tokens && rows->rank[i] < K);
        CHECK_EQ(f->computed[rows->token[i] * K + rows->rank[i]], work->slice);
        f->computed[rows->token[i] * K + rows->rank[i]]++;
        write_log(f, " %u.%u", rows->token[i], rows->rank[i]);
    }
    write_log(f, "\n");
    return result(f, OP_EXPERT);
}

static enum mp_status fake_experts(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                   uint32_t count)
{
    struct fake *f = ctx;
    enum mp_status status = MP_OK;

    CHECK(count > 0);
    f->together = count > f->together ? count : f->together;
    for (uint32_t i = 0; i < count && status == MP_OK; i++)
        status = fake_expert(ctx, layer, &work[i]);
    return status;
}

static enum mp_status fake_combine(void *ctx, uint32_t layer, const uint32_t *experts,
                                   const float *weights)
{
    struct fake *f = ctx;

    write_log(f, "combine %u\n", layer);
    for (uint32_t i = 0; i < f->tokens * K; i++) {
        CHECK_EQ(f->computed[i], f->world.shape.slices > 1 ? f->world.shape.slices : 1);
        f->experts[i] = experts[i];
        f->weights[i] = weights[i];
    }
    return result(f, OP_COMBINE);
}

static void fake_routed(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k,
                        const uint32_t *experts, const float *weights)
{
    struct fake *f = ctx;

    CHECK_EQ(tokens, f->tokens);
    CHECK_EQ(k, K);
    CHECK(weights[0] == f->scores[experts[0]] || f->world.counters.invalid_decisions > 0);
    write_log(f, "routed %u\n", layer);
}

static const struct mp_step_ops all_ops = {
    .scores = fake_scores,
    .source_scores = fake_source,
    .shared = fake_shared,
    .combine = fake_combine,
    .routed = fake_routed,
};

static struct fake fake;

/* One more executor, which cannot have expert 1. */
static struct fourth {
    uint32_t begun;
} fourth;

static bool take_fourth(void *ctx, uint32_t layer, uint32_t expert)
{
    CHECK(ctx == &fourth && layer < LAYERS);
    return expert != 1;
}

static enum mp_status begin_fourth(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                   uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        CHECK_EQ(work[i].executor, TEST_EXECUTORS);
    ((struct fourth *)ctx)->begun += count;
    return fake_experts(&fake, layer, work, count);
}

static uint32_t fake_slots = 8, fake_slices = 1;
static const struct mp_costs *fake_costs; /* not NULL: there is a CPU, too */
static const struct mp_step_executor fake_executors[TEST_EXECUTORS + 1] = {
    { .ctx = &fake, .begin = fake_experts },
    { .ctx = &fake, .begin = fake_experts },
    { .ctx = &fake, .begin = fake_experts },
    { .ctx = &fourth, .begin = begin_fourth, .take = take_fourth },
};

static void open_fake(const struct mp_policy_names *names, const struct mp_step_ops *ops)
{
    const struct world_options options = {
        .layers = LAYERS,
        .experts = EXPERTS,
        .top_k = K,
        .slices = fake_slices,
        .slots = fake_slots,
        .deterministic = true,
        .names = *names,
    };
    struct mp_step_config config = { .ops = ops,
                                     .ctx = &fake,
                                     .costs = fake_costs,
                                     .executors = fake_executors,
                                     .clock = mp_clock_monotonic() };

    memset(&fake, 0, sizeof(fake));
    world_open(&options, &fake.world);
    config.pager = fake.world.pager;
    config.policies = &fake.world.policies;
    config.shape = fake.world.shape;
    config.counters = &fake.world.counters;
    CHECK_EQ(mp_step_create(&config, &fake.step), MP_OK);
}

static void close_fake(void)
{
    mp_step_destroy(fake.step);
    world_close(&fake.world);
}

static void set_scores(const float *scores, uint32_t tokens)
{
    fake.tokens = tokens;
    memcpy(fake.scores, scores, tokens * EXPERTS * sizeof(*scores));
    memcpy(fake.source, scores, tokens * EXPERTS * sizeof(*scores));
}

static enum mp_status run_layer(uint32_t layer)
{
    fake.log_used = 0;
    fake.log[0] = '\0';
    memset(fake.computed, 0, sizeof(fake.computed));
    return mp_step_layer(fake.step, layer, fake.tokens);
}

static void layer_is_closed_and_sound(void)
{
    CHECK(mp_pager_check(fake.world.pager));
    for (uint32_t u = 0; u < fake.world.unit_count; u++)
        CHECK_EQ(mp_space_leases(fake.world.space, u), 0);
}

/* token 0: 3 then 1; token 1: 1 then 0; token 2: 3 then 0; expert 2 is not chosen. */
static const float three_tokens[3 * EXPERTS] = {
    0.1f, 0.3f, 0.0f, 0.6f, 0.4f, 0.5f, 0.0f, 0.1f, 0.3f, 0.1f, 0.0f, 0.6f,
};
static const struct mp_policy_names with_gate = { .profile = "gate-lru" };
static const struct mp_policy_names demand_only = { .profile = "lru" };

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

int main(void)
{
    world_prepare();
    RUN(calls_come_in_order_grouped_by_expert);
    RUN(what_the_device_tier_cannot_take_goes_to_the_cpu);
    RUN(each_executor_gets_its_own_work);
    RUN(slices_of_an_expert_stand_together);
    RUN(nobody_guesses_what_cannot_move);
    RUN(what_is_optional_may_be_missing);
    RUN(scores_that_are_not_finite_name_layer_and_token);
    RUN(an_error_of_any_operation_closes_the_layer);
    RUN(numbers_out_of_range_are_refused);
    RUN(the_largest_batch);
    RUN(nonsense_is_replaced_and_counted);
    RUN(predictors_that_wrap_look_into_the_next_step);
    RUN(no_layer_is_ahead_of_itself);
    RUN(substitutes_are_counted_by_token);
    return 0;
}
