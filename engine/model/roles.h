#ifndef MP_ENGINE_ROLES_H
#define MP_ENGINE_ROLES_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/model/config.h"

/*
 * The tensors that every token needs, by what they are for: their shape, when a model has them, and
 * where their address goes. Not the routed experts, which are units of the pager.
 *
 * The roles of a layer follow those of the whole model; within both, tensors are looked for in this
 * order. A family names each role that it has (engine/model/arch/arch.h).
 */
enum mp_role {
    MP_ROLE_EMBED,
    MP_ROLE_FINAL_NORM,
    MP_ROLE_HEAD,
    MP_ROLE_ATTN_NORM, /* the first one of a layer */
    MP_ROLE_Q_DOWN,    /* this and the norms of latents: latent attention */
    MP_ROLE_Q_DOWN_NORM,
    MP_ROLE_LATENT_NORM,
    MP_ROLE_KV_UP,
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
    MP_ROLE_FFN_NORM,
    MP_ROLE_DENSE_GATE,
    MP_ROLE_DENSE_UP,
    MP_ROLE_DENSE_DOWN,
    MP_ROLE_ROUTER,
    MP_ROLE_SELECT_BIAS, /* of scores, before experts are chosen */
    MP_ROLE_SHARED_GATE,
    MP_ROLE_SHARED_UP,
    MP_ROLE_SHARED_DOWN,
    MP_ROLE_SHARED_SWITCH, /* the row whose sigmoid scales the shared expert */
    MP_ROLE_COUNT,
    MP_ROLE_LAYER = MP_ROLE_ATTN_NORM
};

/* Sizes that a configuration gives; the letters of engine/model/weights.h in the margin. */
enum mp_dim {
    MP_DIM_NONE,   /* no columns: a vector */
    MP_DIM_ONE,    /* 1 */
    MP_DIM_VOCAB,  // V
    MP_DIM_HIDDEN, // H
    MP_DIM_Q,
    MP_DIM_Q_COLS, /* H, or the rank of queries */
    MP_DIM_Q_RANK,
    MP_DIM_KV_RANK,
    MP_DIM_KV_UP,   /* keys and values of all heads, from the latent */
    MP_DIM_O_COLS,  /* Q, or values of all heads */
    MP_DIM_KV,      // K
    MP_DIM_HEAD,    // D
    MP_DIM_Q_NORM,  /* D, or Q where the norm is one of all heads together */
    MP_DIM_K_NORM,  /* the same of K */
    MP_DIM_EXPERTS, // E
    MP_DIM_SHARED,  // S
    MP_DIM_DENSE    // M
};

struct mp_role_info {
    enum mp_dim rows, cols;
    /* Of the struct mp_view (a matrix) or const float * (a vector), in struct mp_weights or, for
     * roles of a layer, in struct mp_layer_weights. */
    size_t offset;
    /* Has layer `layer` such a tensor, if the family has a name for it? NULL: yes. */
    bool (*needed)(const struct mp_model_config *config, uint32_t layer);
};

extern const struct mp_role_info mp_roles[MP_ROLE_COUNT];

/* 0 for MP_DIM_NONE. */
uint64_t mp_dim_size(const struct mp_model_config *config, enum mp_dim dim);

/* Does the model have this tensor in layer `layer`? For roles of the model, any layer. */
bool mp_role_needed(const struct mp_model_config *config, enum mp_role role, uint32_t layer);

#endif
