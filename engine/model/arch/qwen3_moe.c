/* The Qwen3-MoE family: a norm of each head's query and key, biases of all projections or none. */
#include "engine/model/arch/arch.h"

#define EXPERT "model.layers.{layer}.mlp.experts.{expert}"

const struct mp_arch mp_arch_qwen3_moe = {
    .name = "Qwen3MoeForCausalLM",
    .model_type = "qwen3_moe",
    .default_positions = 32768,
    .default_eps = 1e-6,
    .default_theta = 1e4,
    .keys = {
        .experts = { "num_experts", "num_local_experts" },
        .expert_ffn = "moe_intermediate_size",
        .dense_ffn = "intermediate_size",
        .moe_step = "decoder_sparse_step",
        .dense_layers = "mlp_only_layers",
    },
    .switches = {
        .qkv_bias = { "attention_bias", false },
        .o_bias = { "attention_bias", false },
        .qk_norm = { NULL, true },
        .norm_topk = { "norm_topk_prob", false },
        .window = { "use_sliding_window", false },
    },
    .names = {
        MP_ARCH_COMMON_NAMES,
        MP_ARCH_QKV_BIAS_NAMES,
        MP_ARCH_DENSE_NAMES,
        [MP_ROLE_O_BIAS] = { "model.layers.{layer}.self_attn.o_proj.bias", NULL },
        [MP_ROLE_Q_NORM] = { "model.layers.{layer}.self_attn.q_norm.weight", NULL },
        [MP_ROLE_K_NORM] = { "model.layers.{layer}.self_attn.k_norm.weight", NULL },
        [MP_ROLE_ROUTER] = { "model.layers.{layer}.mlp.gate.weight", NULL },
    },
    .expert = { EXPERT ".gate_proj.weight", EXPERT ".up_proj.weight", EXPERT ".down_proj.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
    .fused_gate_up = "model.layers.{layer}.mlp.experts.gate_up_proj",
    .fused_down = "model.layers.{layer}.mlp.experts.down_proj",
};
