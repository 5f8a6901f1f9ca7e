/* Families with gated delta networks in GGUF files. Weights of norms have their 1, decays are not
 * logarithms; the second family writes heads of values that share a key apart from one another. */
#include "engine/model/gguf/families_int.h"

/* What both have in common. */
#define DELTA_NAMES                                                                              \
    MP_GGUF_LATE_NAMES, MP_GGUF_QK_NORM_NAMES, MP_GGUF_SHARED_NAMES, MP_GGUF_SHARED_SWITCH_NAME, \
        [MP_ROLE_DELTA_QKV] = { MP_GGUF_BLOCK "attn_qkv.weight", NULL },                         \
        [MP_ROLE_DELTA_GATE] = { MP_GGUF_BLOCK "attn_gate.weight", NULL },                       \
        [MP_ROLE_DELTA_CONV] = { MP_GGUF_BLOCK "ssm_conv1d.weight", NULL },                      \
        [MP_ROLE_DELTA_STEP_BIAS] = { MP_GGUF_BLOCK "ssm_dt.bias", NULL },                       \
        [MP_ROLE_DELTA_DECAY] = { MP_GGUF_BLOCK "ssm_a", NULL },                                 \
        [MP_ROLE_DELTA_NORM] = { MP_GGUF_BLOCK "ssm_norm.weight", NULL },                        \
        [MP_ROLE_DELTA_OUT] = { MP_GGUF_BLOCK "ssm_out.weight", NULL }

#define DELTA_FAMILY                                             \
    .default_theta = 1e4, .q_gate = true, .decays = true,        \
    .keys = { .expert_ffn = "expert_feed_forward_length",        \
              .delta = "ssm.group_count",                        \
              .shared_ffn = "expert_shared_feed_forward_length", \
              .rotary_dim = "rope.dimension_count",              \
              .drafting = "nextn_predict_layers" },              \
    .switches = { .qk_norm = { NULL, true }, .norm_topk = { NULL, true } }, MP_GGUF_EXPERTS

const struct mp_arch mp_arch_gguf_qwen3next = {
    .name = "qwen3next",
    DELTA_FAMILY,
    .names = {
        DELTA_NAMES,
        [MP_ROLE_DELTA_IN] = { MP_GGUF_BLOCK "ssm_in.weight", NULL },
        [MP_ROLE_DELTA_STEPS] = { MP_GGUF_BLOCK "ssm_ba.weight", NULL },
    },
};

const struct mp_arch mp_arch_gguf_qwen35moe = {
    .name = "qwen35moe",
    DELTA_FAMILY,
    .tiled = true,
    .names = {
        DELTA_NAMES,
        [MP_ROLE_DELTA_SHARE] = { MP_GGUF_BLOCK "ssm_beta.weight", NULL },
        [MP_ROLE_DELTA_TIME] = { MP_GGUF_BLOCK "ssm_alpha.weight", NULL },
    },
};
