/*
 * The operations of a MoE layer that the step (policy/pager/step.h) calls in its order, over a
 * compute: scores, predictors' scores, shared expert, experts, combine.
 *
 * This is the part common to CPU and device: notification of observers, measured costs, and the
 * state of a layer. Computing experts and reporting their end is the compute's task.
 */
#include <string.h>

#include "engine/forward/engine_int.h"
#include "engine/forward/forced_routing.h"
#include "engine/forward/lookahead.h"

void mp_engine_open_layer(struct mp_engine *engine, uint32_t moe_layer)
{
    struct mp_compute *c = engine->compute;

    engine->predict.chosen = NULL;
    engine->predict.shared = engine->predict.guess_here = false;
    engine->predict.input_here = c->ops->show == NULL;
    if (engine->state.done != NULL)
        memset(engine->state.done, 0, (size_t)engine->tokens * engine->shape.top_k);
    if (c->ops->open != NULL)
        c->ops->open(c, moe_layer);
}

/* Does somebody on the host look at every layer's input? */
static bool host_looks(const struct mp_engine *engine)
{
    const enum mp_score_source source = engine->policies.predict_ops->source;
    const struct mp_observer *observer = engine->config.observer;

    return source == MP_SCORES_RESIDUAL || source == MP_SCORES_LLAPOR ||
           (observer != NULL && observer->layer != NULL);
}

/* Queue the layer's normed input for the host; it is there when the compute has been waited for. */
static void show_input(struct mp_engine *engine)
{
    struct mp_compute *c = engine->compute;

    if (!engine->predict.input_here)
        c->ops->show(c, MP_ARRAY_XN,
                     (uint64_t)engine->tokens * engine->config.model->hidden * sizeof(float));
    engine->predict.input_here = true;
}

enum mp_status mp_engine_bring_input(struct mp_engine *engine)
{
    if (engine->predict.input_here)
        return MP_OK;
    show_input(engine);
    return engine->compute->ops->wait(engine->compute);
}

/* What the next layer's gate says is probably asked for, as it was in the layer before: then it
 * comes with this layer's scores. */
static void guess_next(struct mp_engine *engine, uint32_t moe_layer)
{
    struct mp_predict_state *p = &engine->predict;
    struct mp_compute *c = engine->compute;

    if (moe_layer > 0)
        p->guesses = p->asked;
    p->asked = false;
    if (!p->guesses || c->ops->guess == NULL || moe_layer + 1 == engine->shape.layers)
        return;
    c->ops->guess(c, engine->layer_of[moe_layer + 1]);
    p->guess_here = true;
}

static enum mp_status op_scores(void *ctx, uint32_t moe_layer, float *scores)
{
    struct mp_engine *engine = ctx;
    struct mp_compute *c = engine->compute;
    enum mp_status status = mp_engine_peers_poll(engine);

    if (status != MP_OK)
        return status;
    mp_engine_open_layer(engine, moe_layer);
    guess_next(engine, moe_layer);
    c->ops->router(c, engine->layer_of[moe_layer], MP_ARRAY_XN, NULL, scores);
    if (host_looks(engine))
        show_input(engine);
    status = c->ops->read_scores(c, scores);
    if (status != MP_OK)
        return status;
    if (engine->config.forced_routing != NULL)
        mp_forced_routing_scores(engine->config.forced_routing, engine->batch, moe_layer, scores);
    engine->scores = scores;
    mp_engine_note_scores(engine);
    return MP_OK;
}

static void op_weigh(void *ctx, uint32_t moe_layer, const uint32_t *experts, float *weights)
{
    struct mp_engine *engine = ctx;
    struct mp_compute *c = engine->compute;

    c->ops->weigh(c, engine->layer_of[moe_layer], experts, weights);
}

static enum mp_status op_source_scores(void *ctx, uint32_t moe_layer, uint32_t target_layer,
                                       enum mp_score_source source, float *scores)
{
    struct mp_engine *engine = ctx;
    const uint64_t start_ns = mp_clock_now_ns(engine->config.clock);
    const enum mp_status status =
        mp_engine_source_scores(engine, moe_layer, target_layer, source, scores);

    if (status == MP_OK)
        mp_engine_note_predicted(engine, start_ns);
    return status;
}

static enum mp_status op_shared(void *ctx, uint32_t moe_layer)
{
    struct mp_engine *engine = ctx;
    struct mp_compute *c = engine->compute;

    mp_lookahead_prefetch(engine->lookahead, moe_layer); /* reads go on while it is computed */
    engine->predict.shared = true;
    if (engine->config.model->shared_ffn != 0)
        c->ops->shared(c, engine->layer_of[moe_layer]);
    return c->ops->status(c);
}

void mp_engine_note_done(struct mp_engine *engine, const struct mp_expert_work *work,
                         uint32_t count)
{
    const uint32_t slices = engine->config.weights->slices.count;

    if (engine->state.done == NULL)
        return;
    for (uint32_t w = 0; w < count; w++) {
        const struct mp_rows *rows = &work[w].rows;

        if (work[w].executor != MP_EXECUTOR_HOME || work[w].slice + work[w].slices < slices)
            continue;
        for (uint32_t i = 0; i < rows->count; i++)
            engine->state.done[mp_engine_rank_row(engine, rows, i)] = 1;
    }
}

static enum mp_status op_ended(void *ctx, uint32_t *needs, uint32_t *count_p)
{
    struct mp_compute *c = ((struct mp_engine *)ctx)->compute;

    return c->ops->ended(c, needs, count_p);
}

static bool op_any_ended(void *ctx)
{
    struct mp_compute *c = ((struct mp_engine *)ctx)->compute;

    return c->ops->any_ended(c);
}

static void op_look(void *ctx, bool sleeps)
{
    struct mp_compute *c = ((struct mp_engine *)ctx)->compute;

    c->ops->look(c, sleeps);
}

/* Notify config.observer of the layer's results. */
static enum mp_status notify_observer(struct mp_engine *engine, uint32_t moe_layer,
                                      const uint32_t *experts, const float *weights)
{
    struct mp_compute *c = engine->compute;
    const struct mp_observer *observer = engine->config.observer;
    const struct mp_layer_seen seen = {
        .layer = moe_layer,
        .batch = engine->batch,
        .k = engine->shape.top_k,
        .input = engine->state.xn,
        .experts = experts,
        .weights = weights,
        .results = engine->state.rank,
    };
    enum mp_status status;

    if (observer == NULL || observer->layer == NULL)
        return MP_OK;
    if (c->ops->show != NULL)
        c->ops->show(c, MP_ARRAY_RANK,
                     (uint64_t)engine->tokens * seen.k * engine->config.model->hidden *
                         sizeof(float));
    status = c->ops->wait(c);
    if (status == MP_OK)
        observer->layer(observer->ctx, &seen);
    return status;
}

static enum mp_status op_combine(void *ctx, uint32_t moe_layer, const uint32_t *experts,
                                 const float *weights)
{
    struct mp_engine *engine = ctx;
    struct mp_compute *c = engine->compute;
    enum mp_status status = mp_engine_peers_collect(engine);

    if (status == MP_OK)
        status = notify_observer(engine, moe_layer, experts, weights);
    if (status != MP_OK)
        return status;
    c->ops->combine(c, engine->layer_of[moe_layer], weights);
    mp_engine_note_sum(engine);
    return c->ops->status(c);
}

static void op_routed(void *ctx, uint32_t moe_layer, uint32_t tokens, uint32_t k,
                      const uint32_t *experts, const float *weights)
{
    struct mp_engine *engine = ctx;

    engine->predict.chosen = experts;
    engine->predict.weights = weights;
    mp_lookahead_routed(engine->lookahead, moe_layer, experts);
    mp_engine_llapor_learn(engine, moe_layer, experts);
    if (engine->config.heat_map != NULL)
        mp_heat_map_count(engine->config.heat_map, moe_layer, tokens, k, experts);
    if (engine->config.routed != NULL)
        engine->config.routed(engine->config.routed_ctx, moe_layer, tokens, k, experts, weights);
}

static void op_predicted(void *ctx, uint32_t moe_layer, uint32_t target_layer, uint32_t tokens,
                         const float *scores)
{
    const struct mp_observer *observer = ((struct mp_engine *)ctx)->config.observer;

    if (observer != NULL && observer->predicted != NULL)
        observer->predicted(observer->ctx, moe_layer, target_layer, tokens, scores);
}

void mp_engine_fill_step_ops(struct mp_engine *engine)
{
    const struct mp_compute_ops *compute = engine->compute->ops;
    const struct mp_observer *observer = engine->config.observer;
    const bool predicts =
        engine->device == NULL || (observer != NULL && observer->predicted != NULL);

    engine->step_ops = (struct mp_step_ops){
        .scores = op_scores,
        .assigned = engine->config.peers != NULL ? mp_engine_peers_choose : NULL,
        .weigh = compute->weigh != NULL ? op_weigh : NULL,
        .source_scores = op_source_scores,
        .shared = op_shared,
        .ended = compute->ended != NULL ? op_ended : NULL,
        .predicts_beside = compute->ended != NULL, /* experts have streams of their own */
        .any_ended = compute->any_ended != NULL ? op_any_ended : NULL,
        .look = compute->look != NULL ? op_look : NULL,
        .link_busy = mp_engine_link_busy,
        .combine = op_combine,
        .routed = op_routed,
        /* what would move nothing need not be predicted */
        .predicted = predicts ? op_predicted : NULL,
    };
}
