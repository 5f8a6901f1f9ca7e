/*
 * Predictors that need more than a router, on a CUDA device, here the driver without one
 * (tests/device/fakecuda): a partial forward says what the host's would with the same experts
 * there, what a predictor gets does not depend on whether the step was a graph, and no predictor
 * waits for experts that the CPU computes.
 */
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "engine/forward/cuda/device.h"
#include "tests/model/harness.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define PROMPT 6
#define STEPS 5
#define TOKENS (PROMPT + STEPS)
#define SCORES_MAX (1 << 16)

/* Everything that a predictor got, one prediction behind the other. */
static struct {
    struct mp_engine *engine;
    float got[SCORES_MAX], want[SCORES_MAX];
    size_t got_count, want_count;
    bool planned;
    bool held; /* the CPU's experts wait for their layer's prediction */
    _Atomic bool awaited;
    _Atomic uint32_t computed, late; /* parts of experts */
} seen;

static const char *const models[] = { "tests/data/models/qwen2moe-tiny",
                                      "tests/data/models/mixtral-tiny", "models/tiny-moe" };

static uint32_t planned_executor(uint32_t layer, uint32_t expert)
{
    return seen.planned ? (expert + layer) % mp_gpu_costs().executor_count : MP_GPU_DEVICE;
}

static void plan_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                        uint32_t *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = planned_executor(facts->layer, facts->experts[i]);
    seen.awaited = facts->layer + 1 < seen.engine->shape.layers;
}

/* Of the CPU's experts alone: the device has what is shared. */
static void held_silu_mul(float *gate, const float *up, size_t count)
{
    const struct timespec pause = { 0, 1000000 };
    uint32_t waited_ms = 0;

    seen.computed++;
    while (seen.awaited && waited_ms++ < 500)
        nanosleep(&pause, NULL);
    seen.late += seen.awaited;
    seen.awaited = false;
    mp_kernels_best()->silu_mul(gate, up, count);
}

static void on_predicted(void *ctx, uint32_t layer, uint32_t target, uint32_t tokens,
                         const float *scores)
{
    const size_t count = (size_t)tokens * seen.engine->shape.experts;

    (void)ctx;
    seen.awaited = false;
    CHECK_EQ(target, layer + 1);
    CHECK(seen.got_count + count <= SCORES_MAX);
    memcpy(seen.got + seen.got_count, scores, count * sizeof(float));
    seen.got_count += count;
}

/* On the host: what a partial forward says when exactly the device's experts are there. */
static void on_layer(void *ctx, const struct mp_layer_seen *layer)
{
    struct mp_engine *engine = seen.engine;
    const size_t ranks = (size_t)layer->batch->count * layer->k;

    (void)ctx;
    if (layer->layer + 1 == engine->shape.layers)
        return;
    for (size_t i = 0; i < ranks; i++)
        engine->state.done[i] = planned_executor(layer->layer, layer->experts[i]) == MP_GPU_DEVICE;
    CHECK_EQ(mp_engine_scores_partial(engine, layer->layer, layer->layer + 1,
                                      seen.want + seen.want_count),
             MP_OK);
    seen.want_count += (size_t)layer->batch->count * engine->shape.experts;
}

static const struct mp_observer observer_device = { .predicted = on_predicted };
static const struct mp_observer observer_host = { .layer = on_layer };

static struct harness_options options_of(const char *model, const char *backend,
                                         const char *predictor)
{
    struct harness_options options = harness_defaults(model);

    options.backend = backend;
    options.policies.profile = "lru";
    options.policies.policy[MP_POLICY_PREDICT] = predictor;
    options.policies.policy[MP_POLICY_PREFETCH] = "top";
    options.observer = strcmp(backend, "cuda") == 0 ? &observer_device : &observer_host;
    return options;
}

/* A prompt and further tokens, twice: the second time finds all that it needs. */
static struct mp_device_graph_counts run(const struct harness_options *options)
{
    struct mp_device_graph_counts counts = { 0 };
    int32_t tokens[TOKENS];
    const int32_t len = PROMPT;
    struct mp_kernels kernels;
    struct mp_assign_ops plan;
    struct harness h;
    float *logits;

    for (int i = 0; i < TOKENS; i++)
        tokens[i] = 3 + 7 * i % 50;
    harness_open(options, &h);
    logits = calloc((STEPS + 1) * h.model.vocab, sizeof(float));
    CHECK(logits != NULL);
    seen.engine = h.engine;
    plan = *h.engine->policies.assign_ops;
    plan.assign = plan_assign;
    h.engine->policies.assign_ops = &plan;
    kernels = *h.engine->config.kernels;
    kernels.silu_mul = held_silu_mul;
    if (seen.held)
        h.engine->config.kernels = &kernels;
    for (int i = 0; i < 2; i++) {
        seen.got_count = 0;
        if (h.engine->device == NULL)
            seen.want_count = 0;
        if (harness_run(&h, tokens, TOKENS, &len, 1, STEPS, logits) != MP_OK) {
            fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
            exit(1);
        }
    }
    if (h.engine->device != NULL)
        counts = mp_device_graphs_counted(h.engine->device);
    harness_close(&h);
    free(logits);
    return counts;
}

static void compare_with_host(bool graphs)
{
    for (size_t m = 0; m < MP_ARRAY_LEN(models); m++) {
        struct harness_options options = options_of(models[m], "host", "partial");
        double worst = 0;

        (void)run(&options);
        options = options_of(models[m], "cuda", "partial");
        options.graphs = graphs;
        CHECK_EQ(run(&options).complete > 0, graphs);
        check_nothing_lives();
        CHECK(seen.got_count > 0);
        CHECK_EQ(seen.got_count, seen.want_count);
        for (size_t i = 0; i < seen.got_count; i++) {
            const double error = fabs((double)seen.got[i] - (double)seen.want[i]);

            worst = error > worst || isnan(error) ? error : worst;
        }
        fprintf(stderr, "    %s: %zu scores, worst error %.2g\n", models[m], seen.got_count, worst);
        CHECK(worst < 1e-5);
    }
}

static void a_partial_forward_with_all_experts_is_the_host_s(void)
{
    seen.planned = false;
    compare_with_host(false);
    compare_with_host(true);
}

/* What others compute is not there, even when they have ended. */
static void a_partial_forward_without_some_experts_is_the_host_s(void)
{
    seen.planned = true;
    compare_with_host(false);
    seen.planned = false;
}

/* Predictors get the same, to the bit, whether the steps are graphs or not. */
static void compare_graphs(struct harness_options *options)
{
    options->graphs = false;
    CHECK_EQ(run(options).replays, 0);
    memcpy(seen.want, seen.got, sizeof(seen.got));
    seen.want_count = seen.got_count;
    options->graphs = true;
    CHECK(run(options).complete > 0);
    check_nothing_lives();
    CHECK(seen.got_count > 0);
    CHECK_EQ(seen.got_count, seen.want_count);
    CHECK(memcmp(seen.got, seen.want, seen.got_count * sizeof(float)) == 0);
}

/* As tools/train/llapor_fixture.py says. */
static const struct mp_model_id fixture_id = {
    .layers = 4, .experts = 8, .top_k = 2, .hidden = 40, .router_hash = 0x0123456789abcdef
};
#define FIXTURE_MODEL "tests/data/models/qwen3moe-tiny"

static const char *const predictors[] = { "partial", "gate", "residual", "llapor" };

/* Each predictor with data that it needs. */
static void with_each(void (*fn)(struct harness_options *options))
{
    struct mp_calibration_data *data;
    struct mp_llapor *llapor;
    float *residual;

    CHECK_EQ(mp_calibration_create(&fixture_id, &data), MP_OK);
    residual = data->block + (data->residual - data->block);
    for (uint32_t i = 0; i < fixture_id.layers * fixture_id.hidden; i++)
        residual[i] = (float)((int)(i * 37 % 101) - 50) / 200;
    CHECK_EQ(mp_llapor_load(AT_FDCWD, "tests/data/llapor/llapor.safetensors", &fixture_id, &llapor),
             MP_OK);
    for (size_t i = 0; i < MP_ARRAY_LEN(predictors); i++) {
        struct harness_options options = options_of(FIXTURE_MODEL, "cuda", predictors[i]);

        options.calibration = data;
        options.llapor = llapor;
        fn(&options);
    }
    mp_calibration_destroy(data);
    mp_llapor_destroy(llapor);
}

static void graphs_change_no_prediction(void)
{
    with_each(compare_graphs);
}

/* Where an expert has no slot, the next gate's scores come with the graph's. */
static void a_graph_guesses_what_the_host_does(void)
{
    for (size_t m = 0; m < MP_ARRAY_LEN(models); m++) {
        struct harness_options options = options_of(models[m], "cuda", "gate");

        options.budget_bytes = harness_plan(&options, NULL).full_bytes - 1;
        compare_graphs(&options);
    }
}

/* Each layer's CPU experts begin and do not end before the prediction is there; and its bits are
 * those of a run in which they did not wait. */
static void predict_beside_experts(struct harness_options *options)
{
    options->threads = 2;
    seen.planned = true;
    (void)run(options);
    memcpy(seen.want, seen.got, sizeof(seen.got));
    seen.want_count = seen.got_count;
    seen.held = true;
    seen.computed = seen.late = 0;
    (void)run(options);
    seen.planned = seen.held = false;
    check_nothing_lives();
    CHECK(seen.computed > 0);
    CHECK_EQ(seen.late, 0);
    CHECK_EQ(seen.got_count, seen.want_count);
    CHECK(memcmp(seen.got, seen.want, seen.got_count * sizeof(float)) == 0);
}

static void no_predictor_waits_for_experts_of_the_cpu(void)
{
    struct harness_options options = options_of("models/tiny-moe", "cuda", "residual");
    struct mp_calibration_data *data = harness_calibration(options.model);

    with_each(predict_beside_experts);
    options.calibration = data; /* large enough for the pool */
    predict_beside_experts(&options);
    mp_calibration_destroy(data);
}

int main(int argc, char **argv)
{
    setenv("FAKECUDA_GRANULE", "4096", 1); /* budgets between no experts and all */
    find_fake();
    if (argc > 1 && strcmp(argv[1], "late") == 0)
        fake_api.timing(7, 2);
    RUN(a_partial_forward_with_all_experts_is_the_host_s);
    RUN(a_partial_forward_without_some_experts_is_the_host_s);
    RUN(graphs_change_no_prediction);
    RUN(a_graph_guesses_what_the_host_does);
    RUN(no_predictor_waits_for_experts_of_the_cpu);
    return 0;
}
