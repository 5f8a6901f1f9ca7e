/*
 * Memory of a device that experts cannot have: what the driver takes for a context
 * (tests/device/fakecuda, FAKECUDA_CONTEXT), and what cuBLAS takes for a handle besides the
 * workspace that it is given (tests/device/fakecublas, FAKECUBLAS_MEMORY), which no plan knows. An
 * automatic budget leaves room for both; where one that is given does not, the project's kernels
 * multiply instead of cuBLAS, or cuBLAS, if it was asked for, is refused by name. And what the
 * driver keeps for graphs (FAKECUDA_NODE): as much as the plan assumes, or three times of it, and
 * then there are fewer graphs.
 */
#include <string.h>

#include "engine/forward/cuda/device_graph.h"
#include "engine/forward/engine_int.h"
#include "engine/session/generate.h"
#include "engine/session/memory_plan.h"
#include "engine/session/session.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define MODEL "models/tiny-moe"
#define MIB (UINT64_C(1) << 20)
#define CONTEXT (400 * MIB)
#define HANDLE (24 * MIB) /* each of two streams has one */

static struct mp_settings settings;
static uint32_t sequences = 1;
static char warning[1024], without[1024];

static void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    mp_test_expected_errors += level == MP_LOG_ERROR;
    if (level == MP_LOG_WARN)
        snprintf(warning, sizeof(warning), "%s", line);
    if (level == MP_LOG_INFO && strstr(line, "own kernels multiply instead") != NULL)
        snprintf(without, sizeof(without), "%s", line);
}

static enum mp_status try_session(struct mp_share budget, enum mp_gemm_choice gemm,
                                  struct mp_session *session)
{
    const struct mp_session_config config = { .model = MODEL,
                                              .sequences = sequences,
                                              .clock = mp_clock_monotonic() };

    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    snprintf(settings.run.device, sizeof(settings.run.device), "cuda");
    snprintf(settings.run.profile, sizeof(settings.run.profile), "lru");
    snprintf(settings.run.cache_dir, sizeof(settings.run.cache_dir), "none");
    settings.run.ctx = 64;
    settings.run.prefill_tokens = 32;
    settings.run.budget = budget;
    settings.gemm.choice = gemm;
    settings.run.probe = MP_PROBE_OFF;
    settings.pool.threads = 2;
    return mp_session_open(&settings, &config, session);
}

/* With a prompt of enough tokens for cuBLAS. */
static void generate(struct mp_session *session, uint32_t tokens)
{
    static uint32_t ids[24];
    const struct mp_ids prompt = { .ids = ids, .count = MP_ARRAY_LEN(ids) };
    const struct mp_generate_config config = {
        .engine = session->engine,
        .engine_config = &session->engine_config,
        .sampling = { .temperature = 0, .top_p = 1 },
        .max_tokens = tokens,
        .ignore_eos = true,
        .clock = mp_clock_monotonic(),
    };
    struct mp_output output = { 0 };
    struct mp_generate_stats stats;

    for (uint32_t i = 0; i < MP_ARRAY_LEN(ids); i++)
        ids[i] = 3 + i * 37 % 90;
    CHECK_EQ(mp_generate(&config, &prompt, 1, &output, &stats), MP_OK);
    mp_outputs_free(&output, 1);
}

static uint64_t free_bytes(const struct mp_session *session)
{
    struct mp_gpu *gpu = session->engine->device->gpu;
    size_t free, total;

    CHECK_EQ(mp_gpu_enter(gpu), MP_OK);
    CHECK_EQ(mp_gpu_driver(gpu)->call.memory_info(&free, &total), MP_CU_SUCCESS);
    return free;
}

/* The plan asks while there is a context, so that is not counted as free; what handles take comes
 * out of the margin, to the byte. */
static void an_automatic_budget_leaves_room_for_handles(void)
{
    struct mp_session session;
    const struct mp_memory_plan *m = &session.memory;
    uint64_t margin, left;

    CHECK_EQ(try_session((struct mp_share){ .kind = MP_SHARE_AUTO }, MP_GEMM_AUTO, &session),
             MP_OK);
    CHECK_EQ(m->device_free_bytes, m->device_total_bytes - CONTEXT);
    CHECK(m->smallest_bytes < m->budget_bytes && m->budget_bytes < m->full_bytes);
    generate(&session, 2);
    margin = mp_memory_device_margin(m->device_total_bytes);
    left = free_bytes(&session);
    printf("    budget %llu of %llu, margin %llu, left %llu\n", (unsigned long long)m->budget_bytes,
           (unsigned long long)m->full_bytes, (unsigned long long)margin, (unsigned long long)left);
    CHECK(margin <= left + 2 * HANDLE);
    CHECK(left + 2 * HANDLE <= margin + session.engine->device->graphs->driver_bytes_max + 2 * MIB);
    CHECK_STR(warning, "");
    mp_session_close(&session);
    check_nothing_lives();
}

/* Two handles that take all of the device but less than the experts are given. */
static void a_given_budget_goes_before_handles(void)
{
    const struct mp_share all = { .kind = MP_SHARE_PPM, .amount = 1000000 };
    struct mp_session session;

    CHECK_EQ(setenv("FAKECUBLAS_MEMORY", "83886080", 1), 0);
    CHECK_STR(without, "");
    CHECK_EQ(try_session(all, MP_GEMM_AUTO, &session), MP_OK);
    CHECK_EQ(session.memory.budget_bytes, session.memory.full_bytes);
    CHECK_STR(mp_gemm_name(session.engine->device->gemm), "own");
    CHECK(strstr(without, "cuBLAS leaves ") != NULL);
    generate(&session, 2);
    mp_session_close(&session);
    check_nothing_lives();

    CHECK_EQ(try_session(all, MP_GEMM_CUBLAS, &session), MP_ERR_NO_MEMORY);
    CHECK_STR(mp_error_last()->code, "E_DEVICE_ROOM");
    CHECK(strstr(mp_error_last()->text, "--cuda-gemm own") != NULL);
    check_nothing_lives();
}

/* Steps with misses, whose rest becomes graphs, too; returns how many. The margin stays free, and
 * what graphs take is what the driver says. */
static uint32_t fill_with_graphs(void)
{
    const struct mp_device_graphs *g;
    struct mp_session session;
    uint64_t margin, left;
    uint32_t captured;

    CHECK_EQ(try_session((struct mp_share){ .kind = MP_SHARE_AUTO }, MP_GEMM_OWN, &session), MP_OK);
    CHECK(session.memory.budget_bytes < session.memory.full_bytes);
    generate(&session, 24);
    g = session.engine->device->graphs;
    if (sequences > 1) /* a step of two tokens is still to come */
        CHECK(g->driver_bytes + g->largest_bytes <= g->driver_bytes_max);
    captured = g->captured;
    margin = mp_memory_device_margin(session.memory.device_total_bytes);
    left = free_bytes(&session);
    printf(
        "    budget %llu of %llu, margin %llu, left %llu; %u graphs behind misses, %llu bytes of "
        "%llu, the largest %llu\n",
        (unsigned long long)session.memory.budget_bytes,
        (unsigned long long)session.memory.full_bytes, (unsigned long long)margin,
        (unsigned long long)left, captured, (unsigned long long)g->driver_bytes,
        (unsigned long long)g->driver_bytes_max, (unsigned long long)g->largest_bytes);
    CHECK(margin <= left);
    CHECK(g->driver_bytes > 0 && g->driver_bytes <= g->driver_bytes_max);
    mp_session_close(&session);
    check_nothing_lives();
    return captured;
}

static void graphs_have_the_room_that_is_planned(void)
{
    CHECK(fill_with_graphs() > 1);
}

static void larger_graphs_are_fewer(void)
{
    CHECK_EQ(fill_with_graphs(), 1);
}

/* The steps of one sequence leave room for those of two, which come later. */
static void whole_steps_go_before_what_is_behind_misses(void)
{
    sequences = 2;
    CHECK_EQ(fill_with_graphs(), 0); /* there is room for two and a half */
}

int main(int argc, char **argv)
{
    const char *variant = argc > 1 ? argv[1] : "auto";
    const bool handles = strcmp(variant, "auto") == 0;
    const struct mp_log_config log = { .levels = "info" };

    CHECK_EQ(mp_log_init(&log), 0);
    mp_log_set_sink(keep_line, NULL);
    CHECK_EQ(setenv("FAKECUDA_GRANULE", "65536", 1), 0);
    CHECK_EQ(setenv("FAKECUDA_MEMORY", handles ? "671088640" : "587202560", 1),
             0); /* 640, 560 MiB */
    CHECK_EQ(setenv("FAKECUDA_CONTEXT", "419430400", 1), 0);
    CHECK_EQ(setenv("FAKECUBLAS_MEMORY", "25165824", 1), 0);
    if (!handles)
        CHECK_EQ(setenv("FAKECUDA_NODE",
                        strcmp(variant, "graphs") == 0    ? "16384"
                        : strcmp(variant, "several") == 0 ? "98304"
                                                          : "49152",
                        1),
                 0);
    find_fake();
    if (handles) {
        RUN(an_automatic_budget_leaves_room_for_handles);
        RUN(a_given_budget_goes_before_handles);
    } else if (strcmp(variant, "graphs") == 0) {
        RUN(graphs_have_the_room_that_is_planned);
    } else if (strcmp(variant, "several") == 0) {
        RUN(whole_steps_go_before_what_is_behind_misses);
    } else {
        RUN(larger_graphs_are_fewer);
    }
    return 0;
}
