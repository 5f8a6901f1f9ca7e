#ifndef MP_GPU_LAYER_H
#define MP_GPU_LAYER_H

#include <stdint.h>

#include "kernels/cpu/types.h"
#include "kernels/cuda/cuda_kernels.h"

/*
 * The launches of one MoE layer of a decoding step, in order, as the engine queues them when all
 * that a token chooses is resident (engine/forward/cuda): what is measured as a layer, and whose
 * grids docs/kernels.md has. No shared expert, no slices, few tokens. device/cuda_layer_test holds
 * them to what the engine launches.
 */
#define LAYER_LAUNCHES 8

struct layer_shape {
    uint32_t hidden, heads, kv_heads, head_dim;
    uint32_t experts, top_k, channels, vocab;
    uint32_t tokens, ctx, positions; /* positions: that each token attends to */
    enum mp_wtype type, kv_type;     /* of all weights; of keys and values */
    uint32_t processors;             /* of the device: few let attention run whole */
};

extern const struct layer_shape layer_qwen3_30b_a3b; /* BF16, one token, context 4096 */

/* Device addresses. Weights of a layer are one behind another, layer_bytes(); floats that kernels
 * hand on are in `state`, layer_state_bytes(). */
struct layer_at {
    uint64_t weights, state, x; /* x: float (T, H) */
    uint64_t k_cache, v_cache;  /* of this layer */
    uint64_t norms;             /* float: at least max(H, D) */
    uint64_t rotations;         /* float (ctx, D/2): for cosine and sine */
    uint64_t sequence, position;
    uint64_t work, row; /* the list that is computed */
    uint64_t table;     /* struct mp_cuda_place_of (E), for the list that the router makes */
    uint64_t part, turn;
};

struct layer_launch {
    const char *name;
    enum mp_cuda_kernel kernel;
    uint64_t bytes; /* of weights, or of keys and values, that it reads */
    union {
        struct mp_cuda_project project;
        struct mp_cuda_place place;
        struct mp_cuda_attend attend;
        struct mp_cuda_matmul matmul;
        struct mp_cuda_route route;
        struct mp_cuda_experts experts;
        struct mp_cuda_combine combine;
    } params;
};

/* Bytes of the weights before the experts; of one expert; of all that a token's layer reads of
 * weights. */
uint64_t layer_dense_bytes(const struct layer_shape *shape);
uint64_t layer_expert_bytes(const struct layer_shape *shape);
uint64_t layer_bytes(const struct layer_shape *shape);
uint64_t layer_state_bytes(const struct layer_shape *shape);

void layer_launches(const struct layer_shape *shape, const struct layer_at *at,
                    struct layer_launch list[LAYER_LAUNCHES]);

/* The product that gives the logits. */
struct layer_launch layer_head(const struct layer_shape *shape, const struct layer_at *at,
                               uint64_t logits);

#endif
