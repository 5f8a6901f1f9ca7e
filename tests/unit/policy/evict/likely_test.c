/*
 * What evict policy shadow expects to be chosen next: the learned weights against their definition,
 * and that they follow what is right.
 */
#include <math.h>

#include "policy/evict/likely.h"

#include "tests/support/random.h"
#include "tests/support/test.h"

#define LAYERS 2u
#define EXPERTS 8u
#define K 2u
#define GUESSES MP_LIKELY_GUESSES

static uint64_t random_state = 20261127;

struct world {
    struct mp_arena arena;
    struct mp_ghost_facts facts;
    struct mp_likely likely;
};

static void open(struct world *w, const float *hot)
{
    const struct mp_shape shape = {
        .layers = LAYERS, .experts = EXPERTS, .top_k = K, .tokens_max = 3, .slots = 6
    };

    *w = (struct world){ .arena = { 0 } };
    for (int pass = 0; pass < 2; pass++) {
        mp_ghost_facts_take(&w->facts, &shape, &w->arena);
        mp_likely_take(&w->likely, &shape, &w->facts, &w->arena);
        if (pass == 0)
            CHECK_EQ(mp_arena_open(&w->arena, "a test"), MP_OK);
    }
    mp_likely_begin(&w->likely, hot);
}

/* A batch of `layer` in which tokens[e] tokens chose e: scores are what was chosen, and some more.
 */
static void play(struct world *w, uint32_t layer, uint32_t rows, const uint32_t tokens[EXPERTS])
{
    uint32_t ids[EXPERTS], counts[EXPERTS], count = 0;
    float scores[3 * EXPERTS];

    for (uint32_t i = 0; i < rows * EXPERTS; i++)
        scores[i] = (float)tokens[i % EXPERTS] / (float)(2 * K * rows) +
                    (float)random_below(100) / 200 / EXPERTS;
    mp_ghost_facts_scores(&w->facts, layer, rows, scores);
    mp_likely_scores(&w->likely, layer, rows, scores);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        if (tokens[e] == 0)
            continue;
        ids[count] = layer * EXPERTS + e;
        counts[count++] = tokens[e];
        mp_ghost_facts_use(&w->facts, layer * EXPERTS + e, tokens[e]);
    }
    mp_ghost_facts_batch(&w->facts, layer, ids, counts, count);
    mp_likely_batch(&w->likely, layer, ids, counts, count);
}

static void choose_any(uint32_t rows, uint32_t tokens[EXPERTS])
{
    memset(tokens, 0, EXPERTS * sizeof(tokens[0]));
    for (uint32_t t = 0; t < rows; t++) {
        const uint32_t one = (uint32_t)random_below(EXPERTS);
        const uint32_t other = (one + 1 + (uint32_t)random_below(EXPERTS - 1)) % EXPERTS;

        tokens[one]++;
        tokens[other]++;
    }
}

/* (sums of products + prior) weight = sums of guess times share + prior * first weight, where the
 * prior is that of 4 tokens and the sums forget half in 256 tokens. */
static void weights_solve_their_equations(void)
{
    static const double first[2][GUESSES] = { { 0.3, 0.1, 0.6, 0 }, { 0.2, 0.2, 0.1, 0.5 } };
    const double prior = 4.0 * LAYERS * K * K / EXPERTS, keep = pow(0.5, 1.0 / 256 / LAYERS);
    float hot[LAYERS * EXPERTS];

    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++)
        hot[i] = 2.0f * (float)(i % EXPERTS) / EXPERTS / (EXPERTS - 1);
    for (uint32_t calibrated = 0; calibrated < 2; calibrated++) {
        double product[GUESSES][GUESSES] = { 0 }, target[GUESSES] = { 0 };
        struct world w;

        open(&w, calibrated ? hot : NULL);
        for (uint32_t n = 0; n < 400; n++) {
            const uint32_t layer = n % LAYERS, rows = 1 + (uint32_t)random_below(3);
            const double *guess = w.likely.guess + (size_t)layer * GUESSES * EXPERTS;
            uint32_t tokens[EXPERTS];

            choose_any(rows, tokens);
            for (uint32_t i = 0; n >= LAYERS && i < GUESSES; i++) {
                for (uint32_t j = 0; j < GUESSES; j++)
                    product[i][j] *= keep;
                target[i] *= keep;
                for (uint32_t e = 0; e < EXPERTS; e++) {
                    for (uint32_t j = 0; j < GUESSES; j++)
                        product[i][j] += guess[i * EXPERTS + e] * guess[j * EXPERTS + e];
                    target[i] += guess[i * EXPERTS + e] * tokens[e] / rows;
                }
            }
            play(&w, layer, rows, tokens);
            for (uint32_t i = 0; i < GUESSES; i++) {
                double rest = target[i] + prior * first[calibrated][i];

                for (uint32_t j = 0; j < GUESSES; j++)
                    rest -= (product[i][j] + (i == j ? prior : 0)) * w.likely.weight[j];
                CHECK(fabs(rest) < 1e-9);
            }
        }
        free(w.arena.block);
    }
}

/* Experts 0 and 1 for 20 tokens, 2 and 3 for the next 20, ...: what is used now is what counts, and
 * the means say nothing. */
static void momentum_counts_where_there_is_any(void)
{
    struct world w;

    open(&w, NULL);
    for (uint32_t n = 0; n < 400; n++) {
        uint32_t tokens[EXPERTS] = { 0 };

        tokens[n / 20 % 4 * 2] = tokens[n / 20 % 4 * 2 + 1] = 1;
        play(&w, 0, 1, tokens);
        if (n > 200 && n % 20 == 9)
            CHECK(mp_likely_share(&w.likely, n / 20 % 4 * 2) >
                  1.5 * mp_likely_share(&w.likely, (n / 20 + 3) % 4 * 2));
    }
    free(w.arena.block);
}

/* A calibration that has nothing to do with the text loses its weight, a right one keeps it. */
static void a_calibration_counts_if_it_is_right(void)
{
    float hot[LAYERS * EXPERTS] = { 0 };
    double weight[2];

    for (uint32_t right = 0; right < 2; right++) {
        struct world w;

        hot[0] = hot[1] = right ? 0.5f : 0;
        hot[6] = hot[7] = right ? 0 : 0.5f;
        open(&w, hot);
        CHECK(mp_likely_share(&w.likely, right ? 0 : 6) == 0.5); /* before the first batch */
        for (uint32_t n = 0; n < 100; n++) {
            uint32_t tokens[EXPERTS] = { 0 };

            tokens[random_below(4) > 0 ? 0 : 2 + random_below(2)] = 1;
            tokens[random_below(4) > 0 ? 1 : 4 + random_below(2)] = 1;
            play(&w, 0, 1, tokens);
        }
        weight[right] = w.likely.weight[GUESSES - 1];
        CHECK(mp_likely_share(&w.likely, 0) > 4 * mp_likely_share(&w.likely, 6));
        free(w.arena.block);
    }
    CHECK(fabs(weight[0]) < 0.1 && weight[1] > 0.2); /* it was 0.5 */
}

int main(void)
{
    RUN(weights_solve_their_equations);
    RUN(momentum_counts_where_there_is_any);
    RUN(a_calibration_counts_if_it_is_right);
    return 0;
}
