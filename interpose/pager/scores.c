/*
 * The later layer's norm and router on the present layer's input.
 *
 * That input has been through the present layer's norm, whose weights are divided out and replaced
 * by the later one's. What the present layer is going to add is not known yet: residual streams
 * change little from layer to layer, so most of the choice can be seen all the same. Cost: the
 * router's bytes, once for all tokens.
 */
#include "interpose/pager/scores.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/kernels.h"

struct mp_paged_scores {
    const struct mp_kernels *kernels;
    float *input; // (MP_SCORES_TOKENS_MAX, hidden): as the later norm would give it
};

struct mp_paged_scores *mp_paged_scores_create(const struct mp_paged *paged)
{
    struct mp_paged_scores *scores;

    if (paged->experts.hidden == 0)
        return NULL;
    scores = calloc(1, sizeof(*scores));
    if (scores == NULL)
        return NULL;
    scores->kernels = mp_kernels_best();
    scores->input = calloc((size_t)MP_SCORES_TOKENS_MAX * paged->experts.hidden, sizeof(float));
    if (scores->input != NULL)
        return scores;
    free(scores);
    return NULL;
}

void mp_paged_scores_destroy(struct mp_paged_scores *scores)
{
    if (scores == NULL)
        return;
    free(scores->input);
    free(scores);
}

/* Where the program has it mapped; NULL: nowhere, or there is no such tensor. */
static const void *find(struct mp_paged *paged, const struct mp_piece *piece)
{
    return piece->bytes > 0 ? mp_mappings_address(paged->mappings, piece->file, piece->offset_bytes,
                                                  piece->bytes)
                            : NULL;
}

/* The input with the later layer's norm in place of the present one's. */
static void take_input(struct mp_paged *paged, const struct mp_routing *routing,
                       const struct mp_router *to)
{
    const float *from_norm = find(paged, &paged->experts.routers[routing->layer].norm);
    const float *to_norm = find(paged, &to->norm);
    const uint32_t hidden = paged->experts.hidden;

    for (uint32_t t = 0; t < routing->tokens; t++) {
        float *x = paged->scores->input + (size_t)t * hidden;

        memcpy(x, routing->input + t * routing->input_stride, hidden * sizeof(*x));
        for (uint32_t i = 0; from_norm != NULL && to_norm != NULL && i < hidden; i++)
            x[i] = from_norm[i] != 0 ? x[i] / from_norm[i] * to_norm[i] : 0;
    }
}

static void gate(enum mp_gating gating, const struct mp_kernels *kernels, float *scores,
                 uint32_t experts)
{
    if (gating == MP_GATING_SOFTMAX) {
        kernels->softmax(scores, experts, experts, 1);
        return;
    }
    for (uint32_t e = 0; e < experts; e++) {
        const float product = scores[e];

        if (gating == MP_GATING_SIGMOID)
            scores[e] = 1 / (1 + expf(-product));
        else
            scores[e] = sqrtf(product > 20 ? product : log1pf(expf(product)));
    }
}

static void add(float *scores, const float *what, uint32_t experts)
{
    for (uint32_t e = 0; what != NULL && e < experts; e++)
        scores[e] += what[e];
}

static bool are_finite(const float *scores, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(scores[i]))
            return false;
    }
    return true;
}

static enum mp_wtype type_of(uint32_t number)
{
    return number == 0 ? MP_WTYPE_F32 : number == 1 ? MP_WTYPE_F16 : MP_WTYPE_BF16;
}

bool mp_paged_scores_guess(struct mp_paged *paged, const struct mp_routing *routing,
                           uint32_t target, float *guess)
{
    const struct mp_experts *model = &paged->experts;
    const struct mp_router *router = model->routers != NULL ? &model->routers[target] : NULL;
    const uint32_t experts = model->experts, hidden = model->hidden;
    const void *weight = router != NULL ? find(paged, &router->weight) : NULL;
    const float *bias, *correction;

    if (paged->scores == NULL || weight == NULL || routing->input == NULL ||
        routing->tokens > MP_SCORES_TOKENS_MAX)
        return false;
    bias = find(paged, &router->bias);
    correction = find(paged, &router->correction);
    take_input(paged, routing, router);
    paged->scores->kernels->matmul(guess, experts, weight, type_of(router->type), hidden,
                                   paged->scores->input, hidden, experts, hidden, routing->tokens);
    for (uint32_t t = 0; t < routing->tokens; t++) {
        add(guess + (size_t)t * experts, bias, experts);
        gate(model->gating, paged->scores->kernels, guess + (size_t)t * experts, experts);
        add(guess + (size_t)t * experts, correction, experts);
    }
    return are_finite(guess, (size_t)routing->tokens * experts);
}
