/* The DeepSeek-V2 family: latent attention, softmax scores, the best groups of experts, a shared
 * expert, leading layers without experts. */
#include "engine/model/arch/arch.h"

#define MLP "model.layers.{layer}.mlp."
#define EXPERT MLP "experts.{expert}"
#define SHARED MLP "shared_experts"

const struct mp_arch mp_arch_deepseek_v2 = {
    .name = "DeepseekV2ForCausalLM",
    .model_type = "deepseek_v2",
    .default_positions = 2048,
    .default_eps = 1e-6,
    .default_theta = 1e4,
    .greedy_groups = true,
    .keys = {
        .experts = { "n_routed_experts", "num_local_experts" },
        .expert_ffn = "moe_intermediate_size",
        .shared_count = { "n_shared_experts", 2 },
        .dense_ffn = "intermediate_size",
        .dense_first = { "first_k_dense_replace", 0 },
        .groups = { "n_group", 1 },
        .groups_used = { "topk_group", 1 },
        .routed_scale = { "routed_scaling_factor", 1 },
        .kv_rank = "kv_lora_rank",
    },
    .refusals = {
        { "attention_bias", 0, "attention without biases" },
        { "norm_topk_prob", 0, "weights as the router gives them" },
        { "mlp_bias", 0, "products without a bias" },
    },
    .names = {
        MP_ARCH_END_NAMES,
        MP_ARCH_LATENT_NAMES,
        MP_ARCH_DENSE_NAMES,
        [MP_ROLE_ROUTER] = { MLP "gate.weight", NULL },
        MP_ARCH_SHARED_NAMES(SHARED),
    },
    .expert = { EXPERT ".gate_proj.weight", EXPERT ".up_proj.weight", EXPERT ".down_proj.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
    .fused_gate_up = MLP "experts.gate_up_proj",
    .fused_down = MLP "experts.down_proj",
    .rotary_neighbours = true,
};
