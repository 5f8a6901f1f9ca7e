/*
 * What config.json says about models whose layers of full attention have heads of another size and
 * another rotation than those with a window; and what such models may ask for that nobody computes.
 */
#include <inttypes.h>
#include <string.h>

#include "engine/model/arch/arch.h"
#include "engine/model/config_int.h"

#define FILE_NAME MP_CONFIG_FILE

static const char full[] = "full_attention", sliding[] = "sliding_attention";

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* Keys whose absence, or whose usual value, asks for something else than these models. */
static enum mp_status refuse(const json_t *root)
{
    static const char inputs[] = "hidden_size_per_layer_input", shared[] = "num_kv_shared_layers",
                      both[] = "use_bidirectional_attention", moe[] = "enable_moe_block",
                      layers[] = "layer_types", sizes[] = "per_layer_config";
    const json_t *types = json_object_get(root, layers);
    const json_t *value = json_object_get(root, inputs);

    if (!json_is_integer(value) || json_integer_value(value) != 0)
        return mp_config_unsupported(inputs, value, "0: no embeddings of each layer");
    value = json_object_get(root, shared);
    if (mp_config_given(root, shared) &&
        (!json_is_integer(value) || json_integer_value(value) != 0))
        return mp_config_unsupported(shared, value, "0: keys and values of each layer");
    /* Between the parts of pictures, which are not read here, it is usual. */
    value = json_object_get(root, both);
    if (mp_config_given(root, both) && !is_text(value, "vision"))
        return mp_config_unsupported(both, value, "null and 'vision'");
    value = json_object_get(root, moe);
    if (!json_is_true(value))
        return mp_config_unsupported(moe, value, "true");
    if (mp_config_given(root, sizes))
        return mp_config_unsupported(sizes, json_object_get(root, sizes),
                                     "'global_head_dim' and 'num_global_key_value_heads'");
    value = json_array_get(types, json_array_size(types) - 1);
    if (!is_text(value, full))
        return mp_config_unsupported(layers, value, "'full_attention' in the last layer");
    return MP_OK;
}

enum mp_status mp_config_wide_heads(const json_t *root, struct mp_model_config *config)
{
    static const char dim[] = "global_head_dim", heads[] = "num_global_key_value_heads";
    enum mp_status status = refuse(root);

    config->wide_head_dim = 512;
    config->wide_kv_heads = config->kv_heads;
    if (status == MP_OK)
        status = mp_json_bool_or(root, "attention_k_eq_v", FILE_NAME, false,
                                 &config->wide_values_are_keys);
    if (status == MP_OK && mp_config_given(root, dim))
        status = mp_config_u32(root, dim, 2, 1024, &config->wide_head_dim);
    if (status == MP_OK && config->wide_values_are_keys && mp_config_given(root, heads))
        status = mp_config_u32(root, heads, 1, 1024, &config->wide_kv_heads);
    if (status != MP_OK)
        return status;
    if (config->heads % config->wide_kv_heads != 0 || config->wide_head_dim % 2 != 0)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "heads of full attention in '%s': got %s %" PRIu32 " and %s %" PRIu32
                       ", need a divisor of num_attention_heads %" PRIu32 " and an even number",
                       FILE_NAME, heads, config->wide_kv_heads, dim, config->wide_head_dim,
                       config->heads);
    return MP_OK;
}

/* Of full attention: all pairs turn, or, if "proportional", the first ones. */
static enum mp_status read_full(const json_t *rope, struct mp_model_config *config)
{
    static const char type[] = "rope_type";
    const json_t *kind = json_object_get(rope, type);
    double share = 1;
    enum mp_status status;

    if (!is_text(kind, "default") && !is_text(kind, "proportional"))
        return mp_config_unsupported(type, kind,
                                     "'default' and 'proportional' with full attention");
    status = mp_json_double(rope, "rope_theta", FILE_NAME, 1, 1e12, &config->wide_theta);
    config->wide_factor = 1;
    if (status == MP_OK && is_text(kind, "proportional")) {
        status = mp_json_double_or(rope, "partial_rotary_factor", FILE_NAME, 0, 1, share, &share);
        if (status == MP_OK)
            status =
                mp_json_double_or(rope, "factor", FILE_NAME, 1e-6, 1e6, 1, &config->wide_factor);
    }
    config->wide_rotary_dim = 2 * (uint32_t)(share * config->wide_head_dim / 2);
    return status;
}

enum mp_status mp_config_wide_positions(const json_t *root, struct mp_model_config *config)
{
    static const char key[] = "rope_parameters";
    json_t *ropes = NULL, *rope = NULL;
    enum mp_status status = mp_json_object_or_null(root, key, FILE_NAME, &ropes);

    config->wide_theta = 1e6;
    config->wide_factor = 1;
    config->wide_rotary_dim =
        config->wide_head_dim / 8 * 2; /* the library's default is a quarter */
    if (status != MP_OK || ropes == NULL)
        return status;
    status = mp_json_object_or_null(ropes, full, FILE_NAME, &rope);
    if (status == MP_OK && rope == NULL)
        return mp_config_unsupported(key, ropes, "one object for each of the two kinds of layers");
    if (status == MP_OK)
        status = read_full(rope, config);
    return status == MP_OK ? mp_config_rope(ropes, sliding, config) : status;
}
