/*
 * PreScope's predictors go on learning while they are used (sections 2.3 and 4.2: "collect new
 * samples and perform online gradient updates, adapting to shifting input distributions"). The
 * paper does not say which weights move, or when. Here it is the last product of a network, out h +
 * out_bias, by the gradient of the binary cross-entropy of each expert, and only of networks that
 * missed more than a tenth of the experts of their last 64 tokens (the numbers of the paper's later
 * version). The file stays as it was trained.
 *
 * A step changes a token's logits by at most RATE, whatever the length of h. Cost: tokens * experts
 * * width multiplications for each layer that learns.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/forward/engine_int.h"
#include "policy/top_k.h"
#include "vmm/base/arena.h"
#include "vmm/base/error.h"

#define RATE 0.05f
#define WINDOW 64u      /* tokens */
#define TOLERATED 10u   /* a tenth of what they chose */
#define TOKENS_MOST 16u /* of a batch, the last ones: a prompt is many, and all of one kind */

struct net {
    float *weight; // (E, D)
    float *bias;   // (E)
    uint32_t tokens, missed, chosen;
    bool learns;
};

struct mp_llapor_learner {
    struct net *nets; // (count)
    float *said;      // (T, E): of the network that was asked last
    float *best;      // (R)
    uint32_t *named;  // (R)
    uint32_t layer;   /* which that predicted; UINT32_MAX: none */
    void *block;
};

static void take_arrays(const struct mp_engine *engine, struct mp_llapor_learner *learner,
                        struct mp_arena *arena)
{
    const struct mp_llapor *llapor = engine->config.llapor;
    const uint64_t E = engine->shape.experts;

    learner->nets = mp_arena_take(arena, llapor->count, sizeof(struct net));
    learner->said = mp_arena_take(arena, engine->shape.tokens_max * E, sizeof(float));
    learner->best = mp_arena_take(arena, engine->shape.top_k, sizeof(float));
    learner->named = mp_arena_take(arena, engine->shape.top_k, sizeof(uint32_t));
    for (uint32_t i = 0; i < llapor->count; i++) {
        float *weight = mp_arena_take(arena, E * llapor->nets[i].width, sizeof(float));
        float *bias = mp_arena_take(arena, E, sizeof(float));

        if (learner->nets != NULL) {
            learner->nets[i].weight = weight;
            learner->nets[i].bias = bias;
        }
    }
}

enum mp_status mp_engine_llapor_learner_create(struct mp_engine *engine)
{
    const struct mp_llapor *llapor = engine->config.llapor;
    struct mp_llapor_learner *learner = calloc(1, sizeof(*learner));
    struct mp_arena arena = { 0 };
    enum mp_status status;

    if (learner == NULL)
        return mp_fail_no_memory("trained predictors", sizeof(*learner));
    take_arrays(engine, learner, &arena);
    status = mp_arena_open(&arena, "trained predictors");
    if (status != MP_OK) {
        free(learner);
        return status;
    }
    take_arrays(engine, learner, &arena);
    learner->block = arena.block;
    learner->layer = UINT32_MAX;
    for (uint32_t i = 0; i < llapor->count; i++) {
        const struct mp_llapor_linear *out = &llapor->nets[i].out;

        memcpy(learner->nets[i].weight, out->weight.data,
               out->weight.rows * out->weight.cols * sizeof(float));
        memcpy(learner->nets[i].bias, out->bias, out->weight.rows * sizeof(float));
    }
    engine->predict.learner = learner;
    return MP_OK;
}

void mp_engine_llapor_learner_destroy(struct mp_llapor_learner *learner)
{
    if (learner == NULL)
        return;
    free(learner->block);
    free(learner);
}

struct mp_llapor_linear mp_engine_llapor_out(const struct mp_engine *engine, uint32_t moe_layer)
{
    const struct mp_llapor_learner *learner = engine->predict.learner;
    struct mp_llapor_linear out = engine->config.llapor->nets[moe_layer].out;

    if (learner != NULL) {
        out.weight.data = learner->nets[moe_layer].weight;
        out.bias = learner->nets[moe_layer].bias;
    }
    return out;
}

void mp_engine_llapor_said(struct mp_engine *engine, uint32_t moe_layer, const float *scores)
{
    struct mp_llapor_learner *learner = engine->predict.learner;

    if (learner == NULL)
        return;
    learner->layer = moe_layer + 1;
    memcpy(learner->said, scores, engine->tokens * engine->shape.experts * sizeof(float));
}

/* Of how many of these experts was nothing said? */
static uint32_t count_missed(struct mp_llapor_learner *learner, const float *said, uint32_t experts,
                             uint32_t k, const uint32_t *chosen)
{
    uint32_t missed = 0;

    mp_top_k(said, experts, k, learner->named, learner->best);
    for (uint32_t r = 0; r < k; r++) {
        uint32_t i = 0;

        while (i < k && learner->named[i] != chosen[r])
            i++;
        missed += i == k;
    }
    return missed;
}

/* One step down the gradient of a token: h(D), said(E) as probabilities. */
static void learn(struct net *net, uint32_t width, uint32_t experts, const float *h,
                  const float *said, const uint32_t *chosen, uint32_t k)
{
    float length = 1;

    for (uint32_t d = 0; d < width; d++)
        length += h[d] * h[d];
    for (uint32_t e = 0; e < experts; e++) {
        float *row = net->weight + (size_t)e * width, step = -said[e];

        for (uint32_t r = 0; r < k; r++)
            step += chosen[r] == e;
        step *= RATE / length;
        for (uint32_t d = 0; d < width; d++)
            row[d] += step * h[d];
        net->bias[e] += step;
    }
}

void mp_engine_llapor_learn(struct mp_engine *engine, uint32_t moe_layer, const uint32_t *chosen)
{
    struct mp_llapor_learner *learner = engine->predict.learner;
    const uint32_t T = engine->tokens, E = engine->shape.experts, k = engine->shape.top_k;
    struct net *net;
    uint32_t width;

    if (learner == NULL || learner->layer != moe_layer || moe_layer == 0)
        return;
    learner->layer = UINT32_MAX;
    net = &learner->nets[moe_layer - 1];
    width = engine->config.llapor->nets[moe_layer - 1].width;
    for (uint32_t t = T > TOKENS_MOST ? T - TOKENS_MOST : 0; t < T; t++) {
        const float *said = learner->said + (size_t)t * E;

        net->tokens++;
        net->chosen += k;
        net->missed += count_missed(learner, said, E, k, chosen + (size_t)t * k);
        if (net->learns)
            learn(net, width, E, engine->predict.wide[0] + (size_t)t * width, said,
                  chosen + (size_t)t * k, k);
    }
    if (net->tokens < WINDOW)
        return;
    net->learns = net->missed * TOLERATED > net->chosen;
    net->tokens = net->missed = net->chosen = 0;
}
