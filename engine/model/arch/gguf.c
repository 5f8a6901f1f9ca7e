/* The families in GGUF files. Some have a key for leading dense layers; in the others all layers
 * are MoE. */
#include "engine/model/arch/arch.h"

#include "vmm/base/compiler.h"

#define BLOCK "blk.{layer}."

#define COMMON_NAMES                                                                              \
    [MP_ROLE_EMBED] = { "token_embd.weight", NULL },                                              \
    [MP_ROLE_FINAL_NORM] = { "output_norm.weight", NULL },                                        \
    [MP_ROLE_HEAD] = { "output.weight", NULL },                                                   \
    [MP_ROLE_ATTN_NORM] = { BLOCK "attn_norm.weight", NULL },                                     \
    [MP_ROLE_Q] = { BLOCK "attn_q.weight", NULL }, [MP_ROLE_K] = { BLOCK "attn_k.weight", NULL }, \
    [MP_ROLE_V] = { BLOCK "attn_v.weight", NULL },                                                \
    [MP_ROLE_O] = { BLOCK "attn_output.weight", NULL },                                           \
    [MP_ROLE_FFN_NORM] = { BLOCK "ffn_norm.weight", BLOCK "post_attention_norm.weight" },         \
    [MP_ROLE_ROUTER] = { BLOCK "ffn_gate_inp.weight", NULL }

#define STACKED                                                                                \
    {                                                                                          \
        BLOCK "ffn_gate_exps.weight", BLOCK "ffn_up_exps.weight", BLOCK "ffn_down_exps.weight" \
    }

#define QKV_BIAS_NAMES                                \
    [MP_ROLE_Q_BIAS] = { BLOCK "attn_q.bias", NULL }, \
    [MP_ROLE_K_BIAS] = { BLOCK "attn_k.bias", NULL }, \
    [MP_ROLE_V_BIAS] = { BLOCK "attn_v.bias", NULL }

#define QK_NORM_NAMES                                                             \
    [MP_ROLE_Q_NORM] = { BLOCK "attn_q_norm.weight", NULL }, [MP_ROLE_K_NORM] = { \
        BLOCK "attn_k_norm.weight", NULL                                          \
    }

#define DENSE_NAMES                                           \
    [MP_ROLE_DENSE_GATE] = { BLOCK "ffn_gate.weight", NULL }, \
    [MP_ROLE_DENSE_UP] = { BLOCK "ffn_up.weight", NULL },     \
    [MP_ROLE_DENSE_DOWN] = { BLOCK "ffn_down.weight", NULL }

#define SHARED_NAMES                                                 \
    [MP_ROLE_SHARED_GATE] = { BLOCK "ffn_gate_shexp.weight", NULL }, \
    [MP_ROLE_SHARED_UP] = { BLOCK "ffn_up_shexp.weight", NULL },     \
    [MP_ROLE_SHARED_DOWN] = { BLOCK "ffn_down_shexp.weight", NULL }

#define SELECT_BIAS_NAME [MP_ROLE_SELECT_BIAS] = { BLOCK "exp_probs_b.bias", NULL }

static const struct mp_arch ernie4_5_moe = {
    .name = "ernie4_5-moe",
    .default_theta = 1e4,
    .keys = {
        .expert_ffn = "expert_feed_forward_length",
        .shared_count = { "expert_shared_count", 0 },
        .dense_ffn = "feed_forward_length",
        .moe_step = "interleave_moe_layer_step",
        .dense_first = { "leading_dense_block_count", 0 },
    },
    .switches = { .norm_topk = { NULL, true } },
    .names = { COMMON_NAMES, DENSE_NAMES, SHARED_NAMES, SELECT_BIAS_NAME },
    .stacked = STACKED,
    .rotary_neighbours = true,
};

static const struct mp_arch glm4moe = {
    .name = "glm4moe",
    .default_theta = 1e4,
    .router = MP_ROUTER_SIGMOID,
    .group_best = 2,
    .keys = {
        .expert_ffn = "expert_feed_forward_length",
        .shared_count = { "expert_shared_count", 0 },
        .dense_ffn = "feed_forward_length",
        .dense_first = { "leading_dense_block_count", 0 },
        .groups = { "expert_group_count", 1 },
        .groups_used = { "expert_group_used_count", 1 },
        .routed_scale = { "expert_weights_scale", 1 },
        .rotary_dim = "rope.dimension_count",
        .drafting = "nextn_predict_layers",
    },
    .switches = { .norm_topk = { "expert_weights_norm", false } },
    .names = {
        COMMON_NAMES,
        QKV_BIAS_NAMES,
        QK_NORM_NAMES,
        DENSE_NAMES,
        SHARED_NAMES,
        SELECT_BIAS_NAME,
    },
    .stacked = STACKED,
};

static const struct mp_arch gpt_oss = {
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
        COMMON_NAMES,
        QKV_BIAS_NAMES,
        [MP_ROLE_O_BIAS] = { BLOCK "attn_output.bias", NULL },
        [MP_ROLE_SINKS] = { BLOCK "attn_sinks.weight", NULL },
        [MP_ROLE_ROUTER_BIAS] = { BLOCK "ffn_gate_inp.bias", NULL },
        [MP_ROLE_EXPERT_GATE_BIAS] = { BLOCK "ffn_gate_exps.bias", NULL },
        [MP_ROLE_EXPERT_UP_BIAS] = { BLOCK "ffn_up_exps.bias", NULL },
        [MP_ROLE_EXPERT_DOWN_BIAS] = { BLOCK "ffn_down_exps.bias", NULL },
    },
    .stacked = STACKED,
};

static const struct mp_arch granitemoe = {
    .name = "granitemoe",
    .default_theta = 1e4,
    .keys = {
        .expert_ffn = "feed_forward_length",
        .embed_scale = { "embedding_scale", 1 },
        .attention_scale = { "attention.scale", 0 },
        .residual_scale = { "residual_scale", 1 },
        .logit_divisor = { "logit_scale", 1 },
    },
    .switches = { .norm_topk = { NULL, true } },
    .names = { COMMON_NAMES },
    .stacked = STACKED,
    .rotary_neighbours = true,
};

static const struct mp_arch minimax_m2 = {
    .name = "minimax-m2",
    .default_theta = 1e4,
    .router = MP_ROUTER_SIGMOID,
    .qk_norm_rows = true,
    .keys = {
        .expert_ffn = "expert_feed_forward_length",
        .rotary_dim = "rope.dimension_count",
    },
    .switches = { .qk_norm = { NULL, true }, .norm_topk = { NULL, true } },
    .names = { COMMON_NAMES, QK_NORM_NAMES, SELECT_BIAS_NAME },
    .stacked = STACKED,
};

static const struct mp_arch olmoe = {
    .name = "olmoe",
    .default_theta = 1e4,
    .qk_norm_rows = true,
    .keys = { .expert_ffn = "feed_forward_length" },
    .switches = { .qk_norm = { NULL, true } },
    .names = { COMMON_NAMES, QK_NORM_NAMES },
    .stacked = STACKED,
};

/* Mixtral and others whose layers are Llama's with experts. */
static const struct mp_arch llama = {
    .name = "llama",
    .default_theta = 1e4,
    .keys = { .expert_ffn = "feed_forward_length" },
    .switches = { .norm_topk = { NULL, true } },
    .names = { COMMON_NAMES },
    .stacked = STACKED,
    .rotary_neighbours = true,
};

static const struct mp_arch qwen2moe = {
    .name = "qwen2moe",
    .default_theta = 1e4,
    .keys = {
        .expert_ffn = "expert_feed_forward_length",
        .shared_ffn = "expert_shared_feed_forward_length",
    },
    .names = {
        COMMON_NAMES,
        QKV_BIAS_NAMES,
        SHARED_NAMES,
        [MP_ROLE_SHARED_SWITCH] = { BLOCK "ffn_gate_inp_shexp.weight", NULL },
    },
    .stacked = STACKED,
};

static const struct mp_arch qwen3moe = {
    .name = "qwen3moe",
    .default_theta = 1e4,
    .keys = { .expert_ffn = "expert_feed_forward_length" },
    .switches = { .qk_norm = { NULL, true }, .norm_topk = { NULL, true } },
    .names = { COMMON_NAMES, QK_NORM_NAMES },
    .stacked = STACKED,
};

static const struct mp_arch *const archs[] = {
#define X(name) &name,
    MP_ARCH_GGUF_MAP(X)
#undef X
};

const struct mp_arch *mp_arch_gguf_at(size_t index)
{
    return index < MP_ARRAY_LEN(archs) ? archs[index] : NULL;
}
