#ifndef MP_ENGINE_WEIGHTS_H
#define MP_ENGINE_WEIGHTS_H

#include <inttypes.h>

#include "vmm/format/checkpoint.h"
#include "engine/model/config.h"
#include "engine/model/slices.h"
#include "kernels/cpu/kernels.h"
#include "vmm/space/space.h"

/*
 * The weights of a model, by role.
 *
 * Weights that every token needs (embedding, attention, norms, routers, shared experts, dense FFNs)
 * are read into one block of RAM. Matrices keep the type of the file and their offset in its disk
 * blocks, so that nothing is copied; norms and biases are converted to float. Routed experts are
 * not read: each becomes a unit with three pieces (gate, up, down) that the pager loads on demand.
 * A repacked model can have each expert in slices; then each slice is a unit, and a shorter one has
 * the padding after it as a fourth piece, so that all slots have one size.
 *
 * Shapes in the margin: V vocab, H hidden, Q heads * head_dim, K kv_heads * head_dim, D head_dim,
 * E experts, F expert_ffn, S shared_ffn, M dense_ffn. Matrices are (rows, cols), y = W x.
 */
struct mp_view {
    const void *data; /* row-major, at any byte address; NULL: the model has no such matrix */
    enum mp_wtype type;
    size_t rows, cols;
};

/* Without a bias it is RMSNorm, with one LayerNorm. */
struct mp_norm {
    const float *w;    // (H)
    const float *bias; // (H) or NULL
};

struct mp_ffn {
    struct mp_view gate; // (channels, H)
    struct mp_view up;   // (channels, H)
    struct mp_view down; // (H, channels)
    /* Of the products; NULL where there are none. Those of gate and up are `bias_step` apart. */
    const float *gate_bias, *up_bias, *down_bias;
    size_t bias_step;
    /* Of an expert: `gate` and `up` are the first and the other rows of (H, 2 channels), in which
     * channels of gate and up take turns, and `down` is (channels, H). */
    bool transposed;
    /* Of an expert in MXFP4, if not NULL: the matrices hold nibbles without scales, and these are
     * the scales of `down`. `gate` is both matrices, whose rows take turns, `up` their scales. */
    const void *scales;
};

/* Of the products of all experts of a layer; `up` is NULL where `gate` has both, in turns. */
struct mp_expert_bias {
    const float *gate; // (E, F) or (E, 2F), or NULL
    const float *up;   // (E, F)
    const float *down; // (E, H)
};

/* Of a gated delta network; C channels, V values, N heads of values. Rows of `in` and `steps` go by
 * heads of keys; in place of either there can be the two parts. */
struct mp_delta_weights {
    struct mp_view in, steps;              // (C + V, H), (2 N, H)
    struct mp_view qkv, gate, share, time; // (C, H), (V, H), (N, H), (N, H)
    const float *conv;                     // (C, tokens)
    const float *step_bias, *decay, *norm; // (N), (N): by a unit of time, (value_dim)
    struct mp_view out;                    // (H, V); columns in the order of `in_order`
    bool in_order; /* tiled heads: those of `out` are not, as in directories */
};

/* Of a gated short convolution. */
struct mp_conv_weights {
    struct mp_view in;  // (3 H, H)
    const float *taps;  // (H, tokens)
    struct mp_view out; // (H, H)
};

/* Of a layer that drafts tokens: what makes the stream of a token's embedding and of the model's
 * last state before it. */
struct mp_draft_weights {
    struct mp_norm embed_norm, state_norm;
    struct mp_view in; // (H, 2 H)
};

struct mp_layer_weights {
    struct mp_delta_weights delta;
    struct mp_conv_weights conv;
    struct mp_norm attn_norm;
    struct mp_norm attn_after; /* this and the other norms `after`: of results; without: no norm */
    struct mp_view q;          // (Q, H)
    struct mp_view k;          // (K, H)
    struct mp_view v;          // (K, H); none where values are keys
    struct mp_view o;          // (H, Q)
    /* Of latent attention, where q and o have as many rows and columns as heads have elements and
     * k gives latent and rotated key; R a rank. */
    struct mp_view q_down;    // (R, H); q is (Q, R) then
    const float *q_down_norm; // (R)
    const float *latent_norm; // (R)
    struct mp_view kv_up;     // (heads * (nope_dim + value_dim), R), or two parts of it:
    struct mp_view k_up;      // (heads * nope_dim, R), of blocks (heads * R, nope_dim)
    struct mp_view v_up;      // (heads * value_dim, R)
    const float *q_bias;      // (Q) or NULL
    const float *k_bias;      // (K) or NULL
    const float *v_bias;      // (K) or NULL
    const float *o_bias;      // (H) or NULL
    const float *q_norm;      // (D), (Q) where it is one of all heads, or NULL
    const float *k_norm;      // (D), (K) or NULL
    const float *sinks;       // (heads) or NULL
    struct mp_norm ffn_norm;

    struct mp_ffn dense; // M channels; layers that are not MoE

    struct mp_view router;      // (E, H); MoE layers
    const float *router_bias;   // (E) or NULL
    const float *select_bias;   // (E) or NULL
    struct mp_norm router_norm; /* of the stream, where the router has an input of its own */
    const float *expert_scale;  // (E) or NULL
    struct mp_expert_bias expert_bias;
    struct mp_ffn shared;       // S channels, if the model has a shared expert
    struct mp_view shared_gate; // (1, H)
    struct mp_norm shared_norm; /* of the stream, where the shared expert has an input of its own */
    struct mp_norm shared_after, routed_after, ffn_after; /* of both parts, and of their sum */
    const float *layer_scale;                             // (1) or NULL
    uint32_t first_unit; /* number of expert 0 among all; the others follow */
};

/* Name prefix of padding tensors, which fill space between others and are not used. */
#define MP_PAD_PREFIX "moepager.pad."

/* Of the (H, 2F) matrix of a transposed expert: rows in the piece of gate, the others are in up's.
 */
static inline uint64_t mp_transposed_rows(uint64_t hidden)
{
    return (hidden + 1) / 2;
}

enum { MP_PIECE_GATE, MP_PIECE_UP, MP_PIECE_DOWN, MP_EXPERT_PIECES };

/* Where nibbles and scales are apart: those of gate and up, and of down; what is behind the names
 * of their tensors. */
#define MP_APART_NIBBLES_SUFFIX "_blocks"
#define MP_APART_SCALES_SUFFIX "_scales"
enum { MP_APART_BOTH, MP_APART_BOTH_SCALES, MP_APART_DOWN, MP_APART_DOWN_SCALES, MP_APART_PIECES };

/* Of an expert's matrices. Quantisers give some layers' down projections more bits. */
struct mp_expert_types {
    enum mp_wtype piece[MP_EXPERT_PIECES];
};

static inline bool mp_expert_types_same(const struct mp_expert_types *a,
                                        const struct mp_expert_types *b)
{
    for (int i = 0; i < MP_EXPERT_PIECES; i++) {
        if (a->piece[i] != b->piece[i])
            return false;
    }
    return true;
}

/* Bytes of one tensor in the block, as they are in the file. */
struct mp_weights_part {
    uint64_t offset_bytes, bytes;
};

struct mp_weights {
    struct mp_view embed; // (V, H)
    struct mp_norm final_norm;
    struct mp_view head;    // (V, H); the embedding itself if tied
    const float *head_bias; // (V) or NULL
    struct mp_draft_weights draft;
    struct mp_layer_weights *layers;

    struct mp_ffn_slices slices; /* that each expert is stored in */
    struct mp_unit *units; /* [moe_layers * E * slices]: (first_unit + expert) * slices + slice */
    struct mp_expert_types *unit_types; /* [moe_layers * E]; gate, up (F, H), down (H, F) */
    bool transposed;                    /* the matrices of experts: struct mp_ffn */
    bool apart;                         /* the same: nibbles and scales in pieces of their own */
    uint32_t unit_count;
    uint64_t expert_bytes;   /* sum over all units */
    uint64_t resident_bytes; /* of the block that holds everything else */

    size_t extra_tensors;   /* unused tensors other than padding; the name of one */
    const char *extra_name; /* NULL or owned by the checkpoint */
    void *block;
    struct mp_weights_part *parts; // (part_count): the rest of the block is what was read with them
    size_t part_count;
    void *tables; /* of layers, units and unit_types */
};

/* How weights are read. */
struct mp_weights_io {
    bool direct;                    /* with O_DIRECT, if the file system supports it */
    struct mp_reader_config reader; /* files are filled in; clock may be NULL */
};

/*
 * Check that every tensor that `config` requires is in the checkpoint, with the right shape and a
 * type of engine/model/types.h, then read them. Experts may be stored one by one or fused per layer
 * (two tensors with a leading expert dimension).
 *
 * io        NULL: direct, with a default reader
 * progress  may be NULL; counts the bytes of the tensors
 *
 * Of a layer that drafts (engine/model/drafting.h) embedding and output head have no address before
 * mp_weights_share().
 *
 * The checkpoint must outlive the weights. MP_ERR_MODEL: E_TENSOR_MISSING, E_TENSOR_SHAPE,
 * E_TENSOR_DTYPE, E_TENSOR_NAME with tensor, got and need; MP_ERR_IO; MP_ERR_NO_MEMORY;
 * MP_ERR_CANCELED.
 */
enum mp_status mp_weights_load(const struct mp_checkpoint *checkpoint,
                               const struct mp_model_config *config, const struct mp_weights_io *io,
                               const struct mp_progress *progress,
                               struct mp_weights **weights_p) MP_MUST_CHECK;
void mp_weights_destroy(struct mp_weights *weights);

/* Weights of a layer that drafts use embedding and output head of `model`, which outlives them. */
void mp_weights_share(struct mp_weights *draft, const struct mp_weights *model);

/*
 * The same checks without reading data: units and sizes are set, matrices and vectors have no
 * address. For checks before gigabytes are read.
 */
enum mp_status mp_weights_describe(const struct mp_checkpoint *checkpoint,
                                   const struct mp_model_config *config,
                                   struct mp_weights **weights_p) MP_MUST_CHECK;

#endif
