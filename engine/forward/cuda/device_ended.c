/*
 * What the step hears of the executors' work: which needs have ended, whether something has, and
 * waits until something does.
 *
 * Nobody reports a batch of a stream by himself: the step's thread looks at the event behind it,
 * again and again for a bounded time where it waits (vmm/base/spin.h). Where it has to sleep, it
 * waits for the event if there is nothing else to wait for; else the queues' threads do
 * (device_queue.c).
 */
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

void mp_device_add_ended_locked(struct mp_device *device, const struct mp_expert_work *work,
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

void mp_device_notify_ended(struct mp_device *device, const struct mp_expert_work *work,
                            uint32_t count)
{
    mp_lock(&device->lock);
    mp_device_add_ended_locked(device, work, count);
    mp_unlock(&device->lock);
}

static bool is_watched(const struct mp_device_queue *queue)
{
    return atomic_load_explicit(&queue->watched, memory_order_acquire);
}

/* Report what has ended of a queue that its thread does not have. */
static void look_at(struct mp_device_queue *queue)
{
    while (!is_watched(queue) && queue->taken != queue->done) {
        const struct mp_device_batch *batch = &queue->batches[queue->done % MP_DEVICE_BATCHES];
        bool ended = false;
        const enum mp_status status = mp_gpu_query(queue->device->gpu, batch->end, &ended);

        if (status == MP_OK && !ended)
            return;
        mp_device_conclude(queue, status);
    }
}

static void look_at_all(struct mp_device *device)
{
    for (uint32_t i = 0; i < device->queue_count; i++)
        look_at(&device->queues[i]);
}

/* A deterministic run looks for ended work only when nothing else is left to wait for. */
void mp_device_look(struct mp_compute *c, bool sleeps)
{
    struct mp_device *device = mp_device_of(c);

    if (device->engine->config.deterministic)
        return;
    if (!sleeps) {
        look_at_all(device);
        return;
    }
    mp_lock(&device->lock);
    mp_device_watch_locked(device);
    mp_unlock(&device->lock);
}

bool mp_device_any_ended(struct mp_compute *c)
{
    struct mp_device *device = mp_device_of(c);

    return !device->engine->config.deterministic &&
           atomic_load_explicit(&device->ended_count, memory_order_acquire) > 0;
}

/* Nothing to report yet? A deterministic run reports all work together: leases that end one by one
 * would let time choose what is evicted. */
static bool is_waiting(const struct mp_device *device)
{
    bool works = false;

    if (atomic_load_explicit(&device->ended_count, memory_order_acquire) == 0)
        return true;
    for (uint32_t i = 0; i < device->queue_count && device->engine->config.deterministic; i++)
        works |= mp_device_queue_works(&device->queues[i]);
    return works;
}

/* The only queue with work, if that is a stream's and its thread does not have it. */
static struct mp_device_queue *only_stream(struct mp_device *device)
{
    struct mp_device_queue *only = NULL;

    for (uint32_t i = 0; i < device->queue_count; i++) {
        struct mp_device_queue *queue = &device->queues[i];
        const bool watched = is_watched(queue); /* once: its thread may give it back meanwhile */

        if (!watched && queue->taken == queue->done)
            continue;
        if (only != NULL || watched)
            return NULL;
        only = queue;
    }
    return only;
}

static void sleep_until_ended(struct mp_device *device)
{
    struct mp_device_queue *queue = only_stream(device);

    if (!is_waiting(device))
        return;
    if (queue != NULL) {
        mp_device_conclude(
            queue, mp_gpu_wait(device->gpu, queue->batches[queue->done % MP_DEVICE_BATCHES].end));
        return;
    }
    mp_lock(&device->lock);
    if (is_waiting(device)) {
        mp_device_watch_locked(device);
        mp_cond_wait(&device->ended_some, &device->lock);
    }
    mp_unlock(&device->lock);
}

static void wait_until_ended(struct mp_device *device)
{
    struct mp_spin_wait wait = mp_spin_begin(device->engine->config.spin);

    while (is_waiting(device)) {
        if (mp_spin_again(&wait))
            look_at_all(device);
        else
            sleep_until_ended(device);
    }
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

enum mp_status mp_device_ended(struct mp_compute *c, uint32_t *needs, uint32_t *count_p)
{
    struct mp_device *device = mp_device_of(c);
    enum mp_status status;
    uint32_t count;

    wait_until_ended(device);
    mp_lock(&device->lock);
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

bool mp_device_pool_taken(struct mp_compute *c)
{
    const struct mp_device *device = mp_device_of(c);
    bool taken = false;

    for (uint32_t i = 0; i < device->queue_count; i++)
        taken |= device->queues[i].on_cpu && is_watched(&device->queues[i]);
    return taken;
}

void mp_device_note_seen(struct mp_device *device)
{
    const struct mp_engine_config *config = &device->engine->config;

    device->seen_count++;
    device->seen_batches = device->queues[MP_EXECUTOR_HOME].taken;
    if (config->timeline != NULL)
        device->seen_ns = mp_clock_now_ns(config->clock);
}
