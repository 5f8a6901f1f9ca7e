/*
 * The engine on a CUDA device that fails, here the driver without one (tests/device/fakecuda): a
 * model of two layers, from opening it to the last token, with memory that ends at any frame,
 * copies and kernels that fail after they were taken, machines that lack something, other
 * processes. That every place that calls the driver fails is cuda_sites_test.c.
 *
 * After each failure: a status with a code or the right output to the bit, nothing left behind, no
 * law broken; and the next run is right again.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/forward/cuda/device.h"
#include "tests/device/cuda_small.h"
#include "tests/support/tmpdir.h"

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
                                              "mp_experts_up1_bf16",
                                              "mp_experts_up8_f32",
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

/* ---- steps that are taken again */

#define AGAIN_STEPS 12u
#define REFUSED 1 /* CUDA_ERROR_INVALID_VALUE: nothing was queued */

/* The first sequence token by token, in which the n-th copy to the device is refused; the step that
 * fails for it is taken once more. Failed steps. */
static unsigned take_steps(uint64_t n, float *logits, uint64_t *copies_p)
{
    const uint8_t wanted = 1;
    unsigned failed = 0;
    struct harness h;
    uint64_t before;

    harness_open(&options, &h);
    before = fake_api.calls("cuMemcpyHtoDAsync_v2");
    fake_api.fail("cuMemcpyHtoDAsync_v2", n, REFUSED, false);
    for (uint32_t p = 0; p < AGAIN_STEPS; p++) {
        const uint32_t token = 7 * p % 96, sequence = 0;
        const struct mp_batch batch = {
            .count = 1, .token = &token, .sequence = &sequence, .position = &p, .want = &wanted
        };
        const float *now;
        enum mp_status status = mp_forward(h.engine, &batch, &now);

        if (status != MP_OK) {
            failed++;
            mp_error_clear();
            status = mp_forward(h.engine, &batch, &now);
        }
        if (status != MP_OK)
            fail_with_text("a step that is taken again");
        memcpy(logits + (size_t)p * h.model.vocab, now, h.model.vocab * sizeof(float));
    }
    *copies_p = fake_api.calls("cuMemcpyHtoDAsync_v2") - before;
    harness_close(&h);
    fake_api.reset();
    return failed;
}

/* What a step that failed has left behind (the table of a graph, for one) is not believed. */
static void a_step_that_failed_is_taken_again(void)
{
    uint64_t copies, all;
    unsigned failed = 0;

    fake_api.reset();
    CHECK_EQ(take_steps(UINT64_MAX, want, &all), 0);
    for (uint64_t n = 0; n < all; n++) {
        char what[64];

        memset(got, 0, sizeof(got));
        failed += take_steps(n, got, &copies);
        snprintf(what, sizeof(what), "copy %llu is refused", (unsigned long long)n);
        check_run(MP_OK, what);
        check_live(what);
    }
    fprintf(stderr, "    %llu copies, %u failed steps\n", (unsigned long long)all, failed);
    CHECK(failed > AGAIN_STEPS);
}

/* Errors that an earlier call left are returned by any later one. */
static void an_error_left_by_another_call_is_reported(void)
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

/* ---- a device that is lost */

/* All but the driver's words for results. */
static uint64_t device_calls(void)
{
    return fake_api.calls(NULL) - fake_api.calls("cuGetErrorName") -
           fake_api.calls("cuGetErrorString");
}

/* Whoever learns of it, nobody calls the device any more: neither who computes nor who moves
 * experts, also while both end. */
static void a_lost_device_is_left_alone_by_all(void)
{
    struct harness h;
    struct mp_frame frame;
    uint64_t calls;

    for (unsigned side = 0; side < 2; side++) {
        uint64_t free_bytes, total_bytes;
        enum mp_status status;

        harness_open(&options, &h);
        mp_space_wait_filled(h.engine->space);
        mp_pager_settle(h.engine->pager);
        fake_api.lose(719);
        status = side == 0
                     ? mp_gpu_finish(h.engine->device->gpu, mp_device_stream(h.engine->device))
                     : h.engine->backend->ops->memory_info(h.engine->backend, MP_TIER_DEVICE,
                                                           &free_bytes, &total_bytes);
        CHECK_EQ(status, MP_ERR_DEVICE);
        calls = device_calls();
        CHECK_EQ(mp_gpu_finish(h.engine->device->gpu, mp_device_stream(h.engine->device)),
                 MP_ERR_DEVICE);
        CHECK(strstr(mp_error_last()->text, "an earlier call") != NULL);
        CHECK_EQ(h.engine->backend->ops->frame_create(h.engine->backend, MP_TIER_DEVICE,
                                                      h.engine->backend->caps.granule_bytes,
                                                      &frame),
                 MP_ERR_DEVICE);
        CHECK(strstr(mp_error_last()->text, "an earlier call") != NULL);
        CHECK_EQ(compute(&h, got), MP_ERR_DEVICE);
        harness_close(&h);
        CHECK_EQ(device_calls(), calls);
        fake_api.lose(0);
        fake_api.clear();
    }
    harness_open(&options, &h); /* opened anew, it is there */
    CHECK_EQ(compute(&h, got), MP_OK);
    harness_close(&h);
    check_nothing_lives();
}

static void a_lost_device_ends_the_run_with_its_name(void)
{
    struct harness h;
    uint64_t calls;

    harness_open(&options, &h);
    CHECK_EQ(compute(&h, got), MP_OK);
    fake_api.lose(700);
    CHECK_EQ(compute(&h, got), MP_ERR_DEVICE);
    CHECK_STR(mp_error_last()->code, "E_CUDA");
    CHECK_EQ(compute(&h, got), MP_ERR_DEVICE);
    CHECK(strstr(mp_error_last()->text, "opened anew") != NULL);
    calls = device_calls();
    harness_close(&h);
    CHECK_EQ(device_calls(), calls);
    fake_api.lose(0);
    fake_api.clear();
    check_nothing_lives();
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

static void it_works_here(const char *machine)
{
    make_reference();
    CHECK(fake_api.calls("cuLaunchKernel") > 10);
    fprintf(stderr, "    %s\n", machine);
}

/* variant: PART[-ADDRESSING][-RESIDENCY][-hybrid|-graphs] */
int main(int argc, char **argv)
{
    begin(argc, argv);
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
    if (strncmp(variant, "memory", 6) == 0) {
        RUN(memory_ends_anywhere);
    } else if (strncmp(variant, "later", 5) == 0) {
        RUN(what_was_taken_fails_later);
        RUN(an_error_left_by_another_call_is_reported);
    } else if (strncmp(variant, "again", 5) == 0) {
        RUN(a_step_that_failed_is_taken_again);
    } else if (strncmp(variant, "lost", 4) == 0) {
        RUN(a_lost_device_ends_the_run_with_its_name);
        RUN(a_lost_device_is_left_alone_by_all);
    } else if (strncmp(variant, "pause", 5) == 0) {
        RUN(a_device_that_pauses_changes_nothing);
        RUN(children_change_nothing);
    } else {
        it_works_here(variant);
    }
    return 0;
}
