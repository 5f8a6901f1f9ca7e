#ifndef MP_DEVICE_GRAPH_H
#define MP_DEVICE_GRAPH_H

#include "engine/forward/cuda/device.h"

/* Shared by device_graph.c (steps as CUDA graphs), device_graph_pass.c (their operations) and
 * device_graph_notify.c (notification of pager and policies). */

/* N: MP_DEVICE_FEW_TOKENS or less; L: MoE layers; S: slices of an expert. */
struct mp_device_graphs {
    mp_cu_graph_exec execs[MP_DEVICE_FEW_TOKENS + 1]; /* by tokens */
    bool warm[MP_DEVICE_FEW_TOKENS + 1]; /* all kernels have run once, so they may be captured */
    bool refused;       /* the driver refused to create graphs: kernels are launched one by one */
    enum mp_wtype type; /* of all experts */
    uint32_t tokens_max;

    mp_cu_ptr table;  /* struct mp_cuda_place_of (L, S, E) */
    mp_cu_ptr work;   /* struct mp_cuda_expert, as many as N tokens can choose */
    mp_cu_ptr row;    /* u32 (N, R) */
    mp_cu_ptr expert; /* u32 (N, R) */
    mp_cu_ptr misses; /* u32 (L, S) */
    mp_cu_ptr scores; // (L, N, E)
    mp_cu_ptr x;      // (L, N, H): before the experts

    /* Pinned. */
    struct mp_cuda_place_of *places; // (L, S, E)
    uint32_t *missed;                // (L, S)
    float *seen;                     // (L, N, E)

    bool known; /* the table is valid for this generation of the space */
    uint64_t generation;

    /* Of a host-driven step. */
    struct mp_step_ops host_ops;
    struct mp_step_executor host_executors[MP_EXECUTORS_MAX];
    bool taken; /* the host has taken over the current layer */

    uint32_t rest,
        pause; /* steps for the host to drive before the next graph, and after the next miss */
    struct mp_device_graph_counts counts;
};

/* Queue the whole batch, from its ids to its logits. */
enum mp_status mp_device_graph_queue(struct mp_device *device) MP_MUST_CHECK;

/* Notify pager and policies of the first `done` MoE layers, or of those up to and including the
 * first that the host has taken over (graphs->taken). *notified_p := their number. */
enum mp_status mp_device_graph_notify(struct mp_device *device, uint32_t done,
                                      uint32_t *notified_p) MP_MUST_CHECK;

/* After a replay: queue what restores the state after attention and norm of the layer. */
void mp_device_graph_resume(struct mp_device *device, uint32_t moe_layer);

#endif
