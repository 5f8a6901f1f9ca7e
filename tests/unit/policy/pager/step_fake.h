#ifndef MP_TESTS_STEP_FAKE_H
#define MP_TESTS_STEP_FAKE_H

/* Operations of a layer that write down how they were called, over a real pager. */
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

enum op { OP_NONE, OP_SCORES, OP_SOURCE, OP_SHARED, OP_EXPERT, OP_COMBINE, OP_COUNT, OP_ENDED };

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

static inline void write_log(struct fake *f, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    f->log_used +=
        (size_t)vsnprintf(f->log + f->log_used, sizeof(f->log) - f->log_used, format, args);
    va_end(args);
    CHECK(f->log_used < sizeof(f->log));
}

static inline enum mp_status result(struct fake *f, enum op op)
{
    if (f->fail != op || f->fail_after-- > 0)
        return MP_OK;
    f->fail = OP_NONE;
    return mp_fail(MP_ERR_DEVICE, "E_TEST", "operation %d fails", op);
}

static inline enum mp_status fake_scores(void *ctx, uint32_t layer, float *scores)
{
    struct fake *f = ctx;

    write_log(f, "scores %u\n", layer);
    memcpy(scores, f->scores, f->tokens * EXPERTS * sizeof(*scores));
    return result(f, OP_SCORES);
}

static inline enum mp_status fake_source(void *ctx, uint32_t layer, uint32_t target_layer,
                                         enum mp_score_source source, float *scores)
{
    struct fake *f = ctx;

    CHECK_EQ(source, MP_SCORES_GATE);
    write_log(f, "source %u of %u\n", layer, target_layer);
    memcpy(scores, f->source, f->tokens * EXPERTS * sizeof(*scores));
    return result(f, OP_SOURCE);
}

static inline enum mp_status fake_shared(void *ctx, uint32_t layer)
{
    write_log(ctx, "shared %u\n", layer);
    return result(ctx, OP_SHARED);
}

static inline enum mp_status fake_expert(struct fake *f, uint32_t layer,
                                         const struct mp_expert_work *work)
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

static inline enum mp_status fake_experts(void *ctx, uint32_t layer,
                                          const struct mp_expert_work *work, uint32_t count)
{
    struct fake *f = ctx;
    enum mp_status status = MP_OK;

    CHECK(count > 0);
    f->together = count > f->together ? count : f->together;
    for (uint32_t i = 0; i < count && status == MP_OK; i++)
        status = fake_expert(ctx, layer, &work[i]);
    return status;
}

static inline enum mp_status fake_combine(void *ctx, uint32_t layer, const uint32_t *experts,
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

static inline void fake_routed(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k,
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

static inline bool take_fourth(void *ctx, uint32_t layer, uint32_t expert)
{
    CHECK(ctx == &fourth && layer < LAYERS);
    return expert != 1;
}

static inline enum mp_status begin_fourth(void *ctx, uint32_t layer,
                                          const struct mp_expert_work *work, uint32_t count)
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

static const struct mp_step_executor *fake_table = fake_executors;

static inline void open_fake(const struct mp_policy_names *names, const struct mp_step_ops *ops)
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
                                     .executors = fake_table,
                                     .clock = mp_clock_monotonic() };

    memset(&fake, 0, sizeof(fake));
    world_open(&options, &fake.world);
    config.pager = fake.world.pager;
    config.policies = &fake.world.policies;
    config.shape = fake.world.shape;
    config.counters = &fake.world.counters;
    CHECK_EQ(mp_step_create(&config, &fake.step), MP_OK);
}

static inline void close_fake(void)
{
    mp_step_destroy(fake.step);
    world_close(&fake.world);
}

static inline void set_scores(const float *scores, uint32_t tokens)
{
    fake.tokens = tokens;
    memcpy(fake.scores, scores, tokens * EXPERTS * sizeof(*scores));
    memcpy(fake.source, scores, tokens * EXPERTS * sizeof(*scores));
}

static inline enum mp_status run_layer(uint32_t layer)
{
    fake.log_used = 0;
    fake.log[0] = '\0';
    memset(fake.computed, 0, sizeof(fake.computed));
    return mp_step_layer(fake.step, layer, fake.tokens);
}

static inline void layer_is_closed_and_sound(void)
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

#endif
