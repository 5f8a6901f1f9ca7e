/*
 * The bytes that one token stands for in the middle of a text: for whoever must know a text before
 * its tokens are chosen. Texts of several tokens are tokenizer_decode.c's.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_impl.h"

/* <0xNN>: its value, or -1. */
static int fallback_byte(const char *content, size_t bytes)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *high, *low;

    if (bytes != 6 || memcmp(content, "<0x", 3) != 0 || content[5] != '>')
        return -1;
    high = memchr(digits, content[3], 16);
    low = memchr(digits, content[4], 16);
    return high != NULL && low != NULL ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

/* Of a byte-level vocabulary: each character is a byte. */
static size_t level_bytes(const char *content, size_t bytes, char *out, size_t capacity)
{
    size_t used = 0;

    for (size_t at = 0; at < bytes; at += mp_tok_utf8_bytes((unsigned char)content[at])) {
        const int byte = mp_tok_char_byte(mp_tok_utf8_get(content + at));

        if (byte < 0 || used == capacity)
            return 0;
        out[used++] = (char)byte;
    }
    return used;
}

/* What the decoder replaces in each token. */
static size_t replaced_bytes(const struct mp_tokenizer *tok, const char *content, size_t bytes,
                             char *out, size_t capacity)
{
    struct mp_tok_buf work[2] = { { 0 }, { 0 } };
    size_t used = 0;
    bool good = mp_tok_buf_append(&work[0], content, bytes) == MP_OK;

    for (uint32_t i = 0; good && i < tok->dec_count; i++) {
        const struct mp_tok_dec *dec = &tok->decs[i];

        work[1].bytes = 0;
        good = dec->from.bytes == 0 ||
               mp_tok_append_replaced(&work[1], work[0].data, work[0].bytes, dec->from.data,
                                      dec->from.bytes, dec->to.data, dec->to.bytes) == MP_OK;
        if (good && dec->from.bytes > 0) {
            const struct mp_tok_buf swap = work[0];

            work[0] = work[1];
            work[1] = swap;
        }
    }
    if (good && work[0].bytes <= capacity) {
        used = work[0].bytes;
        memcpy(out, work[0].data, used);
    }
    mp_tok_buf_free(&work[0]);
    mp_tok_buf_free(&work[1]);
    return used;
}

size_t mp_tokenizer_bytes(const struct mp_tokenizer *tok, uint32_t id, char *out, size_t capacity)
{
    const char *content;
    size_t bytes;
    int byte;

    if (id >= tok->vocab.count || (tok->vocab.flags[id] & MP_TOK_USED) == 0 ||
        (tok->vocab.flags[id] & (MP_TOK_ADDED | MP_TOK_SPECIAL)) != 0 || tok->dec_join_space ||
        capacity == 0 || id == tok->unk)
        return 0;
    content = mp_tok_vocab_content(&tok->vocab, id);
    bytes = tok->vocab.bytes[id];
    if (tok->dec_bytes)
        return level_bytes(content, bytes, out, capacity);
    byte = tok->dec_fallback ? fallback_byte(content, bytes) : -1;
    if (byte >= 0) {
        out[0] = (char)byte;
        return 1;
    }
    return bytes == 0 ? 0 : replaced_bytes(tok, content, bytes, out, capacity);
}
