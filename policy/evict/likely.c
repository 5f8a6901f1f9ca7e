/*
 * Weighs several guesses of what is chosen next by least squares; see likely.h. It is recursive
 * least squares with forgetting, solved anew after each batch, as four unknowns are few.
 *
 * Ours. A batch costs O(experts).
 */
#include "policy/evict/likely.h"

#include <math.h>
#include <string.h>

#include "vmm/base/assert.h"

#define HALF_LIFE 256.0 /* tokens */
#define PRIOR 4.0       /* tokens */

enum { USED, SCORED, MEAN, CALIBRATED };

/* The first weights: where there is a calibration, and where there is none. */
static const double first_weights[2][MP_LIKELY_GUESSES] = { { 0.3, 0.1, 0.6, 0 },
                                                            { 0.2, 0.2, 0.1, 0.5 } };

void mp_likely_take(struct mp_likely *likely, const struct mp_shape *shape,
                    const struct mp_ghost_facts *facts, struct mp_arena *arena)
{
    const size_t ids = (size_t)shape->layers * shape->experts;

    *likely = (struct mp_likely){ .facts = facts };
    likely->guess = mp_arena_take(arena, ids * MP_LIKELY_GUESSES, sizeof(double));
    likely->mean = mp_arena_take(arena, ids, sizeof(double));
    likely->tokens = mp_arena_take(arena, shape->layers, sizeof(double));
    likely->share = mp_arena_take(arena, shape->experts, sizeof(double));
    likely->guessed = mp_arena_take(arena, shape->layers, sizeof(bool));
}

static double *guesses(const struct mp_likely *likely, uint32_t layer, uint32_t kind)
{
    return likely->guess + ((size_t)layer * MP_LIKELY_GUESSES + kind) * likely->facts->experts;
}

void mp_likely_begin(struct mp_likely *likely, const float *hot)
{
    const struct mp_ghost_facts *facts = likely->facts;

    likely->calibrated = hot != NULL;
    memcpy(likely->weight, first_weights[likely->calibrated], sizeof(likely->weight));
    for (uint32_t l = 0; l < facts->layers && hot != NULL; l++) {
        for (uint32_t e = 0; e < facts->experts; e++)
            guesses(likely, l, CALIBRATED)[e] =
                fmin(facts->top_k * (double)hot[(size_t)l * facts->experts + e], 1);
    }
}

void mp_likely_scores(struct mp_likely *likely, uint32_t layer, uint32_t tokens,
                      const float *scores)
{
    const uint32_t experts = likely->facts->experts;
    double *mean = likely->mean + (size_t)layer * experts;

    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t e = 0; e < experts; e++)
            mean[e] += (double)scores[(size_t)t * experts + e];
    }
    likely->tokens[layer] += tokens;
}

/* (product + prior) weight = target + prior * first_weights by elimination. The matrix is positive
 * definite, so no pivot is 0. */
static void solve(struct mp_likely *likely, double prior)
{
    const double *first = first_weights[likely->calibrated];
    const uint32_t n = likely->calibrated ? MP_LIKELY_GUESSES : MP_LIKELY_GUESSES - 1;
    double a[MP_LIKELY_GUESSES][MP_LIKELY_GUESSES + 1];

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++)
            a[i][j] = likely->product[i][j] + (i == j ? prior : 0);
        a[i][n] = likely->target[i] + prior * first[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t r = i + 1; r < n; r++) {
            const double factor = a[r][i] / a[i][i];

            for (uint32_t c = i; c <= n; c++)
                a[r][c] -= factor * a[i][c];
        }
    }
    for (uint32_t i = n; i-- > 0;) {
        double sum = a[i][n];

        for (uint32_t c = i + 1; c < n; c++)
            sum -= a[i][c] * likely->weight[c];
        likely->weight[i] = sum / a[i][i];
    }
}

/* All sums in one pass: one after the other, each would wait for its own additions. */
static void learn(struct mp_likely *likely, uint32_t layer)
{
    const struct mp_ghost_facts *facts = likely->facts;
    const double *x = guesses(likely, layer, 0), keep = exp2(-1 / (HALF_LIFE * facts->layers));
    const size_t experts = facts->experts;
    double sum[MP_LIKELY_GUESSES][MP_LIKELY_GUESSES] = { { 0 } };

    for (uint32_t i = 0; i < MP_LIKELY_GUESSES; i++)
        likely->target[i] *= keep;
    for (size_t e = 0; e < experts; e++) {
        for (uint32_t i = 0; i < MP_LIKELY_GUESSES; i++) {
            for (uint32_t j = 0; j <= i; j++)
                sum[i][j] += x[i * experts + e] * x[j * experts + e];
            likely->target[i] += x[i * experts + e] * likely->share[e];
        }
    }
    for (uint32_t i = 0; i < MP_LIKELY_GUESSES; i++) {
        for (uint32_t j = 0; j <= i; j++)
            likely->product[i][j] = likely->product[j][i] =
                keep * likely->product[i][j] + sum[i][j];
    }
    /* A token adds about k^2 / experts to the sums in each layer, or more. */
    solve(likely, PRIOR * facts->layers * facts->top_k * facts->top_k / facts->experts);
}

void mp_likely_batch(struct mp_likely *likely, uint32_t layer, const uint32_t *ids,
                     const uint32_t *tokens, uint32_t count)
{
    const struct mp_ghost_facts *facts = likely->facts;
    const uint32_t experts = facts->experts, first = layer * experts;
    double rows = 0;

    mp_assert(layer < facts->layers && count > 0);
    if (likely->guessed[layer]) {
        for (uint32_t i = 0; i < count; i++)
            rows += (double)tokens[i] / facts->top_k;
        memset(likely->share, 0, experts * sizeof(likely->share[0]));
        for (uint32_t i = 0; i < count; i++)
            likely->share[ids[i] - first] = tokens[i] / rows;
        learn(likely, layer);
    }
    likely->guessed[layer] = true;
    for (uint32_t e = 0; e < experts; e++) {
        guesses(likely, layer, USED)[e] = 1 / (facts->wait[first + e] + 1);
        guesses(likely, layer, SCORED)[e] =
            fmin(facts->top_k * facts->average[first + e] / facts->weighed[layer], 1);
        guesses(likely, layer, MEAN)[e] =
            fmin(facts->top_k * likely->mean[first + e] / likely->tokens[layer], 1);
    }
}

double mp_likely_share(const struct mp_likely *likely, uint32_t id)
{
    const size_t experts = likely->facts->experts;
    const double *guess = guesses(likely, (uint32_t)(id / experts), 0) + id % experts;
    double share = 0;

    for (uint32_t i = 0; i < MP_LIKELY_GUESSES; i++)
        share += likely->weight[i] * guess[i * experts];
    return share;
}
