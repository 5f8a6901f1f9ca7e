/* The LFM2-MoE family: most layers have a gated short convolution in place of attention; sigmoid
 * scores with a bias for the choice, leading layers without experts. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.{layer}."
#define ATTENTION LAYER "self_attn."
#define FFN LAYER "feed_forward."
#define EXPERT FFN "experts.{expert}"

const struct mp_arch mp_arch_lfm2_moe = {
    .name = "Lfm2MoeForCausalLM",
    .model_type = "lfm2_moe",
    .default_positions = 128000,
    .default_eps = 1e-5,
    .default_theta = 1e6,
    .default_tied = true,
    .router = MP_ROUTER_SIGMOID,
    .keys = {
        .experts = { "num_experts", "num_local_experts" },
        .expert_ffn = "moe_intermediate_size",
        .dense_ffn = "intermediate_size",
        .dense_first = { "num_dense_layers", 2 },
        .routed_scale = { "routed_scaling_factor", 1 },
        .short_conv = "conv_L_cache",
        .norm_eps = "norm_eps",
        .tied = "tie_embedding",
    },
    .switches = {
        .qk_norm = { NULL, true },
        .norm_topk = { "norm_topk_prob", true },
        .select_bias = { "use_expert_bias", true },
    },
    .refusals = { { "conv_bias", 0, "convolutions without biases" } },
    .names = {
        [MP_ROLE_EMBED] = { "model.embed_tokens.weight", NULL },
        [MP_ROLE_FINAL_NORM] = { "model.embedding_norm.weight", NULL },
        [MP_ROLE_HEAD] = { "lm_head.weight", NULL },
        [MP_ROLE_ATTN_NORM] = { LAYER "operator_norm.weight", NULL },
        [MP_ROLE_CONV_IN] = { LAYER "conv.in_proj.weight", NULL },
        [MP_ROLE_CONV] = { LAYER "conv.conv.weight", NULL },
        [MP_ROLE_CONV_OUT] = { LAYER "conv.out_proj.weight", NULL },
        [MP_ROLE_Q] = { ATTENTION "q_proj.weight", NULL },
        [MP_ROLE_K] = { ATTENTION "k_proj.weight", NULL },
        [MP_ROLE_V] = { ATTENTION "v_proj.weight", NULL },
        [MP_ROLE_O] = { ATTENTION "out_proj.weight", NULL },
        [MP_ROLE_Q_NORM] = { ATTENTION "q_layernorm.weight", NULL },
        [MP_ROLE_K_NORM] = { ATTENTION "k_layernorm.weight", NULL },
        [MP_ROLE_FFN_NORM] = { LAYER "ffn_norm.weight", NULL },
        [MP_ROLE_DENSE_GATE] = { FFN "w1.weight", NULL },
        [MP_ROLE_DENSE_UP] = { FFN "w3.weight", NULL },
        [MP_ROLE_DENSE_DOWN] = { FFN "w2.weight", NULL },
        [MP_ROLE_ROUTER] = { FFN "gate.weight", NULL },
        [MP_ROLE_SELECT_BIAS] = { FFN "expert_bias", NULL },
    },
    .expert = { EXPERT ".w1.weight", EXPERT ".w3.weight", EXPERT ".w2.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
    .fused_gate_up = FFN "experts.gate_up_proj",
    .fused_down = FFN "experts.down_proj",
};
