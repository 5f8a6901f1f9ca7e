/*
 * The operations of a MoE layer that the step (policy/pager/step.h) calls in its order: router
 * scores, shared expert, routed experts, combine.
 *
 * The normed input of the layer is state.xn and stays there until combine has added everything to
 * the residual stream state.x. Results of routed experts go to state.rank by (token, rank) and are
 * summed in rank order, so the order in which experts are computed leaves no trace in the bits.
 */
#include <math.h>
#include <string.h>

#include "engine/forward/engine_int.h"
#include "engine/forward/route_from.h"

void mp_engine_router(struct mp_engine *engine, uint32_t layer, const float *x, float *scores)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_product product = {
        &engine->config.weights->layers[layer].router, NULL, x, m->hidden, scores, m->experts,
    };

    mp_engine_multiply(engine, &product, 1, engine->tokens);
    engine->config.kernels->softmax(scores, m->experts, m->experts, engine->tokens);
}

static enum mp_status op_scores(void *ctx, uint32_t moe_layer, float *scores)
{
    struct mp_engine *engine = ctx;

    engine->predict.chosen = NULL;
    engine->predict.shared = false;
    if (engine->predict.done != NULL)
        memset(engine->predict.done, 0, (size_t)engine->tokens * engine->shape.top_k);
    mp_engine_router(engine, engine->layer_of[moe_layer], engine->state.xn, scores);
    if (engine->config.route_from != NULL)
        mp_route_from_scores(engine->config.route_from, engine->batch, moe_layer, scores);
    engine->scores = scores;
    mp_engine_note_scores(engine);
    return MP_OK;
}

static enum mp_status op_source_scores(void *ctx, uint32_t moe_layer, uint32_t target_layer,
                                       enum mp_score_source source, float *scores)
{
    struct mp_engine *engine = ctx;
    const uint64_t start_ns = mp_clock_now_ns(engine->config.clock);

    mp_engine_source_scores(engine, moe_layer, target_layer, source, scores);
    mp_engine_note_predicted(engine, start_ns);
    return MP_OK;
}

/* sum := sigmoid(shared_gate x) * shared(x), or 0 */
static enum mp_status op_shared(void *ctx, uint32_t moe_layer)
{
    struct mp_engine *engine = ctx;
    const struct mp_model_config *m = engine->config.model;
    const struct mp_layer_weights *w = &engine->config.weights->layers[engine->layer_of[moe_layer]];
    struct mp_state *s = &engine->state;
    const size_t H = m->hidden, tokens = engine->tokens;
    const struct mp_product gate = { &w->shared_gate, NULL, s->xn, H, s->row, 1 };

    engine->predict.shared = true;
    if (m->shared_ffn == 0)
        return MP_OK;

    const struct mp_ffn_work work = {
        .ffn = w->shared, .x = s->xn, .y = s->sum, .gate = s->gate, .up = s->up, .tokens = tokens
    };
    mp_engine_ffn(engine, &work, 1); // (T, H)
    if (w->shared_gate.data == NULL)
        return MP_OK;
    mp_engine_multiply(engine, &gate, 1, tokens); // (T)
    for (size_t t = 0; t < tokens; t++) {
        const float open = 1.0f / (1.0f + expf(-s->row[t]));

        for (size_t i = 0; i < H; i++)
            s->sum[t * H + i] *= open;
    }
    return MP_OK;
}

/* Experts that are computed together, at most. */
#define GROUP_MAX 64

struct group {
    struct mp_engine *engine;
    struct mp_ffn_work list[GROUP_MAX];
    uint32_t count, rows;
    uint32_t head; /* in the list: first slice of the expert that was added last */
    bool gathers;
};

static struct mp_ffn expert_ffn(const struct mp_engine *engine, uint32_t moe_layer,
                                const struct mp_expert_work *work)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_weights *weights = engine->config.weights;
    const size_t H = m->hidden, F = mp_slices_channels(&weights->slices, work->slice);
    const enum mp_wtype type = weights->unit_types[moe_layer * m->experts + work->expert];

    return (struct mp_ffn){
        .gate = { work->pieces[MP_PIECE_GATE], type, F, H },
        .up = { work->pieces[MP_PIECE_UP], type, F, H },
        .down = { work->pieces[MP_PIECE_DOWN], type, H, F },
    };
}

/* Is it the next slice of the expert that was added last? */
static bool continues(const struct group *group, const struct mp_expert_work *work)
{
    return group->count > 0 && work->slice > 0 && work[-1].expert == work->expert;
}

/* A single row is read and written in place; more are gathered, and scattered afterwards. */
static void add_expert(struct group *group, uint32_t moe_layer, const struct mp_expert_work *work)
{
    const struct mp_engine *engine = group->engine;
    const struct mp_slices *slices = &engine->config.weights->slices;
    const struct mp_state *s = &engine->state;
    const size_t H = engine->config.model->hidden, F = engine->config.model->expert_ffn;
    const bool single = work->rows.count == 1, later = continues(group, work);
    const size_t row = later ? group->rows - work->rows.count : group->rows;
    const size_t at = row * F + work->rows.count * mp_slices_first(slices, work->slice);

    group->list[group->count++] = (struct mp_ffn_work){
        .ffn = expert_ffn(engine, moe_layer, work),
        .x = single ? s->xn + work->rows.token[0] * H : s->xe + row * H,
        .y = single ? s->rank + mp_engine_rank_row(engine, &work->rows, 0) * H : s->ye + row * H,
        .gate = s->gate + at,
        .up = s->up + at,
        .tokens = work->rows.count,
        .later = later,
        .add = work->slice > 0,
        .rows = single ? NULL : &work->rows,
    };
    if (later)
        group->list[group->head].more++;
    else
        group->head = group->count - 1;
    group->rows += later ? 0 : work->rows.count;
    group->gathers |= !single;
    for (uint32_t i = 0; engine->predict.done != NULL && i < work->rows.count; i++)
        engine->predict.done[mp_engine_rank_row(engine, &work->rows, i)] =
            work->slice + 1 == slices->count;
}

static void gather_expert(void *ctx, uint64_t index, unsigned thread)
{
    const struct group *group = ctx;
    const struct mp_ffn_work *work = &group->list[index];
    const struct mp_state *s = &group->engine->state;
    const size_t H = group->engine->config.model->hidden;

    (void)thread;
    for (size_t i = 0; !work->later && work->rows != NULL && i < work->tokens; i++) {
        memcpy(s->xe + (work->x - s->xe) + i * H, s->xn + work->rows->token[i] * H,
               H * sizeof(float));
        if (work->add)
            memcpy(work->y + i * H, s->rank + mp_engine_rank_row(group->engine, work->rows, i) * H,
                   H * sizeof(float));
    }
}

/* Has the group room for it? */
static bool has_room(const struct group *group, const struct mp_expert_work *work,
                     uint64_t rows_max)
{
    return group->count < GROUP_MAX &&
           (continues(group, work) || group->rows + work->rows.count <= rows_max);
}

enum mp_status mp_engine_begin_experts(void *ctx, uint32_t moe_layer,
                                       const struct mp_expert_work *work, uint32_t count)
{
    struct mp_engine *engine = ctx;
    struct group group = { .engine = engine };
    const uint64_t rows_max = mp_engine_expert_rows(engine->config.tokens_max, engine->shape.top_k);

    for (uint32_t i = 0; i < count;) {
        const uint64_t start_ns = mp_clock_now_ns(engine->config.clock);
        uint64_t end_ns;
        /* All experts of a large model's layer can be many seconds of reading. */
        const enum mp_status status = mp_engine_check_cancel(engine);

        if (status != MP_OK)
            return status;
        group.count = group.rows = 0;
        group.gathers = false;
        while (i < count && has_room(&group, &work[i], rows_max))
            add_expert(&group, moe_layer, &work[i++]);
        if (group.gathers)
            mp_engine_each_token(engine, gather_expert, &group, group.count);
        mp_engine_ffn(engine, group.list, group.count);
        end_ns = mp_clock_now_ns(engine->config.clock);
        mp_engine_note_experts(engine, end_ns - start_ns, group.count, group.rows);
        mp_timeline_span(
            engine->config.timeline, engine->track, "experts", start_ns, end_ns,
            &(struct mp_timeline_args){ { "experts", "rows" }, { group.count, group.rows } });
    }
    return MP_OK;
}

struct combine_job {
    struct mp_engine *engine;
    const float *weights; // (T, R)
};

void mp_engine_sum_experts(struct mp_engine *engine, size_t t, const float *weights,
                           const uint8_t *done, float *out)
{
    const struct mp_kernels *kernels = engine->config.kernels;
    const struct mp_state *s = &engine->state;
    const size_t H = engine->config.model->hidden, R = engine->shape.top_k;
    float total = 0;

    for (size_t r = 0; r < R; r++)
        total += weights[r];
    if (!engine->config.model->norm_topk)
        total = 1.0f;
    memset(out, 0, H * sizeof(float));
    for (size_t r = 0; r < R; r++) {
        if (done == NULL || done[r])
            kernels->axpy(out, s->rank + (t * R + r) * H, weights[r] / total, H);
    }
    if (engine->config.model->shared_ffn > 0)
        kernels->axpy(out, s->sum + t * H, 1.0f, H);
}

/* x[t] += what the experts give */
static void combine_token(void *ctx, uint64_t t, unsigned thread)
{
    const struct combine_job *job = ctx;
    struct mp_state *s = &job->engine->state;
    const size_t H = job->engine->config.model->hidden, R = job->engine->shape.top_k;
    float *out = s->ye + t * H;

    (void)thread;
    mp_engine_sum_experts(job->engine, t, job->weights + t * R, NULL, out);
    job->engine->config.kernels->axpy(s->x + t * H, out, 1.0f, H);
}

void mp_engine_notify_observer(struct mp_engine *engine, uint32_t moe_layer,
                               const uint32_t *experts, const float *weights)
{
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

    if (observer != NULL && observer->layer != NULL)
        observer->layer(observer->ctx, &seen);
}

static enum mp_status op_combine(void *ctx, uint32_t moe_layer, const uint32_t *experts,
                                 const float *weights)
{
    struct combine_job job = { .engine = ctx, .weights = weights };

    mp_engine_notify_observer(ctx, moe_layer, experts, weights);
    mp_engine_each_token(job.engine, combine_token, &job, job.engine->tokens);
    mp_engine_note_sum(ctx);
    return MP_OK;
}

static void op_routed(void *ctx, uint32_t moe_layer, uint32_t tokens, uint32_t k,
                      const uint32_t *experts, const float *weights)
{
    struct mp_engine *engine = ctx;

    engine->predict.chosen = experts;
    engine->predict.weights = weights;
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

const struct mp_step_ops mp_engine_step_ops = {
    .scores = op_scores,
    .source_scores = op_source_scores,
    .link_busy = mp_engine_link_busy,
    .shared = op_shared,
    .combine = op_combine,
    .routed = op_routed,
    .predicted = op_predicted,
};
