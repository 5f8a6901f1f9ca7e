/*
 * The budget never shows in the output: logits of a prompt and 16 further tokens, and the likeliest
 * token of each, are bit-identical to those with everything resident, for 12 budgets from the
 * smallest to all, with and without prefetch, for one and four sequences, with direct and buffered
 * reads, over policies, profiles and threads, for all models of the tests; prompts cut into batches
 * of 1, 5, 7 and 512 tokens, and the first of four sequences also alone.
 *
 * Variants: cpu; cuda-0 to cuda-4, every profile at one of five budgets on a CUDA device, here the
 * driver without one (tests/device/fakecuda), which computes every expert.
 */
#include <fcntl.h>

#include "engine/model/sidecar/llapor.h"
#include "policy/record/decisions.h"
#include "tests/device/fakecuda/client.h"
#include "tests/model/families.h"
#include "tests/model/harness.h"
#include "tests/support/npy.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

#define STEPS 16
#define BUDGETS 12
#define PROFILE_BUDGETS 5

struct run {
    struct npy tokens, lens;
    uint32_t steps;
    float *logits;
    size_t bytes;
};

static void run_once(const struct harness_options *options, const struct run *input, float *logits,
                     struct mp_counters *counters_p)
{
    struct harness h;

    harness_open(options, &h);
    if (harness_run(&h, input->tokens.i32, input->tokens.dims[1], input->lens.i32,
                    options->sequences, input->steps, logits) != MP_OK) {
        fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
    CHECK(mp_pager_check(mp_engine_pager(h.engine)));
    *counters_p = *mp_engine_counters(h.engine);
    harness_close(&h);
    if (options->backend != NULL)
        check_nothing_lives();
}

/* Sequences and context of `options` become those of the batch. */
static void open_input(const char *expect, const char *batch, uint32_t steps, uint32_t vocab,
                       struct run *run, struct harness_options *options)
{
    char path[512];

    run->steps = steps;
    snprintf(path, sizeof(path), "%s/%s_tokens.npy", expect, batch);
    CHECK(npy_read(path, &run->tokens));
    snprintf(path, sizeof(path), "%s/%s_lens.npy", expect, batch);
    CHECK(npy_read(path, &run->lens));
    run->bytes = run->tokens.dims[0] * (steps + 1) * vocab * sizeof(float);
    run->logits = calloc(1, run->bytes);
    CHECK(run->logits != NULL);
    options->sequences = (uint32_t)run->tokens.dims[0];
    options->ctx = (uint32_t)run->tokens.dims[1];
}

static void close_input(struct run *run)
{
    npy_free(&run->tokens);
    npy_free(&run->lens);
    free(run->logits);
}

static struct mp_space_plan plan_of(const char *model, uint32_t *vocab_p)
{
    const struct harness_options options = harness_defaults(model);

    return harness_plan(&options, vocab_p);
}

/* Bits of every logit, and what greedy sampling would choose. */
static void check_same(const float *got, const struct run *run, uint32_t vocab, const char *what,
                       uint64_t budget_bytes)
{
    const size_t rows = run->bytes / sizeof(float) / vocab;

    for (size_t r = 0; r < rows; r++) {
        const float *a = got + r * vocab, *b = run->logits + r * vocab;
        uint32_t best_a = 0, best_b = 0;

        for (uint32_t i = 1; i < vocab; i++) {
            best_a = a[i] > a[best_a] ? i : best_a;
            best_b = b[i] > b[best_b] ? i : best_b;
        }
        if (best_a == best_b && memcmp(a, b, vocab * sizeof(float)) == 0)
            continue;
        fprintf(stderr, "row %zu differs at budget %llu with %s: token %u, expected %u\n", r,
                (unsigned long long)budget_bytes, what, best_a, best_b);
        exit(1);
    }
}

/* What a batch may hold: less than the prompts, but a token of each sequence. */
static uint32_t batch_of(uint32_t i, uint32_t sequences)
{
    static const uint32_t tokens[] = { 512, 1, 5, 7 };
    const uint32_t max = tokens[i % MP_ARRAY_LEN(tokens)];

    return max > sequences ? max : sequences;
}

/* The first sequence has the logits that it has among others. */
static void check_alone(struct harness_options options, const struct run *run, uint32_t vocab)
{
    struct run alone = *run;
    struct mp_counters counters;
    float *got = calloc(1, run->bytes);

    CHECK(got != NULL);
    alone.bytes /= options.sequences;
    options.sequences = 1;
    run_once(&options, &alone, got, &counters);
    check_same(got, &alone, vocab, "the first sequence alone", options.budget_bytes);
    free(got);
}

static void sweep(const char *model, const char *expect, const char *batch, const char *kernels)
{
    static const char *const profiles[] = { "lru", "gate-lru" };
    uint64_t issued[2] = { 0, 0 };
    uint32_t vocab;
    const struct mp_space_plan plan = plan_of(model, &vocab);
    struct harness_options options = harness_defaults(model);
    struct mp_counters counters;
    struct run run;
    float *got;

    options.kernels = kernels;
    open_input(expect, batch, STEPS, vocab, &run, &options);
    got = calloc(1, run.bytes);
    run_once(&options, &run, run.logits, &counters);
    CHECK_EQ(counters.evictions, 0);

    for (uint32_t i = 0; i < BUDGETS; i++) {
        for (uint32_t p = 0; p < 2; p++) {
            options.budget_bytes =
                plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) * i / (BUDGETS - 1);
            options.policies.profile = profiles[p];
            options.threads = 1 + i % 2;
            options.tokens_max = batch_of(i + p, options.sequences);
            options.no_uring = i % 3 == 2;
            options.io_mode = i % 2 ? MP_IO_BUFFERED : MP_IO_AUTO;
            memset(got, 0, run.bytes);
            run_once(&options, &run, got, &counters);
            check_same(got, &run, vocab, profiles[p], options.budget_bytes);
            issued[p] += counters.prefetch_issued;
            CHECK(counters.resident_peak_bytes <= options.budget_bytes);
            if (i == 0)
                CHECK(counters.evictions > 0);
        }
    }
    /* Prefetch was really off, and really on. */
    CHECK_EQ(issued[0], 0);
    CHECK(issued[1] > 0);
    check_alone(options, &run, vocab);
    free(got);
    close_input(&run);
}

static void bits_do_not_depend_on_the_budget(void)
{
#define X(name) name,
    static const char *const fixtures[] = { "mixtral-tiny", "qwen2moe-tiny", "qwen3moe-tiny",
                                            "qwen3moe-tiny-nonorm", FAMILY_FIXTURES(X) };
#undef X

    for (size_t i = 0; i < MP_ARRAY_LEN(fixtures); i++) {
        char model[256], expect[300];

        snprintf(model, sizeof(model), "tests/data/models/%s", fixtures[i]);
        snprintf(expect, sizeof(expect), "%s/expect", model);
        sweep(model, expect, "b1", NULL);
        sweep(model, expect, "b4", NULL);
    }
    sweep("models/tiny-moe", "tests/data/models/tiny-moe-expect", "b1", NULL);
    sweep("models/tiny-moe", "tests/data/models/tiny-moe-expect", "b4", NULL);
}

/* Classes native and amx round activations, once and always to the same. */
static void bits_of_other_classes_do_not_depend_on_the_budget(void)
{
    static const enum mp_math classes[] = { MP_MATH_NATIVE, MP_MATH_AMX };

    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        const struct mp_kernels *k = mp_kernels_of(classes[i]);

        if (k == NULL) {
            fprintf(stderr, "  %s: not on this CPU\n", mp_math_name(classes[i]));
            continue;
        }
        sweep("models/tiny-moe", "tests/data/models/tiny-moe-expect", "b1", k->name);
        sweep("models/tiny-moe", "tests/data/models/tiny-moe-expect", "b4", k->name);
    }
}

/* Every evict, partition, predict and prefetch policy at a tight budget. */
static void bits_do_not_depend_on_the_policies(void)
{
    static const enum mp_policy_kind slots[] = { MP_POLICY_EVICT, MP_POLICY_PARTITION,
                                                 MP_POLICY_PREDICT, MP_POLICY_PREFETCH,
                                                 MP_POLICY_ADMIT };
    const char *model = "models/tiny-moe", *expect = "tests/data/models/tiny-moe-expect";
    uint32_t vocab;
    const struct mp_space_plan plan = plan_of(model, &vocab);
    struct harness_options options = harness_defaults(model);
    const struct mp_policy_info *info;
    struct mp_calibration_data *calibration = harness_calibration(model);
    struct mp_counters counters;
    struct run run;
    float *got;

    open_input(expect, "b4", STEPS, vocab, &run, &options);
    got = calloc(1, run.bytes);
    run_once(&options, &run, run.logits, &counters);

    options.budget_bytes = plan.full_bytes / 5;
    options.calibration = calibration;
    for (size_t s = 0; s < sizeof(slots) / sizeof(slots[0]); s++) {
        for (size_t i = 0; (info = mp_policy_builtin(slots[s], i)) != NULL; i++) {
            options.policies = (struct mp_policy_names){ 0 };
            options.policies.policy[slots[s]] = info->name;
            options.deterministic = i % 2;
            memset(got, 0, run.bytes);
            run_once(&options, &run, got, &counters);
            check_same(got, &run, vocab, info->name, options.budget_bytes);
            CHECK_EQ(counters.invalid_decisions, 0);
        }
    }
    free(got);
    close_input(&run);
    mp_calibration_destroy(calibration);
}

/* The profile with the model's own routing; *issued_p grows by the loads that were not waited for.
 */
static void run_profile(const struct mp_profile *profile, struct harness_options *options,
                        const struct run *run, uint32_t vocab, uint64_t *issued_p)
{
    const bool device = options->backend != NULL;
    struct mp_counters counters;
    float *got = calloc(1, run->bytes);

    CHECK(got != NULL);
    options->policies = (struct mp_policy_names){ .profile = profile->name };
    options->policies.policy[MP_POLICY_ROUTE] = "exact";
    if (device)
        options->policies.policy[MP_POLICY_ASSIGN] = "gpu-only";
    run_once(options, run, got, &counters);
    check_same(got, run, vocab, profile->name, options->budget_bytes);
    CHECK_EQ(counters.invalid_decisions, 0);
    CHECK_EQ(counters.route_substituted, 0);
    CHECK_EQ(counters.elsewhere, 0);
    CHECK(counters.loads > 0);
    CHECK(counters.resident_peak_bytes <= options->budget_bytes);
    *issued_p += counters.prefetch_issued;
    free(got);
}

/* What profiles are run on: `count` of the five budgets from the first one on, where the bits are
 * those of `lru` with everything resident. */
struct cell {
    const char *model, *expect, *batch;
    const struct mp_llapor *llapor;
    uint32_t steps, first, count;
};

static void sweep_profiles(const struct cell *cell, struct harness_options options)
{
    struct mp_calibration_data *calibration = harness_calibration(cell->model);
    struct mp_space_plan plan;
    struct mp_counters counters;
    struct run run;
    uint32_t vocab;

    options.policies.profile = "lru";
    plan = harness_plan(&options, &vocab);
    open_input(cell->expect, cell->batch, cell->steps, vocab, &run, &options);
    run_once(&options, &run, run.logits, &counters);
    CHECK_EQ(counters.evictions, 0);
    options.graphs = options.backend != NULL; /* the other one queued each launch */
    options.calibration = calibration;
    options.llapor = cell->llapor;
    for (const struct mp_profile *p = mp_profiles; p->name != NULL; p++) {
        uint64_t issued = 0;

        for (uint32_t i = cell->first; i < cell->first + cell->count; i++) {
            options.budget_bytes =
                plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) * i / PROFILE_BUDGETS;
            run_profile(p, &options, &run, vocab, &issued);
        }
        if (!strcmp(p->name, "lru"))
            CHECK_EQ(issued, 0);
        if (options.backend == NULL && (!strcmp(p->name, "smoe") || !strcmp(p->name, "dali")))
            CHECK(issued > 0); /* others ask the clock, too */
    }
    close_input(&run);
    mp_calibration_destroy(calibration);
}

static void bits_do_not_depend_on_the_profile(void)
{
    /* The predictors of tests/data/llapor: random ones, of the shapes of this model. */
    const struct mp_model_id id = {
        .layers = 4, .experts = 8, .top_k = 2, .hidden = 40, .router_hash = 0x0123456789abcdef
    };
    struct cell cell = { .model = "tests/data/models/qwen3moe-tiny",
                         .expect = "tests/data/models/qwen3moe-tiny/expect",
                         .batch = "b4",
                         .steps = STEPS,
                         .count = PROFILE_BUDGETS };
    struct mp_llapor *llapor;

    CHECK_EQ(mp_llapor_load(AT_FDCWD, "tests/data/llapor/llapor.safetensors", &id, &llapor), MP_OK);
    cell.llapor = llapor;
    sweep_profiles(&cell, harness_defaults(cell.model));
    mp_llapor_destroy(llapor);
    cell.llapor = NULL;
    cell.model = "models/tiny-moe";
    cell.expect = "tests/data/models/tiny-moe-expect";
    sweep_profiles(&cell, harness_defaults(cell.model));
}

static void bits_do_not_depend_on_the_profile_on_a_device(uint32_t budget)
{
    const struct cell cell = { .model = "models/tiny-moe",
                               .expect = "tests/data/models/tiny-moe-expect",
                               .batch = "b1",
                               .steps = 3,
                               .first = budget,
                               .count = 1 };
    struct harness_options options = harness_defaults(cell.model);

    CHECK(budget < PROFILE_BUDGETS);
    find_fake();
    options.backend = "cuda";
    options.threads = 2;
    sweep_profiles(&cell, options);
}

static void budget_below_the_smallest_is_refused_with_both_numbers(void)
{
    uint32_t vocab;
    const struct mp_space_plan plan = plan_of("models/tiny-moe", &vocab);
    struct harness_options options = harness_defaults("models/tiny-moe");
    struct harness h;

    options.budget_bytes = plan.smallest_bytes - 1;
    CHECK_EQ(harness_try_open(&options, &h), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_BUDGET_SMALL");
}

/* Between runs of one engine, down and up again; its decision log has it all. */
static void budgets_that_change_show_in_the_log_only(void)
{
    const char *model = "models/tiny-moe", *expect = "tests/data/models/tiny-moe-expect";
    uint32_t vocab;
    const struct mp_space_plan plan = plan_of(model, &vocab);
    struct harness_options options = harness_defaults(model);
    struct mp_decisions_report report;
    struct mp_counters counters;
    struct run run;
    struct harness h;
    char log[4200];
    float *got;

    snprintf(log, sizeof(log), "%s/log", test_tmpdir());
    open_input(expect, "b4", STEPS, vocab, &run, &options);
    got = calloc(1, run.bytes);
    options.policies.profile = "lru";
    run_once(&options, &run, run.logits, &counters);

    options.policies.policy[MP_POLICY_PARTITION] = "uniform";
    options.decision_log = log;
    harness_open(&options, &h);
    for (uint32_t i = 0; i <= 6; i++) {
        const uint32_t thirds = i < 3 ? 3 - i : i - 3;
        const uint64_t budget =
            plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) * thirds / 3;

        CHECK_EQ(mp_engine_set_budget(h.engine, budget), MP_OK);
        memset(got, 0, run.bytes);
        CHECK_EQ(harness_run(&h, run.tokens.i32, run.tokens.dims[1], run.lens.i32,
                             options.sequences, STEPS, got),
                 MP_OK);
        check_same(got, &run, vocab, "a budget that changed", budget);
    }
    CHECK_EQ(mp_engine_close_log(h.engine), MP_OK);
    harness_close(&h);
    CHECK_EQ(mp_decisions_replay(log, NULL, &report), MP_OK);
    CHECK(report.results > 1000 && report.calls_of[MP_POLICY_PARTITION] >= 7);
    free(got);
    close_input(&run);
}

int main(int argc, char **argv)
{
    CHECK_EQ(argc, 2);
    if (strncmp(argv[1], "cuda-", 5) == 0) {
        bits_do_not_depend_on_the_profile_on_a_device((uint32_t)atoi(argv[1] + 5));
        return 0;
    }
    RUN(bits_do_not_depend_on_the_budget);
    RUN(bits_of_other_classes_do_not_depend_on_the_budget);
    RUN(bits_do_not_depend_on_the_policies);
    RUN(bits_do_not_depend_on_the_profile);
    RUN(budgets_that_change_show_in_the_log_only);
    RUN(budget_below_the_smallest_is_refused_with_both_numbers);
    return 0;
}
