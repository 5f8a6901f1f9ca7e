#ifndef MP_ENGINE_CONFIG_H
#define MP_ENGINE_CONFIG_H

#include "vmm/base/error.h"

/*
 * The configuration of a model from config.json and generation_config.json, or from a GGUF file's
 * metadata, validated and in the project's terms.
 *
 * Every number has a range, so that no size computed from them overflows 64 bits and no divisor is
 * zero. Features that the engine does not implement are refused by name, never ignored: other
 * architectures, activations, RoPE types, quantised weights. Fields that do not affect the result
 * (dropout, router losses, initialisation) are ignored. The sizes of the model are required; other
 * missing fields get the transformers library's default.
 *
 * MP_ERR_MODEL: E_JSON_* and E_CONFIG with key, got and need; E_UNSUPPORTED for a valid model that
 * this engine cannot run. MP_ERR_IO, MP_ERR_NO_MEMORY.
 */
#define MP_LAYERS_MAX 512u
#define MP_EXPERTS_MAX 4096u
#define MP_EXPERTS_PER_TOKEN_MAX 64u
#define MP_EOS_MAX 16u
#define MP_TOKEN_NONE UINT32_MAX

struct mp_checkpoint;
struct mp_gguf;
struct mp_arch; /* a model family: engine/model/arch/arch.h */

/* From generation_config.json. Missing fields have the library's neutral value. */
struct mp_sampling_defaults {
    bool do_sample;     /* false: greedy */
    double temperature; /* 1 */
    double top_p;       /* 1: all */
    uint32_t top_k;     /* 0: all */
};

/* Function of a router's outputs that gives the scores. */
enum mp_router {
    MP_ROUTER_SOFTMAX,
    MP_ROUTER_SIGMOID,
    MP_ROUTER_MIXER /* softmax; each rank is weighed against those near it (struct mp_model_config)
                     */
};

/*
 * What stands between an expert's first two products and the third one, of gate g and up u:
 * SILU silu(g) u; CLAMPED g sigmoid(alpha g) (u + 1), with g at most and u within a limit; GELU
 * gelu(g) u, by its approximation with tanh.
 */
enum mp_activation { MP_ACTIVATION_SILU, MP_ACTIVATION_CLAMPED, MP_ACTIVATION_GELU };

enum mp_rope_kind { MP_ROPE_PLAIN, MP_ROPE_LINEAR, MP_ROPE_YARN, MP_ROPE_LONG };

#define MP_ROPE_FACTORS_MAX 512u

/* Scaling of positions; only the numbers of the kind are set. */
struct mp_rope {
    enum mp_rope_kind kind;
    double factor;    /* by which frequencies become lower */
    double slow;      /* turns in `original` positions: those with fewer are divided; */
    double fast;      /* those with more stay, and what is between is mixed */
    double original;  /* positions that the model was first trained with */
    double magnitude; /* of sines and cosines */
    bool truncate;    /* bounds of the mixture are whole dimensions */
    /* Of LONG: divisors of each frequency, with contexts of up to `original` positions, and with
     * longer ones, which also have a magnitude of their own. llama3's scaling is such, too: the
     * same divisors for all contexts. */
    float factors[2][MP_ROPE_FACTORS_MAX];
    double long_magnitude;
};

/* Gated delta networks in place of attention; key_heads 0: there are none. */
struct mp_delta {
    uint32_t key_heads, value_heads; /* the second a multiple of the first */
    uint32_t key_dim, value_dim;     /* of a head */
    uint32_t conv;                   /* tokens that the convolution before it sees */
    bool in_parts; /* what enters it comes from matrices for channels and gates, not by key head, */
    bool step_parts; /* and the numbers of a step from two, too */
    bool tiled;      /* head h of values has key head h modulo their number */
};

struct mp_model_config {
    const struct mp_arch *arch; /* keys and names of its family */
    uint32_t vocab;             /* rows of the embedding, 1..2^22 */
    uint32_t hidden;            /* width of the residual stream, 1..2^17 */
    uint32_t layers;            /* 1..MP_LAYERS_MAX */
    uint32_t first_layer;       /* its number in names of tensors; 0 but for one that drafts: */
    bool drafting;              /* the one layer is that of engine/model/drafting.h */
    uint32_t heads;             /* query heads, 1..1024, a multiple of kv_heads */
    uint32_t kv_heads;          /* >= 1 */
    uint32_t head_dim;          /* even, 2..1024 */
    /* Layers whose heads are others: as many of queries, of other sizes. They rotate in pairs half
     * a head apart, the first wide_rotary_dim / 2 of which turn. */
    bool wide[MP_LAYERS_MAX];
    uint32_t wide_kv_heads, wide_head_dim, wide_rotary_dim;
    double wide_theta, wide_factor; /* base of their frequencies, and what these are divided by */
    bool wide_values_are_keys;      /* as they are before norm and rotation */
    bool v_norm;                    /* RMSNorm without weights of each head's value */
    uint32_t positions_max;         /* maximum of the model, 1..2^24 */
    float norm_eps;                 /* of RMSNorm, > 0 */
    double rope_theta;              /* > 0 */
    uint32_t rotary_dim;            /* of each head, from its start; even, 2..head_dim */
    struct mp_rope rope;
    uint32_t window;              /* positions that windowed layers see, this one among them */
    bool windowed[MP_LAYERS_MAX]; /* the others see all */
    /* Of latent attention (q_rank may be 0 there; kv_rank is 0 elsewhere): heads is as always,
     * kv_heads 1, head_dim rotary_dim + kv_rank, what the cache keeps of a position. */
    uint32_t kv_rank, q_rank; /* widths of the latent of keys and values, of that of queries */
    uint32_t nope_dim;        /* of a head's query and key, not rotated */
    uint32_t value_dim;       /* of a head's value */
    float latent_eps;         /* of the norms of latents */
    bool latent_split;        /* in GGUF files: what makes keys and values of it are two tensors */
    struct mp_delta delta;
    uint32_t short_conv; /* or gated short convolutions: tokens that one sees, 0: there are none */
    bool linear[MP_LAYERS_MAX]; /* these layers have the one or the other */
    bool q_gate;                /* each head's query is followed by a gate of what it attends */
    float attention_scale;      /* of queries times keys; 0: 1 / sqrt(head_dim) */
    float embed_scale, residual_scale, logit_scale; /* 1 in most families */
    float logit_cap; /* logits are cap tanh(logit / cap); 0: they are not */

    uint32_t experts;           /* per MoE layer, 1..MP_EXPERTS_MAX */
    uint32_t experts_per_token; /* 1..MP_EXPERTS_PER_TOKEN_MAX, <= experts */
    uint32_t expert_ffn;        /* channels of one expert, 1..2^20 */
    uint32_t shared_ffn;        /* channels of the shared expert, 0: there is none */
    uint32_t dense_ffn;         /* channels of the FFN of dense layers; 0: there are none */
    uint32_t moe_layers;        /* >= 1 */
    bool is_moe[MP_LAYERS_MAX];

    enum mp_activation activation;
    float act_alpha, act_limit; /* of CLAMPED */

    bool qkv_bias;
    bool o_bias;
    bool head_bias;          /* of the output head */
    bool norm_bias;          /* norms of the stream are LayerNorm, with biases */
    bool norms_after;        /* norms of what attention, shared expert, experts and FFN give */
    bool router_norm;        /* the router's input is a norm of the stream, over sqrt(hidden) */
    bool expert_scale;       /* of weights, after they are divided by their sum */
    bool layer_scale;        /* of the stream, after each layer */
    bool sinks;              /* each head has a score that takes a share and gives no value */
    bool router_bias;        /* of the router's outputs */
    bool transposed_experts; /* in directories: struct mp_arch, fused_transposed */
    bool mxfp4;              /* the same, in MXFP4: nibbles and scales in tensors of their own */
    bool expert_bias;        /* of all three products of an expert */
    bool qk_norm;            /* RMSNorm of each head's query and key, before RoPE */
    bool qk_norm_rows;       /* the same of all heads together */
    bool norm_topk;          /* chosen experts' weights are divided by their sum */
    bool tied;               /* the output head is the embedding */

    enum mp_router router;
    float
        mixer_eps; /* of MIXER: outputs that are lower by more than twice this share do not count */
    bool select_bias; /* is added to the scores that experts are chosen by, not to their weights */
    uint32_t groups;  /* of experts, 1: none; experts are chosen from the best `groups_used` */
    uint32_t groups_used; /* 1..groups */
    uint32_t group_best;  /* a group is as good as its so many best experts together, 1 or 2 */
    float routed_scale;   /* of the routed experts' sum */

    uint32_t bos;             /* MP_TOKEN_NONE: none */
    uint32_t eos[MP_EOS_MAX]; /* any of them ends a sequence */
    uint32_t eos_count;
    struct mp_sampling_defaults sampling;
};

/* The name of config.json in a directory whose experts are stored in slices, so that no other
 * program mistakes it for an ordinary model. */
#define MP_SLICED_CONFIG "moepager-model.json"

/* Tensors of GGUF files that the configuration has read: divisors of frequencies, for contexts of
 * any length, or for short and for long ones. */
#define MP_DIVISORS_NAME "rope_freqs.weight"
#define MP_DIVISORS_SHORT_NAME "rope_factors_short.weight"
#define MP_DIVISORS_LONG_NAME "rope_factors_long.weight"

bool mp_is_divisors(const char *name);

/* Read both files from the model's directory, where generation_config.json may be absent, or the
 * metadata of the GGUF file. */
enum mp_status mp_model_config_load(const struct mp_checkpoint *checkpoint,
                                    struct mp_model_config *config_p) MP_MUST_CHECK;

/* From metadata. E_GGUF_KEY and E_GGUF_VALUE for keys, else as above; sampling is greedy. */
enum mp_status mp_model_config_from_gguf(const struct mp_gguf *gguf,
                                         struct mp_model_config *config_p) MP_MUST_CHECK;

static inline uint32_t mp_layer_kv_heads(const struct mp_model_config *config, uint32_t layer)
{
    return config->wide[layer] ? config->wide_kv_heads : config->kv_heads;
}

static inline uint32_t mp_layer_head_dim(const struct mp_model_config *config, uint32_t layer)
{
    return config->wide[layer] ? config->wide_head_dim : config->head_dim;
}

/* True if the scores that experts are chosen by are not their weights. */
static inline bool mp_model_config_selects(const struct mp_model_config *config)
{
    return config->select_bias || config->groups > 1 || config->router == MP_ROUTER_MIXER ||
           config->expert_scale;
}

/* Groups of equal size, of which those that are used hold a token's experts. */
static inline bool mp_model_config_groups_fit(const struct mp_model_config *config)
{
    const uint32_t each = config->experts / config->groups;

    return config->experts % config->groups == 0 &&
           config->experts_per_token <= each * config->groups_used &&
           (config->groups == 1 || config->group_best <= each);
}

/* Elements of all keys, or of all values, of a gated delta network; channels of its convolution. */
static inline uint32_t mp_delta_keys(const struct mp_delta *delta)
{
    return delta->key_heads * delta->key_dim;
}

static inline uint32_t mp_delta_values(const struct mp_delta *delta)
{
    return delta->value_heads * delta->value_dim;
}

static inline uint32_t mp_delta_channels(const struct mp_delta *delta)
{
    return 2 * mp_delta_keys(delta) + mp_delta_values(delta);
}

/* A feature of the model that only the CPU supports ("sigmoid scores"), or NULL; a device refuses
 * the model with this name. */
const char *mp_model_config_beyond(const struct mp_model_config *config);

/* The same from texts in memory; `generation` may be NULL. */
enum mp_status mp_model_config_parse(const char *config, size_t config_bytes,
                                     const char *generation, size_t generation_bytes,
                                     struct mp_model_config *config_p) MP_MUST_CHECK;

#endif
