/*
 * The measuring child: opens the device, runs the steps, prints lines (engine/probe/probe.h).
 */
#include <stdlib.h>
#include <string.h>

#include "engine/probe/probe_int.h"
#include "vmm/base/error.h"

/* Of each of the two frames that are copied and read, at least, where the device has that much:
 * a batch of the largest chunks. */
#define FRAME_BYTES (UINT64_C(128) << 20)
/* Of a list's experts, for which a frame is made larger. */
#define LIST_BYTES_MAX (UINT64_C(1) << 30)
#define AHEAD_NS 100000 /* that the device waits before it measures */
/* Of the device, that a frame fills: what is read again must not come from there. */
#define CACHES 4

void mp_bench_put(const struct mp_bench *bench, enum mp_probe_item item, double value)
{
    fprintf(bench->out, "%s %.9g\n", mp_probe_key(item), value);
    fflush(bench->out);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double mp_bench_median(double *values, unsigned count)
{
    qsort(values, count, sizeof(*values), compare);
    return values[count / 2];
}

double mp_bench_now_us(const struct mp_bench *bench)
{
    return (double)mp_clock_now_ns(bench->clock) / 1e3;
}

enum mp_status mp_bench_begin(struct mp_bench *bench)
{
    const struct mp_cuda_spin ahead = { .ns = AHEAD_NS };
    enum mp_status status =
        mp_gpu_launch(bench->gpu, bench->stream[0], MP_CUDA_KERNEL_spin, &ahead);

    if (status == MP_OK)
        status = mp_gpu_record(bench->gpu, bench->begin, bench->stream[0]);
    return status == MP_OK ? mp_gpu_order(bench->gpu, bench->stream[1], bench->begin) : status;
}

enum mp_status mp_bench_end(struct mp_bench *bench, double *us_p)
{
    float ms = 0;
    enum mp_status status = mp_gpu_record(bench->gpu, bench->event, bench->stream[1]);

    if (status == MP_OK)
        status = mp_gpu_order(bench->gpu, bench->stream[0], bench->event);
    if (status == MP_OK)
        status = mp_gpu_record(bench->gpu, bench->end, bench->stream[0]);
    if (status == MP_OK)
        status = mp_gpu_wait(bench->gpu, bench->end);
    if (status == MP_OK)
        status = mp_gpu_elapsed(bench->gpu, bench->begin, bench->end, &ms);
    *us_p = (double)ms * 1000;
    return status;
}

enum mp_status mp_bench_check(struct mp_bench *bench, mp_cu_result result, const char *call)
{
    if (mp_cuda_is_sticky(result))
        mp_gpu_lose(bench->gpu);
    return mp_cuda_check(mp_gpu_driver(bench->gpu), result, call, "the probe");
}

/* A wait that fails is tried once more. */
void mp_bench_settle(struct mp_bench *bench)
{
    const struct mp_error before = *mp_error_last();

    for (unsigned i = 0; i < 2; i++) {
        if (bench->stream[i] != NULL && mp_gpu_finish(bench->gpu, bench->stream[i]) != MP_OK &&
            mp_gpu_finish(bench->gpu, bench->stream[i]) != MP_OK)
            mp_gpu_lose(bench->gpu);
    }
    mp_error_set(&before);
}

struct step {
    const char *name;
    enum mp_status (*run)(struct mp_bench *bench);
};

/* Before there are frames: whether they are of this kind follows from it. */
static const struct step host_numa = { MP_PROBE_STEP_HOST_NUMA, mp_bench_host_numa };

static const struct step steps[] = {
    { "copies", mp_bench_copies },       { "reads", mp_bench_reads },
    { "maps", mp_bench_maps },           { "launches", mp_bench_launches },
    { "graph", mp_bench_graph },         { "experts", mp_bench_experts },
    { "in-place", mp_bench_in_place },   { "cpu", mp_bench_cpu },
    { "maps-busy", mp_bench_maps_busy },
};

/* Is `name` in the comma-separated list? */
static bool listed(const char *list, const char *name)
{
    const size_t bytes = strlen(name);
    const char *at = list;

    while (at != NULL) {
        if (!strncmp(at, name, bytes) && (at[bytes] == ',' || at[bytes] == '\0'))
            return true;
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    return false;
}

/* Weights as models have them: devices are faster with zeros. */
static enum mp_status fill_frames(struct mp_bench *bench)
{
    uint64_t *words = bench->host.alias, random = 1;

    for (uint64_t i = 0; i < bench->host.bytes / 8; i++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        words[i] = UINT64_C(0x3c003c003c003c00) ^ (random >> 7 & UINT64_C(0x807f807f807f807f));
    }
    enum mp_status status =
        mp_gpu_upload(bench->gpu, bench->stream[0], (mp_cu_ptr)(uintptr_t)bench->device.alias,
                      bench->host.alias, bench->host.bytes);

    return status == MP_OK ? mp_gpu_finish(bench->gpu, bench->stream[0]) : status;
}

static enum mp_status open_bench(struct mp_bench *bench, unsigned ordinal)
{
    enum mp_status status = mp_gpu_open(ordinal, &bench->gpu);

    if (status != MP_OK)
        return status;
    bench->call = &mp_gpu_driver(bench->gpu)->call;
    status = mp_gpu_enter(bench->gpu);
    for (unsigned i = 0; i < 2 && status == MP_OK; i++)
        status = mp_gpu_stream_open(bench->gpu, &bench->stream[i]);
    if (status == MP_OK)
        status = mp_gpu_event_open(bench->gpu, false, &bench->event);
    if (status == MP_OK)
        status = mp_gpu_event_open(bench->gpu, true, &bench->begin);
    if (status == MP_OK)
        status = mp_gpu_event_open(bench->gpu, true, &bench->end);
    if (status == MP_OK)
        status = mp_gpu_alloc(bench->gpu, 1u << 20, "the probe", &bench->scratch);
    return status;
}

/* Host frames of the kind that runs will have. */
static enum mp_status open_frames(struct mp_bench *bench, unsigned ordinal)
{
    const struct mp_backend_config config = { .numa_node = -1,
                                              .device = ordinal,
                                              .no_host_handles = !bench->host_handles };
    const struct mp_cuda_device *device = mp_gpu_device(bench->gpu);
    uint64_t free_bytes = 0, total_bytes = 0, bytes = FRAME_BYTES;
    const uint64_t list_bytes = mp_probe_expert_bytes(&bench->shape) * bench->shape.experts;
    struct mp_backend *backend;
    enum mp_status status = mp_backend_open("cuda", &config, &bench->backend);

    if (status != MP_OK)
        return status;
    backend = bench->backend;
    status = backend->ops->memory_info(backend, MP_TIER_DEVICE, &free_bytes, &total_bytes);
    while (bytes < CACHES * device->cache_bytes || (bytes < list_bytes && bytes < LIST_BYTES_MAX))
        bytes *= 2;
    while (bytes > backend->caps.granule_bytes && bytes > free_bytes / 4)
        bytes /= 2;
    if (status == MP_OK)
        status = backend->ops->frame_create(backend, MP_TIER_DEVICE, bytes, &bench->device);
    if (status == MP_OK)
        status = backend->ops->frame_create(backend, MP_TIER_HOST, bytes, &bench->host);
    if (status == MP_OK && !backend->ops->reads_host(backend))
        return mp_fail(MP_ERR_DEVICE, "E_PROBE",
                       "host memory cannot be pinned, so no link is worth measuring");
    return status == MP_OK ? fill_frames(bench) : status;
}

static void close_bench(struct mp_bench *bench)
{
    struct mp_backend *backend = bench->backend;

    if (bench->gpu != NULL)
        mp_bench_settle(bench);
    if (backend != NULL && bench->host.handle != 0)
        backend->ops->frame_destroy(backend, &bench->host);
    if (backend != NULL && bench->device.handle != 0)
        backend->ops->frame_destroy(backend, &bench->device);
    if (bench->gpu != NULL) {
        mp_gpu_free(bench->gpu, bench->scratch);
        mp_gpu_event_close(bench->gpu, bench->event);
        mp_gpu_event_close(bench->gpu, bench->begin);
        mp_gpu_event_close(bench->gpu, bench->end);
        for (unsigned i = 0; i < 2; i++)
            mp_gpu_stream_close(bench->gpu, bench->stream[i]);
    }
    mp_backend_close(backend);
    mp_gpu_close(bench->gpu);
}

static void say(const struct mp_bench *bench, const char *word, const char *step)
{
    fprintf(bench->out, "%s %s\n", word, step);
    fflush(bench->out);
}

static void run_step(struct mp_bench *bench, const struct step *step)
{
    say(bench, "begin", step->name);
    if (step->run(bench) == MP_OK)
        return;
    fprintf(bench->out, "failed %s: %s\n", step->name, mp_error_last()->text);
    mp_bench_settle(bench);
    mp_error_clear();
}

enum mp_status mp_probe_measure(unsigned ordinal, const struct mp_probe_shape *shape,
                                const char *skip, FILE *out)
{
    struct mp_bench bench = { .clock = mp_clock_monotonic(), .shape = *shape, .out = out };
    const bool rest = !listed(skip, "rest");
    enum mp_status status;

    say(&bench, "begin", "open");
    status = open_bench(&bench, ordinal);
    if (status == MP_OK && !listed(skip, host_numa.name))
        run_step(&bench, &host_numa);
    if (status == MP_OK && rest) {
        say(&bench, "begin", "open");
        status = open_frames(&bench, ordinal);
    }
    if (rest) {
        for (size_t i = 0; i < MP_ARRAY_LEN(steps) && status == MP_OK; i++) {
            if (!listed(skip, steps[i].name))
                run_step(&bench, &steps[i]);
        }
    }
    if (status != MP_OK)
        fprintf(out, "failed open: %s\n", mp_error_last()->text);
    close_bench(&bench);
    if (status == MP_OK)
        fprintf(out, "end\n");
    fflush(out);
    return status;
}
