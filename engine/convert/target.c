/* What a family of config.json is called in GGUF files, and whether such a file says the same. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/convert/convert_int.h"

static const struct {
    const char *family, *name;
} names[] = {
    { "MixtralForCausalLM", "llama" },
    { "Qwen2MoeForCausalLM", "qwen2moe" },
    { "Qwen3MoeForCausalLM", "qwen3moe" },
    { "Qwen3NextForCausalLM", "qwen3next" },
    { "Qwen3_5MoeForConditionalGeneration", "qwen35moe" },
    { "Qwen3_5MoeForCausalLM", "qwen35moe" },
    { "OlmoeForCausalLM", "olmoe" },
    { "GraniteMoeForCausalLM", "granitemoe" },
    { "Glm4MoeForCausalLM", "glm4moe" },
    { "Glm4MoeLiteForCausalLM", "deepseek2" },
    { "Ernie4_5_MoeForCausalLM", "ernie4_5-moe" },
    { "MiniMaxM2ForCausalLM", "minimax-m2" },
    { "DeepseekForCausalLM", "deepseek" },
    { "DeepseekV2ForCausalLM", "deepseek2" },
    { "DeepseekV3ForCausalLM", "deepseek2" },
    { "Gemma4ForConditionalGeneration", "gemma4" },
    { "Gemma4ForCausalLM", "gemma4" },
    { "GptOssForCausalLM", "gpt-oss" },
    { "Lfm2MoeForCausalLM", "lfm2moe" },
    { "PhimoeForCausalLM", "phimoe" },
    { "PhiMoEForCausalLM", "phimoe" },
};

static const char *reason_of(const char *family)
{
    if (strncmp(family, "Xverse", 6) == 0)
        return "llama.cpp has it without experts only";
    return "their tensors have no names there";
}

static const struct mp_arch *arch_named(const char *name)
{
    const struct mp_arch *arch = NULL;

    for (size_t i = 0; (arch = mp_arch_gguf_at(i)) != NULL && strcmp(arch->name, name) != 0;)
        i++;
    return arch;
}

enum mp_status mp_convert_target(const struct mp_model_config *model,
                                 const struct mp_arch **target_p)
{
    const char *family = model->arch->name;

    *target_p = NULL;
    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++) {
        if (strcmp(names[i].family, family) == 0)
            *target_p = arch_named(names[i].name);
    }
    if (*target_p != NULL)
        return MP_OK;
    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                   "models of the family %s are not written as GGUF files: %s", family,
                   reason_of(family));
}

/* Numbers of a configuration that both must have. */
enum kind { WHOLE, FLAG, REAL };

#define FIELD(kind, member, text)                            \
    {                                                        \
        kind, offsetof(struct mp_model_config, member), text \
    }
static const struct {
    enum kind kind;
    size_t offset;
    const char *text;
} fields[] = {
    FIELD(WHOLE, vocab, "rows of the embedding"),
    FIELD(WHOLE, hidden, "width"),
    FIELD(WHOLE, layers, "layers"),
    FIELD(WHOLE, heads, "heads"),
    FIELD(WHOLE, kv_heads, "heads of keys and values"),
    FIELD(WHOLE, head_dim, "head size"),
    FIELD(WHOLE, positions_max, "context length"),
    FIELD(WHOLE, rotary_dim, "rotated elements of a head"),
    FIELD(WHOLE, wide_kv_heads, "heads of keys and values with full attention"),
    FIELD(WHOLE, wide_head_dim, "head size with full attention"),
    FIELD(WHOLE, wide_rotary_dim, "rotated elements of a head with full attention"),
    FIELD(WHOLE, window, "a sliding window"),
    FIELD(WHOLE, kv_rank, "latent attention"),
    FIELD(WHOLE, q_rank, "a latent of queries"),
    FIELD(WHOLE, nope_dim, "elements of a head that are not rotated"),
    FIELD(WHOLE, value_dim, "elements of a value"),
    FIELD(WHOLE, delta.key_heads, "heads of delta networks"),
    FIELD(WHOLE, delta.value_heads, "values of delta networks"),
    FIELD(WHOLE, delta.key_dim, "head size of delta networks"),
    FIELD(WHOLE, delta.value_dim, "size of a value of delta networks"),
    FIELD(WHOLE, delta.conv, "the convolution of delta networks"),
    FIELD(WHOLE, experts, "experts"),
    FIELD(WHOLE, experts_per_token, "experts of a token"),
    FIELD(WHOLE, expert_ffn, "channels of an expert"),
    FIELD(WHOLE, shared_ffn, "channels of the shared expert"),
    FIELD(WHOLE, dense_ffn, "channels of dense layers"),
    FIELD(WHOLE, groups, "groups of experts"),
    FIELD(WHOLE, groups_used, "groups of a token"),
    FIELD(WHOLE, short_conv, "a short convolution"),
    FIELD(FLAG, qkv_bias, "biases of queries, keys and values"),
    FIELD(FLAG, o_bias, "a bias behind attention"),
    FIELD(FLAG, qk_norm, "norms of queries and keys"),
    FIELD(FLAG, wide_values_are_keys, "keys that are values"),
    FIELD(FLAG, qk_norm_rows, "norms of all heads together"),
    FIELD(FLAG, norm_topk, "weights of experts divided by their sum"),
    FIELD(FLAG, tied, "a head that is the embedding"),
    FIELD(FLAG, head_bias, "a bias of the head"),
    FIELD(FLAG, select_bias, "a bias for the choice of experts"),
    FIELD(REAL, norm_eps, "the number in norms"),
    FIELD(REAL, embed_scale, "a scale of embeddings"),
    FIELD(REAL, residual_scale, "a scale of layers"),
    FIELD(REAL, logit_scale, "a scale of logits"),
    FIELD(REAL, attention_scale, "a scale of attention"),
    FIELD(REAL, routed_scale, "a scale of experts"),
    FIELD(REAL, latent_eps, "the number in norms of latents"),
    FIELD(REAL, logit_cap, "a limit of logits"),
    FIELD(REAL, mixer_eps, "the share by which experts are close to each other"),
};

static bool is_same(const struct mp_model_config *a, const struct mp_model_config *b, size_t field)
{
    const char *x = (const char *)a + fields[field].offset;
    const char *y = (const char *)b + fields[field].offset;
    float p, q;

    if (fields[field].kind == FLAG)
        return *(const bool *)x == *(const bool *)y;
    if (fields[field].kind == WHOLE)
        return memcmp(x, y, sizeof(uint32_t)) == 0;
    memcpy(&p, x, sizeof(p));
    memcpy(&q, y, sizeof(q));
    return fabsf(p - q) <= 1e-6f * fabsf(p);
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(a);
}

/* Only numbers of the kind count. */
static bool is_same_rope(const struct mp_rope *a, const struct mp_rope *b)
{
    if (a->kind != b->kind || a->kind == MP_ROPE_PLAIN)
        return a->kind == b->kind && is_near(a->magnitude, b->magnitude);
    if (a->kind == MP_ROPE_LONG)
        return memcmp(a->factors, b->factors, sizeof(a->factors)) == 0 &&
               is_near(a->magnitude, b->magnitude) &&
               is_near(a->long_magnitude, b->long_magnitude) &&
               (mp_rope_is_one(a) || is_near(a->original, b->original));
    return is_near(a->factor, b->factor) &&
           (a->kind == MP_ROPE_LINEAR ||
            (is_near(a->slow, b->slow) && is_near(a->fast, b->fast) &&
             is_near(a->original, b->original) && is_near(a->magnitude, b->magnitude) &&
             a->truncate == b->truncate));
}

static const char *difference(const struct mp_model_config *a, const struct mp_model_config *b)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(fields); i++) {
        if (!is_same(a, b, i))
            return fields[i].text;
    }
    if (memcmp(a->is_moe, b->is_moe, sizeof(a->is_moe)) != 0)
        return "which layers have experts";
    if (memcmp(a->linear, b->linear, sizeof(a->linear)) != 0)
        return "which layers have attention";
    if (memcmp(a->wide, b->wide, sizeof(a->wide)) != 0 ||
        memcmp(a->windowed, b->windowed, sizeof(a->windowed)) != 0)
        return "which layers have a sliding window";
    if (!is_same_rope(&a->rope, &b->rope) || a->wide_factor != b->wide_factor)
        return "scaled positions";
    if (!is_near(a->rope_theta, b->rope_theta) || !is_near(a->wide_theta, b->wide_theta))
        return "the base of positions";
    if (a->router != b->router)
        return "the scores of experts";
    if (a->groups > 1 && a->group_best != b->group_best)
        return "how groups of experts are chosen";
    if (a->activation != b->activation ||
        (a->activation == MP_ACTIVATION_CLAMPED &&
         (!is_near(a->act_alpha, b->act_alpha) || !is_near(a->act_limit, b->act_limit))))
        return "the activation and its limits";
    return NULL;
}

enum mp_status mp_convert_check(const struct mp_convert *job, const char *path)
{
    struct mp_model_config *got = malloc(sizeof(*got));
    struct mp_checkpoint *checkpoint = NULL;
    struct mp_weights *weights = NULL;
    const char *other = NULL;
    enum mp_status status;

    if (got == NULL)
        return mp_fail_no_memory("the new model's configuration", sizeof(*got));
    status = mp_checkpoint_open(path, &checkpoint);
    if (status == MP_OK)
        status = mp_model_config_load(checkpoint, got);
    if (status == MP_OK)
        other = difference(&job->model, got);
    if (other != NULL)
        status = mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                         "a GGUF file of '%s' cannot say what this model has: %s", got->arch->name,
                         other);
    if (status == MP_OK)
        status = mp_weights_describe(checkpoint, got, &weights);
    mp_weights_destroy(weights);
    mp_checkpoint_close(checkpoint);
    free(got);
    return status;
}
