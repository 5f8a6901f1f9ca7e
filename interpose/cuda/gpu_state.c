/*
 * Devices of the interposer: opened once each, their budgets, what programs took without us.
 */
#include "interpose/cuda/gpu_state.h"

#include <inttypes.h>
#include <stdlib.h>

#include "interpose/cuda/objects.h"
#include "interpose/cuda/work.h"
#include "vmm/backend/backend.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/base/lock.h"
#include "vmm/base/log.h"

#define TAKEN_MAX 4096u

struct mp_gpu_window_config mp_gpu_config;

static struct mp_mutex lock = MP_MUTEX_INIT(MP_LOCK_CONTEXT, "gpu");
static struct {
    bool tried;
    _Atomic(struct mp_gpu_device *) device; /* set once; release and acquire */
} devices[MP_GPU_DEVICES_MAX];
static _Atomic(int)
    devices_end; /* behind the last that is open; relaxed: asked for at each launch */

static struct {
    const void *address; /* NULL: free */
    uint64_t bytes;
    int device;
} taken[TAKEN_MAX] MP_GUARDED_BY(lock);

/* Other threads may have them still. */
static struct mp_gpu_device *ended MP_GUARDED_BY(lock);

void mp_gpu_context_keep(struct mp_gpu_context *kept)
{
    const struct mp_cuda *cuda;

    kept->context = NULL;
    kept->known =
        mp_cuda_get(&cuda) == MP_OK && cuda->call.context_get(&kept->context) == MP_CU_SUCCESS;
}

void mp_gpu_context_restore(const struct mp_gpu_context *kept)
{
    const struct mp_cuda *cuda;

    if (kept->known && mp_cuda_get(&cuda) == MP_OK)
        (void)cuda->call.context_set(kept->context);
}

static void read_budgets(struct mp_gpu_device *gpu, unsigned devices_seen)
{
    uint64_t free_bytes = 0, total_bytes = 0;

    if (gpu->backend->ops->memory_info(gpu->backend, MP_TIER_DEVICE, &free_bytes, &total_bytes) !=
        MP_OK)
        total_bytes = 0;
    gpu->budget_bytes = mp_share_resolve(&mp_gpu_config.budget, total_bytes, total_bytes);
    free_bytes = total_bytes = 0;
    if (gpu->backend->ops->memory_info(gpu->backend, MP_TIER_HOST, &free_bytes, &total_bytes) !=
        MP_OK)
        free_bytes = 0;
    gpu->host_bytes = mp_share_resolve(&mp_gpu_config.host_budget, free_bytes, free_bytes / 2) /
                      (devices_seen > 0 ? devices_seen : 1);
}

static enum mp_status open_device(unsigned number, struct mp_gpu_device *gpu)
{
    const struct mp_backend_config backend = { .numa_node = -1, .device = number };
    const struct mp_cuda *cuda;
    mp_cu_context context = NULL;
    struct mp_tiers_config tiers = { .unit_bytes = mp_gpu_config.unit_bytes,
                                     .evict = mp_gpu_config.evict };
    enum mp_status status = mp_cuda_get(&cuda);

    if (status == MP_OK)
        status = mp_backend_open("cuda", &backend, &gpu->backend);
    if (status != MP_OK)
        return status;
    /* Opening made it the thread's. */
    status = mp_cuda_check(cuda, cuda->call.context_get(&context), "cuCtxGetCurrent", "a device");
    if (status != MP_OK) {
        mp_backend_close(gpu->backend);
        return status;
    }
    read_budgets(gpu, cuda->devices);
    tiers.backend = gpu->backend;
    tiers.device_bytes = gpu->budget_bytes;
    tiers.host_bytes = gpu->host_bytes;
    status = mp_tiers_open(&tiers, &gpu->tiers);
    if (status != MP_OK) {
        mp_backend_close(gpu->backend);
        return status;
    }
    gpu->number = (int)number;
    gpu->unit_bytes = mp_gpu_config.unit_bytes;
    mp_work_open(cuda, context);
    mp_log_info("gpu",
                "device %u: %" PRIu64 " bytes for large allocations, %" PRIu64
                " of the host beyond that",
                number, gpu->budget_bytes, gpu->host_bytes);
    return MP_OK;
}

struct mp_gpu_device *mp_gpu_device_at(int device)
{
    return device >= 0 && device < MP_GPU_DEVICES_MAX
               ? atomic_load_explicit(&devices[device].device, memory_order_acquire)
               : NULL;
}

struct mp_gpu_device *mp_gpu_device_open(int device)
{
    struct mp_gpu_device *gpu = mp_gpu_device_at(device);
    enum mp_status status;

    if (gpu != NULL || device < 0 || device >= MP_GPU_DEVICES_MAX)
        return gpu;
    mp_lock(&lock);
    if (!devices[device].tried) {
        devices[device].tried = true;
        gpu = calloc(1, sizeof(*gpu));
        status = gpu != NULL ? open_device((unsigned)device, gpu)
                             : mp_fail_no_memory("a device", sizeof(*gpu));
        if (status != MP_OK) {
            mp_log_warn("gpu", "device %d has no windows: %s", device, mp_error_last()->text);
            free(gpu);
        } else {
            atomic_store_explicit(&devices[device].device, gpu, memory_order_release);
            if (atomic_load_explicit(&devices_end, memory_order_relaxed) <= device)
                atomic_store_explicit(&devices_end, device + 1, memory_order_relaxed);
        }
    }
    mp_unlock(&lock);
    return mp_gpu_device_at(device);
}

void mp_gpu_device_end(int device)
{
    struct mp_gpu_device *gpu;
    const void *window;
    uint64_t bytes;

    if (device < 0 || device >= MP_GPU_DEVICES_MAX)
        return;
    mp_lock(&lock);
    gpu = atomic_exchange_explicit(&devices[device].device, NULL, memory_order_acq_rel);
    devices[device].tried = false;
    for (uint32_t i = 0; i < TAKEN_MAX; i++) {
        if (taken[i].device != device || taken[i].address == NULL)
            continue;
        mp_objects_forget((uintptr_t)taken[i].address, taken[i].bytes);
        taken[i].address = NULL;
    }
    if (gpu != NULL) {
        while (mp_tiers_find_window(gpu->tiers, &window, &bytes)) {
            mp_objects_forget((uintptr_t)window, bytes);
            (void)mp_tiers_free(gpu->tiers, window);
        }
        mp_tiers_end(gpu->tiers);
        mp_backend_close(gpu->backend);
        gpu->next = ended;
        ended = gpu;
    }
    mp_unlock(&lock);
}

struct mp_gpu_device *mp_gpu_device_holding(const void *address)
{
    const int end = atomic_load_explicit(&devices_end, memory_order_relaxed);

    for (int d = 0; d < end; d++) {
        struct mp_gpu_device *gpu = mp_gpu_device_at(d);

        if (gpu != NULL && mp_tiers_holds(gpu->tiers, address))
            return gpu;
    }
    return NULL;
}

void mp_gpu_taken_add(int device, const void *address, uint64_t bytes)
{
    struct mp_gpu_device *gpu = mp_gpu_device_at(device);
    uint32_t i = 0;

    if (gpu == NULL)
        return;
    mp_lock(&lock);
    while (i < TAKEN_MAX && taken[i].address != NULL)
        i++;
    if (i < TAKEN_MAX) { /* else it counts as none, and less becomes a window */
        taken[i].address = address;
        taken[i].bytes = bytes;
        taken[i].device = device;
        atomic_fetch_add_explicit(&gpu->taken_bytes, bytes, memory_order_relaxed);
    }
    mp_unlock(&lock);
}

void mp_gpu_taken_remove(const void *address)
{
    mp_lock(&lock);
    for (uint32_t i = 0; i < TAKEN_MAX; i++) {
        if (taken[i].address != address)
            continue;
        atomic_fetch_sub_explicit(&mp_gpu_device_at(taken[i].device)->taken_bytes, taken[i].bytes,
                                  memory_order_relaxed);
        taken[i].address = NULL;
        break;
    }
    mp_unlock(&lock);
}

void mp_gpu_each(void (*visit)(struct mp_gpu_device *device, void *ctx), void *ctx)
{
    const int end = atomic_load_explicit(&devices_end, memory_order_relaxed);

    for (int d = 0; d < end; d++) {
        struct mp_gpu_device *gpu = mp_gpu_device_at(d);

        if (gpu != NULL)
            visit(gpu, ctx);
    }
}
