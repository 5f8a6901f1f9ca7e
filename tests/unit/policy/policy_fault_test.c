/*
 * Every call that can fail below the pager, the step and the policies is made to fail once, always,
 * and always but twice, at every place in the code that makes it: each built-in created, a world
 * opened, three layers run. After each failure: a status with a text, the pager sound, nothing
 * leaked (the address sanitizer looks), and what failed works when it is tried again.
 */
#include <inttypes.h>

#include "policy/pager/step.h"
#include "tests/support/executors.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/log_guard.h"
#include "tests/unit/policy/calibration.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define LAYERS 3
#define EXPERTS 8
#define K 2
#define TOKENS 4

struct run {
    struct world world;
    struct mp_step *step;
    struct mp_step_executor executor;
    uint64_t sum; /* of what was computed: bytes and rows */
};

static unsigned failed_runs, clean_runs;

static enum mp_status scores(void *ctx, uint32_t layer, float *out)
{
    (void)ctx;
    for (uint32_t i = 0; i < TOKENS * EXPERTS; i++)
        out[i] = (float)((i * 37 + layer * 11) % 23);
    return MP_OK;
}

static enum mp_status source_scores(void *ctx, uint32_t layer, uint32_t target_layer,
                                    enum mp_score_source source, float *out)
{
    (void)layer;
    (void)source;
    return scores(ctx, target_layer, out);
}

static enum mp_status experts(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                              uint32_t count)
{
    struct run *run = ctx;

    for (; count > 0; count--, work++) {
        const struct mp_rows *rows = &work->rows;

        CHECK(world_pieces_are_right(&run->world, layer * EXPERTS + work->expert, work->pieces));
        for (uint32_t i = 0; i < rows->count; i++)
            run->sum += (rows->token[i] * K + rows->rank[i] + 1) * (work->expert + 1) * (layer + 1);
    }
    return MP_OK;
}

static enum mp_status combine(void *ctx, uint32_t layer, const uint32_t *experts,
                              const float *weights)
{
    (void)ctx;
    (void)layer;
    (void)experts;
    (void)weights;
    return MP_OK;
}

static const struct mp_step_ops step_ops = {
    .scores = scores,
    .source_scores = source_scores,
    .combine = combine,
};

static enum mp_status create_every_builtin(void)
{
    const struct mp_shape shape = {
        .layers = LAYERS,
        .experts = EXPERTS,
        .top_k = K,
        .tokens_max = TOKENS,
        .slots = 6,
        .calibration = test_calibration(LAYERS, EXPERTS),
    };

    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        const struct mp_policy_info *info;

        for (size_t i = 0; (info = mp_policy_builtin(kind, i)) != NULL; i++) {
            struct mp_profile chosen = mp_profiles[0];
            struct mp_policies set;
            enum mp_status status;

            chosen.policy[kind] = info->name;
            status = mp_policies_create(&chosen, &shape, NULL, &set);
            if (status != MP_OK)
                return status;
            mp_policies_destroy(&set);
        }
    }
    return MP_OK;
}

static enum mp_status open_run(struct run *run)
{
    const struct world_options options = {
        .layers = LAYERS, .experts = EXPERTS, .top_k = K, .slots = 6, .names.profile = "gate-lru"
    };
    struct mp_step_config config = {
        .ops = &step_ops, .ctx = run, .executors = &run->executor, .clock = mp_clock_monotonic()
    };
    enum mp_status status = world_try_open(&options, &run->world);

    run->executor = (struct mp_step_executor){ .ctx = run, .begin = experts };
    if (status != MP_OK)
        return status;
    config.pager = run->world.pager;
    config.policies = &run->world.policies;
    config.shape = run->world.shape;
    config.counters = &run->world.counters;
    status = mp_step_create(&config, &run->step);
    if (status != MP_OK)
        world_close(&run->world);
    return status;
}

static enum mp_status run_layers(struct run *run)
{
    enum mp_status status = MP_OK;

    run->sum = 0;
    for (uint32_t l = 0; l < LAYERS && status == MP_OK; l++)
        status = mp_step_layer(run->step, l, TOKENS);
    return status;
}

static void check_failure(enum mp_status status)
{
    if (status == MP_OK)
        return;
    failed_runs++;
    CHECK_EQ(mp_error_last()->status, status);
    CHECK(mp_error_last()->text[0] != '\0');
}

static void once(const struct fault_plan *plan, void *ctx)
{
    uint64_t *expected = ctx, hits;
    struct run run = { .step = NULL };
    enum mp_status status;
    bool opened;

    mp_error_clear();
    fault_begin(plan);
    status = create_every_builtin();
    if (status == MP_OK)
        status = open_run(&run);
    opened = status == MP_OK;
    if (opened)
        status = run_layers(&run);
    hits = fault_end();
    check_failure(status);
    clean_runs += hits == 0;
    CHECK(hits > 0 || status == MP_OK);

    if (opened) {
        /* What a failure left behind serves the next try. */
        CHECK(mp_pager_check(run.world.pager));
        for (uint32_t u = 0; u < run.world.unit_count; u++)
            CHECK_EQ(mp_space_leases(run.world.space, u), 0);
    } else {
        CHECK_EQ(create_every_builtin(), MP_OK);
        CHECK_EQ(open_run(&run), MP_OK);
    }
    CHECK_EQ(run_layers(&run), MP_OK);
    CHECK_EQ(run_layers(&run), MP_OK);
    CHECK(*expected == 0 || run.sum == *expected);
    *expected = run.sum;
    mp_step_destroy(run.step);
    world_close(&run.world);
    CHECK(run.world.counters.prefetch_unused_bytes <= run.world.counters.prefetch_bytes);
}

/* Instances are made by one function, so that their call site is one: each of its calls fails here.
 */
static void every_allocation_of_the_builtins_fails_once(void)
{
    uint64_t n = 0;

    for (;; n++) {
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = create_every_builtin();
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            break;
        }
        CHECK_EQ(status, MP_ERR_NO_MEMORY);
    }
    fprintf(stderr, "  %" PRIu64 " allocations of the built-ins\n", n);
    CHECK(n >= 7 * 45); /* of a set of seven, as often as there are built-ins */
}

int main(void)
{
    uint64_t expected = 0;
    uint32_t runs;

    mp_test_drop_log(); /* injected failures are warned of, rightly */
    world_prepare();
    every_allocation_of_the_builtins_fails_once();
    runs = fault_sweep(FAULT_ANY, once, &expected);
    fprintf(stderr, "  %u call sites, %u of them for memory; %u runs, %u of them failed\n",
            fault_sites_failed(FAULT_ANY),
            fault_sites_failed(FAULT_BIT(malloc) | FAULT_BIT(calloc) | FAULT_BIT(realloc)), runs,
            failed_runs);
    CHECK(fault_sites_failed(FAULT_BIT(malloc) | FAULT_BIT(calloc)) >= 15);
    CHECK(failed_runs > runs / 2);
    return 0;
}
