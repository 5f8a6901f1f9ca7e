#ifndef MP_GPU_EXECUTORS_H
#define MP_GPU_EXECUTORS_H

#include "policy/policy.h"

/*
 * The executors of a machine with one GPU, as a list for policies: what a probe measures, and what
 * an engine chooses from. Their queues are in engine/forward/cuda.
 */
enum mp_gpu_executor {
    MP_GPU_DEVICE,   /* the GPU, on experts in its memory */
    MP_GPU_IN_PLACE, /* the GPU, reading pinned host memory */
    MP_GPU_CPU,      /* the CPU, beside it */
    MP_GPU_EXECUTORS
};

/* All of them, of unknown cost. */
static inline struct mp_costs mp_gpu_costs(void)
{
    return (struct mp_costs){
        .executor_count = MP_GPU_EXECUTORS,
        .executors = { [MP_GPU_DEVICE] = { .name = "gpu", .reads = MP_READS_DEVICE },
                       [MP_GPU_IN_PLACE] = { .name = "gpu in place", .reads = MP_READS_LINK },
                       [MP_GPU_CPU] = { .name = "cpu", .reads = MP_READS_HOST, .processor = 1 } },
    };
}

#endif
