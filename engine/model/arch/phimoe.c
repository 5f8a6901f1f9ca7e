/* The Phi-3.5-MoE family: LayerNorm with biases, biases of attention and head, and a router that
 * weighs each rank against the experts that come close to it. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.{layer}."
#define MOE LAYER "block_sparse_moe."
#define EXPERT MOE "experts.{expert}"

/* Published under a name of its own, which the library spells otherwise. */
#define PHIMOE \
    .model_type = "phimoe",                                                              \
    .default_positions = 131072,                                                         \
    .default_eps = 1e-5,                                                                 \
    .default_theta = 1e6,                                                                \
    .router = MP_ROUTER_MIXER,                                                           \
    .keys = {                                                                            \
        .experts = { "num_local_experts", "num_experts" },                               \
        .expert_ffn = "intermediate_size",                                               \
        .mixer_eps = { "router_jitter_noise", 0.01 },                                    \
    },                                                                                   \
    .switches = {                                                                        \
        .qkv_bias = { "attention_bias", false },                                         \
        .o_bias = { "attention_bias", false },                                           \
        .head_bias = { "lm_head_bias", false },                                          \
        .window = { NULL, true },                                                        \
    },                                                                                   \
    .refusals = { { "num_experts_per_tok", 2, "2" } },                                   \
    .names = {                                                                           \
        MP_ARCH_COMMON_NAMES,                                                            \
        MP_ARCH_QKV_BIAS_NAMES,                                                          \
        [MP_ROLE_FINAL_NORM_BIAS] = { "model.norm.bias", NULL },                         \
        [MP_ROLE_HEAD_BIAS] = { "lm_head.bias", NULL },                                  \
        [MP_ROLE_ATTN_NORM_BIAS] = { LAYER "input_layernorm.bias", NULL },               \
        [MP_ROLE_O_BIAS] = { LAYER "self_attn.o_proj.bias", NULL },                      \
        [MP_ROLE_FFN_NORM_BIAS] = { LAYER "post_attention_layernorm.bias", NULL },       \
        [MP_ROLE_ROUTER] = { MOE "gate.weight", LAYER "mlp.router.weight" },             \
    },                                                                                   \
    .expert = { EXPERT ".w1.weight", EXPERT ".w3.weight", EXPERT ".w2.weight" },         \
    .slice = MP_ARCH_SLICES(EXPERT),                                                     \
    .fused_gate_up = LAYER "mlp.experts.gate_up_proj",                                   \
    .fused_down = LAYER "mlp.experts.down_proj"

const struct mp_arch mp_arch_phimoe = { .name = "PhimoeForCausalLM", PHIMOE };
const struct mp_arch mp_arch_phimoe_published = { .name = "PhiMoEForCausalLM", PHIMOE };
