/*
 * Gated delta networks on the CPU, and the gates of attention beside them. A delta network goes
 * through a sequence token by token: a short convolution over the last tokens of each channel, then
 * each head's state, a matrix from keys to values, decays and learns what the token's key should
 * give. Channels and heads are computed in parallel, tokens in their order: so bits depend neither
 * on threads nor on how a sequence is cut into batches.
 */
#include <math.h>
#include <string.h>

#include "engine/forward/cpu/cpu_int.h"

#define L2_EPS 1e-6f
#define DIM_MAX 1024

struct delta_job {
    struct mp_compute *c;
    const struct mp_delta *d;
    const struct mp_delta_weights *w;
    size_t width; /* of a row: channels, gates, shares, times */
    float *rows;  // (T, width)
    struct mp_cpu_states states;
};

/* Queries, keys, values and gates, by key head in the file, one after the other. */
static void order_in(const struct delta_job *job, const float *in, float *out)
{
    const struct mp_delta *d = job->d;
    const size_t K = mp_delta_keys(d), V = mp_delta_values(d), each = d->value_heads / d->key_heads;
    const size_t D = d->key_dim, values = each * d->value_dim, group = 2 * D + 2 * values;

    for (size_t h = 0; h < d->key_heads; h++) {
        const float *from = in + h * group;

        memcpy(out + h * D, from, D * sizeof(float));
        memcpy(out + K + h * D, from + D, D * sizeof(float));
        memcpy(out + 2 * K + h * values, from + 2 * D, values * sizeof(float));
        memcpy(out + 2 * K + V + h * values, from + 2 * D + values, values * sizeof(float));
    }
}

/* The same of the numbers of a step. */
static void order_steps(const struct delta_job *job, const float *steps, float *share)
{
    const size_t each = job->d->value_heads / job->d->key_heads;

    for (size_t h = 0; h < job->d->key_heads; h++) {
        const float *step = steps + h * 2 * each;

        memcpy(share + h * each, step, each * sizeof(float));
        memcpy(share + job->d->value_heads + h * each, step + each, each * sizeof(float));
    }
}

static void project(const struct delta_job *job)
{
    struct mp_engine *engine = job->c->engine;
    const struct mp_delta_weights *w = job->w;
    const size_t H = engine->config.model->hidden, tokens = engine->tokens, width = job->width;
    const size_t C = mp_delta_channels(job->d), V = mp_delta_values(job->d);
    const float *x = engine->state.xe;
    float *raw = job->rows + engine->config.tokens_max * width, *steps = raw + tokens * (C + V);
    const size_t N = job->d->value_heads;
    struct mp_product list[4];
    size_t count = 0;

    if (w->in.data != NULL) {
        list[count++] = (struct mp_product){ &w->in, NULL, x, H, raw, C + V };
    } else {
        list[count++] = (struct mp_product){ &w->qkv, NULL, x, H, job->rows, width };
        list[count++] = (struct mp_product){ &w->gate, NULL, x, H, job->rows + C, width };
    }
    if (w->steps.data != NULL) {
        list[count++] = (struct mp_product){ &w->steps, NULL, x, H, steps, 2 * N };
    } else {
        list[count++] = (struct mp_product){ &w->share, NULL, x, H, job->rows + C + V, width };
        list[count++] = (struct mp_product){ &w->time, NULL, x, H, job->rows + C + V + N, width };
    }
    mp_cpu_multiply(engine, list, count, tokens);
    for (size_t t = 0; t < tokens; t++) {
        if (w->in.data != NULL)
            order_in(job, raw + t * (C + V), job->rows + t * width);
        if (w->steps.data != NULL)
            order_steps(job, steps + t * 2 * N, job->rows + t * width + C + V);
    }
}

/* Some channels of all tokens: silu of what the last tokens weigh. */
static void convolve(void *ctx, uint64_t part, unsigned thread)
{
    const struct delta_job *job = ctx;
    const struct mp_engine *engine = job->c->engine;
    const size_t C = mp_delta_channels(job->d), first = part * MP_CONV_CHANNELS;
    const size_t count = C - first < MP_CONV_CHANNELS ? C - first : MP_CONV_CHANNELS;
    float sum[MP_CONV_CHANNELS], ones[MP_CONV_CHANNELS];

    (void)thread;
    for (size_t i = 0; i < count; i++)
        ones[i] = 1;
    for (size_t t = 0; t < engine->tokens; t++) {
        float *x = job->rows + t * job->width + first;
        const struct mp_conv_part taps = {
            job->w->conv + first * job->d->conv, job->d->conv, C, first, count,
        };

        mp_cpu_convolve(engine, &job->states, t, &taps, x, sum);
        engine->config.kernels->silu_mul(sum, ones, count);
        memcpy(x, sum, count * sizeof(float));
    }
}

/* out := x / |x| * scale */
static void unit(float *out, const float *x, size_t count, float scale)
{
    float sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    scale /= sqrtf(sum + L2_EPS);
    for (size_t i = 0; i < count; i++)
        out[i] = x[i] * scale;
}

/* log(1 + exp(x)) */
static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* One token of one head: the state (key_dim, value_dim) goes on, and the head's value of the row is
 * replaced by what its query finds. */
static void step_head(const struct delta_job *job, float *row, size_t head, float *state)
{
    const struct mp_delta *d = job->d;
    const struct mp_kernels *kernels = job->c->engine->config.kernels;
    const size_t K = mp_delta_keys(d), D = d->key_dim, W = d->value_dim;
    const size_t each = d->value_heads / d->key_heads;
    const size_t key_head = d->tiled ? head % d->key_heads : head / each;
    const float *steps = row + mp_delta_channels(d) + mp_delta_values(d);
    const float share = 1 / (1 + expf(-steps[head]));
    const float time = softplus(steps[d->value_heads + head] + job->w->step_bias[head]);
    const float decay = expf(job->w->decay[head] * time);
    float *value = row + 2 * K + head * W, q[DIM_MAX], k[DIM_MAX], found[DIM_MAX];

    unit(q, row + key_head * D, D, 1 / sqrtf((float)D));
    unit(k, row + K + key_head * D, D, 1);
    memset(found, 0, W * sizeof(float));
    for (size_t i = 0; i < D; i++) {
        mp_cpu_scale(state + i * W, decay, W);
        kernels->axpy(found, state + i * W, k[i], W);
    }
    for (size_t i = 0; i < W; i++)
        found[i] = (value[i] - found[i]) * share;
    memset(value, 0, W * sizeof(float));
    for (size_t i = 0; i < D; i++) {
        kernels->axpy(state + i * W, found, k[i], W);
        kernels->axpy(value, state + i * W, q[i], W);
    }
}

/* Where the output matrix has the head. */
static size_t place_of(const struct delta_job *job, size_t head)
{
    const struct mp_delta *d = job->d;

    return job->w->in_order
               ? head % d->key_heads * (d->value_heads / d->key_heads) + head / d->key_heads
               : head;
}

/* One head of all tokens, with its norm and gate. */
static void run_head(void *ctx, uint64_t head, unsigned thread)
{
    const struct delta_job *job = ctx;
    const struct mp_engine *engine = job->c->engine;
    const struct mp_delta *d = job->d;
    const size_t W = d->value_dim, V = mp_delta_values(d), size = (size_t)d->key_dim * W;
    const size_t C = mp_delta_channels(d), at = (d->conv - 1) * C + head * size;

    (void)thread;
    for (size_t t = 0; t < engine->tokens; t++) {
        float *state = mp_cpu_state(engine, &job->states, t, at, size);
        float *row = job->rows + t * job->width;
        float *value = row + 2 * (size_t)mp_delta_keys(d) + head * W;

        step_head(job, row, head, state);
        engine->config.kernels->rmsnorm(value, W, value, W, job->w->norm, W, 1,
                                        engine->config.model->norm_eps);
        engine->config.kernels->silu_mul(row + C + head * W, value, W);
        memcpy(engine->state.att + t * V + place_of(job, head) * W, row + C + head * W,
               W * sizeof(float));
    }
}

void mp_cpu_delta(struct mp_compute *c, uint32_t layer)
{
    struct mp_engine *engine = c->engine;
    const struct mp_delta *d = &engine->config.model->delta;
    struct delta_job job = {
        .c = c,
        .d = d,
        .w = &c->weights->layers[layer].delta,
        .width = mp_delta_channels(d) + mp_delta_values(d) + 2 * (size_t)d->value_heads,
        .rows = engine->state.delta,
    };

    mp_cpu_open_states(engine, layer, &job.states);
    project(&job);
    mp_pool_run(engine->config.pool, convolve, &job,
                (mp_delta_channels(d) + MP_CONV_CHANNELS - 1) / MP_CONV_CHANNELS);
    mp_pool_run(engine->config.pool, run_head, &job, d->value_heads);
}

/* ---- gates of attention */

void mp_cpu_split_gate(struct mp_compute *c)
{
    const struct mp_engine *engine = c->engine;
    const size_t D = engine->config.model->head_dim;
    const size_t heads = (size_t)engine->tokens * engine->config.model->heads;

    for (size_t h = 0; h < heads; h++)
        memcpy(engine->state.q + h * D, engine->state.latent + 2 * h * D, D * sizeof(float));
}

void mp_cpu_apply_gate(struct mp_compute *c)
{
    const struct mp_engine *engine = c->engine;
    const size_t D = engine->config.model->head_dim;
    const size_t heads = (size_t)engine->tokens * engine->config.model->heads;

    for (size_t h = 0; h < heads; h++) {
        const float *gate = engine->state.latent + (2 * h + 1) * D;
        float *att = engine->state.att + h * D;

        for (size_t i = 0; i < D; i++)
            att[i] *= 1 / (1 + expf(-gate[i]));
    }
}
