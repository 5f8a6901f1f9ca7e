/*
 * Parallel executors: each is a queue of batches with a thread. The step's thread queues kernels on
 * a stream and hands the batch over; the queue's thread waits for the event behind it and reports
 * it. The CPU's thread computes its batches itself, over the compute pool. The kernels of a batch
 * are not known here (device_lists.c).
 *
 *     taken - done == batches under way <= MP_DEVICE_BATCHES
 *
 * Memory that a batch used may be moved as soon as its end is reported, so the end is reported only
 * after the device is known to have finished. If even that cannot be determined, the device is
 * lost.
 */
#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* Wait until a stream has nothing left to do. A wait that fails is tried once more, because nothing
 * may be moved under work that goes on. */
static void finish_stream(struct mp_device *device, mp_cu_stream stream)
{
    const struct mp_error before = *mp_error_last();

    if (stream != NULL && mp_gpu_finish(device->gpu, stream) != MP_OK &&
        mp_gpu_finish(device->gpu, stream) != MP_OK)
        mp_gpu_lose(device->gpu);
    mp_error_set(&before);
}

/* Rows that stand one behind the other in the rank buffers cross over in one copy. */
static enum mp_status send_rows(struct mp_device_queue *queue, const struct mp_rows *rows)
{
    const struct mp_device *device = queue->device;
    const struct mp_engine *engine = device->engine;
    const size_t H = engine->config.model->hidden;
    enum mp_status status = MP_OK;
    uint32_t i = 0;

    while (i < rows->count && status == MP_OK) {
        const size_t row = mp_engine_rank_row(engine, rows, i);
        uint32_t n = 1;

        while (i + n < rows->count && mp_engine_rank_row(engine, rows, i + n) == row + n)
            n++;
        status =
            mp_gpu_upload(device->gpu, queue->stream, device->state.rank + row * H * sizeof(float),
                          engine->state.rank + row * H, n * H * sizeof(float));
        i += n;
    }
    return status;
}

/* Compute a batch of the CPU's and bring its results to the device. */
static enum mp_status run_on_cpu(struct mp_device_queue *queue, const struct mp_device_batch *batch)
{
    struct mp_device *device = queue->device;
    const struct mp_expert_work *work = device->work + batch->first;
    enum mp_status status;

    status = mp_cpu_experts(device->engine, batch->layer, work, batch->count);
    for (uint32_t i = 0; i < batch->count && status == MP_OK; i++)
        status = work[i].slice == 0 ? send_rows(queue, &work[i].rows) : MP_OK;
    if (status == MP_OK)
        status = mp_gpu_finish(device->gpu, queue->stream);
    if (status != MP_OK)
        finish_stream(device, queue->stream);
    return status;
}

static enum mp_status await(struct mp_device_queue *queue, const struct mp_device_batch *batch)
{
    const enum mp_status status = mp_gpu_wait(queue->device->gpu, batch->end);

    if (status != MP_OK)
        finish_stream(queue->device, queue->stream);
    return status;
}

/* A cost that was measured moves those that are known towards it, a sixteenth of the way. Costs are
 * those of whole experts, a batch has `slices` parts of each. */
static void adjust(struct mp_executor *cost, const struct mp_device_batch *batch, uint32_t slices,
                   uint64_t measured_ns)
{
    const double expected =
        ((double)cost->fixed_ns * batch->parts + (double)cost->token_ns * batch->rows) / slices;
    double ratio;

    if (measured_ns == 0)
        return;
    if (expected <= 0) {
        cost->fixed_ns = measured_ns * slices / batch->parts;
        return;
    }
    ratio = (double)measured_ns / expected;
    ratio = ratio > 2 ? 2 : ratio < 0.5 ? 0.5 : ratio;
    ratio = 1 + (ratio - 1) / 16;
    cost->fixed_ns = (uint64_t)((double)cost->fixed_ns * ratio + 0.5);
    cost->token_ns = (uint64_t)((double)cost->token_ns * ratio + 0.5);
}

/* What the batch took; 0: not known. */
static uint64_t measure(struct mp_device_queue *queue, const struct mp_device_batch *batch,
                        uint64_t begin_ns, uint64_t end_ns)
{
    float ms = 0;

    if (queue->on_cpu)
        return end_ns - begin_ns;
    if (mp_gpu_elapsed(queue->device->gpu, batch->start, batch->end, &ms) != MP_OK) {
        mp_error_clear();
        return 0;
    }
    return (uint64_t)((double)ms * 1e6);
}

static void note_cost_locked(struct mp_device_queue *queue, const struct mp_device_batch *batch,
                             uint64_t ns)
{
    struct mp_executor *cost = &queue->device->measured.executors[queue->executor];
    const uint32_t slices = mp_device_slices(queue->device);

    mp_assert_held(&queue->device->lock);
    /* The way there and back is a cost of its own. */
    adjust(cost, batch, slices, ns > cost->handoff_ns ? ns - cost->handoff_ns : 0);
}

static void add_ended_locked(struct mp_device *device, const struct mp_expert_work *work,
                             uint32_t count)
{
    uint32_t ended = atomic_load_explicit(&device->ended_count, memory_order_relaxed);

    mp_assert_held(&device->lock);
    /* All slices of an expert that needs nothing loaded are one need. */
    for (uint32_t i = 0; i < count; i++) {
        if (work[i].executor == MP_EXECUTOR_HOME || work[i].slice == 0)
            device->ended[ended++] = work[i].need;
    }
    atomic_store_explicit(&device->ended_count, ended, memory_order_release);
}

/* The batch has ended: report it. */
static void report(struct mp_device_queue *queue, const struct mp_device_batch *batch,
                   enum mp_status status, uint64_t ns, uint64_t end_ns)
{
    struct mp_device *device = queue->device;

    mp_lock(&device->lock);
    if (status != MP_OK && device->error.status == MP_OK)
        device->error = *mp_error_last();
    if (status == MP_OK)
        note_cost_locked(queue, batch, ns);
    add_ended_locked(device, device->work + batch->first, batch->count);
    queue->done++;
    device->last_end_ns = end_ns;
    mp_cond_broadcast(&device->ended_some);
    mp_unlock(&device->lock);
    mp_pager_wake(device->engine->pager);
}

void mp_device_notify_ended(struct mp_device *device, const struct mp_expert_work *work,
                            uint32_t count)
{
    mp_lock(&device->lock);
    add_ended_locked(device, work, count);
    mp_unlock(&device->lock);
}

static void *queue_main(void *arg)
{
    struct mp_device_queue *queue = arg;
    struct mp_device *device = queue->device;
    struct mp_clock *clock = device->engine->config.clock;

    pthread_setname_np(pthread_self(), "mp-executor");
    mp_lock(&device->lock);
    while (!device->stop) {
        struct mp_device_batch batch;
        uint64_t begin_ns, end_ns, ns;
        enum mp_status status;

        if (queue->taken == queue->done) {
            mp_cond_wait(&queue->work, &device->lock);
            continue;
        }
        batch = queue->batches[queue->done % MP_DEVICE_BATCHES];
        mp_unlock(&device->lock);
        begin_ns = mp_clock_now_ns(clock);
        status = queue->on_cpu ? run_on_cpu(queue, &batch) : await(queue, &batch);
        end_ns = mp_clock_now_ns(clock);
        ns = status == MP_OK ? measure(queue, &batch, begin_ns, end_ns) : 0;
        mp_timeline_span(
            device->engine->config.timeline, queue->track, "experts",
            ns > 0 && ns < end_ns ? end_ns - ns : begin_ns, end_ns,
            &(struct mp_timeline_args){ { "experts", "rows" }, { batch.count, batch.rows } });
        report(queue, &batch, status, ns, end_ns);
        mp_lock(&device->lock);
    }
    mp_unlock(&device->lock);
    return NULL;
}

struct mp_device_batch *mp_device_next_batch(struct mp_device_queue *queue)
{
    struct mp_device *device = queue->device;

    mp_lock(&device->lock);
    while (queue->taken - queue->done == MP_DEVICE_BATCHES)
        mp_cond_wait(&device->ended_some, &device->lock);
    mp_unlock(&device->lock);
    return &queue->batches[queue->taken % MP_DEVICE_BATCHES];
}

void mp_device_hand_over(struct mp_device_queue *queue)
{
    mp_lock(&queue->device->lock);
    queue->taken++;
    mp_cond_signal(&queue->work);
    mp_unlock(&queue->device->lock);
}

void mp_device_settle(struct mp_device *device)
{
    mp_lock(&device->lock);
    for (uint32_t i = 0; i < device->queue_count; i++) {
        while (device->queues[i].taken != device->queues[i].done)
            mp_cond_wait(&device->ended_some, &device->lock);
    }
    mp_unlock(&device->lock);
    for (uint32_t i = 0; i < device->queue_count; i++)
        finish_stream(device, device->queues[i].stream);
}

/* The rest of the costs is the step's thread's own. */
static void follow_locked(struct mp_device *device)
{
    const struct mp_costs *measured = &device->measured;
    struct mp_costs *costs = &device->engine->costs;

    mp_assert_held(&device->lock);
    for (uint32_t x = 0; x < costs->executor_count; x++) {
        costs->executors[x].fixed_ns = measured->executors[x].fixed_ns;
        costs->executors[x].token_ns = measured->executors[x].token_ns;
    }
}

/* Nothing to report yet? A deterministic run reports all work together: leases that end one by one
 * would let time choose what is evicted. */
static bool is_waiting_locked(const struct mp_device *device)
{
    bool working = false;

    mp_assert_held(&device->lock);
    for (uint32_t i = 0; i < device->queue_count; i++)
        working |= device->queues[i].taken != device->queues[i].done;
    return atomic_load_explicit(&device->ended_count, memory_order_relaxed) == 0 ||
           (working && device->engine->config.deterministic);
}

enum mp_status mp_device_ended(struct mp_compute *c, bool wait, uint32_t *needs, uint32_t *count_p)
{
    struct mp_device *device = mp_device_of(c);
    enum mp_status status;
    uint32_t count;

    mp_lock(&device->lock);
    while (wait && is_waiting_locked(device))
        mp_cond_wait(&device->ended_some, &device->lock);
    count = atomic_load_explicit(&device->ended_count, memory_order_relaxed);
    memcpy(needs, device->ended, count * sizeof(needs[0]));
    atomic_store_explicit(&device->ended_count, 0, memory_order_release);
    status = device->error.status;
    if (status != MP_OK)
        mp_error_set(&device->error);
    device->error.status = MP_OK;
    if (!device->engine->config.deterministic)
        follow_locked(device);
    mp_unlock(&device->lock);
    *count_p = count;
    return status;
}

bool mp_device_any_ended(struct mp_compute *c)
{
    struct mp_device *device = mp_device_of(c);

    /* A deterministic run looks for ended work only when nothing else is left to wait for. */
    return !device->engine->config.deterministic &&
           atomic_load_explicit(&device->ended_count, memory_order_acquire) > 0;
}

uint64_t mp_device_last_end_ns(struct mp_device *device)
{
    uint64_t ns;

    mp_lock(&device->lock);
    ns = device->last_end_ns;
    mp_unlock(&device->lock);
    return ns;
}

bool mp_device_pool_taken(struct mp_compute *c)
{
    struct mp_device *device = mp_device_of(c);
    bool taken = false;

    mp_lock(&device->lock);
    for (uint32_t i = 0; i < device->queue_count; i++)
        taken |= device->queues[i].on_cpu && device->queues[i].taken != device->queues[i].done;
    mp_unlock(&device->lock);
    return taken;
}

static enum mp_status open_events(struct mp_device_queue *queue)
{
    struct mp_gpu *gpu = queue->device->gpu;
    enum mp_status status = MP_OK;

    for (unsigned i = 0; i < MP_DEVICE_BATCHES && status == MP_OK; i++) {
        status = mp_gpu_event_open(gpu, true, &queue->batches[i].start);
        if (status == MP_OK)
            status = mp_gpu_event_open(gpu, true, &queue->batches[i].end);
    }
    return status;
}

/* The threads come with mp_device_start(): they need a pager to wake. */
enum mp_status mp_device_queues_open(struct mp_device *device)
{
    const struct mp_costs all = mp_gpu_costs();
    struct mp_timeline *timeline = device->engine->config.timeline;
    uint32_t streams = 0; /* with products */
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; i < all.executor_count && status == MP_OK; i++) {
        struct mp_device_queue *queue = &device->queues[device->queue_count++];

        queue->device = device;
        queue->on_cpu = all.executors[i].reads == MP_READS_HOST;
        if (!queue->on_cpu)
            queue->scratch = streams++;
        mp_cond_init(&queue->work);
        if (timeline != NULL)
            queue->track = mp_timeline_add_track(timeline, all.executors[i].name);
        status = mp_gpu_stream_open(device->gpu, &queue->stream);
        if (status == MP_OK && !queue->on_cpu)
            status = open_events(queue);
    }
    return status;
}

enum mp_status mp_device_start(struct mp_device *device)
{
    sigset_t all, before;
    int error = 0;

    /* None of the threads handles signals. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (uint32_t i = 0; i < device->queue_count && error == 0; i++) {
        struct mp_device_queue *queue = &device->queues[i];

        error = pthread_create(&queue->thread, NULL, queue_main, queue);
        queue->running = error == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 ? MP_OK
                      : mp_fail(MP_ERR_NO_MEMORY, "E_THREADS",
                                "cannot start the thread of an executor: %s", strerror(error));
}

void mp_device_stop(struct mp_device *device)
{
    if (device == NULL)
        return;
    mp_device_settle(device);
    mp_lock(&device->lock);
    device->stop = true;
    for (uint32_t i = 0; i < device->queue_count; i++)
        mp_cond_signal(&device->queues[i].work);
    mp_unlock(&device->lock);
    for (uint32_t i = 0; i < device->queue_count; i++) {
        if (device->queues[i].running)
            pthread_join(device->queues[i].thread, NULL);
        device->queues[i].running = false;
    }
}

void mp_device_queues_close(struct mp_device *device)
{
    for (uint32_t i = 0; i < device->queue_count; i++) {
        struct mp_device_queue *queue = &device->queues[i];

        for (unsigned b = 0; b < MP_DEVICE_BATCHES; b++) {
            mp_gpu_event_close(device->gpu, queue->batches[b].start);
            mp_gpu_event_close(device->gpu, queue->batches[b].end);
        }
        mp_gpu_stream_close(device->gpu, queue->stream);
        mp_cond_fini(&queue->work);
    }
}
