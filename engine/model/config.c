/*
 * Reads a model's configuration by the table of its family (engine/model/arch). Tensors are handled
 * in weights_plan.c.
 */
#include "engine/model/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/arch/arch.h"
#include "engine/model/config_int.h"
#include "engine/model/types.h"
#include "vmm/format/checkpoint.h"
#include "vmm/format/json.h"

#define CONFIG MP_CONFIG_FILE
#define GENERATION "generation_config.json"
#define FILE_BYTES_MAX (16u << 20)

/* Of the names of all families; a message takes no more. */
#define LIST_BYTES 1024

#define VOCAB_MAX (1u << 22)

enum mp_status mp_config_u32(const json_t *root, const char *key, uint32_t min, uint32_t max,
                             uint32_t *value_p)
{
    uint64_t value = 0;
    const enum mp_status status = mp_json_u64(root, key, CONFIG, min, max, &value);

    if (status == MP_OK)
        *value_p = (uint32_t)value;
    return status;
}

bool mp_config_given(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return value != NULL && !json_is_null(value);
}

/* A value that asks for something this engine does not do. */
enum mp_status mp_config_unsupported(const char *key, const json_t *value, const char *need)
{
    char got[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                   "key '%s' in '%s': got %s, this engine supports %s only", key, CONFIG,
                   mp_json_describe(got, value), need);
}

static enum mp_status unsupported_arch(const char *key, const json_t *value)
{
    char got[MP_QUOTE_BYTES], list[LIST_BYTES] = "";
    size_t used = 0;

    for (size_t i = 0; mp_arch_at(i) != NULL && used < sizeof(list); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "",
                                 mp_arch_at(i)->name);
    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                   "key '%s' in '%s': got %s, this engine supports %s", key, CONFIG,
                   mp_json_describe(got, value), list);
}

static enum mp_status read_arch(const json_t *root, struct mp_model_config *config)
{
    const json_t *list = json_object_get(root, "architectures");
    const bool named = json_is_array(list) && json_array_size(list) > 0;
    const char *key = named ? "architectures" : "model_type";
    const json_t *value = named ? json_array_get(list, 0) : json_object_get(root, key);
    const char *name = json_string_value(value);

    if (name != NULL) {
        for (size_t i = 0; mp_arch_at(i) != NULL; i++) {
            const struct mp_arch *arch = mp_arch_at(i);

            if (strcmp(name, named ? arch->name : arch->model_type) == 0) {
                config->arch = arch;
                return MP_OK;
            }
        }
    }
    return unsupported_arch(key, value);
}

enum mp_status mp_config_switch(const json_t *root, const struct mp_arch_switch *from,
                                bool *value_p)
{
    *value_p = from->value;
    return from->key == NULL ? MP_OK
                             : mp_json_bool_or(root, from->key, CONFIG, from->value, value_p);
}

enum mp_status mp_config_u32_or(const json_t *root, const struct mp_arch_number *from, uint32_t min,
                                uint32_t max, uint32_t *value_p)
{
    *value_p = from->key != NULL ? (uint32_t)from->value : min;
    return from->key != NULL && mp_config_given(root, from->key)
               ? mp_config_u32(root, from->key, min, max, value_p)
               : MP_OK;
}

enum mp_status mp_config_float_or(const json_t *root, const struct mp_arch_number *from, double min,
                                  double max, float *value_p)
{
    double value = from->key != NULL ? from->value : 1;
    enum mp_status status = MP_OK;

    if (from->key != NULL)
        status = mp_json_double_or(root, from->key, CONFIG, min, max, value, &value);
    *value_p = (float)value;
    return status;
}

/* What the family has in its newer or larger members only. */
static enum mp_status refuse_of_family(const json_t *root, const struct mp_arch *arch)
{
    for (size_t i = 0; i < MP_ARCH_REFUSALS_MAX && arch->refusals[i].key != NULL; i++) {
        const struct mp_arch_refusal *refusal = &arch->refusals[i];
        const json_t *value = json_object_get(root, refusal->key);

        if (mp_config_given(root, refusal->key) && !json_is_false(value) &&
            !(json_is_number(value) && json_number_value(value) == refusal->neutral))
            return mp_config_unsupported(refusal->key, value, refusal->need);
    }
    return MP_OK;
}

static bool is_mxfp4(const json_t *root)
{
    const char *method = json_string_value(
        json_object_get(json_object_get(root, "quantization_config"), "quant_method"));

    return method != NULL && strcmp(method, "mxfp4") == 0;
}

/* Things that change the result and that nothing below reads. */
static enum mp_status refuse_foreign(const json_t *root, const struct mp_arch *arch)
{
    const json_t *quantization = json_object_get(root, "quantization_config");
    const bool gelu = arch->activation == MP_ACTIVATION_GELU;
    const char *act_key = gelu ? "hidden_activation" : "hidden_act";
    const json_t *act = json_object_get(root, act_key);
    const char *act_name = json_string_value(act);

    if (mp_config_given(root, "quantization_config") && !(arch->fused_mxfp4 && is_mxfp4(root))) {
        const json_t *method = json_object_get(quantization, "quant_method");
        char types[MP_QUOTE_BYTES], need[sizeof(types) + 16];

        snprintf(need, sizeof(need), "weights in %s", mp_wtype_list(types));
        return mp_config_unsupported("quantization_config", method != NULL ? method : quantization,
                                     need);
    }
    if (!mp_config_given(root, act_key))
        return MP_OK;
    if (gelu)
        return act_name != NULL && strcmp(act_name, "gelu_pytorch_tanh") == 0
                   ? MP_OK
                   : mp_config_unsupported(act_key, act, "'gelu_pytorch_tanh'");
    /* Two names of one function; the library's default is silu. */
    if (act_name == NULL || (strcmp(act_name, "silu") != 0 && strcmp(act_name, "swish") != 0))
        return mp_config_unsupported(act_key, act, "'silu'");
    return MP_OK;
}

static enum mp_status read_sizes(const json_t *root, struct mp_model_config *config)
{
    const struct mp_arch *arch = config->arch;
    uint64_t positions = 0;
    double eps = 0;
    enum mp_status status;

    status = mp_config_u32(root, "vocab_size", 1, VOCAB_MAX, &config->vocab);
    if (status == MP_OK)
        status = mp_config_u32(root, "hidden_size", 1, 1u << 17, &config->hidden);
    if (status == MP_OK)
        status = mp_config_u32(root, "num_hidden_layers", 1, MP_LAYERS_MAX, &config->layers);
    if (status == MP_OK)
        status = mp_config_heads(root, config);
    if (status == MP_OK)
        status = mp_json_u64_or(root, "max_position_embeddings", CONFIG, 1, 1u << 24,
                                arch->default_positions, &positions);
    if (status == MP_OK)
        status = mp_json_double_or(
            root, arch->keys.norm_eps != NULL ? arch->keys.norm_eps : "rms_norm_eps", CONFIG, 1e-20,
            1, arch->default_eps, &eps);
    if (status == MP_OK)
        status =
            mp_json_bool_or(root, "tie_word_embeddings", CONFIG, arch->default_tied, &config->tied);
    if (status == MP_OK && arch->keys.tied != NULL)
        status = mp_json_bool_or(root, arch->keys.tied, CONFIG, config->tied, &config->tied);
    config->positions_max = (uint32_t)positions;
    config->norm_eps = (float)eps;
    if (arch->embed_root)
        config->embed_scale = sqrtf((float)config->hidden);
    return status;
}

/* Numbers that some families multiply with. */
static enum mp_status read_scales(const json_t *root, struct mp_model_config *config)
{
    const struct mp_arch_keys *keys = &config->arch->keys;
    float divisor = 1;
    enum mp_status status;

    status = mp_config_float_or(root, &keys->embed_scale, 1e-6, 1e6, &config->embed_scale);
    if (status == MP_OK)
        status =
            mp_config_float_or(root, &keys->residual_scale, 1e-6, 1e6, &config->residual_scale);
    if (status == MP_OK)
        status = mp_config_float_or(root, &keys->logit_divisor, 1e-6, 1e6, &divisor);
    config->logit_scale = 1.0f / divisor;
    config->attention_scale = (float)keys->attention_scale.value;
    if (status == MP_OK && keys->logit_cap != NULL && mp_config_given(root, keys->logit_cap))
        status = mp_config_float_or(root, &(struct mp_arch_number){ keys->logit_cap, 0 }, 1e-6, 1e6,
                                    &config->logit_cap);
    if (status == MP_OK && keys->attention_scale.key != NULL)
        status =
            mp_config_float_or(root, &keys->attention_scale, 1e-6, 1e6, &config->attention_scale);
    return status;
}

static enum mp_status read_switches(const json_t *root, struct mp_model_config *config)
{
    const struct mp_arch_switches *from = &config->arch->switches;
    const struct {
        const struct mp_arch_switch *from;
        bool *to;
    } switches[] = {
        { &from->norm_topk, &config->norm_topk }, { &from->qkv_bias, &config->qkv_bias },
        { &from->o_bias, &config->o_bias },       { &from->qk_norm, &config->qk_norm },
        { &from->head_bias, &config->head_bias },
    };
    enum mp_status status = MP_OK;

    mp_arch_parts(config->arch, config);
    config->mxfp4 = config->arch->fused_mxfp4 && is_mxfp4(root);
    for (size_t i = 0; status == MP_OK && i < MP_ARRAY_LEN(switches); i++)
        status = mp_config_switch(root, switches[i].from, switches[i].to);
    return status;
}

/* One token id, or a list of them; null and absent leave *count_p alone. */
static enum mp_status read_tokens(const json_t *root, const char *name, const char *key,
                                  uint32_t vocab, uint32_t max, uint32_t *tokens, uint32_t *count_p)
{
    const json_t *value = json_object_get(root, key);
    const size_t count = json_is_array(value) ? json_array_size(value) : 1;
    char got[MP_QUOTE_BYTES];

    if (!mp_config_given(root, key))
        return MP_OK;
    if (count > max)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG", "key '%s' in '%s': got %zu ids, need at most %u",
                       key, name, count, max);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        const json_int_t id = json_integer_value(item);

        if (!json_is_integer(item) || id < 0 || id >= (json_int_t)vocab)
            return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                           "key '%s' in '%s': got %s, need token ids below vocab_size %" PRIu32,
                           key, name, mp_json_describe(got, item), vocab);
        tokens[i] = (uint32_t)id;
    }
    *count_p = (uint32_t)count;
    return MP_OK;
}

static enum mp_status read_special_tokens(const json_t *root, const char *name,
                                          struct mp_model_config *config)
{
    uint32_t ignored = 0;
    enum mp_status status;

    status = read_tokens(root, name, "bos_token_id", config->vocab, 1, &config->bos, &ignored);
    if (status == MP_OK)
        status = read_tokens(root, name, "eos_token_id", config->vocab, MP_EOS_MAX, config->eos,
                             &config->eos_count);
    return status;
}

/* What is given here goes before config.json. `root` may be NULL. */
static enum mp_status read_generation(const json_t *root, struct mp_model_config *config)
{
    struct mp_sampling_defaults *sampling = &config->sampling;
    uint64_t top_k = 0;
    enum mp_status status;

    status = read_special_tokens(root, GENERATION, config);
    if (status == MP_OK)
        status = mp_json_bool_or(root, "do_sample", GENERATION, false, &sampling->do_sample);
    if (status == MP_OK)
        status =
            mp_json_double_or(root, "temperature", GENERATION, 0, 1000, 1, &sampling->temperature);
    if (status == MP_OK)
        status = mp_json_double_or(root, "top_p", GENERATION, 0, 1, 1, &sampling->top_p);
    if (status == MP_OK)
        status = mp_json_u64_or(root, "top_k", GENERATION, 0, VOCAB_MAX, 0, &top_k);
    sampling->top_k = (uint32_t)top_k;
    return status;
}

/* Of a model that also sees or hears: the object about its text. */
static enum mp_status read_text(const json_t **root_p, const char *key)
{
    json_t *text = json_object_get(*root_p, key);

    if (!json_is_object(text))
        return mp_config_unsupported(key, text, "an object about text");
    *root_p = text;
    return MP_OK;
}

static enum mp_status read_config(const json_t *root, const json_t *generation,
                                  struct mp_model_config *config_p)
{
    struct mp_model_config config = { .bos = MP_TOKEN_NONE };
    enum mp_status status;

    status = read_arch(root, &config);
    if (status == MP_OK && config.arch->text_key != NULL)
        status = read_text(&root, config.arch->text_key);
    if (status == MP_OK)
        status = refuse_foreign(root, config.arch);
    if (status == MP_OK)
        status = refuse_of_family(root, config.arch);
    if (status == MP_OK)
        status = read_scales(root, &config);
    if (status == MP_OK)
        status = read_sizes(root, &config);
    if (status == MP_OK)
        status = mp_config_positions(root, &config);
    if (status == MP_OK)
        status = mp_config_experts(root, &config);
    if (status == MP_OK)
        status = read_switches(root, &config);
    if (status == MP_OK)
        status = read_special_tokens(root, CONFIG, &config);
    if (status == MP_OK)
        status = read_generation(generation, &config);
    if (status == MP_OK)
        *config_p = config;
    return status;
}

const char *mp_model_config_beyond(const struct mp_model_config *config)
{
    const struct {
        bool asked;
        const char *name;
    } list[] = {
        { config->kv_rank > 0, "latent attention" },
        { config->sinks, "attention sinks" },
        { config->delta.key_heads > 0, "gated delta networks" },
        { config->short_conv > 0, "short convolutions" },
        { config->norm_bias, "norms with biases" },
        { config->head_bias, "an output head with a bias" },
        { config->q_gate, "gated attention" },
        { config->expert_bias, "experts with biases" },
        { config->wide_head_dim > 0, "layers with heads of another size" },
        { config->norms_after, "norms of results" },
        { config->router_norm, "a router with a norm of its own" },
        { config->expert_scale, "experts with scales" },
        { config->layer_scale, "layers with a scale" },
        { config->v_norm, "norms of values" },
        { config->logit_cap > 0, "capped logits" },
        { config->activation != MP_ACTIVATION_SILU, "another activation than SiLU" },
        { config->router == MP_ROUTER_SIGMOID, "sigmoid scores" },
        { mp_model_config_selects(config), "experts chosen by other numbers than their weights" },
        { config->routed_scale != 1, "scaled experts" },
        { config->qk_norm && config->qk_norm_rows, "norms over all heads together" },
        { config->rotary_dim != config->head_dim, "heads that are rotated in part" },
        { config->window != 0, "a sliding window" },
        { config->embed_scale != 1 || config->residual_scale != 1 || config->logit_scale != 1 ||
              config->attention_scale != 0,
          "multipliers" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(list); i++) {
        if (list[i].asked)
            return list[i].name;
    }
    return NULL;
}

bool mp_is_divisors(const char *name)
{
    return strcmp(name, MP_DIVISORS_NAME) == 0 || strcmp(name, MP_DIVISORS_SHORT_NAME) == 0 ||
           strcmp(name, MP_DIVISORS_LONG_NAME) == 0;
}

enum mp_status mp_model_config_load(const struct mp_checkpoint *checkpoint,
                                    struct mp_model_config *config_p)
{
    const int dir_fd = mp_checkpoint_dir_fd(checkpoint);
    json_t *root = NULL, *generation = NULL;
    enum mp_status status;

    if (mp_checkpoint_gguf(checkpoint) != NULL)
        return mp_model_config_from_gguf(mp_checkpoint_gguf(checkpoint), config_p);
    status = mp_json_load_optional_file(dir_fd, MP_SLICED_CONFIG, FILE_BYTES_MAX, &root);
    if (status == MP_OK && root == NULL)
        status = mp_json_load_file(dir_fd, CONFIG, FILE_BYTES_MAX, &root);
    if (status == MP_OK)
        status = mp_json_load_optional_file(dir_fd, GENERATION, FILE_BYTES_MAX, &generation);
    if (status == MP_OK)
        status = read_config(root, generation, config_p);
    json_decref(generation);
    json_decref(root);
    return status;
}

enum mp_status mp_model_config_parse(const char *config, size_t config_bytes,
                                     const char *generation, size_t generation_bytes,
                                     struct mp_model_config *config_p)
{
    json_t *root = NULL, *second = NULL;
    enum mp_status status;

    status = mp_json_parse(config, config_bytes, CONFIG, &root);
    if (status == MP_OK && generation != NULL)
        status = mp_json_parse(generation, generation_bytes, GENERATION, &second);
    if (status == MP_OK)
        status = read_config(root, second, config_p);
    json_decref(second);
    json_decref(root);
    return status;
}
