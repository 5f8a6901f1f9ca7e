#ifndef MP_GPU_EXECUTORS_H
#define MP_GPU_EXECUTORS_H

#include "policy/policy.h"

/*
 * The executors of a machine with one GPU, as a list for policies: what a probe measures, and what
 * an engine chooses from. An engine makes a queue for each row (engine/forward/cuda/device_queue.c)
 * and asks what a row reads, never which one it is.
 */

/* Places in that list, for those who measure them one by one. */
enum { MP_GPU_DEVICE, MP_GPU_IN_PLACE, MP_GPU_CPU };

/* All of them, of unknown cost. */
static inline struct mp_costs mp_gpu_costs(void)
{
    return (struct mp_costs){
        .executor_count = 3,
        .executors = {
            /* the GPU, on experts in its memory */
            [MP_GPU_DEVICE] = { .name = "gpu", .reads = MP_READS_DEVICE },
            /* the GPU, reading pinned host memory */
            [MP_GPU_IN_PLACE] = { .name = "gpu in place", .reads = MP_READS_LINK },
            /* the CPU, beside it */
            [MP_GPU_CPU] = { .name = "cpu", .reads = MP_READS_HOST, .processor = 1 },
        },
    };
}

#endif
