/* The LFM2 family in GGUF files: short convolutions in most layers. */
#include "engine/model/gguf/families_int.h"

const struct mp_arch mp_arch_gguf_lfm2moe = {
    .name = "lfm2moe",
    .default_theta = 1e4,
    .router_by_key = true,
    .keys = {
        .expert_ffn = "expert_feed_forward_length",
        .dense_ffn = "feed_forward_length",
        .dense_first = { "leading_dense_block_count", 0 },
        .short_conv = "shortconv.l_cache",
    },
    .switches = { .qk_norm = { NULL, true }, .norm_topk = { NULL, true } },
    .names = {
        [MP_ROLE_EMBED] = { "token_embd.weight", NULL },
        [MP_ROLE_FINAL_NORM] = { "token_embd_norm.weight", "output_norm.weight" },
        [MP_ROLE_HEAD] = { "output.weight", NULL },
        [MP_ROLE_ATTN_NORM] = { MP_GGUF_BLOCK "attn_norm.weight", NULL },
        [MP_ROLE_CONV_IN] = { MP_GGUF_BLOCK "shortconv.in_proj.weight", NULL },
        [MP_ROLE_CONV] = { MP_GGUF_BLOCK "shortconv.conv.weight", NULL },
        [MP_ROLE_CONV_OUT] = { MP_GGUF_BLOCK "shortconv.out_proj.weight", NULL },
        [MP_ROLE_O] = { MP_GGUF_BLOCK "attn_output.weight", NULL },
        [MP_ROLE_ROUTER] = { MP_GGUF_BLOCK "ffn_gate_inp.weight", NULL },
        MP_GGUF_FFN_NORM_NAME,
        MP_GGUF_QKV_NAMES,
        MP_GGUF_QK_NORM_NAMES,
        MP_GGUF_DENSE_NAMES,
        MP_GGUF_SELECT_BIAS_NAME,
    },
    MP_GGUF_EXPERTS,
};
