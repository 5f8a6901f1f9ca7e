/*
 * The budget never shows in the output: logits of a prompt and 16 further tokens are bit-identical
 * to those with everything resident, for 12 budgets from the smallest to all, with and without
 * prefetch, for one and four sequences, with direct and buffered reads, over policies and threads.
 */
#include "tests/engine/harness.h"
#include "tests/npy.h"
#include "tests/test.h"
#include "vmm/base/error.h"

#define STEPS 16
#define BUDGETS 12

struct run {
    struct npy tokens, lens;
    float *logits;
    size_t bytes;
};

static void run_once(const struct harness_options *options, const struct run *input, float *logits,
                     struct mp_counters *counters_p)
{
    struct harness h;

    harness_open(options, &h);
    if (harness_run(&h, input->tokens.i32, input->tokens.dims[1], input->lens.i32,
                    options->sequences, STEPS, logits) != MP_OK) {
        fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
    CHECK(mp_pager_check(mp_engine_pager(h.engine)));
    *counters_p = *mp_engine_counters(h.engine);
    harness_close(&h);
}

static void open_input(const char *expect, const char *batch, uint32_t vocab, struct run *run)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s_tokens.npy", expect, batch);
    CHECK(npy_read(path, &run->tokens));
    snprintf(path, sizeof(path), "%s/%s_lens.npy", expect, batch);
    CHECK(npy_read(path, &run->lens));
    run->bytes = run->tokens.dims[0] * (STEPS + 1) * vocab * sizeof(float);
    run->logits = calloc(1, run->bytes);
    CHECK(run->logits != NULL);
}

static void close_input(struct run *run)
{
    npy_free(&run->tokens);
    npy_free(&run->lens);
    free(run->logits);
}

static struct mp_space_plan plan_of(const char *model)
{
    struct harness_options options = harness_defaults(model);
    struct mp_space_plan plan;
    struct harness h;

    harness_open(&options, &h);
    mp_engine_plan(h.engine, &plan);
    harness_close(&h);
    return plan;
}

static void sweep(const char *model, const char *expect, const char *batch, uint32_t vocab)
{
    static const char *const profiles[] = { "lru", "gate-lru" };
    const struct mp_space_plan plan = plan_of(model);
    struct harness_options options = harness_defaults(model);
    struct mp_counters counters;
    struct run run;
    float *got;

    open_input(expect, batch, vocab, &run);
    got = calloc(1, run.bytes);
    options.sequences = (uint32_t)run.tokens.dims[0];
    options.ctx = (uint32_t)run.tokens.dims[1];
    run_once(&options, &run, run.logits, &counters);
    CHECK_EQ(counters.evictions, 0);

    for (uint32_t i = 0; i < BUDGETS; i++) {
        for (uint32_t p = 0; p < 2; p++) {
            options.budget_bytes =
                plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) * i / (BUDGETS - 1);
            options.policies.profile = profiles[p];
            options.threads = 1 + i % 2;
            options.no_uring = i % 3 == 2;
            options.io_mode = i % 2 ? MP_IO_BUFFERED : MP_IO_AUTO;
            memset(got, 0, run.bytes);
            run_once(&options, &run, got, &counters);
            if (memcmp(got, run.logits, run.bytes) != 0) {
                fprintf(stderr, "%s %s: bits differ at budget %llu with profile %s\n", model, batch,
                        (unsigned long long)options.budget_bytes, profiles[p]);
                exit(1);
            }
            CHECK(counters.resident_peak_bytes <= options.budget_bytes);
            if (i == 0)
                CHECK(counters.evictions > 0);
        }
    }
    free(got);
    close_input(&run);
}

static void bits_do_not_depend_on_the_budget(void)
{
    sweep("tests/data/models/qwen2moe-tiny", "tests/data/models/qwen2moe-tiny/expect", "b4", 320);
    sweep("models/tiny-moe", "tests/data/models/tiny-moe-expect", "b1", 2048);
    sweep("models/tiny-moe", "tests/data/models/tiny-moe-expect", "b4", 2048);
}

/* Every evict, partition, predict and prefetch policy at a tight budget. */
static void bits_do_not_depend_on_the_policies(void)
{
    static const enum mp_policy_slot slots[] = { MP_SLOT_EVICT, MP_SLOT_PARTITION, MP_SLOT_PREDICT,
                                                 MP_SLOT_PREFETCH, MP_SLOT_ADMIT };
    const char *model = "models/tiny-moe", *expect = "tests/data/models/tiny-moe-expect";
    const struct mp_space_plan plan = plan_of(model);
    struct harness_options options = harness_defaults(model);
    const struct mp_policy_info *info;
    struct mp_counters counters;
    struct run run;
    float *got;

    open_input(expect, "b4", 2048, &run);
    got = calloc(1, run.bytes);
    options.sequences = (uint32_t)run.tokens.dims[0];
    options.ctx = (uint32_t)run.tokens.dims[1];
    run_once(&options, &run, run.logits, &counters);

    options.budget_bytes = plan.full_bytes / 5;
    for (size_t s = 0; s < sizeof(slots) / sizeof(slots[0]); s++) {
        for (size_t i = 0; (info = mp_policy_builtin(slots[s], i)) != NULL; i++) {
            options.policies = (struct mp_policy_names){ 0 };
            options.policies.policy[slots[s]] = info->name;
            options.deterministic = i % 2;
            memset(got, 0, run.bytes);
            run_once(&options, &run, got, &counters);
            if (memcmp(got, run.logits, run.bytes) != 0) {
                fprintf(stderr, "bits differ with %s %s\n", mp_policy_slot_name(slots[s]),
                        info->name);
                exit(1);
            }
            CHECK_EQ(counters.policy_strikes, 0);
        }
    }
    free(got);
    close_input(&run);
}

static void budget_below_the_smallest_is_refused_with_both_numbers(void)
{
    const struct mp_space_plan plan = plan_of("models/tiny-moe");
    struct harness_options options = harness_defaults("models/tiny-moe");
    struct harness h;

    options.budget_bytes = plan.smallest_bytes - 1;
    CHECK_EQ(harness_try_open(&options, &h), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_BUDGET_SMALL");
}

int main(void)
{
    RUN(bits_do_not_depend_on_the_budget);
    RUN(bits_do_not_depend_on_the_policies);
    RUN(budget_below_the_smallest_is_refused_with_both_numbers);
    return 0;
}
