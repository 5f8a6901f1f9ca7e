/*
 * Parallel executors: each is a queue of batches. The step's thread queues kernels on a stream, an
 * event behind them, and hands the batch over; it looks at the event when it wants to know what has
 * ended (device_ended.c). The CPU's batches are computed by a thread, over the compute pool. The
 * kernels of a batch are not known here (device_lists.c).
 *
 *     taken - done == batches under way <= MP_DEVICE_BATCHES
 *
 * A queue of a stream has a thread, too, which sleeps unless the queue is watched: when the step's
 * thread is about to sleep for several things at once, each such thread waits for its oldest batch.
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
        status = mp_gpu_record(device->gpu, batch->end, queue->stream);
    return status == MP_OK ? mp_gpu_await(device->gpu, batch->end, device->engine->config.spin)
                           : status;
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

/* Between two events of a stream; 0: not known. */
static uint64_t elapsed_ns(const struct mp_device *device, mp_cu_event from, mp_cu_event to)
{
    float ms = 0;

    if (mp_gpu_elapsed(device->gpu, from, to, &ms) != MP_OK) {
        mp_error_clear();
        return 0;
    }
    return (uint64_t)((double)ms * 1e6);
}

uint64_t mp_device_since_experts_ns(struct mp_device *device)
{
    const struct mp_device_queue *queue = &device->queues[MP_EXECUTOR_HOME];
    uint64_t ns = 0;

    if (queue->taken > 0 && device->seen_batches == queue->taken)
        ns = elapsed_ns(device, queue->batches[(queue->taken - 1) % MP_DEVICE_BATCHES].end,
                        device->seen);
    return ns > 0 ? ns : UINT64_MAX;
}

/* When the oldest batch ended: now, or before something behind it that has been seen. */
static uint64_t end_of(const struct mp_device_queue *queue, const struct mp_device_batch *batch,
                       uint64_t now_ns)
{
    const struct mp_device *device = queue->device;

    if (queue != &device->queues[MP_EXECUTOR_HOME] || queue->watched ||
        queue->done >= device->seen_batches)
        return now_ns;
    return device->seen_ns - elapsed_ns(device, batch->end, device->seen);
}

static void draw(const struct mp_device_queue *queue, const struct mp_device_batch *batch,
                 uint64_t ns)
{
    const struct mp_engine_config *config = &queue->device->engine->config;
    uint64_t end_ns;

    if (config->timeline == NULL)
        return;
    end_ns = end_of(queue, batch, mp_clock_now_ns(config->clock));
    mp_timeline_span(
        config->timeline, queue->track, "experts", ns < end_ns ? end_ns - ns : 0, end_ns,
        &(struct mp_timeline_args){ { "experts", "rows" }, { batch->count, batch->rows } });
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

/* `ns`: what the batch took; 0: not known. */
static void report(struct mp_device_queue *queue, const struct mp_device_batch *batch,
                   enum mp_status status, uint64_t ns)
{
    struct mp_device *device = queue->device;

    mp_lock(&device->lock);
    if (status != MP_OK && device->error.status == MP_OK)
        device->error = *mp_error_last();
    if (status == MP_OK)
        note_cost_locked(queue, batch, ns);
    mp_device_add_ended_locked(device, device->work + batch->first, batch->count);
    mp_assert(!queue->on_cpu || queue->taken != queue->done);
    queue->done++;
    atomic_store_explicit(&queue->watched, queue->on_cpu && queue->taken != queue->done,
                          memory_order_release);
    mp_unlock(&device->lock);
}

void mp_device_conclude(struct mp_device_queue *queue, enum mp_status status)
{
    struct mp_device *device = queue->device;
    const struct mp_engine_config *config = &device->engine->config;
    const struct mp_device_batch batch = queue->batches[queue->done % MP_DEVICE_BATCHES];
    uint64_t ns = 0;

    if (status != MP_OK)
        finish_stream(device, queue->stream);
    else if (queue->on_cpu)
        ns = mp_clock_now_ns(config->clock) - batch.start_ns;
    else if (!config->deterministic || config->timeline != NULL)
        ns = elapsed_ns(device, batch.start, batch.end);
    draw(queue, &batch, ns);
    report(queue, &batch, status, ns);
    mp_error_clear(); /* it is the batch's */
}

static void *queue_main(void *arg)
{
    struct mp_device_queue *queue = arg;
    struct mp_device *device = queue->device;

    pthread_setname_np(pthread_self(), "mp-executor");
    mp_lock(&device->lock);
    while (!device->stop) {
        struct mp_device_batch *batch = &queue->batches[queue->done % MP_DEVICE_BATCHES];

        if (!queue->watched) {
            mp_cond_wait(&queue->work, &device->lock);
            continue;
        }
        mp_unlock(&device->lock);
        if (queue->on_cpu)
            batch->start_ns = mp_clock_now_ns(device->engine->config.clock);
        mp_device_conclude(queue, queue->on_cpu ? run_on_cpu(queue, batch)
                                                : mp_gpu_wait(device->gpu, batch->end));
        mp_pager_wake(device->engine->pager);
        mp_lock(&device->lock);
        mp_cond_broadcast(&device->ended_some);
    }
    mp_unlock(&device->lock);
    return NULL;
}

bool mp_device_queue_works(const struct mp_device_queue *queue)
{
    return atomic_load_explicit(&queue->watched, memory_order_acquire) ||
           queue->taken != queue->done;
}

void mp_device_watch_locked(struct mp_device *device)
{
    mp_assert_held(&device->lock);
    for (uint32_t i = 0; i < device->queue_count; i++) {
        struct mp_device_queue *queue = &device->queues[i];

        if (queue->watched || queue->taken == queue->done)
            continue;
        queue->watched = true;
        mp_cond_signal(&queue->work);
    }
}

struct mp_device_batch *mp_device_next_batch(struct mp_device_queue *queue)
{
    struct mp_device *device = queue->device;
    struct mp_device_batch *batch = &queue->batches[queue->taken % MP_DEVICE_BATCHES];

    if (!atomic_load_explicit(&queue->watched, memory_order_acquire) &&
        queue->taken - queue->done < MP_DEVICE_BATCHES)
        return batch;
    mp_lock(&device->lock);
    while (queue->taken - queue->done == MP_DEVICE_BATCHES) {
        mp_device_watch_locked(device);
        mp_cond_wait(&device->ended_some, &device->lock);
    }
    mp_unlock(&device->lock);
    return batch;
}

void mp_device_hand_over(struct mp_device_queue *queue)
{
    if (!queue->on_cpu) {
        queue->taken++;
        return;
    }
    mp_lock(&queue->device->lock);
    queue->taken++;
    queue->watched = true;
    mp_cond_signal(&queue->work);
    mp_unlock(&queue->device->lock);
}

static bool any_works(const struct mp_device *device)
{
    bool works = false;

    for (uint32_t i = 0; i < device->queue_count; i++)
        works |= mp_device_queue_works(&device->queues[i]);
    return works;
}

void mp_device_settle(struct mp_device *device)
{
    mp_lock(&device->lock);
    while (any_works(device)) {
        mp_device_watch_locked(device);
        mp_cond_wait(&device->ended_some, &device->lock);
    }
    mp_unlock(&device->lock);
    for (uint32_t i = 0; i < device->queue_count; i++)
        finish_stream(device, device->queues[i].stream);
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
        if (status == MP_OK)
            status = open_events(queue);
    }
    mp_gpu_chain(device->gpu, mp_device_stream(device));
    return status == MP_OK ? mp_gpu_event_open(device->gpu, true, &device->seen) : status;
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
    mp_gpu_event_close(device->gpu, device->seen);
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
