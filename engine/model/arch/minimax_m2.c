/* The MiniMax-M2 family: sigmoid scores with a bias for the choice, one norm over the queries of
 * all heads and one over all keys, heads that are rotated in part. */
#include "engine/model/arch/arch.h"

#define BLOCK "model.layers.{layer}.block_sparse_moe."
#define EXPERT BLOCK "experts.{expert}"

const struct mp_arch mp_arch_minimax_m2 = {
    .name = "MiniMaxM2ForCausalLM",
    .model_type = "minimax_m2",
    .default_positions = 196608,
    .default_eps = 1e-6,
    .default_theta = 5e6,
    .router = MP_ROUTER_SIGMOID,
    .qk_norm_rows = true,
    .keys = {
        .experts = { "num_local_experts", "num_experts" },
        .expert_ffn = "intermediate_size",
        .rotary_dim = "rotary_dim",
        .rotary_share = { "partial_rotary_factor", 1 },
    },
    .switches = {
        .qk_norm = { NULL, true },
        .norm_topk = { NULL, true },
    },
    .names = {
        MP_ARCH_COMMON_NAMES,
        [MP_ROLE_Q_NORM] = { "model.layers.{layer}.self_attn.q_norm.weight", NULL },
        [MP_ROLE_K_NORM] = { "model.layers.{layer}.self_attn.k_norm.weight", NULL },
        [MP_ROLE_ROUTER] = { BLOCK "gate.weight", NULL },
        [MP_ROLE_SELECT_BIAS] = { BLOCK "e_score_correction_bias", NULL },
    },
    .expert = { EXPERT ".w1.weight", EXPERT ".w3.weight", EXPERT ".w2.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
    .fused_gate_up = "model.layers.{layer}.mlp.experts.gate_up_proj",
    .fused_down = "model.layers.{layer}.mlp.experts.down_proj",
};
