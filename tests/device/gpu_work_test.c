/*
 * Work on the device to compute on, on the driver without a device: order, graphs, shared memory,
 * and each call failing once.
 */
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "engine/gpu/gpu.h"
#include "tests/device/fakecuda/client.h"
#include "tests/device/gpu_work.h"
#include "tests/support/spins.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

/* ---- a good machine */

static void check_result(const float *got)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        const double gate = (float)i / 100 - 3;

        CHECK(fabs((double)got[i] - gate / (1 + exp(-gate)) * i) <= 1e-4 * (1 + fabs(gate * i)));
    }
}

static void a_kernel_runs_behind_what_it_was_ordered_behind(void)
{
    struct work w;

    CHECK_EQ(open_work(&w), MP_OK);
    CHECK_EQ(work_once(&w), MP_OK);
    check_result(w.here);
    close_work(&w);
    check_nothing_lives();
}

/* The same work on one stream. */
static enum mp_status work_until(struct work *w, const struct mp_spin *spin)
{
    for (uint32_t i = 0; i < COUNT; i++)
        w->here[i] = (float)i / 100 - 3;
    CHECK_EQ(mp_gpu_upload(w->gpu, w->stream, w->gate, w->here, BYTES), MP_OK);
    CHECK_EQ(mp_gpu_upload(w->gpu, w->stream, w->up, w->here + COUNT, BYTES), MP_OK);
    CHECK_EQ(queue_kernel(w, w->stream), MP_OK);
    CHECK_EQ(mp_gpu_download(w->gpu, w->stream, w->here, w->gate, BYTES), MP_OK);
    CHECK_EQ(mp_gpu_record(w->gpu, w->end, w->stream), MP_OK);
    return mp_gpu_await(w->gpu, w->end, spin);
}

static void *let_go(void *arg)
{
    while (fake_api.calls("cuEventSynchronize") == 0)
        usleep(1000);
    fake_api.stall(false);
    return arg;
}

/* Awake it asks until the work is done, asleep it never asks, and it falls asleep in time. */
static void a_wait_is_awake_as_long_as_it_may(void)
{
    static const struct mp_spin short_while = { .ns = 1000000 };
    pthread_t thread;
    struct work w;

    CHECK_EQ(open_work(&w), MP_OK);
    fake_api.reset();
    CHECK_EQ(work_until(&w, &spin_asleep), MP_OK);
    CHECK_EQ(fake_api.calls("cuEventQuery"), 0);
    CHECK_EQ(fake_api.calls("cuEventSynchronize"), 1);
    fake_api.reset();
    CHECK_EQ(work_until(&w, &spin_awake), MP_OK);
    CHECK(fake_api.calls("cuEventQuery") > 0);
    CHECK_EQ(fake_api.calls("cuEventSynchronize"), 0);
    check_result(w.here);
    fake_api.reset();
    fake_api.stall(true);
    CHECK_EQ(pthread_create(&thread, NULL, let_go, NULL), 0);
    CHECK_EQ(work_until(&w, &short_while), MP_OK);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(fake_api.calls("cuEventQuery") > 1);
    CHECK_EQ(fake_api.calls("cuEventSynchronize"), 1);
    close_work(&w);
    check_nothing_lives();
}

static void a_graph_gives_the_same_bits_each_time(void)
{
    struct work w;
    mp_cu_graph_exec graph = NULL;
    float *direct = malloc(BYTES);

    CHECK_EQ(open_work(&w), MP_OK);
    CHECK_EQ(work_once(&w), MP_OK);
    memcpy(direct, w.here, BYTES);

    CHECK_EQ(mp_gpu_capture_begin(w.gpu, w.stream), MP_OK);
    CHECK_EQ(mp_gpu_upload(w.gpu, w.stream, w.gate, w.here, BYTES), MP_OK);
    CHECK_EQ(queue_kernel(&w, w.stream), MP_OK);
    CHECK_EQ(mp_gpu_download(w.gpu, w.stream, w.here + COUNT, w.gate, BYTES), MP_OK);
    CHECK_EQ(mp_gpu_capture_end(w.gpu, w.stream, &graph), MP_OK);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < COUNT; i++)
            w.here[i] = (float)i / 100 - 3;
        memset(w.here + COUNT, 0, BYTES);
        CHECK_EQ(mp_gpu_replay(w.gpu, w.stream, graph), MP_OK);
        CHECK_EQ(mp_gpu_finish(w.gpu, w.stream), MP_OK);
        CHECK(memcmp(direct, w.here + COUNT, BYTES) == 0);
    }
    mp_gpu_graph_close(w.gpu, graph);
    mp_gpu_graph_close(w.gpu, NULL);
    free(direct);
    close_work(&w);
    check_nothing_lives();
}

static void nothing_is_queued_for_no_work(void)
{
    const struct mp_cuda_silu_mul params = { .gate = 0, .up = 0, .count = 0 };
    struct work w;
    uint64_t before;

    CHECK_EQ(open_work(&w), MP_OK);
    before = fake_api.calls("cuLaunchKernel");
    CHECK_EQ(mp_gpu_launch(w.gpu, w.stream, MP_CUDA_KERNEL_silu_mul, &params), MP_OK);
    CHECK_EQ(mp_gpu_upload(w.gpu, w.stream, w.gate, w.here, 0), MP_OK);
    CHECK_EQ(fake_api.calls("cuLaunchKernel"), before);
    close_work(&w);
    check_nothing_lives();
}

/* Calls that take something back are left out: what they fail to take back stays. */
static void each_call_of_work_fails_once(void)
{
    static const char *const names[] = {
        "cuCtxGetCurrent",      "cuMemAlloc_v2",        "cuMemsetD8Async",
        "cuStreamSynchronize",  "cuMemHostAlloc",       "cuStreamCreateWithPriority",
        "cuEventCreate",        "cuEventRecord",        "cuStreamWaitEvent",
        "cuLaunchKernel",       "cuEventQuery",         "cuEventSynchronize",
        "cuEventElapsedTime",   "cuModuleLoadDataEx",   "cuModuleGetFunction",
        "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuDevicePrimaryCtxRetain",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (uint64_t n = 0; n < 200; n++) {
            struct work w;
            enum mp_status status;
            uint64_t calls;

            fake_api.reset();
            fake_api.fail(names[i], n, 1, false);
            status = open_work(&w);
            if (status == MP_OK)
                status = work_once(&w);
            calls = fake_api.calls(names[i]);
            fake_api.reset();
            close_work(&w);
            check_nothing_lives();
            CHECK(calls > 0);
            if (calls <= n)
                break; /* none was left to fail */
            /* Asking for the context is repaired by setting it. */
            CHECK(status != MP_OK || !strcmp(names[i], "cuCtxGetCurrent") ||
                  !strcmp(names[i], "cuMemHostAlloc"));
        }
    }
}

/* No kernel of today needs more than 48 KiB of dynamic shared memory; heads wider than any would.
 * The launch itself is made to fail, so nothing runs. */
static void more_shared_memory_is_asked_for_once(void)
{
    const struct mp_cuda_attend wide = { .heads = 1, .kv_heads = 1, .head_dim = 2048, .tokens = 1 };
    const char *const asks = "cuFuncSetAttribute";
    struct work w;

    CHECK(mp_cuda_kernel_grid(MP_CUDA_KERNEL_attend_f32, &wide).shared_bytes > 48u << 10);
    CHECK_EQ(open_work(&w), MP_OK);
    for (unsigned i = 0; i < 2; i++) { /* 48 KiB - 20 bytes, and 16 bytes more than 48 KiB */
        const struct mp_cuda_attend near = {
            .heads = 1, .kv_heads = 1, .head_dim = 1233 + i, .tokens = 1
        };

        fake_api.reset();
        fake_api.fail("cuLaunchKernel", 0, 1, false);
        CHECK_EQ(mp_gpu_launch(w.gpu, w.stream, MP_CUDA_KERNEL_attend_f32, &near), MP_ERR_DEVICE);
        CHECK_EQ(fake_api.calls(asks), i);
    }
    fake_api.reset();
    fake_api.fail(asks, 0, 1, false);
    CHECK_EQ(mp_gpu_launch(w.gpu, w.stream, MP_CUDA_KERNEL_attend_f32, &wide), MP_ERR_DEVICE);
    CHECK_STR(mp_error_last()->code, "E_CUDA");
    CHECK(strstr(mp_error_last()->text, "cuFuncSetAttribute of mp_attend_f32") != NULL);
    CHECK_EQ(fake_api.calls("cuLaunchKernel"), 0);
    fake_api.fail("cuLaunchKernel", 0, 1, true);
    for (unsigned i = 0; i < 2; i++) {
        CHECK_EQ(mp_gpu_launch(w.gpu, w.stream, MP_CUDA_KERNEL_attend_f32, &wide), MP_ERR_DEVICE);
        CHECK(strstr(mp_error_last()->text, "cuLaunchKernel of mp_attend_f32") != NULL);
        CHECK_EQ(fake_api.calls(asks), 2); /* what failed once more, then not any more */
        CHECK_EQ(fake_api.calls("cuLaunchKernel"), i + 1);
    }
    fake_api.reset();
    mp_error_clear();
    close_work(&w);
    check_nothing_lives();
}

struct launcher {
    struct mp_gpu *gpu;
    mp_cu_stream stream;
    uint32_t head_dim;
};

static void *launch_wide(void *ctx)
{
    const struct launcher *launcher = ctx;
    const struct mp_cuda_attend wide = {
        .heads = 1, .kv_heads = 1, .head_dim = launcher->head_dim, .tokens = 1
    };

    CHECK_EQ(mp_gpu_launch(launcher->gpu, launcher->stream, MP_CUDA_KERNEL_attend_f32, &wide),
             MP_ERR_DEVICE);
    CHECK(strstr(mp_error_last()->text, "cuLaunchKernel of mp_attend_f32") != NULL);
    mp_error_clear();
    return NULL;
}

/* While the driver is slow to allow one thread little, another asks for more: that is what holds.
 */
static void shared_memory_that_two_threads_ask_for_does_not_shrink(void)
{
    const char *const asks = "cuFuncSetAttribute";
    struct launcher little, much;
    pthread_t threads[2];
    struct work w;

    CHECK_EQ(open_work(&w), MP_OK);
    little = (struct launcher){ w.gpu, w.stream, 2048 };
    much = (struct launcher){ w.gpu, NULL, 2560 };
    CHECK_EQ(mp_gpu_stream_open(w.gpu, &much.stream), MP_OK);
    fake_api.reset();
    fake_api.fail("cuLaunchKernel", 0, 1, true); /* so nothing runs */
    fake_api.fail(asks, 0, FAKECUDA_HANGS, false);
    CHECK_EQ(pthread_create(&threads[0], NULL, launch_wide, &little), 0);
    while (fake_api.calls(asks) == 0)
        usleep(1000);
    CHECK_EQ(pthread_create(&threads[1], NULL, launch_wide, &much), 0);
    usleep(50000); /* if nothing held it, it would ask now */
    fake_api.stall(false);
    for (unsigned i = 0; i < 2; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(fake_api.calls(asks), 2);
    launch_wide(&much);
    CHECK_EQ(fake_api.calls(asks), 2);
    fake_api.reset();
    mp_gpu_stream_close(w.gpu, much.stream);
    close_work(&w);
    check_nothing_lives();
}

int main(void)
{
    find_fake();
    RUN(a_kernel_runs_behind_what_it_was_ordered_behind);
    RUN(a_wait_is_awake_as_long_as_it_may);
    RUN(a_graph_gives_the_same_bits_each_time);
    RUN(nothing_is_queued_for_no_work);
    RUN(each_call_of_work_fails_once);
    RUN(more_shared_memory_is_asked_for_once);
    RUN(shared_memory_that_two_threads_ask_for_does_not_shrink);
    return 0;
}
