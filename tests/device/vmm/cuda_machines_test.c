/*
 * How the CUDA backend pins host memory, on the driver without a device; cuda_devices_test.c has
 * which devices there are. Variants:
 *
 *     registered  no handles in host memory: frames are memory of ours, pinned in pieces
 *     unpinned    memory cannot be registered: copies go through a buffer
 */
#include <inttypes.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/device/fakecuda/client.h"
#include "tests/device/vmm/machines.h"
#include "tests/support/log_guard.h"
#include "vmm/backend/backend.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* No two parts of it are alike, as those that share a place of a buffer must not be. */
static void fill(void *memory, uint64_t bytes, unsigned seed)
{
    unsigned char *at = memory;

    for (uint64_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)((i * UINT64_C(0x9e3779b97f4a7c15) >> 56) + seed);
}

/* Copy there and, to another place, back. */
static void round_trip(struct mp_backend *backend, struct mp_stream *stream, void *device,
                       void *from, void *to, uint64_t bytes)
{
    const struct mp_backend_ops *ops = backend->ops;

    fill(from, bytes, (unsigned)bytes);
    memset(to, 0, bytes);
    CHECK_EQ(ops->stream_copy(backend, stream, MP_COPY_TO_DEVICE, device, from, bytes), MP_OK);
    CHECK_EQ(ops->event_record(backend, stream, 0), MP_OK);
    CHECK_EQ(ops->stream_copy(backend, stream, MP_COPY_TO_HOST, to, device, bytes), MP_OK);
    CHECK_EQ(ops->event_record(backend, stream, 1), MP_OK);
    CHECK_EQ(ops->event_wait(backend, stream, 1), MP_OK);
    CHECK(memcmp(from, to, bytes) == 0);
}

/* ---- memory of ours, registered */

/* Does the kernel know that huge pages are wanted at this address? */
static bool wants_huge_pages(const void *address)
{
    char line[512];
    bool here = false, wants = false;
    FILE *file = fopen("/proc/self/smaps", "re");

    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL) {
        uint64_t begin, end;

        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &begin, &end) == 2)
            here = begin <= (uintptr_t)address && (uintptr_t)address < end;
        else if (here && strncmp(line, "VmFlags:", 8) == 0)
            wants = strstr(line, " hg") != NULL;
    }
    fclose(file);
    return wants;
}

static void frames_are_pinned_in_pieces(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame small, large;
    struct fakecuda_live live;

    fake_api.reset();
    small = make(backend, MP_TIER_HOST, 2 * MIB);
    CHECK_EQ(fake_api.calls("cuMemHostRegister_v2"), 1);
    if (access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) == 0)
        CHECK(wants_huge_pages(small.alias));
    fake_api.reset();
    large = make(backend, MP_TIER_HOST, 200 * MIB);
    CHECK(fake_api.calls("cuMemHostRegister_v2") >= 4);
    CHECK(fake_api.calls("cuMemHostRegister_v2") <= 5);
    CHECK(backend->ops->reads_host(backend));
    backend->ops->frame_destroy(backend, &large);
    backend->ops->frame_destroy(backend, &small);
    fake_api.live(&live);
    CHECK_EQ(live.pinned, 0);
    CHECK_EQ(warnings, 0);
    mp_backend_close(backend);
    check_nothing_lives();
}

/* Whatever the pages are, an alias is a multiple of what the capabilities say. */
static void frames_are_aligned(void)
{
    const struct mp_backend_config small_pages = { .numa_node = -1, .no_host_handles = true };
    struct mp_backend *backend = NULL;
    struct mp_frame frames[8];

    CHECK_EQ(mp_backend_open("cuda", &small_pages, &backend), MP_OK);
    CHECK_EQ(backend->caps.alias_align_bytes, 2 * MIB);
    for (unsigned i = 0; i < 8; i++) {
        frames[i] = make(backend, MP_TIER_HOST, (2 + 4 * (i % 2)) * MIB);
        CHECK_EQ((uintptr_t)frames[i].alias % backend->caps.alias_align_bytes, 0);
        if (i == 4) /* so that the next one does not follow by itself */
            CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    }
    for (unsigned i = 0; i < 8; i++)
        backend->ops->frame_destroy(backend, &frames[i]);
    mp_backend_close(backend);
    check_nothing_lives();
}

/* Where a driver may break down, it is not asked. */
static void what_must_not_be_tried_is_not(void)
{
    const struct mp_backend_config config = { .numa_node = -1, .no_host_handles = true };
    struct mp_backend *backend = NULL;
    struct mp_frame frame;

    fake_api.reset();
    CHECK_EQ(mp_backend_open("cuda", &config, &backend), MP_OK);
    frame = make(backend, MP_TIER_HOST, 2 * MIB);
    CHECK_EQ(fake_api.calls("cuMemCreate"), 0);
    CHECK_EQ(fake_api.calls("cuMemHostRegister_v2"), 1);
    backend->ops->frame_destroy(backend, &frame);
    mp_backend_close(backend);
    check_nothing_lives();
}

static void copies_stop_where_pieces_do(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame host = make(backend, MP_TIER_HOST, 160 * MIB);
    struct mp_frame device = make(backend, MP_TIER_DEVICE, 6 * MIB);
    char *cut = (char *)(((uintptr_t)host.alias + PIECE) / PIECE * PIECE);
    struct mp_stream *stream;

    CHECK_EQ(backend->ops->stream_open(backend, &stream), MP_OK);
    fake_api.reset();
    round_trip(backend, stream, device.alias, cut - 2 * MIB, cut + PIECE - 3 * MIB, 5 * MIB + 17);
    CHECK_EQ(fake_api.calls("cuMemcpyHtoDAsync_v2"), 2);
    CHECK_EQ(fake_api.calls("cuMemcpyDtoHAsync_v2"), 2);
    round_trip(backend, stream, device.alias, cut, cut + PIECE - 3 * MIB, 3 * MIB);
    CHECK_EQ(fake_api.calls("cuMemcpyHtoDAsync_v2"), 3);
    CHECK_EQ(fake_api.calls("cuMemcpyDtoHAsync_v2"), 3);

    /* The second part is refused: the first one is over before anybody hears of it. */
    fake_api.fail("cuMemcpyHtoDAsync_v2", 1, MP_CU_ERROR_INVALID_VALUE, false);
    CHECK_EQ(backend->ops->stream_copy(backend, stream, MP_COPY_TO_DEVICE, device.alias, cut - MIB,
                                       2 * MIB),
             MP_ERR_DEVICE);
    backend->ops->frame_destroy(backend, &device);
    backend->ops->stream_close(backend, stream);
    backend->ops->frame_destroy(backend, &host);
    mp_backend_close(backend);
    check_nothing_lives();
}

/* One piece is refused: those before it are given back, and the frame is not pinned at all. */
static void a_piece_that_is_refused_unpins_the_frame(void)
{
    struct mp_backend *backend = open_cuda();
    struct fakecuda_live live;
    struct mp_frame frame;

    fake_api.fail("cuMemHostRegister_v2", 2, MP_CU_ERROR_OUT_OF_MEMORY, false);
    frame = make(backend, MP_TIER_HOST, 200 * MIB);
    fake_api.live(&live);
    CHECK_EQ(live.pinned, 0);
    CHECK(!backend->ops->reads_host(backend));
    CHECK_EQ(warnings, 1);
    CHECK(strstr(warning, "host memory is not pinned: cuMemHostRegister of a host frame") != NULL);
    backend->ops->frame_destroy(backend, &frame);
    mp_backend_close(backend);
    check_nothing_lives();
}

static void what_stays_pinned_is_counted(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame frame = { .handle = 0 };

    CHECK_EQ(backend->ops->lost_bytes(backend), 0);
    fake_api.fail("cuMemHostRegister_v2", 1, MP_CU_ERROR_OUT_OF_MEMORY, false);
    fake_api.fail("cuMemHostUnregister", 0, MP_CU_ERROR_UNKNOWN, false);
    CHECK_EQ(backend->ops->frame_create(backend, MP_TIER_HOST, 130 * MIB, &frame), MP_ERR_NO_SPACE);
    CHECK_EQ(backend->ops->lost_bytes(backend), 130 * MIB);
    frame = make(backend, MP_TIER_HOST, 2 * MIB);
    fake_api.fail("cuMemHostUnregister", 0, MP_CU_ERROR_UNKNOWN, false);
    backend->ops->frame_destroy(backend, &frame);
    CHECK_EQ(backend->ops->lost_bytes(backend), 132 * MIB);
    mp_backend_close(backend);
    fake_api.reset();
    fake_api.clear();
}

/* ---- nothing to pin */

static void unpinned_frames_go_through_a_buffer(void)
{
    static const uint64_t sizes[] = { 1, 4096, 512 << 10, (512 << 10) + 1, 3 * MIB + 5, 7 * MIB };
    struct mp_backend *backend = open_cuda();
    struct mp_frame device = make(backend, MP_TIER_DEVICE, 8 * MIB), host[3];
    struct mp_stream *stream;

    for (unsigned i = 0; i < 3; i++)
        host[i] = make(backend, MP_TIER_HOST, 16 * MIB);
    CHECK_EQ(warnings, 1);
    CHECK(!backend->ops->reads_host(backend));
    CHECK_EQ(backend->ops->stream_open(backend, &stream), MP_OK);
    for (unsigned late = 0; late < 2; late++) { /* what nobody waits for is left for a while */
        fake_api.timing(0, 500 * late);
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            round_trip(backend, stream, device.alias, host[0].alias, (char *)host[1].alias + i,
                       sizes[i]);
    }
    fake_api.timing(0, 0);
    backend->ops->stream_close(backend, stream);
    for (unsigned i = 0; i < 3; i++)
        backend->ops->frame_destroy(backend, &host[i]);
    backend->ops->frame_destroy(backend, &device);
    mp_backend_close(backend);
    CHECK_EQ(warnings, 1);
    check_nothing_lives();
}

struct long_copy {
    struct mp_backend *backend;
    struct mp_stream *stream;
    void *device, *host;
    uint64_t bytes;
};

static void *run_long_copy(void *ctx)
{
    const struct long_copy *copy = ctx;

    CHECK_EQ(copy->backend->ops->stream_copy(copy->backend, copy->stream, MP_COPY_TO_DEVICE,
                                             copy->device, copy->host, copy->bytes),
             MP_OK);
    return NULL;
}

/* Four places of 512 KiB: the fifth copy waits for the first. */
static void the_buffer_has_two_mib_in_four_places(void)
{
    static const char *const call = "cuMemcpyHtoDAsync_v2";
    struct mp_backend *backend = open_cuda();
    struct mp_frame device = make(backend, MP_TIER_DEVICE, 4 * MIB);
    struct mp_frame host = make(backend, MP_TIER_HOST, 4 * MIB);
    struct long_copy copy = { backend, NULL, device.alias, host.alias, (512 << 10) + 1 };
    uint64_t before = fake_api.calls(call);
    pthread_t thread;

    memset(host.alias, 1, 4 * MIB);
    CHECK_EQ(backend->ops->stream_open(backend, &copy.stream), MP_OK);
    run_long_copy(&copy);
    CHECK_EQ(fake_api.calls(call) - before, 2);
    CHECK_EQ(backend->ops->event_record(backend, copy.stream, 0), MP_OK);
    CHECK_EQ(backend->ops->event_wait(backend, copy.stream, 0), MP_OK);

    before = fake_api.calls(call);
    copy.bytes = 5 * (512 << 10);
    fake_api.stall(true);
    CHECK_EQ(pthread_create(&thread, NULL, run_long_copy, &copy), 0);
    for (int i = 0; i < 5000 && fake_api.calls(call) - before < 4; i++)
        usleep(1000);
    usleep(50000); /* for one more, which must not come */
    CHECK_EQ(fake_api.calls(call) - before, 4);
    fake_api.stall(false);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(fake_api.calls(call) - before, 5);
    backend->ops->stream_close(backend, copy.stream);
    backend->ops->frame_destroy(backend, &host);
    backend->ops->frame_destroy(backend, &device);
    mp_backend_close(backend);
    check_nothing_lives();
}

/* Any call of a copy through the buffer fails: it is reported, nothing runs on, and the next is
 * right.
 */
static void copies_through_a_buffer_can_fail(void)
{
    struct mp_backend *backend = open_cuda();
    struct mp_frame device = make(backend, MP_TIER_DEVICE, 8 * MIB);
    struct mp_frame host = make(backend, MP_TIER_HOST, 16 * MIB);
    const struct mp_backend_ops *ops = backend->ops;
    unsigned failed = 0;

    for (uint64_t n = 0; n < 100; n++) { /* of calls, and of what is done for them later */
        enum mp_status status;
        struct mp_stream *stream;

        CHECK_EQ(ops->stream_open(backend, &stream), MP_OK);
        fill(host.alias, 4 * MIB, (unsigned)n);
        fake_api.reset();
        fake_api.fail(NULL, n, MP_CU_ERROR_UNKNOWN, false);
        status =
            ops->stream_copy(backend, stream, MP_COPY_TO_DEVICE, device.alias, host.alias, 4 * MIB);
        if (status == MP_OK)
            status = ops->stream_copy(backend, stream, MP_COPY_TO_HOST,
                                      (char *)host.alias + 8 * MIB, device.alias, 4 * MIB);
        failed += status != MP_OK;
        if (status == MP_OK)
            CHECK(memcmp(host.alias, (char *)host.alias + 8 * MIB, 4 * MIB) == 0);
        fake_api.reset();
        round_trip(backend, stream, device.alias, host.alias, (char *)host.alias + 8 * MIB,
                   4 * MIB);
        ops->stream_close(backend, stream);
    }
    CHECK(failed > 40);
    ops->frame_destroy(backend, &host);
    ops->frame_destroy(backend, &device);
    mp_backend_close(backend);
    check_nothing_lives();
}

/* A copy of which a part was queued is waited for, unless it was the device that was lost. */
static void a_partial_copy_is_waited_for_but_on_a_lost_device(void)
{
    static const int results[] = { MP_CU_ERROR_INVALID_VALUE, MP_CU_ERROR_ILLEGAL_ADDRESS };
    struct mp_backend *backend = open_cuda();
    struct mp_frame device = make(backend, MP_TIER_DEVICE, 8 * MIB);
    struct mp_frame host = make(backend, MP_TIER_HOST, 16 * MIB);
    const struct mp_backend_ops *ops = backend->ops;
    struct mp_stream *stream;

    memset(host.alias, 1, 4 * MIB);
    CHECK_EQ(ops->stream_open(backend, &stream), MP_OK);
    for (unsigned i = 0; i < 2; i++) {
        fake_api.reset();
        fake_api.fail("cuMemcpyHtoDAsync_v2", 1, results[i], false);
        CHECK_EQ(
            ops->stream_copy(backend, stream, MP_COPY_TO_DEVICE, device.alias, host.alias, 2 * MIB),
            MP_ERR_DEVICE);
        CHECK_EQ(ops->lost(backend), i == 1);
        CHECK_EQ(fake_api.calls("cuStreamSynchronize"), i == 0);
    }
    ops->stream_close(backend, stream);
    ops->frame_destroy(backend, &host);
    ops->frame_destroy(backend, &device);
    mp_backend_close(backend);
    fake_api.clear();
}

static void run_variant(const char *variant)
{
    if (strcmp(variant, "registered") == 0) {
        RUN(frames_are_pinned_in_pieces);
        RUN(frames_are_aligned);
        RUN(what_must_not_be_tried_is_not);
        RUN(copies_stop_where_pieces_do);
        RUN(a_piece_that_is_refused_unpins_the_frame);
        RUN(what_stays_pinned_is_counted);
    } else {
        RUN(unpinned_frames_go_through_a_buffer);
        RUN(the_buffer_has_two_mib_in_four_places);
        RUN(copies_through_a_buffer_can_fail);
        RUN(a_partial_copy_is_waited_for_but_on_a_lost_device); /* last: what it held stays lost */
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *variant, *name, *value;
    } settings[] = {
        { "registered", "FAKECUDA_HOST_NUMA", "0" },
        { "unpinned", "FAKECUDA_HOST_NUMA", "0" },
        { "unpinned", "FAKECUDA_REGISTER", "0" },
    };
    const char *variant = argc > 1 ? argv[1] : "registered";

    mp_log_set_sink(keep_line, NULL);
    setenv("FAKECUDA_MEMORY", "134217728", 1);
    setenv("FAKECUDA_DEVICES", "3", 1);
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (strcmp(settings[i].variant, variant) == 0)
            setenv(settings[i].name, settings[i].value, 1);
    }
    find_fake();
    run_variant(variant);
    return 0;
}
