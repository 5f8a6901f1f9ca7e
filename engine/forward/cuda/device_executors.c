/*
 * The executors of a machine with a device as the step drives them: the device, the device reading
 * the host tier in place, and the CPU. Here work becomes batches of their queues; device_lists.c
 * launches the kernels of a batch, device_queue.c reports its end.
 */
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

void mp_device_release_host(struct mp_device *device)
{
    const uint32_t units = device->engine->shape.experts * mp_device_slices(device);

    for (uint32_t i = 0; i < units; i++) {
        if (device->leased[i])
            mp_pager_release_host(device->engine->pager, device->leased_layer * units + i);
        device->leased[i] = 0;
    }
}

/*
 * The lease of the host tier ends with the layer, whatever becomes of it. What an inclusive tier
 * holds is the same for good once it has been filled, for which a deterministic run waits; with an
 * exclusive one such a run is refused (E_RESIDENCY).
 */
static bool take(void *ctx, uint32_t moe_layer, uint32_t expert)
{
    struct mp_device *device = ((struct mp_device_queue *)ctx)->device;
    struct mp_engine *engine = device->engine;
    const uint32_t slices = engine->config.weights->slices.count, first = expert * slices;
    const uint32_t units = moe_layer * engine->shape.experts * slices;

    for (uint32_t i = 0; i < slices; i++) {
        if (mp_pager_lease_host(engine->pager, units + first + i, device->pieces[first + i])) {
            device->leased[first + i] = 1;
            continue;
        }
        while (i-- > 0) {
            mp_pager_release_host(engine->pager, units + first + i);
            device->leased[first + i] = 0;
        }
        return false;
    }
    return true;
}

/* The CPU takes an expert slice by slice, side by side, as the host's operation does. */
static void add_slices(struct mp_device *device, const struct mp_expert_work *work)
{
    const uint32_t slices = mp_device_slices(device);

    for (uint32_t slice = 0; slice < slices; slice++) {
        struct mp_expert_work *part = &device->work[device->work_used++];

        *part = *work;
        part->slice = slice;
        part->slices = 1;
        memcpy(part->pieces, device->pieces[work->expert * slices + slice], sizeof(part->pieces));
    }
}

/* The work becomes a batch of the queue. */
static struct mp_device_batch *fill_batch(struct mp_device_queue *queue, uint32_t moe_layer,
                                          const struct mp_expert_work *work, uint32_t count)
{
    struct mp_device *device = queue->device;
    const uint32_t first = device->work_used;
    struct mp_device_batch *batch;
    uint32_t parts = 0, rows = 0;

    for (uint32_t i = 0; i < count; i++) {
        mp_assert(device->work_used < device->engine->shape.experts * mp_device_slices(device));
        if (queue->on_cpu)
            add_slices(device, &work[i]);
        else
            device->work[device->work_used++] = work[i];
        parts += work[i].slices;
        rows += work[i].slices * work[i].rows.count;
    }
    batch = mp_device_next_batch(queue);
    batch->layer = moe_layer;
    batch->first = first;
    batch->count = device->work_used - first;
    batch->parts = parts;
    batch->rows = rows;
    return batch;
}

/* A batch of a stream is queued before it is handed over, so that after an error nothing has been
 * taken. */
static enum mp_status begin(void *ctx, uint32_t moe_layer, const struct mp_expert_work *work,
                            uint32_t count)
{
    struct mp_device_queue *queue = ctx;
    struct mp_device *device = queue->device;
    const uint32_t work_used = device->work_used;
    const struct mp_device_batch *batch;
    enum mp_status status = mp_engine_check_cancel(device->engine);

    if (status != MP_OK)
        return status;
    batch = fill_batch(queue, moe_layer, work, count);
    status = queue->on_cpu ? mp_engine_bring_input(device->engine)
                           : mp_device_queue_batch(device, queue, batch);
    if (status != MP_OK) {
        mp_device_settle(device);
        device->work_used = work_used;
        return status;
    }
    mp_device_hand_over(queue);
    device->elsewhere += queue->executor != MP_EXECUTOR_HOME;
    mp_engine_note_done(device->engine, work, count);
    return MP_OK;
}

void mp_device_list_executors(struct mp_device *device, bool in_place)
{
    struct mp_costs *costs = &device->engine->costs;
    const struct mp_costs *measured = &device->engine->config.costs;
    const struct mp_costs all = measured->executor_count > 0 ? *measured : mp_gpu_costs();

    mp_assert(all.executor_count == device->queue_count);
    costs->executor_count = 0;
    for (uint32_t i = 0; i < all.executor_count; i++) {
        const bool loads = mp_executor_loads(&all.executors[i]);
        const uint32_t place = costs->executor_count;

        if (all.executors[i].reads == MP_READS_LINK && !in_place)
            continue;
        device->queues[i].executor = place;
        device->compute.executors[place] = (struct mp_step_executor){
            .ctx = &device->queues[i],
            .ordered = i == MP_EXECUTOR_HOME, /* on the stream of the transformer */
            .take = loads ? NULL : take,
            .begin = begin,
        };
        costs->executors[place] = all.executors[i];
        costs->executor_count++;
    }
    device->measured = *costs;
}
