/*
 * The engine on a CUDA device that fails, here the driver without one (tests/fakecuda): a model of
 * two layers, from opening it to the last token, with every call of the driver failed at every
 * place that makes it, memory that ends at any frame, copies and kernels that fail after they were
 * taken, machines that lack something, other processes.
 *
 * After each failure: a status with a code or the right output to the bit, nothing left behind, no
 * law broken; and the next run is right again.
 */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/engine_int.h"
#include "tests/engine/harness.h"
#include "tests/fakecublas/client.h"
#include "tests/fakecuda/client.h"
#include "tests/log_guard.h"
#include "tests/test.h"
#include "tests/tmpdir.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

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

static const char *variant = "sites";
static uint32_t steps = STEPS;
static struct harness_options options;
static struct mp_assign_ops plan;
static float *want, got[LOGITS_MAX]; /* want: shared with children */

/* What could not be given back is told as an error; here that is wanted. */
static void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)line;
    mp_test_expected_errors += level == MP_LOG_ERROR;
}

/* Every expert's executor by a rule that looks at nothing else. */
static void plan_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                        enum mp_executor *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = (enum mp_executor)((facts->experts[i] + facts->layer) % MP_EXECUTOR_COUNT);
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

/* ---- every place that calls the driver */

#define SITES_MAX 1024

/* How a place fails: its first call, all from then on, the first and then whatever gives something
 * back, and with a result after which the device is lost. */
enum mode { ONCE, ALWAYS, UNDO_TOO, LOST, MODE_COUNT };

static const char *const mode_names[MODE_COUNT] = { "once", "always", "once, its undo too",
                                                    "with a lost device" };

static struct fakecuda_site before[SITES_MAX], after[SITES_MAX];

/* How a place was first reached: when place `site` failed so; site -1: without a failure. */
static struct {
    int site;
    enum mode mode;
} way_to[SITES_MAX];

static bool allocates(const char *call)
{
    return strcmp(call, "cuMemCreate") == 0 || strstr(call, "Alloc") != NULL;
}

/* They are made once in a process, before any test. */
static bool is_of_start(const char *call)
{
    return strcmp(call, "cuInit") == 0 || strcmp(call, "cuDriverGetVersion") == 0 ||
           strcmp(call, "cuDeviceGetCount") == 0;
}

static bool gives_back(const char *call)
{
    return strstr(call, "Free") != NULL || strstr(call, "Destroy") != NULL ||
           strstr(call, "Release") != NULL || strstr(call, "Unmap") != NULL ||
           strstr(call, "Unload") != NULL || strstr(call, "Unregister") != NULL;
}

/* What nobody can see the end of is never safe to touch: then the device is lost. */
static bool waits(const char *call)
{
    return strstr(call, "Synchronize") != NULL || strstr(call, "Query") != NULL;
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

/* The failure of a place, and before it those that lead there. */
static void plan_site(unsigned site, enum mode mode)
{
    const int result = mode == LOST                   ? MP_CU_ERROR_LAUNCH_FAILED
                       : allocates(before[site].call) ? OUT_OF_MEMORY
                                                      : UNKNOWN;

    if (way_to[site].site >= 0)
        plan_site((unsigned)way_to[site].site, way_to[site].mode);
    fake_api.fail_site(before[site].address, 0, result, mode == ALWAYS);
    if (mode == UNDO_TOO)
        fake_api.fail_undo(UNKNOWN);
}

/* False: the place was not reached. */
static bool fail_site(unsigned site, enum mode mode)
{
    const char *call = before[site].call;
    char what[256];
    enum mp_status status;

    snprintf(what, sizeof(what), "place %u, %s at %p, %s", site, call, before[site].address,
             mode_names[mode]);
    fake_api.sites(before, SITES_MAX);
    fake_api.reset();
    plan_site(site, mode);
    alarm(300);
    status = run();
    alarm(0);
    check_run(status, what);
    /* A lost device is left alone: its process has to end. Who never gets the context cannot give
     * anything back either. */
    if (mode != UNDO_TOO && mode != LOST && !gives_back(call) && way_to[site].site < 0 &&
        !(mode == ALWAYS && strcmp(call, "cuCtxSetCurrent") == 0))
        check_live(what);
    fake_api.clear();
    fake_api.sites(after, SITES_MAX);
    return after[site].failed > before[site].failed;
}

/* From place `first` on. The first call of a thread sets its context, and which place that is
 * depends on which thread came first to what has failed: one such place may be met by chance, and
 * not again in three tries. All others have to fail. */
static void fail_every_site(unsigned first)
{
    unsigned count, missed = 0;

    make_reference();
    count = fake_api.sites(before, SITES_MAX);
    memset(way_to, 0xff, sizeof(way_to));
    for (unsigned s = first; s < count; s++) {
        const char *call = before[s].call;
        bool reached = true;

        if (is_of_start(call))
            continue;
        for (enum mode mode = ONCE; mode < MODE_COUNT && reached; mode++) {
            if (mode == ALWAYS && waits(call))
                continue;
            reached = false;
            for (unsigned t = 0; t < 3 && !reached; t++) /* threads may take another way */
                reached = fail_site(s, mode);
            /* Failures have led to new places. */
            for (unsigned n = fake_api.sites(before, SITES_MAX); count < n; count++) {
                way_to[count].site = (int)s;
                way_to[count].mode = mode;
            }
        }
        if (!reached && before[s].failed == 0) {
            fprintf(stderr, "place %u, %s, was not reached again: place %d, %s, led there\n", s,
                    call, way_to[s].site,
                    way_to[s].site >= 0 ? mode_names[way_to[s].mode] : "no failure");
            CHECK_STR(call, "cuCtxSetCurrent");
            missed++;
        }
    }
    fprintf(stderr, "    %u places, %u not failed\n", count - first, missed);
    CHECK(count > first && missed <= 2);
    CHECK_EQ(run(), MP_OK); /* and it still works */
    check_run(MP_OK, "afterwards");
    check_nothing_lives();
}

/* For tests/engine/cuda_sites.py, beside this program: call and address in it of each place that
 * failed. */
static void tell_sites(void)
{
    char exe[4096], path[4200];
    const ssize_t length = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    const unsigned count = fake_api.sites(after, SITES_MAX);
    FILE *file;

    CHECK(length > 0);
    exe[length] = '\0';
    snprintf(path, sizeof(path), "%s.%s", exe, variant);
    file = fopen(path, "w");
    CHECK(file != NULL);
    for (unsigned s = 0; s < count; s++) {
        Dl_info info;

        CHECK(dladdr(after[s].address, &info) != 0);
        if (after[s].failed > 0)
            fprintf(file, "%s %zx\n", after[s].call,
                    (size_t)((const char *)after[s].address - (const char *)info.dli_fbase));
    }
    CHECK_EQ(fclose(file), 0);
}

static void every_place_that_calls_the_driver_fails(void)
{
    fail_every_site(0);
    tell_sites();
}

/* ---- cuBLAS */

/* Calls of cuBLAS fail, the k-th of its kind for every k; then the places where the library itself
 * calls the driver. */
static void every_call_of_cublas_fails(void)
{
    static const char *const calls[] = { "cublasCreate",       "cublasSetStream",
                                         "cublasSetWorkspace", "cublasGetVersion",
                                         "cublasGemmEx",       "cublasDestroy" };
    unsigned first, failed = 0, products = 0;

    make_reference();
    first = fake_api.sites(before, SITES_MAX);
    options.gemm = MP_GEMM_CUBLAS;
    make_reference();
    for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
        for (unsigned k = 0;; k++) {
            const bool gives_back_only = strcmp(calls[c], "cublasDestroy") == 0;
            enum mp_status status;
            char what[64];

            snprintf(what, sizeof(what), "%s number %u", calls[c], k);
            (void)fake_cublas_fail(calls[c], k, 13);
            status = run();
            if (!fake_cublas_fail("", 0, 0)) {
                check_run(status, what); /* that many calls are not made */
                break;
            }
            if (gives_back_only
                    ? status != MP_OK
                    : status != MP_ERR_DEVICE || strcmp(mp_error_last()->code, "E_CUBLAS") != 0 ||
                          strstr(mp_error_last()->text, calls[c]) == NULL)
                fail_with_text(what);
            check_run(status, what);
            check_live(what);
            failed++;
            products += strcmp(calls[c], "cublasGemmEx") == 0;
        }
    }
    fprintf(stderr, "    %u calls failed, %u of them products\n", failed, products);
    CHECK(products >= 8); /* four in each layer */
    fail_every_site(first);
}

/* Left to itself the engine does without a library that does not start, and gives its own bits. */
static void without_cublas_its_own_kernels_multiply(void)
{
    static const char *const calls[] = { "cublasCreate", "cublasSetStream", "cublasSetWorkspace",
                                         "cublasGetVersion" };

    options.gemm = MP_GEMM_OWN;
    make_reference();
    options.gemm = MP_GEMM_AUTO;
    for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
        (void)fake_cublas_fail(calls[c], 0, 1);
        CHECK_EQ(run(), MP_OK);
        CHECK(fake_cublas_fail("", 0, 0));
        check_run(MP_OK, calls[c]);
        check_nothing_lives();
    }
}

/* ---- memory that ends */

/* D1: out of memory at the k-th call of its kind, for every k. */
static void memory_ends_anywhere(void)
{
    static const char *const calls[] = { "cuMemCreate", "cuMemAlloc_v2", "cuMemHostAlloc" };
    unsigned failed = 0;

    make_reference();
    for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
        for (uint64_t k = 0;; k++) {
            char what[64];
            enum mp_status status;
            uint64_t made;

            fake_api.reset();
            fake_api.fail(calls[c], k, OUT_OF_MEMORY, true);
            status = run();
            made = fake_api.calls(calls[c]);
            snprintf(what, sizeof(what), "%s fails from number %llu on", calls[c],
                     (unsigned long long)k);
            failed += status != MP_OK;
            if (status != MP_OK && status != MP_ERR_NO_SPACE && status != MP_ERR_CONFIG)
                fail_with_text(what);
            check_run(status, what);
            check_live(what);
            if (made <= k)
                break;
        }
    }
    CHECK(failed > 20);
    fake_api.reset();
}

/* ---- what fails after it was taken (D8) */

static void what_was_taken_fails_later(void)
{
    static const char *const operations[] = { "cuMemcpyHtoDAsync_v2",
                                              "cuMemcpyDtoHAsync_v2",
                                              "cuMemcpyDtoDAsync_v2",
                                              "cuMemsetD8Async",
                                              "mp_experts_up_bf16",
                                              "mp_experts_up_f32",
                                              "mp_rmsnorm" };
    unsigned failed = 0;

    make_reference();
    for (size_t o = 0; o < sizeof(operations) / sizeof(operations[0]); o++) {
        for (uint64_t k = 0, wrong = 0; wrong < 2; k += k < 8 ? 1 : 5) {
            char name[64], what[96];
            enum mp_status status;
            struct harness h;

            snprintf(name, sizeof(name), "later:%s", operations[o]);
            snprintf(what, sizeof(what), "%s number %llu fails later", operations[o],
                     (unsigned long long)k);
            fake_api.reset();
            fake_api.fail(name, k, UNKNOWN, false);
            mp_error_clear();
            status = open_planned(&h);
            if (status == MP_OK) {
                status = compute(&h, got);
                check_run(status, what);
                fake_api.reset();
                if (compute(&h, got) != MP_OK || memcmp(got, want, sizeof(got)) != 0)
                    fail_with_text("the run after the failure");
                harness_close(&h);
            } else {
                check_run(status, what);
            }
            failed += status != MP_OK;
            wrong += status == MP_OK; /* was not reached, or does not matter */
            check_live(what);
        }
    }
    CHECK(failed > 20);
    fake_api.reset();
}

/* Errors that an earlier call left are returned by any later one. */
static void an_error_left_by_another_call_is_told(void)
{
    uint64_t calls;
    unsigned failed = 0;

    make_reference();
    fake_api.reset();
    CHECK_EQ(run(), MP_OK);
    calls = fake_api.calls(NULL);
    for (uint64_t n = 0; n < calls; n += 1 + calls / 60) {
        char what[64];

        fake_api.reset();
        fake_api.fail(NULL, n, MP_CU_ERROR_ILLEGAL_ADDRESS, false);
        snprintf(what, sizeof(what), "call %llu says that the device is lost",
                 (unsigned long long)n);
        const enum mp_status status = run();

        failed += status != MP_OK;
        check_run(status, what);
        fake_api.clear();
    }
    CHECK(failed > 30);
}

/* ---- time and other processes */

/* D7: nothing moves for a while, then it does. */
static void *let_go(void *ctx)
{
    const struct timespec time = { 0, 300000000 };

    nanosleep(&time, NULL);
    fake_api.stall(false);
    return ctx;
}

static void a_device_that_pauses_changes_nothing(void)
{
    pthread_t thread;

    make_reference();
    fake_api.stall(true);
    CHECK_EQ(pthread_create(&thread, NULL, let_go, NULL), 0);
    CHECK_EQ(run(), MP_OK);
    check_run(MP_OK, "a pause");
    CHECK_EQ(pthread_join(thread, NULL), 0);
    check_nothing_lives();
}

/* Children of fork() come and go under a working device. */
static void children_change_nothing(void)
{
    struct harness h;
    pid_t children[8];

    make_reference();
    CHECK_EQ(open_planned(&h), MP_OK);
    for (unsigned i = 0; i < 8; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0)
            _exit(cu.stream_create(&(mp_cu_stream){ NULL }, 1, 0) == MP_CU_ERROR_NOT_INITIALIZED
                      ? 0
                      : 1);
        CHECK_EQ(compute(&h, got), MP_OK);
        check_run(MP_OK, "with children");
    }
    for (unsigned i = 0; i < 8; i++) {
        int status = 0;

        CHECK_EQ(waitpid(children[i], &status, 0), children[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    harness_close(&h);
    check_nothing_lives();
}

/* D15: one of two processes that race for the last memory may be refused; none is wrong. */
static void processes_race_for_memory(void)
{
    unsigned right = 0, refused = 0, refused_now = 0;
    char path[4200], memory[32];
    pid_t children[2];

    snprintf(path, sizeof(path), "%s/device", test_tmpdir());
    setenv("FAKECUDA_SHARED", path, 1);
    children[0] = fork(); /* alone: what is right */
    CHECK(children[0] >= 0);
    if (children[0] == 0) {
        find_fake();
        make_reference();
        _exit(0);
    }
    CHECK_EQ(waitpid(children[0], NULL, 0), children[0]);
    for (unsigned bytes = 8u << 20; refused_now < 2; bytes -= bytes / 6) {
        snprintf(memory, sizeof(memory), "%u", bytes);
        refused_now = 0;
        setenv("FAKECUDA_MEMORY", memory, 1);
        for (unsigned i = 0; i < 2; i++) {
            children[i] = fork();
            CHECK(children[i] >= 0);
            if (children[i] > 0)
                continue;
            find_fake();
            const enum mp_status status = run();

            check_run(status, "beside another process");
            check_live("beside another process");
            _exit(status == MP_OK                                        ? 0
                  : status == MP_ERR_NO_SPACE || status == MP_ERR_CONFIG ? 2
                                                                         : 1);
        }
        for (unsigned i = 0; i < 2; i++) {
            int status = 0;

            CHECK_EQ(waitpid(children[i], &status, 0), children[i]);
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) != 1);
            right += WEXITSTATUS(status) == 0;
            refused_now += WEXITSTATUS(status) == 2;
        }
        refused += refused_now;
    }
    fprintf(stderr, "    %u were right, %u were refused\n", right, refused);
    CHECK(right >= 4 && refused >= 2);
}

/* ---- machines */

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
        options.policies.policy[MP_SLOT_PREDICT] = "partial";
        options.policies.policy[MP_SLOT_PREFETCH] = "top";
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

static void it_works_here(const char *machine)
{
    make_reference();
    CHECK(fake_api.calls("cuLaunchKernel") > 10);
    fprintf(stderr, "    %s\n", machine);
}

/* variant: PART[-ADDRESSING][-RESIDENCY][-hybrid|-graphs] */
int main(int argc, char **argv)
{
    if (argc > 1)
        variant = argv[1];
    mp_log_set_sink(keep_line, NULL);
    want = mmap(NULL, sizeof(got), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(want != MAP_FAILED);
    setenv("FAKECUDA_GRANULE", "4096", 1); /* else units are too small for a window */
    set_options();
    if (strncmp(variant, "processes", 9) == 0) {
        RUN(processes_race_for_memory);
        return 0;
    }
    if (strncmp(variant, "no_host_numa", 12) == 0)
        setenv("FAKECUDA_HOST_NUMA", "0", 1);
    if (strncmp(variant, "numa_id_unknown", 15) == 0)
        setenv("FAKECUDA_NUMA_ID", "-1", 1);
    find_fake();
    set_budget();
    if (strncmp(variant, "sites", 5) == 0) {
        RUN(every_place_that_calls_the_driver_fails);
    } else if (strncmp(variant, "cublas", 6) == 0) {
        RUN(every_call_of_cublas_fails);
        RUN(without_cublas_its_own_kernels_multiply);
    } else if (strncmp(variant, "memory", 6) == 0) {
        RUN(memory_ends_anywhere);
    } else if (strncmp(variant, "later", 5) == 0) {
        RUN(what_was_taken_fails_later);
        RUN(an_error_left_by_another_call_is_told);
    } else if (strncmp(variant, "pause", 5) == 0) {
        RUN(a_device_that_pauses_changes_nothing);
        RUN(children_change_nothing);
    } else {
        it_works_here(variant);
    }
    return 0;
}
