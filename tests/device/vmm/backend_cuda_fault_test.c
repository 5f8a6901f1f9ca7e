/*
 * The CUDA backend when calls fail, on the driver without a device: each call once, what cannot be
 * undone, a device that is lost.
 */
#include <stdint.h>

#include "tests/device/fakecuda/fakecuda.h"
#include "tests/device/vmm/backend_cuda.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/backend/backend.h"
#include "vmm/backend/cuda/cuda_driver.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* ---- a good machine */

/* Everything that a client does with the backend, stopping at the first failure. */
static enum mp_status use(void)
{
    struct mp_backend *backend;
    struct mp_frame device, host;
    uint64_t a, b;
    enum mp_status status = mp_backend_open("cuda", &anywhere, &backend);

    if (status != MP_OK)
        return status;
    status = backend->ops->memory_info(backend, MP_TIER_DEVICE, &a, &b);
    if (status == MP_OK)
        status = backend->ops->frame_create(backend, MP_TIER_DEVICE, GRANULE, &device);
    if (status == MP_OK) {
        status = backend->ops->frame_create(backend, MP_TIER_HOST, GRANULE, &host);
        if (status == MP_OK)
            backend->ops->frame_destroy(backend, &host);
        backend->ops->frame_destroy(backend, &device);
    }
    mp_backend_close(backend);
    return status;
}

/*
 * The n-th driver call fails, for every n, with out of memory and with an unknown error. Nothing
 * may stay behind, unless it was a call that gives something back: that is then lost, reported, and
 * no more.
 */
static void every_call_can_fail_once(void)
{
    static const int results[] = { 2, 999 };
    unsigned failed = 0, lost = 0;

    for (size_t r = 0; r < 2; r++) {
        for (uint64_t n = 0;; n++) {
            struct fakecuda_live before, live;
            uint64_t calls;

            fake_api.live(&before);
            fake_api.reset();
            fake_api.fail(NULL, n, results[r], false);
            if (use() != MP_OK)
                failed++;
            calls = fake_api.calls(NULL);
            fake_api.reset();
            fake_api.live(&live);
            lost += live.reservations > before.reservations;
            if (calls <= n)
                break; /* the plan was never reached */
            CHECK(live.reservations <= before.reservations + 1);
            CHECK(live.handles <= before.handles + 1);
            CHECK(live.mappings <= before.mappings + 1);
        }
    }
    CHECK(failed > 10);
    CHECK(lost > 4);
    CHECK_EQ(use(), MP_OK); /* and it still works */
}

/* From one half of a frame to the other. */
static void a_copy_on_the_device_fails_and_then_works(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame device, host;
    struct mp_stream *stream;
    char *at;

    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, 2 * GRANULE, &device), MP_OK);
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_HOST, GRANULE, &host), MP_OK);
    CHECK_EQ(backend->ops->stream_open(backend, &stream), MP_OK);
    at = device.alias;
    memset(host.alias, 7, GRANULE);
    CHECK_EQ(backend->ops->stream_copy(backend, stream, MP_COPY_TO_DEVICE, at, host.alias, GRANULE),
             MP_OK);
    fake_api.fail("cuMemcpyDtoDAsync_v2", 0, 999, false);
    CHECK_EQ(
        backend->ops->stream_copy(backend, stream, MP_COPY_ON_DEVICE, at + GRANULE, at, GRANULE),
        MP_ERR_DEVICE);
    CHECK_STR(mp_error_last()->code, "E_CUDA");
    CHECK(strstr(mp_error_last()->text, "cuMemcpyDtoDAsync of a copy of") != NULL);
    CHECK_EQ(
        backend->ops->stream_copy(backend, stream, MP_COPY_ON_DEVICE, at + GRANULE, at, GRANULE),
        MP_OK);
    CHECK_EQ(backend->ops->event_record(backend, stream, 0), MP_OK);
    CHECK_EQ(backend->ops->event_wait(backend, stream, 0), MP_OK);
    memset(host.alias, 0, GRANULE);
    CHECK_EQ(backend->ops->stream_copy(backend, stream, MP_COPY_TO_HOST, host.alias, at + GRANULE,
                                       GRANULE),
             MP_OK);
    CHECK_EQ(backend->ops->event_record(backend, stream, 0), MP_OK);
    CHECK_EQ(backend->ops->event_wait(backend, stream, 0), MP_OK);
    CHECK(((char *)host.alias)[0] == 7 && ((char *)host.alias)[GRANULE - 1] == 7);
    backend->ops->stream_close(backend, stream);
    backend->ops->frame_destroy(backend, &device);
    backend->ops->frame_destroy(backend, &host);
    mp_backend_close(backend);
    check_nothing_lives();
}

/* D2: the call fails and so does what would undo it. The address is not used again. */
static void what_cannot_be_undone_is_lost_and_reported(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame frame, other;
    struct fakecuda_live before, live;
    const uint64_t errors = mp_test_expected_errors;

    fake_api.live(&before);
    fake_api.fail("cuMemSetAccess", 0, 999, false);
    fake_api.fail("cuMemUnmap", 0, 999, false);
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, GRANULE, &frame), MP_ERR_DEVICE);
    CHECK(strstr(mp_error_last()->text, "cuMemSetAccess") !=
          NULL); /* the first error is reported */
    fake_api.live(&live);
    CHECK_EQ(live.mappings, before.mappings + 1);
    CHECK_EQ(live.reservations, before.reservations + 1);
    CHECK_EQ(mp_test_expected_errors, errors + 1);
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, GRANULE, &other), MP_OK);
    backend->ops->frame_destroy(backend, &other);
    mp_backend_close(backend);
}

/* D6: after a fault nothing works; nothing is tried again and nothing crashes. */
static void a_lost_device_ends_quietly(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame frame, other;
    uint64_t free_bytes, total_bytes, calls;

    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, GRANULE, &frame), MP_OK);
    fake_api.lose(700);
    fake_api.reset();
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_DEVICE, GRANULE, &other), MP_ERR_DEVICE);
    CHECK(strstr(mp_error_last()->text, "the device must be opened anew") != NULL);
    CHECK_EQ(backend->ops->memory_info(backend, MP_TIER_DEVICE, &free_bytes, &total_bytes),
             MP_ERR_DEVICE);
    backend->ops->frame_destroy(backend, &frame);
    mp_backend_close(backend);
    calls = fake_api.calls(NULL);
    CHECK(calls > 0 && calls < 12);
    fake_api.lose(0);
}

/* ---- other machines */

/* Three tries to see a stream end; then the device counts as lost. */
static void a_stream_that_does_not_end_loses_the_device(void)
{
    struct mp_backend *backend = open_cuda();
    const uint64_t errors = mp_test_expected_errors;
    struct mp_stream *stream;

    CHECK_EQ(backend->ops->stream_open(backend, &stream), MP_OK);
    fake_api.reset();
    fake_api.fail("cuStreamSynchronize", 0, MP_CU_ERROR_UNKNOWN, true);
    backend->ops->stream_close(backend, stream);
    CHECK_EQ(fake_api.calls("cuStreamSynchronize"), 3);
    CHECK(backend->ops->lost(backend));
    CHECK_EQ(mp_test_expected_errors, errors + 1);
    mp_backend_close(backend);
    fake_api.reset();
}

int main(int argc, char **argv)
{
    mp_log_set_sink(keep_line, NULL);
    setenv("FAKECUDA_MEMORY", "134217728", 1);
    if (argc > 1 && strcmp(argv[1], "numa_id_unknown") == 0)
        setenv("FAKECUDA_NUMA_ID", "-1", 1);
    find_fake();
    RUN(a_copy_on_the_device_fails_and_then_works);
    RUN(a_lost_device_ends_quietly);
    RUN(every_call_can_fail_once);
    RUN(what_cannot_be_undone_is_lost_and_reported);
    RUN(a_stream_that_does_not_end_loses_the_device);
    return 0;
}
