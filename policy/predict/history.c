/*
 * Which experts of the next layer have followed those of this layer so far (EdgeMoE's idea of
 * activation history, with counts learned while running instead of a table made in advance).
 *
 *     score(t, j) = sum over experts i of token t in layer l of n[l][i][j] / n[l][i]
 *
 * n[l][i][j] counts tokens that chose i in layer l and j in layer l + 1. No arithmetic of the model
 * is needed. Memory: layers * experts^2 counters.
 */
#include "policy/builtins.h"

#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"

struct history {
    struct mp_policy super;
    struct mp_shape shape;
    uint32_t *pairs;  // (layers - 1, experts, experts)
    uint32_t *totals; // (layers - 1, experts)

    uint32_t *previous; // (tokens_max, top_k): routing of layer previous_layer
    uint32_t previous_layer, previous_tokens;
};

static void history_take(struct mp_policy *policy, const struct mp_shape *shape,
                         struct mp_arena *arena)
{
    struct history *history = (struct history *)policy;
    const uint64_t pairs = (uint64_t)(shape->layers > 1 ? shape->layers - 1 : 1) * shape->experts;

    history->totals = mp_arena_take(arena, pairs, sizeof(uint32_t));
    history->pairs = mp_arena_take(arena, pairs * shape->experts, sizeof(uint32_t));
    history->previous =
        mp_arena_take(arena, (uint64_t)shape->tokens_max * shape->top_k, sizeof(uint32_t));
}

static enum mp_status history_create(const void *config, const struct mp_shape *shape,
                                     struct mp_policy **policy_p)
{
    struct history draft = {
        .super.info = &mp_predict_history.info,
        .shape = *shape,
        .previous_layer = MP_LAYER_ANY,
    };

    (void)config;
    return mp_policy_make(&draft.super, sizeof(draft), history_take, shape, policy_p);
}

static uint32_t *row_of(const struct history *history, uint32_t layer, uint32_t expert)
{
    const size_t experts = history->shape.experts;

    mp_assert(expert < experts);
    return history->pairs + (layer * experts + expert) * experts;
}

static void history_observe(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                            const uint32_t *chosen)
{
    struct history *history = (struct history *)policy;

    mp_assert(tokens <= history->shape.tokens_max);
    if (layer > 0 && history->previous_layer == layer - 1 && history->previous_tokens == tokens) {
        for (uint32_t t = 0; t < tokens; t++) {
            for (uint32_t r = 0; r < k; r++) {
                const uint32_t from = history->previous[(size_t)t * k + r];
                uint32_t *row = row_of(history, layer - 1, from);

                history->totals[(size_t)(layer - 1) * history->shape.experts + from]++;
                for (uint32_t s = 0; s < k; s++)
                    row[chosen[(size_t)t * k + s]]++;
            }
        }
    }
    memcpy(history->previous, chosen, (size_t)tokens * k * sizeof(*chosen));
    history->previous_layer = layer;
    history->previous_tokens = tokens;
}

static bool history_predict(struct mp_policy *policy, const struct mp_predict_facts *facts,
                            float *scores)
{
    const struct history *history = (const struct history *)policy;
    const uint32_t experts = facts->experts;
    bool known = false;

    if (facts->target_layer != facts->layer + 1)
        return false;
    memset(scores, 0, (size_t)facts->tokens * experts * sizeof(*scores));
    for (uint32_t t = 0; t < facts->tokens; t++) {
        for (uint32_t r = 0; r < facts->k; r++) {
            const uint32_t from = facts->chosen[(size_t)t * facts->k + r];
            const uint32_t total = history->totals[(size_t)facts->layer * experts + from];
            const uint32_t *row = row_of(history, facts->layer, from);

            if (total == 0)
                continue;
            for (uint32_t e = 0; e < experts; e++)
                scores[(size_t)t * experts + e] += (float)row[e] / (float)total;
            known = true;
        }
    }
    return known;
}

const struct mp_predict_ops mp_predict_history = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "history",
              .summary = "experts that have followed those of this layer so far" },
    .create = history_create,
    .destroy = mp_policy_free,
    .source = MP_SCORES_NONE,
    .observe = history_observe,
    .predict = history_predict,
};
