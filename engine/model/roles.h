#ifndef MP_ENGINE_ROLES_H
#define MP_ENGINE_ROLES_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/model/config.h"

/*
 * The tensors that every token needs, by role: their shape, when a model has them, and where their
 * address is stored. Routed experts are not roles but units of the pager.
 *
 * The roles of a layer follow those of the whole model; tensors are looked up in this order. A
 * family names each role that it has (engine/model/arch/arch.h).
 */
enum mp_role {
    MP_ROLE_EMBED,
    MP_ROLE_FINAL_NORM,
    MP_ROLE_FINAL_NORM_BIAS,
    MP_ROLE_HEAD,
    MP_ROLE_HEAD_BIAS,
    MP_ROLE_DRAFT_EMBED_NORM, /* of a layer that drafts: of the token's embedding, */
    MP_ROLE_DRAFT_STATE_NORM, /* of the model's last state before it, */
    MP_ROLE_DRAFT_IN,         /* from both, in this order, to the stream, */
    MP_ROLE_DRAFT_NORM,       /* and in place of the final norm */
    MP_ROLE_ATTN_NORM,        /* the first one of a layer */
    MP_ROLE_ATTN_NORM_BIAS,
    MP_ROLE_ATTN_AFTER, /* norm of what attention gives; the same of the FFN, see below */
    MP_ROLE_CONV_IN,    /* of short convolutions: gate, second gate and input of each channel */
    MP_ROLE_CONV,
    MP_ROLE_CONV_OUT,
    MP_ROLE_DELTA_IN, /* of gated delta networks: queries, keys, values, gates by key head, and */
    MP_ROLE_DELTA_STEPS, /* both numbers of a step by key head; or all four alone */
    MP_ROLE_DELTA_QKV,
    MP_ROLE_DELTA_GATE,
    MP_ROLE_DELTA_SHARE,
    MP_ROLE_DELTA_TIME,
    MP_ROLE_DELTA_CONV,
    MP_ROLE_DELTA_STEP_BIAS,
    MP_ROLE_DELTA_DECAY,
    MP_ROLE_DELTA_NORM,
    MP_ROLE_DELTA_OUT,
    MP_ROLE_Q_DOWN, /* this and the norms of latents: latent attention */
    MP_ROLE_Q_DOWN_NORM,
    MP_ROLE_LATENT_NORM,
    MP_ROLE_KV_UP, /* or the next two: parts of its rows, those of keys transposed */
    MP_ROLE_K_UP,
    MP_ROLE_V_UP,
    MP_ROLE_Q,
    MP_ROLE_Q_BIAS,
    MP_ROLE_K,
    MP_ROLE_K_BIAS,
    MP_ROLE_V,
    MP_ROLE_V_BIAS,
    MP_ROLE_O,
    MP_ROLE_O_BIAS,
    MP_ROLE_Q_NORM,
    MP_ROLE_K_NORM,
    MP_ROLE_SINKS,
    MP_ROLE_FFN_NORM,
    MP_ROLE_FFN_NORM_BIAS,
    MP_ROLE_DENSE_GATE,
    MP_ROLE_DENSE_UP,
    MP_ROLE_DENSE_DOWN,
    MP_ROLE_ROUTER,
    MP_ROLE_ROUTER_BIAS,
    MP_ROLE_ROUTER_NORM,      /* of the stream, for routers with an input of their own */
    MP_ROLE_EXPERT_SCALE,     /* of each expert's weight */
    MP_ROLE_EXPERT_GATE_BIAS, /* of all experts of a layer, and of up too where that has no name */
    MP_ROLE_EXPERT_UP_BIAS,
    MP_ROLE_EXPERT_DOWN_BIAS,
    MP_ROLE_SELECT_BIAS, /* of scores, before experts are chosen */
    MP_ROLE_SHARED_GATE,
    MP_ROLE_SHARED_UP,
    MP_ROLE_SHARED_DOWN,
    MP_ROLE_SHARED_SWITCH, /* the row whose sigmoid scales the shared expert */
    MP_ROLE_SHARED_NORM,   /* before the shared expert, */
    MP_ROLE_SHARED_AFTER,  /* after it, */
    MP_ROLE_ROUTED_AFTER,  /* after the sum of the others, */
    MP_ROLE_FFN_AFTER,     /* and after the sum of both */
    MP_ROLE_LAYER_SCALE,   /* of the stream behind the layer */
    MP_ROLE_COUNT,
    MP_ROLE_LAYER = MP_ROLE_ATTN_NORM
};

/* Sizes that a configuration gives; the letters of engine/model/weights.h in the margin. */
enum mp_dim {
    MP_DIM_NONE,   /* no columns: a vector */
    MP_DIM_ONE,    /* 1 */
    MP_DIM_VOCAB,  // V
    MP_DIM_HIDDEN, // H
    MP_DIM_TWO_HIDDEN,
    MP_DIM_Q,
    MP_DIM_Q_COLS, /* H, or the rank of queries */
    MP_DIM_Q_RANK,
    MP_DIM_KV_RANK,
    MP_DIM_KV_UP,  /* keys and values of all heads, from the latent */
    MP_DIM_K_UP,   /* latents of all heads */
    MP_DIM_NOPE,   /* a head's key that is not rotated */
    MP_DIM_O_COLS, /* Q, or values of all heads */
    MP_DIM_KV,     // K
    MP_DIM_HEAD,   // D
    MP_DIM_Q_NORM, /* D, or Q where the norm is one of all heads together */
    MP_DIM_K_NORM, /* the same of K */
    MP_DIM_HEADS,
    MP_DIM_CONV_IN,  /* of short convolutions: 3 H, */
    MP_DIM_CONV,     /* and tokens that one sees */
    MP_DIM_DELTA_IN, /* of gated delta networks: channels and gates, */
    MP_DIM_DELTA_STEPS,
    MP_DIM_DELTA_CHANNELS, /* of the convolution */
    MP_DIM_DELTA_CONV,     /* tokens that it sees */
    MP_DIM_DELTA_HEADS,    /* of values */
    MP_DIM_DELTA_VALUES,   /* all of them */
    MP_DIM_DELTA_VALUE,    /* one */
    MP_DIM_EXPERTS,        // E
    MP_DIM_CHANNELS,       // F
    MP_DIM_GATE_BIAS,      /* F, or 2F where gate and up have one tensor */
    MP_DIM_SHARED,         // S
    MP_DIM_DENSE           // M
};

struct mp_role_info {
    enum mp_dim rows, cols;
    /* Of the struct mp_view (a matrix) or const float * (a vector), in struct mp_weights or, for
     * roles of a layer, in struct mp_layer_weights. */
    size_t offset;
    /* True if layer `layer` has such a tensor, given that the family has a name for it. NULL:
     * always. */
    bool (*needed)(const struct mp_model_config *config, uint32_t layer);
};

extern const struct mp_role_info mp_roles[MP_ROLE_COUNT];

/* True for matrices that are converted to float as vectors are: a pointer, not a view. */
bool mp_role_floats(enum mp_role role);

/* In layer `layer`; 0 for MP_DIM_NONE. */
uint64_t mp_dim_size(const struct mp_model_config *config, enum mp_dim dim, uint32_t layer);

/* True if the model has this tensor in layer `layer`; for roles of the whole model, any layer. */
bool mp_role_needed(const struct mp_model_config *config, enum mp_role role, uint32_t layer);

#endif
