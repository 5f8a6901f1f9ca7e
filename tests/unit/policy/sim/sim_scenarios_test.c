/*
 * Many short random simulations: every policy, odd shapes, tight budgets, fast and slow machines,
 * transfers that fail. In each the simulator checks after every layer that books, leases, slots,
 * time and results are what they must be; some are run twice and must give the same to the last
 * bit.
 *
 * `sim_scenarios_test SEED` runs one scenario and says what it is; a failure prints its seed.
 */
#include <inttypes.h>
#include <math.h>

#include "policy/sim/sim.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define SCENARIOS 20000
#define TWICE 16 /* every so many scenarios one runs twice */

static uint64_t state;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(mp_sim_uniform(&state) * n);
}

/* From 10^low to 10^high, evenly by magnitude. */
static double magnitude(double low, double high)
{
    return pow(10, low + (high - low) * mp_sim_uniform(&state));
}

static struct mp_sim_machine any_machine(void)
{
    struct mp_sim_machine machine = {
        .name = "random",
        .link_gbps = magnitude(-1, 2),
        .copy_us = magnitude(-1, 2),
        .copies = 3,
        .device_gbps = magnitude(0, 3),
        .device_gflops = magnitude(1, 5),
        .launch_us = magnitude(-1, 1),
        .device_gib = 1,
        .cpu_gbps = magnitude(0, 2),
        .cpu_start_us = magnitude(-1, 2),
        .handoff_us = magnitude(-1, 2),
    };

    if (below(4) > 0)
        machine.cpu_gflops = magnitude(0, 3);
    if (below(3) == 0)
        machine.in_place_gbps = magnitude(0, 2);
    if (below(4) == 0)
        machine.disk_gbps = magnitude(-1, 1);
    if (below(8) == 0) {
        machine.group_us = magnitude(-1, 2);
        machine.wake_us = magnitude(-1, 2);
        machine.issue_us = magnitude(-1, 2);
        machine.busy_factor = magnitude(0, 1);
        machine.fresh_us = magnitude(-1, 2);
    }
    return machine;
}

static struct mp_sim_model any_model(void)
{
    struct mp_sim_model model = {
        .name = "random",
        .layers = 1 + below(5),
        .dense_layers = below(2),
        .experts = 1 + below(16),
        .hidden = 64,
        .expert_ffn = 16 + below(512),
        .shared_ffn = below(2) * 64,
        .dense_ffn = 64,
        .vocabulary = 100,
        .attention_params = 4096,
        .kv_bytes = 64,
        .expert_bits = 16,
        .weight_bits = 16,
        .variation = mp_sim_uniform(&state),
        .accuracy_gate = 0.8,
        .accuracy_residual = 0.8,
        .accuracy_partial = 0.8,
        .accuracy_llapor = 0.8,
        .llapor_us = 10,
    };

    model.top_k = 1 + below(model.experts < 4 ? (uint32_t)model.experts : 4);
    return model;
}

static struct mp_sim_fit any_fit(void)
{
    struct mp_sim_fit fit = {
        .share = 0.95 * mp_sim_uniform(&state),
        .keep = 0.95 * mp_sim_uniform(&state),
        .heat = magnitude(-1, 1),
    };

    for (uint32_t i = 0; i < MP_SIM_BLURS; i++) {
        fit.blur[i] = 0.2 * i;
        fit.accuracy[i] = 1 - (double)i / MP_SIM_BLURS;
    }
    return fit;
}

/* A policy of each slot, whether or not they suit each other; of four one is a set that does. */
static struct mp_profile any_profile(void)
{
    struct mp_profile profile = { .name = "random" };

    if (below(4) == 0) {
        uint32_t count = 0;

        while (mp_profiles[count].name != NULL)
            count++;
        return mp_profiles[below(2) == 0 ? count - 1 : below(count)]; /* the last one is `auto` */
    }

    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        uint32_t count = 0;

        while (mp_policy_builtin((enum mp_policy_kind)kind, count) != NULL)
            count++;
        profile.policy[kind] = mp_policy_builtin((enum mp_policy_kind)kind, below(count))->name;
    }
    return profile;
}

static void print_scenario(uint64_t seed, const struct mp_sim_config *c)
{
    fprintf(stderr,
            "scenario %" PRIu64 ": %g layers of %g experts, %g per token, %u sequences, prompt %u, "
            "%u generated, budget %" PRIu64 " ppm, %u slices, %u ppm fail%s\n",
            seed, c->model->layers, c->model->experts, c->model->top_k, c->batch, c->prompt, c->gen,
            c->budget.amount, c->slices, c->fail_ppm, c->deterministic ? ", deterministic" : "");
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        fprintf(stderr, " %s=%s", mp_policy_kind_name((enum mp_policy_kind)kind),
                c->profile->policy[kind]);
    fprintf(stderr, "\n");
}

/* Refused because the policies say so, or the budget: nothing to check. */
static bool may_be_refused(const struct mp_error *error)
{
    return error->status == MP_ERR_CONFIG || error->status == MP_ERR_UNSUPPORTED;
}

static enum mp_status run(uint64_t seed, bool verbose, struct mp_sim_result *result)
{
    struct mp_sim_machine machine;
    struct mp_sim_model model;
    struct mp_sim_fit fit;
    struct mp_profile profile;
    static const uint32_t slices[] = { 0, 1, 1, 1, 2, 3, 4, 16 };
    struct mp_sim_config config = { .seed = seed, .check = true };
    enum mp_status status;

    state = seed;
    machine = any_machine();
    model = any_model();
    fit = any_fit();
    profile = any_profile();
    config.machine = &machine;
    config.model = &model;
    config.fit = &fit;
    config.profile = &profile;
    config.batch = 1 + below(8);
    config.prompt = 1 + below(6);
    config.gen = below(6);
    config.deterministic = below(4) == 0;
    config.budget = (struct mp_share){ MP_SHARE_PPM, below(4) == 0 ? 1000000 : below(1000001) };
    config.fail_ppm = below(5) == 0 ? below(300000) : 0;
    config.slices = slices[below(8)];
    if (verbose)
        print_scenario(seed, &config);
    memset(result, 0, sizeof(*result));
    status = mp_sim_run(&config, result);
    if (status == MP_OK || may_be_refused(mp_error_last()) ||
        (status == MP_ERR_IO && config.fail_ppm > 0))
        return status;
    print_scenario(seed, &config);
    fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
    exit(1);
}

/* Half of the sets are it. */
static void auto_is_the_last_profile(void)
{
    uint32_t last = 0;

    while (mp_profiles[last + 1].name != NULL)
        last++;
    CHECK_STR(mp_profiles[last].name, "auto");
}

/* Of a run that was not refused: what follows from its numbers alone. */
static void check_result(const struct mp_sim_result *r)
{
    const struct mp_counters *c = &r->counters;

    CHECK(r->decode_steps == 0 || r->decode_ns > 0);
    CHECK(r->slots <= r->units || r->slots == 2);
    CHECK(c->partial_hits <= c->misses + c->elsewhere);
    CHECK(r->slices > 1 || c->partial_hits == 0);
    CHECK(r->device_busy_ns <= r->decode_ns && r->cpu_busy_ns <= r->decode_ns);
    CHECK(c->exposed_wait_ns <= r->decode_ns);
    CHECK(c->prefetch_used <= c->prefetch_issued + (uint64_t)r->units * r->slices);
}

int main(int argc, char **argv)
{
    const uint64_t only = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    unsigned done = 0, failed = 0, refused = 0;

    auto_is_the_last_profile();
    mp_test_drop_log(); /* budgets under a token cycle are warned of, rightly */
    for (uint64_t seed = only > 0 ? only : 1; seed <= (only > 0 ? only : SCENARIOS); seed++) {
        struct mp_sim_result first, second;
        const enum mp_status status = run(seed, only > 0, &first);

        done += status == MP_OK;
        failed += status == MP_ERR_IO;
        refused += status != MP_OK && status != MP_ERR_IO;
        if (status == MP_OK)
            check_result(&first);
        if (seed % TWICE == 0 || only > 0) {
            if (run(seed, false, &second) != status ||
                memcmp(&first, &second, sizeof(first)) != 0) {
                fprintf(stderr, "scenario %" PRIu64 " gives another result the second time\n",
                        seed);
                return 1;
            }
        }
    }
    fprintf(stderr, "  %u ran, %u ended with a read that failed, %u were refused\n", done, failed,
            refused);
    CHECK(only > 0 || (done > SCENARIOS / 2 && failed > SCENARIOS / 100));
    return 0;
}
