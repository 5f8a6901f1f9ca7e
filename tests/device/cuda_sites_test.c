/*
 * Every place of the source that calls the CUDA driver fails, here the driver without a device
 * (tests/device/fakecuda), in a whole run of a small model: once, from then on, with its undo
 * failing too, with the device lost. The same for the calls of cuBLAS (tests/device/fakecublas).
 *
 * After each failure: a status with a code or the right output to the bit, nothing left behind, no
 * law broken; and the next run is right again. Linked with all layers compiled without
 * optimisation, so that each call in the source is one place; which ones there are is for
 * tests/device/cuda_sites.py to say.
 */
#include <unistd.h>

#include "tests/device/cuda_small.h"
#include "tests/device/fakecublas/client.h"
#include "tests/support/spins.h"

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

/* With MP_FAULTS=one-way (as in tests/model/fault/engine_fault_test.c) a place fails in one way
 * only, in each variant in another one. One that another's failure leads to fails once: with its
 * undo or its device gone, the other may not lead there. */
static bool left_out(unsigned site, enum mode mode)
{
    const char *faults = getenv("MP_FAULTS");
    const bool no_always = waits(before[site].call);
    unsigned sum = site;
    enum mode turn;

    for (const char *at = variant; *at != '\0'; at++)
        sum += (unsigned char)*at; /* 0 to 3 more than `site`, in fours */
    turn = sum % MODE_COUNT;
    if ((turn == ALWAYS && no_always) || way_to[site].site >= 0)
        turn = ONCE;
    return (mode == ALWAYS && no_always) ||
           (faults != NULL && strcmp(faults, "one-way") == 0 && mode != turn);
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
            if (left_out(s, mode))
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

static void every_place_that_calls_the_driver_fails(void)
{
    fail_every_site(0);
    report_failed_sites(variant);
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

/* variant: cublas, or [table|window][-exclusive][-hybrid|-graphs]. Those with windows wait asleep,
 * the others awake: not as time will have it. Kernels of graphs begin early. */
int main(int argc, char **argv)
{
    begin(argc, argv);
    options.spin = strstr(variant, "window") != NULL ? &spin_asleep : &spin_awake;
    mp_gpu_configure(&(struct mp_gpu_config){ .pdl = strstr(variant, "graphs") != NULL });
    find_fake();
    set_budget();
    if (strcmp(variant, "cublas") == 0) {
        RUN(every_call_of_cublas_fails);
        RUN(without_cublas_its_own_kernels_multiply);
    } else {
        RUN(every_place_that_calls_the_driver_fails);
    }
    return 0;
}
