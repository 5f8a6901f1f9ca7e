/*
 * Texts whose every byte is the template's or its user's: joined, cut, searched, shown.
 */
#include <math.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/text/jinja/jinja_int.h"

#define REPR_DEPTH_MAX 100u

/* ---- growing texts */

static bool make_room(struct mp_jinja_buffer *b, size_t count)
{
    const size_t capacity = (b->count + count) * 2 + 64;
    char *bytes;
    uint8_t *foreign;

    if (b->m->status != MP_OK)
        return false;
    if (b->capacity - b->count >= count)
        return true;
    bytes = mp_jinja_alloc(b->m, capacity);
    foreign = mp_jinja_alloc(b->m, capacity);
    if (bytes == NULL || foreign == NULL)
        return false;
    if (b->count > 0) {
        memcpy(bytes, b->bytes, b->count);
        memcpy(foreign, b->foreign, b->count);
    }
    b->bytes = bytes;
    b->foreign = foreign;
    b->capacity = capacity;
    return true;
}

void mp_jinja_add(struct mp_jinja_buffer *b, const char *bytes, const uint8_t *foreign,
                  size_t count)
{
    if (count == 0 || !make_room(b, count))
        return;
    memcpy(b->bytes + b->count, bytes, count);
    if (foreign != NULL)
        memcpy(b->foreign + b->count, foreign, count);
    else
        memset(b->foreign + b->count, 0, count);
    b->count += count;
}

void mp_jinja_add_own(struct mp_jinja_buffer *b, const char *text)
{
    mp_jinja_add(b, text, NULL, strlen(text));
}

void mp_jinja_add_text(struct mp_jinja_buffer *b, const struct mp_jinja_text *text)
{
    mp_jinja_add(b, text->bytes, text->foreign, text->count);
}

struct mp_jinja_value mp_jinja_built(struct mp_jinja_buffer *b)
{
    const struct mp_jinja_text text = { b->bytes != NULL ? b->bytes : "", b->foreign, b->count };

    return mp_jinja_part(b->m, &text, 0, text.count);
}

/* ---- values as texts */

void mp_jinja_add_real(struct mp_jinja_buffer *b, double real)
{
    char text[40];
    int precision = 1;
    long exponent;

    if (isnan(real) || isinf(real)) {
        mp_jinja_add_own(b, isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
        return;
    }
    do {
        snprintf(text, sizeof(text), "%.*e", precision - 1, real);
    } while (strtod(text, NULL) != real && precision++ < 17);
    exponent = strtol(strchr(text, 'e') + 1, NULL, 10);
    if (exponent >= -4 && exponent < 16) {
        const int behind = precision - 1 - (int)exponent;

        snprintf(text, sizeof(text), "%.*f", behind > 1 ? behind : 1, real);
    }
    mp_jinja_add_own(b, text);
}

/* As Python's repr(): in ' unless there is a ' and no ". */
static void add_quoted(struct mp_jinja_buffer *b, const struct mp_jinja_text *text)
{
    const bool single = text->count > 0 && memchr(text->bytes, '\'', text->count) != NULL;
    const bool twice = text->count > 0 && memchr(text->bytes, '"', text->count) != NULL;
    const char quote[2] = { single && !twice ? '"' : '\'', '\0' };

    mp_jinja_add_own(b, quote);
    for (size_t i = 0; i < text->count; i++) {
        const char c = text->bytes[i];
        char escape[8];

        if (c == '\n' || c == '\t' || c == '\r')
            mp_jinja_add_own(b, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r");
        else if ((uint8_t)c < 0x20 || c == 0x7f) {
            snprintf(escape, sizeof(escape), "\\x%02x", (unsigned)c);
            mp_jinja_add_own(b, escape);
        } else {
            if (c == '\\' || c == quote[0])
                mp_jinja_add_own(b, "\\");
            mp_jinja_add(b, text->bytes + i, text->foreign != NULL ? text->foreign + i : NULL, 1);
        }
    }
    mp_jinja_add_own(b, quote);
}

static void add_shown(struct mp_jinja_buffer *b, struct mp_jinja_value v, unsigned depth);

static void add_list(struct mp_jinja_buffer *b, const struct mp_jinja_list *list, unsigned depth)
{
    mp_jinja_add_own(b, list->is_tuple ? "(" : "[");
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0)
            mp_jinja_add_own(b, ", ");
        add_shown(b, list->items[i], depth + 1);
    }
    if (list->is_tuple)
        mp_jinja_add_own(b, list->count == 1 ? ",)" : ")");
    else
        mp_jinja_add_own(b, "]");
}

static void add_dict(struct mp_jinja_buffer *b, const struct mp_jinja_dict *dict, unsigned depth)
{
    mp_jinja_add_own(b, "{");
    for (size_t i = 0; i < dict->count; i++) {
        if (i > 0)
            mp_jinja_add_own(b, ", ");
        add_shown(b, dict->entries[i].key, depth + 1);
        mp_jinja_add_own(b, ": ");
        add_shown(b, dict->entries[i].value, depth + 1);
    }
    mp_jinja_add_own(b, "}");
}

static void add_shown(struct mp_jinja_buffer *b, struct mp_jinja_value v, unsigned depth)
{
    if (depth > REPR_DEPTH_MAX) {
        mp_jinja_fail(b->m, "a value is too deep", NULL, 0);
        return;
    }
    switch (v.kind) {
    case MP_JINJA_TEXT: add_quoted(b, v.as.text); break;
    case MP_JINJA_LIST: add_list(b, v.as.list, depth); break;
    case MP_JINJA_DICT: add_dict(b, v.as.dict, depth); break;
    case MP_JINJA_UNDEFINED: mp_jinja_add_own(b, "Undefined"); break;
    default: mp_jinja_add_value(b, v); break;
    }
}

void mp_jinja_add_value(struct mp_jinja_buffer *b, struct mp_jinja_value v)
{
    char number[32];

    switch (v.kind) {
    case MP_JINJA_UNDEFINED: break;
    case MP_JINJA_NONE: mp_jinja_add_own(b, "None"); break;
    case MP_JINJA_BOOL: mp_jinja_add_own(b, v.as.integer != 0 ? "True" : "False"); break;
    case MP_JINJA_INT:
        snprintf(number, sizeof(number), "%" PRId64, v.as.integer);
        mp_jinja_add_own(b, number);
        break;
    case MP_JINJA_REAL: mp_jinja_add_real(b, v.as.real); break;
    case MP_JINJA_TEXT: mp_jinja_add_text(b, v.as.text); break;
    case MP_JINJA_LIST:
    case MP_JINJA_DICT: add_shown(b, v, 0); break;
    default: mp_jinja_fail(b->m, "it prints a function", NULL, 0);
    }
}

const struct mp_jinja_text *mp_jinja_string(struct mp_jinja_memory *m, struct mp_jinja_value v)
{
    static const struct mp_jinja_text none = { "", NULL, 0 };
    struct mp_jinja_buffer b = { .m = m };

    if (v.kind != MP_JINJA_TEXT) {
        mp_jinja_add_value(&b, v);
        v = mp_jinja_built(&b);
    }
    return v.kind == MP_JINJA_TEXT ? v.as.text : &none;
}

/* ---- characters */

size_t mp_jinja_char(const struct mp_jinja_text *text, size_t at)
{
    size_t bytes = 1;

    while (at + bytes < text->count && ((uint8_t)text->bytes[at + bytes] & 0xc0) == 0x80 &&
           bytes < 4)
        bytes++;
    return bytes;
}

size_t mp_jinja_char_before(const struct mp_jinja_text *text, size_t at)
{
    size_t begin = at - 1;

    while (begin > 0 && at - begin < 4 && ((uint8_t)text->bytes[begin] & 0xc0) == 0x80)
        begin--;
    return begin;
}

size_t mp_jinja_search(const struct mp_jinja_text *text, const struct mp_jinja_text *what,
                       size_t from)
{
    const char *hit;

    if (from > text->count)
        return SIZE_MAX;
    if (what->count == 0)
        return from;
    hit = from < text->count
              ? memmem(text->bytes + from, text->count - from, what->bytes, what->count)
              : NULL;
    return hit != NULL ? (size_t)(hit - text->bytes) : SIZE_MAX;
}

static bool is_blank(const char *at, size_t bytes)
{
    static const char *const wide[] = { "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80",
                                        "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
                                        "\xe2\x81\x9f", "\xe3\x80\x80" };

    if (bytes == 1)
        return (*at >= '\t' && *at <= '\r') || (*at >= 0x1c && *at <= ' ');
    if (bytes == 3 && memcmp(at, "\xe2\x80", 2) == 0 && (uint8_t)at[2] >= 0x80 &&
        (uint8_t)at[2] <= 0x8a)
        return true;
    for (size_t i = 0; i < sizeof(wide) / sizeof(*wide); i++) {
        if (strlen(wide[i]) == bytes && memcmp(at, wide[i], bytes) == 0)
            return true;
    }
    return false;
}

static bool is_one_of(const struct mp_jinja_text *text, size_t at, size_t bytes,
                      const struct mp_jinja_text *chars)
{
    if (chars == NULL)
        return is_blank(text->bytes + at, bytes);
    for (size_t i = 0; i < chars->count; i += mp_jinja_char(chars, i)) {
        if (mp_jinja_char(chars, i) == bytes &&
            memcmp(chars->bytes + i, text->bytes + at, bytes) == 0)
            return true;
    }
    return false;
}

struct mp_jinja_value mp_jinja_strip(struct mp_jinja_memory *m, const struct mp_jinja_text *text,
                                     const struct mp_jinja_text *chars, bool left, bool right)
{
    size_t begin = 0, end = text->count;

    while (left && begin < end && is_one_of(text, begin, mp_jinja_char(text, begin), chars))
        begin += mp_jinja_char(text, begin);
    while (right && end > begin) {
        const size_t at = mp_jinja_char_before(text, end);

        if (at < begin || !is_one_of(text, at, end - at, chars))
            break;
        end = at;
    }
    return mp_jinja_part(m, text, begin, end);
}

struct mp_jinja_value mp_jinja_replace(struct mp_jinja_memory *m, const struct mp_jinja_text *text,
                                       const struct mp_jinja_text *old,
                                       const struct mp_jinja_text *with, int64_t most)
{
    struct mp_jinja_buffer b = { .m = m };
    size_t from = 0, hit;

    if (old->count == 0)
        mp_jinja_fail(m, "it replaces an empty text", NULL, 0);
    while (m->status == MP_OK && most-- != 0 &&
           (hit = mp_jinja_search(text, old, from)) != SIZE_MAX) {
        mp_jinja_add(&b, text->bytes + from, text->foreign != NULL ? text->foreign + from : NULL,
                     hit - from);
        mp_jinja_add_text(&b, with);
        from = hit + old->count;
    }
    mp_jinja_add(&b, text->bytes + from, text->foreign != NULL ? text->foreign + from : NULL,
                 text->count - from);
    return mp_jinja_built(&b);
}

struct mp_jinja_value mp_jinja_recase(struct mp_jinja_memory *m, const struct mp_jinja_text *text,
                                      enum mp_jinja_case how)
{
    struct mp_jinja_buffer b = { .m = m };
    bool inside = false;

    mp_jinja_add_text(&b, text);
    for (size_t i = 0; i < text->count && m->status == MP_OK; i++) {
        char *c = &b.bytes[i];
        const bool small = *c >= 'a' && *c <= 'z', large = *c >= 'A' && *c <= 'Z';
        const bool raise = how == MP_JINJA_UPPER || (how == MP_JINJA_TITLE && !inside) ||
                           (how == MP_JINJA_CAPITAL && i == 0);

        if (raise && small)
            *c = (char)(*c - 'a' + 'A');
        else if (!raise && large)
            *c = (char)(*c - 'A' + 'a');
        inside = small || large || (uint8_t)*c >= 0x80;
    }
    return mp_jinja_built(&b);
}
