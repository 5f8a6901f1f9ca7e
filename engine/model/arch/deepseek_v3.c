/* The DeepSeek-V3 family, also of Moonlight and Kimi-K2: latent attention, sigmoid scores with a
 * bias for the choice, groups of experts, a shared expert, leading layers without experts. */
#include "engine/model/arch/arch.h"

#define MLP "model.layers.{layer}.mlp."
#define EXPERT MLP "experts.{expert}"
#define SHARED MLP "shared_experts"

const struct mp_arch mp_arch_deepseek_v3 = {
    .name = "DeepseekV3ForCausalLM",
    .model_type = "deepseek_v3",
    .default_positions = 4096,
    .default_eps = 1e-6,
    .default_theta = 1e4,
    .router = MP_ROUTER_SIGMOID,
    .group_best = 2,
    .keys = {
        .experts = { "n_routed_experts", "num_local_experts" },
        .expert_ffn = "moe_intermediate_size",
        .shared_count = { "n_shared_experts", 1 },
        .dense_ffn = "intermediate_size",
        .dense_first = { "first_k_dense_replace", 3 },
        .groups = { "n_group", 8 },
        .groups_used = { "topk_group", 4 },
        .routed_scale = { "routed_scaling_factor", 2.5 },
        .kv_rank = "kv_lora_rank",
    },
    .switches = { .norm_topk = { "norm_topk_prob", true } },
    .refusals = {
        { "attention_bias", 0, "attention without biases" },
    },
    .names = {
        MP_ARCH_END_NAMES,
        MP_ARCH_LATENT_NAMES,
        MP_ARCH_DRAFT_NAMES,
        MP_ARCH_DENSE_NAMES,
        [MP_ROLE_ROUTER] = { MLP "gate.weight", NULL },
        [MP_ROLE_SELECT_BIAS] = { MLP "gate.e_score_correction_bias", NULL },
        MP_ARCH_SHARED_NAMES(SHARED),
    },
    .expert = { EXPERT ".gate_proj.weight", EXPERT ".up_proj.weight", EXPERT ".down_proj.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
    .fused_gate_up = MLP "experts.gate_up_proj",
    .fused_down = MLP "experts.down_proj",
    .rotary_neighbours = true,
};
