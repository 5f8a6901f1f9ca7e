/*
 * SMoE: the example of the paper's figure 1, and what substitution may never do. The search for
 * alpha is in smoe_alpha_test.c.
 */
#include "policy/builtins.h"
#include "policy/top_k.h"
#include "tests/support/random.h"
#include "tests/unit/policy/instance.h"
#include "tests/unit/policy/route/smoe_figure.h"
#include "vmm/base/error.h"

#define EXPERTS_MAX 32
#define TOKENS_MAX 4
#define K_MAX 8

static uint64_t random_state = 20240712;
static const struct mp_costs no_costs;

static void figure_1_of_the_paper(void)
{
    static const uint32_t expected[5] = { A, B, C, F, G };
    const struct mp_shape shape = {
        .layers = 2, .experts = 8, .top_k = 5, .tokens_max = 1, .slots = 8
    };
    const struct mp_route_facts facts = { .tokens = 1,
                                          .experts = 8,
                                          .k = 5,
                                          .scores = figure_scores,
                                          .resident = figure_resident,
                                          .costs = &no_costs };
    const struct mp_prefetch_facts wanted = { .target_layer = 1,
                                              .tokens = 1,
                                              .experts = 8,
                                              .k = 5,
                                              .scores = figure_scores,
                                              .resident = figure_resident,
                                              .max = 8 };
    struct mp_policy *smoe =
        instance(&mp_route_smoe.info, mp_route_smoe.create, &shape, "ALPHA", "0.25", NULL);
    struct mp_policy *top = instance(&mp_prefetch_top.info, mp_prefetch_top.create, &shape, NULL);
    struct mp_policy *top_score = instance(
        &mp_prefetch_top_score.info, mp_prefetch_top_score.create, &shape, "ALPHA", "0.25", NULL);
    uint32_t experts[8];
    float weights[8];

    mp_route_exact.route(NULL, &facts, experts, weights);
    CHECK_EQ(count_hits(experts, figure_resident, 5), 2);
    mp_route_smoe.route(smoe, &facts, experts, weights);
    CHECK_EQ(count_hits(experts, figure_resident, 5), 4);
    for (uint32_t r = 0; r < 5; r++) {
        CHECK_EQ(experts[r], expected[r]);
        CHECK(weights[r] == figure_scores[expected[r]]); /* its own score */
    }

    /* Prefetches, if the scores were predicted: c, d, e; and c. */
    CHECK_EQ(mp_prefetch_top.choose(top, &wanted, experts), 5);
    CHECK_EQ(5 - count_hits(experts, figure_resident, 5), 3);
    CHECK_EQ(mp_prefetch_top_score.choose(top_score, &wanted, experts), 3);
    CHECK_EQ(3 - count_hits(experts, figure_resident, 3), 1);
    CHECK(experts[0] == A && experts[1] == B && experts[2] == C);
    mp_route_smoe.destroy(smoe);
    mp_prefetch_top.destroy(top);
    mp_prefetch_top_score.destroy(top_score);
}

/*
 * Two tokens, k = 2, six experts, alpha 0.5, only expert 5 resident.
 *
 *              0     1     2     3     4     5
 *     token 0  0.5   0.14  0.13  0.1   0.07  0.06    S(3) = 0.13: 0 is top-score, 1 (<= 0.195) low;
 *                                                    substitutes above 0.065: 2, 3, 4
 *     token 1  0.03  0.15  0.16  0.5   0.1   0.06    S(3) = 0.15: 3 is top-score, 2 (<= 0.225) low;
 *                                                    substitutes above 0.075: 1, 4
 *
 * C = {0, 3}. Token 0 loses 1 and gets 3, in C by the other token, though that comes later. Token 1
 * keeps 2: neither 1 nor 4 is resident or in C.
 */
static void top_score_experts_of_other_tokens_serve_too(void)
{
    static const float scores[12] = { 0.5f,  0.14f, 0.13f, 0.1f, 0.07f, 0.06f,
                                      0.03f, 0.15f, 0.16f, 0.5f, 0.1f,  0.06f };
    static const uint8_t resident[6] = { 0, 0, 0, 0, 0, 1 };
    static const uint32_t expected[4] = { 0, 3, 3, 2 };
    const struct mp_shape shape = {
        .layers = 1, .experts = 6, .top_k = 2, .tokens_max = 2, .slots = 6
    };
    const struct mp_route_facts facts = { .tokens = 2,
                                          .experts = 6,
                                          .k = 2,
                                          .scores = scores,
                                          .resident = resident,
                                          .costs = &no_costs };
    struct mp_policy *smoe =
        instance(&mp_route_smoe.info, mp_route_smoe.create, &shape, "ALPHA", "0.5", NULL);
    uint32_t experts[4];
    float weights[4];

    mp_route_smoe.route(smoe, &facts, experts, weights);
    for (size_t i = 0; i < 4; i++)
        CHECK_EQ(experts[i], expected[i]);
    mp_route_smoe.destroy(smoe);
}

/* k = 2, alpha 0.25, S = S(3) = 0.125: low is up to 0.15625, a substitute has more than 0.09375.
 * Expert 1 is cold; 3 is resident, and so is 2 where `near` is. */
static void bounds_are_those_of_the_text(void)
{
    static const struct {
        float low, last;
        bool near;
        uint32_t second;
    } cases[] = {
        { 0.15625f, 0.0625f, true, 2 },   { 0x1.400002p-3f, 0.0625f, true, 1 },
        { 0.15625f, 0.09375f, false, 1 }, { 0.15625f, 0x1.800002p-4f, false, 3 },
        { 0.15625f, 0.125f, true, 2 }, /* of equal substitutes the lower id */
    };
    const struct mp_shape shape = {
        .layers = 1, .experts = 4, .top_k = 2, .tokens_max = 1, .slots = 4
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const float scores[4] = { 0.5f, cases[i].low, 0.125f, cases[i].last };
        const uint8_t resident[4] = { 1, 0, cases[i].near, 1 };
        const struct mp_route_facts facts = { .tokens = 1,
                                              .experts = 4,
                                              .k = 2,
                                              .scores = scores,
                                              .resident = resident,
                                              .costs = &no_costs };
        struct mp_policy *smoe =
            instance(&mp_route_smoe.info, mp_route_smoe.create, &shape, "ALPHA", "0.25", NULL);
        uint32_t experts[2];
        float weights[2];

        mp_route_smoe.route(smoe, &facts, experts, weights);
        CHECK_EQ(experts[0], 0);
        CHECK_EQ(experts[1], cases[i].second);
        mp_route_smoe.destroy(smoe);
    }
}

struct batch {
    uint32_t experts, k, tokens;
    float scores[TOKENS_MAX * EXPERTS_MAX];
    uint8_t resident[EXPERTS_MAX];
    struct mp_route_facts facts;
};

static void random_batch(struct batch *batch, uint32_t experts, uint32_t k, uint32_t tokens)
{
    *batch = (struct batch){ .experts = experts, .k = k, .tokens = tokens };
    for (uint32_t t = 0; t < tokens; t++) {
        float *scores = batch->scores + (size_t)t * experts, sum = 0;

        for (uint32_t e = 0; e < experts; e++)
            sum += scores[e] = 0.01f + (float)(random_below(20) * random_below(20));
        for (uint32_t e = 0; e < experts; e++)
            scores[e] /= sum;
    }
    for (uint32_t e = 0; e < experts; e++)
        batch->resident[e] = random_below(2) == 0;
    batch->facts = (struct mp_route_facts){ .tokens = tokens,
                                            .experts = experts,
                                            .k = k,
                                            .scores = batch->scores,
                                            .resident = batch->resident,
                                            .costs = &no_costs };
}

static bool has(const uint32_t *row, uint32_t k, uint32_t expert)
{
    for (uint32_t r = 0; r < k; r++) {
        if (row[r] == expert)
            return true;
    }
    return false;
}

/* What holds for one token's row, given the model's own choice. Returns substitutions. */
static unsigned check_row(const struct batch *b, uint32_t t, float alpha, const uint32_t *own,
                          const float *own_weights, float bar, const uint32_t *row,
                          const float *weights, const uint8_t *in_c)
{
    const float *scores = b->scores + (size_t)t * b->experts;
    unsigned substituted = 0;

    for (uint32_t r = 0; r < b->k; r++) {
        CHECK(row[r] < b->experts && !has(row, r, row[r])); /* k of them, all different */
        CHECK(weights[r] == scores[row[r]]);
        CHECK(r == 0 || weights[r - 1] >= weights[r]);
        if (!has(own, b->k, row[r])) {
            substituted++;
            CHECK(b->resident[row[r]] || in_c[row[r]]);
            CHECK(scores[row[r]] > (1 - alpha) * bar && scores[row[r]] <= bar);
        }
        if (!has(row, b->k, own[r])) {
            CHECK(own_weights[r] <= (1 + alpha) * bar); /* never a top-score expert */
            CHECK(!b->resident[own[r]] && !in_c[own[r]]);
        }
    }
    return substituted;
}

static unsigned check_batch(struct mp_policy *smoe, struct batch *b, float alpha)
{
    uint32_t own[TOKENS_MAX * (K_MAX + 1)], row[TOKENS_MAX * K_MAX];
    float own_weights[TOKENS_MAX * (K_MAX + 1)], weights[TOKENS_MAX * K_MAX];
    struct mp_route_facts more = b->facts;
    const uint32_t k = b->k;
    uint8_t in_c[EXPERTS_MAX] = { 0 };
    unsigned substituted = 0;

    more.k = k + 1;
    mp_route_top_k(&more, own, own_weights);
    for (uint32_t t = 0; t < b->tokens; t++) {
        for (uint32_t r = 0; r < k; r++) {
            const size_t i = (size_t)t * (k + 1) + r;

            if (own_weights[i] > (1 + alpha) * own_weights[(size_t)t * (k + 1) + k])
                in_c[own[i]] = 1;
        }
    }
    mp_route_smoe.route(smoe, &b->facts, row, weights);
    for (uint32_t t = 0; t < b->tokens; t++) {
        const size_t i = (size_t)t * (k + 1);

        substituted += check_row(b, t, alpha, own + i, own_weights + i, own_weights[i + k],
                                 row + (size_t)t * k, weights + (size_t)t * k, in_c);
    }
    return substituted;
}

static void substitution_keeps_its_rules(void)
{
    static const char *const alphas[] = { "0", "0.1", "0.25", "0.6", "1" };
    unsigned last = 0;

    for (size_t a = 0; a < sizeof(alphas) / sizeof(alphas[0]); a++) {
        unsigned substituted = 0;

        random_state = 77;
        for (unsigned round = 0; round < 2000; round++) {
            const uint32_t experts = 3 + random_below(EXPERTS_MAX - 2);
            const uint32_t k_most = experts - 1 < K_MAX ? experts - 1 : K_MAX;
            const struct mp_shape shape = { .layers = 1,
                                            .experts = experts,
                                            .top_k = 1 + random_below(k_most),
                                            .tokens_max = TOKENS_MAX,
                                            .slots = experts };
            struct mp_policy *smoe = instance(&mp_route_smoe.info, mp_route_smoe.create, &shape,
                                              "ALPHA", alphas[a], NULL);
            struct batch batch;

            random_batch(&batch, experts, shape.top_k, 1 + random_below(TOKENS_MAX));
            substituted += check_batch(smoe, &batch, (float)strtod(alphas[a], NULL));
            mp_route_smoe.destroy(smoe);
        }
        /* Nothing lies between S(k+1) and itself, and the wider the margin the more. */
        CHECK(a > 0 ? substituted > last : substituted == 0);
        last = substituted;
    }
}

static void all_experts_chosen_is_exact(void)
{
    const struct mp_shape shape = {
        .layers = 1, .experts = 5, .top_k = 5, .tokens_max = 1, .slots = 5
    };
    struct mp_policy *smoe =
        instance(&mp_route_smoe.info, mp_route_smoe.create, &shape, "ALPHA", "1", NULL);
    uint32_t row[5], own[5];
    float weights[5];
    struct batch batch;

    random_batch(&batch, 5, 5, 1);
    mp_route_smoe.route(smoe, &batch.facts, row, weights);
    mp_route_top_k(&batch.facts, own, weights);
    CHECK(memcmp(row, own, sizeof(row)) == 0);
    mp_route_smoe.destroy(smoe);
}

/* Figure 1 again, but f resembles neither d nor e, and g only d. */
static void similar_outputs_are_asked_for(void)
{
    static float similarity[2 * 8 * 8];
    static const struct mp_calibration calibration = { .similarity = similarity }, empty;
    struct mp_shape shape = { .layers = 2, .experts = 8, .top_k = 5, .tokens_max = 1, .slots = 8 };
    const struct mp_route_facts facts = { .layer = 1,
                                          .tokens = 1,
                                          .experts = 8,
                                          .k = 5,
                                          .scores = figure_scores,
                                          .resident = figure_resident,
                                          .costs = &no_costs };
    static const uint32_t expected[5] = { A, B, C, E, G };
    struct mp_policy *policy = NULL;
    struct {
        double alpha;
        uint64_t tpot_ms;
        double cosine;
    } config = { 0.25, 0, 0.5 };
    uint32_t row[5];
    float weights[5];

    CHECK_EQ(mp_route_smoe_similar.info.config_size, sizeof(config));
    CHECK(mp_route_smoe_similar.info.calibrated);
    CHECK_EQ(mp_route_smoe_similar.create(&config, &shape, &policy), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_CALIBRATION");
    CHECK(strstr(mp_error_last()->text, "moepager calibrate") != NULL);
    shape.calibration = &empty;
    CHECK_EQ(mp_route_smoe_similar.create(&config, &shape, &policy), MP_ERR_CONFIG);
    CHECK(policy == NULL);

    shape.calibration = &calibration;
    similarity[(8 + D) * 8 + G] = 0.7f;
    similarity[(8 + D) * 8 + F] = 0.49f;
    similarity[D * 8 + F] = 1; /* another layer */
    policy = instance(&mp_route_smoe_similar.info, mp_route_smoe_similar.create, &shape, "ALPHA",
                      "0.25", "COSINE", "0.5", NULL);
    mp_route_smoe_similar.route(policy, &facts, row, weights);
    for (uint32_t r = 0; r < 5; r++)
        CHECK_EQ(row[r], expected[r]);
    CHECK(!mp_route_smoe.exact && !mp_route_smoe_similar.exact);
    mp_route_smoe_similar.destroy(policy);
}

int main(void)
{
    RUN(figure_1_of_the_paper);
    RUN(top_score_experts_of_other_tokens_serve_too);
    RUN(bounds_are_those_of_the_text);
    RUN(substitution_keeps_its_rules);
    RUN(all_experts_chosen_is_exact);
    RUN(similar_outputs_are_asked_for);
    return 0;
}
