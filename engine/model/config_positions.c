/*
 * What config.json says about positions: which elements of a head are rotated, by which
 * frequencies, and which layers see a window of positions only.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/arch/arch.h"
#include "engine/model/config_int.h"
#include "vmm/base/compiler.h"

#define FILE_NAME MP_CONFIG_FILE
#define SCALE_MAX 1e6
#define TURN (2 * 3.14159265358979323846)

/* What layers can be besides full attention. */
static const char *other_type(const struct mp_model_config *config)
{
    return config->delta.key_heads > 0 ? "linear_attention"
           : config->short_conv > 0    ? "conv"
                                       : "sliding_attention";
}

/* Layers by their types; without a list, all of them have the window. */
static enum mp_status read_layer_types(const json_t *root, struct mp_model_config *config,
                                       bool *any_p)
{
    json_t *types = NULL;
    enum mp_status status = mp_json_array_or_null(root, "layer_types", FILE_NAME, &types);

    if (status != MP_OK || types == NULL)
        return status;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        const bool sliding = type != NULL && strcmp(type, "sliding_attention") == 0;
        const bool linear = type != NULL && strcmp(type, other_type(config)) == 0 && !sliding;

        if (type == NULL || (!sliding && !linear && strcmp(type, "full_attention") != 0)) {
            char need[MP_QUOTE_BYTES];

            snprintf(need, sizeof(need), "'full_attention' and '%s'", other_type(config));
            return mp_config_unsupported("layer_types", json_array_get(types, i), need);
        }
        if (i < config->layers) {
            config->windowed[i] = sliding;
            config->wide[i] = config->arch->wide && !sliding;
            config->linear[i] = linear;
        }
        *any_p |= sliding;
    }
    if (json_array_size(types) != config->layers)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "key 'layer_types' in '%s': got %zu types, need one for each of %" PRIu32
                       " layers",
                       FILE_NAME, json_array_size(types), config->layers);
    return MP_OK;
}

/* Without a list every so many-th layer has attention. */
static enum mp_status read_interval(const json_t *root, struct mp_model_config *config)
{
    uint64_t step = 0;
    enum mp_status status =
        mp_json_u64_or(root, "full_attention_interval", FILE_NAME, 1, MP_LAYERS_MAX, 4, &step);

    for (uint32_t i = 0; status == MP_OK && i < config->layers; i++)
        config->linear[i] = (i + 1) % step != 0;
    return status;
}

/* A window that is at least as long as the longest context changes nothing. */
static enum mp_status read_window(const json_t *root, struct mp_model_config *config)
{
    const bool listed = mp_config_given(root, "layer_types");
    bool used = false, any = false;
    enum mp_status status = mp_config_switch(root, &config->arch->switches.window, &used);

    if (status == MP_OK && config->delta.key_heads > 0 && !listed)
        status = read_interval(root, config);
    if (status == MP_OK)
        status = read_layer_types(root, config, &any);
    if (status != MP_OK || (listed ? !any : !used || !mp_config_given(root, "sliding_window")))
        return status;
    status = mp_config_u32(root, "sliding_window", 1, UINT32_MAX, &config->window);
    if (status != MP_OK)
        return status;
    if (config->window >= config->positions_max) {
        memset(config->windowed, 0, sizeof(config->windowed));
        config->window = 0;
        return MP_OK;
    }
    if (listed)
        return MP_OK;
    if (config->arch->window_by_layer)
        return mp_config_unsupported("sliding_window", json_object_get(root, "sliding_window"),
                                     "a window together with 'layer_types'");
    for (uint32_t i = 0; i < config->layers; i++)
        config->windowed[i] = true;
    return MP_OK;
}

/* As a number, or as a share of the head. */
static enum mp_status read_rotary(const json_t *object, struct mp_model_config *config)
{
    static const char key[] = "partial_rotary_factor";
    const struct mp_arch_keys *keys = &config->arch->keys;
    double share = (double)config->rotary_dim / config->head_dim;
    enum mp_status status;

    if (config->kv_rank > 0)
        return MP_OK;
    status = mp_json_double_or(object, key, FILE_NAME, 0, 1, share, &share);
    if (status != MP_OK)
        return status;
    if (keys->rotary_share.key == NULL && keys->rotary_dim == NULL && share != 1)
        return mp_config_unsupported(key, json_object_get(object, key), "1");
    config->rotary_dim = (uint32_t)(config->head_dim * share);
    if (keys->rotary_dim != NULL && mp_config_given(object, keys->rotary_dim))
        status = mp_config_u32(object, keys->rotary_dim, 2, config->head_dim, &config->rotary_dim);
    return status;
}

static enum mp_status check_rotary(const struct mp_model_config *config)
{
    if (config->rotary_dim >= 2 && config->rotary_dim % 2 == 0)
        return MP_OK;
    return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                   "rotated elements of a head in '%s': got %" PRIu32 ", need an even number",
                   FILE_NAME, config->rotary_dim);
}

/* What both kinds with two bounds are read by. */
static enum mp_status read_bounds(const json_t *rope, const char *slow, const char *fast,
                                  double slow_default, double fast_default, struct mp_rope *out)
{
    enum mp_status status =
        mp_json_double_or(rope, slow, FILE_NAME, 1e-6, SCALE_MAX, slow_default, &out->slow);

    if (status == MP_OK)
        status =
            mp_json_double_or(rope, fast, FILE_NAME, 1e-6, SCALE_MAX, fast_default, &out->fast);
    if (status == MP_OK && !(out->slow < out->fast))
        return mp_fail(MP_ERR_MODEL, "E_CONFIG", "key '%s' in '%s': got %g, need less than %s %g",
                       slow, FILE_NAME, out->slow, fast, out->fast);
    return status;
}

static double yarn_magnitude(double factor, double weight)
{
    return factor <= 1 ? 1 : 0.1 * weight * log(factor) + 1;
}

static enum mp_status read_yarn(const json_t *rope, struct mp_model_config *config)
{
    struct mp_rope *out = &config->rope;
    double scale = 0, all = 0;
    enum mp_status status = read_bounds(rope, "beta_slow", "beta_fast", 1, 32, out);

    if (status == MP_OK)
        status = mp_json_double_or(rope, "mscale", FILE_NAME, 0, SCALE_MAX, 0, &scale);
    if (status == MP_OK)
        status = mp_json_double_or(rope, "mscale_all_dim", FILE_NAME, 0, SCALE_MAX, 0, &all);
    if (status == MP_OK)
        status = mp_json_bool_or(rope, "truncate", FILE_NAME, true, &out->truncate);
    /* Latent attention makes up for sines and cosines that are too small. */
    if (config->kv_rank > 0 && all != 0)
        config->attention_scale *= (float)pow(yarn_magnitude(out->factor, all), 2);
    out->magnitude = scale != 0 && all != 0
                         ? yarn_magnitude(out->factor, scale) / yarn_magnitude(out->factor, all)
                         : yarn_magnitude(out->factor, 1);
    if (status == MP_OK)
        status = mp_json_double_or(rope, "attention_factor", FILE_NAME, 1e-6, SCALE_MAX,
                                   out->magnitude, &out->magnitude);
    return status;
}

/* Divisors of all frequencies. */
static enum mp_status read_factors(const json_t *rope, const char *key, uint32_t count,
                                   float *factors)
{
    json_t *list = NULL;
    char got[MP_QUOTE_BYTES];
    enum mp_status status = mp_json_array_or_null(rope, key, FILE_NAME, &list);

    if (status != MP_OK)
        return status;
    if (json_array_size(list) != count)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "key '%s' in '%s': got %zu numbers, need one for each of %" PRIu32
                       " rotated pairs of a head",
                       key, FILE_NAME, json_array_size(list), count);
    for (uint32_t i = 0; i < count; i++) {
        const double factor = json_number_value(json_array_get(list, i));

        if (!(factor >= 1e-6 && factor <= SCALE_MAX))
            return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                           "key '%s' in '%s': got %s, need numbers from 1e-6 to 1e6", key,
                           FILE_NAME, mp_json_describe(got, json_array_get(list, i)));
        factors[i] = (float)factor;
    }
    return MP_OK;
}

static enum mp_status read_long(const json_t *rope, struct mp_model_config *config)
{
    struct mp_rope *out = &config->rope;
    const uint32_t count = config->rotary_dim / 2;
    const double ratio = out->factor;
    const double whole =
        ratio <= 1 || out->original <= 1 ? 1 : sqrt(1 + log(ratio) / log(out->original));
    enum mp_status status = read_factors(rope, "short_factor", count, out->factors[0]);

    if (status == MP_OK)
        status = read_factors(rope, "long_factor", count, out->factors[1]);
    if (status == MP_OK)
        status = mp_json_double_or(rope, "attention_factor", FILE_NAME, 1e-6, SCALE_MAX, whole,
                                   &out->magnitude);
    if (status == MP_OK)
        status = mp_json_double_or(rope, "long_mscale", FILE_NAME, 1e-6, SCALE_MAX, out->magnitude,
                                   &out->long_magnitude);
    if (status == MP_OK)
        status = mp_json_double_or(rope, "short_mscale", FILE_NAME, 1e-6, SCALE_MAX, out->magnitude,
                                   &out->magnitude);
    return status;
}

/* What a kind other than the plain one needs. */
static enum mp_status read_scaling(const json_t *root, const json_t *rope, bool llama3,
                                   struct mp_model_config *config)
{
    static const char key[] = "original_max_position_embeddings";
    const json_t *owner = mp_config_given(rope, key) ? rope : root;
    struct mp_rope *out = &config->rope;
    enum mp_status status;

    status = mp_json_double_or(owner, key, FILE_NAME, 1, 1u << 24, config->positions_max,
                               &out->original);
    if (status != MP_OK)
        return status;
    if (out->kind != MP_ROPE_LINEAR && !llama3)
        status = mp_json_double_or(rope, "factor", FILE_NAME, 1e-6, SCALE_MAX,
                                   config->positions_max / out->original, &out->factor);
    else
        status = mp_json_double(rope, "factor", FILE_NAME, 1e-6, SCALE_MAX, &out->factor);
    if (status == MP_OK && llama3)
        status = read_bounds(rope, "low_freq_factor", "high_freq_factor", 1, 4, out);
    if (status == MP_OK && out->kind == MP_ROPE_YARN)
        status = read_yarn(rope, config);
    if (status == MP_OK && out->kind == MP_ROPE_LONG && !llama3)
        status = read_long(rope, config);
    return status;
}

static enum mp_status read_kind(const json_t *root, const json_t *rope,
                                struct mp_model_config *config)
{
    static const struct {
        const char *name;
        enum mp_rope_kind kind;
    } kinds[] = { { "default", MP_ROPE_PLAIN },
                  { "linear", MP_ROPE_LINEAR },
                  { "llama3", MP_ROPE_LONG },
                  { "yarn", MP_ROPE_YARN },
                  { "longrope", MP_ROPE_LONG } };
    const char *key = mp_config_given(rope, "rope_type") ? "rope_type" : "type";
    const json_t *type = json_object_get(rope, key);
    const char *name = json_string_value(type);
    size_t kind = 0;

    /* Of a kind that the file forgot to name. */
    if (!mp_config_given(rope, key) && mp_config_given(rope, "factor"))
        return mp_config_unsupported("factor", json_object_get(rope, "factor"),
                                     "scaling with a 'rope_type'");
    while (name != NULL && kind < MP_ARRAY_LEN(kinds) && strcmp(name, kinds[kind].name) != 0)
        kind++;
    if (mp_config_given(rope, key) && (name == NULL || kind == MP_ARRAY_LEN(kinds)))
        return mp_config_unsupported(key, type,
                                     "'default', 'linear', 'llama3', 'yarn' and 'longrope'");
    if (name == NULL || kinds[kind].kind == MP_ROPE_PLAIN)
        return MP_OK;
    config->rope = (struct mp_rope){ .kind = kinds[kind].kind, .factor = 1, .magnitude = 1 };
    return read_scaling(root, rope, strcmp(name, "llama3") == 0, config);
}

/* An object about RoPE, the same for all layers. */
enum mp_status mp_config_rope(const json_t *root, const char *key, struct mp_model_config *config)
{
    json_t *rope = NULL;
    enum mp_status status = mp_json_object_or_null(root, key, FILE_NAME, &rope);

    if (status != MP_OK || rope == NULL)
        return status;
    for (void *at = json_object_iter(rope); at != NULL; at = json_object_iter_next(rope, at)) {
        if (json_is_object(json_object_iter_value(at)))
            return mp_config_unsupported(key, rope, "the same RoPE in all layers");
    }
    status = read_kind(root, rope, config);
    if (status == MP_OK)
        status = read_rotary(rope, config);
    if (status == MP_OK)
        status = mp_json_double_or(rope, "rope_theta", FILE_NAME, 1, 1e12, config->rope_theta,
                                   &config->rope_theta);
    return status;
}

/*
 * llama3's scaling as divisors, now that all that they depend on has been read: frequencies that
 * turn seldom in the original positions are divided by the factor, those that turn often by 1, and
 * what is between by a mixture. They are floats, as converters to GGUF compute and round them, so
 * that a directory and such a file are the same model.
 */
static void set_llama3_divisors(struct mp_model_config *config)
{
    struct mp_rope *rope = &config->rope;

    for (uint32_t i = 0; i < config->rotary_dim / 2; i++) {
        const double wave = TURN * pow(config->rope_theta, 2.0 * i / config->rotary_dim);
        const double part = (rope->original / wave - rope->slow) / (rope->fast - rope->slow);
        const double divisor = part <= 0   ? rope->factor
                               : part >= 1 ? 1
                                           : 1 / ((1 - part) / rope->factor + part);

        rope->factors[0][i] = rope->factors[1][i] = (float)divisor;
    }
    rope->factor = 1;
    rope->slow = rope->fast = 0;
    rope->original = config->positions_max;
    rope->long_magnitude = 1;
}

/*
 * rope_theta stands at the top, or with everything else about RoPE in rope_parameters (library
 * version 5); before that, rope_scaling held what was not the default.
 */
enum mp_status mp_config_positions(const json_t *root, struct mp_model_config *config)
{
    const struct mp_arch_number *share = &config->arch->keys.rotary_share;
    enum mp_status status;

    config->rope = (struct mp_rope){ .factor = 1, .magnitude = 1 };
    if (config->kv_rank == 0)
        config->rotary_dim = share->key == NULL || share->value == 0
                                 ? config->head_dim
                                 : (uint32_t)(config->head_dim * share->value);
    status = mp_json_double_or(root, "rope_theta", FILE_NAME, 1, 1e12, config->arch->default_theta,
                               &config->rope_theta);
    if (status == MP_OK)
        status = read_rotary(root, config);
    if (status == MP_OK)
        status = mp_config_rope(root, "rope_scaling", config);
    if (status == MP_OK)
        status = config->arch->wide ? mp_config_wide_positions(root, config)
                                    : mp_config_rope(root, "rope_parameters", config);
    if (status == MP_OK)
        status = check_rotary(config);
    if (status == MP_OK && config->rope.kind == MP_ROPE_LONG && config->rope.fast > 0)
        set_llama3_divisors(config);
    if (status == MP_OK)
        status = read_window(root, config);
    return status;
}
