#ifndef MP_SIM_INT_H
#define MP_SIM_INT_H

#include "policy/pager/step.h"
#include "policy/sim/sim.h"
#include "vmm/space/space.h"

/*
 * Shared by the two files of the simulator: sim.c sets up the simulation and runs steps, sim_ops.c
 * has the costs of a MoE layer.
 */
struct mp_sim_world;

/* A simulated executor: its work items run one at a time. */
struct mp_sim_executor {
    struct mp_event_source source;
    struct mp_sim_world *world;
    uint32_t *needs; // (experts * slices): queue
    uint64_t *ns;    // (experts * slices)
    uint32_t first, count;
    uint64_t start_ns, end_ns, busy_ns;
    unsigned track;
};

struct mp_sim_world {
    const struct mp_sim_config *config;
    void *block; /* of the arrays, those of the executors, too */
    struct mp_clock_virtual clock;
    struct mp_virtual_link link;
    struct mp_files *files;
    struct mp_space *space;
    struct mp_policies policies;
    struct mp_shape shape;
    struct mp_calibration calibration;
    struct mp_costs costs;
    struct mp_counters counters;
    struct mp_pager *pager;
    struct mp_step *step;
    struct mp_sim_load *load;
    struct mp_timeline *timeline;
    struct mp_sim_executor device, cpu; /* in place is the device's work, too */
    struct mp_step_executor step_executors[3];
    uint32_t *ended; // (experts * slices): needs
    uint32_t ended_count;
    uint32_t slices;          /* >= 1 */
    uint64_t load_ns, random; /* of one slice */

    uint32_t tokens, sequences, context; /* of the step */
    uint32_t number;                     /* of the step in `routing`: 0 is the prompt */
    bool writes;                         /* to `routing` */
    uint64_t waited_ns, misses;          /* counters at the last check: mp_sim_together_ops */
    uint8_t *fresh;                      // (units * slices): loaded and not computed yet

    /* With `check`. */
    uint8_t *computed; // (tokens_max, top_k): slices
    uint64_t needs, seen_ns;
};

/* Operations for executors that run in parallel, and for one that computes all ready experts in one
 * group. */
extern const struct mp_step_ops mp_sim_step_ops, mp_sim_together_ops;

/* begin() of the step's executors: the device in parallel with others, or one group at a time. */
enum mp_status mp_sim_begin_device(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                   uint32_t count) MP_MUST_CHECK;
enum mp_status mp_sim_begin_in_place(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                     uint32_t count) MP_MUST_CHECK;
enum mp_status mp_sim_begin_cpu(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                uint32_t count) MP_MUST_CHECK;
enum mp_status mp_sim_begin_together(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                     uint32_t count) MP_MUST_CHECK;

/* Add an executor, whose arrays are allocated, to the clock. */
void mp_sim_executor_init(struct mp_sim_executor *executor, struct mp_sim_world *world,
                          const char *name);

/* Run work of the device that the step waits for, after its queued work. */
void mp_sim_device_run(struct mp_sim_world *world, const char *name, uint64_t ns);

/* Time of the device for `slices` slices of one expert that it computes together. */
uint64_t mp_sim_slices_ns(const struct mp_sim_world *world, uint32_t tokens, uint32_t slices);

/* After a layer: MP_ERR_INVALID E_SIM_CHECK. */
enum mp_status mp_sim_check(struct mp_sim_world *world) MP_MUST_CHECK;

#endif
