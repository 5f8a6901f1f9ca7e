/*
 * Attention on the CPU: norms and rotary position of heads, storing keys and values in the cache,
 * and attention of runs of heads that share keys, distributed over the pool. Bits do not depend on
 * the split (kernels/cpu/kernels.h).
 */
#include <math.h>
#include <string.h>

#include "engine/forward/cpu/cpu_int.h"
#include "vmm/base/assert.h"

/* Of one head of keys or values, in `cache`. */
static uint8_t *kv_row(const struct mp_compute *c, uint8_t *cache, uint32_t layer,
                       uint32_t sequence, uint32_t kv_head, uint32_t position)
{
    return cache + mp_kv_at(&c->kv, layer, sequence, kv_head, position);
}

struct job {
    struct mp_compute *c;
    uint32_t layer;
    uint32_t run; /* heads that are computed together */
    size_t parts;
};

/* Norm (where the model has it, of each head or of all together) and rotate the heads of one query
 * or key vector, in place. */
static void apply_rope(const struct mp_engine *engine, uint32_t layer, float *heads, uint32_t count,
                       const float *norm, uint32_t position)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_kernels *kernels = engine->config.kernels;
    const struct mp_state *s = &engine->state;
    const size_t D = mp_layer_head_dim(m, layer), width = count * D;
    const size_t rotary = m->wide[layer] ? D : m->rotary_dim, at = position * (rotary / 2);
    const float *cosine = (m->wide[layer] ? s->wide_cosine : s->cosine) + at;
    const float *sine = (m->wide[layer] ? s->wide_sine : s->sine) + at;

    if (norm != NULL && m->qk_norm_rows)
        kernels->rmsnorm(heads, width, heads, width, norm, width, 1, m->norm_eps);
    else if (norm != NULL)
        kernels->rmsnorm(heads, D, heads, D, norm, D, count, m->norm_eps);
    for (uint32_t h = 0; h < count; h++)
        kernels->rope(heads + h * D, cosine, sine, rotary);
}

/* RMSNorm without weights of each head, in place. */
static void norm_heads(float *heads, uint32_t count, size_t dim, float eps)
{
    for (uint32_t h = 0; h < count; h++, heads += dim) {
        double square = 0;

        for (size_t i = 0; i < dim; i++)
            square += (double)heads[i] * (double)heads[i];
        mp_cpu_scale(heads, (float)(1 / sqrt(square / (double)dim + (double)eps)), dim);
    }
}

/* Rows of the cache's type, in place of the floats. */
static void round_rows(enum mp_wtype type, float *rows, uint32_t count, size_t dim)
{
    uint8_t row[MP_KERNEL_HEAD_MAX * sizeof(float)];

    for (uint32_t h = 0; type != MP_WTYPE_F32 && h < count; h++) {
        mp_kernels_store(type, row, rows + h * dim, dim);
        memcpy(rows + h * dim, row, mp_wtype_bytes(type, dim));
    }
}

static void exchange(uint8_t *cache, float *row, size_t bytes)
{
    uint8_t kept[MP_KERNEL_HEAD_MAX * sizeof(float)];

    memcpy(kept, cache, bytes);
    memcpy(cache, row, bytes);
    memcpy(row, kept, bytes);
}

/* Keys and values of a token, rounded, go to their places in the cache, and what was there into the
 * buffers: done twice, the cache is as before. */
static void exchange_kv(void *ctx, uint64_t t, unsigned thread)
{
    const struct job *job = ctx;
    const struct mp_engine *engine = job->c->engine;
    const struct mp_state *s = &engine->state;
    const uint32_t heads = mp_layer_kv_heads(engine->config.model, job->layer);
    const size_t D = mp_layer_head_dim(engine->config.model, job->layer);
    const size_t bytes = mp_kv_row_bytes(&job->c->kv, job->layer);
    const uint32_t sequence = engine->batch->sequence[t], position = engine->batch->position[t];

    (void)thread;
    for (uint32_t h = 0; h < heads; h++) {
        const size_t at = (t * heads + h) * D;

        exchange(kv_row(job->c, s->k_cache, job->layer, sequence, h, position), s->k + at, bytes);
        if (s->v_cache != NULL)
            exchange(kv_row(job->c, s->v_cache, job->layer, sequence, h, position), s->v + at,
                     bytes);
    }
}

/* Norm and rotate queries and keys of one token; keys and values go to the cache. */
static void store_token(void *ctx, uint64_t t, unsigned thread)
{
    const struct job *job = ctx;
    struct mp_engine *engine = job->c->engine;
    const struct mp_model_config *m = engine->config.model;
    const struct mp_layer_weights *w = &engine->config.weights->layers[job->layer];
    const struct mp_state *s = &engine->state;
    const uint32_t kv_heads = mp_layer_kv_heads(m, job->layer);
    const size_t D = mp_layer_head_dim(m, job->layer), Q = m->heads * D, K = kv_heads * D;
    const uint32_t position = engine->batch->position[t];

    mp_assert(D <= MP_KERNEL_HEAD_MAX); /* loaders see to it */
    if (m->wide[job->layer] && m->wide_values_are_keys)
        memcpy(s->v + t * K, s->k + t * K, K * sizeof(float));
    if (m->v_norm)
        norm_heads(s->v + t * K, kv_heads, D, m->norm_eps);
    apply_rope(engine, job->layer, s->q + t * Q, m->heads, w->q_norm, position);
    apply_rope(engine, job->layer, s->k + t * K, kv_heads, w->k_norm, position);
    round_rows(job->c->kv.type, s->k + t * K, kv_heads, D);
    if (s->v_cache != NULL)
        round_rows(job->c->kv.type, s->v + t * K, kv_heads, D);
    exchange_kv(ctx, t, thread);
}

static float attention_scale(const struct mp_model_config *m, uint32_t layer)
{
    return m->attention_scale != 0 ? m->attention_scale
                                   : 1.0f / sqrtf((float)mp_layer_head_dim(m, layer));
}

/* The first position that the one behind `positions` sees. */
static uint32_t first_seen(const struct mp_model_config *m, uint32_t layer, uint32_t positions)
{
    return m->windowed[layer] && positions > m->window ? positions - m->window : 0;
}

/*
 * A sink takes its share of a head's attention and gives no value: what was attended shrinks. The
 * kernel left exp(score - highest) of each position; the highest score belongs to a position of 1.
 */
static void apply_sink(const struct mp_attention *a, const struct mp_kernels *kernels, size_t head,
                       float sink)
{
    const float *scores = a->scores + head * a->positions, *q = a->q + head * a->dim;
    float *out = a->out + head * a->dim, key[MP_KERNEL_HEAD_MAX];
    double sum = 0, highest = 0;
    size_t top = 0;

    for (size_t p = 0; p < a->positions; p++) {
        sum += (double)scores[p];
        top = scores[p] > scores[top] ? p : top;
    }
    kernels->convert(key, (const uint8_t *)a->k + mp_wtype_bytes(a->type, top * a->kv_stride),
                     a->type, a->dim);
    for (size_t i = 0; i < a->dim; i++)
        highest += (double)q[i] * (double)key[i];
    sum /= sum + exp((double)sink - highest * (double)a->scale);
    for (size_t i = 0; i < a->dim; i++)
        out[i] *= (float)sum;
}

/* Attention of the runs of heads whose number is `part` modulo the parts: later tokens look at more
 * positions. Heads of a run share keys. */
static void attend_part(void *ctx, uint64_t part, unsigned thread)
{
    const struct job *job = ctx;
    struct mp_engine *engine = job->c->engine;
    const struct mp_model_config *m = engine->config.model;
    const struct mp_batch *batch = engine->batch;
    const uint32_t kv_heads = mp_layer_kv_heads(m, job->layer);
    const uint32_t sharing = m->heads / kv_heads, run = job->run;
    const size_t D = mp_layer_head_dim(m, job->layer);
    /* In latent attention a key is its own value. */
    uint8_t *values = m->kv_rank > 0 ? engine->state.k_cache : engine->state.v_cache;
    const uint32_t runs_each = (sharing + run - 1) / run;
    const size_t runs = (size_t)batch->count * kv_heads * runs_each;
    const float scale = attention_scale(m, job->layer);
    const float *sinks = job->c->weights->layers[job->layer].sinks;
    float *scratch =
        engine->state.part + (size_t)thread * mp_engine_heads_once(m) * engine->config.ctx;

    for (size_t i = part; i < runs; i += job->parts) {
        const uint32_t first = (uint32_t)(i % runs_each) * run;
        const uint32_t count = sharing - first < run ? sharing - first : run;
        const uint32_t kv_head = (uint32_t)(i / runs_each % kv_heads);
        const size_t t = i / runs_each / kv_heads;
        const size_t at = (t * m->heads + kv_head * sharing + first) * D;
        const uint32_t sequence = batch->sequence[t], positions = batch->position[t] + 1;
        const uint32_t seen = first_seen(m, job->layer, positions);

        const struct mp_attention attention = {
            .out = engine->state.att + at,
            .q = engine->state.q + at,
            .k = kv_row(job->c, engine->state.k_cache, job->layer, sequence, kv_head, seen),
            .v = kv_row(job->c, values, job->layer, sequence, kv_head, seen),
            .type = job->c->kv.type,
            .kv_stride = mp_kv_stride(&job->c->kv, job->layer),
            .heads = count,
            .dim = D,
            .positions = positions - seen,
            .scale = scale,
            .scores = scratch,
        };

        engine->config.kernels->attend(&attention);
        for (uint32_t h = 0; sinks != NULL && h < count; h++)
            apply_sink(&attention, engine->config.kernels, h, sinks[kv_head * sharing + first + h]);
    }
}

static void each_token(struct mp_compute *c, uint32_t layer,
                       void (*fn)(void *ctx, uint64_t token, unsigned thread))
{
    struct job job = { .c = c, .layer = layer };

    mp_cpu_each_token(c->engine, fn, &job, c->engine->tokens);
}

void mp_cpu_store(struct mp_compute *c, uint32_t layer)
{
    each_token(c, layer, store_token);
}

void mp_cpu_forget(struct mp_compute *c, uint32_t layer)
{
    if (!c->engine->config.model->linear[layer])
        each_token(c, layer, exchange_kv);
}

/* As many heads that share keys as there are, while there is work for all threads. */
void mp_cpu_attend(struct mp_compute *c, uint32_t layer)
{
    const struct mp_engine *engine = c->engine;
    const struct mp_model_config *m = engine->config.model;
    struct job job = {
        .c = c,
        .layer = layer,
        .run = mp_engine_heads_once(m),
        .parts = mp_pool_threads(engine->config.pool),
    };

    while (job.run > 1 && (size_t)engine->tokens * m->heads < job.run * job.parts)
        job.run /= 2;
    mp_pool_run(engine->config.pool, attend_part, &job, job.parts);
}
