/*
 * What is read before it is needed: the step's order (policy/pager/step.h) as far as it can be
 * known from outside, and what it takes, for policies that ask.
 */
#include <stdlib.h>
#include <string.h>

#include "interpose/pager/scores.h"
#include "policy/top_k.h"
#include "vmm/base/arena.h"

/* Ranks of a guess that are counted apart; all behind the last one count as that. */
#define RANKS 32u
#define ABSENT 0x80u

/* Guesses of experts that are absent are worse than others: what a token's layers use again and
 * again is there. So many of a rank are looked at, or of all ranks while those are few, and a part
 * of them must have been right. */
#define TRIES_MIN 32u
#define TRIES_MAX 512u
#define PART_RIGHT 3u

struct mp_paged_ahead {
    void *block;
    float *source;       // (tokens_max, experts): what a router would say
    float *scores;       // (tokens_max, experts)
    float *sums;         // (experts): zeros; nobody knows scores
    uint32_t *wanted;    // (experts)
    uint32_t *experts;   // (experts): of the open layer
    uint32_t *tokens;    // (experts)
    uint32_t *executors; // (experts)
    uint8_t *resident;   // (experts): of the open layer
    uint8_t *target;     // (experts): of the predicted one
    uint32_t *best;      // (experts): scratch
    float *best_scores;  // (experts): scratch
    uint8_t *guessed;    // (layers, experts): what was guessed last: its rank, from 1, and ABSENT
    uint32_t *guesses;   // (layers): how many those are

    uint64_t opened_ns, waited_ns, last_layer; /* of the layer before */

    /* Guesses that were checked, and the last ones of what was absent, by rank. */
    uint64_t all, right;
    struct absent {
        uint32_t all, right;
    } absent[RANKS];
};

static void take(struct mp_paged_ahead *ahead, const struct mp_shape *shape, struct mp_arena *arena)
{
    const uint32_t experts = shape->experts;

    ahead->source = mp_arena_take(arena, (size_t)MP_PAGED_TOKENS_MAX * experts, sizeof(float));
    ahead->scores = mp_arena_take(arena, (size_t)MP_PAGED_TOKENS_MAX * experts, sizeof(float));
    ahead->sums = mp_arena_take(arena, experts, sizeof(float));
    ahead->wanted = mp_arena_take(arena, experts, sizeof(uint32_t));
    ahead->experts = mp_arena_take(arena, experts, sizeof(uint32_t));
    ahead->tokens = mp_arena_take(arena, experts, sizeof(uint32_t));
    ahead->executors = mp_arena_take(arena, experts, sizeof(uint32_t));
    ahead->resident = mp_arena_take(arena, experts, 1);
    ahead->target = mp_arena_take(arena, experts, 1);
    ahead->best = mp_arena_take(arena, experts, sizeof(uint32_t));
    ahead->best_scores = mp_arena_take(arena, experts, sizeof(float));
    ahead->guessed = mp_arena_take(arena, (size_t)shape->layers * experts, 1);
    ahead->guesses = mp_arena_take(arena, shape->layers, sizeof(uint32_t));
}

struct mp_paged_ahead *mp_paged_ahead_create(const struct mp_paged *paged)
{
    struct mp_paged_ahead *ahead = calloc(1, sizeof(*ahead));
    struct mp_arena arena = { 0 };

    if (ahead == NULL)
        return NULL;
    take(ahead, &paged->shape, &arena);
    if (mp_arena_open(&arena, "what is read ahead") != MP_OK) {
        free(ahead);
        return NULL;
    }
    ahead->block = arena.block;
    ahead->last_layer = UINT64_MAX;
    take(ahead, &paged->shape, &arena);
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
        ahead->resident[i] = paged->leased[i];
    }
    return (struct mp_assign_facts){
        .layer = paged->layer,
        .count = paged->need_count,
        .experts = ahead->experts,
        .tokens = ahead->tokens,
        .scores = ahead->sums,
        .resident = ahead->resident,
        .costs = &paged->costs,
        .link_busy_ns = mp_pager_reading(paged->pager) > 0 ? paged->costs.load_ns / 2 : 0,
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

/* A running mean over about 16 samples. */
static void learn(uint64_t *value, uint64_t sample)
{
    *value = *value == 0 ? sample : (*value * 15 + sample) / 16;
}

/* What the layer that has just ended took, without its waits, and what a read takes. */
static void note_costs(struct mp_paged *paged)
{
    struct mp_paged_ahead *ahead = paged->ahead;
    const uint64_t now_ns = mp_clock_now_ns(mp_clock_monotonic());
    const uint64_t waited_ns = paged->counters.exposed_wait_ns - ahead->waited_ns;
    const uint64_t load_ns = mp_pager_load_ns(paged->pager);

    /* From one token to the next a program may do anything. */
    if (ahead->last_layer + 1 == paged->layer && now_ns - ahead->opened_ns > waited_ns)
        learn(&paged->costs.layer_ns, now_ns - ahead->opened_ns - waited_ns);
    if (load_ns > 0)
        paged->costs.load_ns = load_ns;
    ahead->last_layer = paged->layer;
    ahead->opened_ns = now_ns;
    ahead->waited_ns = paged->counters.exposed_wait_ns;
}

static void note_absent(struct mp_paged_ahead *ahead, uint32_t rank, bool right)
{
    if (ahead->absent[rank].all == TRIES_MAX) {
        ahead->absent[rank].all /= 2;
        ahead->absent[rank].right /= 2;
    }
    ahead->absent[rank].all++;
    ahead->absent[rank].right += right;
}

/* What had been guessed of the layer that is open now. */
static void check_guess(struct mp_paged *paged)
{
    struct mp_paged_ahead *ahead = paged->ahead;
    const uint8_t *guessed = ahead->guessed + (size_t)paged->layer * paged->shape.experts;

    if (ahead->guesses[paged->layer] == 0)
        return;
    ahead->all += ahead->guesses[paged->layer];
    for (uint32_t e = 0; e < paged->shape.experts; e++) {
        ahead->right += guessed[e] != 0 && paged->counts[e] > 0;
        if ((guessed[e] & ABSENT) != 0)
            note_absent(ahead, (guessed[e] & ~ABSENT) - 1, paged->counts[e] > 0);
    }
    ahead->guesses[paged->layer] = 0;
}

static void note_guess(struct mp_paged *paged, uint32_t target)
{
    struct mp_paged_ahead *ahead = paged->ahead;
    const uint32_t experts = paged->shape.experts;
    uint8_t *guessed = ahead->guessed + (size_t)target * experts;

    memset(guessed, 0, experts);
    ahead->guesses[target] = 0;
    for (uint32_t t = 0; t < paged->tokens; t++) {
        mp_top_k(ahead->scores + (size_t)t * experts, experts, paged->top_k, ahead->best,
                 ahead->best_scores);
        for (uint32_t r = 0; r < paged->top_k; r++) {
            const uint32_t expert = ahead->best[r], rank = r < RANKS ? r + 1 : RANKS;

            ahead->guesses[target] += guessed[expert] == 0;
            if (guessed[expert] == 0 || (guessed[expert] & ~ABSENT) > rank)
                guessed[expert] = (uint8_t)(rank | (ahead->target[expert] ? 0 : ABSENT));
        }
    }
}

/* A rank whose guesses are too few yet is judged by those of all ranks. */
static bool is_doubtful(const struct mp_paged_ahead *ahead, uint32_t rank)
{
    struct absent seen = ahead->absent[rank];

    if (seen.all < TRIES_MIN) {
        seen = (struct absent){ 0 };
        for (uint32_t r = 0; r < RANKS; r++) {
            seen.all += ahead->absent[r].all;
            seen.right += ahead->absent[r].right;
        }
    }
    return seen.all >= TRIES_MIN && seen.right * PART_RIGHT < seen.all;
}

/* Take out of wanted(count) what is absent and will hardly be used: it would be read for nothing,
 * into the slot of another. Returns how many are left. */
static uint32_t drop_doubtful(struct mp_paged_ahead *ahead, const uint8_t *guessed, uint32_t count)
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < count; i++) {
        const uint8_t guess = guessed[ahead->wanted[i]];

        if ((guess & ABSENT) == 0 || !is_doubtful(ahead, (guess & ~ABSENT) - 1))
            ahead->wanted[left++] = ahead->wanted[i];
    }
    return left;
}

void mp_paged_ahead_counts(const struct mp_paged_ahead *ahead, uint64_t *guessed_p,
                           uint64_t *right_p)
{
    *guessed_p = ahead != NULL ? ahead->all : 0;
    *right_p = ahead != NULL ? ahead->right : 0;
}

static bool ask_router(struct mp_paged *paged, const struct mp_routing *routing, uint32_t target)
{
    const uint64_t start_ns = mp_clock_now_ns(mp_clock_monotonic());
    const bool known = mp_paged_scores_guess(paged, routing, target, paged->ahead->source);

    if (known)
        learn(&paged->costs.predict_ns, mp_clock_now_ns(mp_clock_monotonic()) - start_ns);
    return known;
}

static bool predict(struct mp_paged *paged, const struct mp_routing *routing, uint32_t distance,
                    uint32_t *target_p)
{
    const struct mp_policies *set = &paged->policies;
    const struct mp_predict_ops *ops = set->predict_ops;
    const uint32_t layers = paged->shape.layers, target = (paged->layer + distance) % layers;
    struct mp_predict_facts facts = {
        .layer = paged->layer,
        .target_layer = target,
        .tokens = paged->tokens,
        .experts = paged->shape.experts,
        .k = paged->top_k,
        .chosen = paged->chosen,
    };

    if (ops->predict == NULL || distance > (ops->reach > 1 ? ops->reach : 1) ||
        distance >= layers || (paged->layer + distance >= layers && !ops->wraps))
        return false;
    /* All there already: nothing that could be said would move anything. */
    mp_pager_residents(paged->pager, target, true, paged->ahead->target);
    if (memchr(paged->ahead->target, 0, paged->shape.experts) == NULL)
        return false;
    if (ops->source != MP_SCORES_NONE) {
        if (!ask_router(paged, routing, target))
            return false;
        facts.source = paged->ahead->source;
    }
    *target_p = target;
    if (!ops->predict(set->predict, &facts, paged->ahead->scores))
        return false;
    note_guess(paged, target);
    return true;
}

static void look(struct mp_paged *paged, const struct mp_routing *routing, uint32_t distance,
                 const struct mp_assign_facts *current)
{
    const struct mp_policies *set = &paged->policies;
    struct mp_paged_ahead *ahead = paged->ahead;
    struct mp_prefetch_facts facts;
    uint32_t target, count;

    if (!predict(paged, routing, distance, &target))
        return;
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
    if (count > paged->shape.experts)
        return;
    count = drop_doubtful(ahead, ahead->guessed + (size_t)target * paged->shape.experts, count);
    mp_pager_prefetch(paged->pager, target, ahead->wanted, count);
}

void mp_paged_prefetch(struct mp_paged *paged, const struct mp_routing *routing)
{
    const struct mp_prefetch_ops *ops = paged->policies.prefetch_ops;
    struct mp_assign_facts current;

    if (paged->ahead == NULL || paged->tokens == 0)
        return;
    note_costs(paged);
    check_guess(paged);
    observe(paged);
    if (ops->choose == NULL)
        return;
    current = describe(paged);
    for (uint32_t d = 1; d <= (ops->reach > 1 ? ops->reach : 1); d++) {
        if (ops->wants == NULL || ops->wants(paged->policies.prefetch, current.layer, d))
            look(paged, routing, d, &current);
    }
}
