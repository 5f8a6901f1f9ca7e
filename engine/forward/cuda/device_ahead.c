/*
 * The partial forward of SMoE on the device: engine/forward/predict_partial.c with the device's
 * kernels.
 *
 * There is what the stream of the transformer has been given by then: resident experts, and those
 * whose bytes have come since. What the CPU computes, or the device in place, counts as zero even
 * if it has ended, so that a prediction does not depend on when that is.
 *
 * The next layer's keys and values of the batch's tokens go to their places in the cache and need
 * not be put back: that layer's attention writes the same places before it reads them, and nobody
 * else reads what is behind the positions that came before the batch.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "vmm/base/error.h"

#define NOT_THERE UINT32_MAX
#define GATHER_MAX 32768u /* rows of one launch */

struct mp_device_ahead {
    mp_cu_ptr x;    // (T, H): the residual stream
    mp_cu_ptr rank; // (T, R, H): results that are there, else zeros
    mp_cu_ptr row;  /* u32 (T, R): which of state.rank are there */
    uint32_t *rows; // (T, R): the same, pinned
};

uint64_t mp_device_ahead_bytes(const struct mp_engine_config *config)
{
    const char *name = config->policies.policy[MP_POLICY_PREDICT];
    const struct mp_policy_info *info =
        name != NULL ? mp_policy_find(MP_POLICY_PREDICT, name) : NULL;
    const uint64_t H = config->model->hidden, R = config->model->experts_per_token;

    if (info == NULL || ((const struct mp_predict_ops *)info)->source != MP_SCORES_PARTIAL)
        return 0;
    return config->tokens_max * ((R + 1) * H * sizeof(float) + R * sizeof(uint32_t));
}

enum mp_status mp_device_ahead_create(struct mp_device *device)
{
    const struct mp_engine *engine = device->engine;
    const uint64_t ranks = (uint64_t)engine->shape.tokens_max * engine->shape.top_k;
    const uint64_t H = engine->config.model->hidden;
    struct mp_device_ahead *a;
    enum mp_status status;

    if (engine->policies.predict_ops->source != MP_SCORES_PARTIAL)
        return MP_OK;
    a = calloc(1, sizeof(*a));
    if (a == NULL)
        return mp_fail_no_memory("scores for a predictor", sizeof(*a));
    device->ahead = a;
    status = mp_gpu_alloc(device->gpu, engine->shape.tokens_max * H * sizeof(float), "a predictor",
                          &a->x);
    if (status == MP_OK)
        status = mp_gpu_alloc(device->gpu, ranks * H * sizeof(float), "a predictor", &a->rank);
    if (status == MP_OK)
        status = mp_gpu_alloc(device->gpu, ranks * sizeof(uint32_t), "a predictor", &a->row);
    if (status == MP_OK)
        status = mp_gpu_alloc_host(device->gpu, ranks * sizeof(uint32_t), "a predictor",
                                   (void **)&a->rows);
    return status;
}

void mp_device_ahead_destroy(struct mp_device *device)
{
    struct mp_device_ahead *a = device->ahead;

    if (a == NULL)
        return;
    mp_gpu_free(device->gpu, a->x);
    mp_gpu_free(device->gpu, a->rank);
    mp_gpu_free(device->gpu, a->row);
    mp_gpu_free_host(device->gpu, a->rows);
    device->ahead = NULL;
    free(a);
}

void mp_device_ahead_begin(struct mp_device *device)
{
    const struct mp_engine *engine = device->engine;

    for (size_t i = 0; device->ahead != NULL && i < (size_t)engine->tokens * engine->shape.top_k;
         i++)
        device->ahead->rows[i] = NOT_THERE;
}

void mp_device_ahead_note(struct mp_device *device, const struct mp_expert_work *work)
{
    const uint32_t last = work->slice + work->slices;

    if (device->ahead == NULL || work->executor != MP_EXECUTOR_HOME ||
        last < device->engine->config.weights->slices.count)
        return;
    for (uint32_t i = 0; i < work->rows.count; i++) {
        const size_t row = mp_engine_rank_row(device->engine, &work->rows, i);

        device->ahead->rows[row] = (uint32_t)row;
    }
}

/* rank := the results that are there */
static enum mp_status gather(struct mp_device *device, uint32_t ranks)
{
    const struct mp_device_ahead *a = device->ahead;
    const uint32_t H = device->engine->config.model->hidden;
    const mp_cu_stream stream = mp_device_stream(device);
    enum mp_status status =
        mp_gpu_upload(device->gpu, stream, a->row, a->rows, ranks * sizeof(uint32_t));

    if (status == MP_OK)
        status = mp_gpu_clear(device->gpu, stream, a->rank, (uint64_t)ranks * H * sizeof(float));
    for (uint32_t first = 0; first < ranks && status == MP_OK; first += GATHER_MAX) {
        const struct mp_cuda_embed params = {
            .table = device->state.rank,
            .token = a->row + first * sizeof(uint32_t),
            .x = a->rank + (uint64_t)first * H * sizeof(float),
            .type = MP_WTYPE_F32,
            .width = H,
            .tokens = ranks - first < GATHER_MAX ? ranks - first : GATHER_MAX,
            .vocab = ranks,
        };

        status = mp_gpu_launch(device->gpu, stream, MP_CUDA_KERNEL_embed, &params);
    }
    return status;
}

/* x := the residual stream behind the layer, as far as it is known. The uploads have ended when the
 * scores are here. */
static enum mp_status add_present(struct mp_device *device)
{
    const struct mp_engine *engine = device->engine;
    const uint32_t tokens = engine->tokens, ranks = tokens * engine->shape.top_k;
    const uint64_t x_bytes = (uint64_t)tokens * engine->config.model->hidden * sizeof(float);
    const mp_cu_stream stream = mp_device_stream(device);
    enum mp_status status = gather(device, ranks);

    memcpy(device->weight, engine->predict.weights, ranks * sizeof(float));
    if (status == MP_OK)
        status = mp_gpu_upload(device->gpu, stream, device->state.weight, device->weight,
                               ranks * sizeof(float));
    if (status == MP_OK)
        status = mp_gpu_copy(device->gpu, stream, device->ahead->x, device->state.x, x_bytes);
    return status == MP_OK
               ? mp_device_combine(device, device->ahead->x, device->ahead->rank, tokens)
               : status;
}

/* x += ffn(norm(x)) of a layer without experts. */
static enum mp_status add_dense(struct mp_device *device, uint32_t layer, mp_cu_ptr x)
{
    const struct mp_layer_weights *w = &device->weights.layers[layer];
    const mp_cu_ptr xe = device->state.xe;
    const uint32_t tokens = device->engine->tokens;
    enum mp_status status = mp_device_norm(device, xe, x, w->ffn_norm, tokens);

    return status == MP_OK ? mp_device_ffn(device, &w->dense, xe, x, tokens, true) : status;
}

enum mp_status mp_device_scores_partial(struct mp_device *device, uint32_t moe_layer,
                                        uint32_t target, float *scores)
{
    const uint32_t *layer_of = device->engine->layer_of;
    const mp_cu_ptr x = device->ahead->x;
    enum mp_status status = add_present(device);

    for (uint32_t l = layer_of[moe_layer] + 1; l <= layer_of[target] && status == MP_OK; l++) {
        status = mp_device_attention(device, l, x, device->engine->tokens);
        if (status == MP_OK && l < layer_of[target])
            status = add_dense(device, l, x);
    }
    return status == MP_OK ? mp_device_gate_scores(device, x, target, scores) : status;
}
