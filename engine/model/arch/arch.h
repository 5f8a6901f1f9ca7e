#ifndef MP_ENGINE_ARCH_H
#define MP_ENGINE_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/model/roles.h"

/*
 * Model families: how each represents the common model (struct mp_model_config and the roles of
 * engine/model/roles.h) in its config.json and tensor files. A family is one constant in its own
 * file in this folder, and one line of MP_ARCH_MAP. It defines names and which parts exist; it
 * computes nothing. For a feature that the engine lacks (another router, another attention), add a
 * member to struct mp_model_config first, then a key or a switch here.
 *
 * A family that also occurs in GGUF files has a second constant in engine/model/gguf, because those
 * use other names and keys for the same model.
 *
 * Names of tensors are patterns: "{layer}", "{expert}" and "{slice}" stand for numbers.
 */

/* A boolean: the value of `key`, or `value` if config.json does not have it; always `value` if the
 * family has no such key (NULL). */
struct mp_arch_switch {
    const char *key;
    bool value;
};

/* A number, with the library's default, which is also used if the key is NULL. */
struct mp_arch_number {
    const char *key;
    double value;
};

/* Keys of numbers in config.json. NULL: the family has no such number. */
struct mp_arch_keys {
    const char *
        experts[2]; /* two names of the same number: the family's own, and that of other versions */
    const char *per_token; /* NULL: "num_experts_per_tok" */
    const char *expert_ffn;
    const char *shared_ffn;             /* channels of the shared expert, or */
    struct mp_arch_number shared_count; /* how many times expert_ffn; both NULL: there is none */
    const char *dense_ffn;              /* of layers that are not MoE */
    const char *moe_step;     /* layers i with (i + 1) % step == 0 are MoE; NULL: all are, */
    const char *dense_layers; /* but those of this list, */
    struct mp_arch_number dense_first; /* the first so many */
    const char *moe_last;              /* and those behind this one, if it is not negative; or */
    const char *layer_kinds;           /* "sparse" or "dense" for each */
    struct mp_arch_number groups, groups_used; /* 1 where NULL */
    struct mp_arch_number routed_scale;        /* this and the following: 1 where NULL */
    struct mp_arch_number embed_scale, residual_scale, logit_divisor;
    struct mp_arch_number attention_scale;      /* without a key its value; that 0: by head size */
    const char *logit_cap;                      /* as in struct mp_model_config */
    struct mp_arch_number act_alpha, act_limit; /* as in struct mp_model_config */
    const char
        *delta; /* gated delta networks: heads of keys; the other keys are the same everywhere */
    const char *kv_rank;    /* latent attention, with the keys that are its own everywhere */
    const char *drafting;   /* of GGUF files: layers behind the others, which draft tokens */
    const char *short_conv; /* tokens that a short convolution sees */
    const char *norm_eps;   /* NULL: "rms_norm_eps" */
    const char *tied;       /* goes before "tie_word_embeddings" */
    struct mp_arch_number mixer_eps; /* as in struct mp_model_config */
    const char *rotary_dim; /* elements of a head that are rotated, or as a share of the head */
    struct mp_arch_number rotary_share;
};

/* A key that requests an unsupported feature, unless its value is null, false or `neutral`. */
struct mp_arch_refusal {
    const char *key;
    double neutral;
    const char *need; /* "this engine supports NEED only" */
};

#define MP_ARCH_REFUSALS_MAX 4

struct mp_arch_switches {
    struct mp_arch_switch qkv_bias, o_bias, qk_norm, norm_topk; /* as in struct mp_model_config */
    struct mp_arch_switch head_bias, select_bias;
    struct mp_arch_switch window; /* is "sliding_window" in use? */
};

/* `other`: the name in other versions of the library; it is used if the model has it. */
struct mp_arch_name {
    const char *name, *other;
};

struct mp_arch {
    const char *name;       /* "MixtralForCausalLM": `architectures` in config.json */
    const char *model_type; /* "mixtral": where that is missing */
    uint32_t default_positions;
    double default_eps, default_theta;
    bool default_tied;
    enum mp_router router;
    enum mp_activation activation;
    const char *text_key;  /* config.json has everything about text in this object */
    bool q_gate;           /* as in struct mp_model_config */
    bool wide;             /* layers of full attention have heads of other sizes; with the keys that
                              are its own everywhere */
    bool v_norm;           /* as in struct mp_model_config */
    bool embed_root;       /* embeddings are multiplied by sqrt(hidden) */
    bool norm_offset;      /* the weights of norms, but those within delta networks, lack a 1 */
    bool greedy_groups;    /* groups count only where "topk_method" is "group_limited_greedy" */
    bool qk_norm_rows;     /* as in struct mp_model_config, like group_best */
    uint32_t group_best;   /* 0 is 1 */
    bool window_by_layer;  /* only "layer_types" determines which layers have one */
    bool decays;           /* of GGUF files: delta networks have -exp() of the logarithm */
    bool tiled;            /* of GGUF files: heads of values that share a key stand apart */
    bool router_by_key;    /* of GGUF files: they say whether scores are sigmoids */
    uint32_t window_step;  /* of GGUF files: every so many-th layer sees all positions */
    bool yarn_untruncated; /* of GGUF files: struct mp_rope's `truncate` is false */
    /* Of GGUF files: other programs take divisors of frequencies from them, one list for contexts
     * of any length, or two for short and long ones. */
    bool one_list, two_lists;
    struct mp_arch_keys keys;
    struct mp_arch_switches switches;
    struct mp_arch_refusal refusals[MP_ARCH_REFUSALS_MAX];
    struct mp_arch_name names[MP_ROLE_COUNT]; /* NULL: the family has no such tensor */

    /* An expert's gate, up and down, in a tensor each; the same for a slice, which only moepager
     * writes. */
    const char *expert[3], *slice[3];
    /* All experts of a layer: gate rows before up rows (E, 2F, H), and down (E, H, F). */
    const char *fused_gate_up, *fused_down;
    /* These are transposed, and gate and up take turns: (E, H, 2F) and (E, F, H), as are the biases
     * of gate and up: (E, 2F). */
    bool fused_transposed;
    /* They may also be in MXFP4: (E, 2F, H / 32, 16) nibbles, (E, 2F, H / 32) scales, and such of
     * (E, H, F), under these names with _blocks and _scales. */
    bool fused_mxfp4;
    /* All experts of a layer: gate, up (E, F, H) and down (E, H, F) in a tensor each. */
    const char *stacked[3];
    /* The two rows of queries and keys that rotate together are adjacent in the file, not half a
     * head apart. */
    bool rotary_neighbours;
};

/* X(suffix of the constant's name): all families. */
#define MP_ARCH_MAP(X)  \
    X(deepseek)         \
    X(deepseek_v2)      \
    X(deepseek_v3)      \
    X(ernie4_5_moe)     \
    X(gemma4)           \
    X(gemma4_text)      \
    X(glm4_moe)         \
    X(glm4_moe_lite)    \
    X(gpt_oss)          \
    X(granitemoe)       \
    X(lfm2_moe)         \
    X(minimax_m2)       \
    X(mixtral)          \
    X(olmoe)            \
    X(phimoe)           \
    X(phimoe_published) \
    X(qwen2_moe)        \
    X(qwen3_5_moe)      \
    X(qwen3_5_moe_text) \
    X(qwen3_moe)        \
    X(qwen3_next)       \
    X(xverse)           \
    X(xverse_moe)

#define X(name) extern const struct mp_arch mp_arch_##name;
MP_ARCH_MAP(X)
#undef X

/* The families in this order; NULL after the last one. */
const struct mp_arch *mp_arch_at(size_t index);

/*
 * The families in GGUF files: `name` is their general.architecture, keys are those of the metadata
 * behind "NAME.", and the only switch that depends on the file is whether there are biases: whether
 * the first layer has one.
 */
#define MP_ARCH_GGUF_MAP(X) \
    X(deepseek)             \
    X(deepseek2)            \
    X(ernie4_5_moe)         \
    X(gemma4)               \
    X(glm4moe)              \
    X(gpt_oss)              \
    X(granitemoe)           \
    X(lfm2moe)              \
    X(llama)                \
    X(minimax_m2)           \
    X(olmoe)                \
    X(phimoe)               \
    X(qwen2moe)             \
    X(qwen35moe)            \
    X(qwen3moe)             \
    X(qwen3next)

const struct mp_arch *mp_arch_gguf_at(size_t index);

/* Set what the family has without a key: by the tensors that it names, and by its constants. */
void mp_arch_parts(const struct mp_arch *arch, struct mp_model_config *config);

/* Numbers for a pattern. */
struct mp_name_numbers {
    uint32_t layer, expert, slice;
};

/*
 * Write the name to `out`, truncated to `bytes` including the NUL, and return its full length, like
 * snprintf().
 */
size_t mp_arch_format(char *out, size_t bytes, const char *pattern,
                      const struct mp_name_numbers *numbers);

/* True if `name` matches the pattern for some layer, *layer_p. Patterns with other numbers never
 * match. */
bool mp_arch_match(const char *pattern, const char *name, uint32_t *layer_p);

/* Names of the tensors of norms, embedding and head in most families, and those of attention. */
#define MP_ARCH_END_NAMES                                                          \
    [MP_ROLE_EMBED] = { "model.embed_tokens.weight", NULL },                       \
    [MP_ROLE_FINAL_NORM] = { "model.norm.weight", NULL },                          \
    [MP_ROLE_HEAD] = { "lm_head.weight", NULL },                                   \
    [MP_ROLE_ATTN_NORM] = { "model.layers.{layer}.input_layernorm.weight", NULL }, \
    [MP_ROLE_O] = { "model.layers.{layer}.self_attn.o_proj.weight", NULL },        \
    [MP_ROLE_FFN_NORM] = { "model.layers.{layer}.post_attention_layernorm.weight", NULL }

#define MP_ARCH_COMMON_NAMES                                                                   \
    MP_ARCH_END_NAMES, [MP_ROLE_Q] = { "model.layers.{layer}.self_attn.q_proj.weight", NULL }, \
                       [MP_ROLE_K] = { "model.layers.{layer}.self_attn.k_proj.weight", NULL }, \
                       [MP_ROLE_V] = { "model.layers.{layer}.self_attn.v_proj.weight", NULL }

/* Of gated delta networks; `p` stands before "layers". Either the first two or the next four. */
#define MP_ARCH_DELTA_NAMES(p)                                                     \
    [MP_ROLE_DELTA_CONV] = { p "layers.{layer}.linear_attn.conv1d.weight", NULL }, \
    [MP_ROLE_DELTA_STEP_BIAS] = { p "layers.{layer}.linear_attn.dt_bias", NULL },  \
    [MP_ROLE_DELTA_DECAY] = { p "layers.{layer}.linear_attn.A_log", NULL },        \
    [MP_ROLE_DELTA_NORM] = { p "layers.{layer}.linear_attn.norm.weight", NULL },   \
    [MP_ROLE_DELTA_OUT] = { p "layers.{layer}.linear_attn.out_proj.weight", NULL }

#define MP_ARCH_QKV_BIAS_NAMES                                                 \
    [MP_ROLE_Q_BIAS] = { "model.layers.{layer}.self_attn.q_proj.bias", NULL }, \
    [MP_ROLE_K_BIAS] = { "model.layers.{layer}.self_attn.k_proj.bias", NULL }, \
    [MP_ROLE_V_BIAS] = { "model.layers.{layer}.self_attn.v_proj.bias", NULL }

#define MP_ARCH_DENSE_NAMES                                                       \
    [MP_ROLE_DENSE_GATE] = { "model.layers.{layer}.mlp.gate_proj.weight", NULL }, \
    [MP_ROLE_DENSE_UP] = { "model.layers.{layer}.mlp.up_proj.weight", NULL },     \
    [MP_ROLE_DENSE_DOWN] = { "model.layers.{layer}.mlp.down_proj.weight", NULL }

/* Of the experts that every token uses, whose names begin so. */
#define MP_ARCH_SHARED_NAMES(shared)                              \
    [MP_ROLE_SHARED_GATE] = { shared ".gate_proj.weight", NULL }, \
    [MP_ROLE_SHARED_UP] = { shared ".up_proj.weight", NULL },     \
    [MP_ROLE_SHARED_DOWN] = { shared ".down_proj.weight", NULL }

/* Latent attention: `Q` is the second matrix of queries where they have a rank, and the only one
 * where they have none. */
#define MP_ARCH_LATENT_NAMES                                                                  \
    [MP_ROLE_Q] = { "model.layers.{layer}.self_attn.q_proj.weight",                           \
                    "model.layers.{layer}.self_attn.q_b_proj.weight" },                       \
    [MP_ROLE_Q_DOWN] = { "model.layers.{layer}.self_attn.q_a_proj.weight", NULL },            \
    [MP_ROLE_Q_DOWN_NORM] = { "model.layers.{layer}.self_attn.q_a_layernorm.weight", NULL },  \
    [MP_ROLE_K] = { "model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight", NULL },       \
    [MP_ROLE_LATENT_NORM] = { "model.layers.{layer}.self_attn.kv_a_layernorm.weight", NULL }, \
    [MP_ROLE_KV_UP] = { "model.layers.{layer}.self_attn.kv_b_proj.weight", NULL }

/* The layer behind the others, which drafts tokens; what else it has is called as in those. */
#define MP_ARCH_DRAFT_NAMES                                                     \
    [MP_ROLE_DRAFT_EMBED_NORM] = { "model.layers.{layer}.enorm.weight", NULL }, \
    [MP_ROLE_DRAFT_STATE_NORM] = { "model.layers.{layer}.hnorm.weight", NULL }, \
    [MP_ROLE_DRAFT_IN] = { "model.layers.{layer}.eh_proj.weight", NULL },       \
    [MP_ROLE_DRAFT_NORM] = { "model.layers.{layer}.shared_head.norm.weight", NULL }

/* The three tensors of a slice of the expert whose names begin so. */
#define MP_ARCH_SLICES(expert)                                                              \
    {                                                                                       \
        expert ".slices.{slice}.gate_proj.weight", expert ".slices.{slice}.up_proj.weight", \
            expert ".slices.{slice}.down_proj.weight"                                       \
    }

#endif
