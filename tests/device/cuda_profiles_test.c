/*
 * Policies on a CUDA device, here the driver without one (tests/device/fakecuda). Every profile,
 * with the model's own routing and the device computing every expert, gives the bits of `lru` with
 * everything resident, at five budgets (the variant: 0 to 4). Assign policies that give experts to
 * the CPU too keep to the reference's logits (variant "assign").
 */
#include "tests/model/harness.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/executors.h"
#include "tests/support/npy.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define MODEL "models/tiny-moe"
#define EXPECT "tests/data/models/tiny-moe-expect"
#define BUDGETS 5
#define STEPS 3
#define STEPS_EXPECTED 16
#define BOUND 1e-4

static struct npy tokens, lens;

static struct harness_options on_device(void)
{
    struct harness_options options = harness_defaults(MODEL);

    options.backend = "cuda";
    options.ctx = (uint32_t)tokens.dims[1];
    options.threads = 2;
    return options;
}

static float *run(const struct harness_options *options, uint32_t steps,
                  struct mp_counters *counters_p, struct mp_space_plan *space_p)
{
    struct harness h;
    float *logits;

    harness_open(options, &h);
    logits = calloc((size_t)(steps + 1) * h.model.vocab, sizeof(float));
    CHECK(logits != NULL);
    if (harness_run(&h, tokens.i32, tokens.dims[1], lens.i32, 1, steps, logits) != MP_OK) {
        fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
    CHECK(mp_pager_check(mp_engine_pager(h.engine)));
    *counters_p = *mp_engine_counters(h.engine);
    mp_engine_plan(h.engine, space_p);
    harness_close(&h);
    check_nothing_lives();
    return logits;
}

static void every_profile_has_the_bits_of_lru(unsigned budget)
{
    struct harness_options options = on_device();
    struct mp_calibration_data *calibration = harness_calibration(MODEL);
    struct mp_counters counters;
    struct mp_space_plan space, now;
    float *want, *got;

    options.policies.profile = "lru";
    options.graphs = false;
    want = run(&options, STEPS, &counters, &space);
    CHECK_EQ(counters.evictions, 0);
    options.graphs = true;
    options.calibration = calibration;
    options.budget_bytes =
        space.smallest_bytes + (space.full_bytes - space.smallest_bytes) * budget / BUDGETS;
    for (const struct mp_profile *p = mp_profiles; p->name != NULL; p++) {
        options.policies = (struct mp_policy_names){ .profile = p->name };
        options.policies.policy[MP_POLICY_ROUTE] = "exact";
        options.policies.policy[MP_POLICY_ASSIGN] = "gpu-only";
        got = run(&options, STEPS, &counters, &now);
        if (memcmp(got, want, (STEPS + 1) * 2048 * sizeof(float)) != 0) {
            fprintf(stderr, "profile %s at %llu bytes has other bits\n", p->name,
                    (unsigned long long)options.budget_bytes);
            exit(1);
        }
        CHECK_EQ(counters.invalid_decisions, 0);
        CHECK_EQ(counters.route_substituted, 0);
        CHECK_EQ(counters.elsewhere, 0);
        CHECK(counters.loads > 0);
        CHECK(counters.resident_peak_bytes <= options.budget_bytes);
        free(got);
    }
    free(want);
    mp_calibration_destroy(calibration);
}

static void check_reference(const char *what, const float *got)
{
    struct npy want, margin;
    size_t close_rows = 0;
    double worst = 0;

    CHECK(npy_read(EXPECT "/b1_logits.npy", &want) && npy_read(EXPECT "/b1_margin.npy", &margin));
    for (size_t row = 0; row <= STEPS_EXPECTED; row++) {
        const double error = npy_error(got + row * 2048, want.f32 + row * 2048, 2048);

        if (margin.f32[row] < 1e-5f) {
            close_rows++;
            continue;
        }
        worst = error > worst || !(error == error) ? error : worst;
    }
    fprintf(stderr, "    %s: worst error %.2g\n", what, worst);
    CHECK(worst <= BOUND && close_rows == 0);
    npy_free(&want);
    npy_free(&margin);
}

/* What a load takes is worth weighing against the CPU, so both sides get something. */
static void assign_policies_keep_to_the_reference(void)
{
    static const char *const names[] = { "greedy",   "two-pointer", "queue",
                                         "presched", "threshold",   "resident" };
    struct harness_options options = on_device();
    struct mp_counters counters;
    struct mp_space_plan space;

    options.policies.profile = "lru";
    free(run(&options, 0, &counters, &space));
    options.budget_bytes = space.full_bytes / 3;
    options.deterministic = true; /* costs stay as they are */
    options.costs = (struct mp_costs){ TEST_THREE_EXECUTORS,
                                       .load_ns = 4000,
                                       .executors[TEST_CPU].fixed_ns = 3000,
                                       .executors[TEST_CPU].token_ns = 500,
                                       .executors[TEST_DEVICE].fixed_ns = 500,
                                       .executors[TEST_DEVICE].token_ns = 50,
                                       .layer_ns = 5000 };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        float *got;

        options.policies = (struct mp_policy_names){ .profile = "gate-lru" };
        options.policies.policy[MP_POLICY_ASSIGN] = names[i];
        got = run(&options, STEPS_EXPECTED, &counters, &space);
        check_reference(names[i], got);
        CHECK_EQ(counters.invalid_decisions, 0);
        CHECK(counters.elsewhere > 0);
        free(got);
    }
}

int main(int argc, char **argv)
{
    CHECK_EQ(argc, 2);
    find_fake();
    CHECK(npy_read(EXPECT "/b1_tokens.npy", &tokens) && npy_read(EXPECT "/b1_lens.npy", &lens));
    if (!strcmp(argv[1], "assign"))
        RUN(assign_policies_keep_to_the_reference);
    else
        every_profile_has_the_bits_of_lru((unsigned)atoi(argv[1]));
    return 0;
}
