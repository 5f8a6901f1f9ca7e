/* The GLM-4-MoE family (GLM-4.5, 4.6, 4.7): heads that are rotated in part, sigmoid scores with a
 * bias for the choice, groups of experts, a shared expert, leading layers without experts. */
#include "engine/model/arch/arch.h"

#define MLP "model.layers.{layer}.mlp."
#define EXPERT MLP "experts.{expert}"
#define SHARED MLP "shared_experts"

const struct mp_arch mp_arch_glm4_moe = {
    .name = "Glm4MoeForCausalLM",
    .model_type = "glm4_moe",
    .default_positions = 131072,
    .default_eps = 1e-5,
    .default_theta = 1e4,
    .router = MP_ROUTER_SIGMOID,
    .group_best = 2,
    .keys = {
        .experts = { "n_routed_experts", "num_local_experts" },
        .expert_ffn = "moe_intermediate_size",
        .shared_count = { "n_shared_experts", 1 },
        .dense_ffn = "intermediate_size",
        .dense_first = { "first_k_dense_replace", 1 },
        .groups = { "n_group", 1 },
        .groups_used = { "topk_group", 1 },
        .routed_scale = { "routed_scaling_factor", 1 },
        .rotary_share = { "partial_rotary_factor", 0.5 },
    },
    .switches = {
        .qkv_bias = { "attention_bias", false },
        .qk_norm = { "use_qk_norm", false },
        .norm_topk = { "norm_topk_prob", true },
    },
    .names = {
        MP_ARCH_COMMON_NAMES,
        MP_ARCH_QKV_BIAS_NAMES,
        MP_ARCH_DRAFT_NAMES,
        MP_ARCH_DENSE_NAMES,
        [MP_ROLE_Q_NORM] = { "model.layers.{layer}.self_attn.q_norm.weight", NULL },
        [MP_ROLE_K_NORM] = { "model.layers.{layer}.self_attn.k_norm.weight", NULL },
        [MP_ROLE_ROUTER] = { MLP "gate.weight", NULL },
        [MP_ROLE_SELECT_BIAS] = { MLP "gate.e_score_correction_bias", NULL },
        MP_ARCH_SHARED_NAMES(SHARED),
    },
    .expert = { EXPERT ".gate_proj.weight", EXPERT ".up_proj.weight", EXPERT ".down_proj.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
    .fused_gate_up = MLP "experts.gate_up_proj",
    .fused_down = MLP "experts.down_proj",
};
