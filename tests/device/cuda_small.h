#ifndef MP_TEST_CUDA_SMALL_H
#define MP_TEST_CUDA_SMALL_H

#include <sys/mman.h>

#include "engine/forward/engine_int.h"
#include "tests/model/harness.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/*
 * For the tests in which a CUDA device fails (the driver without one, tests/device/fakecuda): a
 * model of two layers, from opening it to the last token, and what has to hold afterwards. The
 * variant of the program says how: PART[-ADDRESSING][-RESIDENCY][-hybrid|-graphs]. One file of a
 * program includes it.
 */
#define MODEL "tests/data/models/mixtral-tiny" /* two layers */
#define SEQUENCES 2
#define STEPS 2
#define STEPS_GRAPHS 5 /* kernels, then a graph is recorded, then it is replayed */
#define STRIDE 16
#define LOGITS_MAX (SEQUENCES * (STEPS_GRAPHS + 1) * 128)

#define OUT_OF_MEMORY MP_CU_ERROR_OUT_OF_MEMORY
#define UNKNOWN MP_CU_ERROR_UNKNOWN

static const int32_t tokens[SEQUENCES][STRIDE] = { { 3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46 },
                                                   { 27, 18, 28, 18, 28, 45, 90 } };
static const int32_t lens[SEQUENCES] = { 9, 5 };

static const char *variant = "";
static uint32_t steps = STEPS;
static struct harness_options options;
static struct mp_assign_ops plan;
static float *want, got[LOGITS_MAX]; /* want: shared with children */

/* What could not be given back is reported as an error; here that is wanted. */
static void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)line;
    mp_test_expected_errors += level == MP_LOG_ERROR;
}

/* The executor that reads there; the device itself (with the same bits) where there is none. */
static uint32_t executor_that_reads(const struct mp_costs *costs, enum mp_reads reads)
{
    for (uint32_t x = 0; x < costs->executor_count; x++) {
        if (costs->executors[x].reads == reads)
            return x;
    }
    return MP_EXECUTOR_HOME;
}

/* Every expert's executor by a rule that looks at nothing else. Host memory that could not be
 * pinned is not read in place. */
static void plan_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                        uint32_t *executors)
{
    static const enum mp_reads turns[] = { MP_READS_DEVICE, MP_READS_LINK, MP_READS_HOST };

    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] =
            executor_that_reads(facts->costs, turns[(facts->experts[i] + facts->layer) % 3]);
}

static enum mp_status compute(struct harness *h, float *logits)
{
    memset(logits, 0, sizeof(got));
    return harness_run(h, tokens[0], STRIDE, lens, SEQUENCES, steps, logits);
}

static enum mp_status open_planned(struct harness *h)
{
    const enum mp_status status = harness_try_open(&options, h);

    if (status != MP_OK || options.graphs)
        return status;
    plan = *h->engine->policies.assign_ops;
    plan.assign = plan_assign;
    h->engine->policies.assign_ops = &plan;
    return MP_OK;
}

/* With graphs by the device alone, else by all three executors. */
static enum mp_status run(void)
{
    struct mp_error error;
    struct harness h;
    enum mp_status status;

    mp_error_clear();
    status = open_planned(&h);
    if (status != MP_OK)
        return status;
    status = compute(&h, got);
    error = *mp_error_last();
    harness_close(&h);
    mp_error_set(&error);
    return status;
}

static void fail_with_text(const char *what)
{
    fprintf(stderr, "%s: error[%s]: %s\n", what, mp_error_last()->code, mp_error_last()->text);
    exit(1);
}

static void make_reference(void)
{
    fake_api.reset();
    if (run() != MP_OK)
        fail_with_text("without a failure");
    memcpy(want, got, sizeof(got));
    check_nothing_lives();
}

/* What holds after a run, whatever failed. */
static void check_run(enum mp_status status, const char *what)
{
    char text[256] = "";

    /* Other libraries call the driver as they like. */
    if (fake_api.calls_too_many() > 0 && options.gemm != MP_GEMM_CUBLAS) {
        fprintf(stderr, "%s: %llu calls of a device that is known to be lost\n", what,
                (unsigned long long)fake_api.calls_too_many());
        exit(1);
    }
    if (fake_api.violations(text, sizeof(text)) > 0 ||
        (status == MP_OK && memcmp(got, want, sizeof(got)) != 0) ||
        (status != MP_OK && strncmp(mp_error_last()->code, "E_", 2) != 0)) {
        fprintf(stderr, "%s: status %d, error[%s]: %s; %s; logits %s\n", what, (int)status,
                mp_error_last()->code, mp_error_last()->text, text,
                memcmp(got, want, sizeof(got)) == 0 ? "right" : "wrong");
        exit(1);
    }
    mp_error_clear();
}

static void check_live(const char *what)
{
    struct fakecuda_live live;

    fake_api.live(&live);
    if (live.reservations + live.handles + live.mappings + live.pinned + live.allocations +
            live.contexts + live.streams + live.events + live.modules + live.graphs ==
        0)
        return;
    fprintf(stderr,
            "%s: left: %u reservations, %u handles, %u mappings, %u pinned, %u allocations, %u "
            "contexts, %u streams, %u events, %u modules, %u graphs\n",
            what, live.reservations, live.handles, live.mappings, live.pinned, live.allocations,
            live.contexts, live.streams, live.events, live.modules, live.graphs);
    exit(1);
}

static void set_options(void)
{
    options = harness_defaults(MODEL);
    options.backend = "cuda";
    options.sequences = SEQUENCES;
    options.ctx = 16;
    options.tokens_max = strstr(variant, "cublas") == NULL ? 8 : 16; /* it is for more than 8 */
    options.threads = 2;
    options.policies.profile = "lru";
    options.graphs = strstr(variant, "hybrid") == NULL;
    if (!options.graphs) { /* the next layer is run ahead of time */
        options.policies.policy[MP_POLICY_PREDICT] = "partial";
        options.policies.policy[MP_POLICY_PREFETCH] = "top";
    }
    options.residency =
        strstr(variant, "exclusive") != NULL ? MP_HOST_EXCLUSIVE : MP_HOST_INCLUSIVE;
    options.addressing =
        strstr(variant, "window") != NULL ? MP_ADDRESSING_WINDOW : MP_ADDRESSING_TABLE;
}

/* Half of what everything needs, so that units leave and come back; for graphs they stay. */
static void set_budget(void)
{
    struct mp_space_plan space;
    struct harness h;

    if (strstr(variant, "graphs") != NULL) {
        steps = STEPS_GRAPHS;
        return;
    }
    harness_open(&options, &h);
    mp_engine_plan(h.engine, &space);
    harness_close(&h);
    options.budget_bytes = (space.smallest_bytes + space.full_bytes) / 2;
    check_nothing_lives();
}

/* The machine of the variant, and its budget. */
static void begin(int argc, char **argv)
{
    if (argc > 1)
        variant = argv[1];
    mp_log_set_sink(keep_line, NULL);
    want = mmap(NULL, sizeof(got), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(want != MAP_FAILED);
    setenv("FAKECUDA_GRANULE", "4096", 1); /* else units are too small for a window */
    set_options();
}

#endif
