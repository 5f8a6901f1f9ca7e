/*
 * Sorts the text of an answer as it comes: thoughts, then text, with calls in it or behind it. What
 * may be the beginning of a word waits until it is known, and so do blanks before one.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/calls/calls_int.h"
#include "vmm/base/text.h"

/* ---- texts */

enum mp_status mp_calls_append(struct mp_calls_buffer *buffer, const char *text, size_t bytes)
{
    if (!mp_text_reserve(&buffer->data, &buffer->capacity, buffer->bytes + bytes))
        return mp_fail_no_memory("a reply", buffer->bytes + bytes);
    memcpy(buffer->data + buffer->bytes, text, bytes);
    buffer->bytes += bytes;
    buffer->data[buffer->bytes] = '\0';
    return MP_OK;
}

void mp_calls_drop(struct mp_calls_buffer *buffer, size_t bytes)
{
    if (bytes == 0)
        return;
    buffer->bytes -= bytes;
    memmove(buffer->data, buffer->data + bytes, buffer->bytes + 1);
}

size_t mp_calls_find(const char *text, size_t bytes, size_t from, const char *word)
{
    const char *at = from < bytes ? memmem(text + from, bytes - from, word, strlen(word)) : NULL;

    return at != NULL ? (size_t)(at - text) : bytes;
}

size_t mp_calls_held_back(const char *text, size_t bytes, const char *word)
{
    for (size_t n = strlen(word) - 1; n > 0; n--) {
        if (n <= bytes && memcmp(text + bytes - n, word, n) == 0)
            return n;
    }
    return 0;
}

/* ---- words */

/* What begins or ends calls, without the blanks around it and without what is inside already. */
static void bare_word(const char *text, bool first_only, char word[64])
{
    const struct mp_slice bare = mp_slice_trim((struct mp_slice){ text, strlen(text) });
    size_t bytes = bare.bytes < 63 ? bare.bytes : 63;

    if (first_only)
        bytes = strcspn(bare.text, ">]") + 1 < bytes ? strcspn(bare.text, ">]") + 1 : bytes;
    memcpy(word, bare.text, bytes);
    word[bytes] = '\0';
}

static size_t blanks_before(const struct mp_calls_buffer *rest, size_t end)
{
    size_t at = end;

    while (at > 0 && mp_calls_is_blank(rest->data[at - 1]))
        at--;
    return end - at;
}

static size_t leading_blanks(const struct mp_calls_buffer *rest)
{
    size_t at = 0;

    while (at < rest->bytes && mp_calls_is_blank(rest->data[at]))
        at++;
    return at;
}

/*
 * Give what stands before `word` to `out`. *found_p := the word is there, and is dropped as well,
 * with the blanks before it.
 */
static enum mp_status take_until(struct mp_reply *reply, const char *word, bool last,
                                 struct mp_calls_buffer *out, bool *found_p)
{
    struct mp_calls_buffer *rest = &reply->rest;
    const size_t at = mp_calls_find(rest->data, rest->bytes, 0, word);
    size_t end = at;
    enum mp_status status;

    *found_p = at < rest->bytes;
    if (!*found_p && !last)
        end -= mp_calls_held_back(rest->data, rest->bytes, word);
    if (*found_p || !last)
        end -= blanks_before(rest, end);
    status = mp_calls_append(out, rest->data, end);
    if (status == MP_OK)
        mp_calls_drop(rest, *found_p ? at + strlen(word) : end);
    return status;
}

/* ---- states; each returns true in *more_p if the next one may have work */

/* An answer begins with thoughts, or it has none. */
static void look_for_thoughts(struct mp_reply *reply, bool last, bool *more_p)
{
    const char *word = reply->style->text[MP_CALLS_THINK];
    const size_t blanks = leading_blanks(&reply->rest);
    const size_t there = reply->rest.bytes - blanks;
    const size_t most = word == NULL ? 0 : there < strlen(word) ? there : strlen(word);

    *more_p = true;
    if (word != NULL && memcmp(reply->rest.data + blanks, word, most) == 0) {
        *more_p = most == strlen(word) || last;
        if (most == strlen(word)) {
            mp_calls_drop(&reply->rest, blanks + most);
            reply->state = MP_REPLY_THOUGHTS;
            return;
        }
    }
    if (*more_p)
        reply->state = MP_REPLY_TEXT;
}

static enum mp_status take_thoughts(struct mp_reply *reply, bool last, bool *more_p)
{
    enum mp_status status;

    if (reply->thoughts.bytes == 0)
        mp_calls_drop(&reply->rest, leading_blanks(&reply->rest));
    status =
        take_until(reply, reply->style->text[MP_CALLS_THOUGHT], last, &reply->thoughts, more_p);
    if (*more_p)
        reply->state = MP_REPLY_TEXT;
    return status;
}

static enum mp_status take_text(struct mp_reply *reply, bool last, bool *more_p)
{
    char word[64];
    enum mp_status status;

    *more_p = false;
    if (reply->thoughts.bytes > 0 && reply->content.bytes == 0)
        mp_calls_drop(&reply->rest, leading_blanks(&reply->rest));
    if (reply->style->kind == MP_CALLS_NONE) {
        status = mp_calls_append(&reply->content, reply->rest.data, reply->rest.bytes);
        mp_calls_drop(&reply->rest, status == MP_OK ? reply->rest.bytes : 0);
        return status;
    }
    bare_word(reply->style->text[MP_CALLS_OPEN], true, word);
    status = take_until(reply, word, last, &reply->content, more_p);
    if (*more_p) {
        reply->state = MP_REPLY_CALLS;
        reply->tried = 0;
    }
    return status;
}

/* Words and all, as they were. */
static enum mp_status no_calls(struct mp_reply *reply, size_t bytes)
{
    char word[64];
    enum mp_status status;

    bare_word(reply->style->text[MP_CALLS_OPEN], true, word);
    status = mp_calls_append(&reply->content, word, strlen(word));
    if (status == MP_OK)
        status = mp_calls_append(&reply->content, reply->rest.data, bytes);
    return status;
}

/* Each end is tried, since arguments may hold the word that ends calls. */
static enum mp_status take_calls(struct mp_reply *reply, bool last, bool *more_p)
{
    const char *close = reply->style->text[MP_CALLS_CLOSE];
    struct mp_calls_buffer *rest = &reply->rest;
    size_t end = rest->bytes, behind = rest->bytes;
    bool good = false;
    enum mp_status status = MP_OK;
    char word[64];

    *more_p = false;
    if (close != NULL) {
        bare_word(close, false, word);
        end = mp_calls_find(rest->data, rest->bytes, reply->tried, word);
        behind = end < rest->bytes ? end + strlen(word) : rest->bytes;
    }
    if (end == rest->bytes && !last)
        return MP_OK;
    if (rest->bytes > 0)
        status = mp_calls_read(reply, (struct mp_slice){ rest->data, end }, &good);
    if (status != MP_OK)
        return status;
    if (!good && end < rest->bytes) {
        reply->tried = end + 1;
        *more_p = true;
        return MP_OK;
    }
    if (!good)
        status = no_calls(reply, behind);
    if (status == MP_OK) {
        mp_calls_drop(rest, behind);
        reply->state = MP_REPLY_TEXT;
        *more_p = rest->bytes > 0;
    }
    return status;
}

static enum mp_status sort(struct mp_reply *reply, bool last)
{
    bool more = reply->rest.bytes > 0 || (last && reply->state == MP_REPLY_CALLS);
    enum mp_status status = MP_OK;

    if (reply->style->kind == MP_CALLS_CHANNELS)
        return mp_channels_sort(reply, last);
    while (status == MP_OK && more) {
        switch (reply->state) {
        case MP_REPLY_START: look_for_thoughts(reply, last, &more); break;
        case MP_REPLY_THOUGHTS: status = take_thoughts(reply, last, &more); break;
        case MP_REPLY_TEXT: status = take_text(reply, last, &more); break;
        case MP_REPLY_CALLS: status = take_calls(reply, last, &more); break;
        }
        more = more && (reply->rest.bytes > 0 || (last && reply->state == MP_REPLY_CALLS));
    }
    return status;
}

/* ---- public */

void mp_reply_begin(struct mp_reply *reply, const struct mp_calls_style *style, const json_t *tools,
                    bool thinking)
{
    *reply = (struct mp_reply){ .style = style, .tools = tools };
    if (thinking)
        reply->state = MP_REPLY_THOUGHTS;
}

enum mp_status mp_reply_push(struct mp_reply *reply, const char *text, size_t bytes)
{
    enum mp_status status;

    if (reply->style == NULL)
        return mp_calls_append(&reply->content, text, bytes);
    status = mp_calls_append(&reply->rest, text, bytes);
    return status == MP_OK ? sort(reply, false) : status;
}

enum mp_status mp_reply_finish(struct mp_reply *reply)
{
    return reply->style == NULL ? MP_OK : sort(reply, true);
}

void mp_reply_free(struct mp_reply *reply)
{
    for (size_t i = 0; i < reply->call_count; i++) {
        free(reply->calls[i].name);
        free(reply->calls[i].arguments);
    }
    free(reply->calls);
    free(reply->rest.data);
    free(reply->content.data);
    free(reply->thoughts.data);
    *reply = (struct mp_reply){ .style = NULL };
}

bool mp_calls_begins_thoughts(const struct mp_calls_style *style, const char *text, size_t bytes)
{
    const char *word = style != NULL ? style->text[MP_CALLS_THINK] : NULL;
    const struct mp_slice bare = mp_slice_trim((struct mp_slice){ text, bytes });

    return word != NULL && bare.bytes >= strlen(word) &&
           memcmp(bare.text + bare.bytes - strlen(word), word, strlen(word)) == 0;
}
