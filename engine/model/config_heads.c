/*
 * What config.json says about the heads of attention: how many there are and how many elements they
 * have, of queries, keys and values, or of latents.
 */
#include <inttypes.h>
#include <math.h>

#include "engine/model/arch/arch.h"
#include "engine/model/config_int.h"

#define FILE_NAME MP_CONFIG_FILE

/* Of the norms of latents; no key says so. */
#define LATENT_EPS 1e-6f

/* Elements of a head with latent attention. The cache's vector is a head of head_dim. */
static enum mp_status read_latent(const json_t *root, struct mp_model_config *config)
{
    static const char interleave[] = "rope_interleave";
    const json_t *pairs = json_object_get(root, interleave);
    enum mp_status status;

    if (mp_config_given(root, interleave) && !json_is_true(pairs))
        return mp_config_unsupported(interleave, pairs, "true");
    config->kv_heads = 1;
    config->latent_eps = LATENT_EPS;
    status = mp_config_u32(root, config->arch->keys.kv_rank, 1, 768, &config->kv_rank);
    if (status == MP_OK)
        status = mp_config_u32(root, "qk_rope_head_dim", 2, 256, &config->rotary_dim);
    if (status == MP_OK)
        status = mp_config_u32(root, "qk_nope_head_dim", 1, 1024, &config->nope_dim);
    if (status == MP_OK)
        status = mp_config_u32(root, "v_head_dim", 1, 1024, &config->value_dim);
    if (status == MP_OK && mp_config_given(root, "q_lora_rank"))
        status = mp_config_u32(root, "q_lora_rank", 1, 1u << 17, &config->q_rank);
    if (status != MP_OK)
        return status;
    config->head_dim = config->rotary_dim + config->kv_rank;
    config->attention_scale = 1.0f / sqrtf((float)(config->nope_dim + config->rotary_dim));
    if (config->rotary_dim % 2 != 0 || config->kv_rank % 2 != 0)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "sizes of latents in '%s': got qk_rope_head_dim %" PRIu32 " and %s %" PRIu32
                       ", need even numbers",
                       FILE_NAME, config->rotary_dim, config->arch->keys.kv_rank, config->kv_rank);
    return MP_OK;
}

/* Heads of gated delta networks. */
static enum mp_status read_delta(const json_t *root, struct mp_model_config *config)
{
    struct mp_delta *delta = &config->delta;
    enum mp_status status =
        mp_config_u32(root, config->arch->keys.delta, 1, 1024, &delta->key_heads);

    if (status == MP_OK)
        status = mp_config_u32(root, "linear_num_value_heads", 1, 1024, &delta->value_heads);
    if (status == MP_OK)
        status = mp_config_u32(root, "linear_key_head_dim", 1, 1024, &delta->key_dim);
    if (status == MP_OK)
        status = mp_config_u32(root, "linear_value_head_dim", 1, 1024, &delta->value_dim);
    if (status == MP_OK)
        status = mp_config_u32(root, "linear_conv_kernel_dim", 2, 64, &delta->conv);
    if (status == MP_OK && delta->value_heads % delta->key_heads != 0)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "key 'linear_num_value_heads' in '%s': got %" PRIu32
                       ", need a multiple of %s %" PRIu32,
                       FILE_NAME, delta->value_heads, config->arch->keys.delta, delta->key_heads);
    return status;
}

enum mp_status mp_config_heads(const json_t *root, struct mp_model_config *config)
{
    enum mp_status status = mp_config_u32(root, "num_attention_heads", 1, 1024, &config->heads);

    if (status == MP_OK && config->arch->keys.kv_rank != NULL)
        return read_latent(root, config);
    if (status == MP_OK && config->arch->keys.delta != NULL)
        status = read_delta(root, config);
    if (status == MP_OK && config->arch->keys.short_conv != NULL)
        status = mp_config_u32(root, config->arch->keys.short_conv, 2, 64, &config->short_conv);
    config->kv_heads = config->heads;
    if (status == MP_OK && !json_is_null(json_object_get(root, "num_key_value_heads")))
        status = mp_config_u32(root, "num_key_value_heads", 1, 1024, &config->kv_heads);
    if (status != MP_OK)
        return status;
    if (config->heads % config->kv_heads != 0)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "key 'num_attention_heads' in '%s': got %" PRIu32
                       ", need a multiple of num_key_value_heads %" PRIu32,
                       FILE_NAME, config->heads, config->kv_heads);
    if (mp_config_given(root, "head_dim")) {
        status = mp_config_u32(root, "head_dim", 2, 1024, &config->head_dim);
        if (status != MP_OK)
            return status;
    } else {
        config->head_dim = config->hidden / config->heads;
        if (config->hidden % config->heads != 0 || config->head_dim > 1024)
            return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                           "key 'hidden_size' in '%s': got %" PRIu32
                           ", need a multiple of num_attention_heads %" PRIu32
                           " and at most 1024 per head",
                           FILE_NAME, config->hidden, config->heads);
    }
    if (config->head_dim % 2 != 0 || config->head_dim == 0)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "size of a head in '%s': got %" PRIu32 ", need an even number", FILE_NAME,
                       config->head_dim);
    return config->arch->wide ? mp_config_wide_heads(root, config) : MP_OK;
}
