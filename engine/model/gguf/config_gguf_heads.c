/*
 * What the metadata of a GGUF file say about the heads of attention: how many there are and how
 * many elements they have.
 */
#include <inttypes.h>
#include <math.h>

#include "engine/model/arch/arch.h"
#include "engine/model/gguf/config_gguf_int.h"

/* Of the norms of latents; no key says so. */
#define LATENT_EPS 1e-6f

static enum mp_status fail_heads(const struct mp_gguf_config *source,
                                 const struct mp_model_config *config)
{
    return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                   "heads in '%s': got %" PRIu32 " of %" PRIu32 " elements with %" PRIu32
                   " keys and values, need a multiple of those, and an even number of elements "
                   "that is one for keys, values and rotation",
                   source->file, config->heads, config->head_dim, config->kv_heads);
}

/* Heads of keys and values, by layer where some layers have a short convolution and none. */
static enum mp_status read_kv_heads(const struct mp_gguf_config *source,
                                    struct mp_model_config *config)
{
    static const char key[] = "attention.head_count_kv";
    const char *conv = source->arch->keys.short_conv;
    uint32_t count = 0;
    enum mp_status status;

    config->kv_heads = config->heads;
    if (conv == NULL)
        return mp_gguf_config_u32_or(source, key, 1, 1024, config->heads, &config->kv_heads);
    status = mp_gguf_config_u32(source, conv, 2, 64, &config->short_conv);
    for (uint32_t i = 0; status == MP_OK && i < config->layers; i++) {
        status = mp_gguf_config_of_layer(source, key, i, 0, 1024, &count);
        config->linear[i] = count == 0;
        if (count != 0)
            config->kv_heads = count;
    }
    return status;
}

/* Queries, keys and values of one size. */
static enum mp_status read_equal(const struct mp_gguf_config *source,
                                 struct mp_model_config *config)
{
    const uint32_t even = config->hidden / config->heads;
    uint32_t value_length = 0, rotated = 0;
    enum mp_status status = read_kv_heads(source, config);

    if (status != MP_OK)
        return status;
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

/* Heads with latent attention. Newer files say how long keys and values of a head are under keys of
 * their own, because they count the latent as the only head. */
static enum mp_status read_latent(const struct mp_gguf_config *source,
                                  struct mp_model_config *config)
{
    const bool newer = mp_gguf_config_find(source, "attention.key_length_mla") != NULL;
    uint32_t key = 0;
    enum mp_status status =
        mp_gguf_config_u32(source, source->arch->keys.kv_rank, 2, 768, &config->kv_rank);

    if (status == MP_OK)
        status =
            mp_gguf_config_u32_or(source, "attention.q_lora_rank", 0, 1u << 17, 0, &config->q_rank);
    if (status == MP_OK)
        status = mp_gguf_config_u32(source, "rope.dimension_count", 2, 256, &config->rotary_dim);
    if (status == MP_OK)
        status =
            mp_gguf_config_u32(source, newer ? "attention.key_length_mla" : "attention.key_length",
                               config->rotary_dim + 1, config->rotary_dim + 1024, &key);
    if (status == MP_OK)
        status = mp_gguf_config_u32(source,
                                    newer ? "attention.value_length_mla" : "attention.value_length",
                                    1, 1024, &config->value_dim);
    if (status != MP_OK)
        return status;
    config->kv_heads = 1;
    config->latent_eps = LATENT_EPS;
    config->nope_dim = key - config->rotary_dim;
    config->head_dim = config->rotary_dim + config->kv_rank;
    config->attention_scale = 1.0f / sqrtf((float)key);
    if (config->rotary_dim % 2 != 0 || config->kv_rank % 2 != 0)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "sizes of latents in '%s': got rope.dimension_count %" PRIu32
                       " and %s %" PRIu32 ", need even numbers",
                       source->file, config->rotary_dim, source->arch->keys.kv_rank,
                       config->kv_rank);
    return MP_OK;
}

/* Which layers have a delta network: a list says so, or every so many-th layer has none. */
static enum mp_status read_linear(const struct mp_gguf_config *source,
                                  struct mp_model_config *config)
{
    static const char list[] = "attention.recurrent_layers";
    uint32_t step = 0, linear = 0;
    enum mp_status status =
        mp_gguf_config_u32_or(source, "full_attention_interval", 1, MP_LAYERS_MAX, 4, &step);

    for (uint32_t i = 0; status == MP_OK && i < config->layers; i++) {
        linear = (i + 1) % step != 0;
        if (mp_gguf_config_find(source, list) != NULL)
            status = mp_gguf_config_of_layer(source, list, i, 0, 1, &linear);
        config->linear[i] = linear != 0;
        if (config->linear[i])
            config->delta.in_parts = mp_gguf_config_has(source, MP_ROLE_DELTA_QKV, i);
    }
    return status;
}

/* Heads of gated delta networks. */
static enum mp_status read_delta(const struct mp_gguf_config *source,
                                 struct mp_model_config *config)
{
    static const char inner[] = "ssm.inner_size", rank[] = "ssm.time_step_rank";
    struct mp_delta *delta = &config->delta;
    uint32_t values = 0;
    enum mp_status status =
        mp_gguf_config_u32(source, source->arch->keys.delta, 1, 1024, &delta->key_heads);

    if (status == MP_OK)
        status = mp_gguf_config_u32(source, rank, 1, 1024, &delta->value_heads);
    if (status == MP_OK)
        status = mp_gguf_config_u32(source, "ssm.state_size", 1, 1024, &delta->key_dim);
    if (status == MP_OK)
        status = mp_gguf_config_u32(source, inner, 1, 1u << 20, &values);
    if (status == MP_OK)
        status = mp_gguf_config_u32(source, "ssm.conv_kernel", 2, 64, &delta->conv);
    if (status != MP_OK)
        return status;
    delta->value_dim = values / delta->value_heads;
    if (values % delta->value_heads != 0 || delta->value_heads % delta->key_heads != 0 ||
        delta->value_dim == 0 || delta->value_dim > 1024)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "heads of delta networks in '%s': got %s %" PRIu32 " and %s %" PRIu32
                       ", need heads of 1 to 1024 elements, a multiple of %s %" PRIu32,
                       source->file, inner, values, rank, delta->value_heads,
                       source->arch->keys.delta, delta->key_heads);
    delta->tiled = source->arch->tiled && delta->value_heads > delta->key_heads;
    return read_linear(source, config);
}

enum mp_status mp_gguf_config_heads(const struct mp_gguf_config *source,
                                    struct mp_model_config *config)
{
    enum mp_status status =
        mp_gguf_config_u32(source, "attention.head_count", 1, 1024, &config->heads);

    if (status == MP_OK && source->arch->keys.delta != NULL)
        status = read_delta(source, config);
    if (status != MP_OK)
        return status;
    if (source->arch->wide)
        return mp_gguf_config_wide_heads(source, config);
    return source->arch->keys.kv_rank != NULL ? read_latent(source, config)
                                              : read_equal(source, config);
}
