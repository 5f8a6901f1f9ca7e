/*
 * What the metadata of a GGUF file say about families whose layers of full attention have heads of
 * other sizes than those with a window: which layers these are, their heads, and how they rotate.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/arch/arch.h"
#include "engine/model/gguf/config_gguf_int.h"

/* What frequencies of pairs that do not turn are divided by, at least. */
#define NEVER 1e20f

static const char pattern[] = "attention.sliding_window_pattern";

/* A layer has a window and narrow heads, or neither. */
static enum mp_status read_layers(const struct mp_gguf_config *source,
                                  struct mp_model_config *config)
{
    const struct mp_gguf_value *list = mp_gguf_config_find(source, pattern);
    uint32_t narrow = 0;
    enum mp_status status = MP_OK;

    if (list == NULL || list->kind != MP_GGUF_ARRAY)
        return mp_gguf_config_unsupported(source, pattern, "a list of all layers");
    for (uint32_t i = 0; status == MP_OK && i < config->layers; i++) {
        status = mp_gguf_config_of_layer(source, pattern, i, 0, 1, &narrow);
        config->windowed[i] = narrow != 0;
        config->wide[i] = narrow == 0;
    }
    return status;
}

/* Layers of a kind have the same heads of keys, and values of their own, or not. */
static enum mp_status read_kv_heads(const struct mp_gguf_config *source,
                                    struct mp_model_config *config)
{
    static const char key[] = "attention.head_count_kv";
    uint32_t count = 0;

    for (uint32_t i = 0; i < config->layers; i++) {
        uint32_t *kv_heads = config->wide[i] ? &config->wide_kv_heads : &config->kv_heads;
        const bool keys = config->wide[i] && !mp_gguf_config_has(source, MP_ROLE_V, i);
        enum mp_status status = mp_gguf_config_of_layer(source, key, i, 1, 1024, &count);

        if (status != MP_OK)
            return status;
        if (*kv_heads != 0 &&
            (*kv_heads != count || (config->wide[i] && keys != config->wide_values_are_keys)))
            return mp_gguf_config_unsupported(source, key, "one number for layers of a kind");
        *kv_heads = count;
        config->wide_values_are_keys |= keys;
    }
    /* Of a kind that no layer is. */
    config->kv_heads += config->kv_heads == 0 ? config->heads : 0;
    config->wide_kv_heads += config->wide_kv_heads == 0 ? config->heads : 0;
    return MP_OK;
}

static enum mp_status read_lengths(const struct mp_gguf_config *source, const char *key_name,
                                   const char *value_name, uint32_t *dim_p)
{
    uint32_t value = 0;
    enum mp_status status = mp_gguf_config_u32(source, key_name, 2, 1024, dim_p);

    if (status == MP_OK)
        status = mp_gguf_config_u32_or(source, value_name, 2, 1024, *dim_p, &value);
    if (status == MP_OK && (value != *dim_p || value % 2 != 0))
        return mp_gguf_config_unsupported(source, value_name,
                                          "values as long as keys, an even number");
    return status;
}

enum mp_status mp_gguf_config_wide_heads(const struct mp_gguf_config *source,
                                         struct mp_model_config *config)
{
    uint32_t turned = 0;
    enum mp_status status = read_layers(source, config);

    if (status == MP_OK)
        status = read_kv_heads(source, config);
    if (status == MP_OK)
        status = read_lengths(source, "attention.key_length", "attention.value_length",
                              &config->wide_head_dim);
    if (status == MP_OK)
        status = read_lengths(source, "attention.key_length_swa", "attention.value_length_swa",
                              &config->head_dim);
    if (status == MP_OK)
        status = mp_gguf_config_u32_or(source, "rope.dimension_count_swa", 2, config->head_dim,
                                       config->head_dim, &config->rotary_dim);
    if (status == MP_OK)
        status = mp_gguf_config_u32_or(source, "rope.dimension_count", 0, UINT32_MAX,
                                       config->wide_head_dim, &turned);
    if (status == MP_OK && turned != config->wide_head_dim)
        return mp_gguf_config_unsupported(source, "rope.dimension_count",
                                          "all elements of a wide head");
    if (status != MP_OK)
        return status;
    if (config->heads % config->kv_heads != 0 || config->heads % config->wide_kv_heads != 0 ||
        config->rotary_dim % 2 != 0)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "heads in '%s': got %" PRIu32 " with %" PRIu32 " and %" PRIu32
                       " keys and values, need a multiple of both, and an even number of rotated "
                       "elements",
                       source->file, config->heads, config->kv_heads, config->wide_kv_heads);
    return MP_OK;
}

/* Divisors of the frequencies of wide heads: 1 for the first pairs, and for those that do not turn
 * a number that is too large. */
static enum mp_status count_turning(const struct mp_gguf_config *source, const float *divisors,
                                    struct mp_model_config *config)
{
    const uint32_t half = config->wide_head_dim / 2;
    uint32_t turning = 0;

    while (turning < half && divisors[turning] == 1)
        turning++;
    config->wide_rotary_dim = 2 * turning;
    while (turning < half && divisors[turning] >= NEVER)
        turning++;
    if (turning == half)
        return MP_OK;
    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                   "tensor '%s' in '%s': this engine supports 1 for the first pairs of a head and "
                   "at least 1e20 for the others only",
                   MP_DIVISORS_NAME, source->file);
}

/* `rope_theta` has been read from the key that is about wide heads. */
enum mp_status mp_gguf_config_wide_positions(const struct mp_gguf_config *source,
                                             struct mp_model_config *config)
{
    static const char base[] = "rope.freq_base_swa", window[] = "attention.sliding_window";
    float divisors[MP_ROPE_FACTORS_MAX];
    bool any = false;
    enum mp_status status;

    config->wide_theta = config->rope_theta;
    config->rope_theta = source->arch->default_theta;
    config->wide_factor = 1;
    config->wide_rotary_dim = config->wide_head_dim;
    status = mp_gguf_config_u32(source, window, 1, UINT32_MAX, &config->window);
    if (status == MP_OK && mp_gguf_config_find(source, base) != NULL)
        status = mp_gguf_config_double(source, base, 1, 1e12, &config->rope_theta);
    if (status == MP_OK)
        status = mp_gguf_config_divisors(source, MP_DIVISORS_NAME, config->wide_head_dim / 2,
                                         divisors, &any);
    if (status == MP_OK && any)
        status = count_turning(source, divisors, config);
    if (config->window >= config->positions_max) {
        memset(config->windowed, 0, sizeof(config->windowed));
        config->window = 0;
    }
    return status;
}
