/*
 * The transformer: mp_forward() from top to bottom, as in the models' papers.
 *
 * Work is shared out over the pool by rows of a matrix (engine/forward/ffn.c), by (token, head)
 * pairs of attention or by tokens. Bits do not depend on such splits (kernels/cpu/kernels.h).
 */
#include <math.h>
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "engine/forward/engine_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

/* Of one head of keys or values, in `cache`. */
static float *kv_row(const struct mp_engine *engine, float *cache, uint32_t layer,
                     uint32_t sequence, uint32_t kv_head, uint32_t position)
{
    const struct mp_engine_config *c = &engine->config;
    const size_t head = ((size_t)layer * c->sequences + sequence) * c->model->kv_heads + kv_head;

    return cache + (head * c->ctx + position) * c->model->head_dim;
}

/* Norm (where the model has it) and turn the heads of one query or key vector, in place. */
static void turn_heads(const struct mp_engine *engine, float *heads, uint32_t count,
                       const float *norm, uint32_t position)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_kernels *kernels = engine->config.kernels;
    const size_t half = m->head_dim / 2;

    if (norm != NULL)
        kernels->rmsnorm(heads, m->head_dim, heads, m->head_dim, norm, m->head_dim, count,
                         m->norm_eps);
    for (uint32_t h = 0; h < count; h++)
        kernels->rope(heads + (size_t)h * m->head_dim, engine->state.cosine + position * half,
                      engine->state.sine + position * half, m->head_dim);
}

struct attend_job {
    struct mp_engine *engine;
    const struct mp_batch *batch;
    uint32_t layer;
    uint32_t run; /* heads that are computed together */
    size_t parts;
};

/* Attention of the runs of heads whose number is `part` modulo the parts: later tokens look at more
 * positions. Heads of a run share keys. */
static void attend_part(void *ctx, uint64_t part, unsigned thread)
{
    const struct attend_job *job = ctx;
    struct mp_engine *engine = job->engine;
    const struct mp_model_config *m = engine->config.model;
    const struct mp_batch *batch = job->batch;
    const uint32_t sharing = m->heads / m->kv_heads, run = job->run;
    const uint32_t runs_each = (sharing + run - 1) / run;
    const size_t runs = (size_t)batch->count * m->kv_heads * runs_each;
    const float scale = 1.0f / sqrtf((float)m->head_dim);
    float *scratch =
        engine->state.scores + (size_t)thread * mp_engine_heads_once(m) * engine->config.ctx;

    for (size_t i = part; i < runs; i += job->parts) {
        const uint32_t first = (uint32_t)(i % runs_each) * run;
        const uint32_t count = sharing - first < run ? sharing - first : run;
        const uint32_t kv_head = (uint32_t)(i / runs_each % m->kv_heads);
        const size_t t = i / runs_each / m->kv_heads;
        const size_t at = (t * m->heads + kv_head * sharing + first) * m->head_dim;
        const uint32_t sequence = batch->sequence[t];

        engine->config.kernels->attend(
            engine->state.att + at, engine->state.q + at,
            kv_row(engine, engine->state.k, job->layer, sequence, kv_head, 0),
            kv_row(engine, engine->state.v, job->layer, sequence, kv_head, 0), m->head_dim, count,
            m->head_dim, batch->position[t] + 1, scale, scratch);
    }
}

/* As many heads that share keys as there are, while there is work for all threads. */
static void attend(struct mp_engine *engine, struct attend_job *job)
{
    const struct mp_model_config *m = engine->config.model;

    job->parts = mp_pool_threads(engine->config.pool);
    job->run = mp_engine_heads_once(m);
    while (job->run > 1 && (size_t)job->batch->count * m->heads < job->run * job->parts)
        job->run /= 2;
    mp_pool_run(engine->config.pool, attend_part, job, job->parts);
}

struct norm_job {
    const struct mp_engine *engine;
    const float *x, *w;
    float *out;
};

static void norm_token(void *ctx, uint64_t t, unsigned thread)
{
    const struct norm_job *job = ctx;
    const size_t H = job->engine->config.model->hidden;

    (void)thread;
    job->engine->config.kernels->rmsnorm(job->out + t * H, H, job->x + t * H, H, job->w, H, 1,
                                         job->engine->config.model->norm_eps);
}

/* out := norm(x), both (tokens, H) */
static void norm(struct mp_engine *engine, float *out, const float *x, const float *w,
                 size_t tokens)
{
    struct norm_job job = { .engine = engine, .x = x, .w = w, .out = out };

    mp_engine_each_token(engine, norm_token, &job, tokens);
}

static void exchange(float *a, float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float kept = a[i];

        a[i] = b[i];
        b[i] = kept;
    }
}

/* Keys and values of a token, which stand in state.gate and state.up, go to their places in the
 * cache, and what was there into the buffers: done twice, the cache is as before. */
static void exchange_kv(void *ctx, uint64_t t, unsigned thread)
{
    const struct attend_job *job = ctx;
    const struct mp_engine *engine = job->engine;
    const struct mp_state *s = &engine->state;
    const uint32_t heads = engine->config.model->kv_heads;
    const size_t D = engine->config.model->head_dim;
    const uint32_t sequence = job->batch->sequence[t], position = job->batch->position[t];

    (void)thread;
    for (uint32_t h = 0; h < heads; h++) {
        const size_t at = (t * heads + h) * D;

        exchange(kv_row(engine, s->k, job->layer, sequence, h, position), s->gate + at, D);
        exchange(kv_row(engine, s->v, job->layer, sequence, h, position), s->up + at, D);
    }
}

/* Norm and turn queries and keys of one token; keys and values go to the cache. */
static void place_token(void *ctx, uint64_t t, unsigned thread)
{
    const struct attend_job *job = ctx;
    struct mp_engine *engine = job->engine;
    const struct mp_model_config *m = engine->config.model;
    const struct mp_layer_weights *w = &engine->config.weights->layers[job->layer];
    const struct mp_state *s = &engine->state;
    const size_t Q = (size_t)m->heads * m->head_dim, K = (size_t)m->kv_heads * m->head_dim;
    const uint32_t position = job->batch->position[t];

    turn_heads(engine, s->q + t * Q, m->heads, w->q_norm, position);
    turn_heads(engine, s->gate + t * K, m->kv_heads, w->k_norm, position);
    exchange_kv(ctx, t, thread);
}

void mp_engine_attention(struct mp_engine *engine, uint32_t layer, float *x, bool keep)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_layer_weights *w = &engine->config.weights->layers[layer];
    const struct mp_kernels *kernels = engine->config.kernels;
    const struct mp_batch *batch = engine->batch;
    struct mp_state *s = &engine->state;
    const size_t H = m->hidden, Q = (size_t)m->heads * m->head_dim;
    const size_t K = (size_t)m->kv_heads * m->head_dim;
    struct attend_job job = { .engine = engine, .batch = batch, .layer = layer };

    norm(engine, s->xe, x, w->attn_norm, batch->count);

    /* Keys and values are computed in the FFN buffers and then go to their places in the cache. */
    const struct mp_product qkv[] = {
        { &w->q, w->q_bias, s->xe, H, s->q, Q },    // (T, Q)
        { &w->k, w->k_bias, s->xe, H, s->gate, K }, // (T, K)
        { &w->v, w->v_bias, s->xe, H, s->up, K },   // (T, K)
    };
    mp_engine_multiply(engine, qkv, 3, batch->count);
    mp_engine_each_token(engine, place_token, &job, batch->count);

    attend(engine, &job);
    if (!keep)
        mp_engine_each_token(engine, exchange_kv, &job, batch->count);

    const struct mp_product out = { &w->o, w->o_bias, s->att, Q, s->ye, H }; // (T, H)
    mp_engine_multiply(engine, &out, 1, batch->count);
    kernels->axpy(x, s->ye, 1.0f, (size_t)batch->count * H);
}

/* x += ffn(norm(x)), with all channels or with those of the chosen experts */
static enum mp_status feed_forward(struct mp_engine *engine, uint32_t layer, uint32_t tokens)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_layer_weights *w = &engine->config.weights->layers[layer];
    const struct mp_kernels *kernels = engine->config.kernels;
    struct mp_state *s = &engine->state;
    const size_t H = m->hidden;

    norm(engine, s->xn, s->x, w->ffn_norm, tokens);
    if (m->is_moe[layer])
        return mp_step_layer(engine->step, engine->moe_layer[layer], tokens);

    const struct mp_ffn_work work = {
        .ffn = w->dense, .x = s->xn, .y = s->ye, .gate = s->gate, .up = s->up, .tokens = tokens
    };
    mp_engine_ffn(engine, &work, 1);
    kernels->axpy(s->x, s->ye, 1.0f, tokens * H);
    return MP_OK;
}

/* logits := head(norm(x)) of the wanted tokens */
static void output(struct mp_engine *engine, const struct mp_batch *batch)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_weights *w = engine->config.weights;
    struct mp_state *s = &engine->state;
    const size_t H = m->hidden;
    size_t wanted = 0;

    for (uint32_t t = 0; t < batch->count; t++) {
        if (batch->want[t])
            memcpy(s->xe + wanted++ * H, s->x + t * H, H * sizeof(float));
    }
    engine->config.kernels->rmsnorm(s->xn, H, s->xe, H, w->final_norm, H, wanted, m->norm_eps);

    const struct mp_product head = { &w->head, NULL, s->xn, H, s->logits, m->vocab };
    if (wanted > 0)
        mp_engine_multiply(engine, &head, 1, wanted);
}

enum mp_status mp_engine_check_cancel(const struct mp_engine *engine)
{
    if (engine->config.cancel != NULL && *engine->config.cancel)
        return mp_fail(MP_ERR_CANCELED, "E_CANCELED", "interrupted");
    return MP_OK;
}

static enum mp_status check_batch(const struct mp_engine *engine, const struct mp_batch *batch)
{
    const struct mp_engine_config *c = &engine->config;
    uint32_t wanted = 0;

    if (batch->count == 0 || batch->count > c->tokens_max)
        return mp_fail(MP_ERR_INVALID, "E_BATCH", "batch of %u tokens, need 1 to %u", batch->count,
                       c->tokens_max);
    for (uint32_t t = 0; t < batch->count; t++) {
        if (batch->token[t] >= c->model->vocab || batch->sequence[t] >= c->sequences ||
            batch->position[t] >= c->ctx)
            return mp_fail(MP_ERR_INVALID, "E_BATCH",
                           "token %u of the batch is out of range: id %u, sequence %u, position %u",
                           t, batch->token[t], batch->sequence[t], batch->position[t]);
        wanted += batch->want[t] != 0;
    }
    if (batch->draw != NULL && !mp_engine_draws(engine))
        return mp_fail(MP_ERR_INVALID, "E_BATCH", "tokens are drawn by devices only");
    if (wanted > c->sequences)
        return mp_fail(MP_ERR_INVALID, "E_BATCH", "logits of %u tokens of a batch, need at most %u",
                       wanted, c->sequences);
    return MP_OK;
}

enum mp_status mp_forward(struct mp_engine *engine, const struct mp_batch *batch,
                          const float **logits_p)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_view *embed = &engine->config.weights->embed;
    const size_t row_bytes = mp_wtype_bytes(embed->type, m->hidden);
    const uint64_t start_ns = mp_timeline_now_ns(engine->config.timeline);
    enum mp_status status = check_batch(engine, batch);

    if (status != MP_OK)
        return status;
    engine->tokens = batch->count;
    engine->batch = batch;
    engine->summed_ns = 0;
    if (engine->device != NULL)
        return mp_device_forward(engine->device, batch, logits_p);
    for (uint32_t t = 0; t < batch->count; t++)
        engine->config.kernels->convert(engine->state.x + (size_t)t * m->hidden,
                                        (const char *)embed->data + batch->token[t] * row_bytes,
                                        embed->type, m->hidden);

    for (uint32_t layer = 0; layer < m->layers; layer++) {
        status = mp_engine_check_cancel(engine);
        if (status != MP_OK)
            return status;
        mp_engine_attention(engine, layer, engine->state.x, true);
        status = feed_forward(engine, layer, batch->count);
        if (status != MP_OK)
            return status;
    }
    output(engine, batch);
    mp_timeline_span(engine->config.timeline, engine->track, "forward", start_ns,
                     mp_timeline_now_ns(engine->config.timeline),
                     &(struct mp_timeline_args){ { "tokens", NULL }, { batch->count, 0 } });
    *logits_p = engine->state.logits;
    return MP_OK;
}
