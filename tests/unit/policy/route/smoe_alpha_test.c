/*
 * SMoE's alpha: the smallest that meets a budget of time (eq. 5), and whose times count.
 */
#include "policy/builtins.h"
#include "policy/route/smoe_alpha.h"
#include "policy/top_k.h"
#include "tests/support/executors.h"
#include "tests/support/random.h"
#include "tests/unit/policy/instance.h"
#include "tests/unit/policy/route/smoe_figure.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

static uint64_t random_state = 20240712;
static const struct mp_costs no_costs;

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

/* 200 steps that take 0.75 times what is predicted for them. */
static void run_measured(struct mp_smoe_alpha *self, const struct mp_costs *costs)
{
    for (uint32_t i = 0; i < 200; i++) {
        const uint64_t step_ns =
            i == 90 ? 900000000 : (uint64_t)(18e6 - 15e6 * (double)self->alpha);

        for (uint32_t l = 0; l < 2; l++) {
            const struct mp_route_facts facts = {
                .layer = l, .tokens = 1, .step_ns = l == 0 && i > 0 ? step_ns : 0, .costs = costs
            };
            const float alpha = mp_smoe_alpha_trial(self, &facts);

            mp_smoe_alpha_note(self, &facts, 0, 100 - (uint32_t)(100 * alpha + 0.5f));
        }
    }
}

/* As above with T = 18 - 15 a ms in truth: 15 ms are met from 0.2 on, where 0.45 was predicted;
 * 11 ms from 0.467 on, although 12 were predicted for the largest alpha; 8 ms by none. A pause, in
 * which somebody types, counts for nothing. */
static void measured_steps_correct_what_costs_predict(void)
{
    const struct mp_shape shape = { .layers = 2, .experts = 200, .top_k = 100 };
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 100000, .layer_ns = 2000000 };
    struct mp_smoe_alpha self;

    warnings = 0;
    mp_smoe_alpha_init(&self, &shape, 0.1, 15);
    run_measured(&self, &costs);
    CHECK(self.alpha > 0.19f && self.alpha < 0.21f);
    mp_smoe_alpha_init(&self, &shape, 0.1, 11);
    run_measured(&self, &costs);
    CHECK(self.alpha > 0.45f && self.alpha < 0.48f);
    CHECK_EQ(warnings, 0);
    mp_smoe_alpha_init(&self, &shape, 0.1, 8);
    run_measured(&self, &costs);
    CHECK(self.alpha > 0.59f);
    CHECK_EQ(warnings, 1);
    CHECK(strstr(last_warning, "9.") != NULL && strstr(last_warning, "can be reached") != NULL);
    warnings = 0;
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
    mp_log_set_sink(keep_warning, NULL);
    RUN(measured_steps_correct_what_costs_predict);
    RUN(the_smallest_alpha_that_meets_the_budget);
    RUN(older_times_count_three_quarters);
    RUN(a_budget_out_of_reach_of_every_alpha_leaves_routing_alone);
    RUN(prompts_and_unknown_costs_do_not_count);
    RUN(the_papers_alpha_is_known_by_the_shape);
    RUN(the_cpu_takes_its_part);
    RUN(a_budget_changes_the_routing);
    RUN(a_route_with_a_budget_asks_for_costs);
    return 0;
}
