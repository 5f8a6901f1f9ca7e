#ifndef MP_CPU_INT_H
#define MP_CPU_INT_H

#include "engine/forward/engine_int.h"
#include "engine/forward/recurrent.h"

/* Shared by cpu.c (the operations), cpu_attention.c, cpu_latent.c, cpu_router.c, cpu_experts.c,
 * cpu_products.c (matrix products on the pool) , cpu_transposed.c, cpu_delta.c and
 * cpu_short_conv.c. */

/*
 * One feed-forward network with its input, or one slice of one: its rows of gate and up and its
 * columns of down. Slices of one network are adjacent, in ascending order, with the same x, y and
 * rows.
 */
struct mp_ffn_work {
    struct mp_ffn ffn;
    const float *x;   // (tokens, H)
    float *y;         // (tokens, H)
    float *gate, *up; // (tokens, channels): scratch
    size_t tokens;
    uint32_t more; /* for the network's first slice here: number of its slices that follow */
    bool later;    /* it is one of the following slices */
    bool add;      /* add to y, which has the sum of earlier slices */
    const struct mp_rows *rows; /* NULL, or: copy y to state.rank by these (token, rank) */
};

/* y = down(silu(gate x) * up x) for all networks of the list, which have one hidden width. */
void mp_cpu_ffn(struct mp_engine *engine, const struct mp_ffn_work *list, size_t count);

/* Those of experts in MXFP4 whose nibbles and scales are apart. */
void mp_cpu_apart_up(const struct mp_engine *engine, const struct mp_ffn_work *work, unsigned piece,
                     size_t first, size_t end, unsigned thread);
void mp_cpu_apart_down(const struct mp_engine *engine, const struct mp_ffn_work *work, size_t first,
                       size_t end, bool add, unsigned thread);

/* The products of transposed experts (struct mp_ffn), with the bits of others: rows [first, end) of
 * gate or up with work->x to work->gate or up; of down with work->gate to work->y, added if `add`.
 */
void mp_cpu_transposed_up(const struct mp_engine *engine, const struct mp_ffn_work *work,
                          unsigned piece, size_t first, size_t end, unsigned thread);
void mp_cpu_transposed_down(const struct mp_engine *engine, const struct mp_ffn_work *work,
                            size_t first, size_t end, bool add, unsigned thread);

/* Call fn for each token, on the pool if there are many. */
void mp_cpu_each_token(struct mp_engine *engine,
                       void (*fn)(void *ctx, uint64_t token, unsigned thread), void *ctx,
                       size_t tokens);

/* out := norm(x), (rows, H) both; out may be x. */
void mp_cpu_norm(const struct mp_engine *engine, float *out, const float *x,
                 const struct mp_norm *norm, size_t rows);

/* x[i] *= scale; no effect if scale is 1. */
void mp_cpu_scale(float *x, float scale, size_t count);

/* The recurrent states of the batch's sequences before and after it (engine/forward/recurrent.h),
 * and which tokens are the first of theirs. */
struct mp_cpu_states {
    bool *first; // (T)
    const float *before[MP_RECURRENT_SEQUENCES];
    float *after[MP_RECURRENT_SEQUENCES];
};

void mp_cpu_open_states(struct mp_engine *engine, uint32_t layer, struct mp_cpu_states *states);

/* The `count` floats behind `at` of a token's state: where it is the sequence's first, the state
 * begins with what was before. */
float *mp_cpu_state(const struct mp_engine *engine, const struct mp_cpu_states *states, size_t t,
                    size_t at, size_t count);

/* Channels of a convolution that one part of its work has. */
#define MP_CONV_CHANNELS 256u

struct mp_conv_part {
    const float *w;      // (count, taps)
    size_t taps;         /* tokens that it sees */
    size_t width;        /* channels of all parts */
    size_t first, count; /* channels of this one */
};

/* out(count) := token t's convolution of its input x(count). The state begins with the inputs of
 * the tokens before, (taps - 1, width), the oldest first; x becomes the last one. */
void mp_cpu_convolve(const struct mp_engine *engine, const struct mp_cpu_states *states, size_t t,
                     const struct mp_conv_part *part, const float *x, float *out);

/* Operations of struct mp_compute_ops. */
void mp_cpu_route(struct mp_compute *c, uint32_t layer, enum mp_array in,
                  const struct mp_norm *norm, float *scores);
void mp_cpu_weigh(struct mp_compute *c, uint32_t layer, const uint32_t *experts, float *weights);
void mp_cpu_latent(struct mp_compute *c, uint32_t layer);
void mp_cpu_latent_values(struct mp_compute *c, uint32_t layer);
void mp_cpu_split_gate(struct mp_compute *c);
void mp_cpu_apply_gate(struct mp_compute *c);
void mp_cpu_delta(struct mp_compute *c, uint32_t layer);
void mp_cpu_short_conv(struct mp_compute *c, uint32_t layer);
void mp_cpu_store(struct mp_compute *c, uint32_t layer);
void mp_cpu_attend(struct mp_compute *c, uint32_t layer);
void mp_cpu_forget(struct mp_compute *c, uint32_t layer);
void mp_cpu_shared(struct mp_compute *c, uint32_t layer);
void mp_cpu_combine(struct mp_compute *c, uint32_t layer, const float *weights);
void mp_cpu_combine_done(struct mp_compute *c, uint32_t layer, const float *weights);

#endif
