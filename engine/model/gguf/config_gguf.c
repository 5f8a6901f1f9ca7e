/*
 * Reads a model's configuration from the metadata of a GGUF file: the keys of
 * general.architecture's family, each within its range. Missing keys have no other source, as in
 * other programs that read these files.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/arch/arch.h"
#include "engine/model/gguf/config_gguf_int.h"

#define LIST_BYTES 256
#define VOCAB_MAX (1u << 22)

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
    return keys->logit_cap != NULL && strcmp(keys->logit_cap, name) == 0;
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
        { "embedding_length_per_layer_input", 0, "no embeddings of each layer" },
        { "attention.shared_kv_layers", 0, "keys and values of each layer" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(numbers); i++) {
        if (!has_key(&source->arch->keys, numbers[i].name) &&
            !mp_gguf_config_neutral(mp_gguf_config_find(source, numbers[i].name),
                                    numbers[i].neutral))
            return mp_gguf_config_unsupported(source, numbers[i].name, numbers[i].need);
    }
    if (source->arch->keys.shared_ffn == NULL && source->arch->keys.shared_count.key == NULL &&
        !mp_gguf_config_neutral(mp_gguf_config_find(source, "expert_shared_count"), 0))
        return mp_gguf_config_unsupported(source, "expert_shared_count", "routed experts");
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

/* Numbers that some families multiply with. */
static enum mp_status read_scales(const struct mp_gguf_config *source,
                                  struct mp_model_config *config)
{
    const struct mp_arch_keys *keys = &source->arch->keys;
    float divisor = 1;
    enum mp_status status = mp_gguf_config_number(source, &keys->embed_scale, &config->embed_scale);

    config->attention_scale = (float)keys->attention_scale.value;
    if (status == MP_OK)
        status = mp_gguf_config_number(source, &keys->residual_scale, &config->residual_scale);
    if (status == MP_OK)
        status = mp_gguf_config_number(source, &keys->attention_scale, &config->attention_scale);
    if (status == MP_OK)
        status = mp_gguf_config_number(source, &keys->routed_scale, &config->routed_scale);
    if (status == MP_OK)
        status = mp_gguf_config_number(source, &keys->logit_divisor, &divisor);
    if (status == MP_OK && keys->logit_cap != NULL)
        status = mp_gguf_config_number(source, &(struct mp_arch_number){ keys->logit_cap, 0 },
                                       &config->logit_cap);
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
        status = mp_gguf_config_heads(source, config);
    if (status == MP_OK)
        status = mp_gguf_config_double(source, "attention.layer_norm_rms_epsilon", 1e-20, 1, &eps);
    if (status == MP_OK && mp_gguf_config_find(source, "rope.freq_base") != NULL)
        status = mp_gguf_config_double(source, "rope.freq_base", 1, 1e12, &config->rope_theta);
    config->norm_eps = (float)eps;
    if (source->arch->embed_root)
        config->embed_scale = sqrtf((float)config->hidden);
    return status;
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

/* What the family or its tensors say, without a key. */
static void read_family(const struct mp_gguf_config *source, struct mp_model_config *config)
{
    const struct mp_arch *arch = source->arch;

    config->qkv_bias = mp_gguf_find(source->gguf, "blk.0.attn_q.bias") != NULL;
    config->o_bias = mp_gguf_find(source->gguf, "blk.0.attn_output.bias") != NULL;
    config->head_bias = mp_gguf_config_has(source, MP_ROLE_HEAD_BIAS, 0);
    config->latent_split = mp_gguf_config_has(source, MP_ROLE_K_UP, 0);
    config->qk_norm = arch->switches.qk_norm.value || mp_gguf_config_has(source, MP_ROLE_Q_NORM, 0);
    mp_arch_parts(arch, config);
    config->activation = arch->activation;
    config->mixer_eps = (float)arch->keys.mixer_eps.value;
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
    read_family(&source, &config);
    status = refuse_foreign(&source);
    if (status == MP_OK)
        status = read_scales(&source, &config);
    if (status == MP_OK)
        status = read_sizes(&source, &config);
    if (status == MP_OK)
        status = mp_gguf_config_positions(&source, &config);
    if (status == MP_OK)
        status = mp_gguf_config_experts(&source, &config);
    if (status == MP_OK)
        status = read_tokens(&source, &config);
    if (status == MP_OK)
        *config_p = config;
    return status;
}
