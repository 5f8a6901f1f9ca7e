/*
 * Descriptions of machines and models for the simulator: bounds, defaults, and which are refused.
 */
#include "policy/sim/sim.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/unit/policy/sim/sim_run.h"
#include "vmm/base/error.h"

static void wrong_descriptions_are_refused(void)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        { "speed 5\n", "unknown key 'speed'" },
        { MACHINE "link_gbps 2\n", "a second 'link_gbps'" },
        { "link_gbps fast\n", "need a number from" },
        { "link_gbps 0\n", "need a number from" },
        { "link_gbps\n", "is 'nothing'" },
        { "link_gbps 1 2\n", "need a number from" },
        { "link_gbps 1\n# no more\n", "description 'm': nothing says 'copy_us'" },
        { MACHINE "cpu_gflops 5\n", "needs 'cpu_gbps'" }, /* its time would be infinite */
    };
    struct mp_sim_machine machine;
    struct mp_sim_model model;

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        CHECK_EQ(mp_sim_machine_parse("m", cases[i].text, &machine), MP_ERR_CONFIG);
        CHECK_STR(mp_error_last()->code, "E_DESCRIPTION");
        if (strstr(mp_error_last()->text, cases[i].says) == NULL) {
            fprintf(stderr, "case %zu: %s\n", i, mp_error_last()->text);
            exit(1);
        }
    }
    CHECK_EQ(mp_sim_machine_read("rtx9090", &machine), MP_ERR_CONFIG);
    CHECK(strstr(mp_error_last()->text, "rtx3090-epyc7532") != NULL);
    CHECK_EQ(mp_sim_machine_read("/none/such", &machine), MP_ERR_IO);
    CHECK_EQ(mp_sim_model_parse("n",
                                "layers 1\nexperts 2\ntop_k 3\nhidden 1\nexpert_ffn 1\n"
                                "vocabulary 1\nattention_params 1\nkv_bytes 0\n",
                                &model),
             MP_ERR_CONFIG);
}

/* 2^64 bytes and nanoseconds end somewhere. */
static void sizes_beyond_64_bits_are_refused(void)
{
    struct mp_sim_machine machine;
    struct mp_sim_model model;

    CHECK_EQ(mp_sim_machine_read("h200", &machine), MP_OK);
    CHECK_EQ(mp_sim_model_read("mixtral-8x7b", &model), MP_OK);
    CHECK_EQ(mp_sim_change("kv_bytes=1e9,device_gbps=0.001", &machine, &model), MP_OK);
    CHECK_EQ(mp_sim_layer_ns(&machine, &model, 4096, 4096, 1 << 20), 1000000000000000);
    CHECK_EQ(mp_sim_change("layers=4096,experts=1000,hidden=1e6,expert_ffn=1e6,expert_bits=32",
                           &machine, &model),
             MP_ERR_CONFIG);
    CHECK(strstr(mp_error_last()->text, "10^18 bytes") != NULL);
}

/* Between which bounds each number may be, and what it is if nothing says (-1: must be said). */
static const struct bounds {
    const char *name;
    size_t offset;
    double min, max, dfl;
} bounds[] = {
#define M(field, min, max, dfl)                                       \
    {                                                                 \
#field, offsetof(struct mp_sim_machine, field), min, max, dfl \
    }
#define S(field, min, max, dfl)                                     \
    {                                                               \
#field, offsetof(struct mp_sim_model, field), min, max, dfl \
    }
    M(link_gbps, 0.001, 1e5, -1),
    M(copy_us, 0, 1e6, -1),
    M(copies, 1, 16, 3),
    M(device_gbps, 0.001, 1e6, -1),
    M(device_gflops, 0.001, 1e7, -1),
    M(launch_us, 0, 1e6, -1),
    M(device_gib, 0.001, 1e6, -1),
    M(cpu_gbps, 0, 1e5, 0),
    M(cpu_gflops, 0, 1e6, 0),
    M(cpu_start_us, 0, 1e6, 0),
    M(handoff_us, 0, 1e6, 0),
    M(in_place_gbps, 0, 1e5, 0),
    M(disk_gbps, 0, 1e5, 0),
    M(disk_us, 0, 1e6, 0),
    M(expert_us, 0, 1e9, 0),
    M(expert_token_us, 0, 1e9, 0),
    M(layer_us, 0, 1e9, 0),
    M(layer_token_us, 0, 1e9, 0),
    M(step_us, 0, 1e9, 0),
    M(step_token_us, 0, 1e9, 0),
    M(load_us, 0, 1e9, 0),
    M(latency_us, 0, 1e9, 0),
    M(predict_us, 0, 1e9, 0),
    M(group_us, 0, 1e9, 0),
    M(wake_us, 0, 1e9, 0),
    M(issue_us, 0, 1e9, 0),
    M(busy_factor, 1, 100, 1),
    M(fresh_us, 0, 1e9, 0),
    S(layers, 1, 4096, -1),
    S(dense_layers, 0, 4096, 0),
    S(experts, 1, 4096, -1),
    S(top_k, 1, 64, -1),
    S(hidden, 1, 1e6, -1),
    S(expert_ffn, 1, 1e6, -1),
    S(shared_ffn, 0, 1e6, 0),
    S(dense_ffn, 0, 1e6, 0),
    S(vocabulary, 1, 1e7, -1),
    S(attention_params, 1, 1e12, -1),
    S(kv_bytes, 0, 1e9, -1),
    S(expert_bits, 1, 32, 16),
    S(weight_bits, 1, 32, 16),
    S(skew, 0.25, 0.97, 0.5),
    S(variation, 0, 1, 0.2),
    S(overlap, 0, 0.9, 0.3),
    S(mass, 0.01, 0.99, 0.5),
    S(accuracy_gate, 0.05, 1, 0.75),
    S(accuracy_residual, 0.05, 1, 0.8),
    S(accuracy_partial, 0.05, 1, 0.8),
    S(accuracy_llapor, 0.05, 1, 0.9),
    S(llapor_us, 0, 1e6, 300),
#undef M
#undef S
};
#define MACHINE_BOUNDS 28

static bool is_in_bounds(const struct bounds *b, double value)
{
    struct mp_sim_machine machine;
    struct mp_sim_model model;
    char change[64];

    CHECK_EQ(mp_sim_machine_parse("m", MACHINE, &machine), MP_OK);
    CHECK_EQ(mp_sim_model_parse("n", MODEL, &model), MP_OK);
    snprintf(change, sizeof(change), "%s=%.15g", b->name, value);
    return mp_sim_change(change, &machine, &model) == MP_OK ||
           strstr(mp_error_last()->text, "number from") == NULL; /* all else is about two of them */
}

static void numbers_of_descriptions_have_bounds(void)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(bounds); i++) {
        const struct bounds *b = &bounds[i];
        const double below = b->min * (1 - 1e-9) - 1e-9, above = b->max * (1 + 1e-9);

        if (!is_in_bounds(b, b->min) || !is_in_bounds(b, b->max) || is_in_bounds(b, below) ||
            is_in_bounds(b, above) || is_in_bounds(b, b->min - 1) || is_in_bounds(b, b->max + 1)) {
            fprintf(stderr, "%s: not from %g to %g\n", b->name, b->min, b->max);
            exit(1);
        }
    }
}

/* As short as a description can be: each number that it lacks is one that must be said. */
static void numbers_of_descriptions_have_defaults(void)
{
    static const char least_machine[] = "link_gbps 2\ncopy_us 2\ndevice_gbps 2\n"
                                        "device_gflops 2\nlaunch_us 2\ndevice_gib 2\n";
    static const char least_model[] = "layers 2\nexperts 2\ntop_k 2\nhidden 2\nexpert_ffn 2\n"
                                      "vocabulary 2\nattention_params 2\nkv_bytes 2\n";
    struct mp_sim_machine machine;
    struct mp_sim_model model;

    CHECK_EQ(mp_sim_machine_parse("m", least_machine, &machine), MP_OK);
    CHECK_EQ(mp_sim_model_parse("n", least_model, &model), MP_OK);
    for (size_t i = 0; i < MP_ARRAY_LEN(bounds); i++) {
        const void *from = i < MACHINE_BOUNDS ? (const void *)&machine : (const void *)&model;
        double value;

        memcpy(&value, (const char *)from + bounds[i].offset, sizeof(value));
        if (value != (bounds[i].dfl < 0 ? 2 : bounds[i].dfl)) {
            fprintf(stderr, "%s: %g\n", bounds[i].name, value);
            exit(1);
        }
    }
}

static void numbers_of_descriptions_can_be_changed(void)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        { "speed=5", "unknown key 'speed'" },
        { "launch_us", "need key=value" },
        { "launch_us=", "is 'nothing'" },
        { "launch_us=x", "need a number from" },
        { "skew=0.1", "need a number from" },
        { "top_k=9,experts=8", "more experts per token" },
        { "layers=2.5", "need a whole number from" },
        { "top_k=1.5", "need a whole number from" },
    };
    struct mp_sim_machine machine;
    struct mp_sim_model model;

    CHECK_EQ(mp_sim_machine_read("h200", &machine), MP_OK);
    CHECK_EQ(mp_sim_model_read("mixtral-8x7b", &model), MP_OK);
    CHECK_EQ(mp_sim_change("launch_us=7,skew=0.5,link_gbps=12.5", &machine, &model), MP_OK);
    CHECK(machine.launch_us == 7 && machine.link_gbps == 12.5 && machine.copy_us == 5);
    CHECK(model.skew == 0.5 && model.top_k == 2);
    CHECK_EQ(mp_sim_change("", &machine, &model), MP_OK);
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        CHECK_EQ(mp_sim_change(cases[i].text, &machine, &model), MP_ERR_CONFIG);
        CHECK_STR(mp_error_last()->code, "E_DESCRIPTION");
        if (strstr(mp_error_last()->text, cases[i].says) == NULL) {
            fprintf(stderr, "case %zu: %s\n", i, mp_error_last()->text);
            exit(1);
        }
    }
}

static void all_built_in_descriptions_can_be_read(void)
{
    struct mp_sim_machine machine;
    struct mp_sim_model model;
    size_t count = 0;

    for (; mp_sim_machines[count].name != NULL; count++)
        CHECK_EQ(mp_sim_machine_read(mp_sim_machines[count].name, &machine), MP_OK);
    CHECK(count >= 7);
    for (count = 0; mp_sim_models[count].name != NULL; count++)
        CHECK_EQ(mp_sim_model_read(mp_sim_models[count].name, &model), MP_OK);
    CHECK(count >= 10);
    CHECK_EQ(mp_sim_model_read("mixtral-8x7b", &model), MP_OK);
    CHECK_EQ(mp_sim_expert_bytes(&model), 352321536); /* 336 MiB, as PreScope's Table 2 */
}

int main(void)
{
    mp_test_drop_log(); /* budgets under a token cycle are warned of, rightly */
    RUN(wrong_descriptions_are_refused);
    RUN(sizes_beyond_64_bits_are_refused);
    RUN(numbers_of_descriptions_can_be_changed);
    RUN(numbers_of_descriptions_have_bounds);
    RUN(numbers_of_descriptions_have_defaults);
    RUN(all_built_in_descriptions_can_be_read);
    return 0;
}
