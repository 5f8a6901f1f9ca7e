/*
 * Buffers, UTF-8 and the normalization of a text. Knows no tokens.
 */
#include "engine/text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "vmm/base/checked.h"
#include "vmm/base/text.h"

enum mp_status mp_tok_buf_append(struct mp_tok_buf *buf, const void *data, size_t bytes)
{
    uint64_t need;

    if (!mp_add_u64(buf->bytes, bytes, &need) || need > SIZE_MAX / 4)
        return mp_fail_no_memory("text", UINT64_MAX);
    if (buf->limit > 0 && need > buf->limit)
        return mp_fail(MP_ERR_MODEL, "E_TOK_GROWTH",
                       "the replacements of the tokenizer make a text longer than %zu bytes, which "
                       "no known model does",
                       buf->limit);
    if (!mp_text_reserve(&buf->data, &buf->capacity, (size_t)need))
        return mp_fail_no_memory("text", need);
    if (bytes > 0)
        memcpy(buf->data + buf->bytes, data, bytes);
    buf->bytes = (size_t)need;
    return MP_OK;
}

void mp_tok_buf_free(struct mp_tok_buf *buf)
{
    free(buf->data);
    memset(buf, 0, sizeof(*buf));
}

size_t mp_tok_utf8_put(char out[4], uint32_t code)
{
    return (size_t)utf8proc_encode_char((int32_t)code, (unsigned char *)out);
}

uint32_t mp_tok_utf8_get(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;

    switch (mp_tok_utf8_bytes(at[0])) {
    case 1: return at[0];
    case 2: return (at[0] & 0x1fu) << 6 | (at[1] & 0x3fu);
    case 3: return (at[0] & 0x0fu) << 12 | (at[1] & 0x3fu) << 6 | (at[2] & 0x3fu);
    default:
        return (at[0] & 0x07u) << 18 | (at[1] & 0x3fu) << 12 | (at[2] & 0x3fu) << 6 |
               (at[3] & 0x3fu);
    }
}

/*
 * The table of well-formed sequences of the Unicode standard (3-7): the second byte of some leads
 * has a narrower range, which rules out long forms, surrogates and what lies above U+10FFFF. The
 * ill-formed part is the longest beginning of a well-formed sequence, or one byte.
 */
size_t mp_tok_utf8_scan(const char *text, size_t bytes, bool more, bool *valid_p)
{
    const unsigned char *at = (const unsigned char *)text;
    unsigned char low = 0x80, high = 0xbf;
    size_t need;

    *valid_p = at[0] < 0x80;
    if (at[0] < 0x80)
        return 1;
    if (at[0] < 0xc2 || at[0] > 0xf4)
        return 1;
    need = mp_tok_utf8_bytes(at[0]);
    switch (at[0]) {
    case 0xe0: low = 0xa0; break;
    case 0xed: high = 0x9f; break;
    case 0xf0: low = 0x90; break;
    case 0xf4: high = 0x8f; break;
    default: break;
    }
    for (size_t i = 1; i < need; i++) {
        if (i >= bytes)
            return more ? 0 : i;
        if (at[i] < low || at[i] > high)
            return i;
        low = 0x80;
        high = 0xbf;
    }
    *valid_p = true;
    return need;
}

size_t mp_utf8_bytes(const char *text, size_t bytes)
{
    size_t at = 0;

    while (at < bytes) {
        bool valid;
        const size_t step = mp_tok_utf8_scan(text + at, bytes - at, false, &valid);

        if (!valid)
            break;
        at += step;
    }
    return at;
}

bool mp_is_utf8(const char *text, size_t bytes)
{
    return mp_utf8_bytes(text, bytes) == bytes;
}

enum mp_status mp_tok_append_valid(struct mp_tok_buf *buf, const char *text, size_t bytes)
{
    enum mp_status status = MP_OK;
    size_t begin = 0, at = 0;

    while (at < bytes && status == MP_OK) {
        bool valid;
        const size_t step = mp_tok_utf8_scan(text + at, bytes - at, false, &valid);

        if (!valid) {
            status = mp_tok_buf_append(buf, text + begin, at - begin);
            if (status == MP_OK)
                status = mp_tok_buf_append(buf, MP_TOK_REPLACEMENT, MP_TOK_REPLACEMENT_BYTES);
            begin = at + step;
        }
        at += step;
    }
    if (status == MP_OK)
        status = mp_tok_buf_append(buf, text + begin, bytes - begin);
    return status;
}

enum mp_status mp_tok_append_replaced(struct mp_tok_buf *buf, const char *text, size_t bytes,
                                      const char *from, size_t from_bytes, const char *to,
                                      size_t to_bytes)
{
    const char *const end = text + bytes;

    for (;;) {
        const char *hit = memmem(text, (size_t)(end - text), from, from_bytes);
        enum mp_status status =
            mp_tok_buf_append(buf, text, (size_t)((hit != NULL ? hit : end) - text));

        if (status != MP_OK || hit == NULL)
            return status;
        status = mp_tok_buf_append(buf, to, to_bytes);
        if (status != MP_OK)
            return status;
        text = hit + from_bytes;
    }
}

enum mp_status mp_tok_normalize(const struct mp_tokenizer *tok, struct mp_tok_buf work[2],
                                const char **text_p, size_t *bytes_p)
{
    work[0].limit = work[1].limit = mp_tok_growth_limit(*bytes_p);
    for (uint32_t i = 0; i < tok->norm_count; i++) {
        const struct mp_tok_norm *norm = &tok->norms[i];
        struct mp_tok_buf *into = &work[i % 2];
        enum mp_status status = MP_OK;

        into->bytes = 0;
        switch (norm->kind) {
        case MP_TOK_NORM_FORM:
            status = mp_tok_append_form(into, *text_p, *bytes_p, norm->form);
            break;
        case MP_TOK_NORM_PREPEND:
            if (*bytes_p > 0)
                status = mp_tok_buf_append(into, norm->to.data, norm->to.bytes);
            if (status == MP_OK)
                status = mp_tok_buf_append(into, *text_p, *bytes_p);
            break;
        case MP_TOK_NORM_REPLACE:
            status = mp_tok_append_replaced(into, *text_p, *bytes_p, norm->from.data,
                                            norm->from.bytes, norm->to.data, norm->to.bytes);
            break;
        }
        if (status != MP_OK)
            return status;
        *text_p = into->data;
        *bytes_p = into->bytes;
    }
    return MP_OK;
}
