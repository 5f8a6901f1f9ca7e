/* Single keys of a GGUF file's metadata, each within its range. */
#include <inttypes.h>
#include <stdio.h>

#include "engine/model/arch/arch.h"
#include "engine/model/gguf/config_gguf_int.h"

/* "qwen3moe.block_count" */
const char *mp_gguf_config_key(const struct mp_gguf_config *source, const char *name,
                               char out[MP_GGUF_CONFIG_KEY_BYTES])
{
    snprintf(out, MP_GGUF_CONFIG_KEY_BYTES, "%s.%s", source->arch->name, name);
    return out;
}

const struct mp_gguf_value *mp_gguf_config_find(const struct mp_gguf_config *source,
                                                const char *name)
{
    char key[MP_GGUF_CONFIG_KEY_BYTES];

    return mp_gguf_find_value(source->gguf, mp_gguf_config_key(source, name, key));
}

bool mp_gguf_config_has(const struct mp_gguf_config *source, enum mp_role role, uint32_t layer)
{
    const char *pattern = source->arch->names[role].name;
    char name[MP_GGUF_CONFIG_KEY_BYTES];

    if (pattern == NULL)
        return false;
    (void)mp_arch_format(name, sizeof(name), pattern, &(struct mp_name_numbers){ .layer = layer });
    return mp_gguf_find(source->gguf, name) != NULL;
}

enum mp_status mp_gguf_config_u32(const struct mp_gguf_config *source, const char *name,
                                  uint32_t min, uint32_t max, uint32_t *out_p)
{
    char key[MP_GGUF_CONFIG_KEY_BYTES];
    uint64_t value = 0;
    enum mp_status status =
        mp_gguf_get_u64(source->gguf, mp_gguf_config_key(source, name, key), &value);

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

enum mp_status mp_gguf_config_of_layer(const struct mp_gguf_config *source, const char *name,
                                       uint32_t layer, uint32_t min, uint32_t max, uint32_t *out_p)
{
    const struct mp_gguf_value *list = mp_gguf_config_find(source, name);
    char key[MP_GGUF_CONFIG_KEY_BYTES];
    struct mp_gguf_value rest, item = { 0 };
    uint64_t value = 0;
    bool flag = false;

    if (list == NULL || list->kind != MP_GGUF_ARRAY)
        return mp_gguf_config_u32(source, name, min, max, out_p);
    rest = *list;
    for (uint32_t i = 0; i <= layer; i++) {
        if (!mp_gguf_array_next(&rest, &item))
            return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                           "key '%s' in '%s': got %" PRIu64
                           " numbers, need one for each of the layers",
                           mp_gguf_config_key(source, name, key), source->file, list->count);
    }
    if (mp_gguf_as_bool(&item, &flag))
        value = flag;
    else if (!mp_gguf_as_u64(&item, &value))
        value = UINT64_MAX;
    if (value < min || value > max)
        return mp_fail(MP_ERR_MODEL, "E_CONFIG",
                       "key '%s' in '%s': got a number that is out of range for layer %" PRIu32
                       ", need %" PRIu32 " to %" PRIu32,
                       mp_gguf_config_key(source, name, key), source->file, layer, min, max);
    *out_p = (uint32_t)value;
    return MP_OK;
}

enum mp_status mp_gguf_config_double(const struct mp_gguf_config *source, const char *name,
                                     double min, double max, double *out_p)
{
    char key[MP_GGUF_CONFIG_KEY_BYTES];
    double value = 0;
    enum mp_status status =
        mp_gguf_get_f64(source->gguf, mp_gguf_config_key(source, name, key), &value);

    if (status == MP_OK && !(value >= min && value <= max)) /* NaN too */
        status = mp_fail(MP_ERR_MODEL, "E_CONFIG", "key '%s' in '%s': got %g, need %g to %g", key,
                         source->file, value, min, max);
    if (status == MP_OK)
        *out_p = value;
    return status;
}

enum mp_status mp_gguf_config_unsupported(const struct mp_gguf_config *source, const char *name,
                                          const char *need)
{
    char key[MP_GGUF_CONFIG_KEY_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED", "key '%s' in '%s': this engine supports %s only",
                   mp_gguf_config_key(source, name, key), source->file, need);
}

bool mp_gguf_config_neutral(const struct mp_gguf_value *value, double neutral)
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

enum mp_status mp_gguf_config_number(const struct mp_gguf_config *source,
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

enum mp_status mp_gguf_config_count(const struct mp_gguf_config *source,
                                    const struct mp_arch_number *from, uint32_t min, uint32_t max,
                                    uint32_t *value_p)
{
    return from->key == NULL
               ? MP_OK
               : mp_gguf_config_u32_or(source, from->key, min, max, (uint32_t)from->value, value_p);
}
