/* An engine for tests; see harness.h. */
#include "tests/model/harness.h"

#include <string.h>

#include "engine/gpu/gpu.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

struct harness_options harness_defaults(const char *model)
{
    return (struct harness_options){
        .model = model,
        .sequences = 1,
        .ctx = 64,
        .tokens_max = 64,
        .threads = 1,
        .budget_bytes = UINT64_MAX,
        .host_budget_bytes = UINT64_MAX,
        .graphs = true,
        .gemm = MP_GEMM_OWN,
    };
}

static enum mp_status open_engine(const struct harness_options *options, struct harness *h)
{
    const struct mp_pool_config pool_config = { .threads = options->threads, .spin_us = 50 };
    enum mp_status status = mp_pool_create(&pool_config, NULL, MP_TOPOLOGY_ANY_NODE, &h->pool);

    if (status != MP_OK)
        return status;
    h->config = (struct mp_engine_config){
        .model = &h->model,
        .weights = h->weights,
        .files = mp_checkpoint_files(h->checkpoint),
        .sequences = options->sequences,
        .ctx = options->ctx,
        .tokens_max = options->tokens_max,
        .wanted_max = options->wanted_max,
        .lookahead = options->lookahead,
        .budget_bytes = options->budget_bytes,
        .host_budget_bytes = options->host_budget_bytes,
        .host_residency = options->residency,
        .addressing = options->addressing,
        .costs = options->costs,
        .graphs = options->graphs,
        .gemm = options->gemm,
        .backend = options->backend != NULL ? options->backend : "host",
        .backend_config = { .numa_node = -1 },
        .io_mode = options->io_mode,
        .reader = { .uring = !options->no_uring, .depth = 8, .threads = 2, .chunk_bytes = 1 << 20 },
        .deterministic = options->deterministic,
        .decision_log = options->decision_log,
        .observer = options->observer,
        .calibration = options->calibration,
        .llapor = options->llapor,
        .llapor_learns = options->llapor_learns,
        .token_heat = options->token_heat,
        .seed = 1,
        .kernels = options->kernels != NULL ? mp_kernels_find(options->kernels) : mp_kernels_best(),
        .pool = h->pool,
        .spin = options->spin,
        .clock = options->clock != NULL ? options->clock : mp_clock_monotonic(),
    };
    status = mp_policy_resolve(&options->policies, &h->config.policies);
    if (status == MP_OK && options->before_engine != NULL)
        status = options->before_engine(options->before_engine_ctx, &h->config);
    return status == MP_OK ? mp_engine_create(&h->config, &h->engine) : status;
}

enum mp_status harness_try_open(const struct harness_options *options, struct harness *h)
{
    enum mp_status status;

    memset(h, 0, sizeof(*h));
    status = mp_checkpoint_open(options->model, &h->checkpoint);
    if (status == MP_OK)
        status = mp_model_config_load(h->checkpoint, &h->model);
    if (status == MP_OK)
        status = mp_weights_load(h->checkpoint, &h->model, NULL, NULL, &h->weights);
    if (status == MP_OK)
        status = open_engine(options, h);
    if (status != MP_OK)
        harness_close(h);
    return status;
}

void harness_open(const struct harness_options *options, struct harness *h)
{
    if (harness_try_open(options, h) != MP_OK) {
        fprintf(stderr, "%s: error[%s]: %s\n", options->model, mp_error_last()->code,
                mp_error_last()->text);
        exit(1);
    }
}

void harness_close(struct harness *h)
{
    mp_engine_destroy(h->engine);
    mp_pool_destroy(h->pool);
    mp_weights_destroy(h->weights);
    mp_checkpoint_close(h->checkpoint);
    memset(h, 0, sizeof(*h));
}

struct mp_space_plan harness_plan(const struct harness_options *options, uint32_t *vocab_p)
{
    struct mp_space_plan plan;
    struct harness h;

    harness_open(options, &h);
    mp_engine_plan(h.engine, &plan);
    if (vocab_p != NULL)
        *vocab_p = h.model.vocab;
    harness_close(&h);
    return plan;
}

void harness_way(struct harness_options *options, const struct mp_space_plan *plan, unsigned way)
{
    options->graphs = way & 1;
    options->addressing = way & 2 ? MP_ADDRESSING_WINDOW : MP_ADDRESSING_TABLE;
    options->residency = way & 4 ? MP_HOST_EXCLUSIVE : MP_HOST_INCLUSIVE;
    mp_gpu_configure(&(struct mp_gpu_config){ .pdl = way / 8 });
    options->budget_bytes =
        plan->smallest_bytes + (plan->full_bytes - plan->smallest_bytes) * (way % 4) / 3;
}

struct mp_calibration_data *harness_calibration(const char *model)
{
    struct harness_options options = harness_defaults(model);
    struct mp_calibration_data *data;
    struct mp_model_id id;
    struct harness h;
    float *residual;

    harness_open(&options, &h);
    id = (struct mp_model_id){ .layers = h.model.moe_layers,
                               .experts = h.model.experts,
                               .top_k = h.model.experts_per_token,
                               .hidden = h.model.hidden };
    harness_close(&h);
    CHECK_EQ(mp_calibration_create(&id, &data), MP_OK);
    residual = data->block + (data->residual - data->block);
    for (float *at = data->block; at < residual; at++)
        *at = (float)((at - data->block) * 2654435761u % 97) / 97;
    for (uint32_t i = 0; i < id.layers * id.hidden; i++)
        residual[i] = (float)((int)(i * 37 % 101) - 50) / 200;
    for (uint32_t l = 0; l < id.layers; l++)
        data->groups[l] = 3 * l / id.layers;
    return data;
}

#define ROWS_MAX 4096

struct rows {
    uint32_t token[ROWS_MAX], sequence[ROWS_MAX], position[ROWS_MAX];
    uint8_t want[ROWS_MAX];
    uint32_t step_of[ROWS_MAX];
    uint32_t count;
};

/* Run the collected rows and put the logits of the wanted ones in their places. */
static enum mp_status flush(struct harness *h, struct rows *rows, uint32_t steps, float *logits)
{
    const struct mp_batch batch = {
        .count = rows->count,
        .token = rows->token,
        .sequence = rows->sequence,
        .position = rows->position,
        .want = rows->want,
    };
    const size_t vocab = h->model.vocab;
    const float *out;
    enum mp_status status = mp_forward(h->engine, &batch, &out);

    for (uint32_t i = 0; i < rows->count && status == MP_OK; i++) {
        if (!rows->want[i])
            continue;
        memcpy(logits + ((size_t)rows->sequence[i] * (steps + 1) + rows->step_of[i]) * vocab, out,
               vocab * sizeof(float));
        out += vocab;
    }
    rows->count = 0;
    return status;
}

enum mp_status harness_run(struct harness *h, const int32_t *tokens, size_t stride,
                           const int32_t *lens, uint32_t sequences, uint32_t steps, float *logits)
{
    static _Thread_local struct rows rows;
    enum mp_status status = MP_OK;

    rows.count = 0;
    CHECK(h->config.tokens_max <= ROWS_MAX);
    /* Round 0 is the prompts, round r the r-th further token. */
    for (uint32_t round = 0; round <= steps && status == MP_OK; round++) {
        for (uint32_t s = 0; s < sequences && status == MP_OK; s++) {
            const uint32_t len = (uint32_t)lens[s];
            const uint32_t first = round == 0 ? 0 : len + round - 1;
            const uint32_t end = len + round;

            for (uint32_t p = first; p < end && status == MP_OK; p++) {
                const uint32_t i = rows.count++;

                rows.token[i] = (uint32_t)tokens[s * stride + p];
                rows.sequence[i] = s;
                rows.position[i] = p;
                rows.want[i] = p + 1 == end;
                rows.step_of[i] = round;
                if (rows.count == h->config.tokens_max)
                    status = flush(h, &rows, steps, logits);
            }
        }
        if (rows.count > 0 && status == MP_OK)
            status = flush(h, &rows, steps, logits);
    }
    return status;
}
