/*
 * Values from JSON, and as JSON in the form of Python's json.dumps().
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/text/jinja/jinja_int.h"

#define DEPTH_MAX 100u

static struct mp_jinja_value copy_text(struct mp_jinja_memory *m, const char *bytes, size_t count,
                                       bool foreign)
{
    struct mp_jinja_buffer b = { .m = m };

    mp_jinja_add(&b, bytes, NULL, count);
    if (foreign && b.foreign != NULL && m->status == MP_OK)
        memset(b.foreign, 1, count);
    return mp_jinja_built(&b);
}

static struct mp_jinja_value from_json(struct mp_jinja_memory *m, const json_t *json, bool foreign,
                                       unsigned depth);

static struct mp_jinja_value from_object(struct mp_jinja_memory *m, const json_t *json,
                                         bool foreign, unsigned depth)
{
    const struct mp_jinja_value dict = mp_jinja_dict(m, MP_JINJA_DICT);
    json_t *all = (json_t *)json, *item;
    const char *key;
    size_t bytes;

    if (dict.kind != MP_JINJA_DICT)
        return dict;
    json_object_keylen_foreach(all, key, bytes, item)
    {
        mp_jinja_put(m, dict.as.dict, copy_text(m, key, bytes, foreign),
                     from_json(m, item, foreign, depth + 1));
    }
    return dict;
}

static struct mp_jinja_value from_array(struct mp_jinja_memory *m, const json_t *json, bool foreign,
                                        unsigned depth)
{
    const struct mp_jinja_value list = mp_jinja_list(m);
    const json_t *item;
    size_t i;

    if (list.kind != MP_JINJA_LIST)
        return list;
    json_array_foreach(json, i, item)
        mp_jinja_push(m, list.as.list, from_json(m, item, foreign, depth + 1));
    return list;
}

static struct mp_jinja_value from_json(struct mp_jinja_memory *m, const json_t *json, bool foreign,
                                       unsigned depth)
{
    if (depth > DEPTH_MAX) {
        mp_jinja_fail(m, "a value is too deep", NULL, 0);
        return mp_jinja_undefined;
    }
    switch (json_typeof(json)) {
    case JSON_OBJECT: return from_object(m, json, foreign, depth);
    case JSON_ARRAY: return from_array(m, json, foreign, depth);
    case JSON_STRING:
        return copy_text(m, json_string_value(json), json_string_length(json), foreign);
    case JSON_INTEGER: return mp_jinja_int(json_integer_value(json));
    case JSON_REAL: return mp_jinja_real(json_real_value(json));
    case JSON_NULL: return mp_jinja_none;
    default: return mp_jinja_bool(json_is_true(json));
    }
}

struct mp_jinja_value mp_jinja_from_json(struct mp_jinja_memory *m, const json_t *json,
                                         bool foreign)
{
    return from_json(m, json, foreign, 0);
}

/* ---- to JSON */

/* The code point of the character at `at`; what is no UTF-8 is U+FFFD. */
static uint32_t code_point(const struct mp_jinja_text *text, size_t at, size_t bytes)
{
    const uint8_t *const c = (const uint8_t *)text->bytes + at;

    if (bytes == 2)
        return (c[0] & 0x1fu) << 6 | (c[1] & 0x3fu);
    if (bytes == 3)
        return (c[0] & 0x0fu) << 12 | (c[1] & 0x3fu) << 6 | (c[2] & 0x3fu);
    if (bytes == 4)
        return (c[0] & 0x07u) << 18 | (c[1] & 0x3fu) << 12 | (c[2] & 0x3fu) << 6 | (c[3] & 0x3fu);
    return c[0] < 0x80 ? c[0] : 0xfffd;
}

static void add_escape(struct mp_jinja_buffer *b, uint32_t code, uint8_t foreign)
{
    static const char names[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    const char *const name = code != 0 && code < 0x80 ? strchr(names, (int)code) : NULL;
    uint8_t marks[16];
    char text[16];

    memset(marks, foreign, sizeof(marks));
    if (name != NULL)
        snprintf(text, sizeof(text), "\\%c", letters[name - names]);
    else if (code < 0x10000)
        snprintf(text, sizeof(text), "\\u%04x", code);
    else
        snprintf(text, sizeof(text), "\\u%04x\\u%04x", 0xd7c0 + (code >> 10),
                 0xdc00 + (code & 0x3ff));
    mp_jinja_add(b, text, marks, strlen(text));
}

static void add_string(struct mp_jinja_buffer *b, const struct mp_jinja_text *text, bool ascii)
{
    mp_jinja_add_own(b, "\"");
    for (size_t at = 0, bytes; at < text->count; at += bytes) {
        const uint8_t c = (uint8_t)text->bytes[at];
        const uint8_t *const foreign = text->foreign != NULL ? text->foreign + at : NULL;

        bytes = mp_jinja_char(text, at);
        if (c < 0x20 || c == '"' || c == '\\' || (ascii && c >= 0x80))
            add_escape(b, code_point(text, at, bytes), foreign != NULL ? *foreign : 0);
        else
            mp_jinja_add(b, text->bytes + at, foreign, bytes);
    }
    mp_jinja_add_own(b, "\"");
}

static void add_line(struct mp_jinja_buffer *b, const struct mp_jinja_json_form *form,
                     unsigned depth)
{
    if (form->indent < 0)
        return;
    mp_jinja_add_own(b, "\n");
    for (int64_t i = 0; i < form->indent * depth && b->m->status == MP_OK; i++)
        mp_jinja_add_own(b, " ");
}

static void add_list(struct mp_jinja_buffer *b, const struct mp_jinja_list *list,
                     const struct mp_jinja_json_form *form, unsigned depth)
{
    mp_jinja_add_own(b, "[");
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0)
            mp_jinja_add_text(b, form->item);
        add_line(b, form, depth + 1);
        mp_jinja_add_json(b, list->items[i], form, depth + 1);
    }
    if (list->count > 0)
        add_line(b, form, depth);
    mp_jinja_add_own(b, "]");
}

/* The entry that comes after `last` in the order of keys; NULL: none. */
static const struct mp_jinja_entry *next_entry(struct mp_jinja_memory *m,
                                               const struct mp_jinja_dict *dict,
                                               const struct mp_jinja_entry *last)
{
    const struct mp_jinja_entry *next = NULL;

    for (size_t i = 0; i < dict->count; i++) {
        const struct mp_jinja_entry *e = &dict->entries[i];

        if ((last == NULL || mp_jinja_compare(m, e->key, last->key) > 0) &&
            (next == NULL || mp_jinja_compare(m, e->key, next->key) < 0))
            next = e;
    }
    return next;
}

static void add_dict(struct mp_jinja_buffer *b, const struct mp_jinja_dict *dict,
                     const struct mp_jinja_json_form *form, unsigned depth)
{
    const struct mp_jinja_entry *e = NULL;

    mp_jinja_add_own(b, "{");
    for (size_t i = 0; i < dict->count && b->m->status == MP_OK; i++) {
        e = form->sorted ? next_entry(b->m, dict, e) : &dict->entries[i];
        if (e == NULL)
            break;
        if (i > 0)
            mp_jinja_add_text(b, form->item);
        add_line(b, form, depth + 1);
        add_string(b, mp_jinja_string(b->m, e->key), form->ascii);
        mp_jinja_add_text(b, form->key);
        mp_jinja_add_json(b, e->value, form, depth + 1);
    }
    if (dict->count > 0)
        add_line(b, form, depth);
    mp_jinja_add_own(b, "}");
}

void mp_jinja_add_json(struct mp_jinja_buffer *b, struct mp_jinja_value v,
                       const struct mp_jinja_json_form *form, unsigned depth)
{
    if (depth > DEPTH_MAX) {
        mp_jinja_fail(b->m, "a value is too deep", NULL, 0);
        return;
    }
    switch (v.kind) {
    case MP_JINJA_NONE: mp_jinja_add_own(b, "null"); break;
    case MP_JINJA_BOOL: mp_jinja_add_own(b, v.as.integer != 0 ? "true" : "false"); break;
    case MP_JINJA_INT:
    case MP_JINJA_REAL: mp_jinja_add_value(b, v); break;
    case MP_JINJA_TEXT: add_string(b, v.as.text, form->ascii); break;
    case MP_JINJA_LIST: add_list(b, v.as.list, form, depth); break;
    case MP_JINJA_DICT: add_dict(b, v.as.dict, form, depth); break;
    default: mp_jinja_fail(b->m, "it makes JSON of what is none", NULL, 0);
    }
}
