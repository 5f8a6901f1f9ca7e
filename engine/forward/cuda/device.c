/*
 * Creation and destruction of the engine's device: its memory, weights, streams, threads. Pinned
 * host memory belongs to the engine (engine.c); operations are in the other files.
 *
 * Memory is allocated once, for the largest batch, and before the experts' budget, so that a budget
 * that is too large is refused by the backend when it creates the frames.
 */
#include "engine/forward/cuda/device.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"

#define ALLOC_ALIGN 512u /* that the driver rounds allocations up to */

static uint64_t part_bytes(const struct mp_engine_config *c)
{
    const struct mp_model_config *m = c->model;
    const struct mp_cuda_attend few = {
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .tokens = c->tokens_max < MP_DEVICE_FEW_TOKENS ? c->tokens_max : MP_DEVICE_FEW_TOKENS,
        .ctx = c->ctx,
    };

    const struct mp_cuda_sample all = { .vocab = m->vocab, .tokens = mp_engine_wanted_max(c) };
    const uint64_t attend = mp_cuda_attend_part_bytes(&few);
    const uint64_t sample = mp_cuda_sample_part_bytes(&all);

    return attend > sample ? attend : sample;
}

/* The shapes of what only a device has; false: more than any memory has. */
static bool plan_state(const struct mp_engine_config *config, uint32_t slices,
                       struct mp_state_plan *plan)
{
    uint64_t list_bytes;

    if (!mp_device_list_bytes(config, slices, &list_bytes))
        return false;
    *plan = (struct mp_state_plan){
        .config = config,
        .device = true,
        .list_words = list_bytes / 4,
        .part_words = (part_bytes(config) + 3) / 4,
    };
    return true;
}

static enum mp_status make_array(void *ctx, const struct mp_array_info *array)
{
    struct mp_device *device = ctx;

    mp_state_log(array, MP_PLACE_DEVICE);
    return mp_gpu_alloc(device->gpu, array->bytes, array->what, &device->state.array[array->array]);
}

static void drop_state(struct mp_device *device)
{
    for (unsigned i = 0; i < MP_ARRAY_COUNT; i++)
        mp_gpu_free(device->gpu, device->state.array[i]);
}

static void take_lists(struct mp_device *device, struct mp_arena *arena)
{
    const struct mp_engine_config *c = &device->engine->config;
    const uint64_t units = (uint64_t)c->model->experts * c->weights->slices.count;

    device->work = mp_arena_take(arena, units, sizeof(device->work[0]));
    device->ended = mp_arena_take(arena, units, sizeof(device->ended[0]));
    device->leased = mp_arena_take(arena, units, sizeof(device->leased[0]));
    device->pieces = mp_arena_take(arena, units, sizeof(device->pieces[0]));
}

static enum mp_status make_lists(struct mp_device *device)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    take_lists(device, &arena);
    status = mp_arena_open(&arena, "lists of experts");
    if (status != MP_OK)
        return status;
    take_lists(device, &arena);
    device->lists_block = arena.block;
    return MP_OK;
}

/* The angles are those of the host, to the bit; the batch's buffer for logits is large enough. */
static enum mp_status load_positions(struct mp_device *device)
{
    const struct mp_engine_config *c = &device->engine->config;
    const uint64_t bytes = (uint64_t)c->ctx * (c->model->head_dim / 2) * sizeof(float);
    const float *const from[] = { device->engine->state.cosine, device->engine->state.sine };
    const mp_cu_ptr to[] = { device->state.cosine, device->state.sine };
    const mp_cu_stream stream = mp_device_stream(device);
    void *staged;
    enum mp_status status = mp_gpu_alloc_host(device->gpu, bytes, "positions", &staged);

    if (status != MP_OK)
        return status;
    for (int i = 0; i < 2 && status == MP_OK; i++) {
        memcpy(staged, from[i], bytes);
        status = mp_gpu_upload(device->gpu, stream, to[i], staged, bytes);
        if (status == MP_OK)
            status = mp_gpu_finish(device->gpu, stream);
    }
    if (status != MP_OK)
        mp_device_settle(device);
    mp_gpu_free_host(device->gpu, staged);
    return status;
}

static enum mp_status add_bytes(void *ctx, const struct mp_array_info *array)
{
    uint64_t *sum = ctx, bytes;

    if (!mp_round_up_u64(array->bytes, ALLOC_ALIGN, &bytes) || !mp_add_u64(*sum, bytes, sum))
        *sum = UINT64_MAX;
    return MP_OK;
}

/* What the arrays here take beyond what mp_engine_measure() counts, whose arrays are the host's. */
static uint64_t state_excess(const struct mp_engine_config *c, uint32_t slices)
{
    uint64_t sum = 0, kv_bytes, state_bytes;
    struct mp_state_plan plan;

    if (mp_engine_measure(c, &kv_bytes, &state_bytes) != MP_OK || !plan_state(c, slices, &plan))
        return 0; /* the engine will say so */
    if (mp_state_each(&plan, MP_PLACE_DEVICE, add_bytes, &sum) != MP_OK || sum == UINT64_MAX)
        return UINT64_MAX;
    return sum > kv_bytes + state_bytes ? sum - kv_bytes - state_bytes : 0;
}

uint64_t mp_device_extra_bytes(const struct mp_engine_config *config, uint32_t slices)
{
    const uint64_t excess = state_excess(config, slices);
    const uint64_t others = mp_device_expert_gemm_bytes(config) +
                            mp_device_graph_bytes(config, slices) +
                            mp_device_weights_padding(config);

    return excess < UINT64_MAX - others ? excess + others : UINT64_MAX;
}

bool mp_device_needed(const struct mp_backend *backend)
{
    return !backend->caps.cpu_access;
}

enum mp_status mp_device_open(struct mp_engine *engine, struct mp_device **device_p)
{
    struct mp_state_plan plan;
    struct mp_device *device;
    enum mp_status status;

    if (!plan_state(&engine->config, engine->config.weights->slices.count, &plan))
        return mp_fail(MP_ERR_CONFIG, "E_STATE_SIZE", "the batch does not fit into any memory");
    device = calloc(1, sizeof(*device));
    if (device == NULL)
        return mp_fail_no_memory("the device", sizeof(*device));
    device->engine = engine;
    device->compute = (struct mp_compute){
        .ops = &mp_device_compute_ops,
        .engine = engine,
        .weights = &device->weights,
        .kv = mp_kv_layout(&engine->config, MP_KV_BY_POSITION),
    };
    mp_mutex_init(&device->lock, MP_LOCK_LEAF, "device");
    mp_cond_init(&device->ended_some);
    if (engine->config.timeline != NULL)
        device->compute.track = mp_timeline_add_track(engine->config.timeline, "forward");
    status = mp_gpu_open(engine->config.backend_config.device, &device->gpu);
    if (status == MP_OK)
        status = mp_device_queues_open(device);
    if (status != MP_OK) {
        mp_device_destroy(device);
        return status;
    }
    engine->state_plan = plan;
    *device_p = device;
    return MP_OK;
}

enum mp_status mp_device_prepare(struct mp_device *device)
{
    enum mp_status status = mp_device_load_weights(device);

    if (status == MP_OK)
        status = mp_state_each(&device->engine->state_plan, MP_PLACE_DEVICE, make_array, device);
    if (status == MP_OK)
        status = make_lists(device);
    if (status == MP_OK)
        status = load_positions(device);
    if (status == MP_OK)
        status = mp_device_expert_gemm_open(device);
    return status;
}

void mp_device_destroy(struct mp_device *device)
{
    if (device == NULL)
        return;
    if (device->gpu != NULL) {
        mp_device_stop(device);
        mp_device_graphs_destroy(device);
        mp_gemm_close(device->gemm); /* its handles are bound to the streams */
        device->gemm = NULL;
        mp_device_expert_gemm_close(device);
        mp_device_queues_close(device);
        drop_state(device);
        mp_device_drop_weights(device);
        mp_gpu_close(device->gpu);
    }
    free(device->lists_block);
    mp_cond_fini(&device->ended_some);
    mp_mutex_fini(&device->lock);
    free(device);
}
