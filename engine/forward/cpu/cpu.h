#ifndef MP_CPU_H
#define MP_CPU_H

#include "engine/forward/compute.h"
#include "vmm/base/lock.h"

/*
 * The CPU as a compute: all operations over the engine's pool, on the arrays of engine->state.
 *
 * It is also there beside a device: what a predictor has on the host, and the executor of experts
 * on host memory. Whoever uses pool and scratch there holds the lock.
 */
struct mp_cpu {
    struct mp_compute compute;
    struct mp_mutex lock; /* rank CONTEXT */
};

void mp_cpu_init(struct mp_engine *engine, struct mp_cpu *cpu);
void mp_cpu_fini(struct mp_cpu *cpu);

/* One matrix product of a list that is computed together: y(tokens, rows) = w x (+ bias). */
struct mp_product {
    const struct mp_view *w;
    const float *bias; // (rows) or NULL
    const float *x;
    size_t x_stride;
    float *y;
    size_t y_stride;
};

/* All products of the list for `tokens` tokens, rows shared out over the pool. */
void mp_cpu_multiply(struct mp_engine *engine, const struct mp_product *list, size_t count,
                     size_t tokens);

/* scores := what the experts of the model's layer `layer` are chosen by for x. */
void mp_cpu_router(struct mp_engine *engine, uint32_t layer, const float *x, float *scores);

/* The results of these experts for state.xn, to state.rank. */
enum mp_status mp_cpu_experts(struct mp_engine *engine, uint32_t moe_layer,
                              const struct mp_expert_work *work, uint32_t count) MP_MUST_CHECK;

#endif
