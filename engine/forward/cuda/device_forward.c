/*
 * The transformer on the device: the same steps as forward.c, queued on one stream. The host waits
 * in the operations of each MoE layer, and once for the logits.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "vmm/base/error.h"

#define GEMV_TOKENS MP_DEVICE_FEW_TOKENS
#define LONG_CONTEXT 1024u

static uint64_t address(const void *on_device)
{
    return (uintptr_t)on_device;
}

static enum mp_status launch(struct mp_device *device, enum mp_cuda_kernel kernel,
                             const void *params)
{
    return mp_gpu_launch(device->gpu, mp_device_stream(device), kernel, params);
}

static struct mp_cuda_matmul product(const struct mp_view *w, const float *bias, mp_cu_ptr x,
                                     mp_cu_ptr y, uint32_t tokens, bool accumulate)
{
    return (struct mp_cuda_matmul){
        .w = address(w->data),
        .x = x,
        .y = y,
        .bias = address(bias),
        .type = w->type,
        .rows = (uint32_t)w->rows,
        .cols = (uint32_t)w->cols,
        .tokens = tokens,
        .w_stride = (uint32_t)w->cols,
        .x_stride = (uint32_t)w->cols,
        .y_stride = (uint32_t)w->rows,
        .accumulate = accumulate,
    };
}

enum mp_status mp_device_multiply(struct mp_device *device, const struct mp_view *w,
                                  const float *bias, mp_cu_ptr x, mp_cu_ptr y, uint32_t tokens,
                                  bool accumulate)
{
    const struct mp_cuda_matmul params = product(w, bias, x, y, tokens, accumulate);

    return mp_gemm_matmul(device->gemm, mp_device_stream(device), &params);
}

enum mp_status mp_device_router(struct mp_device *device, uint32_t layer, mp_cu_ptr x,
                                mp_cu_ptr scores)
{
    const uint32_t tokens = device->engine->tokens, experts = device->engine->shape.experts;
    const struct mp_view *w = &device->weights.layers[layer].router;
    const struct mp_cuda_matmul params = product(w, NULL, x, scores, tokens, false);
    const struct mp_cuda_softmax softmax = {
        .x = scores, .width = experts, .tokens = tokens, .stride = experts
    };
    const struct mp_cuda_type *type = mp_cuda_type(w->type);
    enum mp_status status =
        launch(device, tokens <= GEMV_TOKENS ? type->gemv : type->gemm, &params);

    return status == MP_OK ? launch(device, MP_CUDA_KERNEL_softmax, &softmax) : status;
}

enum mp_status mp_device_norm(struct mp_device *device, mp_cu_ptr out, mp_cu_ptr x, const float *w,
                              uint32_t tokens)
{
    const struct mp_model_config *m = device->engine->config.model;
    const struct mp_cuda_rmsnorm params = {
        .x = x,
        .w = address(w),
        .out = out,
        .width = m->hidden,
        .tokens = tokens,
        .x_stride = m->hidden,
        .out_stride = m->hidden,
        .eps = m->norm_eps,
    };

    return launch(device, MP_CUDA_KERNEL_rmsnorm, &params);
}

enum mp_status mp_device_ffn(struct mp_device *device, const struct mp_ffn *ffn, mp_cu_ptr x,
                             mp_cu_ptr y, uint32_t tokens, bool accumulate)
{
    const struct mp_device_state *s = &device->state;
    const struct mp_cuda_silu_mul silu = { s->gate, s->up, (uint64_t)tokens * ffn->gate.rows };
    enum mp_status status = mp_device_multiply(device, &ffn->gate, NULL, x, s->gate, tokens, false);

    if (status == MP_OK)
        status = mp_device_multiply(device, &ffn->up, NULL, x, s->up, tokens, false);
    if (status == MP_OK)
        status = launch(device, MP_CUDA_KERNEL_silu_mul, &silu);
    if (status == MP_OK)
        status = mp_device_multiply(device, &ffn->down, NULL, s->gate, y, tokens, accumulate);
    return status;
}

/* The numbers of the batch as they stand in state.ids. */
static mp_cu_ptr ids_at(const struct mp_device *device, uint64_t kind)
{
    return device->state.ids + kind * device->engine->config.tokens_max * sizeof(uint32_t);
}

/* out(tokens, H) := rows of a table */
static enum mp_status gather(struct mp_device *device, uint64_t table, enum mp_wtype type,
                             uint32_t table_rows, mp_cu_ptr rows, mp_cu_ptr out, uint32_t tokens)
{
    const struct mp_cuda_embed params = {
        .table = table,
        .token = rows,
        .x = out,
        .type = type,
        .width = device->engine->config.model->hidden,
        .tokens = tokens,
        .vocab = table_rows,
    };

    return launch(device, MP_CUDA_KERNEL_embed, &params);
}

/* Queries and keys get their norm and position, keys and values go to the cache. */
static enum mp_status place(struct mp_device *device, uint32_t layer, uint32_t tokens)
{
    const struct mp_engine_config *c = &device->engine->config;
    const struct mp_model_config *m = c->model;
    const struct mp_layer_weights *w = &device->weights.layers[layer];
    const struct mp_device_state *s = &device->state;
    const uint64_t cache =
        (uint64_t)layer * c->sequences * c->ctx * m->kv_heads * m->head_dim * sizeof(float);
    const struct mp_cuda_place params = {
        .q = s->q,
        .k = s->k,
        .v = s->v,
        .q_norm = address(w->q_norm),
        .k_norm = address(w->k_norm),
        .cosine = s->cosine,
        .sine = s->sine,
        .k_cache = s->k_cache + cache,
        .v_cache = s->v_cache + cache,
        .sequence = ids_at(device, 1),
        .position = ids_at(device, 2),
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .tokens = tokens,
        .ctx = c->ctx,
        .eps = m->norm_eps,
    };

    return launch(device, MP_CUDA_KERNEL_place, &params);
}

static enum mp_status attend(struct mp_device *device, uint32_t layer, uint32_t tokens)
{
    const struct mp_engine_config *c = &device->engine->config;
    const struct mp_model_config *m = c->model;
    const struct mp_device_state *s = &device->state;
    const uint64_t cache =
        (uint64_t)layer * c->sequences * c->ctx * m->kv_heads * m->head_dim * sizeof(float);
    const struct mp_cuda_attend params = {
        .q = s->q,
        .out = s->att,
        .k_cache = s->k_cache + cache,
        .v_cache = s->v_cache + cache,
        .sequence = ids_at(device, 1),
        .position = ids_at(device, 2),
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .tokens = tokens,
        .ctx = c->ctx,
        .scale = 1.0f / sqrtf((float)m->head_dim),
        .part = s->part,
    };
    enum mp_status status;

    /* Few heads over a long context leave most of the device idle. Same bits either way. */
    if (c->ctx < LONG_CONTEXT || tokens > GEMV_TOKENS ||
        (uint64_t)tokens * m->heads >= 2ull * (unsigned)mp_gpu_device(device->gpu)->processors)
        return launch(device, MP_CUDA_KERNEL_attend, &params);
    status = launch(device, MP_CUDA_KERNEL_attend_part, &params);
    return status == MP_OK ? launch(device, MP_CUDA_KERNEL_attend_merge, &params) : status;
}

enum mp_status mp_device_attention(struct mp_device *device, uint32_t layer, mp_cu_ptr x,
                                   uint32_t tokens)
{
    const struct mp_layer_weights *w = &device->weights.layers[layer];
    const struct mp_device_state *s = &device->state;
    enum mp_status status = mp_device_norm(device, s->xe, x, w->attn_norm, tokens);

    if (status == MP_OK) // (T, Q)
        status = mp_device_multiply(device, &w->q, w->q_bias, s->xe, s->q, tokens, false);
    if (status == MP_OK) // (T, K)
        status = mp_device_multiply(device, &w->k, w->k_bias, s->xe, s->k, tokens, false);
    if (status == MP_OK) // (T, K)
        status = mp_device_multiply(device, &w->v, w->v_bias, s->xe, s->v, tokens, false);
    if (status == MP_OK)
        status = place(device, layer, tokens);
    if (status == MP_OK)
        status = attend(device, layer, tokens);
    if (status == MP_OK) // (T, H)
        status = mp_device_multiply(device, &w->o, w->o_bias, s->att, x, tokens, true);
    return status;
}

enum mp_status mp_device_dense(struct mp_device *device, uint32_t layer, uint32_t tokens)
{
    const struct mp_layer_weights *w = &device->weights.layers[layer];
    const struct mp_device_state *s = &device->state;
    enum mp_status status = mp_device_norm(device, s->xn, s->x, w->ffn_norm, tokens);

    if (status == MP_OK && !device->engine->config.model->is_moe[layer])
        status = mp_device_ffn(device, &w->dense, s->xn, s->x, tokens, true);
    return status;
}

/* Where the numbers of the sequences that want logits begin; `kind` as they stand in state.ids. */
static size_t wanted_at(const struct mp_device *device, uint32_t kind)
{
    return 3 * (size_t)device->engine->config.tokens_max + kind * device->engine->config.sequences;
}

/* Token ids, sequences and positions go over, with the numbers of the wanted tokens, and random
 * ones where the device samples. */
enum mp_status mp_device_begin(struct mp_device *device, const struct mp_batch *batch,
                               uint32_t *wanted_p)
{
    const uint32_t T = device->engine->config.tokens_max;
    uint32_t wanted = 0, *ids = device->ids;

    memcpy(ids, batch->token, batch->count * sizeof(ids[0]));
    memcpy(ids + T, batch->sequence, batch->count * sizeof(ids[0]));
    memcpy(ids + 2 * (size_t)T, batch->position, batch->count * sizeof(ids[0]));
    for (uint32_t t = 0; t < batch->count; t++) {
        if (batch->want[t])
            ids[wanted_at(device, 0) + wanted++] = t;
    }
    if (batch->sample != NULL)
        memcpy(ids + wanted_at(device, 1), batch->sample->uniform, wanted * sizeof(ids[0]));
    *wanted_p = wanted;
    return mp_gpu_upload(device->gpu, mp_device_stream(device), device->state.ids, ids,
                         wanted_at(device, 2) * sizeof(ids[0]));
}

enum mp_status mp_device_embed(struct mp_device *device, uint32_t tokens)
{
    const struct mp_view *embed = &device->weights.embed;

    return gather(device, address(embed->data), embed->type, (uint32_t)embed->rows,
                  ids_at(device, 0), device->state.x, tokens);
}

/* logits := head(norm(x)) of the wanted tokens */
enum mp_status mp_device_head(struct mp_device *device, uint32_t wanted)
{
    const struct mp_device_state *s = &device->state;
    enum mp_status status;

    if (wanted == 0)
        return MP_OK;
    status = gather(device, s->x, MP_WTYPE_F32, device->engine->config.tokens_max,
                    ids_at(device, 3), s->xe, wanted);
    if (status == MP_OK)
        status = mp_device_norm(device, s->xe, s->xe, device->weights.final_norm, wanted);
    if (status == MP_OK)
        status = mp_device_multiply(device, &device->weights.head, NULL, s->xe, s->logits, wanted,
                                    false);
    return status;
}

static enum mp_status sample(struct mp_device *device, const struct mp_sampling *sampling,
                             uint32_t wanted)
{
    const float temperature = (float)sampling->temperature;
    const struct mp_cuda_sample params = {
        .logits = device->state.logits,
        .uniform = device->state.ids + wanted_at(device, 1) * sizeof(uint32_t),
        .token = device->state.ids + wanted_at(device, 2) * sizeof(uint32_t),
        .top_p = (uint64_t)(sampling->top_p * 0x1p32),
        .vocab = device->engine->config.model->vocab,
        .tokens = wanted,
        .top_k = sampling->top_k,
        .temperature = sampling->temperature > 0 && temperature < FLT_MIN ? FLT_MIN : temperature,
    };
    enum mp_status status = launch(device, MP_CUDA_KERNEL_sample, &params);

    return status == MP_OK ? mp_gpu_download(device->gpu, mp_device_stream(device),
                                             device->ids + wanted_at(device, 2), params.token,
                                             wanted * sizeof(uint32_t))
                           : status;
}

enum mp_status mp_device_result(struct mp_device *device, uint32_t wanted)
{
    const struct mp_engine *engine = device->engine;

    if (engine->batch->sample != NULL)
        return sample(device, engine->batch->sample->sampling, wanted);
    return mp_gpu_download(device->gpu, mp_device_stream(device), engine->state.logits,
                           device->state.logits,
                           (uint64_t)wanted * engine->config.model->vocab * sizeof(float));
}

/* The layers from `first` on; `begun`: attention and norm of the first are done. */
static enum mp_status run_layers(struct mp_device *device, uint32_t first, bool begun,
                                 uint32_t tokens)
{
    struct mp_engine *engine = device->engine;
    const struct mp_model_config *m = engine->config.model;
    enum mp_status status = MP_OK;

    for (uint32_t layer = first; layer < m->layers && status == MP_OK; layer++) {
        status = mp_engine_check_cancel(engine);
        if (status == MP_OK && !(begun && layer == first)) {
            status = mp_device_attention(device, layer, device->state.x, tokens);
            if (status == MP_OK)
                status = mp_device_dense(device, layer, tokens);
        }
        if (status == MP_OK && m->is_moe[layer])
            status = mp_step_layer(engine->step, engine->moe_layer[layer], tokens);
    }
    return status;
}

static enum mp_status forward(struct mp_device *device, const struct mp_batch *batch)
{
    struct mp_device_progress done = { .started = false };
    uint32_t wanted;
    enum mp_status status = mp_device_begin(device, batch, &wanted);

    if (status == MP_OK)
        status = mp_device_graph_step(device, batch->count, wanted, &done);
    if (status != MP_OK || done.complete)
        return status;
    if (!done.started)
        status = mp_device_embed(device, batch->count);
    if (status == MP_OK)
        status = run_layers(device, done.layer, done.begun, batch->count);
    if (status == MP_OK)
        status = mp_device_head(device, wanted);
    if (status == MP_OK)
        status = mp_device_result(device, wanted);
    if (status == MP_OK)
        status = mp_gpu_finish(device->gpu, mp_device_stream(device));
    return status;
}

enum mp_status mp_device_forward(struct mp_device *device, const struct mp_batch *batch,
                                 const float **logits_p)
{
    struct mp_engine *engine = device->engine;
    const uint64_t start_ns = mp_timeline_now_ns(engine->config.timeline);
    enum mp_status status;

    if (mp_gpu_is_lost(device->gpu))
        return mp_fail(MP_ERR_DEVICE, "E_CUDA",
                       "the device was lost in an earlier step; it must be opened anew");
    status = forward(device, batch);
    if (status != MP_OK) {
        mp_device_settle(device);
        mp_device_release_host(device);
        return status;
    }
    for (uint32_t t = 0, i = 0; batch->sample != NULL && t < batch->count; t++) {
        if (batch->want[t]) {
            batch->sample->token[i] = device->ids[wanted_at(device, 2) + i];
            i++;
        }
    }
    mp_timeline_span(engine->config.timeline, device->track, "forward", start_ns,
                     mp_timeline_now_ns(engine->config.timeline),
                     &(struct mp_timeline_args){ { "tokens", NULL }, { batch->count, 0 } });
    *logits_p = engine->state.logits;
    return MP_OK;
}
