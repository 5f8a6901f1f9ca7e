#ifndef MP_OUTPUT_JSON_OUT_H
#define MP_OUTPUT_JSON_OUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/*
 * A writer of JSON text for reports, traces and timelines. It keeps track of commas and nesting and
 * escapes strings; the result is valid JSON whatever the values are. It allocates nothing. Write
 * errors stay in the FILE (ferror); its owner checks them once at the end.
 *
 * Inside an object every value has a key; inside an array and at the top `key` is NULL.
 */
#define MP_JSON_OUT_DEPTH_MAX 32

struct mp_json_out {
    FILE *file;
    bool pretty; /* line breaks and two spaces per level */
    unsigned depth;
    bool is_array[MP_JSON_OUT_DEPTH_MAX];
    bool has_items[MP_JSON_OUT_DEPTH_MAX];
};

void mp_json_begin(struct mp_json_out *json, FILE *file, bool pretty);

/* Ends the text with a newline. Every object and array must have been ended. */
void mp_json_end(struct mp_json_out *json);

void mp_json_object_begin(struct mp_json_out *json, const char *key);
void mp_json_object_end(struct mp_json_out *json);
void mp_json_array_begin(struct mp_json_out *json, const char *key);
void mp_json_array_end(struct mp_json_out *json);

/* NULL is written as null. Bytes that are not UTF-8 become U+FFFD. */
void mp_json_put_string(struct mp_json_out *json, const char *key, const char *value);
void mp_json_put_string_n(struct mp_json_out *json, const char *key, const char *value,
                          size_t bytes);

void mp_json_put_u64(struct mp_json_out *json, const char *key, uint64_t value);
void mp_json_put_i64(struct mp_json_out *json, const char *key, int64_t value);

/* The shortest text that reads back as the same number; NaN and infinities are null. */
void mp_json_put_f64(struct mp_json_out *json, const char *key, double value);

/* thousandths / 1000 with three decimals: microseconds from nanoseconds, without rounding. */
void mp_json_put_milli(struct mp_json_out *json, const char *key, uint64_t thousandths);

void mp_json_put_bool(struct mp_json_out *json, const char *key, bool value);
void mp_json_put_null(struct mp_json_out *json, const char *key);

#define MP_F64_BYTES 40

/* The shortest decimal text that reads back as `value`, in any locale. Returns `out`. */
const char *mp_format_f64(double value, char out[MP_F64_BYTES]);

#endif
