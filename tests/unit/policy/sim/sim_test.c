/*
 * Simulations small enough to compute by hand, and descriptions that are wrong.
 */
#include "policy/sim/sim.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/unit/policy/sim/sim_run.h"
#include "vmm/base/error.h"

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
    RUN(work_is_so_many_launches);
    return 0;
}
