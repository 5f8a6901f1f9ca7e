/*
 * The device to compute on, on the driver without a device (tests/device/fakecuda): memory, order
 * between streams, kernels, graphs, and every call of the driver that opening and working makes
 * failed once.
 *
 * Each variant is a machine, given to the fake by its environment.
 */
#include "engine/gpu/gpu.h"
#include "tests/device/fakecuda/client.h"
#include "tests/device/gpu_work.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

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
    RUN(memory_that_is_not_pinned_has_64_pieces);
    RUN(a_copy_that_was_not_seen_to_end_keeps_its_buffer);
    RUN(a_lost_device_says_that_it_must_be_opened_anew);
    return 0;
}
