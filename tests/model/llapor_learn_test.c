/*
 * Trained predictors go on learning: networks of noise come to predict what a model chooses, the
 * same every time, while what was loaded stays as it was; without it they do not.
 */
#include <fcntl.h>

#include "engine/forward/engine_int.h"
#include "policy/top_k.h"
#include "tests/model/harness.h"
#include "tests/support/test.h"

#define MODEL "tests/data/models/qwen3moe-tiny"
#define E 8
#define K 2
#define LAYERS 4
#define STEPS 200
#define TOKENS 2 /* of a step: two sequences */

static struct mp_llapor *llapor;

/* Of the experts that layers chose in the second half, how many had been predicted? */
struct seen {
    uint32_t said[LAYERS][TOKENS * K];
    uint64_t asked, found;
    uint32_t step;
};

static void on_predicted(void *ctx, uint32_t layer, uint32_t target, uint32_t tokens,
                         const float *scores)
{
    struct seen *seen = ctx;
    float best[K];

    CHECK(target == layer + 1 && tokens == TOKENS);
    for (uint32_t t = 0; t < tokens; t++)
        mp_top_k(scores + t * E, E, K, seen->said[target] + t * K, best);
}

static void on_layer(void *ctx, const struct mp_layer_seen *layer)
{
    struct seen *seen = ctx;

    if (layer->layer == 0 || seen->step < STEPS / 2)
        return;
    seen->asked += TOKENS * K;
    for (uint32_t i = 0; i < TOKENS * K; i++) {
        for (uint32_t r = 0; r < K; r++)
            seen->found += seen->said[layer->layer][i / K * K + r] == layer->experts[i];
    }
}

static double accuracy(bool learns)
{
    struct seen seen = { .step = 0 };
    const struct mp_observer observer = { .ctx = &seen,
                                          .layer = on_layer,
                                          .predicted = on_predicted };
    struct harness_options options = harness_defaults(MODEL);
    struct harness h;

    options.sequences = TOKENS;
    options.ctx = STEPS;
    options.policies.policy[MP_POLICY_PREDICT] = "llapor";
    options.policies.policy[MP_POLICY_PREFETCH] = "top";
    options.observer = &observer;
    options.llapor = llapor;
    options.llapor_learns = learns;
    harness_open(&options, &h);
    for (; seen.step < STEPS; seen.step++) {
        const uint32_t token[TOKENS] = { 3 + 7 * seen.step % 23, 5 + 11 * seen.step % 31 };
        const uint32_t sequence[TOKENS] = { 0, 1 }, position[TOKENS] = { seen.step, seen.step };
        const uint8_t want[TOKENS] = { 0 };
        const struct mp_batch batch = { .count = TOKENS,
                                        .token = token,
                                        .sequence = sequence,
                                        .position = position,
                                        .want = want };
        const float *logits;

        CHECK_EQ(mp_forward(h.engine, &batch, &logits), MP_OK);
    }
    CHECK(seen.asked > 1000);
    harness_close(&h);
    return (double)seen.found / (double)seen.asked;
}

static void it_learns_from_what_is_chosen(void)
{
    const double without = accuracy(false), with = accuracy(true);

    fprintf(stderr, "    %.1f %% without learning, %.1f %% with\n", 100 * without, 100 * with);
    CHECK(with > without + 0.05);
    CHECK(accuracy(true) == with);
    CHECK(accuracy(false) == without);
}

int main(void)
{
    const struct mp_model_id id = {
        .layers = LAYERS, .experts = E, .top_k = K, .hidden = 40, .router_hash = 0x0123456789abcdef
    };

    CHECK_EQ(mp_llapor_load(AT_FDCWD, "tests/data/llapor/llapor.safetensors", &id, &llapor), MP_OK);
    RUN(it_learns_from_what_is_chosen);
    mp_llapor_destroy(llapor);
    return 0;
}
