/*
 * Counts how often predictions contain the experts that are then chosen. Runs no model itself.
 */
#include "engine/session/evaluate.h"

#include <stdlib.h>
#include <string.h>

#include "policy/top_k.h"
#include "vmm/base/arena.h"
#include "vmm/base/error.h"

#define SIDES 3

struct tally {
    uint64_t tokens, found; /* of tokens * k */
    uint64_t hot, hot_found;
};

struct mp_evaluator {
    struct mp_model_id id;
    struct mp_observer observer;
    struct tally *tallies; // (layers)
    /* Of an even and an odd layer, and of the next step's layer 0: one is guessed before the other
     * has been compared. */
    uint32_t target[SIDES]; /* MP_LAYER_ANY: there is no guess */
    uint32_t guess_tokens[SIDES];
    uint32_t *guess[SIDES]; // (T, k)
    float *guess_scores;    // (T, k): scratch
    uint32_t *counts[2];    // (experts): tokens as predicted, in truth
    void *block;            /* of all these arrays */
};

static uint32_t side_of(uint32_t target)
{
    return target == 0 ? 2 : target % 2;
}

static void on_predicted(void *ctx, uint32_t layer, uint32_t target, uint32_t tokens,
                         const float *scores)
{
    struct mp_evaluator *e = ctx;
    const struct mp_route_facts facts = {
        .tokens = tokens, .experts = e->id.experts, .k = e->id.top_k, .scores = scores
    };

    const uint32_t side = side_of(target);

    if (target != (layer + 1) % e->id.layers)
        return;
    mp_route_top_k(&facts, e->guess[side], e->guess_scores);
    e->target[side] = target;
    e->guess_tokens[side] = tokens;
}

static bool contains(const uint32_t *list, uint32_t count, uint32_t value)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i] == value)
            return true;
    }
    return false;
}

static void count_tokens(const uint32_t *chosen, size_t count, uint32_t *counts, uint32_t experts)
{
    memset(counts, 0, experts * sizeof(*counts));
    for (size_t i = 0; i < count; i++)
        counts[chosen[i]]++;
}

/* How many experts stand before `expert` in the order of counts. */
static uint32_t rank(const uint32_t *counts, uint32_t experts, uint32_t expert, bool strictly)
{
    uint32_t before = 0;

    for (uint32_t e = 0; e < experts; e++)
        before +=
            counts[e] > counts[expert] || (!strictly && counts[e] == counts[expert] && e < expert);
    return before;
}

static void add_hot(struct mp_evaluator *e, struct tally *tally)
{
    for (uint32_t i = 0; i < e->id.experts; i++) {
        if (e->counts[0][i] == 0 || rank(e->counts[0], e->id.experts, i, false) >= MP_EVALUATE_HOT)
            continue;
        tally->hot++;
        tally->hot_found += e->counts[1][i] > 0 &&
                            rank(e->counts[1], e->id.experts, i, true) < MP_EVALUATE_HOT_WITHIN;
    }
}

static void on_layer(void *ctx, const struct mp_layer_seen *seen)
{
    struct mp_evaluator *e = ctx;
    struct tally *tally = &e->tallies[seen->layer];
    const uint32_t k = seen->k, tokens = seen->batch->count, side = side_of(seen->layer);
    const uint32_t *guess = e->guess[side];
    const bool guessed = e->target[side] == seen->layer && e->guess_tokens[side] == tokens;

    e->target[side] = MP_LAYER_ANY;
    if (!guessed || (seen->layer == 0 && seen->batch->position[0] == 0))
        return; /* the first token of a text follows none */
    tally->tokens += tokens;
    for (uint32_t i = 0; i < tokens * k; i++)
        tally->found += contains(guess + i / k * k, k, seen->experts[i]);
    count_tokens(guess, (size_t)tokens * k, e->counts[0], e->id.experts);
    count_tokens(seen->experts, (size_t)tokens * k, e->counts[1], e->id.experts);
    add_hot(e, tally);
}

static void take_arrays(struct mp_evaluator *e, uint32_t tokens_max, struct mp_arena *arena)
{
    const uint64_t choices = (uint64_t)tokens_max * e->id.top_k;

    e->tallies = mp_arena_take(arena, e->id.layers, sizeof(*e->tallies));
    e->guess_scores = mp_arena_take(arena, choices, sizeof(*e->guess_scores));
    for (int i = 0; i < 2; i++)
        e->counts[i] = mp_arena_take(arena, e->id.experts, sizeof(uint32_t));
    for (int i = 0; i < SIDES; i++)
        e->guess[i] = mp_arena_take(arena, choices, sizeof(uint32_t));
}

enum mp_status mp_evaluator_create(const struct mp_model_id *id, uint32_t tokens_max,
                                   struct mp_evaluator **evaluator_p)
{
    struct mp_evaluator *e = calloc(1, sizeof(*e));
    struct mp_arena arena = { 0 };
    enum mp_status status;

    if (e == NULL)
        return mp_fail_no_memory("an evaluation", sizeof(*e));
    e->id = *id;
    e->observer = (struct mp_observer){ .ctx = e, .layer = on_layer, .predicted = on_predicted };
    for (int i = 0; i < SIDES; i++)
        e->target[i] = MP_LAYER_ANY;
    take_arrays(e, tokens_max, &arena);
    status = mp_arena_open(&arena, "an evaluation");
    if (status != MP_OK) {
        free(e);
        return status;
    }
    take_arrays(e, tokens_max, &arena);
    e->block = arena.block;
    *evaluator_p = e;
    return MP_OK;
}

void mp_evaluator_destroy(struct mp_evaluator *e)
{
    if (e == NULL)
        return;
    free(e->block);
    free(e);
}

const struct mp_observer *mp_evaluator_observer(struct mp_evaluator *e)
{
    return &e->observer;
}

void mp_evaluator_reset(struct mp_evaluator *e)
{
    memset(e->tallies, 0, e->id.layers * sizeof(*e->tallies));
    for (int i = 0; i < SIDES; i++)
        e->target[i] = MP_LAYER_ANY;
}

void mp_evaluator_result(const struct mp_evaluator *e, uint32_t layer,
                         struct mp_evaluation *result_p)
{
    const struct tally *tally = &e->tallies[layer];

    *result_p = (struct mp_evaluation){ .tokens = tally->tokens };
    if (tally->tokens > 0)
        result_p->recall = (double)tally->found / ((double)tally->tokens * e->id.top_k);
    if (tally->hot > 0)
        result_p->hot = (double)tally->hot_found / (double)tally->hot;
}
