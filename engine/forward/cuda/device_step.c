/*
 * The operations of a MoE layer on the device, for the step (policy/pager/step.h).
 *
 * Scores come to the host, where policies see them; whom they name is told to the device by work
 * lists (device_lists.c).
 */
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "engine/forward/route_from.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

static struct mp_device *device_of(void *ctx)
{
    return ((struct mp_engine *)ctx)->device;
}

void mp_device_release_host(struct mp_device *device)
{
    const uint32_t units =
        device->engine->shape.experts * device->engine->config.weights->slices.count;

    for (uint32_t i = 0; i < units; i++) {
        if (device->leased[i])
            mp_pager_release_host(device->engine->pager, device->leased_layer * units + i);
        device->leased[i] = 0;
    }
}

/* The device's scores to the caller's. */
static enum mp_status fetch_scores(struct mp_device *device, float *scores)
{
    const uint64_t bytes =
        (uint64_t)device->engine->tokens * device->engine->shape.experts * sizeof(float);
    enum mp_status status = mp_gpu_download(device->gpu, mp_device_stream(device), device->scores,
                                            device->state.scores, bytes);

    if (status == MP_OK)
        status = mp_gpu_finish(device->gpu, mp_device_stream(device));
    if (status == MP_OK)
        memcpy(scores, device->scores, bytes);
    return status;
}

/* Queue the layer's normed input for the host; it is there when the stream has been waited for. */
static enum mp_status queue_input(struct mp_device *device)
{
    const struct mp_engine *engine = device->engine;

    device->input_here = true;
    return mp_gpu_download(device->gpu, mp_device_stream(device), engine->state.xn,
                           device->state.xn,
                           (uint64_t)engine->tokens * engine->config.model->hidden * sizeof(float));
}

static enum mp_status bring_input(struct mp_device *device)
{
    enum mp_status status = MP_OK;

    if (!device->input_here) {
        status = queue_input(device);
        if (status == MP_OK)
            status = mp_gpu_finish(device->gpu, mp_device_stream(device));
    }
    return status;
}

/* Does somebody on the host look at every layer's input? */
static bool host_looks(const struct mp_engine *engine)
{
    const enum mp_score_source source = engine->policies.predict_ops->source;
    const struct mp_observer *observer = engine->config.observer;

    return source == MP_SCORES_RESIDUAL || source == MP_SCORES_LLAPOR ||
           (observer != NULL && observer->layer != NULL);
}

void mp_device_open_layer(struct mp_device *device, uint32_t moe_layer)
{
    mp_device_release_host(device); /* of a layer that failed before it was computed */
    device->leased_layer = moe_layer;
    device->work_used = 0;
    device->list_used = device->act_used = 0;
    device->input_here = false;
    device->engine->predict.chosen = NULL;
    device->engine->predict.shared = false;
    mp_device_ahead_begin(device);
}

static enum mp_status op_scores(void *ctx, uint32_t moe_layer, float *scores)
{
    struct mp_engine *engine = ctx;
    struct mp_device *device = engine->device;
    enum mp_status status;

    mp_device_open_layer(device, moe_layer);
    status = mp_device_router(device, engine->layer_of[moe_layer], device->state.xn,
                              device->state.scores);
    if (status == MP_OK && host_looks(engine))
        status = queue_input(device);
    if (status == MP_OK)
        status = fetch_scores(device, scores);
    if (status == MP_OK && engine->config.route_from != NULL)
        mp_route_from_scores(engine->config.route_from, engine->batch, moe_layer, scores);
    if (status == MP_OK)
        mp_engine_note_scores(engine);
    engine->scores = scores;
    return status;
}

enum mp_status mp_device_gate_scores(struct mp_device *device, mp_cu_ptr x, uint32_t target,
                                     float *scores)
{
    const struct mp_device_state *s = &device->state;
    const uint32_t layer = device->engine->layer_of[target];
    const uint64_t start_ns = mp_clock_now_ns(device->engine->config.clock);
    enum mp_status status = mp_device_norm(device, s->xe, x, device->weights.layers[layer].ffn_norm,
                                           device->engine->tokens);

    if (status == MP_OK)
        status = mp_device_router(device, layer, s->xe, s->scores);
    if (status == MP_OK)
        status = fetch_scores(device, scores);
    if (status == MP_OK)
        mp_engine_note_predicted(device->engine, start_ns);
    return status;
}

/* GATE and PARTIAL on the device; what needs other weights, by the host from state.xn. */
static enum mp_status op_source_scores(void *ctx, uint32_t moe_layer, uint32_t target_layer,
                                       enum mp_score_source source, float *scores)
{
    struct mp_engine *engine = ctx;
    struct mp_device *device = engine->device;
    const uint64_t start_ns = mp_clock_now_ns(engine->config.clock);
    enum mp_status status;

    source = mp_engine_source_of(engine, moe_layer, target_layer, source);
    if (source == MP_SCORES_GATE)
        return mp_device_gate_scores(device, device->state.x, target_layer, scores);
    if (source == MP_SCORES_PARTIAL) {
        status = mp_device_scores_partial(device, moe_layer, target_layer, scores);
        if (status == MP_OK)
            mp_engine_note_predicted(engine, start_ns);
        return status;
    }
    status = bring_input(device);
    if (status != MP_OK)
        return status;
    mp_lock(&device->pool_lock);
    mp_engine_source_scores(engine, moe_layer, target_layer, source, scores);
    mp_unlock(&device->pool_lock);
    mp_engine_note_predicted(engine, start_ns);
    return MP_OK;
}

/* sum := sigmoid(shared_gate x) * shared(x) */
enum mp_status mp_device_shared(struct mp_device *device, uint32_t layer, uint32_t tokens)
{
    const struct mp_device_state *s = &device->state;
    const struct mp_layer_weights *w = &device->weights.layers[layer];
    const uint32_t H = device->engine->config.model->hidden;
    const struct mp_cuda_axpy open = {
        .x = s->ye, .y = s->sum, .gate = s->row, .count = (uint64_t)tokens * H, .width = H
    };
    enum mp_status status;

    if (device->engine->config.model->shared_ffn == 0)
        return MP_OK;
    if (w->shared_gate.data == NULL)
        return mp_device_ffn(device, &w->shared, s->xn, s->sum, tokens, false); // (T, H)
    status = mp_device_ffn(device, &w->shared, s->xn, s->ye, tokens, false);
    if (status == MP_OK) // (T)
        status = mp_device_multiply(device, &w->shared_gate, NULL, s->xn, s->row, tokens, false);
    if (status == MP_OK)
        status = mp_gpu_clear(device->gpu, mp_device_stream(device), s->sum,
                              (uint64_t)tokens * H * sizeof(float));
    if (status == MP_OK)
        status = mp_gpu_launch(device->gpu, mp_device_stream(device), MP_CUDA_KERNEL_axpy, &open);
    return status;
}

static enum mp_status op_shared(void *ctx, uint32_t moe_layer)
{
    struct mp_engine *engine = ctx;

    engine->predict.shared = true;
    return mp_device_shared(engine->device, engine->layer_of[moe_layer], engine->tokens);
}

/*
 * The lease of the host tier ends with the layer, whatever becomes of it. What an inclusive tier
 * holds is the same for good once it has been filled, for which a deterministic run waits; with an
 * exclusive one such a run is refused (E_RESIDENCY).
 */
static bool take(void *ctx, uint32_t moe_layer, uint32_t expert)
{
    struct mp_device *device = ((struct mp_device_queue *)ctx)->device;
    struct mp_engine *engine = device->engine;
    const uint32_t slices = engine->config.weights->slices.count, first = expert * slices;
    const uint32_t units = moe_layer * engine->shape.experts * slices;

    for (uint32_t i = 0; i < slices; i++) {
        if (mp_pager_lease_host(engine->pager, units + first + i, device->pieces[first + i])) {
            device->leased[first + i] = 1;
            continue;
        }
        while (i-- > 0) {
            mp_pager_release_host(engine->pager, units + first + i);
            device->leased[first + i] = 0;
        }
        return false;
    }
    return true;
}

/* The CPU takes an expert slice by slice, side by side, as the host's operation does. */
static void add_slices(struct mp_device *device, const struct mp_expert_work *work)
{
    const uint32_t slices = device->engine->config.weights->slices.count;

    for (uint32_t slice = 0; slice < slices; slice++) {
        struct mp_expert_work *part = &device->work[device->work_used++];

        *part = *work;
        part->slice = slice;
        part->slices = 1;
        memcpy(part->pieces, device->pieces[work->expert * slices + slice], sizeof(part->pieces));
    }
}

/* The work becomes a batch of the queue. */
static struct mp_device_batch *fill_batch(struct mp_device_queue *queue, uint32_t moe_layer,
                                          const struct mp_expert_work *work, uint32_t count)
{
    struct mp_device *device = queue->device;
    const uint32_t first = device->work_used;
    struct mp_device_batch *batch;
    uint32_t parts = 0, rows = 0;

    for (uint32_t i = 0; i < count; i++) {
        mp_assert(device->work_used <
                  device->engine->shape.experts * device->engine->config.weights->slices.count);
        if (queue->on_cpu)
            add_slices(device, &work[i]);
        else
            device->work[device->work_used++] = work[i];
        parts += work[i].slices;
        rows += work[i].slices * work[i].rows.count;
    }
    batch = mp_device_next_batch(queue);
    batch->layer = moe_layer;
    batch->first = first;
    batch->count = device->work_used - first;
    batch->parts = parts;
    batch->rows = rows;
    return batch;
}

/* A batch of a stream is queued before it is handed over, so that after an error nothing has been
 * taken. */
static enum mp_status begin(void *ctx, uint32_t moe_layer, const struct mp_expert_work *work,
                            uint32_t count)
{
    struct mp_device_queue *queue = ctx;
    struct mp_device *device = queue->device;
    const uint32_t work_used = device->work_used;
    const struct mp_device_batch *batch;
    enum mp_status status = mp_engine_check_cancel(device->engine);

    if (status != MP_OK)
        return status;
    batch = fill_batch(queue, moe_layer, work, count);
    status = queue->on_cpu ? bring_input(device) : mp_device_queue_batch(device, queue, batch);
    if (status != MP_OK) {
        mp_device_settle(device);
        device->work_used = work_used;
        return status;
    }
    mp_device_hand_over(queue);
    for (uint32_t i = 0; i < count; i++)
        mp_device_ahead_note(device, &work[i]);
    return MP_OK;
}

static enum mp_status op_ended(void *ctx, bool wait, uint32_t *needs, uint32_t *count_p)
{
    return mp_device_ended(device_of(ctx), wait, needs, count_p);
}

static bool op_any_ended(void *ctx)
{
    struct mp_device *device = device_of(ctx);

    /* A deterministic run looks for ended work only when nothing else is left to wait for. */
    return !device->engine->config.deterministic &&
           atomic_load_explicit(&device->ended_count, memory_order_acquire) > 0;
}

enum mp_status mp_device_combine(struct mp_device *device, mp_cu_ptr x, mp_cu_ptr rank,
                                 uint32_t tokens)
{
    const struct mp_device_state *s = &device->state;
    const struct mp_model_config *m = device->engine->config.model;
    const struct mp_cuda_combine params = {
        .x = x,
        .rank = rank,
        .weight = s->weight,
        .shared = m->shared_ffn > 0 ? s->sum : 0,
        .hidden = m->hidden,
        .top_k = device->engine->shape.top_k,
        .tokens = tokens,
        .normalise = m->norm_topk,
    };

    return mp_gpu_launch(device->gpu, mp_device_stream(device), MP_CUDA_KERNEL_combine, &params);
}

static enum mp_status op_combine(void *ctx, uint32_t moe_layer, const uint32_t *experts,
                                 const float *weights)
{
    struct mp_engine *engine = ctx;
    struct mp_device *device = engine->device;
    const mp_cu_stream stream = mp_device_stream(device);
    const uint64_t weights_bytes =
        (uint64_t)engine->tokens * engine->shape.top_k * sizeof(weights[0]);
    enum mp_status status = MP_OK;

    mp_device_release_host(device);
    if (engine->config.observer != NULL && engine->config.observer->layer != NULL) {
        status = mp_gpu_download(device->gpu, stream, engine->state.rank, device->state.rank,
                                 weights_bytes * engine->config.model->hidden);
        if (status == MP_OK)
            status = mp_gpu_finish(device->gpu, stream);
        if (status == MP_OK)
            mp_engine_notify_observer(engine, moe_layer, experts, weights);
    }
    /* The copy has ended when the next layer's scores, or the logits, are here. */
    memcpy(device->weight, weights, weights_bytes);
    if (status == MP_OK)
        status =
            mp_gpu_upload(device->gpu, stream, device->state.weight, device->weight, weights_bytes);
    if (status == MP_OK)
        status = mp_device_combine(device, device->state.x, device->state.rank, engine->tokens);
    if (status == MP_OK)
        mp_engine_note_sum(engine);
    return status;
}

void mp_device_fill_ops(struct mp_device *device)
{
    const struct mp_observer *observer = device->engine->config.observer;

    device->ops = mp_engine_step_ops;
    device->ops.scores = op_scores;
    device->ops.source_scores = op_source_scores;
    device->ops.shared = op_shared;
    device->ops.ended = op_ended;
    device->ops.any_ended = op_any_ended;
    device->ops.link_busy = mp_engine_link_busy;
    device->ops.combine = op_combine;
    if (observer == NULL || observer->predicted == NULL)
        device->ops.predicted = NULL; /* what would move nothing need not be predicted */
}

void mp_device_list_executors(struct mp_device *device, bool in_place)
{
    struct mp_costs *costs = &device->engine->costs;
    const struct mp_costs *measured = &device->engine->config.costs;
    const struct mp_costs all = measured->executor_count > 0 ? *measured : mp_gpu_costs();

    mp_assert(all.executor_count == MP_GPU_EXECUTORS);
    costs->executor_count = 0;
    for (unsigned i = 0; i < MP_GPU_EXECUTORS; i++) {
        const bool loads = mp_executor_loads(&all.executors[i]);
        const uint32_t place = costs->executor_count;

        if (i == MP_GPU_IN_PLACE && !in_place)
            continue;
        device->queues[i].executor = place;
        device->executors[place] = (struct mp_step_executor){ .ctx = &device->queues[i],
                                                              .take = loads ? NULL : take,
                                                              .begin = begin };
        costs->executors[place] = all.executors[i];
        costs->executor_count++;
    }
    device->measured = *costs;
}
