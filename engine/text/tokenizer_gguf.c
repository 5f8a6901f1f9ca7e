/*
 * The tokenizer of a GGUF file. Its metadata has the vocabulary, and the merges and the name of the
 * pre-tokenizer (byte-level BPE) or scores (SentencePiece); from them this file builds the
 * tokenizer.json that such a model is published with, and loads that.
 */
#include "engine/text/tokenizer_export.h"
#include "engine/text/tokenizer_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "vmm/base/assert.h"

#define KEY(name) "tokenizer.ggml." name

#define MARK MP_TOK_MARK

struct making {
    const struct mp_gguf *gguf;
    const char *name; /* of the file */
    char file[MP_QUOTE_BYTES];
    const struct mp_tok_gguf_pre *pre;             /* NULL: pieces with scores */
    json_t *root, *model, *vocab, *added, *merges; /* the others belong to the first */
};

/* Gemma 4's, which no key names: no bytes, but marks for spaces, and tokens for bytes that have no
 * other. */
static const struct mp_tok_gguf_pre marked = { .name = "gemma4", .add_bos = true };

static bool equals(const char *text, uint64_t bytes, const char *other)
{
    return strlen(other) == bytes && memcmp(text, other, bytes) == 0;
}

/* A file with ids only says so, or says nothing. */
static enum mp_status check_model(struct making *making, bool *scored_p)
{
    const char *model = "none";
    char quoted[MP_QUOTE_BYTES];
    uint64_t bytes = strlen(model);
    enum mp_status status = MP_OK;

    if (mp_gguf_find_value(making->gguf, KEY("model")) != NULL)
        status = mp_gguf_get_string(making->gguf, KEY("model"), &model, &bytes);
    *scored_p = equals(model, bytes, "llama");
    making->pre = equals(model, bytes, marked.name) ? &marked : NULL;
    if (status != MP_OK || *scored_p || making->pre != NULL || equals(model, bytes, "gpt2"))
        return status;
    if (equals(model, bytes, "none") || equals(model, bytes, "no_vocab"))
        return mp_fail(MP_ERR_MODEL, "E_FILE_MISSING",
                       "'%s' has no vocabulary; give token ids (moepager bench --tokens-file)",
                       making->file);
    return mp_fail(MP_ERR_MODEL, "E_TOK_TYPE",
                   "key '" KEY("model") "' in '%s': got '%s', need 'gpt2', a byte-level BPE, "
                                        "'llama', pieces with scores, or 'gemma4', a BPE with "
                                        "marks for spaces; give token ids instead of text",
                   making->file, mp_quote(quoted, model, bytes));
}

static enum mp_status find_pre(struct making *making)
{
    char quoted[MP_QUOTE_BYTES], list[512] = "";
    const char *name = NULL;
    uint64_t bytes = 0;
    size_t used = 0;
    enum mp_status status = mp_gguf_get_string(making->gguf, KEY("pre"), &name, &bytes);

    if (status != MP_OK)
        return status;
    for (size_t i = 0; (making->pre = mp_tok_gguf_pre_at(i)) != NULL; i++) {
        if (equals(name, bytes, making->pre->name))
            return MP_OK;
        if (used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "",
                                     making->pre->name);
    }
    return mp_fail(MP_ERR_MODEL, "E_TOK_PATTERN",
                   "key '" KEY("pre") "' in '%s': got '%s', this engine knows %s; give token ids "
                                      "instead of text",
                   making->file, mp_quote(quoted, name, bytes), list);
}

static enum mp_status fail_memory(void)
{
    return mp_fail_no_memory("a tokenizer", 0);
}

/* The stages that cut text into words, and the one that makes bytes of them. */
static json_t *make_stages(const struct mp_tok_gguf_pre *pre)
{
    json_t *bytes = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "trim_offsets", 0, "use_regex", (int)pre->own);
    json_t *stages;
    int failed = 0;

    if (pre->patterns[0] == NULL)
        return bytes;
    stages = json_array();
    for (size_t i = 0; i < MP_TOK_GGUF_PATTERNS_MAX && pre->patterns[i] != NULL; i++)
        failed |= json_array_append_new(
            stages, pre->patterns[i] == mp_tok_pattern_digit
                        ? json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1)
                        : json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                    pre->patterns[i], "behavior", "Isolated", "invert", 0));
    failed |= json_array_append_new(stages, bytes);
    if (failed == 0)
        return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", stages);
    json_decref(stages);
    return NULL;
}

static void find_places(struct making *making)
{
    making->model = json_object_get(making->root, "model");
    making->vocab = json_object_get(making->model, "vocab");
    making->merges = json_object_get(making->model, "merges");
    making->added = json_object_get(making->root, "added_tokens");
}

/* A space becomes a mark, and back; what no piece has is written as its bytes. */
static enum mp_status make_marked_root(struct making *making)
{
    making->root = json_pack(
        "{s:s, s:{s:s, s:{s:s}, s:s}, s:{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]},"
        " s:{s:s, s:b, s:b, s:{}, s:[]}, s:[]}",
        "version", "1.0", "normalizer", "type", "Replace", "pattern", "String", " ", "content",
        MARK, "decoder", "type", "Sequence", "decoders", "type", "Replace", "pattern", "String",
        MARK, "content", " ", "type", "ByteFallback", "type", "Fuse", "model", "type", "BPE",
        "byte_fallback", 1, "fuse_unk", 1, "vocab", "merges", "added_tokens");
    if (making->root == NULL)
        return fail_memory();
    find_places(making);
    return MP_OK;
}

/* A space becomes a mark, also one that is put before the text, and on the way back. */
static enum mp_status make_scored_root(struct making *making)
{
    bool prefix = true;
    json_t *prepend, *strip;
    enum mp_status status = MP_OK;

    if (mp_gguf_find_value(making->gguf, KEY("add_space_prefix")) != NULL)
        status = mp_gguf_get_bool(making->gguf, KEY("add_space_prefix"), &prefix);
    if (status != MP_OK)
        return status;
    making->root = json_pack(
        "{s:s, s:{s:s, s:[{s:s, s:{s:s}, s:s}]}, s:{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]},"
        " s:{s:s, s:b, s:[]}, s:[]}",
        "version", "1.0", "normalizer", "type", "Sequence", "normalizers", "type", "Replace",
        "pattern", "String", " ", "content", MARK, "decoder", "type", "Sequence", "decoders",
        "type", "Replace", "pattern", "String", MARK, "content", " ", "type", "ByteFallback",
        "type", "Fuse", "model", "type", MP_TOK_SCORED_TYPE, "byte_fallback", 1, "vocab",
        "added_tokens");
    if (making->root == NULL)
        return fail_memory();
    find_places(making);
    if (!prefix)
        return MP_OK;
    prepend = json_pack("{s:s, s:s}", "type", "Prepend", "prepend", MARK);
    strip =
        json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0);
    if (json_array_insert_new(
            json_object_get(json_object_get(making->root, "normalizer"), "normalizers"), 0,
            prepend) != 0) {
        json_decref(strip);
        return fail_memory();
    }
    return json_array_append_new(
               json_object_get(json_object_get(making->root, "decoder"), "decoders"), strip) == 0
               ? MP_OK
               : fail_memory();
}

/* Objects with room for all that follows: everything but vocabulary, tokens and merges. */
static enum mp_status make_root(struct making *making)
{
    const struct mp_tok_gguf_pre *pre = making->pre;

    if (pre == NULL)
        return make_scored_root(making);
    if (pre == &marked)
        return make_marked_root(making);
    making->root =
        json_pack("{s:s, s:n, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:b, s:{}, s:[]}, s:[]}", "version",
                  "1.0", "normalizer", "decoder", "type", "ByteLevel", "add_prefix_space", 1,
                  "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE", "ignore_merges",
                  (int)pre->ignore_merges, "vocab", "merges", "added_tokens");
    if (making->root == NULL)
        return fail_memory();
    find_places(making);
    if (pre->normalizer != NULL &&
        json_object_set_new(making->root, "normalizer",
                            json_pack("{s:s}", "type", pre->normalizer)) != 0)
        return fail_memory();
    return json_object_set_new(making->root, "pre_tokenizer", make_stages(pre)) == 0
               ? MP_OK
               : fail_memory();
}

/* A text of the metadata as a value. */
static enum mp_status make_text(const struct making *making, const char *what, uint64_t index,
                                const struct mp_gguf_value *text, json_t **value_p)
{
    char quoted[MP_QUOTE_BYTES];

    *value_p = NULL;
    if (!mp_is_utf8((const char *)text->data, text->count))
        return mp_fail(MP_ERR_MODEL, "E_TOK_TYPE", "%s %" PRIu64 " in '%s' is '%s', need UTF-8",
                       what, index, making->file,
                       mp_quote(quoted, (const char *)text->data, text->count));
    *value_p = json_stringn((const char *)text->data, text->count);
    return *value_p != NULL ? MP_OK : fail_memory();
}

static enum mp_status add_to_vocab(const struct making *making, uint64_t id,
                                   const struct mp_gguf_value *token)
{
    const char *text = (const char *)token->data;
    char quoted[MP_QUOTE_BYTES];

    if (!mp_is_utf8(text, token->count) || memchr(text, '\0', token->count) != NULL)
        return mp_fail(MP_ERR_MODEL, "E_TOK_TYPE",
                       "token %" PRIu64 " in '%s' is '%s', need UTF-8 without NUL", id,
                       making->file, mp_quote(quoted, text, token->count));
    if (json_object_getn(making->vocab, text, token->count) != NULL)
        return mp_fail(MP_ERR_MODEL, "E_TOK_TWICE",
                       "token '%s' is in '%s' twice, the second time with id %" PRIu64,
                       mp_quote(quoted, text, token->count), making->file, id);
    return json_object_setn_new(making->vocab, text, token->count, json_integer((json_int_t)id)) ==
                   0
               ? MP_OK
               : fail_memory();
}

static enum mp_status add_added(const struct making *making, uint64_t id, bool special,
                                const struct mp_gguf_value *token)
{
    json_t *text, *entry;
    enum mp_status status = make_text(making, "token", id, token, &text);

    if (status != MP_OK)
        return status;
    entry = json_pack("{s:I, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id, "content", text,
                      "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special",
                      (int)special);
    return json_array_append_new(making->added, entry) == 0 ? MP_OK : fail_memory();
}

/* A list of texts of at most so many. */
static enum mp_status get_texts(const struct making *making, const char *key, uint32_t max,
                                struct mp_gguf_value *list_p)
{
    enum mp_status status = mp_gguf_get_array(making->gguf, key, MP_GGUF_STRING, list_p);

    if (status == MP_OK && list_p->count > max)
        return mp_fail(MP_ERR_MODEL, "E_TOK_LONG",
                       "key '%s' in '%s' has %" PRIu64 " texts, need at most %" PRIu32, key,
                       making->file, list_p->count, max);
    return status;
}

/* The next entry of a vocabulary of pieces: text and score, or what can stand for them. */
static enum mp_status add_piece(const struct making *making, uint64_t id, int64_t kind,
                                double score, const struct mp_gguf_value *token)
{
    json_t *text = NULL, *entry;
    enum mp_status status = MP_OK;

    if (kind == MP_GGUF_TOKEN_CONTROL || kind == MP_GGUF_TOKEN_USER || kind == MP_GGUF_TOKEN_UNUSED)
        return json_array_append_new(making->vocab, json_null()) == 0 ? MP_OK : fail_memory();
    status = make_text(making, "token", id, token, &text);
    if (status != MP_OK)
        return status;
    entry =
        kind == MP_GGUF_TOKEN_NORMAL ? json_pack("[o, f]", text, score) : json_pack("[o, n]", text);
    if (json_array_append_new(making->vocab, entry) != 0)
        return fail_memory();
    if (kind == MP_GGUF_TOKEN_UNKNOWN &&
        json_object_set_new(making->model, "unk_id", json_integer((json_int_t)id)) != 0)
        return fail_memory();
    return MP_OK;
}

static enum mp_status add_token(const struct making *making, uint64_t id, int64_t kind,
                                double score, const struct mp_gguf_value *token)
{
    const bool scored = making->pre == NULL;
    const bool special = kind == MP_GGUF_TOKEN_CONTROL || (kind == MP_GGUF_TOKEN_UNKNOWN && scored);
    enum mp_status status = MP_OK;

    if (scored)
        status = add_piece(making, id, kind, score, token);
    if (status == MP_OK && (special || kind == MP_GGUF_TOKEN_USER))
        return add_added(making, id, special, token);
    if (scored || kind == MP_GGUF_TOKEN_UNUSED)
        return status;
    return add_to_vocab(making, id, token);
}

/* A list as long as that of the tokens, if the file has it. */
static enum mp_status get_beside(const struct making *making, const char *key, unsigned type,
                                 uint64_t count, struct mp_gguf_value *list_p)
{
    enum mp_status status = mp_gguf_get_array(making->gguf, key, type, list_p);

    if (status == MP_OK && list_p->count != count)
        return mp_fail(MP_ERR_MODEL, "E_TOK_TYPE",
                       "'%s' has %" PRIu64 " tokens and %" PRIu64 " in '%s', need as many",
                       making->file, count, list_p->count, key);
    return status;
}

static enum mp_status bad_score(const struct making *making, uint64_t id, double score)
{
    return mp_fail(MP_ERR_MODEL, "E_TOK_PIECE",
                   "score of token %" PRIu64 " in '%s' is %g, need a number", id, making->file,
                   score);
}

static enum mp_status add_tokens(const struct making *making)
{
    struct mp_gguf_value tokens, kinds = { .count = 0 }, scores = { .count = 0 }, token, number;
    const bool typed = mp_gguf_find_value(making->gguf, KEY("token_type")) != NULL;
    const bool scored = making->pre == NULL;
    enum mp_status status = get_texts(making, KEY("tokens"), MP_TOK_VOCAB_MAX, &tokens);

    if (status == MP_OK && typed)
        status = get_beside(making, KEY("token_type"), MP_GGUF_I32, tokens.count, &kinds);
    if (status == MP_OK && scored)
        status = get_beside(making, KEY("scores"), MP_GGUF_F32, tokens.count, &scores);
    for (uint64_t id = 0; status == MP_OK && mp_gguf_array_next(&tokens, &token); id++) {
        int64_t kind = MP_GGUF_TOKEN_NORMAL;
        double score = 0;

        if (typed && !(mp_gguf_array_next(&kinds, &number) && mp_gguf_as_i64(&number, &kind)))
            mp_unreachable(); /* as many, all of one kind */
        if (scored && !(mp_gguf_array_next(&scores, &number) && mp_gguf_as_f64(&number, &score)))
            mp_unreachable();
        status = isfinite(score) ? add_token(making, id, kind, score, &token)
                                 : bad_score(making, id, score);
    }
    return status;
}

static enum mp_status add_merges(const struct making *making)
{
    struct mp_gguf_value merges, merge;
    enum mp_status status;

    if (making->pre == NULL)
        return MP_OK;
    status = get_texts(making, KEY("merges"), MP_TOK_MERGES_MAX, &merges);
    for (uint64_t i = 0; status == MP_OK && mp_gguf_array_next(&merges, &merge); i++) {
        json_t *text;

        status = make_text(making, "merge", i, &merge, &text);
        if (status == MP_OK && json_array_append_new(making->merges, text) != 0)
            status = fail_memory();
    }
    return status;
}

/* `*yes_p` and the id, if a text gets this token at its beginning or end. */
static enum mp_status find_frame(const struct making *making, const char *add_key,
                                 const char *id_key, bool *yes_p, uint64_t *id_p)
{
    enum mp_status status = MP_OK;

    if (mp_gguf_find_value(making->gguf, add_key) != NULL)
        status = mp_gguf_get_bool(making->gguf, add_key, yes_p);
    if (status == MP_OK && *yes_p)
        status = mp_gguf_get_u64(making->gguf, id_key, id_p);
    if (status == MP_OK && *id_p > MP_TOK_VOCAB_MAX)
        *id_p = MP_TOK_VOCAB_MAX; /* Refused with the name of the place later. */
    return status;
}

static json_t *frame_piece(json_t *specials, const char *name, uint64_t id)
{
    if (json_object_set_new(specials, name, json_pack("{s:[I]}", "ids", (json_int_t)id)) != 0)
        return NULL;
    return json_pack("{s:{s:s}}", "SpecialToken", "id", name);
}

static enum mp_status add_frame(const struct making *making)
{
    bool begins = making->pre == NULL || making->pre->add_bos, ends = false;
    uint64_t bos = 0, eos = 0;
    json_t *single, *specials, *post;
    int failed = 0;
    enum mp_status status =
        find_frame(making, KEY("add_bos_token"), KEY("bos_token_id"), &begins, &bos);

    if (status == MP_OK)
        status = find_frame(making, KEY("add_eos_token"), KEY("eos_token_id"), &ends, &eos);
    if (status != MP_OK)
        return status;
    post = json_pack("{s:s, s:[], s:{}}", "type", "TemplateProcessing", "single", "special_tokens");
    if (post == NULL)
        return fail_memory();
    single = json_object_get(post, "single");
    specials = json_object_get(post, "special_tokens");
    if (begins)
        failed |= json_array_append_new(single, frame_piece(specials, "bos", bos));
    failed |= json_array_append_new(single, json_pack("{s:{s:s}}", "Sequence", "id", "A"));
    if (ends)
        failed |= json_array_append_new(single, frame_piece(specials, "eos", eos));
    failed |= json_object_set_new(making->root, "post_processor", post);
    return failed == 0 ? MP_OK : fail_memory();
}

/* The token that the key names, if the tokenizer has it. */
static enum mp_status name_token(const struct making *making, const struct mp_tokenizer *tok,
                                 const char *key, uint32_t *id_p)
{
    uint64_t id = 0;
    size_t bytes;
    enum mp_status status = MP_OK;

    if (mp_gguf_find_value(making->gguf, key) == NULL)
        return MP_OK;
    status = mp_gguf_get_u64(making->gguf, key, &id);
    if (status == MP_OK &&
        (id >= tok->vocab.count || mp_tokenizer_content(tok, (uint32_t)id, &bytes) == NULL))
        return mp_fail(MP_ERR_MODEL, "E_TOK_CONFIG",
                       "key '%s' in '%s' is %" PRIu64 ", which no token has", key, making->file,
                       id);
    if (status == MP_OK)
        *id_p = (uint32_t)id;
    return status;
}

enum mp_status mp_tok_from_gguf(const struct mp_gguf *gguf, struct mp_tokenizer **tok_p)
{
    struct making making = { .gguf = gguf, .name = mp_files_name(mp_gguf_files(gguf), 0) };
    static enum mp_status (*const steps[])(const struct making *) = { add_tokens, add_merges,
                                                                      add_frame };
    struct mp_tokenizer *tok = NULL;
    bool scored;
    enum mp_status status;

    mp_quote(making.file, making.name, strlen(making.name));
    status = check_model(&making, &scored);
    if (status == MP_OK && !scored && making.pre == NULL)
        status = find_pre(&making);
    if (status == MP_OK)
        status = make_root(&making);
    for (size_t i = 0; status == MP_OK && i < MP_ARRAY_LEN(steps); i++)
        status = steps[i](&making);
    if (status == MP_OK)
        status = mp_tok_from_json(making.name, making.root, &tok);
    if (status == MP_OK)
        status = name_token(&making, tok, KEY("bos_token_id"), &tok->bos);
    if (status == MP_OK)
        status = name_token(&making, tok, KEY("eos_token_id"), &tok->eos);
    if (status == MP_OK)
        *tok_p = tok;
    else
        mp_tokenizer_destroy(tok);
    json_decref(making.root);
    return status;
}
