#ifndef MP_GPU_EXECUTORS_H
#define MP_GPU_EXECUTORS_H

#include "policy/policy.h"

/*
 * The executors of a machine with one GPU, as a list for policies: a probe measures them, and an
 * engine uses those that it can. An engine creates a queue for each row
 * (engine/forward/cuda/device_queue.c) and treats it by what it reads, never by its index.
 */

/* Indices in that list, for code that measures them one by one. */
enum { MP_GPU_DEVICE, MP_GPU_IN_PLACE, MP_GPU_CPU };

/* All executors, with unknown costs. */
static inline struct mp_costs mp_gpu_costs(void)
{
    return (struct mp_costs){
        .executor_count = 3,
        .executors = {
            /* the GPU, on experts in its memory */
            [MP_GPU_DEVICE] = { .name = "gpu", .reads = MP_READS_DEVICE },
            /* the GPU, reading pinned host memory */
            [MP_GPU_IN_PLACE] = { .name = "gpu in place", .reads = MP_READS_LINK },
            /* the CPU, in parallel */
            [MP_GPU_CPU] = { .name = "cpu", .reads = MP_READS_HOST, .processor = 1 },
        },
    };
}

#endif
