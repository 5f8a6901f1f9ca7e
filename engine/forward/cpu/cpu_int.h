#ifndef MP_CPU_INT_H
#define MP_CPU_INT_H

#include "engine/forward/engine_int.h"

/* What cpu.c (the operations), cpu_attention.c, cpu_latent.c, cpu_router.c, cpu_experts.c and
 * cpu_products.c (matrix products over the pool) share. */

/*
 * One feed-forward network with its input, or one slice of one: its rows of gate and up and its
 * columns of down. Slices of one network stand together, ascending, with one x, y and rows.
 */
struct mp_ffn_work {
    struct mp_ffn ffn;
    const float *x;   // (tokens, H)
    float *y;         // (tokens, H)
    float *gate, *up; // (tokens, channels): scratch
    size_t tokens;
    uint32_t more;              /* slices of the network that follow this one, its first here */
    bool later;                 /* it is one of those that follow */
    bool add;                   /* to what y has from slices before these */
    const struct mp_rows *rows; /* NULL, or: copy y to state.rank by these (token, rank) */
};

/* y = down(silu(gate x) * up x) for all networks of the list, which have one hidden width. */
void mp_cpu_ffn(struct mp_engine *engine, const struct mp_ffn_work *list, size_t count);

/* fn for each token, shared out over the pool if there are many. */
void mp_cpu_each_token(struct mp_engine *engine,
                       void (*fn)(void *ctx, uint64_t token, unsigned thread), void *ctx,
                       size_t tokens);

/* x[i] *= scale, where that is not 1. */
void mp_cpu_scale(float *x, float scale, size_t count);

/* Operations of struct mp_compute_ops. */
void mp_cpu_route(struct mp_compute *c, uint32_t layer, enum mp_array in, const float *norm,
                  float *scores);
void mp_cpu_weigh(struct mp_compute *c, const uint32_t *experts, float *weights);
void mp_cpu_latent(struct mp_compute *c, uint32_t layer);
void mp_cpu_latent_values(struct mp_compute *c, uint32_t layer);
void mp_cpu_store(struct mp_compute *c, uint32_t layer);
void mp_cpu_attend(struct mp_compute *c, uint32_t layer);
void mp_cpu_forget(struct mp_compute *c, uint32_t layer);
void mp_cpu_shared(struct mp_compute *c, uint32_t layer);
void mp_cpu_combine(struct mp_compute *c, const float *weights);
void mp_cpu_combine_done(struct mp_compute *c, const float *weights);

#endif
