/*
 * Ghosts against the evict policies that they stand for: the same units leave, in random histories
 * of single requests, at every number of slots that gives each layer a share; next-use, which
 * stands for none, against its definition.
 */
#include <math.h>
#include <stdlib.h>

#include "policy/evict/ghost.h"

#include "policy/builtins.h"
#include "tests/unit/policy/instance.h"
#include "tests/support/random.h"

#define LAYERS 3
#define UNITS 24

static uint64_t random_state = 20261124;

/* The policy's victim for `unit`, or MP_EXPERT_NONE while there is room. */
static uint32_t load(const struct mp_evict_ops *ops, struct mp_policy *policy, uint8_t *resident,
                     uint32_t *count, const struct mp_shape *shape, uint32_t unit, uint64_t now)
{
    const struct mp_evict_query query = { .for_id = unit,
                                          .scope_layer = MP_LAYER_ANY,
                                          .experts = shape->experts,
                                          .evictable = resident };
    uint32_t victim = MP_EXPERT_NONE;

    if (*count == shape->slots) {
        victim = ops->pick(policy, &query);
        CHECK(victim < UNITS && resident[victim]);
        ops->on_remove(policy, victim, now);
        resident[victim] = 0;
        --*count;
    }
    ops->on_insert(policy, unit, now);
    resident[unit] = 1;
    ++*count;
    return victim;
}

/* Scores of a batch of one token, of which `unit` has the highest. */
static void score(struct mp_ghost_facts *facts, const struct mp_evict_ops *ops,
                  struct mp_policy *policy, uint32_t unit, uint64_t now)
{
    const uint32_t layer = unit / facts->experts, chosen = unit % facts->experts;
    float scores[UNITS];

    for (uint32_t e = 0; e < facts->experts; e++)
        scores[e] = (float)(1 + random_below(100)) / 200 / (float)facts->experts;
    scores[chosen] += 0.5f;
    mp_ghost_facts_scores(facts, layer, 1, scores);
    if (ops->on_scores != NULL)
        ops->on_scores(policy, layer, 1, 1, scores, &chosen, now);
}

static void play(enum mp_ghost_kind kind, const struct mp_evict_ops *ops, uint32_t layers,
                 uint32_t slots, bool scored)
{
    const struct mp_shape shape = {
        .layers = layers, .experts = UNITS / layers, .top_k = 1, .tokens_max = 1, .slots = slots
    };
    struct mp_policy *policy = instance(&ops->info, ops->create, &shape, NULL);
    uint8_t resident[UNITS] = { 0 };
    struct mp_arena arena = { 0 };
    struct mp_ghost_facts facts;
    struct mp_ghost ghost;
    uint32_t count = 0;
    const uint32_t one = 1;

    mp_ghost_facts_take(&facts, &shape, &arena);
    mp_ghost_take(&ghost, kind, &facts, &arena);
    CHECK_EQ(mp_arena_open(&arena, "a test"), MP_OK);
    mp_ghost_facts_take(&facts, &shape, &arena);
    mp_ghost_take(&ghost, kind, &facts, &arena);
    for (uint32_t i = 0; i < 2000; i++) {
        /* A favoured third, so that counts differ. */
        const uint32_t unit = random_below(random_below(2) ? UNITS : UNITS / 3);

        if (resident[unit])
            mp_ghost_detach(&ghost, unit);
        if (scored)
            score(&facts, ops, policy, unit, i + 1);
        mp_ghost_facts_use(&facts, unit, 1);
        mp_ghost_facts_batch(&facts, unit / shape.experts, &unit, &one, 1);
        ops->on_access(policy, unit, 1, i + 1);
        CHECK_EQ(ghost.held[unit], resident[unit]);
        if (!resident[unit])
            CHECK_EQ(mp_ghost_load(&ghost, unit),
                     load(ops, policy, resident, &count, &shape, unit, i + 1));
        mp_ghost_attach(&ghost, unit);
        CHECK_EQ(ghost.count, count);
    }
    free(arena.block);
    ops->destroy(policy);
}

static void ghosts_hold_what_policies_would(void)
{
    for (uint32_t slots = 1; slots <= UNITS; slots++) {
        if (slots >= LAYERS) /* a layer with no share at all takes from anywhere */
            play(MP_GHOST_LAYER_LRU, &mp_evict_layer_lru, LAYERS, slots, false);
        play(MP_GHOST_LAYER_LFU, &mp_evict_layer_lfu, LAYERS, slots, false);
        play(MP_GHOST_LRU, &mp_evict_lru, LAYERS, slots, false);
        play(MP_GHOST_EMA, &mp_evict_ema, LAYERS, slots, false);
        play(MP_GHOST_EMA, &mp_evict_ema, LAYERS, slots, true);
        play(MP_GHOST_LCP, &mp_evict_lcp, 1, slots,
             false); /* layers that are run equally often fade alike */
    }
}

/* What nobody has used is in the order of its numbers. */
static void ties_are_in_the_order_of_numbers(void)
{
    const struct mp_shape shape = {
        .layers = 1, .experts = 4, .top_k = 1, .tokens_max = 1, .slots = 2
    };

    for (int kind = MP_GHOST_NEXT_USE; kind <= MP_GHOST_STATIC; kind++) {
        struct mp_arena arena = { 0 };
        struct mp_ghost_facts facts;
        struct mp_ghost ghost;

        mp_ghost_facts_take(&facts, &shape, &arena);
        mp_ghost_take(&ghost, (enum mp_ghost_kind)kind, &facts, &arena);
        CHECK_EQ(mp_arena_open(&arena, "a test"), MP_OK);
        mp_ghost_facts_take(&facts, &shape, &arena);
        mp_ghost_take(&ghost, (enum mp_ghost_kind)kind, &facts, &arena);
        for (uint32_t a = 0; a < 4; a++) {
            for (uint32_t b = 0; b < 4; b++)
                CHECK_EQ(mp_ghost_before(&ghost, a, b), a < b);
        }
        free(arena.block);
    }
}

/* Of the experts that `ghost` holds and the batch of `layer` does not use, the one whose next use
 * is expected last, computed from all batches of its layer so far. */
struct history {
    uint32_t chosen[LAYERS][200]; /* expert of each batch, one token each */
    uint32_t batches[LAYERS];
};

static double expected_wait(const struct history *history, uint32_t unit, uint32_t layer)
{
    static const double lives[] = { 1, 6, 32 };
    const uint32_t mine = unit / (UNITS / LAYERS), count = history->batches[mine];
    double share = 0;

    for (size_t s = 0; s < MP_ARRAY_LEN(lives); s++) {
        double uses = 0, all = 0;

        for (uint32_t b = 0; b < count; b++) {
            const double weight = exp2(-(double)(count - b) / lives[s]);

            all += weight;
            uses += history->chosen[mine][b] == unit ? weight : 0;
        }
        share += uses / all / 3;
    }
    return 1 / (share + 1e-6) +
           (double)(mine > layer ? mine - layer : mine + LAYERS - layer) / LAYERS;
}

/* Ghost next-use: layers run in turn, one token each; what leaves is expected last, and nothing of
 * the batch leaves. */
static void next_use_gives_up_what_is_expected_last(void)
{
    const struct mp_shape shape = {
        .layers = LAYERS, .experts = UNITS / LAYERS, .top_k = 1, .tokens_max = 1, .slots = 9
    };
    static struct history history;
    struct mp_arena arena = { 0 };
    struct mp_ghost_facts facts;
    struct mp_ghost ghost;
    uint32_t evictions = 0;

    mp_ghost_facts_take(&facts, &shape, &arena);
    mp_ghost_take(&ghost, MP_GHOST_NEXT_USE, &facts, &arena);
    CHECK_EQ(mp_arena_open(&arena, "a test"), MP_OK);
    mp_ghost_facts_take(&facts, &shape, &arena);
    mp_ghost_take(&ghost, MP_GHOST_NEXT_USE, &facts, &arena);
    for (uint32_t i = 0; i < LAYERS * 200; i++) {
        const uint32_t layer = i % LAYERS, experts = shape.experts, one = 1;
        const uint32_t unit = layer * experts + random_below(random_below(2) ? experts : 2);
        double last = 0;

        if (ghost.held[unit])
            mp_ghost_detach(&ghost, unit);
        mp_ghost_facts_use(&facts, unit, 1);
        mp_ghost_facts_batch(&facts, layer, &unit, &one, 1);
        history.chosen[layer][history.batches[layer]++] = unit;
        for (uint32_t u = 0; u < UNITS; u++) {
            const double wait = ghost.held[u] && u != unit ? expected_wait(&history, u, layer) : 0;

            last = wait > last ? wait : last;
        }
        if (!ghost.held[unit]) {
            const bool full = ghost.count == shape.slots;
            const uint32_t left = mp_ghost_load(&ghost, unit);

            CHECK_EQ(left != MP_EXPERT_NONE, full);
            if (full)
                CHECK(fabs(expected_wait(&history, left, layer) / last - 1) < 1e-9);
            evictions += full;
        }
        mp_ghost_attach(&ghost, unit);
    }
    CHECK(evictions > 100);
    free(arena.block);
}

/* A prompt counts as what it is, a share of its tokens: expert 0 was chosen by 6 of 8. */
static void a_batch_counts_by_the_shares_of_its_tokens(void)
{
    static const uint32_t ids[2] = { 0, 1 }, tokens[2] = { 6, 2 };
    const struct mp_shape shape = {
        .layers = 1, .experts = 4, .top_k = 1, .tokens_max = 8, .slots = 2
    };
    struct mp_arena arena = { 0 };
    struct mp_ghost_facts facts;

    mp_ghost_facts_take(&facts, &shape, &arena);
    CHECK_EQ(mp_arena_open(&arena, "a test"), MP_OK);
    mp_ghost_facts_take(&facts, &shape, &arena);
    mp_ghost_facts_batch(&facts, 0, ids, tokens, 2);
    CHECK(fabs(facts.wait[0] - (4.0 / 3 - 1)) < 1e-4);
    CHECK(fabs(facts.wait[1] - (4.0 - 1)) < 1e-4);
    CHECK(facts.wait[2] > 1e5);
    free(arena.block);
}

/* Who was nearly chosen is needed sooner than who was not, and half of a share is by scores. */
static void scores_are_half_of_a_share(void)
{
    static const uint32_t id = 0, tokens = 1;
    static const float scores[4] = { 0.5f, 0.3f, 0.2f, 0 };
    const struct mp_shape shape = {
        .layers = 1, .experts = 4, .top_k = 1, .tokens_max = 1, .slots = 2
    };
    struct mp_arena arena = { 0 };
    struct mp_ghost_facts facts;

    mp_ghost_facts_take(&facts, &shape, &arena);
    CHECK_EQ(mp_arena_open(&arena, "a test"), MP_OK);
    mp_ghost_facts_take(&facts, &shape, &arena);
    mp_ghost_facts_scores(&facts, 0, 1, scores);
    mp_ghost_facts_batch(&facts, 0, &id, &tokens, 1);
    CHECK(fabs(facts.wait[0] - (1 / 0.75 - 1)) < 1e-4);
    CHECK(fabs(facts.wait[1] - (1 / 0.15 - 1)) < 1e-3);
    CHECK(fabs(facts.wait[2] - (1 / 0.1 - 1)) < 1e-3);
    CHECK(facts.wait[3] > 1e5);
    free(arena.block);
}

int main(void)
{
    RUN(ghosts_hold_what_policies_would);
    RUN(ties_are_in_the_order_of_numbers);
    RUN(next_use_gives_up_what_is_expected_last);
    RUN(a_batch_counts_by_the_shares_of_its_tokens);
    RUN(scores_are_half_of_a_share);
    return 0;
}
