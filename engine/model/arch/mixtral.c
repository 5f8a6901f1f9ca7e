/* The Mixtral family: all layers are MoE, weights of the chosen experts always sum to 1. */
#include "engine/model/arch/arch.h"

#define EXPERT "model.layers.{layer}.block_sparse_moe.experts.{expert}"

const struct mp_arch mp_arch_mixtral = {
    .name = "MixtralForCausalLM",
    .model_type = "mixtral",
    .default_positions = 131072,
    .default_eps = 1e-5,
    .default_theta = 1e6,
    .keys = {
        .experts = { "num_local_experts", "num_experts" },
        .expert_ffn = "intermediate_size",
    },
    .switches = {
        .norm_topk = { NULL, true },
        .window = { NULL, true },
    },
    .names = {
        MP_ARCH_COMMON_NAMES,
        /* The block was renamed together with the fusion of its experts. */
        [MP_ROLE_ROUTER] = { "model.layers.{layer}.block_sparse_moe.gate.weight",
                             "model.layers.{layer}.mlp.gate.weight" },
    },
    .expert = { EXPERT ".w1.weight", EXPERT ".w3.weight", EXPERT ".w2.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
    .fused_gate_up = "model.layers.{layer}.mlp.experts.gate_up_proj",
    .fused_down = "model.layers.{layer}.mlp.experts.down_proj",
};
