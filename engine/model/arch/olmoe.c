/* The OLMoE family: one norm over the queries of all heads and one over all keys, weights as the
 * router gives them. */
#include "engine/model/arch/arch.h"

#define EXPERT "model.layers.{layer}.mlp.experts.{expert}"

const struct mp_arch mp_arch_olmoe = {
    .name = "OlmoeForCausalLM",
    .model_type = "olmoe",
    .default_positions = 4096,
    .default_eps = 1e-5,
    .default_theta = 1e4,
    .qk_norm_rows = true,
    .keys = {
        .experts = { "num_experts", "num_local_experts" },
        .expert_ffn = "intermediate_size",
    },
    .switches = {
        .qkv_bias = { "attention_bias", false },
        .o_bias = { "attention_bias", false },
        .qk_norm = { NULL, true },
        .norm_topk = { "norm_topk_prob", false },
    },
    .refusals = { { "clip_qkv", 0, "queries, keys and values without limits" } },
    .names = {
        MP_ARCH_COMMON_NAMES,
        MP_ARCH_QKV_BIAS_NAMES,
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
