/*
 * PreScope's trained predictors, evaluated: the network of engine/model/sidecar/llapor.h for each
 * token of the batch. The scores are the network's probabilities, one by one, not a distribution.
 */
#include <math.h>
#include <string.h>

#include "engine/forward/engine_int.h"

static void linear(struct mp_engine *engine, const struct mp_llapor_linear *linear, const float *x,
                   size_t x_stride, float *y, size_t y_stride)
{
    const struct mp_product product = { &linear->weight, linear->bias, x, x_stride, y, y_stride };

    if (engine->predict.alone)
        mp_cpu_multiply_alone(engine, &product, 1, engine->tokens);
    else
        mp_cpu_multiply(engine, &product, 1, engine->tokens);
}

static void gelu(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] *= 0.5f * (1.0f + erff(x[i] * 0.70710678f));
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Behind the components: the shares of the chosen experts, then ones for them. */
static void add_choices(struct mp_engine *engine, uint32_t inputs, size_t stride)
{
    const struct mp_predict_state *p = &engine->predict;
    const size_t E = engine->shape.experts, R = engine->shape.top_k;

    for (size_t t = 0; t < engine->tokens; t++) {
        float *shares = p->features + t * stride + inputs, total = 0;

        memset(shares, 0, 2 * E * sizeof(float));
        for (size_t r = 0; r < R; r++)
            total += p->weights[t * R + r];
        for (size_t r = 0; r < R; r++) {
            const uint32_t e = p->chosen[t * R + r];

            shares[e] = total > 0 ? p->weights[t * R + r] / total : 0;
            shares[E + e] = 1;
        }
    }
}

/* h += sigmoid(gate z) * b gelu(a h) */
static void residual_block(struct mp_engine *engine, const struct mp_llapor_net *net, size_t stride)
{
    const struct mp_predict_state *p = &engine->predict;
    const size_t D = net->width, count = engine->tokens * D;
    float *h = p->wide[0], *inner = p->wide[1], *outer = p->wide[2];

    linear(engine, &net->a, h, D, inner, D);
    gelu(inner, count);
    linear(engine, &net->b, inner, D, outer, D);
    linear(engine, &net->gate, p->features, stride, inner, D);
    for (size_t i = 0; i < count; i++)
        h[i] += sigmoid(inner[i]) * outer[i];
}

void mp_engine_scores_llapor(struct mp_engine *engine, uint32_t moe_layer, float *scores)
{
    const struct mp_llapor_net *net = &engine->config.llapor->nets[moe_layer];
    const struct mp_predict_state *p = &engine->predict;
    const size_t H = engine->config.model->hidden, E = engine->shape.experts;
    const size_t stride = net->inputs + 2 * E, D = net->width;
    const struct mp_llapor_linear out = mp_engine_llapor_out(engine, moe_layer);

    linear(engine, &net->pca, engine->state.xn, H, p->features, stride);
    add_choices(engine, net->inputs, stride);
    linear(engine, &net->in, p->features, stride, p->wide[0], D);
    gelu(p->wide[0], engine->tokens * D);
    if (net->deep)
        residual_block(engine, net, stride);
    linear(engine, &out, p->wide[0], D, scores, E);
    for (size_t i = 0; i < engine->tokens * E; i++)
        scores[i] = sigmoid(scores[i]);
    mp_engine_llapor_said(engine, moe_layer, scores);
}
