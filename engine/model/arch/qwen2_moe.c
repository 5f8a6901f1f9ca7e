/* The Qwen2-MoE family: biases of queries, keys and values, a shared expert with a gate, dense
 * layers between the others. */
#include "engine/model/arch/arch.h"

#define EXPERT "model.layers.{layer}.mlp.experts.{expert}"
#define SHARED "model.layers.{layer}.mlp.shared_expert"

const struct mp_arch mp_arch_qwen2_moe = {
    .name = "Qwen2MoeForCausalLM",
    .model_type = "qwen2_moe",
    .default_positions = 32768,
    .default_eps = 1e-6,
    .default_theta = 1e4,
    .window_by_layer = true,
    .keys = {
        .experts = { "num_experts", "num_local_experts" },
        .expert_ffn = "moe_intermediate_size",
        .shared_ffn = "shared_expert_intermediate_size",
        .dense_ffn = "intermediate_size",
        .moe_step = "decoder_sparse_step",
        .dense_layers = "mlp_only_layers",
    },
    .switches = {
        .qkv_bias = { "qkv_bias", true },
        .norm_topk = { "norm_topk_prob", false },
        .window = { "use_sliding_window", false },
    },
    .names = {
        MP_ARCH_COMMON_NAMES,
        MP_ARCH_QKV_BIAS_NAMES,
        MP_ARCH_DENSE_NAMES,
        [MP_ROLE_ROUTER] = { "model.layers.{layer}.mlp.gate.weight", NULL },
        MP_ARCH_SHARED_NAMES(SHARED),
        [MP_ROLE_SHARED_SWITCH] = { SHARED "_gate.weight", NULL },
    },
    .expert = { EXPERT ".gate_proj.weight", EXPERT ".up_proj.weight", EXPERT ".down_proj.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
    .fused_gate_up = "model.layers.{layer}.mlp.experts.gate_up_proj",
    .fused_down = "model.layers.{layer}.mlp.experts.down_proj",
};
