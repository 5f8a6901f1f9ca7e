/* The first DeepSeek family, of DeepSeekMoE 16B: attention as Llama's, many narrow experts, shared
 * ones beside them, leading layers without experts. */
#include "engine/model/arch/arch.h"

#define ATTENTION "model.layers.{layer}.self_attn."
#define MLP "model.layers.{layer}.mlp."
#define EXPERT MLP "experts.{expert}"
#define SHARED MLP "shared_experts"

const struct mp_arch mp_arch_deepseek = {
    .name = "DeepseekForCausalLM",
    .model_type = "deepseek",
    .default_positions = 2048,
    .default_eps = 1e-6,
    .default_theta = 1e4,
    .keys = {
        .experts = { "n_routed_experts", NULL },
        .expert_ffn = "moe_intermediate_size",
        .shared_count = { "n_shared_experts", 0 },
        .dense_ffn = "intermediate_size",
        .dense_first = { "first_k_dense_replace", 0 },
    },
    .switches = {
        .qkv_bias = { "attention_bias", false },
        .o_bias = { "attention_bias", false },
        .norm_topk = { "norm_topk_prob", false },
    },
    .refusals = { { "moe_layer_freq", 1, "1: experts in each layer behind the dense ones" } },
    .names = {
        MP_ARCH_COMMON_NAMES,
        MP_ARCH_QKV_BIAS_NAMES,
        MP_ARCH_DENSE_NAMES,
        [MP_ROLE_O_BIAS] = { ATTENTION "o_proj.bias", NULL },
        [MP_ROLE_ROUTER] = { MLP "gate.weight", NULL },
        MP_ARCH_SHARED_NAMES(SHARED),
    },
    .expert = { EXPERT ".gate_proj.weight", EXPERT ".up_proj.weight", EXPERT ".down_proj.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
};
