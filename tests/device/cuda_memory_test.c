/*
 * The engine on tiny-moe, on the CUDA driver without a device, where memory is not as it should be.
 * Variants:
 *
 *     inclusive, exclusive  memory cannot be registered: the logits are those of a machine that
 *                           pins, to the bit
 *     lost                  the driver does not take frames back: their bytes are counted
 */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/forward/engine_int.h"
#include "tests/model/harness.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define MODEL "models/tiny-moe"
#define STEPS 6
#define LOGITS_MAX ((STEPS + 1) * 4096)

static const int32_t tokens[] = { 3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79 };
static const int32_t lens[] = { 9 };

struct shared {
    uint64_t budget_bytes;
    uint32_t count; /* of logits */
    float want[LOGITS_MAX];
};

static struct shared *shared;
static float got[LOGITS_MAX];
static unsigned warnings; /* about memory that is not pinned */

static void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    mp_test_expected_errors += level == MP_LOG_ERROR;
    warnings += strstr(line, "host memory is not pinned") != NULL;
}

static struct harness_options options_for(const char *variant)
{
    struct harness_options options = harness_defaults(MODEL);

    options.backend = "cuda";
    options.ctx = 32;
    options.tokens_max = 16;
    options.policies.profile = "lru";
    options.budget_bytes = shared->budget_bytes;
    options.residency = strcmp(variant, "exclusive") == 0 ? MP_HOST_EXCLUSIVE : MP_HOST_INCLUSIVE;
    return options;
}

static void compute(struct harness *h, float *logits)
{
    CHECK((STEPS + 1) * h->model.vocab <= LOGITS_MAX);
    CHECK_EQ(harness_run(h, tokens, sizeof(tokens) / sizeof(tokens[0]), lens, 1, STEPS, logits),
             MP_OK);
}

/* In a child, which has a driver of its own: half of all experts fit, and memory is pinned. */
static void make_reference(const char *variant)
{
    struct harness_options options = options_for(variant);
    struct mp_space_plan plan;
    struct harness h;

    find_fake();
    harness_open(&options, &h);
    mp_engine_plan(h.engine, &plan);
    harness_close(&h);
    options.budget_bytes = shared->budget_bytes = (plan.smallest_bytes + plan.full_bytes) / 2;
    harness_open(&options, &h);
    compute(&h, shared->want);
    shared->count = (STEPS + 1) * h.model.vocab;
    CHECK(mp_engine_lost_bytes(h.engine) == 0);
    harness_close(&h);
    check_nothing_lives();
}

static void unpinned_memory_gives_the_same_bits(const char *variant)
{
    const pid_t child = fork();
    struct harness_options options;
    struct harness h;
    int status = 0;

    CHECK(child >= 0);
    if (child == 0) {
        make_reference(variant);
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    setenv("FAKECUDA_HOST_NUMA", "0", 1);
    setenv("FAKECUDA_REGISTER", "0", 1);
    find_fake();
    options = options_for(variant);
    harness_open(&options, &h);
    CHECK_EQ(warnings, 1);
    compute(&h, got);
    CHECK(memcmp(got, shared->want, shared->count * sizeof(float)) == 0);
    CHECK(mp_engine_counters(h.engine)->evictions > 0);
    harness_close(&h);
    CHECK_EQ(warnings, 1);
    check_nothing_lives();
}

static void bytes_that_stay_with_the_driver_are_counted(void)
{
    struct harness_options options = options_for("inclusive");
    struct mp_space_plan plan;
    struct harness h;

    find_fake();
    harness_open(&options, &h);
    mp_engine_plan(h.engine, &plan);
    compute(&h, got);
    CHECK_EQ(mp_engine_lost_bytes(h.engine), 0);
    fake_api.fail("cuMemRelease", 0, MP_CU_ERROR_UNKNOWN, false);
    CHECK_EQ(mp_pager_set_budget(mp_engine_pager(h.engine), plan.smallest_bytes), MP_OK);
    CHECK(mp_engine_lost_bytes(h.engine) > 0);
    CHECK(mp_engine_lost_bytes(h.engine) < plan.full_bytes);
    harness_close(&h);
}

int main(int argc, char **argv)
{
    const char *variant = argc > 1 ? argv[1] : "inclusive";

    mp_log_set_sink(keep_line, NULL);
    setenv("FAKECUDA_GRANULE", "65536", 1);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    shared->budget_bytes = UINT64_MAX;
    if (strcmp(variant, "lost") == 0) {
        RUN(bytes_that_stay_with_the_driver_are_counted);
        return 0;
    }
    unpinned_memory_gives_the_same_bits(variant);
    return 0;
}
