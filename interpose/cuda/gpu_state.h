#ifndef MP_INTERPOSE_GPU_STATE_H
#define MP_INTERPOSE_GPU_STATE_H

#include <stdatomic.h>

#include "interpose/cuda/gpu.h"
#include "interpose/cuda/tiers.h"
#include "vmm/backend/cuda/cuda_driver.h"
#include "vmm/options/gpu_window_options.h"

/*
 * The devices that have windows, and what of them the program has taken itself. Opened when a
 * program asks for a first large allocation on a device, and ended when it resets that; else none
 * is ever closed, because a driver may be gone before a program's last call.
 */
#define MP_GPU_DEVICES_MAX 16

struct mp_gpu_device {
    int number;
    struct mp_backend *backend;
    struct mp_tiers *tiers;
    uint64_t budget_bytes, unit_bytes;
    uint64_t host_bytes;           /* budget */
    _Atomic(uint64_t) taken_bytes; /* relaxed: by large allocations of the program's own */
    struct mp_gpu_device *next;    /* of those that ended */
};

extern struct mp_gpu_window_config mp_gpu_config;

/* The program's context stays what it was, whatever the calls between these two do. */
struct mp_gpu_context {
    mp_cu_context context;
    bool known;
};
void mp_gpu_context_keep(struct mp_gpu_context *kept);
void mp_gpu_context_restore(const struct mp_gpu_context *kept);

/* NULL: it has no windows, and cannot have any; said once. */
struct mp_gpu_device *mp_gpu_device_open(int device);
/* NULL: it is not open. */
struct mp_gpu_device *mp_gpu_device_at(int device);
/* What it has ends, if it is open; then it is not. Who has it still finds no window there. */
void mp_gpu_device_end(int device);
/* The one that has a window at the address, or NULL. */
struct mp_gpu_device *mp_gpu_device_holding(const void *address);

/* What the program has taken itself, on any device. */
void mp_gpu_taken_add(int device, const void *address, uint64_t bytes);
void mp_gpu_taken_remove(const void *address);

/* Call for each open device. */
void mp_gpu_each(void (*visit)(struct mp_gpu_device *device, void *ctx), void *ctx);

#endif
