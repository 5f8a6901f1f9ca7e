/* The gpt-oss family: attention sinks, a window in every second layer, biases everywhere, a softmax
 * over the chosen experts only, an activation with limits, experts in two transposed tensors. */
#include "engine/model/arch/arch.h"

#define MLP "model.layers.{layer}.mlp."
#define EXPERT MLP "experts.{expert}"

const struct mp_arch mp_arch_gpt_oss = {
    .name = "GptOssForCausalLM",
    .model_type = "gpt_oss",
    .default_positions = 131072,
    .default_eps = 1e-5,
    .default_theta = 150000,
    .activation = MP_ACTIVATION_CLAMPED,
    .window_by_layer = true,
    .keys = {
        .experts = { "num_local_experts", "num_experts" },
        .expert_ffn = "intermediate_size",
        .act_alpha = { "swiglu_alpha", 1.702 },
        .act_limit = { "swiglu_limit", 7 },
    },
    .switches = {
        .qkv_bias = { "attention_bias", true },
        .o_bias = { "attention_bias", true },
        /* The softmax over all experts, divided by the sum of the chosen ones. */
        .norm_topk = { NULL, true },
        .window = { NULL, true },
    },
    .names = {
        MP_ARCH_COMMON_NAMES,
        MP_ARCH_QKV_BIAS_NAMES,
        [MP_ROLE_O_BIAS] = { "model.layers.{layer}.self_attn.o_proj.bias", NULL },
        [MP_ROLE_SINKS] = { "model.layers.{layer}.self_attn.sinks", NULL },
        [MP_ROLE_ROUTER] = { MLP "router.weight", NULL },
        [MP_ROLE_ROUTER_BIAS] = { MLP "router.bias", NULL },
        [MP_ROLE_EXPERT_GATE_BIAS] = { MLP "experts.gate_up_proj_bias", NULL },
        [MP_ROLE_EXPERT_DOWN_BIAS] = { MLP "experts.down_proj_bias", NULL },
    },
    /* Nobody writes them one by one today. */
    .expert = { EXPERT ".gate_proj.weight", EXPERT ".up_proj.weight", EXPERT ".down_proj.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
    .fused_gate_up = MLP "experts.gate_up_proj",
    .fused_down = MLP "experts.down_proj",
    .fused_transposed = true,
    .fused_mxfp4 = true,
};
