/*
 * After a graph, pager and policies are notified of its layers: the host's step runs over the
 * completed ones, with their scores and with operations that do nothing. So policies get the same
 * calls as in a host-driven step.
 *
 * The first layer with a miss is the host's: its scores are those of the graph, which had all that
 * they need, and its input is made again from what the graph kept. If the assign policy gives an
 * expert to another executor than the device, the host takes over that layer, too: a graph's
 * results are used only if they agree with the policy's decision.
 */
#include <string.h>

#include "engine/forward/cuda/device_graph.h"
#include "vmm/base/error.h"

/* The residual stream of a layer before its experts; see device_graph.c. */
static mp_cu_ptr kept_x(const struct mp_device *device, uint32_t moe_layer)
{
    const struct mp_engine *engine = device->engine;

    return device->graphs->x +
           (uint64_t)moe_layer * engine->tokens * engine->config.model->hidden * sizeof(float);
}

/* Queue what restores the state after attention and norm of the layer. */
static void resume(struct mp_device *device, uint32_t moe_layer)
{
    const struct mp_engine *engine = device->engine;

    mp_device_copy(device, device->state.x, kept_x(device, moe_layer),
                   (uint64_t)engine->tokens * engine->config.model->hidden * sizeof(float));
    mp_engine_dense(&device->compute, engine->layer_of[moe_layer], MP_ARRAY_XN, MP_ARRAY_X);
}

static void give_seen_scores(struct mp_device *device, uint32_t moe_layer, float *scores)
{
    const struct mp_engine *engine = device->engine;
    const size_t count = (size_t)engine->tokens * engine->shape.experts;

    memcpy(scores, device->graphs->seen + moe_layer * count, count * sizeof(float));
}

/* The guess becomes that of read_guess(), as if the host drove the layer. */
static void give_guess(struct mp_engine *engine, uint32_t moe_layer)
{
    const size_t count = (size_t)engine->tokens * engine->shape.experts;

    if (!mp_device_graph_guesses(engine->device, moe_layer))
        return;
    memcpy(engine->state.scores + count, engine->device->graphs->guessed + moe_layer * count,
           count * sizeof(float));
    engine->predict.guess_here = true;
}

static enum mp_status done_scores(void *ctx, uint32_t moe_layer, float *scores)
{
    struct mp_engine *engine = ctx;

    mp_engine_open_layer(engine, moe_layer);
    give_seen_scores(engine->device, moe_layer, scores);
    give_guess(engine, moe_layer);
    engine->scores = scores;
    return MP_OK;
}

static enum mp_status gate_scores(struct mp_device *device, uint32_t moe_layer, uint32_t target,
                                  float *scores)
{
    struct mp_engine *engine = device->engine;
    const uint64_t start_ns = mp_clock_now_ns(engine->config.clock);
    const uint32_t layer = engine->layer_of[target];
    enum mp_status status;

    if (engine->predict.guess_here && target == moe_layer + 1) {
        mp_device_read_guess(&device->compute, scores);
        return MP_OK;
    }
    mp_device_gate(device, layer, kept_x(device, moe_layer),
                   &device->weights.layers[layer].ffn_norm, device->state.scores);
    status = mp_device_read_scores(&device->compute, scores);
    if (status == MP_OK)
        mp_engine_note_predicted(engine, start_ns);
    return status;
}

/* With all experts there, the next layer run ahead of time is that layer itself. The normed input
 * of a layer is made again for those who want it on the host. */
static enum mp_status done_source_scores(void *ctx, uint32_t moe_layer, uint32_t target_layer,
                                         enum mp_score_source source, float *scores)
{
    struct mp_engine *engine = ctx;
    struct mp_device *device = engine->device;
    const enum mp_score_source speaks =
        mp_engine_source_of(engine, moe_layer, target_layer, source);

    if (speaks == MP_SCORES_GATE)
        return gate_scores(device, moe_layer, target_layer, scores);
    if (speaks == MP_SCORES_PARTIAL) {
        give_seen_scores(device, target_layer, scores);
        return MP_OK;
    }
    if (!engine->predict.input_here)
        mp_device_norm(device, device->state.xn, kept_x(device, moe_layer),
                       &device->weights.layers[engine->layer_of[moe_layer]].ffn_norm,
                       engine->tokens);
    return device->graphs->host_ops.source_scores(ctx, moe_layer, target_layer, source, scores);
}

static enum mp_status done_shared(void *ctx, uint32_t moe_layer)
{
    (void)moe_layer;
    ((struct mp_engine *)ctx)->predict.shared = true;
    return MP_OK;
}

static void drive_by_host(struct mp_device *device)
{
    device->engine->step_ops = device->graphs->host_ops;
    memcpy(device->compute.executors, device->graphs->host_executors,
           sizeof(device->compute.executors));
}

/* Others than the device are to compute, on other streams or none: their input has to be there
 * first. */
static bool first_take(void *ctx, uint32_t moe_layer, uint32_t expert)
{
    const struct mp_device_queue *queue = ctx;
    struct mp_device *device = queue->device;
    const struct mp_step_executor *executor = &device->compute.executors[queue->executor];

    drive_by_host(device);
    mp_device_keep_error(device, mp_device_finish(device));
    return executor->take(executor->ctx, moe_layer, expert);
}

/* From here on the layer in work is the host's. */
static bool done_take(void *ctx, uint32_t moe_layer, uint32_t expert)
{
    struct mp_device *device = ((const struct mp_device_queue *)ctx)->device;

    device->graphs->taken = true;
    resume(device, moe_layer);
    return first_take(ctx, moe_layer, expert);
}

static void hook_takes(struct mp_device *device,
                       bool (*take)(void *ctx, uint32_t moe_layer, uint32_t expert))
{
    for (uint32_t x = 0; x < device->engine->costs.executor_count; x++) {
        if (device->compute.executors[x].take != NULL)
            device->compute.executors[x].take = take;
    }
}

/* The layer is the host's but for its scores, which are here without a wait; the device's experts
 * come behind its input on one stream. */
static enum mp_status missed_scores(void *ctx, uint32_t moe_layer, float *scores)
{
    struct mp_engine *engine = ctx;
    struct mp_device *device = engine->device;
    enum mp_status status = mp_engine_peers_poll(engine);

    if (status == MP_OK)
        status = done_scores(ctx, moe_layer, scores);
    if (status != MP_OK)
        return status;
    drive_by_host(device);
    hook_takes(device, first_take);
    engine->summed_ns = 0; /* what is between is not one layer */
    mp_engine_note_scores(engine);
    resume(device, moe_layer);
    return mp_device_status(device);
}

static enum mp_status done_experts(void *ctx, uint32_t moe_layer, const struct mp_expert_work *work,
                                   uint32_t count)
{
    (void)moe_layer;
    mp_device_notify_ended(((struct mp_device_queue *)ctx)->device, work, count);
    return MP_OK;
}

static enum mp_status done_combine(void *ctx, uint32_t moe_layer, const uint32_t *experts,
                                   const float *weights)
{
    (void)ctx;
    (void)moe_layer;
    (void)experts;
    (void)weights;
    return MP_OK;
}

/* The step's operations and executors are those of layers that are done. */
static void drive_by_graph(struct mp_device *device)
{
    struct mp_device_graphs *g = device->graphs;
    struct mp_step_ops *ops = &device->engine->step_ops;
    struct mp_step_executor *executors = device->compute.executors;

    g->host_ops = *ops;
    memcpy(g->host_executors, executors, sizeof(g->host_executors));
    ops->scores = done_scores;
    ops->source_scores = done_source_scores;
    ops->shared = done_shared;
    ops->combine = done_combine;
    for (uint32_t x = 0; x < device->engine->costs.executor_count; x++) {
        executors[x].begin = done_experts;
        executors[x].ordered = false; /* it is done, which is reported at once */
    }
    hook_takes(device, done_take);
}

enum mp_status mp_device_graph_notify(struct mp_device *device, uint32_t first, uint32_t done,
                                      uint32_t *next_p)
{
    struct mp_device_graphs *g = device->graphs;
    struct mp_engine *engine = device->engine;
    enum mp_status status = MP_OK;
    uint32_t l;

    g->taken = false;
    drive_by_graph(device);
    for (l = first; l < done && status == MP_OK && !g->taken; l++)
        status = mp_step_layer(engine->step, l, engine->tokens);
    drive_by_host(device);
    if (l < engine->shape.layers && status == MP_OK && !g->taken) {
        engine->step_ops.scores = missed_scores;
        status = mp_step_layer(engine->step, l++, engine->tokens);
        drive_by_host(device);
    }
    *next_p = l;
    return status;
}
