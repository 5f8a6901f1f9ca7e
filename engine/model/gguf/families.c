/* The families in GGUF files. Some have a key for leading dense layers; in the others all layers
 * are MoE. */
#include "engine/model/gguf/families_int.h"
#include "vmm/base/compiler.h"

const struct mp_arch mp_arch_gguf_ernie4_5_moe = {
    .name = "ernie4_5-moe",
    .default_theta = 1e4,
    .keys = {
        MP_GGUF_LEADING_KEYS,
        .moe_step = "interleave_moe_layer_step",
    },
    .switches = { .norm_topk = { NULL, true } },
    .names = { MP_GGUF_COMMON_NAMES, MP_GGUF_DENSE_NAMES, MP_GGUF_SHARED_NAMES, MP_GGUF_SELECT_BIAS_NAME },
    MP_GGUF_EXPERTS,
    .rotary_neighbours = true,
};

const struct mp_arch mp_arch_gguf_glm4moe = {
    .name = "glm4moe",
    .default_theta = 1e4,
    .router = MP_ROUTER_SIGMOID,
    .group_best = 2,
    .keys = {
        MP_GGUF_LEADING_KEYS,
        MP_GGUF_GROUP_KEYS,
        .rotary_dim = "rope.dimension_count",
        .drafting = "nextn_predict_layers",
    },
    .switches = { .norm_topk = { "expert_weights_norm", false } },
    .names = {
        MP_GGUF_LATE_NAMES,
        MP_GGUF_QKV_BIAS_NAMES,
        MP_GGUF_QK_NORM_NAMES,
        MP_GGUF_DENSE_NAMES,
        MP_GGUF_SHARED_NAMES,
        MP_GGUF_SELECT_BIAS_NAME,
        MP_GGUF_DRAFT_NAMES,
    },
    MP_GGUF_EXPERTS,
};

const struct mp_arch mp_arch_gguf_gpt_oss = {
    .name = "gpt-oss",
    .default_theta = 1e4,
    .activation = MP_ACTIVATION_CLAMPED,
    .window_step = 2,
    .yarn_untruncated = true,
    .keys = {
        .expert_ffn = "expert_feed_forward_length",
        /* Written nowhere. */
        .act_alpha = { NULL, 1.702 },
        .act_limit = { NULL, 7 },
    },
    .switches = { .norm_topk = { NULL, true } },
    .names = {
        MP_GGUF_LATE_NAMES,
        MP_GGUF_QKV_BIAS_NAMES,
        [MP_ROLE_O_BIAS] = { MP_GGUF_BLOCK "attn_output.bias", NULL },
        [MP_ROLE_SINKS] = { MP_GGUF_BLOCK "attn_sinks.weight", NULL },
        [MP_ROLE_ROUTER_BIAS] = { MP_GGUF_BLOCK "ffn_gate_inp.bias", NULL },
        [MP_ROLE_EXPERT_GATE_BIAS] = { MP_GGUF_BLOCK "ffn_gate_exps.bias", NULL },
        [MP_ROLE_EXPERT_UP_BIAS] = { MP_GGUF_BLOCK "ffn_up_exps.bias", NULL },
        [MP_ROLE_EXPERT_DOWN_BIAS] = { MP_GGUF_BLOCK "ffn_down_exps.bias", NULL },
    },
    MP_GGUF_EXPERTS,
};

const struct mp_arch mp_arch_gguf_granitemoe = {
    .name = "granitemoe",
    .default_theta = 1e4,
    .one_list = true,
    .two_lists = true,
    .keys = {
        .expert_ffn = "feed_forward_length",
        .embed_scale = { "embedding_scale", 1 },
        .attention_scale = { "attention.scale", 0 },
        .residual_scale = { "residual_scale", 1 },
        .logit_divisor = { "logit_scale", 1 },
    },
    .switches = { .norm_topk = { NULL, true } },
    .names = { MP_GGUF_COMMON_NAMES },
    MP_GGUF_EXPERTS,
    .rotary_neighbours = true,
};

const struct mp_arch mp_arch_gguf_minimax_m2 = {
    .name = "minimax-m2",
    .default_theta = 1e4,
    .router = MP_ROUTER_SIGMOID,
    .qk_norm_rows = true,
    .keys = {
        .expert_ffn = "expert_feed_forward_length",
        .rotary_dim = "rope.dimension_count",
    },
    .switches = { .qk_norm = { NULL, true }, .norm_topk = { NULL, true } },
    .names = { MP_GGUF_COMMON_NAMES, MP_GGUF_QK_NORM_NAMES, MP_GGUF_SELECT_BIAS_NAME },
    MP_GGUF_EXPERTS,
};

const struct mp_arch mp_arch_gguf_olmoe = {
    .name = "olmoe",
    .default_theta = 1e4,
    .qk_norm_rows = true,
    .keys = { .expert_ffn = "feed_forward_length" },
    .switches = { .qk_norm = { NULL, true } },
    .names = { MP_GGUF_COMMON_NAMES, MP_GGUF_QK_NORM_NAMES },
    MP_GGUF_EXPERTS,
};

/* Files do not say what share of the router's outputs is close; it is the published model's. */
const struct mp_arch mp_arch_gguf_phimoe = {
    .name = "phimoe",
    .default_theta = 1e4,
    .router = MP_ROUTER_MIXER,
    .two_lists = true,
    .keys = { .expert_ffn = "feed_forward_length", .mixer_eps = { NULL, 0.01 } },
    .names = {
        MP_GGUF_COMMON_NAMES,
        MP_GGUF_QKV_BIAS_NAMES,
        [MP_ROLE_FINAL_NORM_BIAS] = { "output_norm.bias", NULL },
        [MP_ROLE_HEAD_BIAS] = { "output.bias", NULL },
        [MP_ROLE_ATTN_NORM_BIAS] = { MP_GGUF_BLOCK "attn_norm.bias", NULL },
        [MP_ROLE_O_BIAS] = { MP_GGUF_BLOCK "attn_output.bias", NULL },
        [MP_ROLE_FFN_NORM_BIAS] = { MP_GGUF_BLOCK "ffn_norm.bias", NULL },
    },
    MP_GGUF_EXPERTS,
};

/* Mixtral and others whose layers are Llama's with experts. */
const struct mp_arch mp_arch_gguf_llama = {
    .name = "llama",
    .default_theta = 1e4,
    .one_list = true,
    .two_lists = true,
    .keys = { .expert_ffn = "feed_forward_length" },
    .switches = { .norm_topk = { NULL, true } },
    .names = { MP_GGUF_COMMON_NAMES },
    MP_GGUF_EXPERTS,
    .rotary_neighbours = true,
};

const struct mp_arch mp_arch_gguf_qwen2moe = {
    .name = "qwen2moe",
    .default_theta = 1e4,
    .keys = {
        .expert_ffn = "expert_feed_forward_length",
        .shared_ffn = "expert_shared_feed_forward_length",
    },
    .names = {
        MP_GGUF_COMMON_NAMES,
        MP_GGUF_QKV_BIAS_NAMES,
        MP_GGUF_SHARED_NAMES,
        MP_GGUF_SHARED_SWITCH_NAME,
    },
    MP_GGUF_EXPERTS,
};

const struct mp_arch mp_arch_gguf_qwen3moe = {
    .name = "qwen3moe",
    .default_theta = 1e4,
    .keys = { .expert_ffn = "expert_feed_forward_length" },
    .switches = { .qk_norm = { NULL, true }, .norm_topk = { NULL, true } },
    .names = { MP_GGUF_COMMON_NAMES, MP_GGUF_QK_NORM_NAMES },
    MP_GGUF_EXPERTS,
};

static const struct mp_arch *const archs[] = {
#define X(name) &mp_arch_gguf_##name,
    MP_ARCH_GGUF_MAP(X)
#undef X
};

const struct mp_arch *mp_arch_gguf_at(size_t index)
{
    return index < MP_ARRAY_LEN(archs) ? archs[index] : NULL;
}
