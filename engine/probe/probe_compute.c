/*
 * The probe's steps for work: launches, graphs, and one expert on each executor.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/pool/pool.h"
#include "engine/probe/probe_int.h"
#include "kernels/cpu/kernels.h"
#include "vmm/base/error.h"

#define KERNELS 32
#define SPIN_US 100 /* MOEPAGER_SPIN_US is this if nobody says otherwise */

/* A hand-off is waited for as a step does. */
enum mp_status mp_bench_launches(struct mp_bench *bench)
{
    static const struct mp_spin spin = { .ns = SPIN_US * 1000 };
    const struct mp_cuda_spin nothing = { .ns = 0 };
    double launch[MP_PROBE_RUNS], handoff[MP_PROBE_RUNS];
    enum mp_status status = MP_OK;

    for (unsigned r = 0; r < MP_PROBE_RUNS && status == MP_OK; r++) {
        double start_us = mp_bench_now_us(bench);

        for (unsigned i = 0; i < KERNELS && status == MP_OK; i++)
            status = mp_gpu_launch(bench->gpu, bench->stream[0], MP_CUDA_KERNEL_spin, &nothing);
        if (status == MP_OK)
            status = mp_gpu_finish(bench->gpu, bench->stream[0]);
        launch[r] = (mp_bench_now_us(bench) - start_us) / KERNELS;

        start_us = mp_bench_now_us(bench);
        if (status == MP_OK)
            status = mp_gpu_launch(bench->gpu, bench->stream[0], MP_CUDA_KERNEL_spin, &nothing);
        if (status == MP_OK)
            status = mp_gpu_record(bench->gpu, bench->event, bench->stream[0]);
        if (status == MP_OK)
            status = mp_gpu_await(bench->gpu, bench->event, &spin);
        handoff[r] = mp_bench_now_us(bench) - start_us;
    }
    if (status != MP_OK)
        return status;
    mp_bench_put(bench, MP_PROBE_LAUNCH, mp_bench_median(launch, MP_PROBE_RUNS));
    mp_bench_put(bench, MP_PROBE_HANDOFF, mp_bench_median(handoff, MP_PROBE_RUNS));
    return MP_OK;
}

enum mp_status mp_bench_graph(struct mp_bench *bench)
{
    const struct mp_cuda_spin nothing = { .ns = 0 };
    mp_cu_graph_exec graph = NULL;
    double us[MP_PROBE_RUNS];
    enum mp_status status = mp_gpu_capture_begin(bench->gpu, bench->stream[0]), ended;

    if (status != MP_OK)
        return status;
    for (unsigned i = 0; i < KERNELS && status == MP_OK; i++)
        status = mp_gpu_launch(bench->gpu, bench->stream[0], MP_CUDA_KERNEL_spin, &nothing);
    ended = mp_gpu_capture_end(bench->gpu, bench->stream[0], &graph);
    status = status == MP_OK ? ended : status;
    for (unsigned r = 0; r < MP_PROBE_RUNS && status == MP_OK; r++) {
        const double start_us = mp_bench_now_us(bench);

        status = mp_gpu_replay(bench->gpu, bench->stream[0], graph);
        if (status == MP_OK)
            status = mp_gpu_finish(bench->gpu, bench->stream[0]);
        us[r] = (mp_bench_now_us(bench) - start_us) / KERNELS;
    }
    if (status == MP_OK)
        mp_bench_put(bench, MP_PROBE_GRAPH_LAUNCH, mp_bench_median(us, MP_PROBE_RUNS));
    if (status != MP_OK)
        mp_bench_settle(bench);
    mp_gpu_graph_close(bench->gpu, graph);
    return status;
}

#define ROWS 8

/* The list of one expert, in pinned memory and in device memory. */
struct list {
    struct mp_cuda_expert expert;
    uint32_t row[ROWS];
};

/* What experts need besides their weights, in device memory. */
struct work {
    struct list *host; /* MP_PROBE_BATCH */
    mp_cu_ptr list, x, act, rank;
};

static void free_work(struct mp_bench *bench, struct work *work)
{
    mp_gpu_free_host(bench->gpu, work->host);
    mp_gpu_free(bench->gpu, work->list);
    mp_gpu_free(bench->gpu, work->x);
    mp_gpu_free(bench->gpu, work->act);
    mp_gpu_free(bench->gpu, work->rank);
}

static enum mp_status make_work(struct mp_bench *bench, struct work *work)
{
    const uint64_t hidden = bench->shape.hidden, channels = bench->shape.channels;
    struct mp_gpu *gpu = bench->gpu;
    enum mp_status status;

    memset(work, 0, sizeof(*work));
    status = mp_gpu_alloc_host(gpu, MP_PROBE_BATCH * sizeof(struct list), "the probe",
                               (void **)&work->host);
    if (status == MP_OK)
        status = mp_gpu_alloc(gpu, MP_PROBE_BATCH * sizeof(struct list), "the probe", &work->list);
    if (status == MP_OK)
        status = mp_gpu_alloc(gpu, ROWS * hidden * 4, "the probe", &work->x);
    if (status == MP_OK)
        status = mp_gpu_alloc(gpu, ROWS * channels * 4, "the probe", &work->act);
    if (status == MP_OK)
        status = mp_gpu_alloc(gpu, ROWS * hidden * 4, "the probe", &work->rank);
    return status;
}

/* Queue an expert whose list stands at `list`. */
static enum mp_status queue_expert(struct mp_bench *bench, const struct work *work, mp_cu_ptr list,
                                   uint32_t tokens)
{
    const struct mp_cuda_experts params = {
        .work = list,
        .row = list + offsetof(struct list, row),
        .x = work->x,
        .act = work->act,
        .rank = work->rank,
        .type = MP_WTYPE_BF16,
        .works = 1,
        .hidden = bench->shape.hidden,
        .channels = bench->shape.channels,
        .top_k = 1,
        .x_stride = bench->shape.hidden,
        .rows_max = tokens,
    };
    const mp_cu_stream stream = bench->stream[0];
    enum mp_status status =
        mp_gpu_launch(bench->gpu, stream, mp_cuda_experts_up(MP_WTYPE_BF16, tokens), &params);

    if (status == MP_OK)
        status =
            mp_gpu_launch(bench->gpu, stream, mp_cuda_experts_down(MP_WTYPE_BF16, tokens), &params);
    return status;
}

/* us of an expert, of MP_PROBE_BATCH whose lists are on the device. */
static enum mp_status time_batch(struct mp_bench *bench, const struct work *work, uint32_t tokens,
                                 double *us_p)
{
    enum mp_status status = mp_bench_begin(bench);

    for (unsigned i = 0; i < MP_PROBE_BATCH && status == MP_OK; i++)
        status = queue_expert(bench, work, work->list + i * sizeof(struct list), tokens);
    if (status == MP_OK)
        status = mp_bench_end(bench, us_p);
    *us_p /= MP_PROBE_BATCH;
    return status;
}

/* The next MP_PROBE_BATCH experts of the `places` at `weights`, on `tokens` tokens each. */
static enum mp_status experts_once(struct mp_bench *bench, const struct work *work,
                                   mp_cu_ptr weights, uint64_t places, uint64_t *at,
                                   uint32_t tokens, double *us_p)
{
    const uint64_t matrix = 2ull * bench->shape.hidden * bench->shape.channels;
    enum mp_status status;

    for (unsigned i = 0; i < MP_PROBE_BATCH; i++) {
        const mp_cu_ptr here = weights + (*at)++ % places * 3 * matrix;

        work->host[i].expert = (struct mp_cuda_expert){
            .gate = here,
            .up = here + matrix,
            .down = here + 2 * matrix,
            .count = tokens,
            .channels = bench->shape.channels,
        };
        for (uint32_t r = 0; r < ROWS; r++)
            work->host[i].row[r] = r;
    }
    status = mp_gpu_upload(bench->gpu, bench->stream[0], work->list, work->host,
                           MP_PROBE_BATCH * sizeof(struct list));
    if (status == MP_OK)
        status = mp_gpu_finish(bench->gpu, bench->stream[0]);
    return status == MP_OK ? time_batch(bench, work, tokens, us_p) : status;
}

/* Walks over the frame, so that caches do not hold what comes next. */
static enum mp_status experts_in(struct mp_bench *bench, const struct mp_frame *frame,
                                 enum mp_probe_item one)
{
    const uint64_t bytes = 6ull * bench->shape.hidden * bench->shape.channels;
    const uint64_t places = frame->bytes / bytes;
    double us[MP_PROBE_BATCHES];
    struct work work;
    uint64_t at = 0;
    enum mp_status status;

    if (places == 0)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_PROBE",
                       "an expert of %llu bytes does not fit into what could be allocated",
                       (unsigned long long)bytes);
    status = make_work(bench, &work);
    for (uint32_t t = 0; t < 2 && status == MP_OK; t++) {
        for (unsigned r = 0; r < MP_PROBE_BATCHES && status == MP_OK; r++)
            status = experts_once(bench, &work, (uintptr_t)frame->alias, places, &at,
                                  t == 0 ? 1 : ROWS, &us[r]);
        if (status == MP_OK)
            mp_bench_put(bench, one + t, mp_bench_median(us, MP_PROBE_BATCHES));
    }
    if (status != MP_OK)
        mp_bench_settle(bench);
    free_work(bench, &work);
    return status;
}

enum mp_status mp_bench_experts(struct mp_bench *bench)
{
    return experts_in(bench, &bench->device, MP_PROBE_EXPERT_1);
}

enum mp_status mp_bench_in_place(struct mp_bench *bench)
{
    return experts_in(bench, &bench->host, MP_PROBE_IN_PLACE_1);
}

/* One expert on the CPU: up to 64 parts of rows, first of gate and up, then of down. */
struct cpu_job {
    const struct mp_kernels *kernels;
    const char *weights;
    struct mp_probe_shape shape;
    size_t tokens, part_rows;
    float *x, *act, *up, *y;
    bool down;
};

static void cpu_part(void *ctx, uint64_t part, unsigned thread)
{
    const struct cpu_job *job = ctx;
    const size_t H = job->shape.hidden, F = job->shape.channels, matrix = 2 * H * F;
    const size_t rows = job->down ? H : F, first = part * job->part_rows;
    const size_t count = first + job->part_rows < rows ? job->part_rows : rows - first;

    (void)thread;
    if (job->down) {
        job->kernels->matmul_blocked(job->y + first, H, job->weights + 2 * matrix + 2 * first * F,
                                     MP_WTYPE_BF16, F, job->act, F, count, F, job->tokens, 0);
        return;
    }
    job->kernels->matmul(job->act + first, F, job->weights + 2 * first * H, MP_WTYPE_BF16, H,
                         job->x, H, count, H, job->tokens);
    job->kernels->matmul(job->up + first, F, job->weights + matrix + 2 * first * H, MP_WTYPE_BF16,
                         H, job->x, H, count, H, job->tokens);
    for (size_t t = 0; t < job->tokens; t++)
        job->kernels->silu_mul(job->act + t * F + first, job->up + t * F + first, count);
}

static void cpu_expert(struct cpu_job *job, struct mp_pool *pool)
{
    for (int down = 0; down < 2; down++) {
        const size_t rows = down ? job->shape.hidden : job->shape.channels;

        job->down = down;
        job->part_rows = rows / 64 > 16 ? rows / 64 : 16;
        mp_pool_run_dynamic(pool, cpu_part, job, (rows + job->part_rows - 1) / job->part_rows);
    }
}

static void cpu_times(struct mp_bench *bench, struct cpu_job *job, struct mp_pool *pool)
{
    const uint64_t bytes = 6ull * bench->shape.hidden * bench->shape.channels;
    const uint64_t places = bench->host.bytes / bytes;
    double us[MP_PROBE_RUNS];
    uint64_t at = 0;

    for (unsigned t = 0; t < 2; t++) {
        job->tokens = t == 0 ? 1 : ROWS;
        for (unsigned r = 0; r < MP_PROBE_RUNS; r++) {
            const double start_us = mp_bench_now_us(bench);

            job->weights = (const char *)bench->host.alias + at++ % places * bytes;
            cpu_expert(job, pool);
            us[r] = mp_bench_now_us(bench) - start_us;
        }
        mp_bench_put(bench, MP_PROBE_CPU_1 + t, mp_bench_median(us, MP_PROBE_RUNS));
    }
}

enum mp_status mp_bench_cpu(struct mp_bench *bench)
{
    const struct mp_pool_config config = { .spin_us = SPIN_US };
    const struct mp_cuda_device *device = mp_gpu_device(bench->gpu);
    const size_t H = bench->shape.hidden, F = bench->shape.channels;
    struct cpu_job job = { .kernels = mp_kernels_best(), .shape = bench->shape };
    struct mp_topology *topology = NULL;
    struct mp_pool *pool = NULL;
    float *floats = calloc(ROWS * (2 * H + 2 * F), sizeof(float));
    enum mp_status status = floats != NULL
                                ? mp_topology_load(NULL, &topology)
                                : mp_fail_no_memory("the probe", ROWS * (2 * H + 2 * F) * 4);

    if (status == MP_OK && bench->host.bytes < 6ull * H * F)
        status = mp_fail(MP_ERR_UNSUPPORTED, "E_PROBE",
                         "an expert does not fit into what could be allocated");
    if (status == MP_OK)
        status = mp_pool_create(&config, topology,
                                mp_topology_near_node(topology, device->pci, device->host_numa_id),
                                &pool);
    if (status == MP_OK) {
        job.x = floats;
        job.y = job.x + ROWS * H;
        job.act = job.y + ROWS * H;
        job.up = job.act + ROWS * F;
        cpu_times(bench, &job, pool);
    }
    mp_pool_destroy(pool);
    mp_topology_destroy(topology);
    free(floats);
    return status;
}
