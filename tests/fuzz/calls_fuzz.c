/*
 * Answers of models: the first byte says how they come, then a template's words up to a newline,
 * then the answer. However it is cut, the same is found in it, and calls are JSON.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/calls/calls.h"
#include "engine/text/tokenizer.h"
#include "tests/fuzz/text.h"

static void sort(struct mp_reply *r, const struct mp_calls_style *style, bool thinking,
                 const uint8_t *text, size_t bytes, size_t step)
{
    mp_reply_begin(r, style, NULL, thinking);
    for (size_t at = 0; at < bytes; at += step)
        FUZZ_CHECK(mp_reply_push(r, (const char *)text + at,
                                 bytes - at < step ? bytes - at : step) == MP_OK);
    FUZZ_CHECK(mp_reply_finish(r) == MP_OK);
}

static void check_same(const struct mp_calls_buffer *a, const struct mp_calls_buffer *b)
{
    FUZZ_CHECK(a->bytes == b->bytes && (a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *line = bytes > 1 ? memchr(data + 1, '\n', bytes - 1) : NULL;
    const struct mp_calls_style *style;
    struct mp_reply whole, cut;
    bool thinking;

    if (line == NULL)
        return 0;
    style = mp_calls_find_style((const char *)data + 1, (size_t)(line - data) - 1);
    thinking = data[0] >= 128 && style != NULL && style->text[MP_CALLS_THINK] != NULL;
    bytes -= (size_t)(line + 1 - data);
    if (!mp_is_utf8((const char *)line + 1, bytes))
        return 0; /* decoded text never is */
    sort(&whole, style, thinking, line + 1, bytes, bytes + 1);
    sort(&cut, style, thinking, line + 1, bytes, 1 + data[0] % 7);
    check_same(&whole.content, &cut.content);
    check_same(&whole.thoughts, &cut.thoughts);
    FUZZ_CHECK(whole.call_count == cut.call_count && whole.call_count <= MP_CALLS_MAX);
    for (size_t i = 0; i < whole.call_count; i++) {
        json_t *json = json_loads(whole.calls[i].arguments, JSON_ALLOW_NUL, NULL);

        FUZZ_CHECK(json_is_object(json) && whole.calls[i].name[0] != '\0');
        FUZZ_CHECK(strcmp(whole.calls[i].arguments, cut.calls[i].arguments) == 0);
        json_decref(json);
    }
    mp_reply_free(&whole);
    mp_reply_free(&cut);
    return 0;
}
