/*
 * Predictors and prefetch policies on hand-made routing, with the expected numbers in comments.
 */
#include <math.h>

#include "policy/builtins.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define EXPERTS 4

static const struct mp_shape shape = {
    .layers = 3, .experts = EXPERTS, .top_k = 2, .tokens_max = 3, .slots = 6, .seed = 1
};

static struct mp_predict_facts facts_of(uint32_t layer, uint32_t tokens, const uint32_t *chosen)
{
    return (struct mp_predict_facts){ .layer = layer,
                                      .target_layer = layer + 1 < shape.layers ? layer + 1 : 0,
                                      .tokens = tokens,
                                      .experts = EXPERTS,
                                      .k = 2,
                                      .chosen = chosen };
}

static void gate_repeats_its_source(void)
{
    static const float source[2 * EXPERTS] = { 1, 2, 3, 4, -1, 0.5f, 9, 0 };
    static const uint32_t chosen[4] = { 0, 1, 2, 3 };
    struct mp_predict_facts facts = facts_of(0, 2, chosen);
    float scores[2 * EXPERTS];

    facts.source = source;
    CHECK_EQ(mp_predict_gate.source, MP_SCORES_GATE);
    CHECK(mp_predict_gate.predict(NULL, &facts, scores));
    CHECK(memcmp(scores, source, sizeof(source)) == 0);
}

static void history_counts_who_followed_whom(void)
{
    static const uint32_t first[4] = { 0, 1, 0, 2 };  // layer 0: token 0 chose 0 1, token 1 0 2
    static const uint32_t second[4] = { 3, 1, 3, 2 }; // layer 1: token 0 chose 3 1, token 1 3 2
    static const uint32_t ask[2] = { 0, 2 };
    static const uint32_t unknown[2] = { 3, 3 };
    const struct mp_predict_ops *ops = &mp_predict_history;
    struct mp_predict_facts facts = facts_of(0, 1, ask);
    struct mp_policy *history;
    float scores[EXPERTS];

    CHECK_EQ(ops->create(NULL, &shape, &history), MP_OK);
    CHECK(!ops->predict(history, &facts, scores)); /* knows nothing yet */
    ops->observe(history, 0, 2, 2, first);
    CHECK(!ops->predict(history, &facts, scores)); /* not what followed */
    ops->observe(history, 1, 2, 2, second);

    /*
     * Totals: expert 0 twice, 1 and 2 once. After 0: 3 twice, 1 once, 2 once. After 2: 3 and 2.
     * A token with 0 and 2: e0 = 0, e1 = 1/2, e2 = 1/2 + 1, e3 = 2/2 + 1.
     */
    CHECK(ops->predict(history, &facts, scores));
    CHECK(scores[0] == 0 && scores[1] == 0.5f && scores[2] == 1.5f && scores[3] == 2);

    facts = facts_of(0, 1, unknown);
    CHECK(!ops->predict(history, &facts, scores)); /* 3 was never seen in layer 0 */
    facts = facts_of(1, 1, ask);
    CHECK(!ops->predict(history, &facts, scores)); /* layer 2 was never seen */
    facts = facts_of(2, 1, ask);
    CHECK_EQ(facts.target_layer, 0);
    CHECK(!ops->predict(history, &facts, scores)); /* does not wrap */

    /* Layer 0 again, another batch: nothing is learned across the end of the model, nor from a
     * layer that was skipped, nor from batches of different length. */
    ops->observe(history, 0, 1, 2, ask);
    ops->observe(history, 2, 1, 2, ask);
    ops->observe(history, 0, 1, 2, ask);
    ops->observe(history, 1, 2, 2, second);
    facts = facts_of(0, 1, ask);
    CHECK(ops->predict(history, &facts, scores));
    CHECK(scores[0] == 0 && scores[1] == 0.5f && scores[2] == 1.5f && scores[3] == 2);
    ops->destroy(history);
}

static void history_takes_a_model_of_one_layer(void)
{
    const struct mp_shape one = { .layers = 1, .experts = 2, .top_k = 1, .tokens_max = 1 };
    static const uint32_t chosen[1] = { 1 };
    struct mp_predict_facts facts = { .tokens = 1, .experts = 2, .k = 1, .chosen = chosen };
    struct mp_policy *history;
    float scores[2];

    CHECK_EQ(mp_predict_history.create(NULL, &one, &history), MP_OK);
    mp_predict_history.observe(history, 0, 1, 1, chosen);
    mp_predict_history.observe(history, 0, 1, 1, chosen);
    CHECK(!mp_predict_history.predict(history, &facts, scores));
    mp_predict_history.destroy(history);
}

static void top_orders_by_tokens_then_score_then_id(void)
{
    /* Two ranks of each token: token 0 wants 3 and 1, token 1 wants 1 and 0, token 2 wants 0, 2. */
    static const float scores[3 * EXPERTS] = {
        0.0f, 0.3f, 0.1f, 0.6f, 0.4f, 0.5f, 0.0f, 0.1f, 0.5f, 0.1f, 0.2f, 0.2f,
    };
    static const uint8_t resident[EXPERTS] = { 0 };
    struct {
        uint64_t ranks;
    } config = { 0 };
    const struct mp_prefetch_ops *ops = &mp_prefetch_top;
    struct mp_prefetch_facts facts = {
        .target_layer = 1,
        .tokens = 3,
        .experts = EXPERTS,
        .k = 2,
        .scores = scores,
        .resident = resident,
        .max = 1,
    };
    struct mp_policy *top;
    uint32_t wanted[EXPERTS];

    CHECK_EQ(sizeof(config), ops->info.config_size);
    CHECK_EQ(ops->create(&config, &shape, &top), MP_OK);
    /* 0: 2 tokens, 0.9; 1: 2 tokens, 0.8; 3: 1 token, 0.6; 2: 1 token, 0.2. */
    CHECK_EQ(ops->choose(top, &facts, wanted), 4);
    CHECK(wanted[0] == 0 && wanted[1] == 1 && wanted[2] == 3 && wanted[3] == 2);
    facts.tokens = 1;
    CHECK_EQ(ops->choose(top, &facts, wanted), 2);
    CHECK(wanted[0] == 3 && wanted[1] == 1);
    ops->destroy(top);

    config.ranks = 1;
    CHECK_EQ(ops->create(&config, &shape, &top), MP_OK);
    facts.tokens = 3; /* one each: 3, 1 and 0, by score 0.6, 0.5, 0.5 */
    CHECK_EQ(ops->choose(top, &facts, wanted), 3);
    CHECK(wanted[0] == 3 && wanted[1] == 0 && wanted[2] == 1);
    ops->destroy(top);

    config.ranks = 4096; /* more than there are: all of them */
    CHECK_EQ(ops->create(&config, &shape, &top), MP_OK);
    CHECK_EQ(ops->choose(top, &facts, wanted), 4);
    ops->destroy(top);
}

static void rubbish_scores_give_different_experts_in_range(void)
{
    static const float scores[EXPERTS] = { NAN, NAN, INFINITY, -INFINITY };
    struct {
        uint64_t ranks;
    } config = { 3 };
    const struct mp_prefetch_facts facts = {
        .target_layer = 1, .tokens = 1, .experts = EXPERTS, .k = 2, .scores = scores, .max = 4
    };
    struct mp_policy *top;
    uint32_t wanted[EXPERTS], seen = 0, count;

    CHECK_EQ(mp_prefetch_top.create(&config, &shape, &top), MP_OK);
    count = mp_prefetch_top.choose(top, &facts, wanted);
    CHECK_EQ(count, 3);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(wanted[i] < EXPERTS && (seen >> wanted[i] & 1) == 0);
        seen |= 1u << wanted[i];
    }
    mp_prefetch_top.destroy(top);
}

/* Best sums first. What stands behind the batch's rows is not read, and there are no more experts
 * than the layer has, however much room there is. */
static void window_takes_no_more_than_there_is(void)
{
    static const float scores[3 * 4] = { 1, 2, 3, 4, 4, 4, 4, 0, 100, 0, 0, 0 };
    static const uint8_t resident[4] = { 0 };
    const struct mp_shape four = { .layers = 2, .experts = 4, .top_k = 1, .tokens_max = 3 };
    const struct mp_prefetch_facts facts = {
        .tokens = 2, .experts = 4, .k = 1, .scores = scores, .resident = resident, .max = 8
    };
    const struct {
        uint64_t buffer;
    } config = { 8 };
    const struct mp_prefetch_ops *ops = &mp_prefetch_window;
    struct mp_policy *window;
    uint32_t experts[8];

    CHECK_EQ(sizeof(config), ops->info.config_size);
    CHECK_EQ(ops->create(&config, &four, &window), MP_OK);
    CHECK_EQ(ops->choose(window, &facts, experts), 4);
    CHECK(experts[0] == 2 && experts[1] == 1 && experts[2] == 0 && experts[3] == 3);
    ops->destroy(window);
}

/* Equal sums go by number; residents are named, but only absent ones fill the buffer, which holds
 * as many as a token chooses. */
static void window_orders_ties_by_number_and_counts_absent_ones(void)
{
    static const float scores[5] = { 2, 3, 3, 2, 1 };
    static const uint8_t resident[5] = { [1] = 1 };
    static const uint32_t order[4] = { 1, 2, 0, 3 };
    const struct mp_shape of_five = { .layers = 2, .experts = 5, .top_k = 2, .tokens_max = 1 };
    const struct {
        uint64_t buffer;
    } config = { 0 };
    const struct mp_prefetch_ops *ops = &mp_prefetch_window;
    struct mp_policy *window;

    CHECK_EQ(ops->create(&config, &of_five, &window), MP_OK);
    for (uint32_t max = 1; max <= 5; max++) {
        const struct mp_prefetch_facts facts = {
            .tokens = 1, .experts = 5, .k = 2, .scores = scores, .resident = resident, .max = max
        };
        const uint32_t most = max < 3 ? max : 3; /* one resident, two absent ones */
        uint32_t experts[6];

        CHECK_EQ(ops->choose(window, &facts, experts), most);
        CHECK(memcmp(experts, order, most * sizeof(order[0])) == 0);
    }
    ops->destroy(window);
}

int main(void)
{
    RUN(gate_repeats_its_source);
    RUN(history_counts_who_followed_whom);
    RUN(history_takes_a_model_of_one_layer);
    RUN(top_orders_by_tokens_then_score_then_id);
    RUN(rubbish_scores_give_different_experts_in_range);
    RUN(window_takes_no_more_than_there_is);
    RUN(window_orders_ties_by_number_and_counts_absent_ones);
    return 0;
}
