/*
 * From token ids to text: loads and runs the decoder.
 */
#include "engine/text/tokenizer_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/*
 * Decoders of files are lists of steps over all tokens. The lists that exist come down to one
 * form, which can also run token by token:
 *
 *   each token:  replacements, marks to spaces      (Replace, Metaspace)
 *   bytes:       a run of <0xNN> becomes text       (ByteFallback), or
 *                all tokens are bytes               (ByteLevel)
 *   the text:    its first blanks are dropped       (Fuse, Strip)
 */

/* ---- from JSON */

struct loading {
    const struct mp_tok_source *source;
    struct mp_tokenizer *tok;
    bool fused; /* Fuse was seen: what follows works on the whole text */
};

static enum mp_status refuse_order(const struct loading *load, const char *type)
{
    return mp_fail(MP_ERR_MODEL, "E_TOK_STAGES",
                   "decoder '%s' in '%s' stands in an order that is not supported; known are "
                   "ByteLevel, Metaspace, and Replace, ByteFallback, Fuse, Strip in this order",
                   type, load->source->shown);
}

/* Strip drops up to `start` characters at the beginning of the fused text. */
static enum mp_status load_strip(struct loading *load, const json_t *object)
{
    static const char *const known[] = { "type", "content", "start", "stop", NULL };
    struct mp_tokenizer *tok = load->tok;
    struct mp_tok_buf content = { 0 };
    uint64_t start = 0, stop = 0;
    enum mp_status status = mp_tok_check_keys(load->source, object, "decoder Strip", known);

    if (status == MP_OK && (!load->fused || tok->dec_strip_bytes > 0))
        status = refuse_order(load, "Strip");
    if (status == MP_OK)
        status = mp_json_u64(object, "start", load->source->name, 0, 1 << 20, &start);
    if (status == MP_OK)
        status = mp_json_u64(object, "stop", load->source->name, 0, 0, &stop);
    if (status == MP_OK)
        status = mp_tok_load_string(load->source, object, "content", "decoder Strip", &content);
    if (status == MP_OK &&
        (content.bytes == 0 || content.bytes != mp_tok_utf8_bytes((unsigned char)content.data[0])))
        status = mp_fail(MP_ERR_MODEL, "E_TOK_TYPE",
                         "content of decoder Strip in '%s' has %zu bytes, need one character",
                         load->source->shown, content.bytes);
    if (status == MP_OK) {
        memcpy(tok->dec_strip, content.data, content.bytes);
        tok->dec_strip_bytes = (uint32_t)content.bytes;
        tok->dec_strip_count = (uint32_t)start;
    }
    mp_tok_buf_free(&content);
    return status;
}

static enum mp_status load_replace(struct loading *load, const json_t *object,
                                   struct mp_tok_dec *dec)
{
    static const char *const known[] = { "type", "pattern", "content", NULL };
    enum mp_status status = mp_tok_check_keys(load->source, object, "decoder Replace", known);

    dec->kind = MP_TOK_DEC_REPLACE;
    if (status == MP_OK)
        status = mp_tok_load_pattern_string(load->source, object, "decoder Replace", &dec->from);
    if (status == MP_OK)
        status = mp_tok_load_string(load->source, object, "content", "decoder Replace", &dec->to);
    return status;
}

static enum mp_status load_metaspace(struct loading *load, const json_t *object,
                                     struct mp_tok_dec *dec)
{
    static const char *const known[] = {
        "type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep", NULL
    };
    enum mp_status status = mp_tok_check_keys(load->source, object, "decoder Metaspace", known);
    const char *scheme = "";
    bool prefix = true;

    dec->kind = MP_TOK_DEC_METASPACE;
    if (status == MP_OK)
        status = mp_tok_load_string(load->source, object, "replacement", "decoder Metaspace",
                                    &dec->from);
    if (status == MP_OK && dec->from.bytes == 0)
        status = mp_fail(MP_ERR_MODEL, "E_TOK_TYPE",
                         "replacement of decoder Metaspace in '%s' is empty", load->source->shown);
    if (status == MP_OK)
        status = mp_json_bool_or(object, "add_prefix_space", load->source->name, true, &prefix);
    if (status == MP_OK)
        status = mp_json_string_or(object, "prepend_scheme", load->source->name, "always", &scheme);
    if (status == MP_OK)
        dec->drop_first = prefix && strcmp(scheme, "never") != 0;
    return status == MP_OK ? mp_tok_buf_append(&dec->to, " ", 1) : status;
}

static enum mp_status load_member(struct loading *load, const json_t *object, const char *type)
{
    struct mp_tokenizer *tok = load->tok;

    if (strcmp(type, "ByteLevel") == 0) {
        if (tok->dec_count > 0 || tok->dec_fallback || tok->dec_bytes || load->fused)
            return refuse_order(load, type);
        tok->dec_bytes = true;
        return MP_OK;
    }
    if (tok->dec_bytes)
        return refuse_order(load, type);
    if (strcmp(type, "Strip") == 0)
        return load_strip(load, object);
    if (strcmp(type, "Fuse") == 0) {
        load->fused = true;
        return MP_OK;
    }
    if (strcmp(type, "ByteFallback") == 0) {
        if (load->fused || tok->dec_fallback)
            return refuse_order(load, type);
        tok->dec_fallback = true;
        return MP_OK;
    }
    if (strcmp(type, "Replace") != 0 && strcmp(type, "Metaspace") != 0)
        return mp_tok_refuse_type(load->source, "decoder", type);
    if (load->fused || tok->dec_fallback || tok->dec_count == MP_TOK_STAGES_MAX)
        return refuse_order(load, type);
    struct mp_tok_dec *dec = &tok->decs[tok->dec_count++];
    return type[0] == 'R' ? load_replace(load, object, dec) : load_metaspace(load, object, dec);
}

static enum mp_status load_members(struct loading *load, const json_t *object)
{
    static const char *const known[] = { "type", "decoders", NULL };
    const char *type;
    json_t *members, *member;
    size_t i;
    enum mp_status status = mp_json_string(object, "type", load->source->name, &type);

    if (status != MP_OK || strcmp(type, "Sequence") != 0)
        return status != MP_OK ? status : load_member(load, object, type);
    status = mp_tok_check_keys(load->source, object, "decoder", known);
    if (status == MP_OK)
        status = mp_json_array(object, "decoders", load->source->name, &members);
    if (status != MP_OK)
        return status;
    json_array_foreach(members, i, member)
    {
        if (status == MP_OK)
            status = load_members(load, member);
    }
    return status;
}

enum mp_status mp_tok_load_decoder(const struct mp_tok_source *source, const json_t *root,
                                   struct mp_tokenizer *tok)
{
    const json_t *object = json_object_get(root, "decoder");
    struct loading load = { .source = source, .tok = tok };

    tok->dec_join_space = object == NULL || json_is_null(object);
    return tok->dec_join_space ? MP_OK : load_members(&load, object);
}

/* ---- decoding */

struct mp_detok {
    const struct mp_tokenizer *tok;
    bool skip_special, continues;
    struct mp_detok_state {
        bool started;      /* a token was decoded, or there is text before the first */
        bool strip_done;   /* no more blanks are dropped */
        uint32_t stripped; /* characters dropped at the beginning */
    } state;
    struct mp_tok_buf held; /* bytes that are not text yet */
    size_t given_bytes;     /* of `held`, as text: they go when the push has succeeded */
    struct mp_tok_buf work[2];
    struct mp_tok_buf out; /* what the last call gave */
};

/* The state before the first token, which may stand behind a text. */
static void begin(struct mp_detok *detok)
{
    detok->state =
        (struct mp_detok_state){ .started = detok->continues, .strip_done = detok->continues };
}

enum mp_status mp_detok_create(const struct mp_tokenizer *tok, unsigned flags,
                               struct mp_detok **detok_p)
{
    struct mp_detok *detok = calloc(1, sizeof(*detok));

    if (detok == NULL)
        return mp_fail_no_memory("a detokenizer", sizeof(*detok));
    detok->tok = tok;
    detok->skip_special = (flags & MP_DECODE_SKIP_SPECIAL) != 0;
    detok->continues = (flags & MP_DECODE_CONTINUES) != 0;
    begin(detok);
    *detok_p = detok;
    return MP_OK;
}

void mp_detok_destroy(struct mp_detok *detok)
{
    if (detok == NULL)
        return;
    mp_tok_buf_free(&detok->held);
    mp_tok_buf_free(&detok->work[0]);
    mp_tok_buf_free(&detok->work[1]);
    mp_tok_buf_free(&detok->out);
    free(detok);
}

/* Text of the last step: the blanks at the very beginning are dropped. */
static enum mp_status emit(struct mp_detok *detok, const char *text, size_t bytes)
{
    const struct mp_tokenizer *tok = detok->tok;

    while (!detok->state.strip_done && bytes > 0) {
        if (detok->state.stripped == tok->dec_strip_count || bytes < tok->dec_strip_bytes ||
            memcmp(text, tok->dec_strip, tok->dec_strip_bytes) != 0) {
            detok->state.strip_done = true;
            break;
        }
        detok->state.stripped++;
        text += tok->dec_strip_bytes;
        bytes -= tok->dec_strip_bytes;
    }
    return mp_tok_buf_append(&detok->out, text, bytes);
}

/* Run the replacements on one token; the result is `text` or lies in a work buffer. */
static enum mp_status run_replacements(struct mp_detok *detok, const char **text_p, size_t *bytes_p)
{
    const struct mp_tokenizer *tok = detok->tok;

    detok->work[0].limit = detok->work[1].limit = mp_tok_growth_limit(*bytes_p);
    for (uint32_t i = 0; i < tok->dec_count; i++) {
        const struct mp_tok_dec *dec = &tok->decs[i];
        struct mp_tok_buf *into = &detok->work[i % 2];
        const size_t to_bytes = dec->drop_first && !detok->state.started ? 0 : dec->to.bytes;
        enum mp_status status;

        into->bytes = 0;
        status = mp_tok_append_replaced(into, *text_p, *bytes_p, dec->from.data, dec->from.bytes,
                                        dec->to.data, to_bytes);
        if (status != MP_OK)
            return status;
        *text_p = into->data;
        *bytes_p = into->bytes;
    }
    return MP_OK;
}

/* Put the bytes of a byte-level token behind those held; a token that is none is its own text. */
static enum mp_status hold_byte_level(struct mp_detok *detok, const char *text, size_t bytes)
{
    const size_t before = detok->held.bytes;

    for (size_t at = 0; at < bytes; at += mp_tok_utf8_bytes((unsigned char)text[at])) {
        const int byte = mp_tok_char_byte(mp_tok_utf8_get(text + at));
        const char out = (char)byte;
        enum mp_status status;

        if (byte < 0) {
            detok->held.bytes = before;
            return mp_tok_buf_append(&detok->held, text, bytes);
        }
        status = mp_tok_buf_append(&detok->held, &out, 1);
        if (status != MP_OK)
            return status;
    }
    return MP_OK;
}

/* Emit the held bytes up to an incomplete character, or with it at the end. */
static enum mp_status emit_held(struct mp_detok *detok, bool end, size_t *done_p)
{
    size_t at = 0;

    while (at < detok->held.bytes) {
        const char *text = detok->held.data + at;
        bool valid;
        const size_t step = mp_tok_utf8_scan(text, detok->held.bytes - at, !end, &valid);
        enum mp_status status;

        if (step == 0)
            break;
        status = valid ? emit(detok, text, step)
                       : emit(detok, MP_TOK_REPLACEMENT, MP_TOK_REPLACEMENT_BYTES);
        if (status != MP_OK)
            return status;
        at += step;
    }
    *done_p = at;
    return MP_OK;
}

static enum mp_status push_byte_level(struct mp_detok *detok, const char *text, size_t bytes)
{
    enum mp_status status = hold_byte_level(detok, text, bytes);

    return status == MP_OK ? emit_held(detok, false, &detok->given_bytes) : status;
}

static void forget_given(struct mp_detok *detok)
{
    const size_t given = detok->given_bytes;

    if (given > 0)
        memmove(detok->held.data, detok->held.data + given, detok->held.bytes - given);
    detok->held.bytes -= given;
}

/* The byte that a token <0xNN> stands for, or -1. */
static int fallback_byte(const char *text, size_t bytes)
{
    int byte = 0;

    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    for (size_t i = 3; i < 5; i++) {
        const char c = text[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                                 : -1;

        if (digit < 0)
            return -1;
        byte = byte * 16 + digit;
    }
    return byte;
}

/* The end of a run of byte tokens: text if all of it is, else each byte is broken. */
static enum mp_status emit_run(struct mp_detok *detok)
{
    enum mp_status status = MP_OK;
    bool valid = true;

    for (size_t at = 0; at < detok->held.bytes && valid;)
        at += mp_tok_utf8_scan(detok->held.data + at, detok->held.bytes - at, false, &valid);
    if (valid)
        return emit(detok, detok->held.data, detok->held.bytes);
    for (size_t i = 0; i < detok->held.bytes && status == MP_OK; i++)
        status = emit(detok, MP_TOK_REPLACEMENT, MP_TOK_REPLACEMENT_BYTES);
    return status;
}

static enum mp_status push_fallback(struct mp_detok *detok, const char *text, size_t bytes)
{
    const int byte = fallback_byte(text, bytes);
    const char out = (char)byte;
    enum mp_status status;

    if (byte >= 0)
        return mp_tok_buf_append(&detok->held, &out, 1);
    status = emit_run(detok);
    if (status == MP_OK)
        status = emit(detok, text, bytes);
    if (status == MP_OK)
        detok->held.bytes = 0;
    return status;
}

static enum mp_status push_token(struct mp_detok *detok, uint32_t id)
{
    const struct mp_tokenizer *tok = detok->tok;
    const char *text = mp_tok_vocab_content(&tok->vocab, id);
    size_t bytes = tok->vocab.bytes[id];
    enum mp_status status;

    if (tok->pattern_of != NULL && tok->pattern_of[id] > 0) {
        const struct mp_tok_pattern *pattern = &tok->normalized.patterns[tok->pattern_of[id] - 1];

        text = pattern->text;
        bytes = pattern->bytes;
    }
    status = run_replacements(detok, &text, &bytes);
    if (status != MP_OK)
        return status;
    if (tok->dec_bytes) {
        status = push_byte_level(detok, text, bytes);
    } else if (tok->dec_fallback) {
        status = push_fallback(detok, text, bytes);
    } else {
        if (tok->dec_join_space && detok->state.started)
            status = emit(detok, " ", 1);
        if (status == MP_OK)
            status = emit(detok, text, bytes);
    }
    detok->state.started = true;
    return status;
}

/* Put a NUL behind `out` that does not count. */
static enum mp_status terminate(struct mp_detok *detok)
{
    const enum mp_status status = mp_tok_buf_append(&detok->out, "", 1);

    if (status == MP_OK)
        detok->out.bytes--;
    return status;
}

/* Append the text of one more token to `out`; on failure all is as before. */
static enum mp_status push(struct mp_detok *detok, uint32_t id)
{
    const struct mp_tokenizer *tok = detok->tok;
    const struct mp_detok_state state = detok->state;
    const size_t held_bytes = detok->held.bytes, out_bytes = detok->out.bytes;
    enum mp_status status = MP_OK;

    if (id >= tok->vocab.count || (tok->vocab.flags[id] & MP_TOK_USED) == 0)
        return mp_fail(MP_ERR_INVALID, "E_TOK_ID",
                       "cannot decode token id %" PRIu32 ": the vocabulary has ids below %" PRIu32
                       "%s",
                       id, tok->vocab.count, id < tok->vocab.count ? ", but not this one" : "");
    detok->given_bytes = 0;
    if (!detok->skip_special || (tok->vocab.flags[id] & MP_TOK_SPECIAL) == 0)
        status = push_token(detok, id);
    if (status == MP_OK)
        status = terminate(detok);
    if (status != MP_OK) {
        detok->state = state;
        detok->held.bytes = held_bytes;
        detok->out.bytes = out_bytes;
        return status;
    }
    forget_given(detok);
    return MP_OK;
}

/* Append what is still held to `out` and forget everything else. */
static enum mp_status finish(struct mp_detok *detok)
{
    size_t done;
    enum mp_status status = detok->tok->dec_bytes ? emit_held(detok, true, &done) : emit_run(detok);

    detok->held.bytes = 0;
    begin(detok);
    return status == MP_OK ? terminate(detok) : status;
}

enum mp_status mp_detok_push(struct mp_detok *detok, uint32_t id, const char **text_p,
                             size_t *bytes_p)
{
    enum mp_status status;

    detok->out.bytes = 0;
    status = push(detok, id);
    if (status == MP_OK) {
        *text_p = detok->out.data;
        *bytes_p = detok->out.bytes;
    }
    return status;
}

enum mp_status mp_detok_finish(struct mp_detok *detok, const char **text_p, size_t *bytes_p)
{
    enum mp_status status;

    detok->out.bytes = 0;
    status = finish(detok);
    if (status == MP_OK) {
        *text_p = detok->out.data;
        *bytes_p = detok->out.bytes;
    }
    return status;
}

enum mp_status mp_tokenizer_decode(const struct mp_tokenizer *tok, const uint32_t *ids,
                                   size_t count, unsigned flags, char **text_p, size_t *bytes_p)
{
    struct mp_detok *detok = NULL;
    enum mp_status status = mp_detok_create(tok, flags, &detok);

    if (status != MP_OK)
        return status;
    for (size_t i = 0; i < count && status == MP_OK; i++)
        status = push(detok, ids[i]);
    if (status == MP_OK)
        status = finish(detok);
    if (status == MP_OK) {
        /* The buffer changes hands. */
        *text_p = detok->out.data;
        *bytes_p = detok->out.bytes;
        detok->out.data = NULL;
    }
    mp_detok_destroy(detok);
    return status;
}
