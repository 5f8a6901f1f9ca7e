/*
 * Latent attention on the CPU. What the cache keeps of a position is one short vector for all
 * heads: a rotated key and the latent, from which every head's own keys and values would come by
 * two matrices. Neither is made: queries are taken through the first matrix instead, so that they
 * meet the latent itself, and what attention gives, a sum of latents, goes through the second.
 * Then it is attention of many heads over one key, which is its own value:
 *
 *     key, value  (rope, latent)
 *     query       (rope, W_k^T q) of each head
 *     result      W_v (latent part of the attended)
 */
#include <string.h>

#include "engine/forward/cpu/cpu_int.h"

/* Rows of a matrix that are converted at a time, with the widest latent. */
#define LATENT_MAX 1024

struct latent_job {
    struct mp_compute *c;
    const struct mp_layer_weights *w;
    const struct mp_model_config *m;
    float *raw; // (T, heads, nope + rope): queries as they are projected
};

static struct latent_job make_job(struct mp_compute *c, uint32_t layer)
{
    const struct mp_model_config *m = c->engine->config.model;

    return (struct latent_job){
        .c = c,
        .w = &c->weights->layers[layer],
        .m = m,
        .raw = c->engine->state.latent + (size_t)c->engine->config.tokens_max * m->q_rank,
    };
}

/* The rows of a matrix from `row` on. */
static struct mp_view rows_of(const struct mp_view *w, size_t row)
{
    struct mp_view rows = *w;

    rows.data = (const char *)w->data + mp_wtype_bytes(w->type, row * w->cols);
    return rows;
}

/* A head's rows for keys, and for values: one matrix has both, or each has its own. */
static struct mp_view key_rows(const struct latent_job *job, uint64_t head)
{
    const struct mp_model_config *m = job->m;

    return job->w->kv_up.data != NULL
               ? rows_of(&job->w->kv_up, head * (m->nope_dim + m->value_dim))
               : rows_of(&job->w->k_up, head * (job->w->k_up.rows / m->heads));
}

static struct mp_view value_rows(const struct latent_job *job, uint64_t head)
{
    const struct mp_model_config *m = job->m;

    return job->w->kv_up.data != NULL
               ? rows_of(&job->w->kv_up, head * (m->nope_dim + m->value_dim) + m->nope_dim)
               : rows_of(&job->w->v_up, head * m->value_dim);
}

/* y += the rows, weighed by a query. */
static void absorb_rows(const struct latent_job *job, const struct mp_view *rows, const float *raw,
                        size_t raw_width, float *y, size_t width)
{
    const struct mp_model_config *m = job->m;
    const struct mp_kernels *kernels = job->c->engine->config.kernels;
    float row[LATENT_MAX];

    for (size_t r = 0; r < m->nope_dim; r++) {
        kernels->convert(row, rows_of(rows, r).data, rows->type, m->kv_rank);
        for (size_t t = 0; t < job->c->engine->tokens; t++)
            kernels->axpy(y + t * width, row, raw[t * raw_width + r], m->kv_rank);
    }
}

/* The query of one head: its rotated part as it is, the other through the head's matrix. */
static void absorb_head(void *ctx, uint64_t head, unsigned thread)
{
    const struct latent_job *job = ctx;
    const struct mp_model_config *m = job->m;
    const struct mp_engine *engine = job->c->engine;
    const size_t D = m->head_dim, R = m->rotary_dim, N = m->nope_dim, width = (size_t)m->heads * D;
    const size_t raw_width = m->heads * (N + R), tokens = engine->tokens;
    const struct mp_view rows = key_rows(job, head);
    float *q = engine->state.q + head * D;
    const float *raw = job->raw + head * (N + R);

    (void)thread;
    for (size_t t = 0; t < tokens; t++) {
        memcpy(q + t * width, raw + t * raw_width + N, R * sizeof(float));
        memset(q + t * width + R, 0, m->kv_rank * sizeof(float));
    }
    /* Blocks are as they are in the file, transposed. */
    if (job->w->kv_up.data == NULL && rows.type >= MP_WTYPE_PLAIN_COUNT)
        engine->config.kernels->matmul(q + R, width, rows.data, rows.type, N, raw, raw_width,
                                       m->kv_rank, N, tokens);
    else
        absorb_rows(job, &rows, raw, raw_width, q + R, width);
}

/* (latent, rope) as it is projected becomes (rope, norm(latent)). */
static void order_key(const struct latent_job *job, float *key)
{
    const struct mp_model_config *m = job->m;
    float kept[LATENT_MAX];

    memcpy(kept, key, m->head_dim * sizeof(float));
    memcpy(key, kept + m->kv_rank, m->rotary_dim * sizeof(float));
    job->c->engine->config.kernels->rmsnorm(key + m->rotary_dim, m->kv_rank, kept, m->kv_rank,
                                            job->w->latent_norm, m->kv_rank, 1, m->latent_eps);
}

/* Queries as they are projected, where there is a rank through a norm. */
static void project_queries(const struct latent_job *job)
{
    struct mp_engine *engine = job->c->engine;
    const struct mp_state *s = &engine->state;
    const struct mp_model_config *m = job->m;
    const struct mp_layer_weights *w = job->w;
    const size_t rank = m->q_rank, tokens = engine->tokens;
    const struct mp_product down = { &w->q_down, NULL, s->xe, m->hidden, s->latent, rank };
    const struct mp_product up = {
        &w->q, NULL, rank > 0 ? s->latent : s->xe, w->q.cols, job->raw, w->q.rows,
    };

    if (rank > 0) {
        mp_cpu_multiply(engine, &down, 1, tokens);
        engine->config.kernels->rmsnorm(s->latent, rank, s->latent, rank, w->q_down_norm, rank,
                                        tokens, m->latent_eps);
    }
    mp_cpu_multiply(engine, &up, 1, tokens);
}

void mp_cpu_latent(struct mp_compute *c, uint32_t layer)
{
    struct latent_job job = make_job(c, layer);
    const struct mp_engine *engine = c->engine;
    const struct mp_state *s = &engine->state;
    const size_t D = job.m->head_dim;
    const struct mp_product key = { &job.w->k, NULL, s->xe, job.m->hidden, s->k, D };

    project_queries(&job);
    mp_cpu_multiply(c->engine, &key, 1, engine->tokens);
    for (size_t t = 0; t < engine->tokens; t++)
        order_key(&job, s->k + t * D);
    mp_pool_run(engine->config.pool, absorb_head, &job, job.m->heads);
}

static void value_of_head(void *ctx, uint64_t head, unsigned thread)
{
    const struct latent_job *job = ctx;
    const struct mp_model_config *m = job->m;
    const struct mp_engine *engine = job->c->engine;
    const size_t D = m->head_dim, V = m->value_dim;
    const struct mp_view rows = value_rows(job, head);

    (void)thread;
    engine->config.kernels->matmul(engine->state.q + head * V, m->heads * V, rows.data, rows.type,
                                   m->kv_rank, engine->state.att + head * D + m->rotary_dim,
                                   m->heads * D, V, m->kv_rank, engine->tokens);
}

void mp_cpu_latent_values(struct mp_compute *c, uint32_t layer)
{
    struct latent_job job = make_job(c, layer);

    mp_pool_run(c->engine->config.pool, value_of_head, &job, job.m->heads);
}
