/* The Granite-MoE family: multipliers for embeddings, attention, residuals and logits; the experts
 * of a layer in two tensors. */
#include "engine/model/arch/arch.h"

#define BLOCK "model.layers.{layer}.block_sparse_moe."
#define EXPERT BLOCK "experts.{expert}"

const struct mp_arch mp_arch_granitemoe = {
    .name = "GraniteMoeForCausalLM",
    .model_type = "granitemoe",
    .default_positions = 2048,
    .default_eps = 1e-6,
    .default_theta = 1e4,
    .keys = {
        .experts = { "num_local_experts", NULL },
        .expert_ffn = "intermediate_size",
        .embed_scale = { "embedding_multiplier", 1 },
        .attention_scale = { "attention_multiplier", 1 },
        .residual_scale = { "residual_multiplier", 1 },
        .logit_divisor = { "logits_scaling", 1 },
    },
    .switches = {
        .qkv_bias = { "attention_bias", false },
        .o_bias = { "attention_bias", false },
        .norm_topk = { NULL, true },
    },
    .names = {
        MP_ARCH_COMMON_NAMES,
        MP_ARCH_QKV_BIAS_NAMES,
        [MP_ROLE_O_BIAS] = { "model.layers.{layer}.self_attn.o_proj.bias", NULL },
        [MP_ROLE_ROUTER] = { BLOCK "router.layer.weight", NULL },
    },
    /* One by one they are written by moepager alone. */
    .expert = { EXPERT ".gate_proj.weight", EXPERT ".up_proj.weight", EXPERT ".down_proj.weight" },
    .slice = MP_ARCH_SLICES(EXPERT),
    .fused_gate_up = BLOCK "input_linear.weight",
    .fused_down = BLOCK "output_linear.weight",
};
