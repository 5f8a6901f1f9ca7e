/* A writer of JSON, value by value. Keeps no document in memory and closes no file. */
#include "vmm/output/json_out.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/utf8.h"

void mp_json_begin(struct mp_json_out *json, FILE *file, bool pretty)
{
    mp_assert(file != NULL);
    memset(json, 0, sizeof(*json));
    json->file = file;
    json->pretty = pretty;
    json->is_array[0] = true; /* the top level takes values without keys */
}

void mp_json_end(struct mp_json_out *json)
{
    mp_assert(json->depth == 0);
    putc('\n', json->file);
}

static void new_line(struct mp_json_out *json)
{
    mp_assert(json->depth < MP_JSON_OUT_DEPTH_MAX);
    if (!json->pretty)
        return;
    putc('\n', json->file);
    for (unsigned i = 0; i < json->depth; i++)
        fputs("  ", json->file);
}

static void write_string(FILE *file, const char *value, size_t bytes)
{
    const unsigned char *s = (const unsigned char *)value;

    mp_assert(value != NULL || bytes == 0);
    putc('"', file);
    for (size_t i = 0; i < bytes;) {
        const size_t length = mp_utf8_sequence(value + i, bytes - i);

        if (length == 0) {
            fputs("\\ufffd", file);
            i++;
            continue;
        }
        if (s[i] == '"' || s[i] == '\\')
            fprintf(file, "\\%c", s[i]);
        else if (s[i] == '\n')
            fputs("\\n", file);
        else if (s[i] < 0x20 || s[i] == 0x7f)
            fprintf(file, "\\u%04x", s[i]);
        else
            fwrite(s + i, 1, length, file);
        i += length;
    }
    putc('"', file);
}

static void begin_value(struct mp_json_out *json, const char *key)
{
    mp_assert(json->depth < MP_JSON_OUT_DEPTH_MAX);
    mp_assert((key == NULL) == json->is_array[json->depth]);
    mp_assert(json->depth > 0 || !json->has_items[0]);
    if (json->has_items[json->depth])
        putc(',', json->file);
    json->has_items[json->depth] = true;
    if (json->depth > 0)
        new_line(json);
    if (key != NULL) {
        write_string(json->file, key, strlen(key));
        fputs(json->pretty ? ": " : ":", json->file);
    }
}

static void begin_nested(struct mp_json_out *json, const char *key, bool is_array)
{
    begin_value(json, key);
    putc(is_array ? '[' : '{', json->file);
    mp_assert(json->depth + 1 < MP_JSON_OUT_DEPTH_MAX);
    json->depth++;
    json->is_array[json->depth] = is_array;
    json->has_items[json->depth] = false;
}

static void end_nested(struct mp_json_out *json, bool is_array)
{
    bool had_items;

    mp_assert(json->depth > 0);
    mp_assert(json->is_array[json->depth] == is_array);
    had_items = json->has_items[json->depth];
    mp_assert(json->depth < MP_JSON_OUT_DEPTH_MAX);
    json->depth--;
    if (had_items)
        new_line(json);
    putc(is_array ? ']' : '}', json->file);
}

void mp_json_object_begin(struct mp_json_out *json, const char *key)
{
    begin_nested(json, key, false);
}

void mp_json_object_end(struct mp_json_out *json)
{
    end_nested(json, false);
}

void mp_json_array_begin(struct mp_json_out *json, const char *key)
{
    begin_nested(json, key, true);
}

void mp_json_array_end(struct mp_json_out *json)
{
    end_nested(json, true);
}

void mp_json_put_string(struct mp_json_out *json, const char *key, const char *value)
{
    if (value == NULL)
        mp_json_put_null(json, key);
    else
        mp_json_put_string_n(json, key, value, strlen(value));
}

void mp_json_put_string_n(struct mp_json_out *json, const char *key, const char *value,
                          size_t bytes)
{
    mp_assert(value != NULL || bytes == 0);
    begin_value(json, key);
    write_string(json->file, value, bytes);
}

void mp_json_put_u64(struct mp_json_out *json, const char *key, uint64_t value)
{
    begin_value(json, key);
    fprintf(json->file, "%" PRIu64, value);
}

void mp_json_put_i64(struct mp_json_out *json, const char *key, int64_t value)
{
    begin_value(json, key);
    fprintf(json->file, "%" PRId64, value);
}

void mp_json_put_f64(struct mp_json_out *json, const char *key, double value)
{
    char text[MP_F64_BYTES];

    if (!isfinite(value)) {
        mp_json_put_null(json, key);
        return;
    }
    begin_value(json, key);
    fputs(mp_format_f64(value, text), json->file);
}

void mp_json_put_milli(struct mp_json_out *json, const char *key, uint64_t thousandths)
{
    begin_value(json, key);
    fprintf(json->file, "%" PRIu64 ".%03u", thousandths / 1000, (unsigned)(thousandths % 1000));
}

void mp_json_put_bool(struct mp_json_out *json, const char *key, bool value)
{
    begin_value(json, key);
    fputs(value ? "true" : "false", json->file);
}

void mp_json_put_null(struct mp_json_out *json, const char *key)
{
    begin_value(json, key);
    fputs("null", json->file);
}

const char *mp_format_f64(double value, char out[MP_F64_BYTES])
{
    char *from, *to;

    if (fabs(value) < 1e15 && value == (double)(int64_t)value) {
        snprintf(out, MP_F64_BYTES, "%" PRId64, (int64_t)value);
        return out;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, MP_F64_BYTES, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            break;
    }
    if (!isfinite(value))
        return out;
    /* What is neither digit, sign nor exponent is the locale's decimal point, maybe many bytes. */
    for (from = to = out; *from != '\0'; from++) {
        if (strchr("0123456789+-e", *from) != NULL)
            *to++ = *from;
        else if (to == out || to[-1] != '.')
            *to++ = '.';
    }
    mp_assert((size_t)(to - out) < MP_F64_BYTES);
    *to = '\0';
    return out;
}
