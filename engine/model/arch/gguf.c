/* The families in GGUF files. There is no key for dense layers: all layers are MoE. */
#include "engine/model/arch/arch.h"

#include "vmm/base/compiler.h"

#define BLOCK "blk.{layer}."

#define COMMON_NAMES                                                                              \
    [MP_ROLE_EMBED] = { "token_embd.weight", NULL },                                              \
    [MP_ROLE_FINAL_NORM] = { "output_norm.weight", NULL },                                        \
    [MP_ROLE_HEAD] = { "output.weight", NULL },                                                   \
    [MP_ROLE_ATTN_NORM] = { BLOCK "attn_norm.weight", NULL },                                     \
    [MP_ROLE_Q] = { BLOCK "attn_q.weight", NULL }, [MP_ROLE_K] = { BLOCK "attn_k.weight", NULL }, \
    [MP_ROLE_V] = { BLOCK "attn_v.weight", NULL },                                                \
    [MP_ROLE_O] = { BLOCK "attn_output.weight", NULL },                                           \
    [MP_ROLE_FFN_NORM] = { BLOCK "ffn_norm.weight", NULL },                                       \
    [MP_ROLE_ROUTER] = { BLOCK "ffn_gate_inp.weight", NULL }

#define STACKED                                                                                \
    {                                                                                          \
        BLOCK "ffn_gate_exps.weight", BLOCK "ffn_up_exps.weight", BLOCK "ffn_down_exps.weight" \
    }

/* Mixtral and others whose layers are Llama's with experts. */
static const struct mp_arch llama = {
    .name = "llama",
    .default_theta = 1e4,
    .keys = { .expert_ffn = "feed_forward_length" },
    .switches = { .norm_topk = { NULL, true } },
    .names = { COMMON_NAMES },
    .stacked = STACKED,
    .rotary_neighbours = true,
};

static const struct mp_arch qwen2moe = {
    .name = "qwen2moe",
    .default_theta = 1e4,
    .keys = {
        .expert_ffn = "expert_feed_forward_length",
        .shared_ffn = "expert_shared_feed_forward_length",
    },
    .names = {
        COMMON_NAMES,
        [MP_ROLE_Q_BIAS] = { BLOCK "attn_q.bias", NULL },
        [MP_ROLE_K_BIAS] = { BLOCK "attn_k.bias", NULL },
        [MP_ROLE_V_BIAS] = { BLOCK "attn_v.bias", NULL },
        [MP_ROLE_SHARED_GATE] = { BLOCK "ffn_gate_shexp.weight", NULL },
        [MP_ROLE_SHARED_UP] = { BLOCK "ffn_up_shexp.weight", NULL },
        [MP_ROLE_SHARED_DOWN] = { BLOCK "ffn_down_shexp.weight", NULL },
        [MP_ROLE_SHARED_SWITCH] = { BLOCK "ffn_gate_inp_shexp.weight", NULL },
    },
    .stacked = STACKED,
};

static const struct mp_arch qwen3moe = {
    .name = "qwen3moe",
    .default_theta = 1e4,
    .keys = { .expert_ffn = "expert_feed_forward_length" },
    .switches = { .qk_norm = { NULL, true }, .norm_topk = { NULL, true } },
    .names = {
        COMMON_NAMES,
        [MP_ROLE_Q_NORM] = { BLOCK "attn_q_norm.weight", NULL },
        [MP_ROLE_K_NORM] = { BLOCK "attn_k_norm.weight", NULL },
    },
    .stacked = STACKED,
};

static const struct mp_arch *const archs[] = {
#define X(name) &name,
    MP_ARCH_GGUF_MAP(X)
#undef X
};

const struct mp_arch *mp_arch_gguf_at(size_t index)
{
    return index < MP_ARRAY_LEN(archs) ? archs[index] : NULL;
}
