/*
 * Route policy `exact`: the k highest scores, ties to the lower id, checked against a sort.
 */
#include <inttypes.h>
#include <math.h>

#include "policy/builtins.h"
#include "tests/support/random.h"
#include "tests/support/test.h"

#define EXPERTS_MAX 64
#define TOKENS_MAX 5

static uint64_t random_state = 20240701;

static void route(const float *scores, uint32_t tokens, uint32_t experts, uint32_t k,
                  uint32_t *chosen, float *weights)
{
    const struct mp_route_facts facts = {
        .tokens = tokens, .experts = experts, .k = k, .scores = scores
    };

    mp_route_exact.route(NULL, &facts, chosen, weights);
}

static void hand_made_rows(void)
{
    static const float scores[] = {
        0.1f, 0.4f, 0.2f,  0.3f, // the best are 1 and 3
        0.2f, 0.2f, 0.2f,  0.2f, // all equal: the lowest ids
        0.0f, 0.3f, 0.5f,  0.3f, // 1 and 3 tie for the second rank
        -1.f, -3.f, -2.f,  -1.f, // the sign does not matter
        0.0f, 0.0f, -0.0f, 0.0f, // -0 equals 0
    };
    static const uint32_t expected[] = { 1, 3, 0, 1, 2, 1, 0, 3, 0, 1 };
    uint32_t chosen[10];
    float weights[10];

    route(scores, 5, 4, 2, chosen, weights);
    for (size_t i = 0; i < 10; i++) {
        CHECK_EQ(chosen[i], expected[i]);
        CHECK(weights[i] == scores[i / 2 * 4 + expected[i]]);
    }
}

static void all_experts_come_sorted(void)
{
    static const float scores[] = { 2, 5, 2, 9, 5 };
    static const uint32_t expected[] = { 3, 1, 4, 0, 2 };
    uint32_t chosen[5];
    float weights[5];

    route(scores, 1, 5, 5, chosen, weights);
    for (size_t i = 0; i < 5; i++)
        CHECK_EQ(chosen[i], expected[i]);
}

static const float *sort_scores;

static int by_score_then_id(const void *a_, const void *b_)
{
    const uint32_t a = *(const uint32_t *)a_, b = *(const uint32_t *)b_;

    if (sort_scores[a] != sort_scores[b])
        return sort_scores[a] > sort_scores[b] ? -1 : 1;
    return a < b ? -1 : 1;
}

static void equals_the_head_of_a_stable_sort(void)
{
    for (unsigned round = 0; round < 3000; round++) {
        const uint32_t experts = 1 + random_below(EXPERTS_MAX);
        const uint32_t k = 1 + random_below(experts), tokens = 1 + random_below(TOKENS_MAX);
        const uint32_t values = 1 + random_below(20); /* few, so that ties are common */
        float scores[TOKENS_MAX * EXPERTS_MAX], weights[TOKENS_MAX * EXPERTS_MAX];
        uint32_t chosen[TOKENS_MAX * EXPERTS_MAX], order[EXPERTS_MAX];

        for (uint32_t i = 0; i < tokens * experts; i++)
            scores[i] = (float)random_below(values) / 16.0f - 0.25f;
        route(scores, tokens, experts, k, chosen, weights);
        for (uint32_t t = 0; t < tokens; t++) {
            for (uint32_t e = 0; e < experts; e++)
                order[e] = e;
            sort_scores = scores + t * experts;
            qsort(order, experts, sizeof(order[0]), by_score_then_id);
            for (uint32_t r = 0; r < k; r++) {
                CHECK_EQ(chosen[t * k + r], order[r]);
                CHECK(weights[t * k + r] == sort_scores[order[r]]);
            }
        }
    }
}

/* Predicted scores are not checked for NaN; the result must still be k different experts. */
static void rubbish_in_gives_different_experts_in_range(void)
{
    for (unsigned round = 0; round < 500; round++) {
        float scores[16], weights[16];
        uint32_t chosen[16], seen = 0;
        const uint32_t k = 1 + random_below(16);

        for (size_t i = 0; i < 16; i++)
            scores[i] = random_below(3) == 0 ? NAN : random_below(3) == 0 ? INFINITY : 0.5f;
        route(scores, 1, 16, k, chosen, weights);
        for (uint32_t r = 0; r < k; r++) {
            CHECK(chosen[r] < 16 && (seen >> chosen[r] & 1) == 0);
            seen |= 1u << chosen[r];
        }
    }
}

int main(void)
{
    RUN(hand_made_rows);
    RUN(all_experts_come_sorted);
    RUN(equals_the_head_of_a_stable_sort);
    RUN(rubbish_in_gives_different_experts_in_range);
    return 0;
}
