/*
 * What is read before it is needed: the step's order (policy/pager/step.h) as far as it can be
 * known from outside, that is without the router's scores.
 */
#include <stdlib.h>

#include "interpose/pager/paged.h"
#include "vmm/base/arena.h"

static const struct mp_costs unknown_costs = { .executor_count = 1,
                                               .executors = { { .name = "program" } } };

struct mp_paged_ahead {
    void *block;
    float *scores;       // (tokens_max, experts)
    float *sums;         // (experts): zeros; nobody knows scores
    uint32_t *wanted;    // (experts)
    uint32_t *experts;   // (experts): of the open layer
    uint32_t *tokens;    // (experts)
    uint32_t *executors; // (experts)
    uint8_t *resident;   // (experts): of the open layer
    uint8_t *target;     // (experts): of the predicted one
};

static void take(struct mp_paged_ahead *ahead, uint32_t experts, struct mp_arena *arena)
{
    ahead->scores = mp_arena_take(arena, (size_t)MP_PAGED_TOKENS_MAX * experts, sizeof(float));
    ahead->sums = mp_arena_take(arena, experts, sizeof(float));
    ahead->wanted = mp_arena_take(arena, experts, sizeof(uint32_t));
    ahead->experts = mp_arena_take(arena, experts, sizeof(uint32_t));
    ahead->tokens = mp_arena_take(arena, experts, sizeof(uint32_t));
    ahead->executors = mp_arena_take(arena, experts, sizeof(uint32_t));
    ahead->resident = mp_arena_take(arena, experts, 1);
    ahead->target = mp_arena_take(arena, experts, 1);
}

struct mp_paged_ahead *mp_paged_ahead_create(const struct mp_paged *paged)
{
    struct mp_paged_ahead *ahead = calloc(1, sizeof(*ahead));
    struct mp_arena arena = { 0 };

    if (ahead == NULL)
        return NULL;
    take(ahead, paged->shape.experts, &arena);
    if (mp_arena_open(&arena, "what is read ahead") != MP_OK) {
        free(ahead);
        return NULL;
    }
    ahead->block = arena.block;
    take(ahead, paged->shape.experts, &arena);
    return ahead;
}

void mp_paged_ahead_destroy(struct mp_paged_ahead *ahead)
{
    if (ahead == NULL)
        return;
    free(ahead->block);
    free(ahead);
}

/* The open layer as an assign policy would see it. */
static struct mp_assign_facts describe(struct mp_paged *paged)
{
    struct mp_paged_ahead *ahead = paged->ahead;

    for (uint32_t i = 0; i < paged->need_count; i++) {
        ahead->experts[i] = paged->needs[i].expert;
        ahead->tokens[i] = paged->needs[i].tokens;
        ahead->resident[i] = paged->handed[i];
    }
    return (struct mp_assign_facts){
        .layer = paged->layer,
        .count = paged->need_count,
        .experts = ahead->experts,
        .tokens = ahead->tokens,
        .scores = ahead->sums,
        .resident = ahead->resident,
        .costs = &unknown_costs,
    };
}

/* What was really chosen, for who learns from it. */
static void observe(struct mp_paged *paged)
{
    const struct mp_policies *set = &paged->policies;

    if (set->predict_ops->observe != NULL)
        set->predict_ops->observe(set->predict, paged->layer, paged->tokens, paged->top_k,
                                  paged->chosen);
    if (set->prefetch_ops->observe != NULL)
        set->prefetch_ops->observe(set->prefetch, paged->layer, paged->tokens, paged->top_k,
                                   paged->chosen);
}

static bool predict(struct mp_paged *paged, uint32_t distance, uint32_t *target_p)
{
    const struct mp_policies *set = &paged->policies;
    const struct mp_predict_ops *ops = set->predict_ops;
    const uint32_t layers = paged->shape.layers, target = (paged->layer + distance) % layers;
    const struct mp_predict_facts facts = {
        .layer = paged->layer,
        .target_layer = target,
        .tokens = paged->tokens,
        .experts = paged->shape.experts,
        .k = paged->top_k,
        .chosen = paged->chosen,
    };

    if (ops->predict == NULL || ops->source != MP_SCORES_NONE ||
        distance > (ops->reach > 1 ? ops->reach : 1) || distance >= layers ||
        (paged->layer + distance >= layers && !ops->wraps))
        return false;
    *target_p = target;
    return ops->predict(set->predict, &facts, paged->ahead->scores);
}

static void look(struct mp_paged *paged, uint32_t distance, const struct mp_assign_facts *current)
{
    const struct mp_policies *set = &paged->policies;
    struct mp_paged_ahead *ahead = paged->ahead;
    struct mp_prefetch_facts facts;
    uint32_t target, count;

    if (!predict(paged, distance, &target))
        return;
    mp_pager_residents(paged->pager, target, true, ahead->target);
    facts = (struct mp_prefetch_facts){
        .layer = paged->layer,
        .target_layer = target,
        .tokens = paged->tokens,
        .experts = paged->shape.experts,
        .k = paged->top_k,
        .scores = ahead->scores,
        .resident = ahead->target,
        .max = mp_pager_prefetch_room(paged->pager, target),
        .distance = distance,
        .current = current,
        .executors = ahead->executors,
    };
    count = set->prefetch_ops->choose(set->prefetch, &facts, ahead->wanted);
    if (count <= paged->shape.experts)
        mp_pager_prefetch(paged->pager, target, ahead->wanted, count);
}

void mp_paged_look_ahead(struct mp_paged *paged)
{
    const struct mp_prefetch_ops *ops = paged->policies.prefetch_ops;
    struct mp_assign_facts current;

    if (paged->ahead == NULL || paged->tokens == 0)
        return;
    observe(paged);
    if (ops->choose == NULL || (ops->wants != NULL && !ops->wants(paged->policies.prefetch)))
        return;
    current = describe(paged);
    for (uint32_t d = 1; d <= (ops->reach > 1 ? ops->reach : 1); d++)
        look(paged, d, &current);
}
