/*
 * The engine on a CUDA device, here the driver without one (tests/device/fakecuda): graphs, also
 * where there are none, slices, costs, timing and sampling do not show in the output; and the
 * driver saw no law broken. Budgets, addressings and residencies are cuda_laws_test.c's.
 *
 * The first argument says how operations are timed; see fakecuda.h.
 */
#include "engine/forward/cuda/device.h"
#include "engine/session/generate.h"
#include "tests/model/harness.h"
#include "tests/model/repack_check.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/executors.h"
#include "tests/support/npy.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define STEPS 6
#define MODEL "tests/data/models/mixtral-tiny"
#define EXPECT MODEL "/expect"

static struct npy tokens, lens;
static uint32_t vocab;
static size_t logits_bytes;

static void read_inputs(void)
{
    CHECK(npy_read(EXPECT "/b4_tokens.npy", &tokens));
    CHECK(npy_read(EXPECT "/b4_lens.npy", &lens));
}

static struct harness_options on_device(void)
{
    struct harness_options options = harness_defaults(MODEL);

    options.backend = "cuda";
    options.sequences = (uint32_t)tokens.dims[0];
    options.ctx = (uint32_t)tokens.dims[1];
    options.policies.profile = "lru";
    return options;
}

/* What a run reports besides its logits. */
struct outcome {
    struct mp_counters counters;
    struct mp_device_graph_counts graphs;
    struct mp_space_plan plan;
};

/* Every expert's executor by a rule that looks at nothing else. */
static void plan_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                        uint32_t *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = ((facts->experts[i] + facts->layer) % facts->costs->executor_count);
}

static void run(const struct harness_options *options, bool planned, float *logits,
                struct outcome *outcome)
{
    struct mp_assign_ops plan;
    struct harness h;

    harness_open(options, &h);
    if (planned) {
        plan = *h.engine->policies.assign_ops;
        plan.assign = plan_assign;
        h.engine->policies.assign_ops = &plan;
    }
    vocab = h.model.vocab;
    logits_bytes = tokens.dims[0] * (STEPS + 1) * vocab * sizeof(float);
    if (harness_run(&h, tokens.i32, tokens.dims[1], lens.i32, options->sequences, STEPS, logits) !=
        MP_OK) {
        fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
    CHECK(mp_pager_check(mp_engine_pager(h.engine)));
    outcome->counters = *mp_engine_counters(h.engine);
    outcome->graphs = mp_device_graphs_counted(h.engine->device);
    mp_engine_plan(h.engine, &outcome->plan);
    harness_close(&h);
    check_nothing_lives();
}

static float *new_logits(void)
{
    float *logits = calloc(tokens.dims[0] * (STEPS + 1) * 4096, sizeof(float));

    CHECK(logits != NULL);
    return logits;
}

static void check_same(const float *got, const float *want, const char *what)
{
    for (size_t i = 0; i < logits_bytes / sizeof(float); i++) {
        if (memcmp(&got[i], &want[i], sizeof(float)) == 0)
            continue;
        fprintf(stderr, "%s: logit %zu is %a, expected %a\n", what, i, (double)got[i],
                (double)want[i]);
        exit(1);
    }
}

/* How operations are timed; see fakecuda.h. */
struct timing {
    uint64_t seed;
    unsigned lazy_ms;
};
static struct timing started; /* by the test's argument */
static const struct timing timings[] = { { 0, 0 }, { 7, 2 }, { 20, 0 }, { 0, 1 } };

static struct mp_costs some_costs(void)
{
    return (struct mp_costs){ TEST_THREE_EXECUTORS,
                              .load_ns = 4000,
                              .executors[TEST_CPU].fixed_ns = 1000,
                              .executors[TEST_CPU].token_ns = 300,
                              .executors[TEST_DEVICE].fixed_ns = 500,
                              .executors[TEST_DEVICE].token_ns = 100,
                              .executors[TEST_IN_PLACE].fixed_ns = 3000,
                              .executors[TEST_IN_PLACE].token_ns = 500,
                              .executors[TEST_CPU].handoff_ns = 200 };
}

/* With --deterministic bits and decisions are a function of input and settings, whatever policy
 * says who computes, wherever experts are, and whenever something ends. */
static void deterministic_hybrid_runs_do_not_depend_on_timing(void)
{
    static const char *const assigns[] = { "cost", "threshold", "greedy", "resident" };
    struct harness_options options = on_device();
    float *want = new_logits(), *got = new_logits();
    struct outcome all, first, outcome;

    options.deterministic = true;
    options.costs = some_costs();
    options.policies.profile = "gate-lru";
    run(&options, false, want, &all);
    options.budget_bytes =
        all.plan.smallest_bytes + (all.plan.full_bytes - all.plan.smallest_bytes) / 3;
    for (unsigned i = 0; i < 8; i++) {
        options.policies.policy[MP_POLICY_ASSIGN] = assigns[i % 4];
        options.policies.policy[MP_POLICY_PREDICT] = i & 1 ? "partial" : NULL;
        options.host_budget_bytes = i >= 4 ? all.plan.host_bytes * 6 / 10 : UINT64_MAX;
        for (unsigned t = 0; t < MP_ARRAY_LEN(timings); t++) {
            fake_api.timing(timings[t].seed, timings[t].lazy_ms);
            run(&options, false, t == 0 ? want : got, t == 0 ? &first : &outcome);
            if (t == 0)
                continue;
            check_same(got, want, assigns[i % 4]);
            CHECK_EQ(outcome.counters.elsewhere, first.counters.elsewhere);
            CHECK_EQ(outcome.counters.loads, first.counters.loads);
            CHECK_EQ(outcome.counters.prefetch_issued, first.counters.prefetch_issued);
            CHECK_EQ(outcome.counters.evictions, first.counters.evictions);
        }
        CHECK(first.counters.elsewhere > 0);
    }
    fake_api.timing(started.seed, started.lazy_ms);
    free(want);
    free(got);
}

/* What the host tier does not hold is loaded: no executor but the device gets it. */
static void what_the_host_tier_lacks_goes_to_the_device(void)
{
    struct harness_options options = on_device();
    float *want = new_logits(), *got = new_logits();
    struct outcome outcome;

    options.graphs = false;
    run(&options, true, want, &outcome);
    options.host_budget_bytes = outcome.plan.host_bytes * 7 / 10;
    options.budget_bytes = outcome.plan.full_bytes / 2;
    run(&options, true, got, &outcome);
    CHECK(outcome.counters.elsewhere > 0 && outcome.counters.loads > 0);
    for (size_t i = 0; i < logits_bytes / sizeof(float); i++)
        CHECK(got[i] - want[i] < 1e-3f && want[i] - got[i] < 1e-3f);
    free(want);
    free(got);
}

/* In slices, each a unit of its own, experts are computed part by part by whoever has them. */
static void slices_change_no_bit_at_any_budget(void)
{
    struct harness_options options = on_device();
    char dir[4200];
    struct mp_repack_config config = repack_config(MODEL, dir);
    float *want = new_logits(), *got = new_logits();
    struct outcome all, outcome;

    snprintf(dir, sizeof(dir), "%s/sliced", test_tmpdir());
    config.slices = 2;
    CHECK_EQ(repack_must(&config).slices, 2);
    options.model = dir;
    options.deterministic = true;
    for (unsigned planned = 0; planned < 2; planned++) {
        options.budget_bytes = UINT64_MAX;
        options.graphs = false;
        run(&options, planned, want, &all);
        CHECK_EQ(all.graphs.replays, 0);
        options.graphs = true;
        run(&options, planned, got, &outcome);
        check_same(got, want, "slices with graphs");
        CHECK(outcome.graphs.replays > 0);
        CHECK_EQ(outcome.graphs.complete > 0, !planned);
        for (unsigned i = 0; i < 3; i++) {
            options.budget_bytes =
                all.plan.smallest_bytes + (all.plan.full_bytes - all.plan.smallest_bytes) * i / 3;
            options.graphs = i & 1;
            run(&options, planned, got, &outcome);
            check_same(got, want, planned ? "slices by a plan" : "slices");
            if (i == 0)
                CHECK(outcome.counters.evictions > 0);
        }
    }
    free(want);
    free(got);
}

static void graphs_change_no_bit_and_are_used(void)
{
    struct harness_options options = on_device();
    float *want = new_logits(), *got = new_logits();
    struct outcome outcome;

    options.graphs = false;
    run(&options, false, want, &outcome);
    CHECK_EQ(outcome.graphs.replays, 0);
    options.graphs = true;
    run(&options, false, got, &outcome);
    check_same(got, want, "graphs, everything resident");
    CHECK(outcome.graphs.complete > 0);

    options.budget_bytes = outcome.plan.full_bytes / 2;
    memset(got, 0, logits_bytes);
    run(&options, false, got, &outcome);
    check_same(got, want, "graphs with misses");
    CHECK(outcome.graphs.replays > outcome.graphs.complete);
    free(want);
    free(got);
}

/* A driver that makes no graphs: one warning, and the same bits kernel by kernel. */
static void without_graphs_kernels_are_queued_one_by_one(void)
{
    static const char *const calls[] = { "cuStreamBeginCapture_v2", "cuStreamEndCapture",
                                         "cuGraphInstantiateWithFlags" };
    struct harness_options options = on_device();
    float *want = new_logits(), *got = new_logits();
    struct outcome outcome;

    options.graphs = false;
    run(&options, false, want, &outcome);
    options.graphs = true;
    for (unsigned i = 0; i < 2 * MP_ARRAY_LEN(calls); i++) {
        fake_api.fail(calls[i / 2], 0, MP_CU_ERROR_OUT_OF_MEMORY, i % 2);
        memset(got, 0, logits_bytes);
        run(&options, false, got, &outcome);
        fake_api.fail(calls[i / 2], UINT64_MAX, 0, false);
        check_same(got, want, calls[i / 2]);
        CHECK(outcome.graphs.complete > 0);
    }
    free(want);
    free(got);
}

static unsigned off_lines;

static void count_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    off_lines += level == MP_LOG_WARN && strstr(line, "kernel by kernel") != NULL;
}

/* Memory of the device that ends before graphs have theirs: one warning, and the same bits. */
static void without_memory_graphs_are_off(void)
{
    struct harness_options options = on_device();
    float *want = new_logits(), *got = new_logits();
    unsigned off = 0;
    struct outcome outcome;
    uint64_t before, all;

    options.graphs = false;
    fake_api.reset();
    run(&options, false, want, &outcome);
    before = fake_api.calls("cuMemAlloc_v2");
    options.graphs = true;
    fake_api.reset();
    run(&options, false, got, &outcome);
    all = fake_api.calls("cuMemAlloc_v2");
    CHECK(all > before);
    mp_log_set_sink(count_line, NULL);
    for (uint64_t k = before; k < all; k++) {
        fake_api.reset();
        fake_api.fail("cuMemAlloc_v2", k, MP_CU_ERROR_OUT_OF_MEMORY, k % 2 != 0);
        memset(got, 0, logits_bytes);
        off_lines = 0;
        run(&options, false, got, &outcome);
        check_same(got, want, "without memory for graphs");
        CHECK_EQ(outcome.graphs.replays, 0);
        CHECK_EQ(off_lines, 1);
        off++;
    }
    CHECK(off >= 7);
    mp_log_set_sink(NULL, NULL);
    fake_api.reset();
    free(want);
    free(got);
}

static void the_plan_counts_graphs_and_cublas(void)
{
    struct harness_options options = on_device();
    struct mp_engine_config config;
    struct harness h;
    uint64_t none, graphs, cublas;

    harness_open(&options, &h);
    config = h.config;
    config.tokens_max = 1024; /* with few, scratch that only the host has is larger */
    config.gemm = MP_GEMM_OWN;
    config.graphs = false;
    config.policies.policy[MP_POLICY_PREDICT] = "none";
    none = mp_device_extra_bytes(&config, 1); /* rounding, and what arrays are larger by */
    config.policies.policy[MP_POLICY_PREDICT] = "partial";
    CHECK(mp_device_extra_bytes(&config, 1) >= none + config.tokens_max * h.model.hidden * 4);
    config.policies.policy[MP_POLICY_PREDICT] = "none";
    config.graphs = true;
    graphs = mp_device_extra_bytes(&config, 1) - none;
    /* at least where every expert is, and the residual stream of every layer */
    CHECK(graphs >= h.model.moe_layers * (h.model.experts * sizeof(struct mp_cuda_place_of) +
                                          h.model.hidden * sizeof(float)));
    CHECK(mp_device_extra_bytes(&config, 2) > none + graphs);
    config.gemm = MP_GEMM_CUBLAS; /* two streams */
    cublas = mp_device_extra_bytes(&config, 1);
    CHECK(cublas >= none + graphs + 2 * (32u << 20));
    config.gemm = MP_GEMM_AUTO; /* what is not installed takes nothing */
    CHECK_EQ(mp_device_extra_bytes(&config, 1),
             mp_gemm_is_there(MP_GEMM_AUTO) ? cublas : none + graphs);
    harness_close(&h);
}

static void measured_costs_are_used_and_followed(void)
{
    struct harness_options options = on_device();
    float *logits = new_logits();
    struct outcome outcome;

    options.policies.policy[MP_POLICY_ASSIGN] = "cost";
    options.costs = (struct mp_costs){ TEST_THREE_EXECUTORS,
                                       .load_ns = 100000000,
                                       .executors[TEST_CPU].fixed_ns = 1000,
                                       .executors[TEST_CPU].token_ns = 1000,
                                       .executors[TEST_DEVICE].fixed_ns = 500,
                                       .executors[TEST_DEVICE].token_ns = 100,
                                       .executors[TEST_IN_PLACE].fixed_ns = 50000000,
                                       .executors[TEST_IN_PLACE].token_ns = 1000 };
    options.costs.executors[TEST_CPU].fixed_ns = options.costs.executors[TEST_IN_PLACE].fixed_ns =
        1000000000000;
    run(&options, false, logits, &outcome);
    CHECK(outcome.graphs.complete > 0); /* nobody is quicker than the device */
    options.costs.executors[TEST_CPU].fixed_ns = 1000;
    options.costs.executors[TEST_IN_PLACE].fixed_ns = 50000000;
    options.budget_bytes = outcome.plan.full_bytes / 4;
    run(&options, false, logits, &outcome);
    CHECK(outcome.counters.elsewhere > 0);
    CHECK_EQ(outcome.counters.invalid_decisions, 0);
    free(logits);
}

static enum mp_status look_at_logits(void *ctx, uint32_t sequence, uint32_t index,
                                     const float *logits)
{
    (void)ctx;
    (void)sequence;
    (void)index;
    (void)logits;
    return MP_OK;
}

/* Who looks at logits has the host sample. */
static void generate(const struct harness_options *options, const struct mp_sampling *sampling,
                     bool look, struct mp_output outputs[4])
{
    struct mp_ids prompts[4] = { { 0 } };
    struct mp_generate_config config = { .sampling = *sampling,
                                         .max_tokens = 12,
                                         .ignore_eos = true,
                                         .clock = mp_clock_monotonic(),
                                         .on_logits = look ? look_at_logits : NULL };
    struct mp_generate_stats stats;
    struct harness h;

    harness_open(options, &h);
    config.engine = h.engine;
    config.engine_config = &h.config;
    for (uint32_t s = 0; s < options->sequences; s++) {
        prompts[s].ids = (uint32_t *)tokens.i32 + s * tokens.dims[1];
        prompts[s].count = (size_t)lens.i32[s];
    }
    CHECK_EQ(mp_generate(&config, prompts, options->sequences, outputs, &stats), MP_OK);
    harness_close(&h);
    check_nothing_lives();
}

static void a_device_samples_as_the_sampler(void)
{
    static const struct mp_sampling ways[] = {
        { 0, 0, 1, 1 }, { 1, 0, 1, 2 }, { 0.7, 20, 0.9, 3 }, { 3, 5, 1, 4 }, { 1.3, 0, 0.5, 5 }
    };
    struct harness_options options = on_device();
    float *logits = new_logits();
    struct outcome all;

    CHECK(options.sequences <= 4);
    run(&options, false, logits, &all);
    free(logits);
    for (size_t i = 0; i < MP_ARRAY_LEN(ways); i++) {
        struct mp_output want[4] = { { .text = NULL } }, got[4] = { { .text = NULL } };

        options.budget_bytes = i & 1 ? all.plan.full_bytes / 2 : UINT64_MAX;
        generate(&options, &ways[i], true, want);
        generate(&options, &ways[i], false, got);
        for (uint32_t s = 0; s < options.sequences; s++) {
            CHECK_EQ(got[s].ids.count, 12);
            CHECK(memcmp(got[s].ids.ids, want[s].ids.ids, 12 * sizeof(uint32_t)) == 0);
        }
        mp_outputs_free(want, options.sequences);
        mp_outputs_free(got, options.sequences);
    }
}

int main(int argc, char **argv)
{
    /* Small enough that an expert fills a frame of its own, as windows need. */
    CHECK_EQ(setenv("FAKECUDA_GRANULE", "4096", 1), 0);
    find_fake();
    CHECK_EQ(argc, 2);
    if (!strcmp(argv[1], "late"))
        started = (struct timing){ 7, 2 };
    fake_api.timing(started.seed, started.lazy_ms);
    read_inputs();
    RUN(graphs_change_no_bit_and_are_used);
    RUN(without_graphs_kernels_are_queued_one_by_one);
    RUN(without_memory_graphs_are_off);
    RUN(the_plan_counts_graphs_and_cublas);
    RUN(deterministic_hybrid_runs_do_not_depend_on_timing);
    RUN(what_the_host_tier_lacks_goes_to_the_device);
    RUN(slices_change_no_bit_at_any_budget);
    RUN(measured_costs_are_used_and_followed);
    RUN(a_device_samples_as_the_sampler);
    return 0;
}
