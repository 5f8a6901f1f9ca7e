/*
 * The routing that the simulator makes up or takes from a trace.
 */
#include <math.h>

#include "policy/sim/sim.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "tests/unit/policy/sim/sim_run.h"
#include "vmm/base/error.h"

static struct mp_sim_seen made_up(const struct mp_sim_model *model, uint32_t batch, uint32_t gen,
                                  uint64_t seed)
{
    const struct mp_policy_names names = { .profile = "gate-lru" };
    struct mp_sim_machine machine;
    struct mp_profile profile;
    struct mp_sim_result r;
    const struct mp_sim_config config = {
        .machine = &machine,
        .model = model,
        .profile = &profile,
        .batch = batch,
        .prompt = 4,
        .gen = gen,
        .budget = { MP_SHARE_PPM, 500000 },
        .seed = seed,
    };

    CHECK_EQ(mp_sim_machine_read("h200", &machine), MP_OK);
    CHECK_EQ(mp_policy_resolve(&names, &profile), MP_OK);
    CHECK_EQ(mp_sim_run(&config, &r), MP_OK);
    return r.seen;
}

static void check_near(double seen, double stated, double most)
{
    if (fabs(seen - stated) > most) {
        fprintf(stderr, "seen %g, stated %g\n", seen, stated);
        exit(1);
    }
}

/* The generator has the statistics that it is meant to have, however much layers differ. */
static void made_up_routing_is_as_stated(void)
{
    struct mp_sim_model model;
    double spread = 0;

    CHECK_EQ(mp_sim_model_read("deepseek-v2-lite", &model), MP_OK);
    for (model.variation = 0; model.variation < 1; model.variation += 0.45) {
        const struct mp_sim_seen seen = made_up(&model, 4, 64, 3);

        check_near(seen.skew, model.skew, 0.03);
        check_near(seen.overlap, model.overlap, 0.03);
        check_near(seen.mass, model.mass, 0.03);
        check_near(seen.accuracy, model.accuracy_gate, 0.04);
        CHECK(seen.skew_spread > spread + 0.005);
        spread = seen.skew_spread;
    }
}

/* What tools/sim/trace_stats.py prints of the recorded traces, and what the descriptions that were
 * fitted to them make in as many steps of as many choices, in the mean of five seeds. */
static void made_up_routing_is_as_recorded(void)
{
    static const struct {
        const char *model;
        uint32_t top_k, steps;
        double skew, spread, overlap;
    } cases[] = { { "qwen3-30b-a3b", 6, 128, 0.864, 0.081, 0.380 },
                  { "gpt-oss-120b", 2, 64, 0.957, 0.054, 0.179 } };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        struct mp_sim_model model;
        double skew = 0, spread = 0, overlap = 0;

        CHECK_EQ(mp_sim_model_read(cases[i].model, &model), MP_OK);
        model.top_k = cases[i].top_k;
        for (uint64_t seed = 1; seed <= 5; seed++) {
            const struct mp_sim_seen seen = made_up(&model, 1, cases[i].steps, seed);

            skew += seen.skew / 5;
            spread += seen.skew_spread / 5;
            overlap += seen.overlap / 5;
        }
        check_near(skew, cases[i].skew, 0.015);
        check_near(spread, cases[i].spread, 0.015);
        check_near(overlap, cases[i].overlap, 0.03);
    }
}

/* Three sequences with prompts of two tokens and four steps after two that do not count: rows in
 * the order of execution, with positions that go on where the prompt ended. */
static void made_up_routing_is_written(void)
{
    const struct mp_policy_names names = { .profile = "lru" };
    char path[4200];
    const struct mp_trace_shape shape = {
        .model = "n", .layers = 1, .experts = 4, .top_k = 2, .expert_bytes = 1
    };
    struct mp_trace_reader *reader;
    struct mp_trace_row row;
    struct mp_sim_machine machine;
    struct mp_sim_model model;
    struct mp_profile profile;
    struct mp_sim_result r;
    struct mp_sim_config config = {
        .machine = &machine,
        .model = &model,
        .profile = &profile,
        .batch = 3,
        .prompt = 2,
        .gen = 4,
        .warm = 2,
        .budget = { MP_SHARE_PPM, 1000000 },
    };

    snprintf(path, sizeof(path), "%s/routing", test_tmpdir());
    CHECK_EQ(mp_sim_machine_parse("m", MACHINE, &machine), MP_OK);
    CHECK_EQ(mp_sim_model_parse("n", MODEL, &model), MP_OK);
    model.top_k = 2;
    CHECK_EQ(mp_policy_resolve(&names, &profile), MP_OK);
    CHECK_EQ(mp_trace_create(path, &shape, &config.routing), MP_OK);
    CHECK_EQ(mp_sim_run(&config, &r), MP_OK);
    CHECK_EQ(mp_trace_close(config.routing), MP_OK);
    CHECK_EQ(mp_trace_open(path, &reader), MP_OK);
    for (uint32_t n = 0; n < 6 + 4 * 3; n++) {
        const uint32_t step = n < 6 ? 0 : 1 + (n - 6) / 3;

        CHECK_EQ(mp_trace_read(reader, &row), MP_OK);
        CHECK(row.experts != NULL && row.experts[0] < 4 && row.experts[0] != row.experts[1]);
        CHECK(row.weights[0] >= row.weights[1] && row.weights[1] > 0);
        CHECK_EQ(row.step, step);
        CHECK_EQ(row.layer, 0);
        CHECK_EQ(row.sequence, step == 0 ? n / 2 : n % 3);
        CHECK_EQ(row.position, step == 0 ? n % 2 : 1 + step);
    }
    CHECK_EQ(mp_trace_read(reader, &row), MP_OK);
    CHECK(row.experts == NULL);
    mp_trace_reader_destroy(reader);
    CHECK_EQ(remove(path), 0);
}

#define ROWS 40
#define E 8

/* Two sequences, two layers; the scores of a token are a permutation of 1 2 4 8 ... in 255ths. */
static void make_scored_trace(struct mp_replay_trace *trace)
{
    uint64_t random = 3;

    CHECK_EQ(mp_replay_trace_init(trace, 2, E, 2), MP_OK);
    trace->layer_bytes[0] = trace->layer_bytes[1] = 10;
    for (uint32_t row = 0; row < ROWS; row++) {
        float scores[E] = { 0 };
        uint32_t best[2];

        if (row % 2 == 0)
            CHECK_EQ(mp_replay_trace_begin(trace, row / 2 % 2, true), MP_OK);
        for (uint32_t i = 0; i < E; i++) {
            uint32_t e = (uint32_t)(mp_sim_uniform(&random) * E);

            while (scores[e] > 0)
                e = (e + 1) % E;
            scores[e] = (float)(1u << i) / 255;
        }
        mp_sim_top(scores, E, 2, best);
        CHECK_EQ(mp_replay_trace_score(trace, scores), MP_OK);
        CHECK_EQ(mp_replay_trace_choose(trace, best[0]), MP_OK);
        CHECK_EQ(mp_replay_trace_choose(trace, best[1]), MP_OK);
    }
    CHECK_EQ(mp_replay_trace_end(trace), MP_OK);
}

/* Share of the two best experts that a prediction of the next layer has. */
static double accuracy_of(const struct mp_replay_trace *trace, const char *stated)
{
    struct mp_sim_model model;
    const struct mp_sim_load_config config = {
        .model = &model, .trace = trace, .sequences = 2, .tokens_max = 2, .seed = 5
    };
    char text[512];
    struct mp_sim_load *load;
    float scores[2 * E];
    bool decode;

    snprintf(text, sizeof(text),
             "layers 2\nexperts 8\ntop_k 2\nhidden 64\nexpert_ffn 64\nvocabulary 8\n"
             "kv_bytes 1\nattention_params 1\naccuracy_gate %s\n",
             stated);
    CHECK_EQ(mp_sim_model_parse("n", text, &model), MP_OK);
    CHECK_EQ(mp_sim_load_create(&config, &load), MP_OK);
    for (uint32_t step = 0; mp_sim_load_begin(load, 0, &decode); step++) {
        for (uint32_t l = 0; l < 2; l++) {
            CHECK_EQ(mp_sim_load_tokens(load, l), 2);
            mp_sim_load_scores(load, l, scores);
            CHECK(memcmp(scores, trace->scores + (step * 2 + l) * 2 * E, sizeof(scores)) == 0);
            if (l == 0)
                mp_sim_load_predicted(load, 0, 1, MP_SCORES_GATE, scores);
        }
    }
    {
        const struct mp_sim_seen seen = mp_sim_load_seen(load);

        mp_sim_load_destroy(load);
        CHECK(seen.mass > 192.0 / 255 - 1e-6 && seen.mass < 192.0 / 255 + 1e-6);
        return seen.accuracy;
    }
}

/* Recorded scores are not made up, and what is predicted from them is as right as is stated. */
static void scores_of_a_trace_are_used(void)
{
    struct mp_replay_trace trace;
    double half;

    make_scored_trace(&trace);
    CHECK(accuracy_of(&trace, "1") > 1 - 1e-9);
    half = accuracy_of(&trace, "0.5");
    CHECK(half > 0.4 && half < 0.85); /* a wrong guess can be right by chance */
    CHECK(accuracy_of(&trace, "0.05") < half);
    mp_replay_trace_fini(&trace);
}

/* What the fit to stated statistics is made of. */
static void statistics_are_as_their_heads_say(void)
{
    static const float values[5] = { 2, 3, 3, 1, 3 };
    static const uint32_t places[4] = { 1, 2, 4, 0 };
    uint32_t best[4], counts[9] = { 1, 5, 2, 4, 3, 3, 1, 1, 0 }, none[4] = { 0 };
    struct mp_sim_fit fit = { .share = 0.5 };

    mp_sim_top(values, 5, 4, best); /* equal ones: the lower place */
    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQ(best[i], places[i]);
    mp_sim_top(values, 5, 2, best);
    CHECK(best[0] == 1 && best[1] == 2);

    CHECK(mp_sim_skew(counts, 8) == 0.45); /* 5 and 4 of 20 */
    CHECK(mp_sim_skew(counts, 9) == 0.6);  /* the larger part of 9 / 4: 3 more */
    CHECK(mp_sim_skew(none, 4) == 0);

    CHECK(fabsf(mp_sim_fit_share(&fit, 0.2, 0) - 0.4f) < 1e-6f);
    CHECK(fabsf(mp_sim_fit_share(&fit, 0.2, 1) - 0.6f) < 1e-6f);
    fit.share = 0.9; /* it never stays for ever */
    CHECK(mp_sim_fit_share(&fit, 0.2, 1) == 0.98f);

    for (uint32_t i = 0; i < MP_SIM_BLURS; i++) {
        fit.blur[i] = i;
        fit.accuracy[i] = 1 - i / 32.0;
    }
    CHECK(mp_sim_fit_blur(&fit, 1) == 0);
    CHECK(mp_sim_fit_blur(&fit, 1 - 1 / 64.0) == 0.5);
    CHECK(mp_sim_fit_blur(&fit, 1 - 2 / 32.0) == 2);
    CHECK(mp_sim_fit_blur(&fit, 1 - 3 / 64.0) == 1.5);
    CHECK(mp_sim_fit_blur(&fit, 0.05) == MP_SIM_BLURS - 1);
}

int main(void)
{
    RUN(made_up_routing_is_written);
    mp_test_drop_log(); /* budgets under a token cycle are warned of, rightly */
    RUN(scores_of_a_trace_are_used);
    RUN(statistics_are_as_their_heads_say);
    RUN(made_up_routing_is_as_stated);
    RUN(made_up_routing_is_as_recorded);
    return 0;
}
