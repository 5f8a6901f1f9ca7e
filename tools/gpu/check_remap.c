/*
 * Questions about page tables that only a device can decide, as a program that checks and measures:
 *
 *   beside    units are mapped and unmapped in a loop while kernels read other units of the same
 *             window; every sum must be right
 *   replay    a captured graph reads a window address; between replays the address gets other
 *             physical memory; every replay must see what is mapped then
 *   alias     what a copy writes through a frame's alias, a kernel reads through the window
 *   host      reads by a kernel: memory on a NUMA node against pinned memory, GB/s
 *
 * Usage: check_remap [ORDINAL] [--few]. --few: short, where kernels run on the CPU. One line per
 * question: "NAME ok|WRONG|failed: why, numbers". 0: all ok; 1: not; 77: there is no driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gpu/gpu.h"
#include "vmm/backend/backend.h"
#include "vmm/base/clock.h"
#include "vmm/base/error.h"

#define FRAMES 4
#define TIMES_MAX (1u << 16) /* that a kernel reads a frame */

struct remap {
    unsigned rounds; /* of each question */
    uint32_t blocks; /* of a kernel */
    struct mp_gpu *gpu;
    struct mp_backend *backend;
    mp_cu_stream compute, copy;
    uint64_t bytes; /* of a frame */
    struct mp_frame frame[FRAMES];
    char *window; /* FRAMES places */
    mp_cu_ptr sums;
    uint64_t *host; /* pinned: a frame's bytes, then sums */
};

static mp_cu_ptr address(const void *at)
{
    return (mp_cu_ptr)(uintptr_t)at;
}

static double now_us(void)
{
    return (double)mp_clock_now_ns(mp_clock_monotonic()) / 1e3;
}

/* Every word of the frame gets `value`, through its alias. */
static enum mp_status fill(struct remap *r, unsigned frame, uint64_t value)
{
    enum mp_status status;

    for (uint64_t i = 0; i < r->bytes / 8; i++)
        r->host[i] = value;
    status = mp_gpu_upload(r->gpu, r->copy, address(r->frame[frame].alias), r->host, r->bytes);
    return status == MP_OK ? mp_gpu_finish(r->gpu, r->copy) : status;
}

static enum mp_status queue_read(struct remap *r, const void *at, uint32_t times)
{
    const struct mp_cuda_read params = {
        .src = address(at), .bytes = r->bytes, .sum = r->sums, .times = times, .blocks = r->blocks
    };

    return mp_gpu_launch(r->gpu, r->compute, MP_CUDA_KERNEL_read, &params);
}

/* Wait for queued reads; *sum_p := of the last. */
static enum mp_status take_sum(struct remap *r, uint64_t *sum_p)
{
    uint64_t *sums = r->host + r->bytes / 8, sum = 0;
    enum mp_status status =
        mp_gpu_download(r->gpu, r->compute, sums, r->sums, r->blocks * sizeof(*sums));

    if (status == MP_OK)
        status = mp_gpu_finish(r->gpu, r->compute);
    for (uint32_t i = 0; status == MP_OK && i < r->blocks; i++)
        sum += sums[i];
    *sum_p = sum;
    return status;
}

static uint64_t sum_of(const struct remap *r, uint64_t value)
{
    return r->bytes / 8 * value;
}

static enum mp_status map(struct remap *r, unsigned place, unsigned frame)
{
    return r->backend->ops->window_map(r->backend, r->window + place * r->bytes, &r->frame[frame]);
}

static enum mp_status unmap(struct remap *r, unsigned place)
{
    return r->backend->ops->window_unmap(r->backend, r->window + place * r->bytes, r->bytes);
}

/* A kernel that ends before the last change of page tables proves nothing: then the next one reads
 * four times as often. */
static enum mp_status beside(struct remap *r, bool *right_p, char *note, size_t bytes)
{
    double remap_us = 0;
    uint32_t times = 16;
    unsigned good = 0;
    mp_cu_event event = NULL;
    enum mp_status status = fill(r, 0, 7);

    *right_p = true;
    if (status == MP_OK)
        status = mp_gpu_event_open(r->gpu, false, &event);
    if (status == MP_OK)
        status = map(r, 0, 0);
    for (unsigned round = 0; round < r->rounds && status == MP_OK; round++) {
        uint64_t sum = 0;
        double start_us;
        bool done = false;

        status = queue_read(r, r->window, times);
        if (status == MP_OK)
            status = mp_gpu_record(r->gpu, event, r->compute);
        start_us = now_us();
        for (unsigned i = 1; i < FRAMES && status == MP_OK; i++) {
            status = map(r, i, i);
            if (status == MP_OK)
                status = unmap(r, i);
        }
        remap_us += now_us() - start_us;
        if (status == MP_OK)
            status = mp_gpu_query(r->gpu, event, &done);
        if (status == MP_OK)
            status = take_sum(r, &sum);
        *right_p = *right_p && sum == times * sum_of(r, 7);
        good += !done;
        if (done && times < TIMES_MAX)
            times *= 4;
    }
    if (status == MP_OK)
        status = unmap(r, 0);
    mp_gpu_event_close(r->gpu, event);
    *right_p = *right_p && good >= r->rounds / 2;
    snprintf(note, bytes,
             "%u remaps of %.0f MiB, %u of %u kernels ran until after them, %.1f us each",
             r->rounds * (FRAMES - 1), (double)r->bytes / (1 << 20), good, r->rounds,
             remap_us / (r->rounds * (FRAMES - 1)));
    return status;
}

static enum mp_status replay(struct remap *r, bool *right_p, char *note, size_t bytes)
{
    mp_cu_graph_exec graph = NULL;
    enum mp_status status = MP_OK, ended;

    *right_p = true;
    for (unsigned i = 0; i < FRAMES && status == MP_OK; i++)
        status = fill(r, i, 100 + i);
    if (status == MP_OK)
        status = map(r, 0, 0);
    if (status == MP_OK)
        status = mp_gpu_capture_begin(r->gpu, r->compute);
    if (status != MP_OK)
        return status;
    status = queue_read(r, r->window, 1);
    ended = mp_gpu_capture_end(r->gpu, r->compute, &graph);
    status = status == MP_OK ? ended : status;
    for (unsigned round = 0; round < r->rounds && status == MP_OK; round++) {
        uint64_t sum = 0;

        status = mp_gpu_replay(r->gpu, r->compute, graph);
        if (status == MP_OK)
            status = take_sum(r, &sum);
        *right_p = *right_p && sum == sum_of(r, 100 + round % FRAMES);
        if (status == MP_OK)
            status = unmap(r, 0);
        if (status == MP_OK)
            status = map(r, 0, (round + 1) % FRAMES);
    }
    mp_gpu_graph_close(r->gpu, graph);
    if (status == MP_OK)
        status = unmap(r, 0);
    snprintf(note, bytes, "%u replays of one graph over %u physical memories", r->rounds, FRAMES);
    return status;
}

static enum mp_status alias(struct remap *r, bool *right_p, char *note, size_t bytes)
{
    uint64_t sum = 0;
    enum mp_status status = map(r, 0, 1);

    *right_p = true;
    for (unsigned round = 0; round < r->rounds && status == MP_OK; round++) {
        status = fill(r, 1, round);
        if (status == MP_OK)
            status = queue_read(r, r->window, 1);
        if (status == MP_OK)
            status = take_sum(r, &sum);
        *right_p = *right_p && sum == sum_of(r, round);
    }
    if (status == MP_OK)
        status = unmap(r, 0);
    snprintf(note, bytes, "%u writes through the alias read through the window", r->rounds);
    return status;
}

static enum mp_status read_host(struct remap *r, const void *at, double *gbps_p)
{
    double best = 0;
    enum mp_status status = MP_OK;

    for (unsigned i = 0; i < 5 && status == MP_OK; i++) {
        const double start_us = now_us();
        uint64_t sum;

        status = queue_read(r, at, 1);
        if (status == MP_OK)
            status = take_sum(r, &sum);
        if (status == MP_OK && (double)r->bytes / 1e3 / (now_us() - start_us) > best)
            best = (double)r->bytes / 1e3 / (now_us() - start_us);
    }
    *gbps_p = best;
    return status;
}

static enum mp_status host(struct remap *r, bool *right_p, char *note, size_t bytes)
{
    struct mp_frame frame = { 0 };
    double numa = 0, pinned = 0;
    enum mp_status status =
        r->backend->ops->frame_create(r->backend, MP_TIER_HOST, r->bytes, &frame);

    *right_p = true;
    if (status != MP_OK)
        return status;
    memset(frame.alias, 1, r->bytes);
    status = read_host(r, frame.alias, &numa);
    if (status == MP_OK)
        status = read_host(r, r->host, &pinned);
    r->backend->ops->frame_destroy(r->backend, &frame);
    snprintf(note, bytes, "host frame %.2f GB/s, cuMemHostAlloc %.2f GB/s, read in place", numa,
             pinned);
    return status;
}

static enum mp_status open_remap(struct remap *r, unsigned ordinal)
{
    const struct mp_backend_config config = { .numa_node = -1, .device = ordinal };
    uint64_t free_bytes = 0, total_bytes = 0;
    enum mp_status status = mp_gpu_open(ordinal, &r->gpu);

    if (status == MP_OK)
        status = mp_backend_open("cuda", &config, &r->backend);
    if (status == MP_OK && !r->backend->caps.windows)
        status = mp_fail(MP_ERR_UNSUPPORTED, "E_CUDA_OFF", "this device has no windows");
    if (status == MP_OK)
        status = mp_gpu_enter(r->gpu);
    if (status == MP_OK)
        status =
            r->backend->ops->memory_info(r->backend, MP_TIER_DEVICE, &free_bytes, &total_bytes);
    if (status != MP_OK)
        return status;
    r->bytes = UINT64_C(32) << 20;
    while (r->bytes > r->backend->caps.granule_bytes && r->bytes * FRAMES * 2 > free_bytes)
        r->bytes /= 2;
    for (unsigned i = 0; i < FRAMES && status == MP_OK; i++)
        status = r->backend->ops->frame_create(r->backend, MP_TIER_DEVICE, r->bytes, &r->frame[i]);
    if (status == MP_OK)
        status =
            r->backend->ops->window_reserve(r->backend, FRAMES * r->bytes, (void **)&r->window);
    if (status == MP_OK)
        status = mp_gpu_stream_open(r->gpu, &r->compute);
    if (status == MP_OK)
        status = mp_gpu_stream_open(r->gpu, &r->copy);
    if (status == MP_OK)
        status = mp_gpu_alloc(r->gpu, r->blocks * sizeof(uint64_t), "sums", &r->sums);
    if (status == MP_OK)
        status = mp_gpu_alloc_host(r->gpu, r->bytes + r->blocks * sizeof(uint64_t), "a frame",
                                   (void **)&r->host);
    return status;
}

static void close_remap(struct remap *r)
{
    if (r->window != NULL)
        r->backend->ops->window_free(r->backend, r->window, FRAMES * r->bytes);
    for (unsigned i = 0; i < FRAMES; i++) {
        if (r->frame[i].handle != 0)
            r->backend->ops->frame_destroy(r->backend, &r->frame[i]);
    }
    if (r->gpu != NULL) {
        mp_gpu_free(r->gpu, r->sums);
        mp_gpu_free_host(r->gpu, r->host);
        mp_gpu_stream_close(r->gpu, r->compute);
        mp_gpu_stream_close(r->gpu, r->copy);
    }
    mp_backend_close(r->backend);
    mp_gpu_close(r->gpu);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        enum mp_status (*run)(struct remap *r, bool *right_p, char *note, size_t bytes);
    } questions[] = {
        { "beside", beside }, { "replay", replay }, { "alias", alias }, { "host", host }
    };
    const bool few = argc > 2 && strcmp(argv[2], "--few") == 0;
    struct remap r = { .rounds = few ? 8 : 64, .blocks = few ? 16 : 1024 };
    int failed = 0;
    enum mp_status status;

    mp_gpu_configure_from_environment();
    status = open_remap(&r, argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0);

    if (status != MP_OK) {
        fprintf(stderr, "check_remap: %s\n", mp_error_last()->text);
        close_remap(&r);
        return status == MP_ERR_UNSUPPORTED ? 77 : 1;
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(questions); i++) {
        char note[256] = "";
        bool right = false;

        status = questions[i].run(&r, &right, note, sizeof(note));
        if (status != MP_OK)
            printf("%-8s failed: %s\n", questions[i].name, mp_error_last()->text);
        else
            printf("%-8s %s: %s\n", questions[i].name, right ? "ok" : "WRONG", note);
        fflush(stdout);
        failed |= status != MP_OK || !right;
    }
    close_remap(&r);
    return failed;
}
