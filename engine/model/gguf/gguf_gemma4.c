/* The Gemma 4 family in GGUF files: gate and up of all experts in one tensor, the dense network
 * beside them under the names that other families have without experts. */
#include "engine/model/gguf/families_int.h"

const struct mp_arch mp_arch_gguf_gemma4 = {
    .name = "gemma4",
    .default_theta = 1e4,
    .activation = MP_ACTIVATION_GELU,
    .wide = true,
    .v_norm = true,
    .embed_root = true,
    .keys = {
        .expert_ffn = "expert_feed_forward_length",
        .shared_ffn = "feed_forward_length",
        .attention_scale = { NULL, 1 },
        .logit_cap = "final_logit_softcapping",
    },
    .switches = { .qk_norm = { NULL, true } },
    .names = {
        MP_GGUF_END_NAMES,
        MP_GGUF_QKV_NAMES,
        MP_GGUF_QK_NORM_NAMES,
        [MP_ROLE_ATTN_AFTER] = { MP_GGUF_BLOCK "post_attention_norm.weight", NULL },
        [MP_ROLE_FFN_NORM] = { MP_GGUF_BLOCK "pre_ffw_norm_2.weight", NULL },
        [MP_ROLE_ROUTER_NORM] = { MP_GGUF_BLOCK "ffn_gate_inp.scale", NULL },
        [MP_ROLE_EXPERT_SCALE] = { MP_GGUF_BLOCK "ffn_down_exps.scale", NULL },
        [MP_ROLE_SHARED_GATE] = { MP_GGUF_BLOCK "ffn_gate.weight", NULL },
        [MP_ROLE_SHARED_UP] = { MP_GGUF_BLOCK "ffn_up.weight", NULL },
        [MP_ROLE_SHARED_DOWN] = { MP_GGUF_BLOCK "ffn_down.weight", NULL },
        [MP_ROLE_SHARED_NORM] = { MP_GGUF_BLOCK "ffn_norm.weight", NULL },
        [MP_ROLE_SHARED_AFTER] = { MP_GGUF_BLOCK "post_ffw_norm_1.weight", NULL },
        [MP_ROLE_ROUTED_AFTER] = { MP_GGUF_BLOCK "post_ffw_norm_2.weight", NULL },
        [MP_ROLE_FFN_AFTER] = { MP_GGUF_BLOCK "post_ffw_norm.weight", NULL },
        [MP_ROLE_LAYER_SCALE] = { MP_GGUF_BLOCK "layer_output_scale.weight", NULL },
    },
    MP_GGUF_EXPERTS,
};
