/*
 * Calls from the text between the words that enclose them. Models come close to the form of their
 * template without keeping to each blank of it, so blanks are free here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/calls/calls_int.h"

static struct mp_slice slice_of(const char *text)
{
    return (struct mp_slice){ text, strlen(text) };
}

static char *copy(struct mp_slice slice)
{
    char *text = malloc(slice.bytes + 1);

    if (text != NULL) {
        memcpy(text, slice.text, slice.bytes);
        text[slice.bytes] = '\0';
    }
    return text;
}

enum mp_status mp_calls_add(struct mp_reply *reply, struct mp_slice name, struct mp_slice arguments,
                            bool *good_p)
{
    struct mp_call call = { .name = NULL };
    struct mp_slice json;

    *good_p = name.bytes > 0 && reply->call_count < MP_CALLS_MAX &&
              mp_slice_json(&arguments, &json) && json.text[0] == '{';
    if (!*good_p)
        return MP_OK;
    if (reply->calls == NULL)
        reply->calls = calloc(MP_CALLS_MAX, sizeof(*reply->calls));
    if (reply->calls == NULL)
        return mp_fail_no_memory("a call", MP_CALLS_MAX * sizeof(*reply->calls));
    call.name = copy(name);
    call.arguments = copy(json);
    if (call.name == NULL || call.arguments == NULL) {
        free(call.name);
        free(call.arguments);
        return mp_fail_no_memory("a call", name.bytes + json.bytes);
    }
    reply->calls[reply->call_count++] = call;
    return MP_OK;
}

/* ---- objects */

/* The name, and the arguments if they are a text with an object in it, are decoded. */
static enum mp_status read_object(struct mp_reply *reply, struct mp_slice object, bool *good_p)
{
    json_t *json = json_loadb(object.text, object.bytes, 0, NULL);
    const char *name = json_string_value(json_object_get(json, "name"));
    struct mp_slice arguments = slice_of("{}");
    json_t *inner = NULL;
    enum mp_status status = MP_OK;

    if (mp_slice_member(object, "arguments", &arguments) ||
        mp_slice_member(object, "parameters", &arguments)) {
        inner = json_loadb(arguments.text, arguments.bytes, JSON_DECODE_ANY, NULL);
        if (json_is_string(inner))
            arguments = slice_of(json_string_value(inner));
    }
    *good_p = false;
    if (name != NULL)
        status = mp_calls_add(reply, slice_of(name), arguments, good_p);
    json_decref(inner);
    json_decref(json);
    return status;
}

/* LFM2 writes calls as Python does, unless it was asked for JSON. */
static enum mp_status read_objects(struct mp_reply *reply, struct mp_slice body, bool *good_p)
{
    const bool array = mp_slice_skip(&body, "[");
    enum mp_status status = MP_OK;
    struct mp_slice object;

    do {
        *good_p = mp_slice_json(&body, &object) && object.text[0] == '{';
        if (*good_p)
            status = read_object(reply, object, good_p);
        else if (reply->style->kind == MP_CALLS_PYTHON)
            status = mp_calls_read_literals(reply, "(=)", &body, good_p);
    } while (status == MP_OK && *good_p && array && mp_slice_skip(&body, ","));
    /* LFM2's belongs to the word that closes. */
    if (array && *good_p)
        *good_p = mp_slice_skip(&body, "]") || reply->style->kind == MP_CALLS_PYTHON;
    *good_p = *good_p && mp_slice_trim(body).bytes == 0;
    return status;
}

/* ---- names before arguments */

struct mp_slice mp_calls_take_name(struct mp_slice *body)
{
    struct mp_slice name;

    (void)mp_slice_skip(body, "");
    name = (struct mp_slice){ body->text, 0 };
    while (name.bytes < body->bytes && mp_calls_is_name(name.text[name.bytes]))
        name.bytes++;
    body->text += name.bytes;
    body->bytes -= name.bytes;
    return name;
}

/* What stands between a name and its arguments may say more, as the number of a call. */
static enum mp_status read_named(struct mp_reply *reply, struct mp_slice *body, bool *good_p)
{
    const struct mp_calls_style *style = reply->style;
    const struct mp_slice name = mp_calls_take_name(body);
    const char *brace = memchr(body->text, '{', body->bytes);
    struct mp_slice json;

    *good_p = brace != NULL;
    if (!*good_p)
        return MP_OK;
    body->bytes -= (size_t)(brace - body->text);
    body->text = brace;
    *good_p = mp_slice_json(body, &json);
    (void)mp_slice_skip(body, style->text[MP_CALLS_END]);
    return *good_p ? mp_calls_add(reply, name, json, good_p) : MP_OK;
}

/* ---- tagged arguments */

/* Whether the tool says that this argument is a text. */
static bool is_text(const struct mp_reply *reply, struct mp_slice name, struct mp_slice key)
{
    const json_t *tool;
    size_t i;

    json_array_foreach(reply->tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const char *its = json_string_value(json_object_get(function, "name"));
        json_t *all = json_object_get(json_object_get(function, "parameters"), "properties");
        const char *type =
            json_string_value(json_object_get(json_object_getn(all, key.text, key.bytes), "type"));

        if (its != NULL && strlen(its) == name.bytes && memcmp(its, name.text, name.bytes) == 0)
            return type != NULL && strcmp(type, "string") == 0;
    }
    return false;
}

enum mp_status mp_calls_append_text(struct mp_calls_buffer *out, struct mp_slice text)
{
    json_t *string = json_stringn(text.text, text.bytes);
    char *quoted = string != NULL ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    enum mp_status status = quoted != NULL ? mp_calls_append(out, quoted, strlen(quoted))
                                           : mp_fail_no_memory("a call", text.bytes);

    free(quoted);
    json_decref(string);
    return status;
}

/* jansson takes a 0 behind a number or a word for the end. */
static enum mp_status append_value(struct mp_calls_buffer *out, struct mp_slice value, bool text)
{
    const struct mp_slice bare = mp_slice_trim(value);
    json_t *json = text || memchr(bare.text, '\0', bare.bytes) != NULL
                       ? NULL
                       : json_loadb(bare.text, bare.bytes, JSON_DECODE_ANY, NULL);
    enum mp_status status = json != NULL ? mp_calls_append(out, bare.text, bare.bytes)
                                         : mp_calls_append_text(out, value);

    json_decref(json);
    return status;
}

/* Up to `word`, which is skipped; false: it does not come. Ends of lines that the style writes
 * around a value are not the value's. */
static bool take_until(struct mp_slice *body, const char *word, struct mp_slice *taken)
{
    const struct mp_slice bare = mp_slice_trim(slice_of(word));
    const char *at = memmem(body->text, body->bytes, bare.text, bare.bytes);

    if (at == NULL)
        return false;
    *taken = (struct mp_slice){ body->text, (size_t)(at - body->text) };
    if (word[0] == '\n' && taken->bytes > 0 && taken->text[taken->bytes - 1] == '\n')
        taken->bytes--;
    body->bytes -= taken->bytes;
    body->text = taken->text + taken->bytes;
    return mp_slice_skip(body, word);
}

/* The key's end and the value's beginning: one word, or two with blanks between them. */
static bool take_key(struct mp_slice *body, const char *word, struct mp_slice *key)
{
    const char *second = strstr(word, "\n<");
    char first[32];
    bool good;

    snprintf(first, sizeof(first), "%.*s", second != NULL ? (int)(second - word) : 31, word);
    good = take_until(body, first, key) && (second == NULL || mp_slice_skip(body, second));
    if (good)
        *key = mp_slice_trim(*key);
    if (good && second == NULL && word[strlen(word) - 1] == '\n' && body->bytes > 0 &&
        body->text[0] == '\n') {
        body->text++;
        body->bytes--;
    }
    return good;
}

/* Whether the next value is marked as JSON. */
static bool says_json(struct mp_slice body, const char *const *text)
{
    const char *json = text[MP_CALLS_JSON], *other = text[MP_CALLS_VALUE];
    const char *at = json != NULL ? memmem(body.text, body.bytes, json, strlen(json)) : NULL;
    const char *text_at = memmem(body.text, body.bytes, other, strlen(other));

    return at != NULL && (text_at == NULL || at < text_at);
}

static enum mp_status read_tags(struct mp_reply *reply, struct mp_slice name, struct mp_slice *body,
                                struct mp_calls_buffer *out, bool *good_p)
{
    const char *const *text = reply->style->text;
    enum mp_status status = mp_calls_append(out, "{", 1);

    *good_p = true;
    while (status == MP_OK && mp_slice_skip(body, text[MP_CALLS_KEY])) {
        const bool json = says_json(*body, text);
        struct mp_slice key, value;

        *good_p = take_key(body, text[json ? MP_CALLS_JSON : MP_CALLS_VALUE], &key) &&
                  take_until(body, text[json ? MP_CALLS_JSON_END : MP_CALLS_VALUE_END], &value);
        if (!*good_p)
            return MP_OK;
        if (out->bytes > 1)
            status = mp_calls_append(out, ", ", 2);
        if (status == MP_OK)
            status = mp_calls_append_text(out, key);
        if (status == MP_OK)
            status = mp_calls_append(out, ": ", 2);
        if (status == MP_OK)
            status = append_value(out, value,
                                  text[MP_CALLS_JSON] != NULL ? !json : is_text(reply, name, key));
    }
    return status == MP_OK ? mp_calls_append(out, "}", 1) : status;
}

static enum mp_status read_tagged(struct mp_reply *reply, struct mp_slice *body, bool *good_p)
{
    const char *const *text = reply->style->text;
    const struct mp_slice name = mp_calls_take_name(body);
    struct mp_calls_buffer out = { .data = NULL };
    enum mp_status status = MP_OK;

    *good_p = mp_slice_skip(body, text[MP_CALLS_ARGUMENTS]);
    if (*good_p)
        status = read_tags(reply, name, body, &out, good_p);
    if (status == MP_OK && *good_p)
        *good_p = mp_slice_skip(body, text[MP_CALLS_END]);
    if (status == MP_OK && *good_p)
        status = mp_calls_add(reply, name, (struct mp_slice){ out.data, out.bytes }, good_p);
    free(out.data);
    return status;
}

/* ---- all */

static enum mp_status read_call(struct mp_reply *reply, struct mp_slice *body, bool *good_p)
{
    switch (reply->style->kind) {
    case MP_CALLS_NAMED: return read_named(reply, body, good_p);
    case MP_CALLS_BARE: return mp_calls_read_literals(reply, "{:}", body, good_p);
    default: return read_tagged(reply, body, good_p);
    }
}

enum mp_status mp_calls_read(struct mp_reply *reply, struct mp_slice body, bool *good_p)
{
    const struct mp_calls_style *style = reply->style;
    const size_t before = reply->call_count;
    enum mp_status status = MP_OK;

    if (style->kind == MP_CALLS_OBJECT || style->kind == MP_CALLS_PYTHON) {
        status = read_objects(reply, body, good_p);
    } else {
        do {
            *good_p = mp_slice_skip(&body, style->text[MP_CALLS_NAME]);
            if (*good_p)
                status = read_call(reply, &body, good_p);
            (void)mp_slice_skip(&body, style->text[MP_CALLS_NEXT]);
        } while (status == MP_OK && *good_p && mp_slice_trim(body).bytes > 0);
    }
    while (reply->call_count > before && (status != MP_OK || !*good_p)) {
        free(reply->calls[--reply->call_count].name);
        free(reply->calls[reply->call_count].arguments);
    }
    return status;
}
