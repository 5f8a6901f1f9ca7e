#ifndef MP_DEVICE_GRAPH_H
#define MP_DEVICE_GRAPH_H

#include "engine/forward/cuda/device.h"

/* What device_graph.c (steps that the device does alone), device_graph_pass.c (what they are made
 * of) and device_graph_notify.c (what pager and policies are notified of) share. */

/* N: MP_DEVICE_FEW_TOKENS or less; L: MoE layers; S: slices of an expert. */
struct mp_device_graphs {
    mp_cu_graph_exec execs[MP_DEVICE_FEW_TOKENS + 1]; /* by tokens */
    bool warm[MP_DEVICE_FEW_TOKENS + 1];              /* all kernels have run once */
    bool refused;       /* the driver does not make graphs: kernels one by one */
    enum mp_wtype type; /* of all experts */
    uint32_t tokens_max;

    mp_cu_ptr table;  /* struct mp_cuda_place_of (L, S, E) */
    mp_cu_ptr work;   /* struct mp_cuda_expert (E) */
    mp_cu_ptr row;    /* u32 (N, R) */
    mp_cu_ptr expert; /* u32 (N, R) */
    mp_cu_ptr misses; /* u32 (L, S) */
    mp_cu_ptr scores; // (L, N, E)
    mp_cu_ptr x;      // (L, N, H): before the experts

    /* Pinned. */
    struct mp_cuda_place_of *places; // (L, S, E)
    uint32_t *missed;                // (L, S)
    float *seen;                     // (L, N, E)

    bool known; /* the table is that of this generation of the space */
    uint64_t generation;

    /* Of a host-driven step. */
    struct mp_step_ops host_ops;
    struct mp_step_executor host_executors[MP_EXECUTORS_MAX];
    bool taken; /* the layer in work is the host's now */

    uint32_t rest, pause; /* steps that the host drives yet, and after the next miss */
    struct mp_device_graph_counts counts;
};

/* The batch in work from its ids to its logits, queued. */
enum mp_status mp_device_graph_queue(struct mp_device *device) MP_MUST_CHECK;

/* Pager and policies are notified of the first `done` MoE layers, or up to and with the first that
 * the host has taken over (graphs->taken): *notified_p of them. */
enum mp_status mp_device_graph_notify(struct mp_device *device, uint32_t done,
                                      uint32_t *notified_p) MP_MUST_CHECK;

/* After a replay, queued: the device is again where attention and norm of the layer have ended. */
void mp_device_graph_resume(struct mp_device *device, uint32_t moe_layer);

#endif
