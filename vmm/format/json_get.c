/*
 * Values of a JSON object by key, with checks of type and range, and error messages that state what
 * is needed. Parses nothing.
 */
#include "vmm/format/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "vmm/base/assert.h"

const char *mp_json_describe(char out[MP_QUOTE_BYTES], const json_t *value)
{
    char quoted[MP_QUOTE_BYTES];

    if (value == NULL)
        return strcpy(out, "nothing");
    switch (json_typeof(value)) {
    case JSON_NULL: return strcpy(out, "null");
    case JSON_TRUE: return strcpy(out, "true");
    case JSON_FALSE: return strcpy(out, "false");
    case JSON_OBJECT: return strcpy(out, "an object");
    case JSON_ARRAY:
        snprintf(out, MP_QUOTE_BYTES, "an array of %zu", json_array_size(value));
        return out;
    case JSON_INTEGER:
        snprintf(out, MP_QUOTE_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return out;
    case JSON_REAL: snprintf(out, MP_QUOTE_BYTES, "%g", json_real_value(value)); return out;
    case JSON_STRING:
        mp_quote(quoted, json_string_value(value), json_string_length(value));
        snprintf(out, MP_QUOTE_BYTES, "'%.*s'", MP_QUOTE_BYTES - 3, quoted);
        return out;
    }
    return strcpy(out, "an unknown value");
}

static enum mp_status wrong_key(const char *code, const json_t *value, const char *key,
                                const char *name, const char *need)
{
    char shown[MP_QUOTE_BYTES], got[MP_QUOTE_BYTES], shown_key[MP_QUOTE_BYTES];

    mp_assert(key != NULL && need != NULL);
    mp_quote(shown, name, strlen(name));
    mp_quote(shown_key, key, strlen(key));
    if (value == NULL)
        return mp_fail(MP_ERR_MODEL, "E_JSON_KEY", "key '%s' in '%s' is missing, need %s",
                       shown_key, shown, need);
    return mp_fail(MP_ERR_MODEL, code, "key '%s' in '%s': got %s, need %s", shown_key, shown,
                   mp_json_describe(got, value), need);
}

/* NULL and null are the same to the forms with a fallback. */
static bool is_absent(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    mp_assert(key != NULL);
    return value == NULL || json_is_null(value);
}

enum mp_status mp_json_u64(const json_t *object, const char *key, const char *name, uint64_t min,
                           uint64_t max, uint64_t *value_p)
{
    const json_t *value = json_object_get(object, key);
    const json_int_t number = json_integer_value(value);
    char need[96];

    mp_assert(min <= max);
    snprintf(need, sizeof(need), "an integer from %" PRIu64 " to %" PRIu64, min, max);
    if (!json_is_integer(value))
        return wrong_key("E_JSON_TYPE", value, key, name, need);
    if (number < 0 || (uint64_t)number < min || (uint64_t)number > max)
        return wrong_key("E_JSON_RANGE", value, key, name, need);
    *value_p = (uint64_t)number;
    return MP_OK;
}

enum mp_status mp_json_u64_or(const json_t *object, const char *key, const char *name, uint64_t min,
                              uint64_t max, uint64_t fallback, uint64_t *value_p)
{
    mp_assert(min <= max);
    if (!is_absent(object, key))
        return mp_json_u64(object, key, name, min, max, value_p);
    *value_p = fallback;
    return MP_OK;
}

enum mp_status mp_json_double(const json_t *object, const char *key, const char *name, double min,
                              double max, double *value_p)
{
    const json_t *value = json_object_get(object, key);
    const double number = json_number_value(value);
    char need[96];

    mp_assert(min <= max);
    snprintf(need, sizeof(need), "a number from %g to %g", min, max);
    if (!json_is_number(value))
        return wrong_key("E_JSON_TYPE", value, key, name, need);
    if (!(number >= min && number <= max))
        return wrong_key("E_JSON_RANGE", value, key, name, need);
    *value_p = number;
    return MP_OK;
}

enum mp_status mp_json_double_or(const json_t *object, const char *key, const char *name,
                                 double min, double max, double fallback, double *value_p)
{
    mp_assert(min <= max);
    if (!is_absent(object, key))
        return mp_json_double(object, key, name, min, max, value_p);
    *value_p = fallback;
    return MP_OK;
}

enum mp_status mp_json_bool(const json_t *object, const char *key, const char *name, bool *value_p)
{
    const json_t *value = json_object_get(object, key);

    mp_assert(key != NULL);
    if (!json_is_boolean(value))
        return wrong_key("E_JSON_TYPE", value, key, name, "true or false");
    *value_p = json_is_true(value);
    return MP_OK;
}

enum mp_status mp_json_bool_or(const json_t *object, const char *key, const char *name,
                               bool fallback, bool *value_p)
{
    if (!is_absent(object, key))
        return mp_json_bool(object, key, name, value_p);
    *value_p = fallback;
    return MP_OK;
}

enum mp_status mp_json_string(const json_t *object, const char *key, const char *name,
                              const char **value_p)
{
    const json_t *value = json_object_get(object, key);

    mp_assert(key != NULL);
    if (!json_is_string(value))
        return wrong_key("E_JSON_TYPE", value, key, name, "a string");
    *value_p = json_string_value(value);
    return MP_OK;
}

enum mp_status mp_json_string_or(const json_t *object, const char *key, const char *name,
                                 const char *fallback, const char **value_p)
{
    if (!is_absent(object, key))
        return mp_json_string(object, key, name, value_p);
    *value_p = fallback;
    return MP_OK;
}

enum mp_status mp_json_object(const json_t *object, const char *key, const char *name,
                              json_t **value_p)
{
    json_t *value = json_object_get(object, key);

    mp_assert(key != NULL);
    if (!json_is_object(value))
        return wrong_key("E_JSON_TYPE", value, key, name, "an object");
    *value_p = value;
    return MP_OK;
}

enum mp_status mp_json_array(const json_t *object, const char *key, const char *name,
                             json_t **value_p)
{
    json_t *value = json_object_get(object, key);

    mp_assert(key != NULL);
    if (!json_is_array(value))
        return wrong_key("E_JSON_TYPE", value, key, name, "an array");
    *value_p = value;
    return MP_OK;
}

enum mp_status mp_json_object_or_null(const json_t *object, const char *key, const char *name,
                                      json_t **value_p)
{
    if (!is_absent(object, key))
        return mp_json_object(object, key, name, value_p);
    *value_p = NULL;
    return MP_OK;
}

enum mp_status mp_json_array_or_null(const json_t *object, const char *key, const char *name,
                                     json_t **value_p)
{
    if (!is_absent(object, key))
        return mp_json_array(object, key, name, value_p);
    *value_p = NULL;
    return MP_OK;
}
