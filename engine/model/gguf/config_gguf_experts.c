/*
 * What the metadata of a GGUF file say about the networks of a layer: which layers have experts,
 * how many, and how the router chooses them.
 */
#include <inttypes.h>

#include "engine/model/arch/arch.h"
#include "engine/model/gguf/config_gguf_int.h"

#define FFN_MAX (1u << 20)

/* What a router's outputs become. Files of some families say so, or have a bias for the choice,
 * which only a sigmoid has. */
static enum mp_status read_scores(const struct mp_gguf_config *source,
                                  struct mp_model_config *config)
{
    static const char key[] = "expert_gating_func";
    const struct mp_gguf_value *value = mp_gguf_config_find(source, key);
    const struct mp_arch *arch = source->arch;
    uint32_t number = 0;
    enum mp_status status;

    config->router = arch->router;
    config->select_bias = arch->names[MP_ROLE_SELECT_BIAS].name != NULL;
    config->group_best = arch->group_best > 0 ? arch->group_best : 1;
    if (arch->router_by_key) {
        config->select_bias = mp_gguf_config_has(source, MP_ROLE_SELECT_BIAS, config->layers - 1);
        status = mp_gguf_config_u32_or(source, key, 1, 2, config->select_bias ? 2 : 1, &number);
        config->router = number == 2 ? MP_ROUTER_SIGMOID : MP_ROUTER_SOFTMAX;
        config->group_best = number;
        return status;
    }
    if (mp_gguf_config_neutral(value, arch->router == MP_ROUTER_SIGMOID ? 2 : 1))
        return MP_OK;
    return mp_gguf_config_unsupported(source, key,
                                      arch->router == MP_ROUTER_SIGMOID
                                          ? "a sigmoid of each score (2)"
                                          : "softmax over the experts (1)");
}

static enum mp_status read_norm_topk(const struct mp_gguf_config *source,
                                     struct mp_model_config *config)
{
    const struct mp_arch_switch *from = &source->arch->switches.norm_topk;
    char key[MP_GGUF_CONFIG_KEY_BYTES];

    config->norm_topk = from->value;
    if (from->key == NULL || mp_gguf_config_find(source, from->key) == NULL)
        return MP_OK;
    return mp_gguf_get_bool(source->gguf, mp_gguf_config_key(source, from->key, key),
                            &config->norm_topk);
}

/* Which layers are MoE: every `step`-th one behind the leading ones. */
static enum mp_status read_moe_layers(const struct mp_gguf_config *source,
                                      struct mp_model_config *config)
{
    const struct mp_arch_keys *keys = &source->arch->keys;
    uint32_t first = 0, step = 1;
    enum mp_status status =
        mp_gguf_config_count(source, &keys->dense_first, 0, config->layers - 1, &first);

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

static enum mp_status read_counts(const struct mp_gguf_config *source,
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
        status = mp_gguf_config_count(source, &keys->shared_count, 0, FFN_MAX / config->expert_ffn,
                                      &shared);
    if (status == MP_OK && source->arch->router == MP_ROUTER_MIXER &&
        config->experts_per_token != 2)
        return mp_gguf_config_unsupported(source, "expert_used_count", "2");
    if (keys->shared_count.key != NULL)
        config->shared_ffn = shared * config->expert_ffn;
    return status == MP_OK ? read_moe_layers(source, config) : status;
}

/* The groups that experts are chosen from, and by what. */
static enum mp_status read_router(const struct mp_gguf_config *source,
                                  struct mp_model_config *config)
{
    const struct mp_arch *arch = source->arch;
    enum mp_status status = read_scores(source, config);

    if (status == MP_OK)
        status =
            mp_gguf_config_count(source, &arch->keys.groups, 1, config->experts, &config->groups);
    if (status == MP_OK)
        status = mp_gguf_config_count(source, &arch->keys.groups_used, 1, config->groups,
                                      &config->groups_used);
    if (status != MP_OK)
        return status;
    if (!mp_model_config_groups_fit(config))
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "groups in '%s': got %" PRIu32 " for %" PRIu32
                       " experts, need equal ones, of which %" PRIu32 " hold the %" PRIu32
                       " experts of a token",
                       source->file, config->groups, config->experts, config->groups_used,
                       config->experts_per_token);
    return MP_OK;
}

enum mp_status mp_gguf_config_experts(const struct mp_gguf_config *source,
                                      struct mp_model_config *config)
{
    enum mp_status status = read_norm_topk(source, config);

    if (status == MP_OK)
        status = read_counts(source, config);
    return status == MP_OK ? read_router(source, config) : status;
}
