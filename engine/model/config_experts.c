/*
 * What config.json says about the networks of a layer: which layers have experts, how many, how the
 * router chooses them and what stands beside them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/arch/arch.h"
#include "engine/model/config_int.h"
#include "vmm/base/compiler.h"

#define FILE_NAME MP_CONFIG_FILE

static enum mp_status read_dense_layers(const json_t *root, struct mp_model_config *config)
{
    const char *key = config->arch->keys.dense_layers;
    json_t *list = NULL;
    enum mp_status status = mp_json_array_or_null(root, key, FILE_NAME, &list);

    if (status != MP_OK)
        return status;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const json_int_t layer = json_integer_value(item);

        if (!json_is_integer(item) || layer < 0 || layer >= (json_int_t)config->layers) {
            char got[MP_QUOTE_BYTES];

            return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                           "key '%s' in '%s': got %s, need layers from 0 to %" PRIu32, key,
                           FILE_NAME, mp_json_describe(got, item), config->layers - 1);
        }
        config->is_moe[layer] = false;
    }
    return MP_OK;
}

/* "sparse" or "dense" for each layer. */
static enum mp_status read_layer_kinds(const json_t *root, struct mp_model_config *config)
{
    const char *key = config->arch->keys.layer_kinds;
    json_t *list = NULL;
    enum mp_status status = mp_json_array_or_null(root, key, FILE_NAME, &list);

    if (status != MP_OK || list == NULL)
        return status;
    if (json_array_size(list) != config->layers)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "key '%s' in '%s': got %zu kinds, need one for each of %" PRIu32 " layers",
                       key, FILE_NAME, json_array_size(list), config->layers);
    for (uint32_t i = 0; i < config->layers; i++) {
        const char *kind = json_string_value(json_array_get(list, i));

        if (kind == NULL || (strcmp(kind, "sparse") != 0 && strcmp(kind, "dense") != 0))
            return mp_config_unsupported(key, json_array_get(list, i), "'sparse' and 'dense'");
        config->is_moe[i] = kind[0] == 's';
    }
    return MP_OK;
}

/* The last layer that may have experts; a negative number: any. */
static enum mp_status read_last(const json_t *root, const char *key, uint32_t *last_p)
{
    const json_int_t last = json_integer_value(json_object_get(root, key));

    if (json_is_integer(json_object_get(root, key)) && last < 0)
        return MP_OK;
    return mp_config_u32(root, key, 0, UINT32_MAX, last_p);
}

/* Which layers are MoE: every `step`-th one that is not listed. */
static enum mp_status read_moe_layers(const json_t *root, struct mp_model_config *config)
{
    const struct mp_arch_keys *keys = &config->arch->keys;
    uint64_t step = 1;
    uint32_t first = 0, last = UINT32_MAX;
    enum mp_status status = MP_OK;

    if (keys->moe_step != NULL)
        status = mp_json_u64_or(root, keys->moe_step, FILE_NAME, 1, 1u << 20, 1, &step);
    if (status != MP_OK)
        return status;
    status = mp_config_u32_or(root, &keys->dense_first, 0, config->layers, &first);
    if (status == MP_OK && keys->moe_last != NULL && mp_config_given(root, keys->moe_last))
        status = read_last(root, keys->moe_last, &last);
    if (status != MP_OK)
        return status;
    for (uint32_t i = 0; i < config->layers; i++)
        config->is_moe[i] = (i + 1) % step == 0 && i >= first && i <= last;
    if (keys->layer_kinds != NULL)
        status = read_layer_kinds(root, config);
    return status == MP_OK && keys->dense_layers != NULL ? read_dense_layers(root, config) : status;
}

static enum mp_status read_counts(const json_t *root, struct mp_model_config *config)
{
    const struct mp_arch_keys *keys = &config->arch->keys;
    /* Two names of one number; which one is written depends on the library's version. */
    const bool other = keys->experts[1] != NULL && !mp_config_given(root, keys->experts[0]) &&
                       mp_config_given(root, keys->experts[1]);
    const char *experts = keys->experts[other];
    const char *chosen = keys->per_token != NULL ? keys->per_token : "num_experts_per_tok";
    enum mp_status status;

    status = mp_config_u32(root, experts, 1, MP_EXPERTS_MAX, &config->experts);
    if (status == MP_OK)
        status =
            mp_config_u32(root, chosen, 1, MP_EXPERTS_PER_TOKEN_MAX, &config->experts_per_token);
    if (status != MP_OK)
        return status;
    if (config->experts_per_token > config->experts)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "key '%s' in '%s': got %" PRIu32 ", need at most %s %" PRIu32, chosen,
                       FILE_NAME, config->experts_per_token, experts, config->experts);
    return mp_config_u32(root, keys->expert_ffn, 1, MP_FFN_MAX, &config->expert_ffn);
}

/* Groups may be numbered and not be used. */
static enum mp_status read_method(const json_t *root, struct mp_model_config *config)
{
    static const char key[] = "topk_method";
    const json_t *value = json_object_get(root, key);
    const char *name = mp_config_given(root, key) ? json_string_value(value) : "greedy";

    if (name == NULL || (strcmp(name, "greedy") != 0 && strcmp(name, "group_limited_greedy") != 0))
        return mp_config_unsupported(key, value, "'greedy' and 'group_limited_greedy'");
    if (strcmp(name, "greedy") == 0)
        config->groups = config->groups_used = 1;
    return MP_OK;
}

/* What stands between the router's outputs and the weights of the chosen experts. */
static enum mp_status read_router(const json_t *root, struct mp_model_config *config)
{
    const struct mp_arch *arch = config->arch;
    const struct mp_arch_keys *keys = &arch->keys;
    enum mp_status status = MP_OK;

    config->router = arch->router;
    config->select_bias = arch->names[MP_ROLE_SELECT_BIAS].name != NULL;
    if (arch->switches.select_bias.key != NULL)
        status = mp_config_switch(root, &arch->switches.select_bias, &config->select_bias);
    config->group_best = arch->group_best > 0 ? arch->group_best : 1;
    if (status == MP_OK && keys->mixer_eps.key != NULL)
        status = mp_config_float_or(root, &keys->mixer_eps, 0, 1e6, &config->mixer_eps);
    if (status == MP_OK)
        status = mp_config_u32_or(root, &keys->groups, 1, config->experts, &config->groups);
    if (status == MP_OK)
        status =
            mp_config_u32_or(root, &keys->groups_used, 1, config->groups, &config->groups_used);
    if (status == MP_OK)
        status = mp_config_float_or(root, &keys->routed_scale, 1e-6, 1e6, &config->routed_scale);
    if (status != MP_OK)
        return status;
    if (arch->greedy_groups)
        status = read_method(root, config);
    if (status != MP_OK)
        return status;
    if (!mp_model_config_groups_fit(config))
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "key '%s' in '%s': got %" PRIu32 " groups for %" PRIu32
                       " experts, need equal ones, of which %" PRIu32 " hold the %" PRIu32
                       " experts of a token",
                       keys->groups.key, FILE_NAME, config->groups, config->experts,
                       config->groups_used, config->experts_per_token);
    return MP_OK;
}

static enum mp_status read_shared(const json_t *root, struct mp_model_config *config)
{
    const struct mp_arch_keys *keys = &config->arch->keys;
    uint32_t count = 0;
    enum mp_status status;

    if (keys->shared_ffn != NULL)
        return mp_config_u32(root, keys->shared_ffn, 1, MP_FFN_MAX, &config->shared_ffn);
    if (keys->shared_count.key == NULL)
        return MP_OK;
    status =
        mp_config_u32_or(root, &keys->shared_count, 0, MP_FFN_MAX / config->expert_ffn, &count);
    config->shared_ffn = count * config->expert_ffn;
    return status;
}

static enum mp_status fail_no_experts(const struct mp_arch_keys *keys)
{
    const char *const names[] = { keys->moe_step, keys->dense_layers, keys->dense_first.key,
                                  keys->layer_kinds };
    char list[MP_QUOTE_BYTES] = "";
    size_t used = 0;

    for (size_t i = 0; i < MP_ARRAY_LEN(names) && used < sizeof(list); i++) {
        if (names[i] != NULL)
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", used > 0 ? ", " : "",
                                     names[i]);
    }
    return mp_fail(MP_ERR_MODEL, "E_CONFIG", "'%s': no layer has experts (%s); need at least one",
                   FILE_NAME, list);
}

/* The networks beside the routed experts: the shared expert, and those of layers without experts.
 */
static enum mp_status read_other_ffns(const json_t *root, struct mp_model_config *config)
{
    const struct mp_arch_keys *keys = &config->arch->keys;
    const enum mp_status status = read_shared(root, config);

    if (status != MP_OK)
        return status;
    for (uint32_t i = 0; i < config->layers; i++)
        config->moe_layers += config->is_moe[i];
    if (config->moe_layers == 0)
        return fail_no_experts(keys);
    if (config->moe_layers == config->layers)
        return MP_OK;
    return mp_config_u32(root, keys->dense_ffn, 1, MP_FFN_MAX, &config->dense_ffn);
}

/* The limits of the activation. */
static enum mp_status read_activation(const json_t *root, struct mp_model_config *config)
{
    const struct mp_arch_keys *keys = &config->arch->keys;
    enum mp_status status;

    config->activation = config->arch->activation;
    status = mp_config_float_or(root, &keys->act_alpha, 0, 1e6, &config->act_alpha);
    return status == MP_OK
               ? mp_config_float_or(root, &keys->act_limit, 1e-6, 1e6, &config->act_limit)
               : status;
}

enum mp_status mp_config_experts(const json_t *root, struct mp_model_config *config)
{
    enum mp_status status = read_counts(root, config);

    if (status == MP_OK)
        status = read_router(root, config);
    if (status == MP_OK)
        status = read_moe_layers(root, config);
    if (status == MP_OK)
        status = read_activation(root, config);
    return status == MP_OK ? read_other_ffns(root, config) : status;
}
