/*
 * Life of the engine's device: memory there and pinned memory here, weights, streams, threads.
 *
 * Memory is made once, for the largest batch. It is taken before the experts' budget is, so that a
 * budget that is too large is refused by the backend that makes the frames.
 */
#include "engine/forward/cuda/device.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/checked.h"
#include "vmm/base/error.h"

/* One array in device memory: its place in the state, and its shape in elements of 4 bytes. */
struct array {
    size_t offset;
    const char *what;
    uint64_t dims[4];
};

#define ARRAY_COUNT 24
#define ALLOC_ALIGN 512u /* that the driver rounds allocations up to */

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

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

    return mp_cuda_attend_part_bytes(&few);
}

static void list_arrays(const struct mp_engine_config *c, uint64_t list_bytes,
                        struct array list[ARRAY_COUNT])
{
    const struct mp_model_config *m = c->model;
    const uint64_t T = c->tokens_max, H = m->hidden, V = m->vocab, C = c->ctx, E = m->experts;
    const uint64_t Q = (uint64_t)m->heads * m->head_dim, K = (uint64_t)m->kv_heads * m->head_dim;
    const uint64_t S = max_u64(m->shared_ffn, m->dense_ffn), R = m->experts_per_token;
    const uint64_t F = m->expert_ffn, half = m->head_dim / 2;
    const struct array arrays[ARRAY_COUNT] = {
#define A(name, what, ...)                            \
    {                                                 \
        offsetof(struct mp_device_state, name), what, \
        {                                             \
            __VA_ARGS__                               \
        }                                             \
    }
        A(x, "activations", T, H, 1, 1),
        A(xn, "activations", T, H, 1, 1),
        A(xe, "activations", T, H, 1, 1),
        A(q, "activations", T, Q, 1, 1),
        A(att, "activations", T, Q, 1, 1),
        A(k, "activations", T, K, 1, 1),
        A(v, "activations", T, K, 1, 1),
        A(gate, "activations", T, S, 1, 1),
        A(up, "activations", T, S, 1, 1),
        A(ye, "activations", T, H, 1, 1),
        A(sum, "activations", T, H, 1, 1),
        A(scores, "activations", T, E, 1, 1),
        A(row, "activations", T, 1, 1, 1),
        A(weight, "activations", T, R, 1, 1),
        A(rank, "activations", T, R, H, 1),
        A(act, "activations", T, R, F, 1),
        A(logits, "logits", c->sequences, V, 1, 1),
        A(ids, "the batch", 3 * T + 3ull * c->sequences, 1, 1, 1),
        A(list, "work lists", list_bytes / 4, 1, 1, 1),
        A(part, "activations", (part_bytes(c) + 3) / 4, 1, 1, 1),
        A(cosine, "positions", C, half, 1, 1),
        A(sine, "positions", C, half, 1, 1),
        A(k_cache, "the KV cache", m->layers, c->sequences, C, K),
        A(v_cache, "the KV cache", m->layers, c->sequences, C, K),
#undef A
    };

    memcpy(list, arrays, sizeof(arrays));
}

static mp_cu_ptr *array_of(struct mp_device *device, const struct array *array)
{
    return (mp_cu_ptr *)((char *)&device->state + array->offset);
}

static bool array_bytes(const struct array *array, uint64_t *bytes_p)
{
    uint64_t bytes = 4;

    for (int d = 0; d < 4; d++) {
        if (!mp_mul_u64(bytes, array->dims[d], &bytes))
            return false;
    }
    *bytes_p = bytes;
    return true;
}

static enum mp_status make_state(struct mp_device *device)
{
    struct array list[ARRAY_COUNT];
    enum mp_status status = MP_OK;

    list_arrays(&device->engine->config, device->list_bytes, list);
    for (size_t i = 0; i < ARRAY_COUNT && status == MP_OK; i++) {
        uint64_t bytes;

        if (!array_bytes(&list[i], &bytes))
            return MP_ERR_OVERFLOW; /* mp_engine_measure() has refused larger ones before */
        if (bytes > 0)
            status = mp_gpu_alloc(device->gpu, bytes, list[i].what, array_of(device, &list[i]));
    }
    return status;
}

static void drop_state(struct mp_device *device)
{
    struct array list[ARRAY_COUNT];

    list_arrays(&device->engine->config, device->list_bytes, list);
    for (size_t i = 0; i < ARRAY_COUNT; i++)
        mp_gpu_free(device->gpu, *array_of(device, &list[i]));
}

/* Host memory: what crosses over, pinned, and lists. */
static enum mp_status make_host_side(struct mp_device *device)
{
    const struct mp_engine_config *c = &device->engine->config;
    const uint64_t T = c->tokens_max, E = c->model->experts, R = c->model->experts_per_token;
    const uint64_t units = E * c->weights->slices.count;
    const struct {
        void **address_p;
        uint64_t bytes;
    } pinned[] = {
        { (void **)&device->ids, (3 * T + 3ull * c->sequences) * sizeof(uint32_t) },
        { (void **)&device->scores, T * E * sizeof(float) },
        { (void **)&device->weight, T * R * sizeof(float) },
        { (void **)&device->list, device->list_bytes },
    };
    enum mp_status status = MP_OK;

    for (size_t i = 0; i < sizeof(pinned) / sizeof(pinned[0]) && status == MP_OK; i++)
        status = mp_gpu_alloc_host(device->gpu, pinned[i].bytes, "lists", pinned[i].address_p);
    if (status != MP_OK)
        return status;
    device->work = calloc(units, sizeof(device->work[0]));
    device->ended = calloc(units, sizeof(device->ended[0]));
    device->leased = calloc(units, sizeof(device->leased[0]));
    device->pieces = calloc(units, sizeof(device->pieces[0]));
    if (device->work == NULL || device->ended == NULL || device->leased == NULL ||
        device->pieces == NULL)
        return mp_fail_no_memory("lists of experts", units * sizeof(device->work[0]));
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

/* What the arrays here take beyond what mp_engine_measure() counts, whose arrays are the host's. */
static uint64_t state_excess(const struct mp_engine_config *c, uint32_t slices)
{
    uint64_t bytes, sum = 0, list_bytes = 0, kv_bytes, state_bytes;
    struct array list[ARRAY_COUNT];

    if (mp_engine_measure(c, &kv_bytes, &state_bytes) != MP_OK ||
        !mp_device_list_bytes(c, slices, &list_bytes))
        return 0; /* the engine will say so */
    list_arrays(c, list_bytes, list);
    for (size_t i = 0; i < ARRAY_COUNT; i++) {
        if (!array_bytes(&list[i], &bytes) || !mp_round_up_u64(bytes, ALLOC_ALIGN, &bytes) ||
            !mp_add_u64(sum, bytes, &sum))
            return UINT64_MAX;
    }
    return sum > kv_bytes + state_bytes ? sum - kv_bytes - state_bytes : 0;
}

uint64_t mp_device_extra_bytes(const struct mp_engine_config *config, uint32_t slices)
{
    const uint64_t excess = state_excess(config, slices);
    const uint64_t others = mp_device_expert_gemm_bytes(config) + mp_device_partial_bytes(config) +
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
    struct mp_device *device = calloc(1, sizeof(*device));
    enum mp_status status;

    if (device == NULL)
        return mp_fail_no_memory("the device", sizeof(*device));
    device->engine = engine;
    mp_mutex_init(&device->lock, MP_LOCK_LEAF, "device");
    mp_cond_init(&device->ended_some);
    if (engine->config.timeline != NULL)
        device->track = mp_timeline_add_track(engine->config.timeline, "forward");
    status = mp_gpu_open(engine->config.backend_config.device, &device->gpu);
    if (status == MP_OK)
        status = mp_device_queues_open(device);
    if (status != MP_OK) {
        mp_device_destroy(device);
        return status;
    }
    *device_p = device;
    return MP_OK;
}

enum mp_status mp_device_prepare(struct mp_device *device)
{
    enum mp_status status = MP_OK;

    if (!mp_device_list_bytes(&device->engine->config, device->engine->config.weights->slices.count,
                              &device->list_bytes))
        return mp_fail(MP_ERR_CONFIG, "E_STATE_SIZE", "the batch does not fit into any memory");
    status = mp_device_load_weights(device);
    if (status == MP_OK)
        status = make_state(device);
    if (status == MP_OK)
        status = make_host_side(device);
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
        mp_device_partial_destroy(device);
        mp_gemm_close(device->gemm); /* its handles are bound to the streams */
        device->gemm = NULL;
        mp_device_expert_gemm_close(device);
        mp_device_queues_close(device);
        drop_state(device);
        mp_device_drop_weights(device);
        mp_gpu_free_host(device->gpu, device->ids);
        mp_gpu_free_host(device->gpu, device->scores);
        mp_gpu_free_host(device->gpu, device->weight);
        mp_gpu_free_host(device->gpu, device->list);
        mp_gpu_close(device->gpu);
    }
    free(device->work);
    free(device->ended);
    free(device->leased);
    free(device->pieces);
    mp_cond_fini(&device->ended_some);
    mp_mutex_fini(&device->lock);
    free(device);
}
