/*
 * Evict policy `ema`: the averages, who leaves, what comes in for whom, how swaps that are good for
 * nothing end, and what all of it saves where routing drifts and where it follows no rule.
 */
#include <math.h>
#include <string.h>

#include "policy/builtins.h"
#include "policy/top_k.h"
#include "tests/unit/policy/instance.h"
#include "tests/support/random.h"

#define LAYERS 2
#define EXPERTS 32
#define K 4
#define SLOTS 24

static const struct mp_evict_ops *const ops = &mp_evict_ema;
static uint64_t random_state = 20261123;

static void averages_forget_by_the_token(void)
{
    const struct mp_shape shape = {
        .layers = 1, .experts = 4, .top_k = 1, .tokens_max = 2, .slots = 4
    };
    static const float first[4] = { 0.4f, 0.3f, 0.2f, 0.1f },
                       second[8] = { 0.1f, 0.2f, 0.3f, 0.4f, 0.1f, 0.1f, 0.3f, 0.5f };
    uint8_t evictable[4] = { 1, 1, 1, 1 };
    const struct mp_evict_query query = {
        .for_id = 0, .scope_layer = MP_LAYER_ANY, .experts = 4, .evictable = evictable
    };
    struct mp_policy *ema = instance(&ops->info, ops->create, &shape, "KEEP", "0.5", NULL);

    for (uint32_t u = 4; u-- > 0;)
        ops->on_insert(ema, u, 0);
    CHECK_EQ(ops->pick(ema, &query), 3);          /* all alike: the oldest */
    ops->on_scores(ema, 0, 1, 1, first, NULL, 1); /* 0.2 0.15 0.1 0.05 */
    CHECK_EQ(ops->pick(ema, &query), 3);
    ops->on_scores(ema, 0, 1, 1, second, NULL, 2); /* 0.15 0.175 0.2 0.225 */
    CHECK_EQ(ops->pick(ema, &query), 0);
    ops->on_scores(ema, 0, 1, 1, first, NULL, 3); /* 0.275 0.2375 0.2 0.1625 */
    CHECK_EQ(ops->pick(ema, &query), 3);
    /* Two tokens at once: a quarter is kept, their mean has the rest: 0.14 0.17 0.28 0.38. */
    ops->on_scores(ema, 0, 2, 1, second, NULL, 4);
    CHECK_EQ(ops->pick(ema, &query), 0);
    evictable[0] = 0;
    CHECK_EQ(ops->pick(ema, &query), 1);
    ops->destroy(ema);
}

/* What was chosen stands for scores that nobody gives. */
static void without_scores_choices_count(void)
{
    const struct mp_shape shape = {
        .layers = 1, .experts = 3, .top_k = 1, .tokens_max = 1, .slots = 3
    };
    uint8_t evictable[3] = { 1, 1, 1 };
    const struct mp_evict_query query = {
        .for_id = 0, .scope_layer = MP_LAYER_ANY, .experts = 3, .evictable = evictable
    };
    struct mp_policy *ema = instance(&ops->info, ops->create, &shape, NULL);

    for (uint32_t u = 0; u < 3; u++)
        ops->on_insert(ema, u, 0);
    for (uint64_t now = 1; now <= 6; now++)
        ops->on_access(ema, now == 6 ? 1 : 0, 1, now);
    evictable[2] = 0;
    CHECK_EQ(ops->pick(ema, &query), 1); /* once, lately: 0.1; five times: 0.37 */
    for (uint64_t now = 7; now <= 20; now++)
        ops->on_access(ema, 1, 1, now);
    CHECK_EQ(ops->pick(ema, &query), 0);
    ops->destroy(ema);
}

/* Of a batch each expert counts by its share of the choices, and the batch by its tokens. With KEEP
 * 1/2 and k = 1: three tokens choose 0 1 1 (1/8 kept; 7/24, 14/24), then one chooses 0 (31/48
 * against 14/48), then three choose 1 1 2: 0.08, 0.62, 0.29. */
static void a_batch_counts_by_shares_and_tokens(void)
{
    const struct mp_shape shape = {
        .layers = 1, .experts = 3, .top_k = 1, .tokens_max = 3, .slots = 3
    };
    uint8_t evictable[3] = { 1, 1, 0 };
    const struct mp_evict_query query = {
        .for_id = 2, .scope_layer = MP_LAYER_ANY, .experts = 3, .evictable = evictable
    };
    struct mp_policy *ema = instance(&ops->info, ops->create, &shape, "KEEP", "0.5", NULL);

    for (uint32_t u = 0; u < 3; u++)
        ops->on_insert(ema, u, 0);
    ops->on_access(ema, 0, 1, 1);
    ops->on_access(ema, 1, 2, 1);
    CHECK_EQ(ops->pick(ema, &query), 0);
    CHECK_EQ(ops->pick(ema, &query), 0); /* to ask again changes nothing */
    ops->on_access(ema, 0, 1, 2);
    CHECK_EQ(ops->pick(ema, &query), 1);
    ops->on_access(ema, 1, 2, 3);
    ops->on_access(ema, 2, 1, 3);
    CHECK_EQ(ops->pick(ema, &query), 0);
    evictable[0] = 0;
    evictable[2] = 1;
    CHECK_EQ(ops->pick(ema, &query), 2);
    ops->destroy(ema);
}

static uint32_t ask(struct mp_policy *ema, const uint8_t *evictable, uint32_t layer,
                    uint32_t shared, struct mp_swap *swap_p)
{
    const struct mp_evict_query query = { .for_id = MP_EXPERT_NONE,
                                          .scope_layer = layer,
                                          .experts = 4,
                                          .shared = shared,
                                          .evictable = evictable };

    return ops->replace(ema, &query, 1, swap_p, 4);
}

static void likely_ones_come_in(void)
{
    const struct mp_shape shape = {
        .layers = 2, .experts = 4, .top_k = 1, .tokens_max = 1, .slots = 4
    };
    static const float first[4] = { 0.59f, 0.25f, 0.15f, 0.01f },
                       other[4] = { 0.4f, 0.4f, 0.12f, 0.08f };
    uint8_t evictable[8] = { 0 };
    struct mp_policy *ema = instance(&ops->info, ops->create, &shape, "KEEP", "0", NULL);
    struct mp_swap swap = { 0 };

    CHECK_EQ(ask(ema, evictable, 0, 1, &swap), 0); /* nothing is known */
    ops->on_scores(ema, 0, 1, 1, first, NULL, 1);
    ops->on_insert(ema, 0, 1);
    CHECK_EQ(ask(ema, evictable, 0, 1, &swap), 1); /* into a free slot */
    CHECK_EQ(swap.in, 1);
    CHECK_EQ(swap.out, MP_EXPERT_NONE);
    ops->on_insert(ema, 1, 1);
    ops->on_insert(ema, 2, 1);
    CHECK_EQ(ask(ema, evictable, 0, 1, &swap), 0); /* a slot is free, but 3 is not likely at all */

    /* Full: 6 is below twice the worst resident of any layer, 2; 7 even below that one. */
    ops->on_scores(ema, 1, 1, 1, other, NULL, 2);
    ops->on_insert(ema, 4, 2);
    memset(evictable, 1, 5);
    CHECK_EQ(ask(ema, evictable, 1, 1, &swap), 1);
    CHECK_EQ(swap.in, 5);
    CHECK_EQ(swap.out, 2);
    CHECK_EQ(ask(ema, evictable, 1, 0, &swap), 1); /* of its own layer only: it has room there */
    CHECK_EQ(swap.out, MP_EXPERT_NONE);
    ops->on_remove(ema, 2, 2);
    ops->on_insert(ema, 5, 2);
    CHECK_EQ(ask(ema, evictable, 1, 0, &swap), 0); /* 6 is not twice as likely as 4 and 5 */
    evictable[5] = 1;
    CHECK_EQ(ask(ema, evictable, 1, 1, &swap), 0);
    CHECK_EQ(ask(ema, evictable, 0, 1, &swap), 0); /* nor 2 as any */
    ops->destroy(ema);
}

/* Of 4 experts: what may come in has 1/16, a quarter of an even share, and twice what leaves. */
static void bounds_belong_to_what_comes_in(void)
{
    static const struct {
        bool full;
        float there, absent;
        uint32_t swaps;
    } cases[] = {
        { false, 0.5f, 0x1p-4f, 1 },   { false, 0.5f, 0x1.fffffep-5f, 0 },
        { true, 0.25f, 0.5f, 1 },      { true, 0.25f, 0x1.fffffep-2f, 0 },
        { true, 0x1p-5f, 0x1p-4f, 1 }, { true, 0, 0x1p-4f, 1 },
    };
    const uint8_t evictable[4] = { 1 };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct mp_shape shape = {
            .layers = 1, .experts = 4, .top_k = 1, .tokens_max = 1, .slots = cases[i].full ? 1 : 2
        };
        const float scores[4] = { cases[i].there, cases[i].absent, 0, 0 };
        struct mp_policy *ema = instance(&ops->info, ops->create, &shape, "KEEP", "0", NULL);
        struct mp_swap swap = { 0 };

        ops->on_insert(ema, 0, 0);
        ops->on_scores(ema, 0, 1, 1, scores, NULL, 1);
        CHECK_EQ(ask(ema, evictable, 0, 0, &swap), cases[i].swaps);
        if (cases[i].swaps > 0)
            CHECK(swap.in == 1 && swap.out == (cases[i].full ? 0 : MP_EXPERT_NONE));
        ops->destroy(ema);
    }
}

/* Experts that come in and are never chosen. The gain begins at 1 and each takes a 32nd of it, so
 * after 44 it is below a quarter, (31 / 32)^44 = 0.247; then every 64th is made, until one of those
 * turns out well. */
static void swaps_for_nothing_end(void)
{
    const struct mp_shape shape = {
        .layers = 1, .experts = 4, .top_k = 1, .tokens_max = 1, .slots = 2
    };
    static const float scores[2][4] = { { 0.9f, 0.1f, 0, 0 }, { 0.1f, 0.9f, 0, 0 } };
    uint8_t evictable[4] = { 1, 1, 1, 1 };
    struct mp_policy *ema = instance(&ops->info, ops->create, &shape, "KEEP", "0", NULL);
    unsigned late = 0;
    uint32_t resident = 0;

    ops->on_insert(ema, 3, 0);
    ops->on_insert(ema, 0, 0);
    for (unsigned i = 0; i < 800; i++) {
        struct mp_swap swap;
        uint32_t asked;

        ops->on_scores(ema, 0, 1, 1, scores[resident ^ 1], NULL, i);
        evictable[3] = 0;
        asked = ask(ema, evictable, 0, 1, &swap);
        if (i < 600)
            CHECK_EQ(asked, i < 44 || (i - 44) % 64 == 63);
        if (asked == 0)
            continue;
        CHECK_EQ(swap.in, resident ^ 1);
        CHECK_EQ(swap.out, resident);
        ops->on_remove(ema, swap.out, i);
        ops->on_insert(ema, swap.in, i);
        resident ^= 1;
        if (i >= 600)
            ops->on_access(ema, resident, 1, i);
        late += i >= 600;
    }
    CHECK(late > 3);
    ops->destroy(ema);
}

/* Scores of a token: what the text is about, which moves by small steps, and chance. */
static void sample_token(float *taste, float step, float *scores)
{
    float sum = 0;

    for (uint32_t e = 0; e < EXPERTS; e++) {
        const float moved = taste[e] + step * ((float)random_below(1001) / 500 - 1);

        taste[e] = moved < 0 ? 0 : moved > 1 ? 1 : moved;
        scores[e] = expf(8 * taste[e] + 2 * (float)random_below(1001) / 1000);
        sum += scores[e];
    }
    for (uint32_t e = 0; e < EXPERTS; e++)
        scores[e] /= sum;
}

/* Of 2000 tokens. */
struct outcome {
    unsigned misses, swaps;
};

static void make_room(struct mp_policy *policy, const struct mp_evict_ops *of, bool *resident,
                      uint32_t *held, uint32_t for_id, const bool *needed)
{
    uint8_t evictable[LAYERS * EXPERTS];
    const struct mp_evict_query query = {
        .for_id = for_id, .scope_layer = MP_LAYER_ANY, .experts = EXPERTS, .evictable = evictable
    };
    uint32_t victim;

    if (*held < SLOTS)
        return;
    for (uint32_t u = 0; u < LAYERS * EXPERTS; u++)
        evictable[u] = resident[u] && !needed[u];
    victim = of->pick(policy, &query);
    CHECK(victim != MP_EXPERT_NONE && evictable[victim]);
    of->on_remove(policy, victim, 0);
    resident[victim] = false;
    --*held;
}

static struct outcome play(const struct mp_evict_ops *of, float step, bool with_swaps)
{
    const struct mp_shape shape = {
        .layers = LAYERS, .experts = EXPERTS, .top_k = K, .tokens_max = 1, .slots = SLOTS
    };
    struct mp_policy *policy = instance(&of->info, of->create, &shape, NULL);
    bool resident[LAYERS * EXPERTS] = { false };
    float taste[LAYERS][EXPERTS] = { 0 };
    struct outcome outcome = { 0 };
    uint64_t now = 0;
    uint32_t held = 0;

    random_state = 7;
    for (unsigned t = 0; t < 2000 * LAYERS; t++) {
        const uint32_t layer = t % LAYERS;
        bool needed[LAYERS * EXPERTS] = { false };
        uint8_t evictable[LAYERS * EXPERTS];
        const struct mp_evict_query query = { .for_id = MP_EXPERT_NONE,
                                              .scope_layer = layer,
                                              .experts = EXPERTS,
                                              .shared = 1,
                                              .evictable = evictable };
        float scores[EXPERTS], best_score[K];
        uint32_t best[K];
        struct mp_swap swap;

        now++;
        sample_token(taste[layer], step, scores);
        mp_route_top_k(
            &(struct mp_route_facts){ .tokens = 1, .experts = EXPERTS, .k = K, .scores = scores },
            best, best_score);
        if (of->on_scores != NULL)
            of->on_scores(policy, layer, 1, K, scores, best, now);
        for (uint32_t r = 0; r < K; r++)
            needed[layer * EXPERTS + best[r]] = true;
        for (uint32_t u = layer * EXPERTS; u < (layer + 1) * EXPERTS; u++) {
            if (needed[u])
                of->on_access(policy, u, 1, now);
        }
        for (uint32_t u = layer * EXPERTS; u < (layer + 1) * EXPERTS; u++) {
            if (!needed[u] || resident[u])
                continue;
            outcome.misses++;
            make_room(policy, of, resident, &held, u, needed);
            of->on_insert(policy, u, now);
            resident[u] = true;
            held++;
        }
        for (uint32_t u = 0; u < LAYERS * EXPERTS; u++)
            evictable[u] = resident[u];
        if (!with_swaps || of->replace(policy, &query, now, &swap, EXPERTS) == 0)
            continue;
        CHECK(!resident[swap.in] && swap.in / EXPERTS == layer);
        if (swap.out != MP_EXPERT_NONE) {
            CHECK(resident[swap.out]);
            of->on_remove(policy, swap.out, now);
            resident[swap.out] = false;
            held--;
        }
        of->on_insert(policy, swap.in, now);
        resident[swap.in] = true;
        held++;
        outcome.swaps++;
    }
    of->destroy(policy);
    return outcome;
}

static void it_saves_misses_where_routing_drifts(void)
{
    const struct outcome lru = play(&mp_evict_lru, 0.05f, false);
    const struct outcome kept = play(ops, 0.05f, false), both = play(ops, 0.05f, true);
    const struct outcome chance_lru = play(&mp_evict_lru, 0, false);
    const struct outcome chance = play(ops, 0, true);

    CHECK(lru.misses > 250);
    CHECK(kept.misses * 20 < lru.misses * 19);
    CHECK(both.misses * 4 < lru.misses * 3);
    CHECK(both.swaps > 50 && both.swaps < lru.misses);
    /* Without a rule nothing can be had, and next to nothing is read for it. */
    CHECK(chance.misses <= chance_lru.misses);
    CHECK(chance.swaps < chance.misses / 20);
}

int main(void)
{
    RUN(averages_forget_by_the_token);
    RUN(without_scores_choices_count);
    RUN(a_batch_counts_by_shares_and_tokens);
    RUN(likely_ones_come_in);
    RUN(bounds_belong_to_what_comes_in);
    RUN(swaps_for_nothing_end);
    RUN(it_saves_misses_where_routing_drifts);
    return 0;
}
