/*
 * Answers in channels: a row of messages, each of a head and a body. The head's channel says what
 * the body is, and `to=functions.NAME` that it is a call.
 */
#include <string.h>

#include "engine/text/calls/calls_int.h"

#define BODY "<|message|>"
#define WORDS "<|"

/* Where the body ends that begins at `from`: at any word, since a body has none. */
static size_t body_end(const struct mp_calls_buffer *rest, size_t from, bool last, bool *ended_p)
{
    static const char *const ends[] = { "<|end|>", "<|call|>", "<|return|>", "<|start|>" };
    size_t end = rest->bytes, held = 0;

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        const size_t at = mp_calls_find(rest->data, rest->bytes, from, ends[i]);
        const size_t back = mp_calls_held_back(rest->data + from, rest->bytes - from, ends[i]);

        end = at < end ? at : end;
        held = back > held ? back : held;
    }
    *ended_p = end < rest->bytes;
    return *ended_p || last ? end : end - held;
}

static struct mp_slice called(const struct mp_calls_buffer *rest, size_t head)
{
    static const char word[] = "to=functions.";
    const size_t at = mp_calls_find(rest->data, head, 0, word);
    struct mp_slice name = { rest->data, 0 };

    if (at == head)
        return name;
    name.text += at + sizeof(word) - 1;
    while (name.text + name.bytes < rest->data + head && mp_calls_is_name(name.text[name.bytes]))
        name.bytes++;
    return name;
}

/* A call is taken when it has ended. */
static enum mp_status take_call(struct mp_reply *reply, struct mp_slice name, size_t from,
                                bool last, bool *more_p)
{
    struct mp_calls_buffer *rest = &reply->rest;
    bool good = false;
    const size_t end = body_end(rest, from, last, more_p);
    const struct mp_slice body = { rest->data + from, end - from };
    enum mp_status status = MP_OK;

    if (!*more_p && !last)
        return MP_OK;
    status = mp_calls_add(reply, name, body, &good);
    if (status == MP_OK && !good)
        status = mp_calls_append(&reply->content, body.text, body.bytes);
    if (status == MP_OK)
        mp_calls_drop(rest, end);
    return status;
}

static enum mp_status take_head(struct mp_reply *reply, bool last, bool *more_p)
{
    struct mp_calls_buffer *rest = &reply->rest;
    const size_t head = mp_calls_find(rest->data, rest->bytes, 0, BODY);
    const struct mp_slice name = called(rest, head);
    enum mp_status status = MP_OK;

    *more_p = false;
    if (head == rest->bytes) { /* no head at all is a text */
        if (last && mp_calls_find(rest->data, rest->bytes, 0, WORDS) == rest->bytes)
            status = mp_calls_append(&reply->content, rest->data, rest->bytes);
        if (last && status == MP_OK)
            mp_calls_drop(rest, rest->bytes);
        return status;
    }
    if (name.bytes > 0)
        return take_call(reply, name, head + strlen(BODY), last, more_p);
    reply->state =
        mp_calls_find(rest->data, head, 0, "analysis") < head ? MP_REPLY_THOUGHTS : MP_REPLY_TEXT;
    mp_calls_drop(rest, head + strlen(BODY));
    if (reply->state == MP_REPLY_THOUGHTS && reply->thoughts.bytes > 0)
        status = mp_calls_append(&reply->thoughts, "\n", 1);
    *more_p = true;
    return status;
}

static enum mp_status take_body(struct mp_reply *reply, bool last, bool *more_p)
{
    struct mp_calls_buffer *rest = &reply->rest;
    struct mp_calls_buffer *out =
        reply->state == MP_REPLY_THOUGHTS ? &reply->thoughts : &reply->content;
    const size_t end = body_end(rest, 0, last, more_p);
    enum mp_status status = mp_calls_append(out, rest->data, end);

    if (status != MP_OK)
        return status;
    mp_calls_drop(rest, end);
    if (*more_p)
        reply->state = MP_REPLY_START;
    return MP_OK;
}

enum mp_status mp_channels_sort(struct mp_reply *reply, bool last)
{
    enum mp_status status = MP_OK;
    bool more = true;

    while (status == MP_OK && more && reply->rest.bytes > 0) {
        if (reply->state == MP_REPLY_START)
            status = take_head(reply, last, &more);
        else
            status = take_body(reply, last, &more);
    }
    return status;
}
