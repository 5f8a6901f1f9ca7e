/*
 * Of each layer that is near enough the likely experts are asked for, nearest layer first, as long
 * as the pager has room for guesses.
 */
#include "engine/forward/lookahead.h"

#include <stdlib.h>
#include <string.h>

#include "engine/forward/engine_int.h"
#include "policy/lookahead/heat.h"
#include "vmm/base/arena.h"
#include "vmm/base/error.h"

#define REACH 2u        /* layers ahead: what is read earlier takes slots for longer */
#define LEAST 0.45f     /* share from which an expert is worth a read */
#define TOKENS_MOST 16u /* a larger batch wants nearly every expert of a layer anyway */
#define EXPECTED_MOST (TOKENS_MOST * 8)

struct mp_lookahead {
    const struct mp_engine *engine;
    struct mp_heat *heat;
    uint32_t expected[EXPECTED_MOST], expected_count;
    float chance[EXPECTED_MOST];
    float *share;   // (experts)
    float *scores;  // (TOKENS_MOST, experts): for the partition
    uint32_t *list; // (experts)
    void *block;
};

static void take_arrays(struct mp_lookahead *lookahead, struct mp_arena *arena)
{
    const uint32_t experts = lookahead->engine->config.model->experts;

    lookahead->share = mp_arena_take(arena, experts, sizeof(float));
    lookahead->scores = mp_arena_take(arena, TOKENS_MOST * (uint64_t)experts, sizeof(float));
    lookahead->list = mp_arena_take(arena, experts, sizeof(uint32_t));
}

enum mp_status mp_lookahead_create(const struct mp_engine *engine,
                                   struct mp_lookahead **lookahead_p)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_heat_shape shape = { m->moe_layers, m->experts, m->experts_per_token,
                                         m->vocab };
    struct mp_lookahead *lookahead = calloc(1, sizeof(*lookahead));
    struct mp_arena arena = { 0 };
    enum mp_status status;

    if (lookahead == NULL)
        return mp_fail_no_memory("the lookahead", sizeof(*lookahead));
    lookahead->engine = engine;
    take_arrays(lookahead, &arena);
    status = mp_arena_open(&arena, "the lookahead");
    if (status == MP_OK) {
        lookahead->block = arena.block;
        take_arrays(lookahead, &arena);
        status = mp_heat_create(&shape, &lookahead->heat);
        if (status == MP_OK && engine->config.token_heat != NULL)
            mp_token_heat_give(engine->config.token_heat, lookahead->heat);
    }
    if (status != MP_OK) {
        mp_lookahead_destroy(lookahead);
        return status;
    }
    *lookahead_p = lookahead;
    return MP_OK;
}

void mp_lookahead_destroy(struct mp_lookahead *lookahead)
{
    if (lookahead == NULL)
        return;
    mp_heat_destroy(lookahead->heat);
    free(lookahead->block);
    free(lookahead);
}

void mp_lookahead_expect(struct mp_lookahead *lookahead, const uint32_t *ids, const float *chances,
                         uint32_t count)
{
    lookahead->expected_count = count < EXPECTED_MOST ? count : EXPECTED_MOST;
    memcpy(lookahead->expected, ids, lookahead->expected_count * sizeof(ids[0]));
    memcpy(lookahead->chance, chances, lookahead->expected_count * sizeof(chances[0]));
}

void mp_lookahead_routed(struct mp_lookahead *lookahead, uint32_t layer, const uint32_t *chosen)
{
    const struct mp_engine *engine;

    if (lookahead == NULL)
        return;
    engine = lookahead->engine;
    for (uint32_t t = 0; t < engine->tokens; t++)
        mp_heat_learn(lookahead->heat, layer, engine->batch->token[t],
                      chosen + (size_t)t * engine->shape.top_k);
}

/* Ask for what layer `target`, of this batch or of tokens after it, may need. */
static void ask_for(struct mp_lookahead *lookahead, uint32_t target, bool later)
{
    const struct mp_engine *engine = lookahead->engine;
    const uint32_t experts = engine->shape.experts;
    const uint32_t *ids = later ? lookahead->expected : engine->batch->token;
    const uint32_t count = later ? lookahead->expected_count : engine->tokens;
    const uint32_t room = mp_pager_prefetch_room(engine->pager, target);
    uint32_t likely;

    if (count == 0)
        return;
    memset(lookahead->share, 0, experts * sizeof(lookahead->share[0]));
    for (uint32_t i = 0; i < count; i++)
        mp_heat_add(lookahead->heat, target, ids[i], later ? lookahead->chance[i] : 1,
                    lookahead->share);
    likely = mp_heat_list(lookahead->share, experts, LEAST, experts, lookahead->list);
    mp_pager_foresee(engine->pager, target, lookahead->list, likely);
    mp_pager_prefetch(engine->pager, target, lookahead->list, likely < room ? likely : room);
}

/* A partition that asks what the next layer is predicted to choose is told by each token's heat,
 * if no predict policy tells it. */
static void tell_partition(struct mp_lookahead *lookahead, uint32_t target)
{
    const struct mp_engine *engine = lookahead->engine;
    const struct mp_policies *set = &engine->policies;
    const uint32_t experts = engine->shape.experts;

    if (set->partition_ops->predicted == NULL || set->predict_ops->predict != NULL)
        return;
    memset(lookahead->scores, 0, engine->tokens * experts * sizeof(float));
    for (uint32_t t = 0; t < engine->tokens; t++)
        mp_heat_add(lookahead->heat, target, engine->batch->token[t], 1,
                    lookahead->scores + (size_t)t * experts);
    set->partition_ops->predicted(set->partition, target, engine->tokens, lookahead->scores);
}

void mp_lookahead_prefetch(struct mp_lookahead *lookahead, uint32_t layer)
{
    const struct mp_shape *shape;

    if (lookahead == NULL || lookahead->engine->tokens > TOKENS_MOST)
        return;
    shape = &lookahead->engine->shape;
    if (mp_pager_slots(lookahead->engine->pager) >= shape->layers * shape->experts)
        return;
    if (layer + 1 < shape->layers)
        tell_partition(lookahead, layer + 1);
    for (uint32_t ahead = 1; ahead <= REACH && ahead < shape->layers; ahead++)
        ask_for(lookahead, (layer + ahead) % shape->layers, layer + ahead >= shape->layers);
    if (layer + 1 == shape->layers)
        lookahead->expected_count = 0;
}
