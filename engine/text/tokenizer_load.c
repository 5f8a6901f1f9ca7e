/*
 * Reads the model and the added tokens of tokenizer.json and refuses what is not supported. Encodes
 * nothing.
 */
#include "engine/text/tokenizer_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longer texts do not name a token that is looked for at each place of each text. */
#define ADDED_BYTES_MAX 1024

enum mp_status mp_tok_check_keys(const struct mp_tok_source *source, const json_t *object,
                                 const char *what, const char *const *known)
{
    const char *key;
    json_t *value;
    char quoted[MP_QUOTE_BYTES];

    json_object_foreach((json_t *)object, key, value)
    {
        size_t i = 0;

        while (known[i] != NULL && strcmp(known[i], key) != 0)
            i++;
        if (known[i] == NULL)
            return mp_fail(MP_ERR_MODEL, "E_TOK_FIELD",
                           "field '%s' of the %s in '%s' is not known and would be ignored; "
                           "this tokenizer is not supported",
                           mp_quote(quoted, key, strlen(key)), what, source->shown);
    }
    return MP_OK;
}

enum mp_status mp_tok_refuse_type(const struct mp_tok_source *source, const char *what,
                                  const char *type)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_TOK_TYPE",
                   "%s of type '%s' in '%s' is not supported; use a model with a byte-level BPE, "
                   "byte-fallback BPE or Unigram tokenizer",
                   what, mp_quote(quoted, type, strlen(type)), source->shown);
}

/* Fields that change ids when they are set, and that are refused by name then. */
static enum mp_status refuse_set(const struct mp_tok_source *source, const json_t *object,
                                 const char *key)
{
    const json_t *value = json_object_get(object, key);
    char got[MP_QUOTE_BYTES];

    if (value == NULL || json_is_null(value) ||
        (json_is_string(value) && json_string_length(value) == 0))
        return MP_OK;
    return mp_fail(MP_ERR_MODEL, "E_TOK_FIELD",
                   "'%s' in '%s' is %s, need null; this tokenizer is not supported", key,
                   source->shown, mp_json_describe(got, value));
}

/* ---- vocabulary */

static enum mp_status bad_id(const struct mp_tok_source *source, const char *content, size_t bytes,
                             const json_t *value)
{
    char quoted[MP_QUOTE_BYTES], got[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_TOK_ID_RANGE",
                   "id of token '%s' in '%s': got %s, need an integer from 0 to %u",
                   mp_quote(quoted, content, bytes), source->shown, mp_json_describe(got, value),
                   MP_TOK_VOCAB_MAX - 1);
}

static enum mp_status check_token(const struct mp_tok_source *source, const char *content,
                                  size_t bytes, const json_t *id, uint32_t *count)
{
    char quoted[MP_QUOTE_BYTES];

    if (bytes > MP_TOK_TOKEN_BYTES_MAX)
        return mp_fail(
            MP_ERR_MODEL, "E_TOK_LONG", "token '%s' in '%s' has %zu bytes, need at most %u",
            mp_quote(quoted, content, bytes), source->shown, bytes, MP_TOK_TOKEN_BYTES_MAX);
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= MP_TOK_VOCAB_MAX)
        return bad_id(source, content, bytes, id);
    if (json_integer_value(id) >= *count)
        *count = (uint32_t)json_integer_value(id) + 1;
    return MP_OK;
}

static enum mp_status id_taken(const struct mp_tok_source *source, const struct mp_tok_vocab *vocab,
                               const char *content, size_t bytes, uint32_t id)
{
    char quoted[MP_QUOTE_BYTES], other[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_TOK_ID_TWICE",
                   "token '%s' in '%s' has id %" PRIu32 ", which token '%s' has already",
                   mp_quote(quoted, content, bytes), source->shown, id,
                   mp_quote(other, mp_tok_vocab_content(vocab, id), vocab->bytes[id]));
}

/* Check all contents and ids before anything is sized by them. */
static enum mp_status check_tokens(const struct mp_tok_source *source, json_t *vocab,
                                   const json_t *added, uint32_t *count)
{
    enum mp_status status = MP_OK;
    const char *content;
    size_t bytes, i;
    json_t *value;

    json_object_keylen_foreach(vocab, content, bytes, value)
    {
        status = check_token(source, content, bytes, value, count);
        if (status != MP_OK)
            return status;
    }
    json_array_foreach(added, i, value)
    {
        if (!json_is_object(value) || !json_is_string(json_object_get(value, "content")))
            return mp_fail(MP_ERR_MODEL, "E_TOK_ADDED",
                           "entry %zu of added_tokens in '%s' is not an object with a 'content'", i,
                           source->shown);
        content = json_string_value(json_object_get(value, "content"));
        bytes = json_string_length(json_object_get(value, "content"));
        if (bytes == 0 || bytes > ADDED_BYTES_MAX)
            return mp_fail(MP_ERR_MODEL, "E_TOK_ADDED",
                           "entry %zu of added_tokens in '%s' has a content of %zu bytes, need 1 "
                           "to %d",
                           i, source->shown, bytes, ADDED_BYTES_MAX);
        status = check_token(source, content, bytes, json_object_get(value, "id"), count);
        if (status != MP_OK)
            return status;
    }
    if (*count == 0)
        return mp_fail(MP_ERR_MODEL, "E_TOK_EMPTY", "the vocabulary in '%s' has no tokens",
                       source->shown);
    return MP_OK;
}

static enum mp_status load_vocab(const struct mp_tok_source *source, json_t *object,
                                 struct mp_tokenizer *tok)
{
    const char *content;
    size_t bytes;
    json_t *value;

    json_object_keylen_foreach(object, content, bytes, value)
    {
        const uint32_t id = (uint32_t)json_integer_value(value);
        enum mp_status status;

        if ((tok->vocab.flags[id] & MP_TOK_USED) != 0)
            return id_taken(source, &tok->vocab, content, bytes, id);
        status = mp_tok_vocab_add(&tok->vocab, source->shown, content, bytes, id, MP_TOK_MODEL);
        if (status != MP_OK)
            return status;
    }
    return MP_OK;
}

static enum mp_status added_flags(const struct mp_tok_source *source, const json_t *entry,
                                  uint8_t *flags)
{
    static const struct {
        const char *key;
        uint8_t flag;
    } fields[] = {
        { "single_word", MP_TOK_SINGLE_WORD }, { "lstrip", MP_TOK_LSTRIP },
        { "rstrip", MP_TOK_RSTRIP },           { "normalized", MP_TOK_NORMALIZED },
        { "special", MP_TOK_SPECIAL },
    };
    static const char *const known[] = { "id",     "content",    "single_word", "lstrip",
                                         "rstrip", "normalized", "special",     NULL };
    enum mp_status status = mp_tok_check_keys(source, entry, "added token", known);

    *flags = MP_TOK_ADDED;
    for (size_t i = 0; i < MP_ARRAY_LEN(fields) && status == MP_OK; i++) {
        bool set = false;

        status = mp_json_bool(entry, fields[i].key, source->name, &set);
        if (set)
            *flags |= fields[i].flag;
    }
    return status;
}

static enum mp_status load_added(const struct mp_tok_source *source, const json_t *array,
                                 struct mp_tokenizer *tok)
{
    struct mp_tok_vocab *vocab = &tok->vocab;
    char quoted[MP_QUOTE_BYTES];
    json_t *entry;
    size_t i;

    json_array_foreach(array, i, entry)
    {
        const char *content = json_string_value(json_object_get(entry, "content"));
        const size_t bytes = json_string_length(json_object_get(entry, "content"));
        const uint32_t id = (uint32_t)json_integer_value(json_object_get(entry, "id"));
        const uint32_t known = mp_tok_vocab_find(vocab, content, bytes);
        uint8_t flags;
        enum mp_status status = added_flags(source, entry, &flags);

        if (status != MP_OK)
            return status;
        if (known != MP_TOKEN_NONE && known != id)
            return mp_fail(MP_ERR_MODEL, "E_TOK_ADDED",
                           "added token '%s' in '%s' has id %" PRIu32 ", the vocabulary has it "
                           "as %" PRIu32,
                           mp_quote(quoted, content, bytes), source->shown, id, known);
        if (known == MP_TOKEN_NONE && (vocab->flags[id] & MP_TOK_USED) != 0)
            return id_taken(source, vocab, content, bytes, id);
        if (known != MP_TOKEN_NONE && (vocab->flags[id] & MP_TOK_ADDED) != 0)
            return mp_fail(MP_ERR_MODEL, "E_TOK_ADDED", "added token '%s' in '%s' is given twice",
                           mp_quote(quoted, content, bytes), source->shown);
        if (known != MP_TOKEN_NONE) {
            vocab->flags[id] |= flags;
            continue;
        }
        status = mp_tok_vocab_add(vocab, source->shown, content, bytes, id, flags);
        if (status != MP_OK)
            return status;
    }
    return MP_OK;
}

/* ---- the model */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/*
 * <0xNN> of a byte-fallback vocabulary. What begins and ends like one must be one: the reference
 * reads the two characters in the middle as a number whatever they are.
 */
static enum mp_status load_byte_tokens(const struct mp_tok_source *source, struct mp_tokenizer *tok)
{
    char quoted[MP_QUOTE_BYTES];

    for (uint32_t id = 0; id < tok->vocab.count; id++) {
        const char *content = mp_tok_vocab_content(&tok->vocab, id);
        const size_t bytes = tok->vocab.bytes[id];

        if ((tok->vocab.flags[id] & MP_TOK_USED) == 0 || bytes < 4 ||
            memcmp(content, "<0x", 3) != 0 || content[bytes - 1] != '>')
            continue;
        if (bytes != 6 || hex_digit(content[3]) < 0 || hex_digit(content[4]) < 0)
            return mp_fail(MP_ERR_MODEL, "E_TOK_BYTE",
                           "byte token '%s' (id %" PRIu32 ") in '%s': need two of 0-9A-F after 0x",
                           mp_quote(quoted, content, bytes), id, source->shown);
        tok->byte_ids[hex_digit(content[3]) * 16 + hex_digit(content[4])] = id;
    }
    return MP_OK;
}

static void find_byte_level_tokens(struct mp_tokenizer *tok)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char out[4];
        const size_t put = mp_tok_utf8_put(out, mp_tok_byte_char((unsigned char)byte));

        tok->byte_ids[byte] = mp_tok_vocab_find_model(&tok->vocab, out, put);
    }
}

/* Text that no token can spell would vanish without a word; such vocabularies are refused. */
static enum mp_status check_cover(const struct mp_tok_source *source,
                                  const struct mp_tokenizer *tok)
{
    if (tok->unk != MP_TOKEN_NONE)
        return MP_OK;
    if (!tok->byte_level && !tok->byte_fallback)
        return mp_fail(MP_ERR_MODEL, "E_TOK_COVER",
                       "the vocabulary in '%s' has neither bytes nor an unknown token, so text "
                       "would be lost",
                       source->shown);
    for (unsigned byte = 0; byte < 256; byte++) {
        /* These do not occur in UTF-8. */
        if (byte == 0xc0 || byte == 0xc1 || byte >= 0xf5)
            continue;
        if (tok->byte_ids[byte] == MP_TOKEN_NONE)
            return mp_fail(MP_ERR_MODEL, "E_TOK_COVER",
                           "the vocabulary in '%s' has no token for byte 0x%02X and no unknown "
                           "token, so text would be lost",
                           source->shown, byte);
    }
    return MP_OK;
}

static enum mp_status load_unk(const struct mp_tok_source *source, const json_t *model,
                               struct mp_tokenizer *tok)
{
    const char *unk;
    enum mp_status status = mp_json_string_or(model, "unk_token", source->name, NULL, &unk);

    if (status == MP_OK && unk != NULL)
        tok->unk = mp_tok_vocab_find_model(&tok->vocab, unk,
                                           json_string_length(json_object_get(model, "unk_token")));
    return status;
}

/* The types of models, and what their objects may have. */
static enum mp_status find_model(const struct mp_tok_source *source, const json_t *model,
                                 enum mp_tok_model *kind_p)
{
    static const char *const names[] = { "BPE", MP_TOK_SCORED_TYPE, "Unigram" };
    static const char *const merges[] = { "type",
                                          "dropout",
                                          "unk_token",
                                          "continuing_subword_prefix",
                                          "end_of_word_suffix",
                                          "fuse_unk",
                                          "byte_fallback",
                                          "ignore_merges",
                                          "vocab",
                                          "merges",
                                          NULL };
    static const char *const scores[] = { "type", "unk_id", "vocab", "byte_fallback", NULL };
    static const char *const unset[] = { "dropout", "continuing_subword_prefix",
                                         "end_of_word_suffix" };
    const char *type;
    size_t kind = 0;
    enum mp_status status = mp_json_string_or(model, "type", source->name, "BPE", &type);

    if (status != MP_OK)
        return status;
    while (kind < MP_ARRAY_LEN(names) && strcmp(type, names[kind]) != 0)
        kind++;
    if (kind == MP_ARRAY_LEN(names))
        return mp_tok_refuse_type(source, "model", type);
    *kind_p = (enum mp_tok_model)kind;
    status = mp_tok_check_keys(source, model, "model", *kind_p == MP_TOK_MERGES ? merges : scores);
    for (size_t i = 0; i < MP_ARRAY_LEN(unset) && status == MP_OK; i++)
        status = refuse_set(source, model, unset[i]);
    return status;
}

/* A vocabulary whose merges are read later. */
static enum mp_status load_merging(const struct mp_tok_source *source, const json_t *model,
                                   json_t *vocab, struct mp_tokenizer *tok)
{
    const char *name = source->name;
    enum mp_status status = mp_json_bool_or(model, "fuse_unk", name, false, &tok->fuse_unk);

    if (status == MP_OK)
        status = mp_json_bool_or(model, "ignore_merges", name, false, &tok->ignore_merges);
    if (status == MP_OK)
        status = load_vocab(source, vocab, tok);
    return status == MP_OK ? load_unk(source, model, tok) : status;
}

/* Room for all ids, once they are known to be right. */
static enum mp_status init_vocab(const struct mp_tok_source *source, json_t *vocab,
                                 const json_t *added, struct mp_tokenizer *tok)
{
    uint32_t count = 0;
    enum mp_status status = MP_OK;

    if (tok->model != MP_TOK_MERGES) {
        status = mp_tok_check_pieces(source, vocab, tok->model == MP_TOK_SCORES);
        count = (uint32_t)json_array_size(vocab);
    }
    if (status == MP_OK)
        status = check_tokens(source, vocab, added, &count);
    if (status == MP_OK)
        status = mp_tok_vocab_init(&tok->vocab, count,
                                   (uint64_t)json_object_size(vocab) + json_array_size(vocab) +
                                       json_array_size(added));
    return status;
}

/* The pre-tokenizer is known by now: it says whether the vocabulary is byte-level. */
enum mp_status mp_tok_load_model(const struct mp_tok_source *source, const json_t *root,
                                 struct mp_tokenizer *tok)
{
    json_t *model, *vocab, *merges = NULL, *added;
    const char *name = source->name;
    enum mp_status status;

    status = mp_json_object(root, "model", name, &model);
    if (status == MP_OK)
        status = find_model(source, model, &tok->model);
    if (status == MP_OK)
        status = tok->model == MP_TOK_MERGES ? mp_json_object(model, "vocab", name, &vocab)
                                             : mp_json_array(model, "vocab", name, &vocab);
    if (status == MP_OK && tok->model == MP_TOK_MERGES)
        status = mp_json_array(model, "merges", name, &merges);
    if (status == MP_OK)
        status = mp_json_array_or_null(root, "added_tokens", name, &added);
    if (status == MP_OK)
        status = mp_json_bool_or(model, "byte_fallback", name, false, &tok->byte_fallback);
    if (status == MP_OK && tok->byte_level && tok->model != MP_TOK_MERGES)
        status = mp_fail(MP_ERR_MODEL, "E_TOK_STAGES",
                         "'%s' has a model with scores behind the pre-tokenizer ByteLevel, which "
                         "is not supported",
                         source->shown);
    if (status == MP_OK)
        status = init_vocab(source, vocab, added, tok);
    if (status == MP_OK)
        status = tok->model == MP_TOK_MERGES ? load_merging(source, model, vocab, tok)
                                             : mp_tok_load_pieces(source, model, vocab, tok);
    if (status == MP_OK && tok->byte_level)
        find_byte_level_tokens(tok);
    else if (status == MP_OK && tok->byte_fallback)
        status = load_byte_tokens(source, tok);
    if (status == MP_OK)
        status = check_cover(source, tok);
    if (status == MP_OK && merges != NULL)
        status = mp_tok_load_merges(source, merges, tok);
    return status == MP_OK ? load_added(source, added, tok) : status;
}

/* Tokens that are matched after normalization are decoded to their normalized content. */
static enum mp_status index_patterns(struct mp_tokenizer *tok)
{
    tok->pattern_of = calloc(tok->vocab.count, sizeof(*tok->pattern_of));
    if (tok->pattern_of == NULL)
        return mp_fail_no_memory("added tokens", (uint64_t)tok->vocab.count * 4);
    for (uint32_t i = 0; i < tok->normalized.count; i++)
        tok->pattern_of[tok->normalized.patterns[i].id] = i + 1;
    return MP_OK;
}

enum mp_status mp_tok_load_matchers(const struct mp_tok_source *source, struct mp_tokenizer *tok)
{
    struct mp_tok_buf work[2] = { 0 };
    enum mp_status status = MP_OK;
    char quoted[MP_QUOTE_BYTES];

    for (uint32_t id = 0; id < tok->vocab.count && status == MP_OK; id++) {
        const uint8_t flags = tok->vocab.flags[id];
        const char *text = mp_tok_vocab_content(&tok->vocab, id);
        size_t bytes = tok->vocab.bytes[id];

        if ((flags & MP_TOK_ADDED) == 0)
            continue;
        if ((flags & MP_TOK_NORMALIZED) == 0) {
            status = mp_tok_matcher_add(&tok->raw, text, bytes, id);
            continue;
        }
        if ((flags & MP_TOK_SPECIAL) != 0 && tok->norm_count > 0)
            tok->special_normalized = true;
        status = mp_tok_normalize(tok, work, &text, &bytes);
        if (status == MP_OK && bytes == 0)
            status = mp_fail(
                MP_ERR_MODEL, "E_TOK_ADDED",
                "added token '%s' in '%s' is empty once it is normalized",
                mp_quote(quoted, mp_tok_vocab_content(&tok->vocab, id), tok->vocab.bytes[id]),
                source->shown);
        if (status == MP_OK)
            status = mp_tok_matcher_add(&tok->normalized, text, bytes, id);
    }
    mp_tok_matcher_seal(&tok->raw);
    mp_tok_matcher_seal(&tok->normalized);
    if (status == MP_OK && tok->normalized.count > 0)
        status = index_patterns(tok);
    mp_tok_buf_free(&work[0]);
    mp_tok_buf_free(&work[1]);
    return status;
}
