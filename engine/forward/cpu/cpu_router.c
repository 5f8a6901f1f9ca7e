/*
 * Routers on the CPU: what experts are chosen by, and what the chosen ones are weighed by. In most
 * families both are the softmax of the router's outputs. Others choose by scores with a bias that
 * training has balanced the experts with, from the best groups of experts, and weigh by the scores
 * alone, or by the outputs around each expert's; these then stay in state.gates until the layer's
 * experts are chosen.
 */
#include <math.h>
#include <string.h>

#include "engine/forward/cpu/cpu_int.h"

/* How good is a group? The sum of its best one or two. */
static float group_value(const float *scores, uint32_t count, uint32_t best)
{
    float first = -INFINITY, second = -INFINITY;

    for (uint32_t i = 0; i < count; i++) {
        if (scores[i] > first) {
            second = first;
            first = scores[i];
        } else if (scores[i] > second) {
            second = scores[i];
        }
    }
    return best == 2 ? first + second : first;
}

/* Is group g among the best ones? Of equal groups the lower number is. */
static bool group_is_used(const struct mp_model_config *m, const float *scores, uint32_t g)
{
    const uint32_t each = m->experts / m->groups;
    const float mine = group_value(scores + (size_t)g * each, each, m->group_best);
    uint32_t better = 0;

    for (uint32_t other = 0; other < m->groups; other++) {
        const float value = group_value(scores + (size_t)other * each, each, m->group_best);

        better += value > mine || (value == mine && other < g);
    }
    return better < m->groups_used;
}

/* Experts outside of the best groups get scores below all others. */
static void leave_groups(const struct mp_model_config *m, float *scores)
{
    const uint32_t each = m->experts / m->groups;
    bool used[MP_EXPERTS_MAX];
    float least = scores[0];

    for (uint32_t e = 1; e < m->experts; e++)
        least = scores[e] < least ? scores[e] : least;
    for (uint32_t g = 0; g < m->groups; g++)
        used[g] = group_is_used(m, scores, g);
    for (uint32_t e = 0; e < m->experts; e++)
        scores[e] = used[e / each] ? scores[e] : least - 1;
}

static void select_token(const struct mp_engine *engine, uint32_t layer, float *scores)
{
    const struct mp_model_config *m = engine->config.model;
    const float *bias = engine->config.weights->layers[layer].select_bias;

    if (bias != NULL) {
        for (uint32_t e = 0; e < m->experts; e++)
            scores[e] += bias[e];
    }
    if (m->groups > 1)
        leave_groups(m, scores);
}

/*
 * The weight of an expert of one rank: its share of the softmax over what earlier ranks have left
 * and what is not much lower than its own output.
 */
static float mixer_weight(const struct mp_model_config *m, const float *outputs,
                          const uint32_t *experts, size_t rank)
{
    const float top = outputs[experts[rank]];
    float sum = 0;

    for (uint32_t e = 0; e < m->experts; e++) {
        const float size = fabsf(outputs[e]) > top ? fabsf(outputs[e]) : top;
        bool counts = e == experts[rank] || !((top - outputs[e]) / size > 2 * m->mixer_eps);

        for (size_t r = 0; r < rank; r++)
            counts &= e != experts[r];
        sum += counts ? expf(outputs[e] - top) : 0;
    }
    return 1 / sum;
}

/* The router's outputs for x(T, H), its input. */
static struct mp_product outputs_of(const struct mp_engine *engine, uint32_t layer, const float *x,
                                    float *outputs)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_layer_weights *w = &engine->config.weights->layers[layer];

    return (struct mp_product){ &w->router, w->router_bias, x, m->hidden, outputs, m->experts };
}

/* From the router's outputs to the scores of experts, in place; what they are weighed by goes to
 * `gates`, unless that is NULL. */
static void finish(const struct mp_engine *engine, uint32_t layer, float *scores, float *gates)
{
    const struct mp_model_config *m = engine->config.model;
    const size_t count = (size_t)engine->tokens * m->experts;

    if (m->router_norm)
        mp_cpu_scale(scores, 1.0f / sqrtf((float)m->hidden), count);
    if (gates != NULL && m->router == MP_ROUTER_MIXER)
        memcpy(gates, scores, count * sizeof(float));
    if (m->router != MP_ROUTER_SIGMOID)
        engine->config.kernels->softmax(scores, m->experts, m->experts, engine->tokens);
    if (m->router == MP_ROUTER_SIGMOID) {
        for (size_t i = 0; i < count; i++)
            scores[i] = 1.0f / (1.0f + expf(-scores[i]));
    }
    if (!mp_model_config_selects(m))
        return;
    if (gates != NULL && m->router != MP_ROUTER_MIXER)
        memcpy(gates, scores, count * sizeof(float));
    for (uint32_t t = 0; t < engine->tokens; t++)
        select_token(engine, layer, scores + (size_t)t * m->experts);
}

/* The router's input is x, or a norm of it that comes to `in`. */
static const float *input_of(const struct mp_engine *engine, uint32_t layer, const float *x,
                             float *in)
{
    if (!engine->config.model->router_norm)
        return x;
    mp_cpu_norm(engine, in, x, &engine->config.weights->layers[layer].router_norm, engine->tokens);
    return in;
}

void mp_cpu_router(struct mp_engine *engine, uint32_t layer, float *x, float *scores, bool alone)
{
    const struct mp_product product =
        outputs_of(engine, layer, input_of(engine, layer, x, x), scores);

    if (alone)
        mp_cpu_multiply_alone(engine, &product, 1, engine->tokens);
    else
        mp_cpu_multiply(engine, &product, 1, engine->tokens);
    finish(engine, layer, scores, NULL);
}

/* With `norm` it is a prediction. A router with a norm of its own gets the stream. */
void mp_cpu_route(struct mp_compute *c, uint32_t layer, enum mp_array in,
                  const struct mp_norm *norm, float *scores)
{
    const struct mp_state *s = &c->engine->state;
    const bool own = c->engine->config.model->router_norm;
    const float *x = own && norm == NULL ? s->x : s->array[in];
    struct mp_product product;

    if (norm != NULL && !own) {
        mp_cpu_norm(c->engine, s->xe, x, norm, c->engine->tokens);
        x = s->xe;
    }
    product = outputs_of(c->engine, layer, input_of(c->engine, layer, x, s->xe), scores);
    mp_cpu_multiply(c->engine, &product, 1, c->engine->tokens);
    finish(c->engine, layer, scores, norm == NULL ? s->gates : NULL);
}

/* Of one token: their shares of their sum, times the scale of each. */
static void scale_weights(const float *scale, const uint32_t *experts, size_t count, float *weights)
{
    float total = 0;

    for (size_t r = 0; r < count; r++)
        total += weights[r];
    for (size_t r = 0; r < count; r++)
        weights[r] = weights[r] / total * scale[experts[r]];
}

void mp_cpu_weigh(struct mp_compute *c, uint32_t layer, const uint32_t *experts, float *weights)
{
    const struct mp_model_config *m = c->engine->config.model;
    const size_t R = c->engine->shape.top_k, rows = c->engine->tokens * R;

    if (!mp_model_config_selects(m))
        return;
    for (size_t i = 0; i < rows; i++) {
        const float *gates = c->engine->state.gates + i / R * m->experts;

        weights[i] = m->router == MP_ROUTER_MIXER
                         ? mixer_weight(m, gates, experts + i / R * R, i % R)
                         : gates[experts[i]];
    }
    for (size_t i = 0; m->expert_scale && i < rows; i += R)
        scale_weights(c->weights->layers[layer].expert_scale, experts + i, R, weights + i);
}
