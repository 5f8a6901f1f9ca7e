/* The DeepSeek families in GGUF files: the first one, and those of latent attention, whose files
 * also hold Moonlight, Kimi-K2 and GLM-4.7-Flash. */
#include "engine/model/gguf/families_int.h"

const struct mp_arch mp_arch_gguf_deepseek = {
    .name = "deepseek",
    .default_theta = 1e4,
    .keys = { MP_GGUF_LEADING_KEYS },
    .names = { MP_GGUF_COMMON_NAMES, MP_GGUF_DENSE_NAMES, MP_GGUF_SHARED_NAMES },
    MP_GGUF_EXPERTS,
    .rotary_neighbours = true,
};

const struct mp_arch mp_arch_gguf_deepseek2 = {
    .name = "deepseek2",
    .default_theta = 1e4,
    .router_by_key = true,
    .keys = {
        MP_GGUF_LEADING_KEYS,
        MP_GGUF_GROUP_KEYS,
        .kv_rank = "attention.kv_lora_rank",
        .drafting = "nextn_predict_layers",
    },
    .switches = { .norm_topk = { "expert_weights_norm", false } },
    .names = {
        MP_GGUF_END_NAMES,
        MP_GGUF_FFN_NORM_NAME,
        [MP_ROLE_Q] = { MP_GGUF_BLOCK "attn_q.weight", MP_GGUF_BLOCK "attn_q_b.weight" },
        [MP_ROLE_Q_DOWN] = { MP_GGUF_BLOCK "attn_q_a.weight", NULL },
        [MP_ROLE_Q_DOWN_NORM] = { MP_GGUF_BLOCK "attn_q_a_norm.weight", NULL },
        [MP_ROLE_K] = { MP_GGUF_BLOCK "attn_kv_a_mqa.weight", NULL },
        [MP_ROLE_LATENT_NORM] = { MP_GGUF_BLOCK "attn_kv_a_norm.weight", NULL },
        [MP_ROLE_KV_UP] = { MP_GGUF_BLOCK "attn_kv_b.weight", NULL },
        [MP_ROLE_K_UP] = { MP_GGUF_BLOCK "attn_k_b.weight", NULL },
        [MP_ROLE_V_UP] = { MP_GGUF_BLOCK "attn_v_b.weight", NULL },
        MP_GGUF_DENSE_NAMES,
        MP_GGUF_SHARED_NAMES,
        MP_GGUF_SELECT_BIAS_NAME,
        MP_GGUF_DRAFT_NAMES,
    },
    MP_GGUF_EXPERTS,
    .rotary_neighbours = true,
};
