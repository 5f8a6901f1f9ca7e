/*
 * Sines and cosines of positions, as the reference implementations have them: frequencies and
 * angles are rounded to float. Scaled kinds lower frequencies: LINEAR all of them by one factor,
 * YARN those that turn seldom in the positions that the model was first trained with, LONG each by
 * a number of its own.
 */
#include <math.h>

#include "engine/forward/engine_int.h"

#define TURN (2 * 3.14159265358979323846)

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* The dimension whose pair turns so many times in the original positions. */
static double yarn_dimension(const struct mp_model_config *m, double turns)
{
    return m->rotary_dim * log(m->rope.original / (turns * TURN)) / (2 * log(m->rope_theta));
}

static float yarn_frequency(const struct mp_model_config *m, size_t i, float plain)
{
    const struct mp_rope *rope = &m->rope;
    double low = yarn_dimension(m, rope->fast), high = yarn_dimension(m, rope->slow), part;

    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0 ? low : 0;
    high = high < m->rotary_dim - 1 ? high : m->rotary_dim - 1;
    high += low == high ? 0.001 : 0;
    part = clamp(((double)i - low) / (high - low), 0, 1);
    return (float)(plain / rope->factor * part + plain * (1 - part));
}

/* `longer`: the context is longer than what the model was first trained with. */
static float frequency_of(const struct mp_model_config *m, size_t i, bool longer)
{
    const float exponent = (float)(2 * i) / (float)m->rotary_dim;
    const float plain = (float)(1.0 / pow(m->rope_theta, exponent));

    switch (m->rope.kind) {
    case MP_ROPE_PLAIN: return plain;
    case MP_ROPE_LINEAR: return (float)(plain / m->rope.factor);
    case MP_ROPE_YARN: return yarn_frequency(m, i, plain);
    case MP_ROPE_LONG:
        return (float)(1.0 / (m->rope.factors[longer][i] * pow(m->rope_theta, exponent)));
    }
    return plain;
}

/* Of wide layers: pairs that do not turn have angles of 0. */
static void fill_wide(struct mp_engine *engine)
{
    const struct mp_model_config *m = engine->config.model;
    const size_t half = m->wide_head_dim / 2;

    for (size_t i = 0; i < half; i++) {
        const float exponent = (float)(2 * i) / (float)m->wide_head_dim;
        const float plain = (float)(1.0 / pow(m->wide_theta, exponent));
        const bool turns = i < m->wide_rotary_dim / 2;
        const float frequency = turns ? plain / (float)m->wide_factor : 0;

        for (uint32_t p = 0; p < engine->config.ctx; p++) {
            engine->state.wide_cosine[p * half + i] = cosf((float)p * frequency);
            engine->state.wide_sine[p * half + i] = sinf((float)p * frequency);
        }
    }
}

void mp_engine_fill_positions(struct mp_engine *engine)
{
    const struct mp_model_config *m = engine->config.model;
    const size_t half = m->rotary_dim / 2;
    const bool longer = m->rope.kind == MP_ROPE_LONG && engine->config.ctx > m->rope.original;
    const float magnitude = (float)(longer ? m->rope.long_magnitude : m->rope.magnitude);

    for (size_t i = 0; i < half; i++) {
        const float frequency = frequency_of(m, i, longer);

        for (uint32_t p = 0; p < engine->config.ctx; p++) {
            engine->state.cosine[p * half + i] = cosf((float)p * frequency) * magnitude;
            engine->state.sine[p * half + i] = sinf((float)p * frequency) * magnitude;
        }
    }
    fill_wide(engine);
}
