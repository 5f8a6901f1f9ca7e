/*
 * Creation and destruction of an engine: sizes and memory. Everything from the backend to the step
 * is in paging.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/forward/cuda/device.h"
#include "engine/forward/engine_int.h"
#include "engine/forward/lookahead.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define SEQUENCES_MAX 64
#define TOKENS_MAX 65536

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
    if (mp_engine_wanted_max(c) > c->tokens_max)
        return mp_fail(MP_ERR_CONFIG, "E_BATCH", "logits of %u tokens of a batch of at most %u",
                       c->wanted_max, c->tokens_max);
    return mp_kv_check(c);
}

struct sizes {
    const struct mp_engine_config *config;
    uint64_t kv_bytes, state_bytes;
};

static bool is_kv(const struct mp_array_info *array)
{
    return array->array == MP_ARRAY_K_CACHE || array->array == MP_ARRAY_V_CACHE;
}

/* In whole pages. */
static enum mp_status add_bytes(void *ctx, const struct mp_array_info *array)
{
    struct sizes *sizes = ctx;
    uint64_t *sum = is_kv(array) ? &sizes->kv_bytes : &sizes->state_bytes, bytes;

    if (!mp_round_up_u64(array->bytes, 4096, &bytes) || !mp_add_u64(*sum, bytes, sum))
        return mp_state_too_large(sizes->config);
    return MP_OK;
}

enum mp_status mp_engine_measure(const struct mp_engine_config *config, uint64_t *kv_bytes_p,
                                 uint64_t *state_bytes_p)
{
    const struct mp_state_plan plan = { .config = config };
    struct sizes sizes = { .config = config };
    enum mp_status status = check_config(config);

    if (status == MP_OK)
        status = mp_state_each(&plan, MP_PLACE_HOST, add_bytes, &sizes);
    if (status != MP_OK)
        return status;
    *kv_bytes_p = sizes.kv_bytes;
    *state_bytes_p = sizes.state_bytes;
    return MP_OK;
}

/* Pages come when they are touched, so a long context costs what is used of it; with a device,
 * whatever the CPU does not compute costs nothing. */
static enum mp_status make_array(void *ctx, const struct mp_array_info *array)
{
    struct mp_engine *engine = ctx;
    void *memory;

    mp_state_log(array, MP_PLACE_HOST);
    if (array->pinned)
        return mp_gpu_alloc_host(engine->device->gpu, array->bytes, array->what,
                                 &engine->state.array[array->array]);
    memory = mmap(NULL, array->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return mp_fail_no_memory(array->what, array->bytes);
    if (engine->config.kv_small_pages && is_kv(array)) /* Only a hint: kernels may have none. */
        (void)madvise(memory, array->bytes, MADV_NOHUGEPAGE);
    engine->state.array[array->array] = memory;
    return MP_OK;
}

static enum mp_status free_array(void *ctx, const struct mp_array_info *array)
{
    struct mp_engine *engine = ctx;
    void *memory = engine->state.array[array->array];

    if (array->pinned)
        mp_gpu_free_host(engine->device->gpu, memory);
    else if (memory != NULL)
        munmap(memory, array->bytes);
    return MP_OK;
}

/* On the host keys and values are computed in the buffers of an FFN, and go to the cache. */
static enum mp_status make_state(struct mp_engine *engine)
{
    const enum mp_status status =
        mp_state_each(&engine->state_plan, MP_PLACE_HOST, make_array, engine);

    engine->state.k = engine->state.gate;
    engine->state.v = engine->state.up;
    return status;
}

/* What was made before the first error, which stays the caller's. */
static void free_state(struct mp_engine *engine)
{
    const struct mp_error before = *mp_error_last();

    if (mp_state_each(&engine->state_plan, MP_PLACE_HOST, free_array, engine) != MP_OK)
        mp_error_set(&before);
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
    if (config->spin == NULL)
        engine->config.spin = mp_pool_spin(config->pool);
    engine->costs = config->costs;
    engine->costs.executor_count = 1; /* a device lists its own */
    engine->costs.executors[MP_EXECUTOR_HOME].name = "cpu";
    mp_counters_reset(&engine->counters);
    if (config->timeline != NULL)
        engine->track = mp_timeline_add_track(config->timeline, "compute");
    engine->state_plan.config = &engine->config;
    mp_cpu_init(engine, &engine->cpu);

    status = number_layers(engine);
    if (status == MP_OK)
        status = mp_engine_open_backend(engine);
    if (status == MP_OK)
        status = make_state(engine);
    if (status == MP_OK)
        mp_engine_fill_positions(engine);
    if (status == MP_OK && engine->device != NULL)
        status = mp_device_prepare(engine->device);
    if (status == MP_OK)
        status = mp_engine_make_paging(engine);
    if (status == MP_OK && config->lookahead > 0)
        status = mp_lookahead_create(engine, &engine->lookahead);
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
    mp_engine_peers_destroy(engine);
    mp_lookahead_destroy(engine->lookahead);
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

void mp_engine_expect(struct mp_engine *engine, const uint32_t *ids, const float *chances,
                      uint32_t count)
{
    if (engine->lookahead != NULL)
        mp_lookahead_expect(engine->lookahead, ids, chances, count);
}

bool mp_engine_can_sample(const struct mp_engine *engine)
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
