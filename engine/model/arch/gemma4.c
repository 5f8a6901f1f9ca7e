/* The Gemma 4 family, its members with experts: a dense network beside the experts as the shared
 * one, norms before and after everything, layers of full attention with wider heads. Published
 * models also see; their text is an object of config.json and has other names. */
#include "engine/model/arch/arch.h"

#define LAYER(p) p "layers.{layer}."
#define ATTENTION(p) LAYER(p) "self_attn."
#define MLP(p) LAYER(p) "mlp."
#define EXPERTS(p) LAYER(p) "experts"
#define EXPERT(p) EXPERTS(p) ".{expert}"

#define GEMMA4(p) \
    .default_positions = 131072, .default_eps = 1e-6, .default_theta = 1e4,                     \
    .default_tied = true, .activation = MP_ACTIVATION_GELU, .window_by_layer = true,            \
    .wide = true, .v_norm = true, .embed_root = true,                                           \
    .keys = { .experts = { "num_experts", NULL },                                               \
              .per_token = "top_k_experts",                                                     \
              .expert_ffn = "moe_intermediate_size",                                            \
              .shared_ffn = "intermediate_size",                                                \
              .attention_scale = { NULL, 1 },                                                   \
              .logit_cap = "final_logit_softcapping" },                                         \
    .switches = { .qkv_bias = { "attention_bias", false },                                      \
                  .o_bias = { "attention_bias", false },                                        \
                  .qk_norm = { NULL, true },                                                    \
                  .window = { NULL, true } },                                                   \
    .names = {                                                                                  \
        [MP_ROLE_EMBED] = { p "embed_tokens.weight", NULL },                                    \
        [MP_ROLE_FINAL_NORM] = { p "norm.weight", NULL },                                       \
        [MP_ROLE_HEAD] = { "lm_head.weight", NULL },                                            \
        [MP_ROLE_ATTN_NORM] = { LAYER(p) "input_layernorm.weight", NULL },                      \
        [MP_ROLE_ATTN_AFTER] = { LAYER(p) "post_attention_layernorm.weight", NULL },            \
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
        [MP_ROLE_FFN_NORM] = { LAYER(p) "pre_feedforward_layernorm_2.weight", NULL },           \
        [MP_ROLE_ROUTER] = { LAYER(p) "router.proj.weight", NULL },                             \
        [MP_ROLE_ROUTER_NORM] = { LAYER(p) "router.scale", NULL },                              \
        [MP_ROLE_EXPERT_SCALE] = { LAYER(p) "router.per_expert_scale", NULL },                  \
        [MP_ROLE_SHARED_GATE] = { MLP(p) "gate_proj.weight", NULL },                            \
        [MP_ROLE_SHARED_UP] = { MLP(p) "up_proj.weight", NULL },                                \
        [MP_ROLE_SHARED_DOWN] = { MLP(p) "down_proj.weight", NULL },                            \
        [MP_ROLE_SHARED_NORM] = { LAYER(p) "pre_feedforward_layernorm.weight", NULL },          \
        [MP_ROLE_SHARED_AFTER] = { LAYER(p) "post_feedforward_layernorm_1.weight", NULL },      \
        [MP_ROLE_ROUTED_AFTER] = { LAYER(p) "post_feedforward_layernorm_2.weight", NULL },      \
        [MP_ROLE_FFN_AFTER] = { LAYER(p) "post_feedforward_layernorm.weight", NULL },           \
        [MP_ROLE_LAYER_SCALE] = { LAYER(p) "layer_scalar", NULL },                              \
    },                                                                                          \
    /* One by one they are written by moepager alone. */                                        \
    .expert = { EXPERT(p) ".gate_proj.weight", EXPERT(p) ".up_proj.weight",                     \
                EXPERT(p) ".down_proj.weight" },                                                \
    .slice = MP_ARCH_SLICES(EXPERT(p)), .fused_gate_up = EXPERTS(p) ".gate_up_proj",            \
    .fused_down = EXPERTS(p) ".down_proj"

const struct mp_arch mp_arch_gemma4 = {
    .name = "Gemma4ForConditionalGeneration",
    .model_type = "gemma4",
    .text_key = "text_config",
    GEMMA4("model.language_model."),
};

const struct mp_arch mp_arch_gemma4_text = {
    .name = "Gemma4ForCausalLM",
    .model_type = "gemma4_text",
    GEMMA4("model."),
};
