/* The Qwen3-Next family: gated delta networks in most layers, gated attention in the others, norms
 * around 1, a shared expert with a gate. */
#include "engine/model/arch/arch.h"

#define MLP "model.layers.{layer}.mlp."
#define EXPERT MLP "experts.{expert}"
#define SHARED MLP "shared_expert"

const struct mp_arch mp_arch_qwen3_next = {
    .name = "Qwen3NextForCausalLM",
    .model_type = "qwen3_next",
    .default_positions = 32768,
    .default_eps = 1e-6,
    .default_theta = 1e4,
    .q_gate = true,
    .norm_offset = true,
    .keys = {
        .experts = { "num_experts", "num_local_experts" },
        .expert_ffn = "moe_intermediate_size",
        .shared_ffn = "shared_expert_intermediate_size",
        .dense_ffn = "intermediate_size",
        .moe_step = "decoder_sparse_step",
        .dense_layers = "mlp_only_layers",
        .delta = "linear_num_key_heads",
        .rotary_share = { "partial_rotary_factor", 0.25 },
    },
    .switches = {
        .qkv_bias = { "attention_bias", false },
        .o_bias = { "attention_bias", false },
        .qk_norm = { NULL, true },
        .norm_topk = { "norm_topk_prob", true },
    },
    .names = {
        MP_ARCH_COMMON_NAMES,
        MP_ARCH_QKV_BIAS_NAMES,
        MP_ARCH_DENSE_NAMES,
        MP_ARCH_DELTA_NAMES("model."),
        [MP_ROLE_DELTA_IN] = { "model.layers.{layer}.linear_attn.in_proj_qkvz.weight", NULL },
        [MP_ROLE_DELTA_STEPS] = { "model.layers.{layer}.linear_attn.in_proj_ba.weight", NULL },
        [MP_ROLE_O_BIAS] = { "model.layers.{layer}.self_attn.o_proj.bias", NULL },
        [MP_ROLE_Q_NORM] = { "model.layers.{layer}.self_attn.q_norm.weight", NULL },
        [MP_ROLE_K_NORM] = { "model.layers.{layer}.self_attn.k_norm.weight", NULL },
        [MP_ROLE_ROUTER] = { MLP "gate.weight", NULL },
        MP_ARCH_SHARED_NAMES(SHARED),
        [MP_ROLE_SHARED_SWITCH] = { SHARED "_gate.weight", NULL },
    },
    .expert = { EXPERT ".gate_proj.weight", EXPERT ".up_proj.weight", EXPERT ".down_proj.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
    .fused_gate_up = MLP "experts.gate_up_proj",
    .fused_down = MLP "experts.down_proj",
};
