/*
 * Never slower than not paging, in the simulator: profile `auto` as a whole (prefetching by
 * predictions of any quality, transfers, overlap) on random machines and traces, against the same
 * static placements as in tests/unit/policy/auto_time_test.c. Runs that are not SHORT times as long
 * as loading all slots take are left out: learning costs as much as that.
 */
#include <math.h>

#include "policy/sim/sim.h"
#include "tests/support/log_guard.h"
#include "tests/unit/policy/ratios.h"
#include "vmm/base/error.h"

#define ROUNDS 5
#define HINDSIGHT 1.15
#define SHORT 20

static double unit_interval(void)
{
    return (double)workload_below(1u << 30) / (1u << 30);
}

/* From 10^low to 10^high, evenly by magnitude. */
static double magnitude(double low, double high)
{
    return pow(10, low + (high - low) * unit_interval());
}

static struct mp_sim_machine any_machine(void)
{
    struct mp_sim_machine machine = {
        .name = "random",
        .link_gbps = magnitude(0, 2),
        .copy_us = magnitude(-1, 1),
        .copies = 3,
        .device_gbps = magnitude(2, 3),
        .device_gflops = magnitude(3, 5),
        .launch_us = magnitude(-1, 1),
        .device_gib = 1,
        .cpu_gbps = magnitude(0, 2),
        .cpu_start_us = magnitude(-1, 2),
        .handoff_us = magnitude(-1, 2),
    };

    if (workload_below(3) > 0)
        machine.cpu_gflops = magnitude(0, 3);
    if (workload_below(4) == 0)
        machine.in_place_gbps = magnitude(0, 2);
    if (workload_below(4) == 0)
        machine.disk_gbps = magnitude(-1, 1);
    return machine;
}

static struct mp_sim_model any_model(const struct workload *w)
{
    return (struct mp_sim_model){
        .name = "random",
        .layers = w->layers,
        .experts = w->experts,
        .top_k = w->k,
        .hidden = 256,
        .expert_ffn = 256 + workload_below(2048),
        .shared_ffn = workload_below(2) * 256,
        .dense_ffn = 256,
        .vocabulary = 100,
        .attention_params = 65536,
        .kv_bytes = 64,
        .expert_bits = 16,
        .weight_bits = 16,
        .accuracy_gate = 0.05 + 0.95 * unit_interval(),
        .accuracy_residual = 0.8,
        .accuracy_partial = 0.8,
        .accuracy_llapor = 0.8,
        .llapor_us = 10,
    };
}

static uint64_t time_of(struct mp_sim_config *config,
                        const char *const policy[MP_POLICY_KIND_COUNT])
{
    struct mp_sim_result result;
    struct mp_profile profile = { .name = "compared" };
    enum mp_status status;

    memcpy(profile.policy, policy, sizeof(profile.policy));
    config->profile = &profile;
    status = mp_sim_run(config, &result);
    if (status != MP_OK)
        fprintf(stderr, "%s\n", mp_error_last()->text);
    CHECK_EQ(status, MP_OK);
    return result.decode_ns;
}

/* With the experts that were used most after the warm-up, or during it. */
static uint64_t best_static(struct mp_sim_config *config, bool after)
{
    static const char *const policies[][MP_POLICY_KIND_COUNT] = {
        { "exact", "resident", "none", "none", "never", "none", "hot-table" },
        { "exact", "cost", "none", "none", "never", "none", "hot-table" },
        { "exact", "resident", "none", "none", "never", "none", "static-layers" },
    };
    float hot[LAYERS_MAX * EXPERTS_MAX] = { 0 };
    const struct mp_calibration calibration = { .hot = hot };
    uint64_t best = UINT64_MAX;

    ratios_count_uses(config->trace, after, hot);
    config->calibration = &calibration;
    for (size_t i = 0; i < MP_ARRAY_LEN(policies); i++) {
        const uint64_t ns = time_of(config, policies[i]);

        best = ns < best ? ns : best;
    }
    config->calibration = NULL;
    return best;
}

static void never_slower_than_static_placement(void)
{
    static const char *const ours[MP_POLICY_KIND_COUNT] = { "exact",  "cost",   "gate",  "idle",
                                                            "always", "shadow", "global" };
    struct ratios ratios[WORKLOADS] = { 0 };
    uint32_t skipped = 0;

    for (unsigned round = 0; round < ROUNDS * WORKLOADS; round++) {
        const enum workload_kind kind = round % WORKLOADS;
        struct workload w = any_workload(kind);
        const struct mp_sim_machine machine = any_machine();
        const struct mp_sim_model model = any_model(&w);
        const uint32_t units = w.layers * w.experts, least = w.k < 4 ? 4 : w.k;
        const uint32_t slots = least + workload_below(units - least);
        struct mp_replay_trace trace;
        struct mp_sim_config config = {
            .machine = &machine,
            .model = &model,
            .trace = &trace,
            .batch = w.batch,
            .seed = round,
            .budget = { MP_SHARE_BYTES, slots * mp_sim_expert_bytes(&model) },
        };
        uint64_t known, hindsight;

        make_trace(&w, &trace);
        known = best_static(&config, false);
        hindsight = best_static(&config, true);
        if (hindsight > SHORT * slots * mp_sim_load_ns(&machine, &model)) {
            ratios_note(ratios, round, kind, time_of(&config, ours), known, hindsight);
        } else {
            skipped++; /* nothing that is loaded in such a run can pay */
        }
        mp_replay_trace_fini(&trace);
    }
    fprintf(stderr, "    %u of %u runs were too short against the time of loads\n", skipped,
            ROUNDS * WORKLOADS);
    CHECK(skipped < ROUNDS * WORKLOADS / 2);
    ratios_judge(ratios, ROUNDS, HINDSIGHT);
}

int main(void)
{
    mp_test_drop_log();
    RUN(never_slower_than_static_placement);
    return 0;
}
