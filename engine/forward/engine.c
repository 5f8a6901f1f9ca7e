/*
 * Life of an engine: sizes and memory. What comes from the backend to the step is in paging.c.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/forward/cuda/device.h"
#include "engine/forward/engine_int.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define SEQUENCES_MAX 64
#define TOKENS_MAX 65536

/* One float array of the state: its place in the struct and its shape. */
struct array {
    size_t offset;
    uint64_t dims[4];
};

#define ARRAY_COUNT 17

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The list behind measure, create and destroy. Shapes as in engine_int.h. */
static void list_arrays(const struct mp_engine_config *c, struct array list[ARRAY_COUNT])
{
    const struct mp_model_config *m = c->model;
    const uint64_t T = c->tokens_max, H = m->hidden, V = m->vocab, C = c->ctx;
    const uint64_t Q = (uint64_t)m->heads * m->head_dim, K = (uint64_t)m->kv_heads * m->head_dim;
    const uint64_t F = max_u64(K, max_u64(m->expert_ffn, max_u64(m->shared_ffn, m->dense_ffn)));
    const uint64_t R = m->experts_per_token, half = m->head_dim / 2;
    const uint64_t threads = mp_pool_threads(c->pool), W = mp_engine_expert_rows(T, R);
    const struct array arrays[ARRAY_COUNT] = {
        { offsetof(struct mp_state, x), { T, H, 1, 1 } },
        { offsetof(struct mp_state, xn), { T, H, 1, 1 } },
        { offsetof(struct mp_state, q), { T, Q, 1, 1 } },
        { offsetof(struct mp_state, att), { T, Q, 1, 1 } },
        { offsetof(struct mp_state, gate), { W, F, 1, 1 } },
        { offsetof(struct mp_state, up), { W, F, 1, 1 } },
        { offsetof(struct mp_state, xe), { W, H, 1, 1 } },
        { offsetof(struct mp_state, ye), { W, H, 1, 1 } },
        { offsetof(struct mp_state, sum), { T, H, 1, 1 } },
        { offsetof(struct mp_state, rank), { T, R, H, 1 } },
        { offsetof(struct mp_state, row), { T, 1, 1, 1 } },
        { offsetof(struct mp_state, logits), { c->sequences, V, 1, 1 } },
        { offsetof(struct mp_state, scores), { threads, mp_engine_heads_once(m), C, 1 } },
        { offsetof(struct mp_state, cosine), { C, half, 1, 1 } },
        { offsetof(struct mp_state, sine), { C, half, 1, 1 } },
        { offsetof(struct mp_state, k), { m->layers, c->sequences, C, K } },
        { offsetof(struct mp_state, v), { m->layers, c->sequences, C, K } },
    };

    memcpy(list, arrays, sizeof(arrays));
}

static bool is_kv(const struct array *array)
{
    return array->offset == offsetof(struct mp_state, k) ||
           array->offset == offsetof(struct mp_state, v);
}

/* Bytes of an array in whole pages; false if that does not fit. */
static bool array_bytes(const struct array *array, uint64_t *bytes_p)
{
    uint64_t bytes = sizeof(float);

    for (int i = 0; i < 4; i++) {
        if (!mp_mul_u64(bytes, array->dims[i], &bytes))
            return false;
    }
    return mp_round_up_u64(bytes, 4096, bytes_p) && *bytes_p <= SIZE_MAX / 2;
}

static enum mp_status check_config(const struct mp_engine_config *c)
{
    if (c->sequences == 0 || c->sequences > SEQUENCES_MAX)
        return mp_fail(MP_ERR_CONFIG, "E_BATCH", "%u sequences at once, need 1 to %d", c->sequences,
                       SEQUENCES_MAX);
    if (c->ctx == 0 || c->ctx > c->model->positions_max)
        return mp_fail(MP_ERR_CONFIG, "E_CTX",
                       "context of %u positions: the model was made for 1 to %u; lower --ctx",
                       c->ctx, c->model->positions_max);
    if (c->tokens_max < c->sequences || c->tokens_max > TOKENS_MAX)
        return mp_fail(MP_ERR_CONFIG, "E_BATCH", "batches of %u tokens, need %u to %d",
                       c->tokens_max, c->sequences, TOKENS_MAX);
    return MP_OK;
}

enum mp_status mp_engine_measure(const struct mp_engine_config *config, uint64_t *kv_bytes_p,
                                 uint64_t *state_bytes_p)
{
    struct array list[ARRAY_COUNT];
    uint64_t kv_bytes = 0, state_bytes = 0;
    enum mp_status status = check_config(config);

    if (status != MP_OK)
        return status;
    list_arrays(config, list);
    for (size_t i = 0; i < ARRAY_COUNT; i++) {
        uint64_t *sum = is_kv(&list[i]) ? &kv_bytes : &state_bytes;
        uint64_t bytes;

        if (!array_bytes(&list[i], &bytes) || !mp_add_u64(*sum, bytes, sum))
            return mp_fail(MP_ERR_CONFIG, "E_STATE_SIZE",
                           "KV cache and activations for %u sequences of %u positions do not fit "
                           "into any memory; lower --ctx or the batch",
                           config->sequences, config->ctx);
    }
    *kv_bytes_p = kv_bytes;
    *state_bytes_p = state_bytes;
    return MP_OK;
}

/* With a device: does the array go there, or come from there? Then it is pinned. */
static bool is_pinned(const struct mp_engine *engine, const struct array *array)
{
    static const size_t crossing[] = { offsetof(struct mp_state, xn),
                                       offsetof(struct mp_state, rank),
                                       offsetof(struct mp_state, logits) };
    bool pinned = false;

    for (size_t i = 0; i < sizeof(crossing) / sizeof(crossing[0]); i++)
        pinned |= array->offset == crossing[i];
    return pinned && engine->device != NULL;
}

/* Pages come when they are touched, so a long context costs what is used of it; with a device,
 * whatever the CPU does not compute costs nothing. */
static enum mp_status make_state(struct mp_engine *engine)
{
    struct array list[ARRAY_COUNT];

    list_arrays(&engine->config, list);
    for (size_t i = 0; i < ARRAY_COUNT; i++) {
        enum mp_status status = MP_OK;
        void *memory = NULL;
        uint64_t bytes;

        if (!array_bytes(&list[i], &bytes))
            return MP_ERR_OVERFLOW; /* mp_engine_measure() has refused this before */
        if (is_pinned(engine, &list[i]))
            status = mp_gpu_alloc_host(engine->device->gpu, bytes, "activations", &memory);
        else
            memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            status = mp_fail_no_memory(is_kv(&list[i]) ? "the KV cache" : "activations", bytes);
        if (status != MP_OK)
            return status;
        *(float **)((char *)&engine->state + list[i].offset) = memory;
    }
    return MP_OK;
}

static void free_state(struct mp_engine *engine)
{
    struct array list[ARRAY_COUNT];

    list_arrays(&engine->config, list);
    for (size_t i = 0; i < ARRAY_COUNT; i++) {
        float *memory = *(float **)((char *)&engine->state + list[i].offset);
        uint64_t bytes;

        if (is_pinned(engine, &list[i]))
            mp_gpu_free_host(engine->device->gpu, memory);
        else if (memory != NULL && array_bytes(&list[i], &bytes))
            munmap(memory, bytes);
    }
}

/* As the reference implementation does it: frequencies and angles are rounded to float. */
static void fill_rope(struct mp_engine *engine)
{
    const struct mp_model_config *m = engine->config.model;
    const size_t half = m->head_dim / 2;

    for (size_t i = 0; i < half; i++) {
        const float exponent = (float)(2 * i) / (float)m->head_dim;
        const float frequency = (float)(1.0 / pow(m->rope_theta, exponent));

        for (uint32_t p = 0; p < engine->config.ctx; p++) {
            engine->state.cosine[p * half + i] = cosf((float)p * frequency);
            engine->state.sine[p * half + i] = sinf((float)p * frequency);
        }
    }
}

static enum mp_status number_layers(struct mp_engine *engine)
{
    const struct mp_model_config *m = engine->config.model;
    uint32_t count = 0;

    engine->moe_layer = calloc(m->layers, sizeof(uint32_t));
    engine->layer_of = calloc(m->moe_layers, sizeof(uint32_t));
    if (engine->moe_layer == NULL || engine->layer_of == NULL)
        return mp_fail_no_memory("the list of layers", m->layers * sizeof(uint32_t));
    for (uint32_t l = 0; l < m->layers; l++) {
        engine->moe_layer[l] = UINT32_MAX;
        if (m->is_moe[l]) {
            engine->layer_of[count] = l;
            engine->moe_layer[l] = count++;
        }
    }
    return MP_OK;
}

enum mp_status mp_engine_create(const struct mp_engine_config *config, struct mp_engine **engine_p)
{
    uint64_t kv_bytes, state_bytes;
    struct mp_engine *engine;
    enum mp_status status = mp_engine_measure(config, &kv_bytes, &state_bytes);

    if (status != MP_OK)
        return status;
    engine = calloc(1, sizeof(*engine));
    if (engine == NULL)
        return mp_fail_no_memory("the engine", sizeof(*engine));
    engine->config = *config;
    engine->costs = config->costs;
    engine->costs.executor_count = 1; /* a device lists its own */
    engine->costs.executors[MP_EXECUTOR_HOME].name = "cpu";
    engine->host_executor =
        (struct mp_step_executor){ .ctx = engine, .begin = mp_engine_begin_experts };
    mp_counters_reset(&engine->counters);
    if (config->timeline != NULL)
        engine->track = mp_timeline_add_track(config->timeline, "compute");

    status = number_layers(engine);
    if (status == MP_OK)
        status = mp_engine_open_backend(engine);
    if (status == MP_OK)
        status = make_state(engine);
    if (status == MP_OK)
        fill_rope(engine);
    if (status == MP_OK && engine->device != NULL)
        status = mp_device_prepare(engine->device);
    if (status == MP_OK)
        status = mp_engine_make_paging(engine);
    if (status != MP_OK) {
        mp_engine_destroy(engine);
        return status;
    }
    *engine_p = engine;
    return MP_OK;
}

void mp_engine_destroy(struct mp_engine *engine)
{
    if (engine == NULL)
        return;
    mp_step_destroy(engine->step);
    mp_device_stop(engine->device);
    mp_pager_destroy(engine->pager);
    mp_policies_destroy(&engine->policies);
    mp_decisions_destroy(engine->decisions);
    mp_space_destroy(engine->space);
    mp_backend_close(engine->backend);
    free_state(engine);
    mp_device_destroy(engine->device);
    mp_engine_predict_destroy(engine);
    free(engine->moe_layer);
    free(engine->layer_of);
    free(engine);
}

enum mp_status mp_engine_set_budget(struct mp_engine *engine, uint64_t budget_bytes)
{
    const enum mp_status status = mp_pager_set_budget(engine->pager, budget_bytes);

    mp_pager_fit_shape(engine->space, &engine->shape);
    return status;
}

bool mp_engine_draws(const struct mp_engine *engine)
{
    return engine->device != NULL;
}

const struct mp_counters *mp_engine_counters(struct mp_engine *engine)
{
    return &engine->counters;
}

void mp_engine_plan(const struct mp_engine *engine, struct mp_space_plan *plan_p)
{
    mp_space_get_plan(engine->space, plan_p);
}

uint64_t mp_engine_lost_bytes(const struct mp_engine *engine)
{
    return mp_space_lost_bytes(engine->space);
}

const char *mp_engine_reader(const struct mp_engine *engine)
{
    return mp_space_reader_engine(engine->space);
}

const struct mp_shape *mp_engine_shape(const struct mp_engine *engine)
{
    return &engine->shape;
}

struct mp_pager *mp_engine_pager(struct mp_engine *engine)
{
    return engine->pager;
}

enum mp_status mp_engine_close_log(struct mp_engine *engine)
{
    return engine->decisions != NULL ? mp_decisions_close(engine->decisions) : MP_OK;
}

const float *mp_engine_scores(const struct mp_engine *engine)
{
    return engine->scores;
}
