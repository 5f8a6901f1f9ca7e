/*
 * Reads a model's configuration from the metadata of a GGUF file: the keys of
 * general.architecture's family, each within its range. Missing keys have no other source, as in
 * other programs that read these files.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/arch/arch.h"
#include "engine/model/config_gguf_int.h"

#define KEY_BYTES 128
#define LIST_BYTES 256
#define FFN_MAX (1u << 20)
#define VOCAB_MAX (1u << 22)

/* "qwen3moe.block_count" */
static const char *key_of(const struct mp_gguf_config *source, const char *name,
                          char out[KEY_BYTES])
{
    snprintf(out, KEY_BYTES, "%s.%s", source->arch->name, name);
    return out;
}

const struct mp_gguf_value *mp_gguf_config_find(const struct mp_gguf_config *source,
                                                const char *name)
{
    char key[KEY_BYTES];

    return mp_gguf_find_value(source->gguf, key_of(source, name, key));
}

enum mp_status mp_gguf_config_u32(const struct mp_gguf_config *source, const char *name,
                                  uint32_t min, uint32_t max, uint32_t *out_p)
{
    char key[KEY_BYTES];
    uint64_t value = 0;
    enum mp_status status = mp_gguf_get_u64(source->gguf, key_of(source, name, key), &value);

    if (status == MP_OK && (value < min || value > max))
        status = mp_fail(MP_ERR_MODEL, "E_CONFIG",
                         "key '%s' in '%s': got %" PRIu64 ", need %" PRIu32 " to %" PRIu32, key,
                         source->file, value, min, max);
    if (status == MP_OK)
        *out_p = (uint32_t)value;
    return status;
}

enum mp_status mp_gguf_config_u32_or(const struct mp_gguf_config *source, const char *name,
                                     uint32_t min, uint32_t max, uint32_t other, uint32_t *out_p)
{
    *out_p = other;
    return mp_gguf_config_find(source, name) != NULL
               ? mp_gguf_config_u32(source, name, min, max, out_p)
               : MP_OK;
}

enum mp_status mp_gguf_config_double(const struct mp_gguf_config *source, const char *name,
                                     double min, double max, double *out_p)
{
    char key[KEY_BYTES];
    double value = 0;
    enum mp_status status = mp_gguf_get_f64(source->gguf, key_of(source, name, key), &value);

    if (status == MP_OK && !(value >= min && value <= max)) /* NaN too */
        status = mp_fail(MP_ERR_MODEL, "E_CONFIG", "key '%s' in '%s': got %g, need %g to %g", key,
                         source->file, value, min, max);
    if (status == MP_OK)
        *out_p = value;
    return status;
}

static enum mp_status read_arch(struct mp_gguf_config *source)
{
    static const char key[] = "general.architecture";
    char got[MP_QUOTE_BYTES], list[LIST_BYTES] = "";
    const char *text;
    uint64_t bytes;
    size_t used = 0;
    enum mp_status status = mp_gguf_get_string(source->gguf, key, &text, &bytes);

    if (status != MP_OK)
        return status;
    for (size_t i = 0; mp_arch_gguf_at(i) != NULL; i++) {
        const char *name = mp_arch_gguf_at(i)->name;

        source->arch = mp_arch_gguf_at(i);
        if (strlen(name) == bytes && memcmp(name, text, bytes) == 0)
            return MP_OK;
        if (used < sizeof(list))
            used +=
                (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "", name);
    }
    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                   "key '%s' in '%s': got '%s', this engine supports %s", key, source->file,
                   mp_quote(got, text, bytes), list);
}

enum mp_status mp_gguf_config_unsupported(const struct mp_gguf_config *source, const char *name,
                                          const char *need)
{
    char key[KEY_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED", "key '%s' in '%s': this engine supports %s only",
                   key_of(source, name, key), source->file, need);
}

/* The number is absent, or one that changes nothing. */
static bool is_neutral(const struct mp_gguf_value *value, double neutral)
{
    uint64_t whole = 0;
    double number = 0;

    if (value == NULL)
        return true;
    if (mp_gguf_as_u64(value, &whole))
        number = (double)whole;
    else if (!mp_gguf_as_f64(value, &number))
        return false;
    return number == 0 || number == neutral;
}

/* Has the family this key, so that it is read below? */
static bool has_key(const struct mp_arch_keys *keys, const char *name)
{
    const struct mp_arch_number *const numbers[] = {
        &keys->shared_count, &keys->dense_first,    &keys->groups,        &keys->routed_scale,
        &keys->embed_scale,  &keys->residual_scale, &keys->logit_divisor,
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(numbers); i++) {
        if (numbers[i]->key != NULL && strcmp(numbers[i]->key, name) == 0)
            return true;
    }
    return false;
}

/* The number that says what a router's outputs become is the family's, if it is there. */
static enum mp_status check_router(const struct mp_gguf_config *source)
{
    static const char key[] = "expert_gating_func";
    const bool sigmoid = source->arch->router == MP_ROUTER_SIGMOID;

    if (is_neutral(mp_gguf_config_find(source, key), sigmoid ? 2 : 1))
        return MP_OK;
    return mp_gguf_config_unsupported(
        source, key, sigmoid ? "a sigmoid of each score (2)" : "softmax over the experts (1)");
}

/* Things that change the result and that nothing below reads. */
static enum mp_status refuse_foreign(const struct mp_gguf_config *source)
{
    static const struct {
        const char *name;
        double neutral; /* besides 0 */
        const char *need;
    } numbers[] = {
        { "leading_dense_block_count", 0, "experts in all layers" },
        { "expert_weights_scale", 1, "a scale of 1" },
        { "expert_group_count", 1, "experts that are not in groups" },
        { "attention.clamp_kqv", 0, "attention without limits" },
        { "attn_logit_softcapping", 0, "attention without limits" },
        { "final_logit_softcapping", 0, "logits without limits" },
        { "logit_scale", 1, "a scale of 1" },
        { "embedding_scale", 1, "a scale of 1" },
        { "residual_scale", 1, "a scale of 1" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(numbers); i++) {
        if (!has_key(&source->arch->keys, numbers[i].name) &&
            !is_neutral(mp_gguf_config_find(source, numbers[i].name), numbers[i].neutral))
            return mp_gguf_config_unsupported(source, numbers[i].name, numbers[i].need);
    }
    if (source->arch->keys.shared_ffn == NULL && source->arch->keys.shared_count.key == NULL &&
        !is_neutral(mp_gguf_config_find(source, "expert_shared_count"), 0))
        return mp_gguf_config_unsupported(source, "expert_shared_count", "routed experts");
    if (mp_gguf_find(source->gguf, "rope_freqs.weight") != NULL)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "tensor 'rope_freqs.weight' in '%s': this engine supports positions that "
                       "are not scaled only",
                       source->file);
    return MP_OK;
}

static enum mp_status fail_heads(const struct mp_gguf_config *source,
                                 const struct mp_model_config *config)
{
    return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                   "heads in '%s': got %" PRIu32 " of %" PRIu32 " elements with %" PRIu32
                   " keys and values, need a multiple of those, and an even number of elements "
                   "that is one for keys, values and rotation",
                   source->file, config->heads, config->head_dim, config->kv_heads);
}

static enum mp_status read_heads(const struct mp_gguf_config *source,
                                 struct mp_model_config *config)
{
    uint32_t value_length = 0, rotated = 0, even = 0;
    enum mp_status status =
        mp_gguf_config_u32(source, "attention.head_count", 1, 1024, &config->heads);

    if (status == MP_OK)
        status = mp_gguf_config_u32_or(source, "attention.head_count_kv", 1, 1024, config->heads,
                                       &config->kv_heads);
    if (status != MP_OK)
        return status;
    even = config->hidden / config->heads;
    status =
        mp_gguf_config_u32_or(source, "attention.key_length", 2, 1024, even, &config->head_dim);
    if (status == MP_OK)
        status =
            mp_gguf_config_u32_or(source, "attention.value_length", 2, 1024, even, &value_length);
    if (status == MP_OK)
        status = mp_gguf_config_u32_or(source, "rope.dimension_count", 1, 1024, config->head_dim,
                                       &rotated);
    if (status != MP_OK)
        return status;
    config->rotary_dim = rotated;
    if (config->heads % config->kv_heads != 0 || config->head_dim % 2 != 0 ||
        config->head_dim == 0 || config->head_dim > 1024 || value_length != config->head_dim ||
        rotated % 2 != 0 || rotated > config->head_dim ||
        (rotated != config->head_dim && source->arch->keys.rotary_dim == NULL))
        return fail_heads(source, config);
    return MP_OK;
}

/* The rows of the embedding; whether a head stands beside it. */
static enum mp_status read_vocab(const struct mp_gguf_config *source,
                                 struct mp_model_config *config)
{
    const struct mp_gguf_tensor *embed = mp_gguf_find(source->gguf, "token_embd.weight");

    if (embed == NULL || embed->shape[1] < 1 || embed->shape[1] > VOCAB_MAX)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "tensor 'token_embd.weight' in '%s': got %" PRIu64
                       " rows, need 1 to %u, one for each token",
                       source->file, embed != NULL ? embed->shape[1] : 0, VOCAB_MAX);
    config->vocab = (uint32_t)embed->shape[1];
    config->tied = mp_gguf_find(source->gguf, "output.weight") == NULL;
    return MP_OK;
}

/* Layers that draft tokens stand behind the others; they are not used. */
static enum mp_status read_layers(const struct mp_gguf_config *source,
                                  struct mp_model_config *config)
{
    const char *key = source->arch->keys.drafting;
    uint32_t drafting = 0;
    enum mp_status status =
        mp_gguf_config_u32(source, "block_count", 1, MP_LAYERS_MAX, &config->layers);

    if (status == MP_OK && key != NULL)
        status = mp_gguf_config_u32_or(source, key, 0, config->layers - 1, 0, &drafting);
    config->layers -= drafting;
    return status;
}

static enum mp_status read_number(const struct mp_gguf_config *source,
                                  const struct mp_arch_number *from, float *value_p)
{
    double value = from->value;
    enum mp_status status = MP_OK;

    if (from->key != NULL && mp_gguf_config_find(source, from->key) != NULL)
        status = mp_gguf_config_double(source, from->key, 1e-6, 1e6, &value);
    if (from->key != NULL)
        *value_p = (float)value;
    return status;
}

static enum mp_status read_count(const struct mp_gguf_config *source,
                                 const struct mp_arch_number *from, uint32_t min, uint32_t max,
                                 uint32_t *value_p)
{
    return from->key == NULL
               ? MP_OK
               : mp_gguf_config_u32_or(source, from->key, min, max, (uint32_t)from->value, value_p);
}

/* Numbers that some families multiply with. */
static enum mp_status read_scales(const struct mp_gguf_config *source,
                                  struct mp_model_config *config)
{
    const struct mp_arch_keys *keys = &source->arch->keys;
    float divisor = 1;
    enum mp_status status = read_number(source, &keys->embed_scale, &config->embed_scale);

    if (status == MP_OK)
        status = read_number(source, &keys->residual_scale, &config->residual_scale);
    if (status == MP_OK)
        status = read_number(source, &keys->attention_scale, &config->attention_scale);
    if (status == MP_OK)
        status = read_number(source, &keys->routed_scale, &config->routed_scale);
    if (status == MP_OK)
        status = read_number(source, &keys->logit_divisor, &divisor);
    config->logit_scale = 1.0f / divisor;
    return status;
}

static enum mp_status read_sizes(const struct mp_gguf_config *source,
                                 struct mp_model_config *config)
{
    double eps = 0;
    enum mp_status status = read_vocab(source, config);

    config->rope_theta = source->arch->default_theta;
    if (status == MP_OK)
        status = mp_gguf_config_u32(source, "embedding_length", 1, 1u << 17, &config->hidden);
    if (status == MP_OK)
        status = read_layers(source, config);
    if (status == MP_OK)
        status = mp_gguf_config_u32(source, "context_length", 1, 1u << 24, &config->positions_max);
    if (status == MP_OK)
        status = read_heads(source, config);
    if (status == MP_OK)
        status = mp_gguf_config_double(source, "attention.layer_norm_rms_epsilon", 1e-20, 1, &eps);
    if (status == MP_OK && mp_gguf_config_find(source, "rope.freq_base") != NULL)
        status = mp_gguf_config_double(source, "rope.freq_base", 1, 1e12, &config->rope_theta);
    config->norm_eps = (float)eps;
    return status;
}

/* Which layers are MoE: every `step`-th one behind the leading ones. */
static enum mp_status read_moe_layers(const struct mp_gguf_config *source,
                                      struct mp_model_config *config)
{
    const struct mp_arch_keys *keys = &source->arch->keys;
    uint32_t first = 0, step = 1;
    enum mp_status status = read_count(source, &keys->dense_first, 0, config->layers - 1, &first);

    if (status == MP_OK && keys->moe_step != NULL)
        status = mp_gguf_config_u32_or(source, keys->moe_step, 1, MP_LAYERS_MAX, 1, &step);
    if (status != MP_OK)
        return status;
    for (uint32_t i = 0; i < config->layers; i++) {
        config->is_moe[i] = i >= first && (i + 1) % step == 0;
        config->moe_layers += config->is_moe[i];
    }
    if (config->moe_layers == 0)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG", "'%s': no layer has experts; need at least one",
                       source->file);
    return config->moe_layers < config->layers
               ? mp_gguf_config_u32(source, keys->dense_ffn, 1, FFN_MAX, &config->dense_ffn)
               : MP_OK;
}

static enum mp_status read_experts(const struct mp_gguf_config *source,
                                   struct mp_model_config *config)
{
    const struct mp_arch_keys *keys = &source->arch->keys;
    enum mp_status status =
        mp_gguf_config_u32(source, "expert_count", 1, MP_EXPERTS_MAX, &config->experts);
    uint32_t most, shared = 0;

    if (status != MP_OK)
        return status;
    most = config->experts < MP_EXPERTS_PER_TOKEN_MAX ? config->experts : MP_EXPERTS_PER_TOKEN_MAX;
    status = mp_gguf_config_u32(source, "expert_used_count", 1, most, &config->experts_per_token);
    if (status == MP_OK)
        status = mp_gguf_config_u32(source, keys->expert_ffn, 1, FFN_MAX, &config->expert_ffn);
    if (status == MP_OK && keys->shared_ffn != NULL)
        status = mp_gguf_config_u32(source, keys->shared_ffn, 1, FFN_MAX, &config->shared_ffn);
    if (status == MP_OK)
        status = read_count(source, &keys->shared_count, 0, FFN_MAX / config->expert_ffn, &shared);
    if (keys->shared_count.key != NULL)
        config->shared_ffn = shared * config->expert_ffn;
    return status == MP_OK ? read_moe_layers(source, config) : status;
}

/* The groups that experts are chosen from, and by what. */
static enum mp_status read_router(const struct mp_gguf_config *source,
                                  struct mp_model_config *config)
{
    const struct mp_arch *arch = source->arch;
    uint32_t each;
    enum mp_status status = check_router(source);

    config->router = arch->router;
    config->select_bias = arch->names[MP_ROLE_SELECT_BIAS].name != NULL;
    config->group_best = arch->group_best > 0 ? arch->group_best : 1;
    if (status == MP_OK)
        status = read_count(source, &arch->keys.groups, 1, config->experts, &config->groups);
    if (status == MP_OK)
        status =
            read_count(source, &arch->keys.groups_used, 1, config->groups, &config->groups_used);
    if (status != MP_OK)
        return status;
    each = config->experts / config->groups;
    if (config->experts % config->groups != 0 ||
        config->experts_per_token > each * config->groups_used ||
        (config->groups > 1 && config->group_best > each))
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "groups in '%s': got %" PRIu32 " for %" PRIu32
                       " experts, need equal ones, of which %" PRIu32 " hold the %" PRIu32
                       " experts of a token",
                       source->file, config->groups, config->experts, config->groups_used,
                       config->experts_per_token);
    return MP_OK;
}

static enum mp_status read_token(const struct mp_gguf_config *source,
                                 const struct mp_model_config *config, const char *key,
                                 uint32_t *token_p)
{
    uint64_t token = 0;
    enum mp_status status;

    if (mp_gguf_find_value(source->gguf, key) == NULL)
        return MP_OK;
    status = mp_gguf_get_u64(source->gguf, key, &token);
    if (status == MP_OK && token >= config->vocab)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "key '%s' in '%s': got %" PRIu64
                       ", need a token id below the rows of the embedding, %" PRIu32,
                       key, source->file, token, config->vocab);
    if (status == MP_OK)
        *token_p = (uint32_t)token;
    return status;
}

/* Whatever ends a turn or a text ends what is written. */
static enum mp_status read_tokens(const struct mp_gguf_config *source,
                                  struct mp_model_config *config)
{
    static const char *const ends[] = { "tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id" };
    enum mp_status status = read_token(source, config, "tokenizer.ggml.bos_token_id", &config->bos);

    for (size_t i = 0; status == MP_OK && i < MP_ARRAY_LEN(ends); i++) {
        uint32_t token = MP_TOKEN_NONE;

        status = read_token(source, config, ends[i], &token);
        if (status == MP_OK && token != MP_TOKEN_NONE)
            config->eos[config->eos_count++] = token;
    }
    return status;
}

static enum mp_status read_norm_topk(const struct mp_gguf_config *source,
                                     struct mp_model_config *config)
{
    const struct mp_arch_switch *from = &source->arch->switches.norm_topk;
    char key[KEY_BYTES];

    config->norm_topk = from->value;
    if (from->key == NULL || mp_gguf_config_find(source, from->key) == NULL)
        return MP_OK;
    return mp_gguf_get_bool(source->gguf, key_of(source, from->key, key), &config->norm_topk);
}

/* What the family or its tensors say, without a key. */
static void read_family(const struct mp_gguf_config *source, struct mp_model_config *config)
{
    const struct mp_arch *arch = source->arch;

    config->qkv_bias = mp_gguf_find(source->gguf, "blk.0.attn_q.bias") != NULL;
    config->o_bias = mp_gguf_find(source->gguf, "blk.0.attn_output.bias") != NULL;
    config->sinks = arch->names[MP_ROLE_SINKS].name != NULL;
    config->router_bias = arch->names[MP_ROLE_ROUTER_BIAS].name != NULL;
    config->expert_bias = arch->names[MP_ROLE_EXPERT_GATE_BIAS].name != NULL;
    config->activation = arch->activation;
    config->act_alpha = (float)arch->keys.act_alpha.value;
    config->act_limit = (float)arch->keys.act_limit.value;
}

enum mp_status mp_model_config_from_gguf(const struct mp_gguf *gguf,
                                         struct mp_model_config *config_p)
{
    const char *name = mp_files_name(mp_gguf_files(gguf), 0);
    struct mp_model_config config = { .bos = MP_TOKEN_NONE,
                                      .sampling = { .temperature = 1, .top_p = 1 } };
    struct mp_gguf_config source = { .gguf = gguf };
    enum mp_status status;

    mp_quote(source.file, name, strlen(name));
    status = read_arch(&source);
    if (status != MP_OK)
        return status;
    config.arch = source.arch;
    config.embed_scale = config.residual_scale = config.logit_scale = config.routed_scale = 1;
    config.groups = config.groups_used = config.group_best = 1;
    config.qk_norm = source.arch->switches.qk_norm.value ||
                     (source.arch->names[MP_ROLE_Q_NORM].name != NULL &&
                      mp_gguf_find(gguf, "blk.0.attn_q_norm.weight") != NULL);
    config.qk_norm_rows = source.arch->qk_norm_rows;
    read_family(&source, &config);
    status = refuse_foreign(&source);
    if (status == MP_OK)
        status = read_norm_topk(&source, &config);
    if (status == MP_OK)
        status = read_sizes(&source, &config);
    if (status == MP_OK)
        status = read_scales(&source, &config);
    if (status == MP_OK)
        status = mp_gguf_config_positions(&source, &config);
    if (status == MP_OK)
        status = read_experts(&source, &config);
    if (status == MP_OK)
        status = read_router(&source, &config);
    if (status == MP_OK)
        status = read_tokens(&source, &config);
    if (status == MP_OK)
        *config_p = config;
    return status;
}
