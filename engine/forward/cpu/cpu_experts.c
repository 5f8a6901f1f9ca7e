/*
 * The CPU's part of a MoE layer: shared expert, routed experts, their sum.
 *
 * The normed input of the layer is state.xn and stays there until combine has added everything to
 * the residual stream state.x. Results of routed experts go to state.rank by (token, rank) and are
 * summed in rank order, so the bits do not depend on the order in which experts are computed.
 */
#include <math.h>
#include <string.h>

#include "engine/forward/cpu/cpu_int.h"

/* sum := sigmoid(shared_gate x) * shared(x), or, where it has norms of its own, norm(shared(norm of
 * the stream)) */
void mp_cpu_shared(struct mp_compute *c, uint32_t layer)
{
    struct mp_engine *engine = c->engine;
    const struct mp_layer_weights *w = &c->weights->layers[layer];
    struct mp_state *s = &engine->state;
    const size_t H = engine->config.model->hidden, tokens = engine->tokens;
    const struct mp_product gate = { &w->shared_gate, NULL, s->xn, H, s->row, 1 };
    const bool normed = engine->config.model->norms_after;
    const struct mp_ffn_work work = { .ffn = w->shared,
                                      .x = normed ? s->xe : s->xn,
                                      .y = s->sum,
                                      .gate = s->gate,
                                      .up = s->up,
                                      .tokens = tokens };

    if (normed)
        mp_cpu_norm(engine, s->xe, s->x, &w->shared_norm, tokens);
    mp_cpu_ffn(engine, &work, 1); // (T, H)
    if (normed)
        mp_cpu_norm(engine, s->sum, s->sum, &w->shared_after, tokens);
    if (w->shared_gate.data == NULL)
        return;
    mp_cpu_multiply(engine, &gate, 1, tokens); // (T)
    for (size_t t = 0; t < tokens; t++) {
        const float open = 1.0f / (1.0f + expf(-s->row[t]));

        for (size_t i = 0; i < H; i++)
            s->sum[t * H + i] *= open;
    }
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

/* Of one expert; slices that begin at channel `first`. */
static void set_biases(struct mp_ffn *ffn, const struct mp_model_config *m,
                       const struct mp_expert_bias *all, size_t expert, size_t first)
{
    const size_t F = m->expert_ffn, step = all->up != NULL ? 1 : 2;

    if (all->gate == NULL)
        return;
    ffn->bias_step = step;
    ffn->gate_bias = all->gate + (expert * F + first) * step;
    ffn->up_bias = all->up != NULL ? all->up + expert * F + first : ffn->gate_bias + 1;
    ffn->down_bias = first == 0 ? all->down + expert * m->hidden : NULL;
}

static struct mp_ffn expert_ffn(const struct mp_engine *engine, uint32_t moe_layer,
                                const struct mp_expert_work *work)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_weights *weights = engine->config.weights;
    const size_t H = m->hidden, F = mp_ffn_slices_channels(&weights->slices, work->slice);
    const enum mp_wtype *types = weights->unit_types[moe_layer * m->experts + work->expert].piece;

    struct mp_ffn ffn = {
        .gate = { work->pieces[MP_PIECE_GATE], types[MP_PIECE_GATE], F, H },
        .up = { work->pieces[MP_PIECE_UP], types[MP_PIECE_UP], F, H },
        .down = { work->pieces[MP_PIECE_DOWN], types[MP_PIECE_DOWN], H, F },
        .transposed = weights->transposed,
    };

    if (weights->apart) {
        ffn.down.data = work->pieces[MP_APART_DOWN];
        ffn.scales = work->pieces[MP_APART_DOWN_SCALES];
    }
    set_biases(&ffn, m, &weights->layers[engine->layer_of[moe_layer]].expert_bias, work->expert,
               mp_ffn_slices_first(&weights->slices, work->slice));
    return ffn;
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
    const struct mp_ffn_slices *slices = &engine->config.weights->slices;
    const struct mp_state *s = &engine->state;
    const size_t H = engine->config.model->hidden, F = engine->config.model->expert_ffn;
    const bool single = work->rows.count == 1, later = continues(group, work);
    const size_t row = later ? group->rows - work->rows.count : group->rows;
    const size_t at = row * F + work->rows.count * mp_ffn_slices_first(slices, work->slice);

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
}

static void gather_expert(void *ctx, uint64_t index, unsigned thread)
{
    const struct group *group = ctx;
    const struct mp_ffn_work *work = &group->list[index];
    const struct mp_state *s = &group->engine->state;
    const size_t H = group->engine->config.model->hidden;

    (void)thread;
    if (!work->later && work->rows != NULL) {
        for (size_t i = 0; i < work->tokens; i++) {
            memcpy(s->xe + (work->x - s->xe) + i * H, s->xn + work->rows->token[i] * H,
                   H * sizeof(float));
            if (work->add)
                memcpy(work->y + i * H,
                       s->rank + mp_engine_rank_row(group->engine, work->rows, i) * H,
                       H * sizeof(float));
        }
    }
}

/* Has the group room for it? */
static bool has_room(const struct group *group, const struct mp_expert_work *work,
                     uint64_t rows_max)
{
    return group->count < GROUP_MAX &&
           (continues(group, work) || group->rows + work->rows.count <= rows_max);
}

enum mp_status mp_cpu_experts(struct mp_engine *engine, uint32_t moe_layer,
                              const struct mp_expert_work *work, uint32_t count)
{
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
            mp_cpu_each_token(engine, gather_expert, &group, group.count);
        mp_cpu_ffn(engine, group.list, group.count);
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
    const struct mp_layer_weights *layer;
    const float *weights; // (T, R)
};

/*
 * x(H) += what the routed and shared experts of token t give: the ranks in order, weights(R)
 * normalised and scaled where the model does, then the shared part, all through the layer's norms
 * and scale. Ranks whose byte in `done` (R) is 0 count as zero; NULL: all are there.
 */
static void add_experts(const struct combine_job *job, size_t t, const uint8_t *done, float *x)
{
    const struct mp_engine *engine = job->engine;
    const struct mp_layer_weights *w = job->layer;
    const struct mp_kernels *kernels = engine->config.kernels;
    const struct mp_state *s = &engine->state;
    const size_t H = engine->config.model->hidden, R = engine->shape.top_k;
    const float scale = engine->config.model->routed_scale;
    const float *weights = job->weights + t * R;
    float total = 0, *out = s->ye + t * H;

    for (size_t r = 0; r < R; r++)
        total += weights[r];
    if (!engine->config.model->norm_topk)
        total = 1.0f;
    memset(out, 0, H * sizeof(float));
    for (size_t r = 0; r < R; r++) {
        if (done == NULL || done[r])
            kernels->axpy(out, s->rank + (t * R + r) * H, weights[r] / total * scale, H);
    }
    if (w->routed_after.w != NULL)
        mp_cpu_norm(engine, out, out, &w->routed_after, 1);
    if (engine->config.model->shared_ffn != 0)
        kernels->axpy(out, s->sum + t * H, 1.0f, H);
    if (w->ffn_after.w != NULL)
        mp_cpu_norm(engine, out, out, &w->ffn_after, 1);
    kernels->axpy(x, out, engine->config.model->residual_scale, H);
    if (w->layer_scale != NULL)
        mp_cpu_scale(x, *w->layer_scale, H);
}

static void combine_token(void *ctx, uint64_t t, unsigned thread)
{
    const struct combine_job *job = ctx;

    (void)thread;
    add_experts(job, t, NULL, job->engine->state.x + t * job->engine->config.model->hidden);
}

void mp_cpu_combine(struct mp_compute *c, uint32_t layer, const float *weights)
{
    struct combine_job job = { c->engine, &c->weights->layers[layer], weights };

    mp_cpu_each_token(c->engine, combine_token, &job, c->engine->tokens);
}

void mp_cpu_combine_done(struct mp_compute *c, uint32_t layer, const float *weights)
{
    const struct combine_job job = { c->engine, &c->weights->layers[layer], weights };
    const struct mp_engine *engine = c->engine;
    const struct mp_state *s = &engine->state;
    const size_t H = engine->config.model->hidden, R = engine->shape.top_k;

    memcpy(s->partial, s->x, engine->tokens * H * sizeof(float));
    for (size_t t = 0; t < engine->tokens; t++)
        add_experts(&job, t, s->done + t * R, s->partial + t * H);
}
