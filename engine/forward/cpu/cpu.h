#ifndef MP_CPU_H
#define MP_CPU_H

#include "engine/forward/compute.h"

/*
 * The CPU as a compute: all operations run on the engine's pool, on the arrays of engine->state.
 *
 * It also exists beside a device, for predictors on the host and for the executor of experts in
 * host memory, which has a thread. While that has experts, pool and scratch are its own, and
 * predictors do without (pool_taken() of struct mp_compute_ops).
 */
void mp_cpu_init(struct mp_engine *engine, struct mp_compute *cpu);

/* One matrix product of a list that is computed together: y(tokens, rows) = w x (+ bias). */
struct mp_product {
    const struct mp_view *w;
    const float *bias; // (rows) or NULL
    const float *x;
    size_t x_stride;
    float *y;
    size_t y_stride;
};

/* All products of the list for `tokens` tokens, rows distributed over the pool. */
void mp_cpu_multiply(struct mp_engine *engine, const struct mp_product *list, size_t count,
                     size_t tokens);

/* The same bits, by the calling thread alone, whoever has the pool. */
void mp_cpu_multiply_alone(struct mp_engine *engine, const struct mp_product *list, size_t count,
                           size_t tokens);

/* scores := what the experts of the model's layer `layer` are chosen by for x, which may change.
 * alone: as mp_cpu_multiply_alone(). */
void mp_cpu_router(struct mp_engine *engine, uint32_t layer, float *x, float *scores, bool alone);

/* Compute these experts for state.xn and write the results to state.rank. */
enum mp_status mp_cpu_experts(struct mp_engine *engine, uint32_t moe_layer,
                              const struct mp_expert_work *work, uint32_t count) MP_MUST_CHECK;

#endif
