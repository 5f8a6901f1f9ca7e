/*
 * Convolutions over the last tokens of each channel, and the layers that consist of one: gated
 * before and after it. Also where the states of recurrent layers are while a batch goes through
 * them. Channels are computed in parallel, tokens in their order: so bits depend neither on threads
 * nor on how a sequence is cut into batches.
 */
#include <string.h>

#include "engine/forward/cpu/cpu_int.h"

void mp_cpu_open_states(struct mp_engine *engine, uint32_t layer, struct mp_cpu_states *states)
{
    const struct mp_batch *batch = engine->batch;
    uint32_t count[MP_RECURRENT_SEQUENCES] = { 0 };

    states->first = engine->state.first;
    for (uint32_t t = 0; t < batch->count; t++)
        states->first[t] = count[batch->sequence[t]]++ == 0;
    for (uint32_t t = 0; t < batch->count; t++) {
        const uint32_t s = batch->sequence[t];

        if (states->first[t])
            mp_recurrent_open(engine, layer, s, batch->position[t], count[s], &states->before[s],
                              &states->after[s]);
    }
}

float *mp_cpu_state(const struct mp_engine *engine, const struct mp_cpu_states *states, size_t t,
                    size_t at, size_t count)
{
    const uint32_t sequence = engine->batch->sequence[t];
    const float *before = states->before[sequence];
    float *state = states->after[sequence] + at;

    if (states->first[t] && before != NULL)
        memcpy(state, before + at, count * sizeof(float));
    if (states->first[t] && before == NULL)
        memset(state, 0, count * sizeof(float));
    return state;
}

void mp_cpu_convolve(const struct mp_engine *engine, const struct mp_cpu_states *states, size_t t,
                     const struct mp_conv_part *part, const float *x, float *out)
{
    const size_t old = part->taps - 1, C = part->width, bytes = part->count * sizeof(float);
    float *state = NULL;

    for (size_t j = old; j-- > 0;)
        state = mp_cpu_state(engine, states, t, j * C + part->first, part->count);
    for (size_t i = 0; i < part->count; i++) {
        const float *w = part->w + i * part->taps;

        out[i] = 0;
        for (size_t j = 0; j < old; j++)
            out[i] += w[j] * state[j * C + i];
        out[i] += w[old] * x[i];
    }
    for (size_t j = 0; j + 1 < old; j++)
        memcpy(state + j * C, state + (j + 1) * C, bytes);
    memcpy(state + (old - 1) * C, x, bytes);
}

struct conv_job {
    struct mp_compute *c;
    const float *taps;
    float *rows; // (T, 3 H): gates before, gates after, inputs
    struct mp_cpu_states states;
};

/* att := gate after * convolution(gate before * input) for some channels of all tokens. */
static void conv_part(void *ctx, uint64_t part, unsigned thread)
{
    const struct conv_job *job = ctx;
    const struct mp_engine *engine = job->c->engine;
    const size_t H = engine->config.model->hidden, width = engine->config.model->short_conv;
    const size_t first = part * MP_CONV_CHANNELS;
    const size_t count = H - first < MP_CONV_CHANNELS ? H - first : MP_CONV_CHANNELS;
    const struct mp_conv_part taps = { job->taps + first * width, width, H, first, count };

    (void)thread;
    for (size_t t = 0; t < engine->tokens; t++) {
        const float *before = job->rows + t * 3 * H + first, *after = before + H;
        float *x = job->rows + t * 3 * H + 2 * H + first, *out = engine->state.att + t * H + first;

        for (size_t i = 0; i < count; i++)
            x[i] *= before[i];
        mp_cpu_convolve(engine, &job->states, t, &taps, x, out);
        for (size_t i = 0; i < count; i++)
            out[i] *= after[i];
    }
}

void mp_cpu_short_conv(struct mp_compute *c, uint32_t layer)
{
    struct mp_engine *engine = c->engine;
    const size_t H = engine->config.model->hidden;
    const struct mp_conv_weights *w = &c->weights->layers[layer].conv;
    struct conv_job job = { .c = c, .taps = w->taps, .rows = engine->state.delta };
    const struct mp_product in = { &w->in, NULL, engine->state.xe, H, job.rows, 3 * H };

    mp_cpu_open_states(engine, layer, &job.states);
    mp_cpu_multiply(engine, &in, 1, engine->tokens);
    mp_pool_run(engine->config.pool, conv_part, &job,
                (H + MP_CONV_CHANNELS - 1) / MP_CONV_CHANNELS);
}
