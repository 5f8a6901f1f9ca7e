/*
 * The probe's steps for work: launches, graphs, and experts on each executor.
 */
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

/* Lists of experts, MP_PROBE_BATCH of them, in pinned memory and in device memory: `works` entries,
 * then the rows of each. And what experts need besides their weights, in device memory. */
struct work {
    char *host;
    uint64_t list_bytes;
    mp_cu_ptr list, x, act, rank;
    uint32_t works;
};

static void free_work(struct mp_bench *bench, struct work *work)
{
    mp_gpu_free_host(bench->gpu, work->host);
    mp_gpu_free(bench->gpu, work->list);
    mp_gpu_free(bench->gpu, work->x);
    mp_gpu_free(bench->gpu, work->act);
    mp_gpu_free(bench->gpu, work->rank);
}

static enum mp_status make_work(struct mp_bench *bench, uint32_t works, struct work *work)
{
    const uint64_t hidden = bench->shape.hidden, channels = bench->shape.channels;
    struct mp_gpu *gpu = bench->gpu;
    enum mp_status status;

    memset(work, 0, sizeof(*work));
    work->works = works;
    work->list_bytes = works * (sizeof(struct mp_cuda_expert) + ROWS * sizeof(uint32_t));
    status = mp_gpu_alloc_host(gpu, MP_PROBE_BATCH * work->list_bytes, "the probe",
                               (void **)&work->host);
    if (status == MP_OK)
        status = mp_gpu_alloc(gpu, MP_PROBE_BATCH * work->list_bytes, "the probe", &work->list);
    if (status == MP_OK)
        status = mp_gpu_alloc(gpu, ROWS * hidden * 4, "the probe", &work->x);
    if (status == MP_OK)
        status = mp_gpu_alloc(gpu, works * ROWS * channels * 4, "the probe", &work->act);
    if (status == MP_OK)
        status = mp_gpu_alloc(gpu, works * ROWS * hidden * 4, "the probe", &work->rank);
    return status;
}

/* Queue the experts of the list at `list`, in two launches as a step does. */
static enum mp_status queue_list(struct mp_bench *bench, const struct work *work, mp_cu_ptr list,
                                 uint32_t tokens)
{
    const struct mp_probe_shape *shape = &bench->shape;
    struct mp_cuda_experts params = {
        .work = list,
        .row = list + work->works * sizeof(struct mp_cuda_expert),
        .x = work->x,
        .act = work->act,
        .rank = work->rank,
        .type = shape->gate,
        .works = work->works,
        .hidden = shape->hidden,
        .channels = shape->channels,
        .top_k = work->works,
        .x_stride = shape->hidden,
        .rows_max = tokens,
    };
    const mp_cu_stream stream = bench->stream[0];
    enum mp_status status =
        mp_gpu_launch(bench->gpu, stream, mp_cuda_experts_up(shape->gate, tokens), &params);

    params.type = shape->down;
    if (status == MP_OK)
        status =
            mp_gpu_launch(bench->gpu, stream, mp_cuda_experts_down(shape->down, tokens), &params);
    return status;
}

/* us of an expert, of MP_PROBE_BATCH lists that are on the device. */
static enum mp_status time_batch(struct mp_bench *bench, const struct work *work, uint32_t tokens,
                                 double *us_p)
{
    enum mp_status status = mp_bench_begin(bench);

    for (unsigned i = 0; i < MP_PROBE_BATCH && status == MP_OK; i++)
        status = queue_list(bench, work, work->list + i * work->list_bytes, tokens);
    if (status == MP_OK)
        status = mp_bench_end(bench, us_p);
    *us_p /= MP_PROBE_BATCH * work->works;
    return status;
}

/* Each expert of the list has all `tokens`: row t * works + e is that of token t. */
static void fill_list(const struct mp_bench *bench, const struct work *work, char *list,
                      mp_cu_ptr weights, uint64_t places, uint64_t *at, uint32_t tokens)
{
    const uint64_t gate = mp_probe_gate_bytes(&bench->shape);
    struct mp_cuda_expert *expert = (struct mp_cuda_expert *)list;
    uint32_t *row = (uint32_t *)(expert + work->works);

    for (uint32_t e = 0; e < work->works; e++) {
        const mp_cu_ptr here = weights + (*at)++ % places * mp_probe_expert_bytes(&bench->shape);

        expert[e] = (struct mp_cuda_expert){
            .gate = here,
            .up = here + gate,
            .down = here + 2 * gate,
            .first = e * tokens,
            .count = tokens,
            .channels = bench->shape.channels,
        };
        for (uint32_t t = 0; t < tokens; t++)
            *row++ = t * work->works + e;
    }
}

/* The next MP_PROBE_BATCH lists of the `places` at `weights`, of `tokens` tokens each. */
static enum mp_status lists_once(struct mp_bench *bench, const struct work *work, mp_cu_ptr weights,
                                 uint64_t places, uint64_t *at, uint32_t tokens, double *us_p)
{
    const uint64_t bytes = MP_PROBE_BATCH * work->list_bytes;
    enum mp_status status;

    for (unsigned i = 0; i < MP_PROBE_BATCH; i++)
        fill_list(bench, work, work->host + i * work->list_bytes, weights, places, at, tokens);
    status = mp_gpu_upload(bench->gpu, bench->stream[0], work->list, work->host, bytes);
    if (status == MP_OK)
        status = mp_gpu_finish(bench->gpu, bench->stream[0]);
    return status == MP_OK ? time_batch(bench, work, tokens, us_p) : status;
}

static enum mp_status does_not_fit(const struct mp_bench *bench)
{
    return mp_fail(MP_ERR_UNSUPPORTED, "E_PROBE",
                   "an expert of %llu bytes does not fit into what could be allocated",
                   (unsigned long long)mp_probe_expert_bytes(&bench->shape));
}

/* Walks over the frame, so that caches do not hold what comes next. No list has a place twice. */
static enum mp_status experts_in(struct mp_bench *bench, const struct mp_frame *frame,
                                 enum mp_probe_item one)
{
    const uint32_t wanted = bench->shape.experts > 0 ? bench->shape.experts : 1;
    const uint64_t places = frame->bytes / mp_probe_expert_bytes(&bench->shape);
    double us[MP_PROBE_BATCHES];
    struct work work;
    uint64_t at = 0;
    enum mp_status status;

    if (places == 0)
        return does_not_fit(bench);
    status = mp_gpu_load_type(bench->gpu, bench->shape.gate);
    if (status == MP_OK)
        status = mp_gpu_load_type(bench->gpu, bench->shape.down);
    if (status != MP_OK)
        return status;
    status = make_work(bench, places < wanted ? (uint32_t)places : wanted, &work);
    for (uint32_t t = 0; t < 2 && status == MP_OK; t++) {
        for (unsigned r = 0; r < MP_PROBE_BATCHES && status == MP_OK; r++)
            status = lists_once(bench, &work, (uintptr_t)frame->alias, places, &at,
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
    const size_t H = job->shape.hidden, F = job->shape.channels;
    const size_t matrix = mp_probe_gate_bytes(&job->shape);
    const size_t rows = job->down ? H : F, first = part * job->part_rows;
    const size_t count = first + job->part_rows < rows ? job->part_rows : rows - first;
    const enum mp_wtype type = job->down ? job->shape.down : job->shape.gate;
    const char *w = job->weights + mp_wtype_bytes(type, first * (job->down ? F : H));

    (void)thread;
    if (job->down) {
        job->kernels->matmul_blocked(job->y + first, H, w + 2 * matrix, type, F, job->act, F, count,
                                     F, job->tokens, 0);
        return;
    }
    job->kernels->matmul(job->act + first, F, w, type, H, job->x, H, count, H, job->tokens);
    job->kernels->matmul(job->up + first, F, w + matrix, type, H, job->x, H, count, H, job->tokens);
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
    const uint64_t bytes = mp_probe_expert_bytes(&bench->shape);
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

    if (status == MP_OK && bench->host.bytes < mp_probe_expert_bytes(&bench->shape))
        status = does_not_fit(bench);
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
