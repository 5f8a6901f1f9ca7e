/*
 * SMoE: the example of the paper's figure 1, what substitution may never do, the search for alpha
 * (eq. 5), and replacement by score (eq. 3).
 */
#include <inttypes.h>

#include "policy/builtins.h"
#include "policy/route/smoe_alpha.h"
#include "policy/top_k.h"
#include "tests/unit/policy/instance.h"
#include "tests/support/executors.h"
#include "tests/support/random.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define EXPERTS_MAX 32
#define TOKENS_MAX 4
#define K_MAX 8

static uint64_t random_state = 20240712;
static const struct mp_costs no_costs;

/*
 * Figure 1: a token chooses five experts, a to e; a, b and the unchosen f, g are resident. Here
 * a..h are experts 0..7. With alpha 0.25 and S(6) = 0.09 the low-score ones are those up to 0.1125,
 * d and e, and substitutes need more than 0.0675: f and g do, h does not, nor is it resident.
 *
 *     before: 2 of 5 are resident, 3 have to be loaded      after: 4 of 5, and 1
 */
enum { A, B, C, D, E, F, G, H };
static const float figure_scores[8] = { 0.24f, 0.2f, 0.18f, 0.1f, 0.095f, 0.09f, 0.08f, 0.015f };
static const uint8_t figure_resident[8] = { 1, 1, 0, 0, 0, 1, 1, 0 };

static unsigned count_hits(const uint32_t *experts, const uint8_t *resident, uint32_t k)
{
    unsigned hits = 0;

    for (uint32_t r = 0; r < k; r++)
        hits += resident[experts[r]];
    return hits;
}

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

static char last_warning[512];
static unsigned warnings;

static void keep_warning(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    warnings++;
    snprintf(last_warning, sizeof(last_warning), "%s", line);
}

/*
 * Two layers; a trial with alpha a leaves 10 - 10 a cold experts, each a load of 1 ms, and a layer
 * costs 2 ms besides: T = 2 * (2 + 10 - 10 a) = 24 - 20 a ms. A budget of 18 ms is met from 0.3 on.
 */
static void run_grid(struct mp_smoe_alpha *self, const struct mp_costs *costs, uint32_t tokens)
{
    for (uint32_t i = 0; i < MP_SMOE_GRID; i++) {
        for (uint32_t l = 0; l < 2; l++) {
            const struct mp_route_facts facts = { .layer = l, .tokens = tokens, .costs = costs };
            const float alpha = mp_smoe_alpha_trial(self, &facts);

            CHECK(alpha >= 0.05f * (float)i - 1e-6f && alpha <= 0.05f * (float)i + 1e-6f);
            /* In tenths, since experts are whole: 100 - 100 a of 0.1 ms each. */
            mp_smoe_alpha_note(self, &facts, 0, 100 - (uint32_t)(100 * alpha + 0.5f));
        }
    }
}

static void the_smallest_alpha_that_meets_the_budget(void)
{
    const struct mp_shape shape = { .layers = 2, .experts = 200, .top_k = 100 };
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 100000, .layer_ns = 2000000 };
    struct mp_smoe_alpha self;

    mp_log_set_sink(keep_warning, NULL);
    mp_smoe_alpha_init(&self, &shape, 0.1, 18);
    run_grid(&self, &costs, 1);
    CHECK(self.alpha > 0.299f && self.alpha < 0.301f);
    mp_smoe_alpha_init(&self, &shape, 0.1, 30); /* met without any */
    run_grid(&self, &costs, 1);
    CHECK(self.alpha == 0);
    CHECK_EQ(warnings, 0);

    /* 10 ms is out of reach: 24 - 20 * 0.6 = 12 is the least. Said once. */
    mp_smoe_alpha_init(&self, &shape, 0.1, 10);
    run_grid(&self, &costs, 1);
    CHECK(self.alpha > 0.599f && self.alpha < 0.601f);
    run_grid(&self, &costs, 1);
    CHECK_EQ(warnings, 1);
    CHECK(strstr(last_warning, "10.0 ms") != NULL && strstr(last_warning, "12.0 ms") != NULL);
    mp_log_set_sink(NULL, NULL);
}

/* A new time counts a quarter: layers of 4 ms after those of 2 ms make T = 25 - 20 a of 24 - 20 a
 * and 28 - 20 a, and 18 ms are met from 0.35 on. */
static void older_times_count_three_quarters(void)
{
    const struct mp_shape shape = { .layers = 2, .experts = 200, .top_k = 100 };
    struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 100000, .layer_ns = 2000000 };
    struct mp_smoe_alpha self;

    mp_smoe_alpha_init(&self, &shape, 0.1, 18);
    run_grid(&self, &costs, 1);
    costs.layer_ns = 4000000;
    run_grid(&self, &costs, 1);
    CHECK(self.alpha > 0.349f && self.alpha < 0.351f);
}

/* Where no alpha makes it quicker and the budget is not met, nothing is substituted. The time is a
 * multiple of the grid's 13 values, so that their mean is exact and the line level. */
static void a_budget_out_of_reach_of_every_alpha_leaves_routing_alone(void)
{
    const struct mp_shape shape = { .layers = 1, .experts = 8, .top_k = 2 };
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 100000,
                                    .layer_ns = UINT64_C(13) << 20 };
    const struct mp_route_facts facts = { .layer = 0, .tokens = 1, .costs = &costs };
    struct mp_smoe_alpha self;

    mp_log_set_sink(keep_warning, NULL);
    mp_smoe_alpha_init(&self, &shape, 0.1, 5);
    for (uint32_t i = 0; i < MP_SMOE_GRID; i++) {
        CHECK(mp_smoe_alpha_trial(&self, &facts) >= 0);
        mp_smoe_alpha_note(&self, &facts, 0, 0);
    }
    CHECK(self.alpha == 0);
    mp_log_set_sink(NULL, NULL);
}

static void prompts_and_unknown_costs_do_not_count(void)
{
    const struct mp_shape shape = { .layers = 2, .experts = 200, .top_k = 100 };
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 100000, .layer_ns = 2000000 };
    const struct mp_route_facts prompt = { .layer = 0, .tokens = 64, .costs = &costs };
    const struct mp_route_facts unknown = { .layer = 0, .tokens = 1, .costs = &no_costs };
    const struct mp_route_facts late = { .layer = 1, .tokens = 1, .costs = &costs };
    struct mp_smoe_alpha self;

    mp_smoe_alpha_init(&self, &shape, 0.1, 0); /* no budget: nothing is tried */
    CHECK(mp_smoe_alpha_trial(&self, &prompt) < 0);
    mp_smoe_alpha_init(&self, &shape, 0.1, 18);
    CHECK(mp_smoe_alpha_trial(&self, &late) < 0); /* a step begins with layer 0 */
    run_grid(&self, &costs, 64);                  /* all that is known yet */
    run_grid(&self, &costs, 1);
    CHECK(mp_smoe_alpha_trial(&self, &prompt) < 0);
    CHECK(mp_smoe_alpha_trial(&self, &late) < 0); /* that step is not whole */

    mp_log_set_sink(keep_warning, NULL);
    warnings = 0;
    CHECK(mp_smoe_alpha_trial(&self, &unknown) < 0);
    CHECK(mp_smoe_alpha_trial(&self, &unknown) < 0);
    CHECK_EQ(warnings, 1);
    CHECK(strstr(last_warning, "not known") != NULL);
    mp_log_set_sink(NULL, NULL);
}

/* With a CPU the cold part is the better of all splits: 3 experts, loads of 4, CPU of 3: 1 and 2.
 */
static void the_cpu_takes_its_part(void)
{
    const struct mp_shape shape = { .layers = 1, .experts = 8, .top_k = 4 };
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 4,
                                    .executors[TEST_CPU].fixed_ns = 1,
                                    .executors[TEST_CPU].token_ns = 2 };
    const struct mp_route_facts facts = { .layer = 0, .tokens = 1, .costs = &costs };
    struct mp_smoe_alpha self;

    mp_smoe_alpha_init(&self, &shape, 0, 1);
    CHECK(mp_smoe_alpha_trial(&self, &facts) == 0);
    mp_smoe_alpha_note(&self, &facts, 2, 3);
    CHECK_EQ(self.time_ns[0], 6);
}

static void the_papers_alpha_is_known_by_the_shape(void)
{
    const struct mp_shape deepseek = { .layers = 27, .experts = 64, .top_k = 6 };
    const struct mp_shape xverse = { .layers = 28, .experts = 64, .top_k = 6 };
    const struct mp_shape qwen = { .layers = 28, .experts = 64, .top_k = 8 };
    const struct mp_shape other = { .layers = 48, .experts = 128, .top_k = 8 };

    CHECK(mp_smoe_alpha_of_shape(&deepseek) == 0.35);
    CHECK(mp_smoe_alpha_of_shape(&xverse) == 0.3);
    CHECK(mp_smoe_alpha_of_shape(&qwen) == 0.25);
    CHECK(mp_smoe_alpha_of_shape(&other) == 0.25);
}

/* The policy follows it: with a budget that only substitution meets, it substitutes. */
static void a_budget_changes_the_routing(void)
{
    const struct mp_shape shape = {
        .layers = 1, .experts = 8, .top_k = 5, .tokens_max = 1, .slots = 8
    };
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 1000000 };
    const struct mp_route_facts facts = { .tokens = 1,
                                          .experts = 8,
                                          .k = 5,
                                          .scores = figure_scores,
                                          .resident = figure_resident,
                                          .costs = &costs };
    struct mp_policy *smoe = instance(&mp_route_smoe.info, mp_route_smoe.create, &shape, "ALPHA",
                                      "0", "TPOT_MS", "1", NULL);
    uint32_t row[5];
    float weights[5];

    mp_log_set_sink(keep_warning, NULL);
    mp_route_smoe.route(smoe, &facts, row, weights);
    CHECK_EQ(count_hits(row, figure_resident, 5), 2);
    for (unsigned i = 0; i < MP_SMOE_GRID; i++)
        mp_route_smoe.route(smoe, &facts, row, weights);
    CHECK_EQ(count_hits(row, figure_resident, 5), 4);
    mp_log_set_sink(NULL, NULL);
    mp_route_smoe.destroy(smoe);
}

/* eq. 3 with n = 1, the mean of this step and the one before; the four experts of layer 0 are
 * resident. */
static void score_evicts_the_lowest_mean(void)
{
    static const float steps[3][4] = { { 0.4f, 0.3f, 0.2f, 0.1f },
                                       { 0.1f, 0.2f, 0.3f, 0.4f },
                                       { 0.5f, 0.3f, 0.0f, 0.2f } };
    const struct mp_shape shape = {
        .layers = 2, .experts = 4, .top_k = 2, .tokens_max = 2, .slots = 8
    };
    const struct mp_evict_ops *ops = &mp_evict_score;
    uint8_t evictable[8] = { 1, 1, 1, 1, 0, 0, 0, 0 };
    const struct mp_evict_query query = {
        .for_id = 4, .scope_layer = MP_LAYER_ANY, .experts = 4, .evictable = evictable
    };
    struct mp_policy *score = instance(&ops->info, ops->create, &shape, "N", "1", NULL);
    static const uint32_t chosen[4] = { 0, 1, 2, 3 };
    static const float two_tokens[8] = { 0.2f, 0.2f, 0.3f, 0.3f, 0.2f, 0.2f, 0.3f, 0.3f };

    for (uint32_t u = 0; u < 4; u++)
        ops->on_insert(score, u, 0);
    CHECK_EQ(ops->pick(score, &query), 0); /* no scores yet: the oldest */
    ops->on_scores(score, 0, 1, 2, steps[0], chosen, 1);
    CHECK_EQ(ops->pick(score, &query), 3);
    ops->on_access(score, 3, 1, 1); /* chosen: shielded until the layer ends */
    CHECK_EQ(ops->pick(score, &query), 2);
    ops->on_scores(score, 0, 1, 2, steps[2], chosen, 2); /* the next time: the shield is gone */
    /* means 0.45 0.3 0.1 0.15 */
    CHECK_EQ(ops->pick(score, &query), 2);
    evictable[2] = 0;
    CHECK_EQ(ops->pick(score, &query), 3);
    evictable[2] = 1;
    for (uint32_t u = 0; u < 4; u++)
        ops->on_access(score, u, 1, 2);
    CHECK_EQ(ops->pick(score, &query), 2); /* all shielded: still the lowest */
    ops->on_scores(score, 0, 2, 2, two_tokens, chosen, 3);
    /* The batch counts by its mean: 0.35 0.25 0.15 0.25. */
    CHECK_EQ(ops->pick(score, &query), 2);
    ops->on_scores(score, 0, 1, 2, steps[1], chosen, 4); /* 0.15 0.2 0.3 0.35 */
    CHECK_EQ(ops->pick(score, &query), 0);
    ops->on_remove(score, 0, 4);
    evictable[0] = 0;
    CHECK_EQ(ops->pick(score, &query), 1);
    ops->destroy(score);
}

/* HybriMoE: S := TopP(s) / 2 + S / 2 with P = 2 of 4 experts. */
static void mrs_forgets_by_halves(void)
{
    const struct mp_shape shape = {
        .layers = 1, .experts = 4, .top_k = 1, .tokens_max = 2, .slots = 4
    };
    static const float first[4] = { 0.4f, 0.3f, 0.2f, 0.1f },
                       second[4] = { 0.1f, 0.2f, 0.3f, 0.4f };
    const struct mp_evict_ops *ops = &mp_evict_mrs;
    uint8_t evictable[4] = { 1, 1, 1, 1 };
    const struct mp_evict_query query = {
        .for_id = 0, .scope_layer = MP_LAYER_ANY, .experts = 4, .evictable = evictable
    };
    struct mp_policy *mrs = instance(&ops->info, ops->create, &shape, NULL);

    for (uint32_t u = 4; u-- > 0;)
        ops->on_insert(mrs, u, 0);
    ops->on_scores(mrs, 0, 1, 1, first, NULL, 1); /* 0.2 0.15 0 0: of 2 and 3 the older */
    CHECK_EQ(ops->pick(mrs, &query), 3);
    ops->on_scores(mrs, 0, 1, 1, second, NULL, 2); /* 0.1 0.075 0.15 0.2 */
    CHECK_EQ(ops->pick(mrs, &query), 1);
    ops->on_scores(mrs, 0, 1, 1, second, NULL, 3); /* 0.05 0.0375 0.225 0.3 */
    evictable[1] = 0;
    CHECK_EQ(ops->pick(mrs, &query), 0);
    ops->destroy(mrs);
}

/* Whoever can be given a budget of time asks what work costs, also in a profile that does not. */
static void a_route_with_a_budget_asks_for_costs(void)
{
    static const char *const routes[] = { "smoe", "smoe-similar" };

    for (size_t i = 0; i < MP_ARRAY_LEN(routes); i++) {
        const struct mp_policy_names names = { .profile = "lru",
                                               .policy = { [MP_POLICY_ROUTE] = routes[i] } };
        struct mp_profile chosen;

        CHECK_EQ(mp_policy_resolve(&names, &chosen), MP_OK);
        CHECK(mp_policies_want_costs(&chosen));
    }
}

int main(void)
{
    RUN(figure_1_of_the_paper);
    RUN(top_score_experts_of_other_tokens_serve_too);
    RUN(bounds_are_those_of_the_text);
    RUN(substitution_keeps_its_rules);
    RUN(all_experts_chosen_is_exact);
    RUN(similar_outputs_are_asked_for);
    RUN(the_smallest_alpha_that_meets_the_budget);
    RUN(older_times_count_three_quarters);
    RUN(a_budget_out_of_reach_of_every_alpha_leaves_routing_alone);
    RUN(prompts_and_unknown_costs_do_not_count);
    RUN(the_papers_alpha_is_known_by_the_shape);
    RUN(the_cpu_takes_its_part);
    RUN(a_budget_changes_the_routing);
    RUN(a_route_with_a_budget_asks_for_costs);
    RUN(score_evicts_the_lowest_mean);
    RUN(mrs_forgets_by_halves);
    return 0;
}
