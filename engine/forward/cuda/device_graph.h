#ifndef MP_DEVICE_GRAPH_H
#define MP_DEVICE_GRAPH_H

#include "engine/forward/cuda/device.h"

/* Shared by device_graph.c (steps as CUDA graphs), device_graph_pass.c (their operations) and
 * device_graph_notify.c (notification of pager and policies). */

/* What the device does from behind the experts of one MoE layer, or from the ids, to the logits. */
struct mp_device_segment {
    mp_cu_graph_exec exec; /* NULL: its kernels are launched one by one */
    bool ran;              /* they have been once, so they may be captured */
};

/* N: MP_DEVICE_FEW_TOKENS or less; L: MoE layers; S: slices of an expert. */
struct mp_device_graphs {
    struct mp_device_segment *segments; // (N, L), by the first MoE layer; 0: the whole step
    uint32_t captured;                  /* those that are graphs and no whole step */
    bool refused; /* the driver refused to create graphs: kernels are launched one by one */
    uint32_t tokens_max;

    /* Of the device's memory, for graphs: planned, seen to be taken, and by the largest of them. */
    uint64_t driver_bytes_max, driver_bytes, largest_bytes;

    mp_cu_ptr table;   /* struct mp_cuda_place_of (L, S, E) */
    mp_cu_ptr work;    /* struct mp_cuda_expert, as many as N tokens can choose */
    mp_cu_ptr row;     /* u32 (N, R) */
    mp_cu_ptr expert;  /* u32 (N, R) */
    mp_cu_ptr misses;  /* u32 (L, S) */
    mp_cu_ptr scores;  // (L, N, E)
    mp_cu_ptr x;       // (L, N, H): before the experts
    bool asks;         /* the next layer's gate is asked, in every layer */
    mp_cu_ptr guesses; // (L, N, E): what it says

    /* Pinned. */
    struct mp_cuda_place_of *places; // (L, S, E)
    uint32_t *missed;                // (L, S)
    float *seen;                     // (L, N, E)
    float *guessed;                  // (L, N, E)

    bool known; /* the table is valid for this generation of the space */
    uint64_t generation;

    /* Of a host-driven step. */
    struct mp_step_ops host_ops;
    struct mp_step_executor host_executors[MP_EXECUTORS_MAX];
    bool taken; /* the host has taken over the current layer */

    /* MoE layers without a miss, at most L: since the last miss, and a mean of what was there
     * between misses. */
    uint32_t run, usual;
    uint64_t mark; /* misses() before the layer that the host drives */
    struct mp_device_graph_counts counts;
};

/* Queue the rest of the batch behind its first `done` MoE layers, up to its logits; 0: all of it,
 * from its ids. */
enum mp_status mp_device_graph_queue(struct mp_device *device, uint32_t done) MP_MUST_CHECK;

/* Is what the next gate says computed with this MoE layer's scores? */
bool mp_device_graph_guesses(const struct mp_device *device, uint32_t moe_layer);

/*
 * After a replay that began with MoE layer `first`: notify pager and policies of the layers from
 * there to `done`, and, if there is one, have the host drive layer `done`, which had a miss. It
 * ends before that with the first layer that a policy has the host take over (graphs->taken).
 * *next_p := the layer behind the last of these.
 */
enum mp_status mp_device_graph_notify(struct mp_device *device, uint32_t first, uint32_t done,
                                      uint32_t *next_p) MP_MUST_CHECK;

#endif
