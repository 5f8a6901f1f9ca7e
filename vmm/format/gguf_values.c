/* Values of GGUF metadata as numbers and texts of C. */
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/format/gguf.h"

static uint64_t little(const unsigned char *data, unsigned bytes)
{
    uint64_t value = 0;

    mp_assert(bytes <= sizeof(value));
    for (unsigned i = bytes; i > 0; i--)
        value = value << 8 | data[i - 1];
    return value;
}

bool mp_gguf_as_i64(const struct mp_gguf_value *value, int64_t *out_p)
{
    const unsigned char *data = value->data;
    uint64_t wide;

    mp_assert((unsigned)value->kind < MP_GGUF_KIND_COUNT);
    switch (value->kind) {
    case MP_GGUF_U8: *out_p = data[0]; return true;
    case MP_GGUF_U16: *out_p = (int64_t)little(data, 2); return true;
    case MP_GGUF_U32: *out_p = (int64_t)little(data, 4); return true;
    case MP_GGUF_I8: *out_p = (int8_t)data[0]; return true;
    case MP_GGUF_I16: *out_p = (int16_t)little(data, 2); return true;
    case MP_GGUF_I32: *out_p = (int32_t)little(data, 4); return true;
    case MP_GGUF_I64: *out_p = (int64_t)little(data, 8); return true;
    case MP_GGUF_U64:
        wide = little(data, 8);
        if (wide > INT64_MAX)
            return false;
        *out_p = (int64_t)wide;
        return true;
    default: return false;
    }
}

bool mp_gguf_as_u64(const struct mp_gguf_value *value, uint64_t *out_p)
{
    int64_t number;

    mp_assert((unsigned)value->kind < MP_GGUF_KIND_COUNT);
    if (value->kind == MP_GGUF_U64) {
        *out_p = little(value->data, 8);
        return true;
    }
    if (!mp_gguf_as_i64(value, &number) || number < 0)
        return false;
    *out_p = (uint64_t)number;
    return true;
}

bool mp_gguf_as_f64(const struct mp_gguf_value *value, double *out_p)
{
    const uint64_t wide = value->kind == MP_GGUF_F64   ? little(value->data, 8)
                          : value->kind == MP_GGUF_F32 ? little(value->data, 4)
                                                       : 0;
    const uint32_t narrow = (uint32_t)wide;
    float number;

    if (value->kind == MP_GGUF_F64) {
        memcpy(out_p, &wide, 8);
        return true;
    }
    if (value->kind != MP_GGUF_F32)
        return false;
    memcpy(&number, &narrow, 4);
    *out_p = number;
    return true;
}

bool mp_gguf_as_bool(const struct mp_gguf_value *value, bool *out_p)
{
    if (value->kind != MP_GGUF_BOOL)
        return false;
    *out_p = value->data[0] != 0;
    return true;
}

static enum mp_status get(const struct mp_gguf *gguf, const char *key,
                          const struct mp_gguf_value **value_p)
{
    char shown[MP_QUOTE_BYTES], file[MP_QUOTE_BYTES];
    const char *name = mp_files_name(mp_gguf_files(gguf), 0);

    mp_assert(key != NULL);
    *value_p = mp_gguf_find_value(gguf, key);
    if (*value_p != NULL)
        return MP_OK;
    return mp_fail(MP_ERR_MODEL, "E_GGUF_KEY", "'%s' has no key '%s'",
                   mp_quote(file, name, strlen(name)), mp_quote(shown, key, strlen(key)));
}

static enum mp_status wrong(const struct mp_gguf *gguf, const char *key,
                            const struct mp_gguf_value *value, const char *need)
{
    static const char *const names[MP_GGUF_KIND_COUNT] = {
        "a u8",   "an i8",    "a u16",    "an i16", "a u32",  "an i32", "an f32",
        "a bool", "a string", "an array", "a u64",  "an i64", "an f64",
    };
    const char *name = mp_files_name(mp_gguf_files(gguf), 0);
    char shown[MP_QUOTE_BYTES], file[MP_QUOTE_BYTES];

    mp_assert((unsigned)value->kind < MP_GGUF_KIND_COUNT);
    return mp_fail(MP_ERR_MODEL, "E_GGUF_VALUE", "key '%s' in '%s' is %s%s%s, need %s",
                   mp_quote(shown, key, strlen(key)), mp_quote(file, name, strlen(name)),
                   names[value->kind], value->kind == MP_GGUF_ARRAY ? " of which each is " : "",
                   value->kind == MP_GGUF_ARRAY ? names[value->element] : "", need);
}

enum mp_status mp_gguf_get_u64(const struct mp_gguf *gguf, const char *key, uint64_t *out_p)
{
    const struct mp_gguf_value *value;
    const enum mp_status status = get(gguf, key, &value);

    if (status != MP_OK || mp_gguf_as_u64(value, out_p))
        return status;
    return wrong(gguf, key, value, "an integer that is not negative");
}

enum mp_status mp_gguf_get_i64(const struct mp_gguf *gguf, const char *key, int64_t *out_p)
{
    const struct mp_gguf_value *value;
    const enum mp_status status = get(gguf, key, &value);

    if (status != MP_OK || mp_gguf_as_i64(value, out_p))
        return status;
    return wrong(gguf, key, value, "an integer that fits in 63 bits and a sign");
}

enum mp_status mp_gguf_get_f64(const struct mp_gguf *gguf, const char *key, double *out_p)
{
    const struct mp_gguf_value *value;
    const enum mp_status status = get(gguf, key, &value);

    if (status != MP_OK || mp_gguf_as_f64(value, out_p))
        return status;
    return wrong(gguf, key, value, "an f32 or f64");
}

enum mp_status mp_gguf_get_bool(const struct mp_gguf *gguf, const char *key, bool *out_p)
{
    const struct mp_gguf_value *value;
    const enum mp_status status = get(gguf, key, &value);

    if (status != MP_OK || mp_gguf_as_bool(value, out_p))
        return status;
    return wrong(gguf, key, value, "a bool");
}

enum mp_status mp_gguf_get_string(const struct mp_gguf *gguf, const char *key, const char **text_p,
                                  uint64_t *bytes_p)
{
    const struct mp_gguf_value *value;
    const enum mp_status status = get(gguf, key, &value);

    if (status != MP_OK)
        return status;
    if (value->kind != MP_GGUF_STRING)
        return wrong(gguf, key, value, "a string");
    *text_p = (const char *)value->data;
    *bytes_p = value->count;
    return MP_OK;
}

enum mp_status mp_gguf_get_array(const struct mp_gguf *gguf, const char *key,
                                 enum mp_gguf_kind element, struct mp_gguf_value *array_p)
{
    const struct mp_gguf_value *value;
    const enum mp_status status = get(gguf, key, &value);

    mp_assert((unsigned)element < MP_GGUF_KIND_COUNT);
    if (status != MP_OK)
        return status;
    if (value->kind != MP_GGUF_ARRAY || value->element != element)
        return wrong(gguf, key, value, "an array with elements of another type");
    *array_p = *value;
    return MP_OK;
}
