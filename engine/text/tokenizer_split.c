/*
 * Cuts text into words, stage by stage. No word becomes tokens here.
 */
#include "engine/text/tokenizer_impl.h"

#include <string.h>

#include <utf8proc.h>

bool mp_tok_is_space(uint32_t code)
{
    return (code >= 0x9 && code <= 0xd) || code == 0x20 || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

/* \w of Unicode: alphabetic, marks, decimal digits, connectors, join controls. */
bool mp_tok_is_word(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default:
        /* Joiners, and the symbols that are alphabetic: circled and squared letters. */
        return code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) ||
               (code >= 0x1f130 && code <= 0x1f149) || (code >= 0x1f150 && code <= 0x1f169) ||
               (code >= 0x1f170 && code <= 0x1f189);
    }
}

/* ---- the characters of byte-level vocabularies
 *
 * Printable bytes of Latin-1 stand for themselves; the 68 others follow from U+0100 on.
 */
static bool stands_for_itself(unsigned code)
{
    return (code >= '!' && code <= '~') || (code >= 0xa1 && code <= 0xac) ||
           (code >= 0xae && code <= 0xff);
}

uint32_t mp_tok_byte_char(unsigned char byte)
{
    if (stands_for_itself(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xad ? 0x143 : 0x121u + (byte - 0x7fu);
}

int mp_tok_char_byte(uint32_t code)
{
    if (code < 0x100)
        return stands_for_itself(code) ? (int)code : -1;
    if (code <= 0x120)
        return (int)(code - 0x100);
    if (code < 0x143)
        return (int)(code - 0x121 + 0x7f);
    return code == 0x143 ? 0xad : -1;
}

/* ---- stages */

static enum mp_status run_stages(struct mp_tok_encoder *enc, uint32_t stage, const char *text,
                                 size_t bytes, bool first);

static enum mp_status match_failed(int error)
{
    PCRE2_UCHAR text[128] = "";

    pcre2_get_error_message(error, text, sizeof(text));
    if (error == PCRE2_ERROR_NOMEMORY || error == PCRE2_ERROR_HEAPLIMIT)
        return mp_fail_no_memory("matching the Split pattern", 0);
    return mp_fail(MP_ERR_INVALID, "E_TOK_MATCH",
                   "matching the Split pattern failed: %s; split the text", (const char *)text);
}

/* The next match from `from` on, or error PCRE2_ERROR_NOMATCH. */
static int find_match(struct mp_tok_encoder *enc, const pcre2_code *code, const char *text,
                      size_t bytes, size_t from)
{
    /* The text is known to be valid; checking it again for each match would be quadratic. */
    int result = pcre2_match(code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, enc->match,
                             enc->match_context);

    if (result == PCRE2_ERROR_JIT_STACKLIMIT)
        result = pcre2_match(code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                             enc->match, enc->match_context);
    return result;
}

/* Each match is a piece, and what lies between matches is, unless gaps are dropped. */
static enum mp_status split_pattern(struct mp_tok_encoder *enc, uint32_t next,
                                    const pcre2_code *code, bool drop_gaps, const char *text,
                                    size_t bytes, bool first)
{
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(enc->match);
    enum mp_status status = MP_OK;
    size_t done = 0;

    while (done < bytes && status == MP_OK) {
        const int result = find_match(enc, code, text, bytes, done);
        const size_t begin = result > 0 ? ends[0] : bytes, end = result > 0 ? ends[1] : bytes;

        if (result < 0 && result != PCRE2_ERROR_NOMATCH)
            return match_failed(result);
        if (begin > done && !drop_gaps)
            status = run_stages(enc, next, text + done, begin - done, first && done == 0);
        if (status == MP_OK && end > begin)
            status = run_stages(enc, next, text + begin, end - begin, first && begin == 0);
        done = end > done ? end : bytes;
    }
    return status;
}

static enum mp_status byte_level(struct mp_tok_encoder *enc, uint32_t stage, const char *text,
                                 size_t bytes, bool first)
{
    const struct mp_tok_pre *pre = &enc->tok->pres[stage];
    struct mp_tok_buf *own = &enc->stages[stage];

    if (pre->prefix_space && text[0] != ' ') {
        own->bytes = 0;
        enum mp_status status = mp_tok_buf_append(own, " ", 1);
        if (status == MP_OK)
            status = mp_tok_buf_append(own, text, bytes);
        if (status != MP_OK)
            return status;
        text = own->data;
        bytes = own->bytes;
    }
    if (pre->code == NULL)
        return run_stages(enc, stage + 1, text, bytes, first);
    return split_pattern(enc, stage + 1, pre->code, false, text, bytes, first);
}

static bool starts_with(const char *text, size_t bytes, const struct mp_tok_buf *mark)
{
    return bytes >= mark->bytes && memcmp(text, mark->data, mark->bytes) == 0;
}

static enum mp_status metaspace(struct mp_tok_encoder *enc, uint32_t stage, const char *text,
                                size_t bytes, bool first)
{
    const struct mp_tok_pre *pre = &enc->tok->pres[stage];
    const struct mp_tok_buf *mark = &pre->mark;
    struct mp_tok_buf *own = &enc->stages[stage];
    enum mp_status status = MP_OK;
    const bool marked = text[0] == ' ' || starts_with(text, bytes, mark);

    own->bytes = 0;
    own->limit = mp_tok_growth_limit(bytes);
    if (!marked &&
        (pre->prepend == MP_TOK_PREPEND_ALWAYS || (pre->prepend == MP_TOK_PREPEND_FIRST && first)))
        status = mp_tok_buf_append(own, mark->data, mark->bytes);
    if (status == MP_OK)
        status = mp_tok_append_replaced(own, text, bytes, " ", 1, mark->data, mark->bytes);
    if (status != MP_OK || !pre->cut)
        return status != MP_OK ? status : run_stages(enc, stage + 1, own->data, own->bytes, first);

    /* A word starts at each mark. */
    for (size_t begin = 0; begin < own->bytes && status == MP_OK;) {
        const size_t from =
            begin + (starts_with(own->data + begin, own->bytes - begin, mark) ? mark->bytes : 0);
        const char *hit = memmem(own->data + from, own->bytes - from, mark->data, mark->bytes);
        const size_t end = hit != NULL ? (size_t)(hit - own->data) : own->bytes;

        status = run_stages(enc, stage + 1, own->data + begin, end - begin, first && begin == 0);
        begin = end;
    }
    return status;
}

/* A piece ends behind each mark. */
static enum mp_status split_behind(struct mp_tok_encoder *enc, uint32_t stage, const char *text,
                                   size_t bytes, bool first)
{
    const struct mp_tok_buf *mark = &enc->tok->pres[stage].mark;
    enum mp_status status = MP_OK;

    for (size_t begin = 0, end; begin < bytes && status == MP_OK; begin = end) {
        const char *hit = memmem(text + begin, bytes - begin, mark->data, mark->bytes);

        end = hit != NULL ? (size_t)(hit - text) + mark->bytes : bytes;
        status = run_stages(enc, stage + 1, text + begin, end - begin, first && begin == 0);
    }
    return status;
}

/* What is merged, or found in a lattice. */
static enum mp_status encode_word(struct mp_tok_encoder *enc, const char *text, size_t bytes)
{
    switch (enc->tok->model) {
    case MP_TOK_MERGES: return mp_tok_bpe(enc, text, bytes);
    case MP_TOK_SCORES: return mp_tok_scored(enc, text, bytes);
    case MP_TOK_UNIGRAM: return mp_tok_unigram(enc, text, bytes);
    }
    return MP_OK;
}

/* The recursion is as deep as there are stages. */
static enum mp_status run_stages(struct mp_tok_encoder *enc, uint32_t stage, const char *text,
                                 size_t bytes, bool first)
{
    const struct mp_tok_pre *pre = &enc->tok->pres[stage];

    if (stage == enc->tok->pre_count)
        return encode_word(enc, text, bytes);
    switch (pre->kind) {
    case MP_TOK_PRE_SPLIT:
        return split_pattern(enc, stage + 1, pre->code, pre->drop_gaps, text, bytes, first);
    case MP_TOK_PRE_BYTE_LEVEL: return byte_level(enc, stage, text, bytes, first);
    case MP_TOK_PRE_METASPACE: return metaspace(enc, stage, text, bytes, first);
    case MP_TOK_PRE_BEHIND: return split_behind(enc, stage, text, bytes, first);
    }
    return MP_OK;
}

enum mp_status mp_tok_pre_tokenize(struct mp_tok_encoder *enc, const char *text, size_t bytes,
                                   bool first)
{
    return run_stages(enc, 0, text, bytes, first);
}
