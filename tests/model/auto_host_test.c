/*
 * Profile `auto` where the CPU computes and a disk loads: what work costs is measured while the
 * engine works, and the running comparison with static placement is one of times; in a
 * deterministic run, which must not depend on times, one of misses.
 */
#include "engine/forward/engine_int.h"
#include "policy/evict/shadow.h"
#include "tests/model/harness.h"
#include "tests/support/log_guard.h"
#include "tests/support/slow_link.h"
#include "tests/support/test.h"

#define PROMPT 8
#define STEPS 48

static void run_auto(struct harness *h, bool deterministic, struct mp_clock *clock)
{
    struct harness_options options = harness_defaults("models/tiny-moe");
    const int32_t lens[] = { PROMPT };
    int32_t tokens[PROMPT + STEPS];
    struct mp_space_plan plan;
    float *logits;

    harness_open(&options, h);
    mp_engine_plan(h->engine, &plan);
    harness_close(h);
    options.budget_bytes = plan.full_bytes / 4;
    options.policies.profile = "auto";
    options.deterministic = deterministic;
    options.clock = clock;
    options.io_mode = MP_IO_BUFFERED; /* by threads, which the slow link holds up */
    options.no_uring = true;
    harness_open(&options, h);
    for (int i = 0; i < PROMPT + STEPS; i++)
        tokens[i] = (int32_t)((7 * i + i * i) % (int)h->model.vocab);
    logits = calloc((size_t)(STEPS + 1) * h->model.vocab, sizeof(float));
    CHECK(logits != NULL);
    CHECK_EQ(harness_run(h, tokens, PROMPT + STEPS, lens, 1, STEPS, logits), MP_OK);
    free(logits);
}

/* The largest sum that the judge keeps: by how much another was cheaper, or static placement. */
static uint64_t largest_sum(const struct mp_shadow *shadow)
{
    uint64_t largest = 0;

    for (unsigned g = 0; g < MP_SHADOW_GHOSTS; g++)
        largest = shadow->lead[g] > largest ? shadow->lead[g] : largest;
    for (unsigned i = 0; i < MP_ARRAY_LEN(shadow->overrun); i++)
        largest = shadow->overrun[i] > largest ? shadow->overrun[i] : largest;
    return largest;
}

/* Can compute of a layer hide a load, on a machine as busy as was measured? */
static bool hides_a_load(const struct harness *h)
{
    const struct mp_costs *costs = &h->engine->costs;

    return costs->load_ns < costs->layer_ns + h->model.experts_per_token *
                                                  costs->executors[MP_EXECUTOR_HOME].fixed_ns;
}

/* Loads are slow, so that compute cannot hide them all: what it does not hide adds up to more than
 * all misses that there can have been. */
static void times_are_measured_and_compared(void)
{
    const struct mp_shadow *shadow;
    const struct mp_costs *costs;
    struct harness h;

    run_auto(&h, false, slow_link_clock());
    shadow = (const struct mp_shadow *)h.engine->policies.evict;
    costs = shadow->costs;
    CHECK(costs == &h.engine->costs);
    CHECK(costs->load_ns > SLOW_LINK_US * 1000u && costs->executors[MP_EXECUTOR_HOME].fixed_ns > 0);
    CHECK(costs->layer_ns > 0 && costs->predict_ns > 0);
    CHECK_EQ(costs->executor_count, 1);
    CHECK(shadow->is_placed && mp_shadow_times_known(shadow));
    CHECK(hides_a_load(&h) || largest_sum(shadow) > (uint64_t)(PROMPT + STEPS) * shadow->ids);
    harness_close(&h);
}

static void without_times_misses_are_counted(void)
{
    const struct mp_shadow *shadow;
    struct harness h;

    run_auto(&h, true, NULL);
    shadow = (const struct mp_shadow *)h.engine->policies.evict;
    CHECK(shadow->costs == NULL && shadow->is_placed);
    CHECK_EQ(h.engine->costs.load_ns + h.engine->costs.predict_ns, 0);
    CHECK(largest_sum(shadow) <= (uint64_t)(PROMPT + STEPS) * shadow->ids);
    CHECK_EQ(mp_engine_link_busy(h.engine), 0);
    harness_close(&h);
}

int main(void)
{
    mp_test_drop_log(); /* a change of the leader is logged, rightly */
    RUN(times_are_measured_and_compared);
    RUN(without_times_misses_are_counted);
    return 0;
}
