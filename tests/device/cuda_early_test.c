/*
 * Programmatic dependent launch on the driver without a device (tests/device/fakecuda): which
 * kernels may begin early, in graphs and where the host drives a step, that the logits have the
 * same bits, and that devices and drivers which cannot do it are left alone. That driver runs
 * kernels one after another all the same; of early ones it checks what they stand behind, and by
 * their text that they wait before they touch memory.
 */
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "tests/device/fakecuda/client.h"
#include "tests/model/harness.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define PROMPT 6
#define STEPS 5
#define TOKENS (PROMPT + STEPS)
#define LOGITS_MAX (1 << 14)

static const char *const models[] = { "tests/data/models/qwen3moe-tiny",
                                      "tests/data/models/qwen2moe-tiny",
                                      "tests/data/models/mixtral-tiny" };
static char warned[512];

static void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    if (strstr(line, "dependent") != NULL)
        snprintf(warned, sizeof(warned), "%s", line);
}

/* A prompt and further tokens, twice: the second time as graphs, if they are wanted. */
static struct fakecuda_work run(const char *model, bool graphs, bool pdl, float *logits)
{
    struct harness_options options = harness_defaults(model);
    struct fakecuda_work work;
    int32_t tokens[TOKENS];
    const int32_t len = PROMPT;
    struct harness h;

    mp_gpu_configure(&(struct mp_gpu_config){ .pdl = pdl });
    options.backend = "cuda";
    options.graphs = graphs;
    options.policies.profile = "lru";
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = 3 + 7 * i % 50;
    harness_open(&options, &h);
    CHECK((STEPS + 1) * h.model.vocab <= LOGITS_MAX);
    for (int i = 0; i < 2; i++) {
        fake_api.reset();
        if (harness_run(&h, tokens, TOKENS, &len, 1, STEPS, logits) != MP_OK) {
            fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
            exit(1);
        }
    }
    fake_api.work(&work);
    CHECK_EQ(fake_api.calls("cuGraphLaunch") > 0, graphs);
    harness_close(&h);
    check_nothing_lives();
    return work;
}

static void compare(bool graphs, bool early)
{
    static float want[LOGITS_MAX], got[LOGITS_MAX];

    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        const struct fakecuda_work before = run(models[m], graphs, false, want);
        const struct fakecuda_work work = run(models[m], graphs, true, got);

        fprintf(stderr, "    %s: %llu kernels, %llu early\n", models[m],
                (unsigned long long)work.kernels, (unsigned long long)work.early);
        CHECK_EQ(before.early, 0);
        CHECK_EQ(before.kernels, work.kernels);
        CHECK(!early ? work.early == 0 : 2 * work.early > work.kernels);
        CHECK(memcmp(want, got, sizeof(want)) == 0);
    }
}

static void graphs_have_the_same_bits(void)
{
    compare(true, true);
}

static void steps_of_the_host_have_the_same_bits(void)
{
    compare(false, true);
}

static void others_are_left_alone_and_told(void)
{
    compare(true, false);
    CHECK(strstr(warned, "needs 9.0 and 12.3, and is off") != NULL);
}

int main(int argc, char **argv)
{
    const char *variant = argc > 1 ? argv[1] : "able";

    if (strcmp(variant, "sm_89") == 0)
        setenv("FAKECUDA_CAPABILITY", "89", 1);
    if (strcmp(variant, "driver_12_2") == 0)
        setenv("FAKECUDA_VERSION", "12020", 1);
    find_fake();
    mp_log_set_sink(keep_line, NULL);
    if (strcmp(variant, "able") != 0) {
        RUN(others_are_left_alone_and_told);
        return 0;
    }
    RUN(graphs_have_the_same_bits);
    RUN(steps_of_the_host_have_the_same_bits);
    CHECK_STR(warned, "");
    return 0;
}
