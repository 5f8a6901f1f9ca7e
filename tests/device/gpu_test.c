/*
 * The device to compute on, on the driver without a device (tests/device/fakecuda): memory, order
 * between streams, kernels, graphs, and every call of the driver that opening and working makes
 * failed once.
 *
 * Each variant is a machine, given to the fake by its environment.
 */
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "engine/gpu/gpu.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define COUNT 1000u
#define BYTES (COUNT * sizeof(float))

/* ---- a good machine */

static struct mp_gpu *open_gpu(void)
{
    struct mp_gpu *gpu = NULL;

    CHECK_EQ(mp_gpu_open(0, &gpu), MP_OK);
    return gpu;
}

static void opened_it_says_what_it_is_and_leaves_nothing(void)
{
    struct mp_gpu *gpu = open_gpu();

    CHECK_STR(mp_gpu_device(gpu)->name, "Fake device 0");
    CHECK(mp_gpu_driver(gpu)->devices >= 1);
    CHECK(fake_api.calls("cuModuleLoadDataEx") > 0);
    mp_gpu_close(gpu);
    mp_gpu_close(NULL);
    check_nothing_lives();
}

static void a_device_that_is_not_there_is_refused(void)
{
    struct mp_gpu *gpu = NULL;

    CHECK_EQ(mp_gpu_open(7, &gpu), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_CUDA_DEVICE");
    CHECK(gpu == NULL);
}

static void new_memory_is_zero_and_copies_arrive(void)
{
    struct mp_gpu *gpu = open_gpu();
    mp_cu_stream stream;
    mp_cu_ptr a, b;
    float *here;

    CHECK_EQ(mp_gpu_stream_open(gpu, &stream), MP_OK);
    CHECK_EQ(mp_gpu_alloc(gpu, BYTES, "a", &a), MP_OK);
    CHECK_EQ(mp_gpu_alloc(gpu, BYTES, "b", &b), MP_OK);
    CHECK_EQ(mp_gpu_alloc_host(gpu, BYTES, "here", (void **)&here), MP_OK);
    for (uint32_t i = 0; i < COUNT; i++)
        here[i] = 1;
    CHECK_EQ(mp_gpu_download(gpu, stream, here, a, BYTES), MP_OK);
    CHECK_EQ(mp_gpu_finish(gpu, stream), MP_OK);
    for (uint32_t i = 0; i < COUNT; i++)
        CHECK(here[i] == 0);
    for (uint32_t i = 0; i < COUNT; i++)
        here[i] = (float)i;
    CHECK_EQ(mp_gpu_upload(gpu, stream, a, here, BYTES), MP_OK);
    CHECK_EQ(mp_gpu_finish(gpu, stream), MP_OK);
    memset(here, 0, BYTES);
    CHECK_EQ(mp_gpu_copy(gpu, stream, b, a, BYTES), MP_OK);
    CHECK_EQ(mp_gpu_clear(gpu, stream, b, 4 * sizeof(float)), MP_OK);
    CHECK_EQ(mp_gpu_download(gpu, stream, here, b, BYTES), MP_OK);
    CHECK_EQ(mp_gpu_finish(gpu, stream), MP_OK);
    for (uint32_t i = 0; i < COUNT; i++)
        CHECK(here[i] == (i < 4 ? 0 : (float)i));
    CHECK_EQ(mp_gpu_alloc(gpu, UINT64_C(1) << 50, "too much", &b), MP_ERR_NO_SPACE);
    CHECK_STR(mp_error_last()->code, "E_CUDA_MEMORY");
    CHECK(strstr(mp_error_last()->text, "too much") != NULL);
    mp_gpu_free_host(gpu, here);
    mp_gpu_free(gpu, a);
    mp_gpu_free(gpu, b);
    mp_gpu_stream_close(gpu, stream);
    mp_gpu_close(gpu);
    check_nothing_lives();
}

/* Nothing of this size is pinned, but a small buffer is. */
static void memory_that_is_not_pinned_is_copied_too(void)
{
    const uint32_t count = 3 * (64u << 10) / sizeof(uint32_t) + 5; /* of three buffers and a bit */
    const uint64_t bytes = count * sizeof(uint32_t);
    struct mp_gpu *gpu = NULL;
    mp_cu_stream stream;
    mp_cu_ptr a;
    uint32_t *here, *there, *pinned;

    CHECK_EQ(mp_gpu_open(0, &gpu), MP_OK);
    CHECK_EQ(mp_gpu_stream_open(gpu, &stream), MP_OK);
    CHECK_EQ(mp_gpu_alloc(gpu, bytes, "a", &a), MP_OK);
    CHECK_EQ(mp_gpu_alloc_host(gpu, bytes, "pinned", (void **)&pinned), MP_OK);
    fake_api.fail("cuMemHostAlloc", 0, 2, false);
    CHECK_EQ(mp_gpu_alloc_host(gpu, bytes, "here", (void **)&here), MP_OK);
    fake_api.fail("cuMemHostAlloc", 0, 2, false);
    CHECK_EQ(mp_gpu_alloc_host(gpu, bytes, "there", (void **)&there), MP_OK);
    CHECK_EQ(mp_error_last()->status, MP_OK);
    for (uint32_t i = 0; i < count; i++)
        here[i] = pinned[i] = i;
    CHECK_EQ(mp_gpu_upload(gpu, stream, a, here, bytes), MP_OK);
    memset(here, 0, bytes); /* it has been copied */
    CHECK_EQ(mp_gpu_download(gpu, stream, there + 1, a, bytes - 4), MP_OK);
    for (uint32_t i = 0; i + 1 < count; i++)
        CHECK_EQ(there[i + 1], i);
    CHECK_EQ(mp_gpu_upload(gpu, stream, a, pinned + 1, bytes - 4), MP_OK);
    CHECK_EQ(mp_gpu_download(gpu, stream, there, a, 0), MP_OK);
    CHECK_EQ(mp_gpu_download(gpu, stream, there, a, bytes), MP_OK);
    CHECK_EQ(there[0], 1);

    /* Not even the system has that much, and then not even a small buffer is pinned. */
    CHECK_EQ(mp_gpu_alloc_host(gpu, UINT64_C(1) << 50, "more", (void **)&pinned), MP_ERR_NO_SPACE);
    CHECK(strstr(mp_error_last()->text, "more, 1125899906842624 bytes of pinned") != NULL);
    mp_gpu_free_host(gpu, here);
    mp_gpu_free_host(gpu, there);
    mp_gpu_free_host(gpu, pinned);
    mp_gpu_free(gpu, a);
    mp_gpu_stream_close(gpu, stream);
    mp_gpu_close(gpu);
    check_nothing_lives();

    CHECK_EQ(mp_gpu_open(0, &gpu), MP_OK);
    fake_api.fail("cuMemHostAlloc", 0, 2, true);
    CHECK_EQ(mp_gpu_alloc_host(gpu, 77, "lists", (void **)&here), MP_ERR_NO_SPACE);
    CHECK(strstr(mp_error_last()->text, "lists, 77 bytes of pinned memory") != NULL);
    fake_api.fail("cuMemHostAlloc", 0, 700, false); /* a device that is lost is no lack of memory */
    CHECK_EQ(mp_gpu_alloc_host(gpu, 77, "lists", (void **)&here), MP_ERR_DEVICE);
    fake_api.reset();
    mp_error_clear();
    mp_gpu_close(gpu);
    fake_api.clear();
}

/* There are 64 pieces of memory that is not pinned, and one that was given back is free again. */
static void memory_that_is_not_pinned_has_64_pieces(void)
{
    struct mp_gpu *gpu = open_gpu();
    void *pieces[64], *more;

    for (unsigned i = 0; i < 64; i++) {
        fake_api.fail("cuMemHostAlloc", 0, 2, false);
        CHECK_EQ(mp_gpu_alloc_host(gpu, 4096, "a piece", &pieces[i]), MP_OK);
    }
    fake_api.fail("cuMemHostAlloc", 0, 2, false);
    CHECK_EQ(mp_gpu_alloc_host(gpu, 4096, "one more", &more), MP_ERR_NO_SPACE);
    CHECK(strstr(mp_error_last()->text, "one more, 4096 bytes of pinned memory") != NULL);
    mp_gpu_free_host(gpu, pieces[63]);
    fake_api.fail("cuMemHostAlloc", 0, 2, false);
    CHECK_EQ(mp_gpu_alloc_host(gpu, 4096, "a piece", &pieces[63]), MP_OK);
    fake_api.reset();
    for (unsigned i = 0; i < 64; i++)
        mp_gpu_free_host(gpu, pieces[i]);
    mp_error_clear();
    mp_gpu_close(gpu);
    check_nothing_lives();
}

/* A wait that fails leaves a copy under way, which reads the buffer that the next copy fills. */
static void a_copy_that_was_not_seen_to_end_keeps_its_buffer(void)
{
    const uint32_t count = (64u << 10) / sizeof(uint32_t);
    const uint64_t bytes = count * sizeof(uint32_t);
    struct mp_gpu *gpu = open_gpu();
    mp_cu_stream stream, other;
    mp_cu_ptr a, b;
    uint32_t *here;

    CHECK_EQ(mp_gpu_stream_open(gpu, &stream), MP_OK);
    CHECK_EQ(mp_gpu_stream_open(gpu, &other), MP_OK);
    CHECK_EQ(mp_gpu_alloc(gpu, bytes, "a", &a), MP_OK);
    CHECK_EQ(mp_gpu_alloc(gpu, bytes, "b", &b), MP_OK);
    fake_api.fail("cuMemHostAlloc", 0, 2, false);
    CHECK_EQ(mp_gpu_alloc_host(gpu, bytes, "here", (void **)&here), MP_OK);
    fake_api.timing(0, 100);
    for (uint32_t i = 0; i < count; i++)
        here[i] = 1;
    fake_api.fail("cuStreamSynchronize", 0, 1, false);
    CHECK_EQ(mp_gpu_upload(gpu, stream, a, here, bytes), MP_ERR_DEVICE);
    CHECK(strstr(mp_error_last()->text, "cuStreamSynchronize") != NULL);
    CHECK(!mp_gpu_is_lost(gpu));
    for (uint32_t i = 0; i < count; i++)
        here[i] = 2;
    CHECK_EQ(mp_gpu_upload(gpu, other, b, here, bytes), MP_OK);
    CHECK_EQ(mp_gpu_finish(gpu, stream), MP_OK);
    fake_api.timing(0, 0);
    check_no_violation();

    fake_api.fail("cuStreamSynchronize", 0, 1, true); /* who can still use the buffer then? */
    CHECK_EQ(mp_gpu_upload(gpu, stream, a, here, bytes), MP_ERR_DEVICE);
    CHECK(mp_gpu_is_lost(gpu));
    fake_api.reset();
    mp_error_clear();
    mp_gpu_free_host(gpu, here);
    mp_gpu_close(gpu);
    fake_api.clear();
}

/* Everything that a kernel needs: two arrays of COUNT floats, on the device and pinned. */
struct work {
    struct mp_gpu *gpu;
    mp_cu_stream stream, other;
    mp_cu_event event, end;
    mp_cu_ptr gate, up;
    float *here;
};

static enum mp_status open_work(struct work *w)
{
    enum mp_status status;

    memset(w, 0, sizeof(*w));
    status = mp_gpu_open(0, &w->gpu);
    if (status == MP_OK)
        status = mp_gpu_stream_open(w->gpu, &w->stream);
    if (status == MP_OK)
        status = mp_gpu_stream_open(w->gpu, &w->other);
    if (status == MP_OK)
        status = mp_gpu_event_open(w->gpu, true, &w->event);
    if (status == MP_OK)
        status = mp_gpu_event_open(w->gpu, true, &w->end);
    if (status == MP_OK)
        status = mp_gpu_alloc(w->gpu, BYTES, "gate", &w->gate);
    if (status == MP_OK)
        status = mp_gpu_alloc(w->gpu, BYTES, "up", &w->up);
    if (status == MP_OK)
        status = mp_gpu_alloc_host(w->gpu, 2 * BYTES, "here", (void **)&w->here);
    for (uint32_t i = 0; status == MP_OK && i < COUNT; i++) {
        w->here[i] = (float)i / 100 - 3;
        w->here[COUNT + i] = (float)i;
    }
    return status;
}

/* Whatever fails: nothing may be under way when memory goes. */
static void close_work(struct work *w)
{
    if (w->gpu == NULL)
        return;
    if (w->stream != NULL && mp_gpu_finish(w->gpu, w->stream) != MP_OK)
        CHECK_EQ(mp_gpu_finish(w->gpu, w->stream), MP_OK);
    if (w->other != NULL && mp_gpu_finish(w->gpu, w->other) != MP_OK)
        CHECK_EQ(mp_gpu_finish(w->gpu, w->other), MP_OK);
    mp_gpu_free_host(w->gpu, w->here);
    mp_gpu_free(w->gpu, w->gate);
    mp_gpu_free(w->gpu, w->up);
    mp_gpu_event_close(w->gpu, w->event);
    mp_gpu_event_close(w->gpu, w->end);
    mp_gpu_stream_close(w->gpu, w->stream);
    mp_gpu_stream_close(w->gpu, w->other);
    mp_gpu_close(w->gpu);
}

static enum mp_status queue_kernel(struct work *w, mp_cu_stream stream)
{
    const struct mp_cuda_silu_mul params = { .gate = w->gate, .up = w->up, .count = COUNT };

    return mp_gpu_launch(w->gpu, stream, MP_CUDA_KERNEL_silu_mul, &params);
}

/* Up on one stream, the kernel on the other behind an event, then down. */
static enum mp_status work_once(struct work *w)
{
    bool done = false;
    float ms = -1;
    enum mp_status status = mp_gpu_upload(w->gpu, w->stream, w->gate, w->here, BYTES);

    if (status == MP_OK)
        status = mp_gpu_upload(w->gpu, w->stream, w->up, w->here + COUNT, BYTES);
    if (status == MP_OK)
        status = mp_gpu_record(w->gpu, w->event, w->stream);
    if (status == MP_OK)
        status = mp_gpu_order(w->gpu, w->other, w->event);
    if (status == MP_OK)
        status = queue_kernel(w, w->other);
    if (status == MP_OK)
        status = mp_gpu_download(w->gpu, w->other, w->here, w->gate, BYTES);
    if (status == MP_OK)
        status = mp_gpu_record(w->gpu, w->end, w->other);
    if (status == MP_OK)
        status = mp_gpu_wait(w->gpu, w->end);
    if (status == MP_OK)
        status = mp_gpu_query(w->gpu, w->end, &done);
    if (status == MP_OK)
        status = mp_gpu_elapsed(w->gpu, w->event, w->end, &ms);
    if (status == MP_OK)
        CHECK(done && ms >= 0);
    return status;
}

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
    const struct mp_cuda_attend wide = { .heads = 1, .kv_heads = 1, .head_dim = 1024, .tokens = 1 };
    const char *const asks = "cuFuncSetAttribute";
    struct work w;

    CHECK(mp_cuda_kernel_grid(MP_CUDA_KERNEL_attend, &wide).shared_bytes > 48u << 10);
    CHECK_EQ(open_work(&w), MP_OK);
    fake_api.reset();
    fake_api.fail(asks, 0, 1, false);
    CHECK_EQ(mp_gpu_launch(w.gpu, w.stream, MP_CUDA_KERNEL_attend, &wide), MP_ERR_DEVICE);
    CHECK_STR(mp_error_last()->code, "E_CUDA");
    CHECK(strstr(mp_error_last()->text, "cuFuncSetAttribute of mp_attend") != NULL);
    CHECK_EQ(fake_api.calls("cuLaunchKernel"), 0);
    fake_api.fail("cuLaunchKernel", 0, 1, true);
    for (unsigned i = 0; i < 2; i++) {
        CHECK_EQ(mp_gpu_launch(w.gpu, w.stream, MP_CUDA_KERNEL_attend, &wide), MP_ERR_DEVICE);
        CHECK(strstr(mp_error_last()->text, "cuLaunchKernel of mp_attend") != NULL);
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

    CHECK_EQ(mp_gpu_launch(launcher->gpu, launcher->stream, MP_CUDA_KERNEL_attend, &wide),
             MP_ERR_DEVICE);
    CHECK(strstr(mp_error_last()->text, "cuLaunchKernel of mp_attend") != NULL);
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
    little = (struct launcher){ w.gpu, w.stream, 1024 };
    much = (struct launcher){ w.gpu, NULL, 1280 };
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

static void a_lost_device_says_that_it_must_be_opened_anew(void)
{
    struct work w;

    CHECK_EQ(open_work(&w), MP_OK);
    fake_api.lose(700);
    CHECK_EQ(work_once(&w), MP_ERR_DEVICE);
    CHECK_STR(mp_error_last()->code, "E_CUDA");
    CHECK(strstr(mp_error_last()->text, "opened anew") != NULL);
    CHECK(mp_gpu_is_lost(w.gpu));
    mp_gpu_free(w.gpu, w.gate); /* gives nothing back, and calls nobody */
    mp_gpu_close(w.gpu);
    fake_api.lose(0);
    fake_api.clear();
    CHECK_EQ(open_work(&w), MP_OK);
    CHECK_EQ(work_once(&w), MP_OK);
    close_work(&w);
    check_nothing_lives();
}

/* ---- other machines */

static void without_a_driver_it_is_off(void)
{
    struct mp_gpu *gpu = NULL;

    CHECK_EQ(mp_gpu_open(0, &gpu), MP_ERR_UNSUPPORTED);
    CHECK_STR(mp_error_last()->code, "E_CUDA_OFF");
}

int main(int argc, char **argv)
{
    CHECK_EQ(argc, 2);
    if (!strcmp(argv[1], "no_driver")) {
        RUN(without_a_driver_it_is_off);
        return 0;
    }
    find_fake();
    RUN(opened_it_says_what_it_is_and_leaves_nothing);
    RUN(a_device_that_is_not_there_is_refused);
    RUN(new_memory_is_zero_and_copies_arrive);
    RUN(memory_that_is_not_pinned_is_copied_too);
    RUN(a_kernel_runs_behind_what_it_was_ordered_behind);
    RUN(a_graph_gives_the_same_bits_each_time);
    RUN(nothing_is_queued_for_no_work);
    RUN(each_call_of_work_fails_once);
    RUN(more_shared_memory_is_asked_for_once);
    RUN(shared_memory_that_two_threads_ask_for_does_not_shrink);
    RUN(memory_that_is_not_pinned_has_64_pieces);
    RUN(a_copy_that_was_not_seen_to_end_keeps_its_buffer);
    RUN(a_lost_device_says_that_it_must_be_opened_anew);
    return 0;
}
