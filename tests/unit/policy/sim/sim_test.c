/*
 * Simulations small enough to compute by hand, and descriptions that are wrong.
 */
#include <math.h>

#include "policy/sim/sim.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define WITHOUT_LOADS                                                                     \
    "link_gbps 1\ncopy_us 1\ndevice_gbps 1\ndevice_gflops 1\ndevice_gib 1\nlaunch_us 1\n" \
    "expert_us 10\nlayer_us 100\nstep_us 1000\n"
#define MACHINE WITHOUT_LOADS "load_us 500\n"
#define MODEL                                                                            \
    "layers 1\nexperts 4\ntop_k 4\nhidden 64\nexpert_ffn 64\nvocabulary 8\nkv_bytes 1\n" \
    "attention_params 1\n"

static struct mp_sim_result run_warm(const char *machine_text, const char *profile_name,
                                     const char *assign, uint32_t ppm, uint32_t warm)
{
    const struct mp_policy_names names = { .profile = profile_name,
                                           .policy = { [MP_POLICY_ASSIGN] = assign } };
    struct mp_sim_machine machine;
    struct mp_sim_model model;
    struct mp_profile profile;
    struct mp_sim_result result;
    const struct mp_sim_config config = {
        .machine = &machine,
        .model = &model,
        .profile = &profile,
        .batch = 1,
        .prompt = 1,
        .gen = 3,
        .warm = warm,
        .budget = { MP_SHARE_PPM, ppm },
        .seed = 1,
        .check = true,
    };
    enum mp_status status;

    CHECK_EQ(mp_sim_machine_parse("m", machine_text, &machine), MP_OK);
    CHECK_EQ(mp_sim_model_parse("n", MODEL, &model), MP_OK);
    CHECK_EQ(mp_policy_resolve(&names, &profile), MP_OK);
    status = mp_sim_run(&config, &result);
    if (status != MP_OK)
        fprintf(stderr, "%s\n", mp_error_last()->text);
    CHECK_EQ(status, MP_OK);
    return result;
}

static struct mp_sim_result run(const char *machine_text, const char *profile_name,
                                const char *assign, uint32_t ppm)
{
    return run_warm(machine_text, profile_name, assign, ppm, 0);
}

/* 100 us of attention; four loads of 500 us, one after the other, each expert of 10 us computed
 * while the next one is loaded; 1000 us of output. Then all is resident. */
static void loads_hide_computation(void)
{
    const struct mp_sim_result r = run(MACHINE, "lru", NULL, 1000000);

    CHECK_EQ(r.prefill_ns, 1000 * (100 + 4 * 500 + 10 + 1000));
    CHECK_EQ(r.decode_ns, 3 * 1000 * (100 + 4 * 10 + 1000));
    CHECK_EQ(r.counters.hits, 12);
    CHECK_EQ(r.counters.exposed_wait_ns, 0);
    CHECK_EQ(r.link_busy_ns, 0);
    CHECK_EQ(r.device_busy_ns, r.decode_ns);
}

/* What came before the prompt has loaded all, and is not in the result. */
static void warm_steps_do_not_count(void)
{
    const struct mp_sim_result cold = run(MACHINE, "lru", NULL, 1000000);
    const struct mp_sim_result r = run_warm(MACHINE, "lru", NULL, 1000000, 2);

    CHECK_EQ(r.prefill_ns, 1000 * (100 + 4 * 10 + 1000));
    CHECK_EQ(r.decode_ns, cold.decode_ns);
    CHECK_EQ(r.decode_steps, 3);
    CHECK_EQ(r.counters.hits, 12);
    CHECK_EQ(r.device_busy_ns, r.decode_ns);
}

/* Two slots: of four experts that are always needed, the two used last are there, come first, and
 * the two others are loaded into their places: the second load waits for nobody. */
static void a_layer_larger_than_the_budget_comes_in_waves(void)
{
    const struct mp_sim_result r = run(MACHINE, "lru", NULL, 500000);

    CHECK_EQ(r.counters.hits, 6);
    CHECK_EQ(r.counters.misses, 6);
    CHECK_EQ(r.counters.loads, 6);
    /* 10 us until a slot is free, two loads, the last expert */
    CHECK_EQ(r.decode_ns, 3 * 1000 * (100 + 10 + 2 * 500 + 10 + 1000));
    CHECK_EQ(r.link_busy_ns, 6 * 500 * 1000);
}

/* The latencies of the four loads of the prompt overlap. */
static void latencies_overlap(void)
{
    const struct mp_sim_result r = run(MACHINE "latency_us 300\n", "lru", NULL, 1000000);

    CHECK_EQ(r.prefill_ns, 1000 * (100 + 300 + 4 * 500 + 10 + 1000));
    CHECK_EQ(r.decode_ns, 3 * 1000 * (100 + 4 * 10 + 1000));
}

/* To ask for four loads takes 12 us, while the first is under way; of what comes later, each is
 * waited for, 7 us pass until somebody is awake and 5 until the expert is begun. Of what is there
 * already four experts begin together. */
static void waiting_and_beginning_take_time(void)
{
    const struct mp_sim_result r =
        run(MACHINE "group_us 5\nwake_us 7\nissue_us 3\n", "lru", NULL, 1000000);

    CHECK_EQ(r.prefill_ns, 1000 * (100 + 4 * 500 + 7 + 5 + 10 + 1000));
    CHECK_EQ(r.decode_ns, 3 * 1000 * (100 + 5 + 4 * 10 + 1000));
}

/* Loads of 8 us end 8, 16, 24 and 32 us after the router. 12 us later the first is computed, 15 us;
 * then the second and the third, which have come meanwhile, together, 25 us; then the last. */
static void what_is_ready_is_computed_together(void)
{
    const struct mp_sim_result r =
        run(WITHOUT_LOADS "load_us 8\ngroup_us 5\nwake_us 7\nissue_us 3\n", "lru", NULL, 1000000);

    CHECK_EQ(r.prefill_ns, 1000 * (100 + 12 + 15 + 25 + 15 + 1000));
}

/* The same, but an expert that was just loaded takes 2 us more, once. */
static void what_was_just_loaded_takes_longer(void)
{
    const struct mp_sim_result r =
        run(WITHOUT_LOADS "load_us 8\ngroup_us 5\nissue_us 3\nfresh_us 2\n", "lru", NULL, 1000000);

    CHECK_EQ(r.prefill_ns, 1000 * (100 + 12 + 17 + 29 + 17 + 1000));
    CHECK_EQ(r.decode_ns, 3 * 1000 * (100 + 5 + 4 * 10 + 1000));
}

/* As above, but what is computed beside a read takes twice as long: of the first group's 15 us, 10
 * are worth 20 until the last read has ended, and then 5 are left. So at 137 us three experts are
 * there, and begin together. */
static void reading_slows_computing(void)
{
    const struct mp_sim_result r =
        run(WITHOUT_LOADS "load_us 8\ngroup_us 5\nwake_us 7\nissue_us 3\nbusy_factor 2\n", "lru",
            NULL, 1000000);

    CHECK_EQ(r.prefill_ns / 1000, 100 + 12 + 20 + 5 + 35 + 1000);
}

/* Nothing is resident, so the CPU computes all: 50 us each and one hand-off of 20 us; with weights
 * of 24,576 bytes at 24.576 GB/s and no arithmetic to speak of 1 us is added to each. */
static void the_cpu_needs_no_slot(void)
{
    const struct mp_sim_result r =
        run(MACHINE "cpu_gbps 24.576\ncpu_gflops 1000000\ncpu_start_us 50\nhandoff_us 20\n", "lru",
            "resident", 500000);

    CHECK_EQ(r.counters.hits + r.counters.misses, 0);
    CHECK_EQ(r.counters.elsewhere, 12);
    CHECK_EQ(r.decode_ns / 3000, 100 + 20 + 4 * 51 + 1000);
    CHECK_EQ(r.device_busy_ns, 3 * 1000 * 1100);
    CHECK_EQ(r.cpu_busy_ns / 3000, 20 + 4 * 51);
    CHECK_EQ(r.link_busy_ns, 0);
}

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

/* A feed-forward network is three kernels, attention with its norms and router ten, the router
 * alone and the head one. */
static void work_is_so_many_launches(void)
{
    struct mp_sim_machine h;
    struct mp_sim_model m;

    CHECK_EQ(mp_sim_machine_read("h200", &h), MP_OK);
    CHECK_EQ(mp_sim_model_read("mixtral-8x7b", &m), MP_OK);
    CHECK_EQ(mp_sim_change("launch_us=0,in_place_gbps=50", &h, &m), MP_OK);
    const uint64_t without[6] = { mp_sim_device_ns(&h, &m, 1),  mp_sim_in_place_ns(&h, &m, 1),
                                  mp_sim_ffn_ns(&h, &m, 64, 1), mp_sim_layer_ns(&h, &m, 1, 1, 9),
                                  mp_sim_router_ns(&h, &m, 1),  mp_sim_head_ns(&h, &m, 1, 1) };
    CHECK_EQ(mp_sim_change("launch_us=1000", &h, &m), MP_OK);
    const uint64_t with[6] = { mp_sim_device_ns(&h, &m, 1),  mp_sim_in_place_ns(&h, &m, 1),
                               mp_sim_ffn_ns(&h, &m, 64, 1), mp_sim_layer_ns(&h, &m, 1, 1, 9),
                               mp_sim_router_ns(&h, &m, 1),  mp_sim_head_ns(&h, &m, 1, 1) };
    static const uint32_t launches[6] = { 3, 3, 3, 10, 1, 1 };

    for (uint32_t i = 0; i < 6; i++)
        CHECK_EQ((with[i] - without[i] + 500) / 1000000, launches[i]);
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
    mp_test_drop_log(); /* budgets under a token cycle are warned of, rightly */
    RUN(loads_hide_computation);
    RUN(warm_steps_do_not_count);
    RUN(a_layer_larger_than_the_budget_comes_in_waves);
    RUN(latencies_overlap);
    RUN(waiting_and_beginning_take_time);
    RUN(what_is_ready_is_computed_together);
    RUN(what_was_just_loaded_takes_longer);
    RUN(reading_slows_computing);
    RUN(the_cpu_needs_no_slot);
    RUN(wrong_descriptions_are_refused);
    RUN(work_is_so_many_launches);
    RUN(sizes_beyond_64_bits_are_refused);
    RUN(numbers_of_descriptions_can_be_changed);
    RUN(numbers_of_descriptions_have_bounds);
    RUN(numbers_of_descriptions_have_defaults);
    RUN(all_built_in_descriptions_can_be_read);
    RUN(scores_of_a_trace_are_used);
    RUN(statistics_are_as_their_heads_say);
    RUN(made_up_routing_is_as_stated);
    RUN(made_up_routing_is_as_recorded);
    return 0;
}
