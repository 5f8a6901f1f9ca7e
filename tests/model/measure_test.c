/*
 * The short run that `moepager plan` makes: routing that is made up, times that the simulator
 * repeats, and the model's own routing.
 */
#include "engine/measure/measure.h"

#include <math.h>
#include <string.h>

#include "policy/sim/sim.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define MODEL_TEXT                                                                  \
    "layers 3\nexperts 12\ntop_k 3\nhidden 1024\nexpert_ffn 512\nvocabulary 8000\n" \
    "attention_params 4000000\nkv_bytes 100\n"

static struct mp_measured shape(void)
{
    return (struct mp_measured){ .layers = 3, .experts = 12, .top_k = 3, .steps = 8 };
}

/* In every step as many experts of a layer are new, among those of the last `kept` steps. */
static void patterns_read_as_many_as_they_should(void)
{
    static const uint32_t wanted[MP_PATTERN_COUNT] = { 0, 1, 3 };
    const struct mp_measured m = shape();

    for (unsigned i = 0; i < MP_PATTERN_COUNT; i++) {
        struct mp_replay_trace trace;
        uint32_t before[3] = { 0 };

        CHECK_EQ(mp_measure_pattern(&m, 1u << i, 1, &trace), MP_OK);
        CHECK_EQ(trace.group_count, m.steps * m.layers);
        for (size_t g = 0; g < trace.group_count; g++) {
            const struct mp_replay_group *group = &trace.groups[g];
            uint32_t now = 0, fresh = 0;

            CHECK(group->decode && group->count == m.top_k && group->tokens == 1);
            for (uint32_t u = 0; u < group->count; u++) {
                const uint32_t expert = trace.uses[group->first + u].id % m.experts;

                now |= 1u << expert;
                fresh += !(before[group->layer] >> expert & 1);
            }
            CHECK(g < m.layers || fresh == wanted[i]);
            before[group->layer] = now;
        }
        mp_replay_trace_fini(&trace);
    }
}

/* With several sets no expert is used again before those of the others. */
static void nothing_is_read_from_several_sets(void)
{
    struct mp_measured m = shape();
    struct mp_replay_trace trace;

    m.sets = 4;
    CHECK_EQ(
        mp_measure_pattern(&m, 1u << MP_PATTERN_NONE_READ | 1u << MP_PATTERN_ALL_READ, 2, &trace),
        MP_OK);
    CHECK_EQ(trace.group_count, 2 * 2 * m.steps * m.layers);
    for (size_t g = 0; g < trace.group_count; g++) {
        const uint32_t step = (uint32_t)(g / m.layers) % m.steps;

        for (uint32_t u = 0; u < m.top_k; u++)
            CHECK_EQ(trace.uses[trace.groups[g].first + u].id % m.experts,
                     (step % m.sets * m.top_k + u) % m.experts);
    }
    mp_replay_trace_fini(&trace);
}

/* Time of a step of one pattern in the simulator, all being as after the same before. */
static double step_us(const struct mp_measured *m, unsigned pattern,
                      const struct mp_sim_machine *machine, const struct mp_sim_model *model)
{
    struct mp_sim_config config = {
        .machine = machine,
        .model = model,
        .batch = 1,
        .again = true,
        .budget = { MP_SHARE_BYTES, m->budget_bytes },
        .seed = 1,
        .check = true,
    };
    struct mp_profile profile;
    struct mp_replay_trace trace;
    struct mp_sim_result result;

    CHECK_EQ(mp_policy_resolve(&(struct mp_policy_names){ .profile = "lru" }, &profile), MP_OK);
    CHECK_EQ(mp_measure_pattern(m, 1u << pattern, 1, &trace), MP_OK);
    config.profile = &profile;
    config.trace = &trace;
    CHECK_EQ(mp_sim_run(&config, &result), MP_OK);
    CHECK_EQ(result.decode_steps, m->steps);
    mp_replay_trace_fini(&trace);
    return (double)result.decode_ns / 1e3 / result.decode_steps;
}

static void fitted_machines_take_the_measured_times(void)
{
    static const uint64_t times_us[][MP_PATTERN_COUNT] = {
        { 2000, 5000, 11000 },  /* a disk that answers late */
        { 900, 901, 902 },      /* reads that cost nothing */
        { 300, 30300, 90300 },  /* a slow disk */
        { 50000, 51000, 53000 } /* a slow processor */
    };
    struct mp_measured m = shape();
    struct mp_sim_model model;

    CHECK_EQ(mp_sim_model_parse("m", MODEL_TEXT, &model), MP_OK);
    m.budget_bytes = 14 * mp_sim_expert_bytes(&model);
    for (size_t i = 0; i < sizeof(times_us) / sizeof(times_us[0]); i++) {
        struct mp_sim_machine machine;

        CHECK_EQ(mp_sim_machine_read("host-disk", &machine), MP_OK);
        for (unsigned k = 0; k < MP_PATTERN_COUNT; k++)
            m.step_ns[k] = 1000 * times_us[i][k];
        CHECK_EQ(mp_measure_fit(&m, &model, NULL, &machine), MP_OK);
        for (unsigned k = 0; k < MP_PATTERN_COUNT; k++)
            CHECK(fabs(step_us(&m, k, &machine, &model) / (double)times_us[i][k] - 1) <
                  (k == MP_PATTERN_ONE_READ ? 0.03 : 0.01));
    }
}

static void a_model_is_measured(void)
{
    static struct mp_settings settings;
    const struct mp_measure_config config = { .settings = &settings,
                                              .model = "models/tiny-moe",
                                              .prompt = 70,
                                              .gen = 9,
                                              .clock = mp_clock_monotonic() };
    struct mp_measured m;
    uint32_t decode = 0, prompt = 0;

    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    CHECK_EQ(mp_measure_run(&config, &m), MP_OK);
    for (unsigned i = 0; i < MP_PATTERN_COUNT; i++)
        CHECK(m.step_ns[i] > 0);
    /* The model's 18 MiB are less than a frame of memory, and yet all of them stay. */
    CHECK_EQ(m.loads[MP_PATTERN_NONE_READ], 0);
    CHECK(m.loads[MP_PATTERN_ONE_READ] <= (uint64_t)m.steps * m.layers);
    CHECK_EQ(m.loads[MP_PATTERN_ALL_READ], (uint64_t)m.steps * m.layers * m.top_k);
    CHECK(m.budget_bytes > 0 && m.steps >= 4);
    CHECK_EQ(m.sets, 1); /* for the simulator, in which nothing is cached */
    CHECK(m.accuracy > 0.05 && m.accuracy <= 1);
    CHECK_EQ(m.routing.layers, m.layers);
    for (size_t g = 0; g < m.routing.group_count; g++) {
        const struct mp_replay_group *group = &m.routing.groups[g];

        *(group->decode ? &decode : &prompt) += group->tokens;
    }
    CHECK_EQ(decode, 9 * m.layers);
    CHECK_EQ(prompt, 70 * m.layers);
    mp_measured_fini(&m);
}

static void budgets_are_tried(void)
{
    static struct mp_settings settings;
    const struct mp_measure_config config = { .settings = &settings,
                                              .model = "models/tiny-moe",
                                              .prompt = 5,
                                              .gen = 6,
                                              .clock = mp_clock_monotonic() };
    struct mp_profile lru, fixed;
    struct mp_trial trials[] = {
        { .policies = &lru, .budget_bytes = UINT64_C(32) << 20 }, /* for all */
        { .policies = &fixed, .budget_bytes = UINT64_C(2) << 20 },
        { .policies = &lru, .budget_bytes = UINT64_C(2) << 20, .expected_step_ns = UINT64_MAX / 2 },
        { .policies = &lru, .budget_bytes = UINT64_C(2) << 20, .expected_prefill_ns = UINT64_MAX },
    };

    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    CHECK_EQ(mp_policy_resolve(&(struct mp_policy_names){ .profile = "lru" }, &lru), MP_OK);
    CHECK_EQ(mp_policy_resolve(&(struct mp_policy_names){ .profile = "static" }, &fixed), MP_OK);
    CHECK_EQ(mp_measure_try(&config, trials, 4), MP_OK);
    for (size_t i = 0; i < 2; i++)
        CHECK(trials[i].runs >= 1 && trials[i].tpot_ms > 0 && trials[i].ttft_ms > 0);
    CHECK(trials[0].hit_rate == 1); /* after the first run */
    CHECK(trials[1].hit_rate < trials[0].hit_rate);
    for (size_t i = 2; i < 4; i++)
        CHECK_EQ(trials[i].runs, 0);
}

/* More than the machine has is an error that the caller can tell; nothing is left. */
static void what_cannot_be_measured_is_refused(void)
{
    static struct mp_settings settings;
    struct mp_measure_config config = { .settings = &settings,
                                        .model = "/nonexistent",
                                        .prompt = 4,
                                        .gen = 4,
                                        .clock = mp_clock_monotonic() };
    const volatile sig_atomic_t cancel = 1;
    struct mp_profile lru;
    struct mp_trial trial = { .policies = &lru, .budget_bytes = UINT64_C(2) << 20 };
    struct mp_measured m;

    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    CHECK_EQ(mp_policy_resolve(&(struct mp_policy_names){ .profile = "lru" }, &lru), MP_OK);
    CHECK(mp_measure_run(&config, &m) != MP_OK);
    CHECK_STR(mp_error_last()->code, "E_CKPT_DIR");
    config.model = "models/tiny-moe";
    config.cancel = &cancel;
    CHECK_EQ(mp_measure_run(&config, &m), MP_ERR_CANCELED);
    CHECK_EQ(mp_measure_try(&config, &trial, 1), MP_ERR_CANCELED);
}

int main(void)
{
    RUN(patterns_read_as_many_as_they_should);
    RUN(nothing_is_read_from_several_sets);
    RUN(fitted_machines_take_the_measured_times);
    RUN(a_model_is_measured);
    RUN(budgets_are_tried);
    RUN(what_cannot_be_measured_is_refused);
    return 0;
}
