/*
 * JSON as a model wrote it: parts of it are handed on as they are, numbers to the digit.
 */

#include <ctype.h>
#include <string.h>

#include "engine/text/calls/calls_int.h"

bool mp_calls_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool mp_calls_is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

struct mp_slice mp_slice_trim(struct mp_slice slice)
{
    while (slice.bytes > 0 && mp_calls_is_blank(slice.text[0])) {
        slice.text++;
        slice.bytes--;
    }
    while (slice.bytes > 0 && mp_calls_is_blank(slice.text[slice.bytes - 1]))
        slice.bytes--;
    return slice;
}

bool mp_slice_skip(struct mp_slice *slice, const char *word)
{
    const struct mp_slice wanted = mp_slice_trim((struct mp_slice){ word, strlen(word) });
    size_t at = 0;

    while (at < slice->bytes && mp_calls_is_blank(slice->text[at]))
        at++;
    if (slice->bytes - at < wanted.bytes ||
        memcmp(slice->text + at, wanted.text, wanted.bytes) != 0)
        return false;
    slice->text += at + wanted.bytes;
    slice->bytes -= at + wanted.bytes;
    return true;
}

/* The end of the JSON value that begins here; `at` itself if it is none. */
static size_t json_end(struct mp_slice s, size_t at)
{
    const size_t flags =
        JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK;
    json_error_t error;
    json_t *value = at < s.bytes ? json_loadb(s.text + at, s.bytes - at, flags, &error) : NULL;

    if (value == NULL)
        return at;
    json_decref(value);
    return at + (size_t)error.position;
}

bool mp_slice_json(struct mp_slice *text, struct mp_slice *json)
{
    *text = mp_slice_trim(*text);
    if (text->bytes == 0 || (text->text[0] != '{' && text->text[0] != '['))
        return false;
    *json = (struct mp_slice){ text->text, json_end(*text, 0) };
    text->text += json->bytes;
    text->bytes -= json->bytes;
    return json->bytes > 0;
}

static size_t skip_to(struct mp_slice s, size_t at, char c)
{
    while (at < s.bytes && s.text[at] != c)
        at++;
    return at + 1;
}

bool mp_slice_member(struct mp_slice object, const char *key, struct mp_slice *value)
{
    size_t at = skip_to(object, 0, '"') - 1;

    while (at < object.bytes) {
        const size_t end = json_end(object, at);
        const bool found =
            end - at == strlen(key) + 2 && memcmp(object.text + at + 1, key, strlen(key)) == 0;
        size_t from = skip_to(object, end, ':');

        while (from < object.bytes && mp_calls_is_blank(object.text[from]))
            from++;
        at = json_end(object, from);
        if (found) {
            *value = mp_slice_trim((struct mp_slice){ object.text + from, at - from });
            return true;
        }
        at = skip_to(object, at, '"') - 1;
    }
    return false;
}
