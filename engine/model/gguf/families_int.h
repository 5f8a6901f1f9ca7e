#ifndef MP_GGUF_FAMILIES_INT_H
#define MP_GGUF_FAMILIES_INT_H

#include "engine/model/arch/arch.h"

/* Names of tensors that many families have in GGUF files. */
#define MP_GGUF_BLOCK "blk.{layer}."

/* All but queries, keys, values and the norm before experts. */
#define MP_GGUF_END_NAMES                                             \
    [MP_ROLE_EMBED] = { "token_embd.weight", NULL },                  \
    [MP_ROLE_FINAL_NORM] = { "output_norm.weight", NULL },            \
    [MP_ROLE_HEAD] = { "output.weight", NULL },                       \
    [MP_ROLE_ATTN_NORM] = { MP_GGUF_BLOCK "attn_norm.weight", NULL }, \
    [MP_ROLE_O] = { MP_GGUF_BLOCK "attn_output.weight", NULL },       \
    [MP_ROLE_ROUTER] = { MP_GGUF_BLOCK "ffn_gate_inp.weight", NULL }

#define MP_GGUF_FFN_NORM_NAME                               \
    [MP_ROLE_FFN_NORM] = { MP_GGUF_BLOCK "ffn_norm.weight", \
                           MP_GGUF_BLOCK "post_attention_norm.weight" }

/* Of families whose norm before experts has the name of one behind attention. */
#define MP_GGUF_LATE_NORM_NAME                                         \
    [MP_ROLE_FFN_NORM] = { MP_GGUF_BLOCK "post_attention_norm.weight", \
                           MP_GGUF_BLOCK "ffn_norm.weight" }

#define MP_GGUF_QKV_NAMES                                  \
    [MP_ROLE_Q] = { MP_GGUF_BLOCK "attn_q.weight", NULL }, \
    [MP_ROLE_K] = { MP_GGUF_BLOCK "attn_k.weight", NULL }, \
    [MP_ROLE_V] = { MP_GGUF_BLOCK "attn_v.weight", NULL }

#define MP_GGUF_COMMON_NAMES MP_GGUF_END_NAMES, MP_GGUF_FFN_NORM_NAME, MP_GGUF_QKV_NAMES
#define MP_GGUF_LATE_NAMES MP_GGUF_END_NAMES, MP_GGUF_LATE_NORM_NAME, MP_GGUF_QKV_NAMES

/* Experts of a layer: gate, up and down, or gate and up together. */
#define MP_GGUF_EXPERTS                                                                    \
    .stacked = { MP_GGUF_BLOCK "ffn_gate_exps.weight", MP_GGUF_BLOCK "ffn_up_exps.weight", \
                 MP_GGUF_BLOCK "ffn_down_exps.weight" },                                   \
    .fused_gate_up = MP_GGUF_BLOCK "ffn_gate_up_exps.weight",                              \
    .fused_down = MP_GGUF_BLOCK "ffn_down_exps.weight"

#define MP_GGUF_QKV_BIAS_NAMES                                \
    [MP_ROLE_Q_BIAS] = { MP_GGUF_BLOCK "attn_q.bias", NULL }, \
    [MP_ROLE_K_BIAS] = { MP_GGUF_BLOCK "attn_k.bias", NULL }, \
    [MP_ROLE_V_BIAS] = { MP_GGUF_BLOCK "attn_v.bias", NULL }

#define MP_GGUF_QK_NORM_NAMES                                                             \
    [MP_ROLE_Q_NORM] = { MP_GGUF_BLOCK "attn_q_norm.weight", NULL }, [MP_ROLE_K_NORM] = { \
        MP_GGUF_BLOCK "attn_k_norm.weight", NULL                                          \
    }

#define MP_GGUF_DENSE_NAMES                                           \
    [MP_ROLE_DENSE_GATE] = { MP_GGUF_BLOCK "ffn_gate.weight", NULL }, \
    [MP_ROLE_DENSE_UP] = { MP_GGUF_BLOCK "ffn_up.weight", NULL },     \
    [MP_ROLE_DENSE_DOWN] = { MP_GGUF_BLOCK "ffn_down.weight", NULL }

#define MP_GGUF_SHARED_NAMES                                                 \
    [MP_ROLE_SHARED_GATE] = { MP_GGUF_BLOCK "ffn_gate_shexp.weight", NULL }, \
    [MP_ROLE_SHARED_UP] = { MP_GGUF_BLOCK "ffn_up_shexp.weight", NULL },     \
    [MP_ROLE_SHARED_DOWN] = { MP_GGUF_BLOCK "ffn_down_shexp.weight", NULL }

/* The layer behind the others, which drafts tokens. */
#define MP_GGUF_DRAFT_NAMES                                                    \
    [MP_ROLE_DRAFT_EMBED_NORM] = { MP_GGUF_BLOCK "nextn.enorm.weight", NULL }, \
    [MP_ROLE_DRAFT_STATE_NORM] = { MP_GGUF_BLOCK "nextn.hnorm.weight", NULL }, \
    [MP_ROLE_DRAFT_IN] = { MP_GGUF_BLOCK "nextn.eh_proj.weight", NULL },       \
    [MP_ROLE_DRAFT_NORM] = { MP_GGUF_BLOCK "nextn.shared_head_norm.weight", NULL }

#define MP_GGUF_SELECT_BIAS_NAME [MP_ROLE_SELECT_BIAS] = { MP_GGUF_BLOCK "exp_probs_b.bias", NULL }

#define MP_GGUF_SHARED_SWITCH_NAME \
    [MP_ROLE_SHARED_SWITCH] = { MP_GGUF_BLOCK "ffn_gate_inp_shexp.weight", NULL }

/* Keys of families with shared experts behind leading dense layers, and of experts in groups. */
#define MP_GGUF_LEADING_KEYS                                                                  \
    .expert_ffn = "expert_feed_forward_length", .shared_count = { "expert_shared_count", 0 }, \
    .dense_ffn = "feed_forward_length", .dense_first = { "leading_dense_block_count", 0 }

#define MP_GGUF_GROUP_KEYS                                                                  \
    .groups = { "expert_group_count", 1 }, .groups_used = { "expert_group_used_count", 1 }, \
    .routed_scale = { "expert_weights_scale", 1 }

#define X(name) extern const struct mp_arch mp_arch_gguf_##name;
MP_ARCH_GGUF_MAP(X)
#undef X

#endif
