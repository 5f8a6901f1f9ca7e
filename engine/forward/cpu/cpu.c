/*
 * The CPU's operations of a compute, each done when it returns: over the pool by rows of a matrix
 * (cpu_products.c), by runs of heads (cpu_attention.c) or by tokens. Nothing of it can fail.
 */
#include "engine/forward/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "engine/forward/cpu/cpu_int.h"
#include "vmm/base/assert.h"

static float *array(const struct mp_compute *c, enum mp_array array)
{
    return c->engine->state.array[array];
}

static size_t hidden(const struct mp_compute *c)
{
    return c->engine->config.model->hidden;
}

void mp_cpu_scale(float *x, float scale, size_t count)
{
    if (scale == 1)
        return;
    for (size_t i = 0; i < count; i++)
        x[i] *= scale;
}

static void begin(struct mp_compute *c, const struct mp_batch *batch, uint32_t wanted)
{
    (void)c;
    (void)batch;
    (void)wanted;
}

static void embed(struct mp_compute *c)
{
    const struct mp_view *table = &c->weights->embed;
    const struct mp_batch *batch = c->engine->batch;
    const size_t H = hidden(c), row_bytes = mp_wtype_bytes(table->type, H);

    for (uint32_t t = 0; t < batch->count; t++)
        c->engine->config.kernels->convert(c->engine->state.x + t * H,
                                           (const char *)table->data + batch->token[t] * row_bytes,
                                           table->type, H);
    mp_cpu_scale(c->engine->state.x, c->engine->config.model->embed_scale, batch->count * H);
}

/* With a bias it is LayerNorm. */
static void layernorm(float *out, const float *x, const struct mp_norm *norm, size_t count,
                      float eps)
{
    double mean = 0, square = 0;
    float scale;

    for (size_t i = 0; i < count; i++)
        mean += (double)x[i];
    mean /= (double)count;
    for (size_t i = 0; i < count; i++)
        square += ((double)x[i] - mean) * ((double)x[i] - mean);
    scale = (float)(1 / sqrt(square / (double)count + (double)eps));
    for (size_t i = 0; i < count; i++)
        out[i] = (x[i] - (float)mean) * scale * norm->w[i] + norm->bias[i];
}

void mp_cpu_norm(const struct mp_engine *engine, float *out, const float *x,
                 const struct mp_norm *norm, size_t rows)
{
    const size_t H = engine->config.model->hidden;
    const float eps = engine->config.model->norm_eps;

    if (norm->bias == NULL)
        engine->config.kernels->rmsnorm(out, H, x, H, norm->w, H, rows, eps);
    for (size_t r = 0; norm->bias != NULL && r < rows; r++)
        layernorm(out + r * H, x + r * H, norm, H, eps);
}

struct norm_job {
    const struct mp_engine *engine;
    const float *x;
    const struct mp_norm *norm;
    float *out;
};

static void norm_token(void *ctx, uint64_t t, unsigned thread)
{
    const struct norm_job *job = ctx;
    const size_t H = job->engine->config.model->hidden;

    (void)thread;
    mp_cpu_norm(job->engine, job->out + t * H, job->x + t * H, job->norm, 1);
}

static void norm(struct mp_compute *c, enum mp_array out, enum mp_array in,
                 const struct mp_norm *norm)
{
    struct norm_job job = {
        .engine = c->engine, .x = array(c, in), .norm = norm, .out = array(c, out)
    };

    mp_cpu_each_token(c->engine, norm_token, &job, c->engine->tokens);
}

static void draft_in(struct mp_compute *c)
{
    const struct mp_draft_weights *w = &c->weights->draft;
    const struct mp_engine *engine = c->engine;
    const size_t H = hidden(c);

    for (size_t t = 0; t < engine->tokens; t++) {
        float *out = engine->state.draft_in + t * 2 * H;

        mp_cpu_norm(engine, out, engine->state.x + t * H, &w->embed_norm, 1);
        mp_cpu_norm(engine, out + H, engine->batch->states + t * H, &w->state_norm, 1);
    }
}

#define PROJECTIONS_MAX 3

static void project(struct mp_compute *c, const struct mp_projection *list, uint32_t count,
                    uint32_t tokens)
{
    struct mp_product products[PROJECTIONS_MAX] = { { 0 } };
    const bool add = list[0].add;

    mp_assert(count <= PROJECTIONS_MAX && (count == 1 || !add) && (add || list[0].norm == NULL));
    for (uint32_t i = 0; i < count; i++)
        products[i] = (struct mp_product){
            .w = list[i].w,
            .bias = list[i].bias,
            .x = array(c, list[i].in),
            .x_stride = list[i].w->cols,
            .y = add ? c->engine->state.ye : array(c, list[i].out),
            .y_stride = list[i].w->rows,
        };
    mp_cpu_multiply(c->engine, products, count, tokens);
    if (list[0].norm != NULL)
        mp_cpu_norm(c->engine, c->engine->state.ye, c->engine->state.ye, list[0].norm, tokens);
    if (add)
        c->engine->config.kernels->axpy(array(c, list[0].out), c->engine->state.ye,
                                        c->engine->config.model->residual_scale,
                                        tokens * list[0].w->rows);
}

static void ffn(struct mp_compute *c, const struct mp_ffn *ffn, enum mp_array in, enum mp_array x)
{
    const struct mp_engine *engine = c->engine;
    const struct mp_state *s = &engine->state;
    const struct mp_ffn_work work = {
        .ffn = *ffn,
        .x = array(c, in),
        .y = s->ye,
        .gate = s->gate,
        .up = s->up,
        .tokens = engine->tokens,
    };

    mp_cpu_ffn(c->engine, &work, 1);
    engine->config.kernels->axpy(array(c, x), s->ye, engine->config.model->residual_scale,
                                 engine->tokens * hidden(c));
}

static void pick(struct mp_compute *c, const struct mp_norm *norm, uint32_t wanted)
{
    const struct mp_batch *batch = c->engine->batch;
    const struct mp_state *s = &c->engine->state;
    const size_t H = hidden(c);
    size_t picked = 0;

    for (uint32_t t = 0; t < batch->count; t++) {
        if (batch->want[t])
            memcpy(s->xe + picked++ * H, s->x + t * H, H * sizeof(float));
    }
    mp_assert(picked == wanted);
    mp_cpu_norm(c->engine, s->xe, s->xe, norm, wanted);
}

static enum mp_status result(struct mp_compute *c, uint32_t wanted)
{
    const struct mp_model_config *m = c->engine->config.model;

    float *logits = c->engine->state.logits;
    const size_t count = (size_t)wanted * m->vocab;

    mp_cpu_scale(logits, m->logit_scale, count);
    for (size_t i = 0; m->logit_cap > 0 && i < count; i++)
        logits[i] = m->logit_cap * tanhf(logits[i] / m->logit_cap);
    return MP_OK;
}

static enum mp_status read_scores(struct mp_compute *c, float *scores)
{
    (void)c;
    (void)scores; /* they are there */
    return MP_OK;
}

/* Of the executor; ctx is an engine. */
static enum mp_status begin_experts(void *ctx, uint32_t moe_layer,
                                    const struct mp_expert_work *work, uint32_t count)
{
    const enum mp_status status = mp_cpu_experts(ctx, moe_layer, work, count);

    if (status == MP_OK)
        mp_engine_note_done(ctx, work, count);
    return status;
}

static enum mp_status status(struct mp_compute *c)
{
    (void)c;
    return MP_OK;
}

static const struct mp_compute_ops ops = {
    .begin = begin,
    .embed = embed,
    .draft_in = draft_in,
    .norm = norm,
    .project = project,
    .latent = mp_cpu_latent,
    .latent_values = mp_cpu_latent_values,
    .split_gate = mp_cpu_split_gate,
    .apply_gate = mp_cpu_apply_gate,
    .delta = mp_cpu_delta,
    .short_conv = mp_cpu_short_conv,
    .store = mp_cpu_store,
    .attend = mp_cpu_attend,
    .forget = mp_cpu_forget,
    .ffn = ffn,
    .pick = pick,
    .result = result,
    .router = mp_cpu_route,
    .read_scores = read_scores,
    .weigh = mp_cpu_weigh,
    .shared = mp_cpu_shared,
    .combine = mp_cpu_combine,
    .combine_done = mp_cpu_combine_done,
    .wait = status,
    .status = status,
};

void mp_cpu_init(struct mp_engine *engine, struct mp_compute *cpu)
{
    *cpu = (struct mp_compute){
        .ops = &ops,
        .engine = engine,
        .weights = engine->config.weights,
        .kv = mp_kv_layout(&engine->config, MP_KV_BY_HEAD),
        .track = engine->track,
        .executors = { [MP_EXECUTOR_HOME] = { .ctx = engine, .begin = begin_experts } },
    };
}
