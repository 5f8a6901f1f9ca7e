/*
 * Never slower than not paging: over random traces and machines, the modelled time of profile
 * `auto` on demand loads (replay) against the best static placement: whole layers, or the experts
 * that were used most during the warm-up, loaded before the start for nothing; never more than 2 %
 * above it. A warm-up of 512 tokens, in which `auto` learns, does not count, then come 2048.
 *
 * Also against somebody who knows the trace: the experts that will be used most. That nobody can
 * promise to reach, since even of patternless routing he leaves out what chance uses least.
 */

#include "policy/replay/replay.h"
#include "tests/support/executors.h"
#include "tests/support/log_guard.h"
#include "tests/unit/policy/ratios.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define ROUNDS 10
#define HINDSIGHT 1.15

/* Without another executor, with a CPU, with in-place reads, with both. */
static struct mp_costs any_machine(void)
{
    const uint32_t what = workload_below(4);
    const uint64_t load = 1000 + workload_below(9000);
    struct mp_costs costs = {
        TEST_THREE_EXECUTORS,
        .load_ns = load,
        .executors[TEST_DEVICE].fixed_ns = load / (2 + workload_below(50)),
        .executors[TEST_DEVICE].token_ns = load / (20 + workload_below(500)),
        .layer_ns = workload_below(4) * load / 2,
    };

    if (what & 1) {
        costs.executors[TEST_CPU].fixed_ns = load * (1 + workload_below(40)) / 10;
        costs.executors[TEST_CPU].token_ns = load * workload_below(10) / 20;
        costs.executors[TEST_CPU].handoff_ns = load * workload_below(10) / 40;
    }
    if (what & 2) {
        costs.executors[TEST_IN_PLACE].fixed_ns = load * (8 + workload_below(10)) / 10;
        costs.executors[TEST_IN_PLACE].token_ns = load / (10 + workload_below(100));
    }
    costs.executor_count = what & 1 ? TEST_EXECUTORS : what & 2 ? TEST_CPU : TEST_IN_PLACE;
    return costs;
}

static uint64_t time_of(const struct mp_replay_trace *trace, struct mp_replay_config *config)
{
    struct mp_replay_result r;
    const enum mp_status status = mp_replay(trace, config, &r);

    if (status != MP_OK)
        fprintf(stderr, "%s\n", mp_error_last()->text);
    CHECK_EQ(status, MP_OK);
    return r.decode_time_ns;
}

/* The experts that were used most after the warm-up, or during it, or whole layers. */
static uint64_t best_static(const struct mp_replay_trace *trace, uint64_t budget,
                            const struct mp_costs *costs, bool after)
{
    static const char *const partitions[] = { "hot-table", "static-layers" };
    static const char *const assigns[] = { "resident", "cost" };
    float hot[LAYERS_MAX * EXPERTS_MAX] = { 0 };
    const struct mp_calibration calibration = { .hot = hot };
    uint64_t best = UINT64_MAX;

    ratios_count_uses(trace, after, hot);
    for (unsigned i = 0; i < 4; i++) {
        struct mp_replay_config config = { .evict = "none",
                                           .partition = partitions[i / 2],
                                           .admit = "never",
                                           .assign = assigns[i % 2],
                                           .budget_bytes = budget,
                                           .costs = costs,
                                           .calibration = &calibration };
        const uint64_t ns = time_of(trace, &config);

        best = ns < best ? ns : best;
    }
    return best;
}

static uint64_t auto_time(const struct mp_replay_trace *trace, uint64_t budget,
                          const struct mp_costs *costs)
{
    struct mp_replay_config config = { .evict = "shadow",
                                       .partition = "global",
                                       .assign = "cost",
                                       .budget_bytes = budget,
                                       .costs = costs };

    return time_of(trace, &config);
}

static void never_slower_than_static_placement(void)
{
    struct ratios ratios[WORKLOADS] = { 0 };

    for (unsigned round = 0; round < ROUNDS * WORKLOADS; round++) {
        const enum workload_kind kind = round % WORKLOADS;
        struct workload w = any_workload(kind);
        const struct mp_costs costs = any_machine();
        const uint32_t units = w.layers * w.experts, least = w.k < 4 ? 4 : w.k;
        const uint32_t slots = least + workload_below(units - least);
        struct mp_replay_trace trace;
        uint64_t known, hindsight, ours;

        make_trace(&w, &trace);
        known = best_static(&trace, slots * 10, &costs, false);
        hindsight = best_static(&trace, slots * 10, &costs, true);
        ours = auto_time(&trace, slots * 10, &costs);
        ratios_note(ratios, round, kind, ours, known, hindsight);
        mp_replay_trace_fini(&trace);
    }
    ratios_judge(ratios, ROUNDS, HINDSIGHT);
}

int main(void)
{
    mp_test_drop_log();
    RUN(never_slower_than_static_placement);
    return 0;
}
