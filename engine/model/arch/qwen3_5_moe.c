/* The Qwen3.5-MoE family: Qwen3-Next's layers with matrices of their own for what enters a delta
 * network. Published models also see; their text is an object of config.json and has other names.
 */
#include "engine/model/arch/arch.h"

#define LAYER(p) p "layers.{layer}."
#define ATTENTION(p) LAYER(p) "self_attn."
#define DELTA(p) LAYER(p) "linear_attn."
#define MLP(p) LAYER(p) "mlp."
#define EXPERT(p) MLP(p) "experts.{expert}"
#define SHARED(p) MLP(p) "shared_expert"

#define QWEN3_5_MOE(p) \
    .default_positions = 32768, .default_eps = 1e-6, .default_theta = 1e4, .q_gate = true,      \
    .norm_offset = true,                                                                        \
    .keys = { .experts = { "num_experts", "num_local_experts" },                                \
              .expert_ffn = "moe_intermediate_size",                                            \
              .shared_ffn = "shared_expert_intermediate_size",                                  \
              .delta = "linear_num_key_heads",                                                  \
              .rotary_share = { "partial_rotary_factor", 0.25 } },                              \
    .switches = { .qkv_bias = { "attention_bias", false },                                      \
                  .o_bias = { "attention_bias", false },                                        \
                  .qk_norm = { NULL, true },                                                    \
                  .norm_topk = { NULL, true } },                                                \
    .names = {                                                                                  \
        MP_ARCH_DELTA_NAMES(p),                                                                 \
        [MP_ROLE_EMBED] = { p "embed_tokens.weight", NULL },                                    \
        [MP_ROLE_FINAL_NORM] = { p "norm.weight", NULL },                                       \
        [MP_ROLE_HEAD] = { "lm_head.weight", NULL },                                            \
        [MP_ROLE_ATTN_NORM] = { LAYER(p) "input_layernorm.weight", NULL },                      \
        [MP_ROLE_DELTA_QKV] = { DELTA(p) "in_proj_qkv.weight", NULL },                          \
        [MP_ROLE_DELTA_GATE] = { DELTA(p) "in_proj_z.weight", NULL },                           \
        [MP_ROLE_DELTA_SHARE] = { DELTA(p) "in_proj_b.weight", NULL },                          \
        [MP_ROLE_DELTA_TIME] = { DELTA(p) "in_proj_a.weight", NULL },                           \
        [MP_ROLE_Q] = { ATTENTION(p) "q_proj.weight", NULL },                                   \
        [MP_ROLE_Q_BIAS] = { ATTENTION(p) "q_proj.bias", NULL },                                \
        [MP_ROLE_K] = { ATTENTION(p) "k_proj.weight", NULL },                                   \
        [MP_ROLE_K_BIAS] = { ATTENTION(p) "k_proj.bias", NULL },                                \
        [MP_ROLE_V] = { ATTENTION(p) "v_proj.weight", NULL },                                   \
        [MP_ROLE_V_BIAS] = { ATTENTION(p) "v_proj.bias", NULL },                                \
        [MP_ROLE_O] = { ATTENTION(p) "o_proj.weight", NULL },                                   \
        [MP_ROLE_O_BIAS] = { ATTENTION(p) "o_proj.bias", NULL },                                \
        [MP_ROLE_Q_NORM] = { ATTENTION(p) "q_norm.weight", NULL },                              \
        [MP_ROLE_K_NORM] = { ATTENTION(p) "k_norm.weight", NULL },                              \
        [MP_ROLE_FFN_NORM] = { LAYER(p) "post_attention_layernorm.weight", NULL },              \
        [MP_ROLE_ROUTER] = { MLP(p) "gate.weight", NULL },                                      \
        MP_ARCH_SHARED_NAMES(SHARED(p)),                                                        \
        [MP_ROLE_SHARED_SWITCH] = { SHARED(p) "_gate.weight", NULL },                           \
    },                                                                                          \
    .expert = { EXPERT(p) ".gate_proj.weight", EXPERT(p) ".up_proj.weight",                     \
                EXPERT(p) ".down_proj.weight" },                                                \
    .slice = MP_ARCH_SLICES(EXPERT(p)), .fused_gate_up = MLP(p) "experts.gate_up_proj",         \
    .fused_down = MLP(p) "experts.down_proj"

const struct mp_arch mp_arch_qwen3_5_moe = {
    .name = "Qwen3_5MoeForConditionalGeneration",
    .model_type = "qwen3_5_moe",
    .text_key = "text_config",
    QWEN3_5_MOE("model.language_model."),
};

const struct mp_arch mp_arch_qwen3_5_moe_text = {
    .name = "Qwen3_5MoeForCausalLM",
    .model_type = "qwen3_5_moe_text",
    QWEN3_5_MOE("model."),
};
