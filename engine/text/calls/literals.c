/*
 * Arguments that are no JSON, as JSON: LFM2 writes calls as Python does, name(key='text', n=3), and
 * Gemma 4 objects whose keys are bare and whose texts stand in quotes of their own. What one of
 * them has and the other has not is taken from both.
 */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/text/calls/calls_int.h"

#define DEPTH_MAX 32

static bool skip_char(struct mp_slice *text, char c)
{
    const char word[2] = { c, '\0' };

    return mp_slice_skip(text, word);
}

/* ---- texts */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* What stands behind a backslash: a letter, or a code in hexadecimal; what is neither keeps its
 * backslash. Returns how many bytes of `in` that was. */
static size_t unescape(struct mp_slice in, char out[4], size_t *out_bytes)
{
    static const char letters[] = "nrtbf\\'\"/", meant[] = "\n\r\t\b\f\\'\"/";
    const char *known = in.bytes > 0 ? strchr(letters, in.text[0]) : NULL;
    const size_t digits = in.bytes > 0 && in.text[0] == 'u' ? 4 : 2;
    unsigned code = 0;
    size_t i;

    out[0] = '\\';
    *out_bytes = 1;
    if (known != NULL && *known != '\0') {
        out[0] = meant[known - letters];
        return 1;
    }
    if (in.bytes <= digits || (in.text[0] != 'u' && in.text[0] != 'x'))
        return 0;
    for (i = 1; i <= digits && hex_digit(in.text[i]) >= 0; i++)
        code = code * 16 + (unsigned)hex_digit(in.text[i]);
    if (i <= digits || code == 0 || (code >= 0xd800 && code < 0xe000))
        return 0;
    *out_bytes = (size_t)utf8proc_encode_char((int32_t)code, (unsigned char *)out);
    return digits + 1;
}

/* A text in quotes of Python, with its backslashes. */
static enum mp_status read_quoted(struct mp_slice *text, char quote, struct mp_calls_buffer *out,
                                  bool *good_p)
{
    struct mp_calls_buffer plain = { .data = NULL };
    enum mp_status status = mp_calls_append(&plain, "", 0);
    size_t at = 0;

    while (status == MP_OK && at < text->bytes && text->text[at] != quote) {
        const struct mp_slice behind = { text->text + at + 1, text->bytes - at - 1 };
        char bytes[4] = { text->text[at] };
        size_t count = 1, used = 0;

        if (text->text[at] == '\\')
            used = unescape(behind, bytes, &count);
        status = mp_calls_append(&plain, bytes, count);
        at += 1 + used;
    }
    *good_p = status == MP_OK && at < text->bytes;
    if (*good_p) {
        status = mp_calls_append_text(out, (struct mp_slice){ plain.data, plain.bytes });
        text->text += at + 1;
        text->bytes -= at + 1;
    }
    free(plain.data);
    return status;
}

/* A text between words that it cannot have. */
static enum mp_status read_between(struct mp_slice *text, const char *word,
                                   struct mp_calls_buffer *out, bool *good_p)
{
    const char *end = memmem(text->text, text->bytes, word, strlen(word));
    struct mp_slice inside;

    *good_p = end != NULL;
    if (end == NULL)
        return MP_OK;
    inside = (struct mp_slice){ text->text, (size_t)(end - text->text) };
    text->bytes -= inside.bytes + strlen(word);
    text->text = end + strlen(word);
    return mp_calls_append_text(out, inside);
}

/* *good_p := false: there is no text here, or it does not end. */
static enum mp_status read_text(struct mp_slice *text, struct mp_calls_buffer *out, bool *good_p)
{
    if (mp_slice_skip(text, MP_CALLS_QUOTE))
        return read_between(text, MP_CALLS_QUOTE, out, good_p);
    if (skip_char(text, '"'))
        return read_quoted(text, '"', out, good_p);
    if (skip_char(text, '\''))
        return read_quoted(text, '\'', out, good_p);
    *good_p = false;
    return MP_OK;
}

/* ---- values */

static struct mp_slice take_word(struct mp_slice *text)
{
    struct mp_slice word;

    (void)mp_slice_skip(text, "");
    word = (struct mp_slice){ text->text, 0 };
    while (word.bytes < text->bytes &&
           (mp_calls_is_name(word.text[word.bytes]) || word.text[word.bytes] == '+'))
        word.bytes++;
    text->text += word.bytes;
    text->bytes -= word.bytes;
    return word;
}

static bool is_word(struct mp_slice word, const char *a, const char *b)
{
    return (word.bytes == strlen(a) && memcmp(word.text, a, word.bytes) == 0) ||
           (word.bytes == strlen(b) && memcmp(word.text, b, word.bytes) == 0);
}

/* True, null and numbers. */
static enum mp_status read_word(struct mp_slice *text, struct mp_calls_buffer *out, bool *good_p)
{
    const struct mp_slice word = take_word(text);
    json_t *number;

    *good_p = true;
    if (is_word(word, "True", "true"))
        return mp_calls_append(out, "true", 4);
    if (is_word(word, "False", "false"))
        return mp_calls_append(out, "false", 5);
    if (is_word(word, "None", "null"))
        return mp_calls_append(out, "null", 4);
    number = json_loadb(word.text, word.bytes, JSON_DECODE_ANY, NULL);
    *good_p = json_is_number(number);
    json_decref(number);
    return *good_p ? mp_calls_append(out, word.text, word.bytes) : MP_OK;
}

static enum mp_status read_value(struct mp_slice *text, unsigned depth, struct mp_calls_buffer *out,
                                 bool *good_p);

static enum mp_status read_list(struct mp_slice *text, char close, unsigned depth,
                                struct mp_calls_buffer *out, bool *good_p)
{
    enum mp_status status = mp_calls_append(out, "[", 1);
    bool first = true;

    *good_p = true;
    while (status == MP_OK && *good_p && !skip_char(text, close)) {
        if (!first) {
            *good_p = skip_char(text, ',');
            if (!*good_p || skip_char(text, close))
                break;
            status = mp_calls_append(out, ", ", 2);
        }
        first = false;
        if (status == MP_OK)
            status = read_value(text, depth + 1, out, good_p);
    }
    return status == MP_OK ? mp_calls_append(out, "]", 1) : status;
}

static enum mp_status read_key(struct mp_slice *text, struct mp_calls_buffer *out, bool *good_p)
{
    struct mp_slice word;
    enum mp_status status = read_text(text, out, good_p);

    if (status != MP_OK || *good_p)
        return status;
    word = take_word(text);
    *good_p = word.bytes > 0;
    return *good_p ? mp_calls_append_text(out, word) : MP_OK;
}

static enum mp_status read_members(struct mp_slice *text, const char *marks, unsigned depth,
                                   struct mp_calls_buffer *out, bool *good_p)
{
    enum mp_status status = mp_calls_append(out, "{", 1);
    bool first = true;

    *good_p = true;
    while (status == MP_OK && *good_p && !skip_char(text, marks[1])) {
        if (!first) {
            *good_p = skip_char(text, ',');
            if (!*good_p || skip_char(text, marks[1]))
                break;
            status = mp_calls_append(out, ", ", 2);
        }
        first = false;
        if (status == MP_OK)
            status = read_key(text, out, good_p);
        *good_p = *good_p && skip_char(text, marks[0]);
        if (status == MP_OK && *good_p)
            status = mp_calls_append(out, ": ", 2);
        if (status == MP_OK && *good_p)
            status = read_value(text, depth + 1, out, good_p);
    }
    return status == MP_OK ? mp_calls_append(out, "}", 1) : status;
}

static enum mp_status read_value(struct mp_slice *text, unsigned depth, struct mp_calls_buffer *out,
                                 bool *good_p)
{
    enum mp_status status;

    *good_p = depth < DEPTH_MAX;
    if (!*good_p)
        return MP_OK;
    if (skip_char(text, '['))
        return read_list(text, ']', depth, out, good_p);
    if (skip_char(text, '('))
        return read_list(text, ')', depth, out, good_p);
    if (skip_char(text, '{'))
        return read_members(text, ":}", depth, out, good_p);
    status = read_text(text, out, good_p);
    return status == MP_OK && !*good_p ? read_word(text, out, good_p) : status;
}

enum mp_status mp_calls_read_literals(struct mp_reply *reply, const char *marks,
                                      struct mp_slice *body, bool *good_p)
{
    const char open[2] = { marks[0], '\0' };
    const struct mp_slice name = mp_calls_take_name(body);
    struct mp_calls_buffer out = { .data = NULL };
    enum mp_status status = MP_OK;

    *good_p = name.bytes > 0 && mp_slice_skip(body, open);
    if (*good_p)
        status = read_members(body, marks + 1, 0, &out, good_p);
    if (status == MP_OK && *good_p)
        status = mp_calls_add(reply, name, (struct mp_slice){ out.data, out.bytes }, good_p);
    free(out.data);
    return status;
}
