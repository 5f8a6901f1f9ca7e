/*
 * Loads normalizers, pre-tokenizers and post-processors. Runs none of them.
 */
#include "engine/text/tokenizer_impl.h"

#include <stdio.h>
#include <string.h>

/* Prefixes, marks and patterns are a few characters; anything long is not what it should be. */
#define STRING_BYTES_MAX 1024

enum mp_status mp_tok_load_string(const struct mp_tok_source *source, const json_t *object,
                                  const char *key, const char *what, struct mp_tok_buf *out)
{
    const char *text;
    enum mp_status status = mp_json_string(object, key, source->name, &text);

    if (status != MP_OK)
        return status;
    const size_t bytes = json_string_length(json_object_get(object, key));
    if (bytes > STRING_BYTES_MAX)
        return mp_fail(MP_ERR_MODEL, "E_TOK_LONG",
                       "'%s' of the %s in '%s' has %zu bytes, need at "
                       "most %d",
                       key, what, source->shown, bytes, STRING_BYTES_MAX);
    return mp_tok_buf_append(out, text, bytes);
}

enum mp_status mp_tok_load_pattern_string(const struct mp_tok_source *source, const json_t *object,
                                          const char *what, struct mp_tok_buf *out)
{
    char got[MP_QUOTE_BYTES];
    json_t *pattern;
    enum mp_status status = mp_json_object(object, "pattern", source->name, &pattern);

    if (status != MP_OK)
        return status;
    if (json_object_size(pattern) != 1 || !json_is_string(json_object_get(pattern, "String")))
        return mp_fail(MP_ERR_MODEL, "E_TOK_PATTERN",
                       "the %s in '%s' has the regular expression %s; only plain strings are "
                       "supported there",
                       what, source->shown,
                       mp_json_describe(got, json_object_iter_value(json_object_iter(pattern))));
    status = mp_tok_load_string(source, pattern, "String", what, out);
    if (status == MP_OK && out->bytes == 0)
        return mp_fail(MP_ERR_MODEL, "E_TOK_PATTERN", "the %s in '%s' has an empty pattern", what,
                       source->shown);
    return status;
}

/*
 * The "type" of a stage, and for a Sequence the list of its members under `list_key`. Members may
 * be sequences themselves.
 */
static enum mp_status stage_type(const struct mp_tok_source *source, const json_t *stage,
                                 const char *what, const char *list_key, const char **type_p,
                                 json_t **members_p)
{
    const char *const known[] = { "type", list_key, NULL };
    char got[MP_QUOTE_BYTES];
    enum mp_status status;

    *members_p = NULL;
    if (!json_is_object(stage))
        return mp_fail(MP_ERR_MODEL, "E_TOK_TYPE", "a %s in '%s' is %s, need an object", what,
                       source->shown, mp_json_describe(got, stage));
    status = mp_json_string(stage, "type", source->name, type_p);
    if (status != MP_OK || strcmp(*type_p, "Sequence") != 0)
        return status;
    status = mp_tok_check_keys(source, stage, what, known);
    return status == MP_OK ? mp_json_array(stage, list_key, source->name, members_p) : status;
}

static enum mp_status too_many_stages(const struct mp_tok_source *source, const char *what)
{
    return mp_fail(MP_ERR_MODEL, "E_TOK_STAGES", "the %s in '%s' has more than %d stages", what,
                   source->shown, MP_TOK_STAGES_MAX);
}

/* ---- normalizer */

static enum mp_status load_norm(const struct mp_tok_source *source, const json_t *object,
                                const char *type, struct mp_tok_norm *norm)
{
    static const char *const forms[] = { "NFC", "NFD", "NFKC", "NFKD" };
    static const char *const form_keys[] = { "type", NULL };
    static const char *const prepend_keys[] = { "type", "prepend", NULL };
    static const char *const replace_keys[] = { "type", "pattern", "content", NULL };
    enum mp_status status;

    for (size_t i = 0; i < MP_ARRAY_LEN(forms); i++) {
        if (strcmp(type, forms[i]) != 0)
            continue;
        norm->kind = MP_TOK_NORM_FORM;
        norm->form = (enum mp_tok_form)i;
        return mp_tok_check_keys(source, object, "normalizer", form_keys);
    }
    if (strcmp(type, "Prepend") == 0) {
        norm->kind = MP_TOK_NORM_PREPEND;
        status = mp_tok_check_keys(source, object, "normalizer", prepend_keys);
        return status != MP_OK
                   ? status
                   : mp_tok_load_string(source, object, "prepend", "normalizer", &norm->to);
    }
    if (strcmp(type, "Replace") == 0) {
        norm->kind = MP_TOK_NORM_REPLACE;
        status = mp_tok_check_keys(source, object, "normalizer", replace_keys);
        if (status == MP_OK)
            status = mp_tok_load_pattern_string(source, object, "normalizer", &norm->from);
        return status != MP_OK
                   ? status
                   : mp_tok_load_string(source, object, "content", "normalizer", &norm->to);
    }
    return mp_tok_refuse_type(source, "normalizer", type);
}

/* JSON is at most 64 deep, which bounds the recursion. */
static enum mp_status load_norms(const struct mp_tok_source *source, const json_t *object,
                                 struct mp_tokenizer *tok)
{
    const char *type;
    json_t *members, *member;
    size_t i;
    enum mp_status status =
        stage_type(source, object, "normalizer", "normalizers", &type, &members);

    if (status != MP_OK)
        return status;
    if (members == NULL) {
        if (tok->norm_count == MP_TOK_STAGES_MAX)
            return too_many_stages(source, "normalizer");
        return load_norm(source, object, type, &tok->norms[tok->norm_count++]);
    }
    json_array_foreach(members, i, member)
    {
        if (status == MP_OK)
            status = load_norms(source, member, tok);
    }
    return status;
}

enum mp_status mp_tok_load_normalizer(const struct mp_tok_source *source, const json_t *root,
                                      struct mp_tokenizer *tok)
{
    const json_t *object = json_object_get(root, "normalizer");

    return object == NULL || json_is_null(object) ? MP_OK : load_norms(source, object, tok);
}

/* ---- pre-tokenizer */

static enum mp_status load_split_pattern(const struct mp_tok_source *source, const json_t *object,
                                         pcre2_code **code_p)
{
    char got[MP_QUOTE_BYTES];
    json_t *pattern, *text;
    enum mp_status status = mp_json_object(object, "pattern", source->name, &pattern);

    if (status != MP_OK)
        return status;
    text = json_object_get(pattern, "Regex");
    if (json_object_size(pattern) == 1 && json_is_string(text) &&
        strlen(json_string_value(text)) == json_string_length(text)) {
        status = mp_tok_pattern_compile(json_string_value(text), code_p);
        if (status != MP_OK || *code_p != NULL)
            return status;
    } else {
        text = json_object_iter_value(json_object_iter(pattern));
    }
    return mp_fail(
        MP_ERR_MODEL, "E_TOK_PATTERN",
        "Split pattern %s in '%s' is not one of the known ones (GPT-2, Qwen, Llama 3, ...)",
        text != NULL ? mp_json_describe(got, text) : "{}", source->shown);
}

/* Gemma's: behind each occurrence of a text. */
static enum mp_status load_behind(const struct mp_tok_source *source, const json_t *object,
                                  struct mp_tok_pre *pre)
{
    pre->kind = MP_TOK_PRE_BEHIND;
    return mp_tok_load_pattern_string(source, object, "pre-tokenizer Split", &pre->mark);
}

/* Each digit by itself, or runs of them. */
static enum mp_status load_digits(const struct mp_tok_source *source, const json_t *object,
                                  struct mp_tok_pre *pre)
{
    static const char *const known[] = { "type", "individual_digits", NULL };
    enum mp_status status = mp_tok_check_keys(source, object, "pre-tokenizer Digits", known);
    bool individual = false;

    pre->kind = MP_TOK_PRE_SPLIT;
    if (status == MP_OK)
        status = mp_json_bool_or(object, "individual_digits", source->name, false, &individual);
    if (status != MP_OK)
        return status;
    return mp_tok_pattern_compile(individual ? mp_tok_pattern_digit : mp_tok_pattern_digits,
                                  &pre->code);
}

static enum mp_status load_split(const struct mp_tok_source *source, const json_t *object,
                                 struct mp_tok_pre *pre)
{
    static const char *const known[] = { "type", "pattern", "behavior", "invert", NULL };
    char quoted[MP_QUOTE_BYTES];
    const char *behavior;
    bool invert;
    enum mp_status status = mp_tok_check_keys(source, object, "pre-tokenizer Split", known);

    pre->kind = MP_TOK_PRE_SPLIT;
    if (status == MP_OK)
        status = mp_json_string(object, "behavior", source->name, &behavior);
    if (status == MP_OK)
        status = mp_json_bool(object, "invert", source->name, &invert);
    if (status == MP_OK && !invert && strcmp(behavior, "MergedWithPrevious") == 0)
        return load_behind(source, object, pre);
    if (status == MP_OK)
        status = load_split_pattern(source, object, &pre->code);
    if (status != MP_OK)
        return status;
    pre->drop_gaps = invert;
    if (strcmp(behavior, invert ? "Removed" : "Isolated") == 0)
        return MP_OK;
    return mp_fail(MP_ERR_MODEL, "E_TOK_TYPE",
                   "pre-tokenizer Split in '%s' has behavior '%s' with invert %s, need 'Isolated' "
                   "or 'MergedWithPrevious' with false or 'Removed' with true",
                   source->shown, mp_quote(quoted, behavior, strlen(behavior)),
                   invert ? "true" : "false");
}

static enum mp_status load_byte_level(const struct mp_tok_source *source, const json_t *object,
                                      struct mp_tok_pre *pre)
{
    static const char *const known[] = { "type", "add_prefix_space", "trim_offsets", "use_regex",
                                         NULL };
    enum mp_status status = mp_tok_check_keys(source, object, "pre-tokenizer ByteLevel", known);
    bool use_regex;

    pre->kind = MP_TOK_PRE_BYTE_LEVEL;
    if (status == MP_OK)
        status = mp_json_bool(object, "add_prefix_space", source->name, &pre->prefix_space);
    if (status == MP_OK)
        status = mp_json_bool_or(object, "use_regex", source->name, true, &use_regex);
    if (status == MP_OK && use_regex)
        status = mp_tok_pattern_compile(mp_tok_pattern_gpt2, &pre->code);
    return status;
}

/* Of the two ways to say when the mark is put before the text, "false" of the older one wins. */
static enum mp_status load_metaspace(const struct mp_tok_source *source, const json_t *object,
                                     struct mp_tok_pre *pre)
{
    static const char *const known[] = {
        "type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep", NULL
    };
    static const char *const schemes[] = { "always", "first", "never" };
    enum mp_status status = mp_tok_check_keys(source, object, "pre-tokenizer Metaspace", known);
    const char *scheme;
    char quoted[MP_QUOTE_BYTES];
    bool prefix;

    pre->kind = MP_TOK_PRE_METASPACE;
    if (status == MP_OK)
        status = mp_tok_load_string(source, object, "replacement", "Metaspace", &pre->mark);
    if (status == MP_OK)
        status = mp_json_bool_or(object, "split", source->name, true, &pre->cut);
    if (status == MP_OK)
        status = mp_json_bool_or(object, "add_prefix_space", source->name, true, &prefix);
    if (status == MP_OK)
        status = mp_json_string_or(object, "prepend_scheme", source->name, "always", &scheme);
    if (status != MP_OK)
        return status;
    if (pre->mark.bytes == 0 ||
        pre->mark.bytes != mp_tok_utf8_bytes((unsigned char)pre->mark.data[0]))
        return mp_fail(MP_ERR_MODEL, "E_TOK_TYPE",
                       "replacement of Metaspace in '%s' has %zu bytes, need one character",
                       source->shown, pre->mark.bytes);
    for (size_t i = 0; i < MP_ARRAY_LEN(schemes); i++) {
        if (strcmp(scheme, schemes[i]) == 0) {
            pre->prepend = prefix ? (enum mp_tok_prepend)i : MP_TOK_PREPEND_NEVER;
            return MP_OK;
        }
    }
    return mp_fail(MP_ERR_MODEL, "E_TOK_TYPE",
                   "prepend_scheme of Metaspace in '%s' is '%s', need always, first or never",
                   source->shown, mp_quote(quoted, scheme, strlen(scheme)));
}

static enum mp_status load_pres(const struct mp_tok_source *source, const json_t *object,
                                struct mp_tokenizer *tok)
{
    const char *type;
    json_t *members, *member;
    size_t i;
    enum mp_status status =
        stage_type(source, object, "pre-tokenizer", "pretokenizers", &type, &members);

    if (status != MP_OK)
        return status;
    if (members == NULL) {
        if (tok->pre_count == MP_TOK_STAGES_MAX)
            return too_many_stages(source, "pre-tokenizer");
        /* ByteLevel turns text into characters that stand for bytes; nothing here splits those. */
        if (tok->byte_level)
            return mp_fail(MP_ERR_MODEL, "E_TOK_STAGES",
                           "pre-tokenizer of '%s' has a stage after ByteLevel, which is not "
                           "supported",
                           source->shown);
        struct mp_tok_pre *pre = &tok->pres[tok->pre_count++];
        if (strcmp(type, "Split") == 0)
            return load_split(source, object, pre);
        if (strcmp(type, "Digits") == 0)
            return load_digits(source, object, pre);
        if (strcmp(type, "Metaspace") == 0)
            return load_metaspace(source, object, pre);
        if (strcmp(type, "ByteLevel") != 0)
            return mp_tok_refuse_type(source, "pre-tokenizer", type);
        tok->byte_level = true;
        return load_byte_level(source, object, pre);
    }
    json_array_foreach(members, i, member)
    {
        if (status == MP_OK)
            status = load_pres(source, member, tok);
    }
    return status;
}

enum mp_status mp_tok_load_pre_tokenizer(const struct mp_tok_source *source, const json_t *root,
                                         struct mp_tokenizer *tok)
{
    const json_t *object = json_object_get(root, "pre_tokenizer");

    return object == NULL || json_is_null(object) ? MP_OK : load_pres(source, object, tok);
}

/* ---- post-processor */

/* The ids of one special token of a template. */
static enum mp_status load_template_ids(const struct mp_tok_source *source, const json_t *template,
                                        const json_t *piece, struct mp_tokenizer *tok,
                                        struct mp_ids *ids)
{
    char quoted[MP_QUOTE_BYTES];
    json_t *specials, *special, *list, *value;
    const char *name = "";
    size_t i;
    enum mp_status status = mp_json_string(piece, "id", source->name, &name);

    if (status == MP_OK)
        status = mp_json_object(template, "special_tokens", source->name, &specials);
    if (status == MP_OK)
        status = mp_json_object(specials, name, source->name, &special);
    if (status == MP_OK)
        status = mp_json_array(special, "ids", source->name, &list);
    if (status != MP_OK)
        return status;
    json_array_foreach(list, i, value)
    {
        const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;

        if (id < 0 || id >= tok->vocab.count || (tok->vocab.flags[id] & MP_TOK_USED) == 0)
            return mp_fail(MP_ERR_MODEL, "E_TOK_TEMPLATE",
                           "special token '%s' of the post-processor in '%s' has an id that no "
                           "token has",
                           mp_quote(quoted, name, strlen(name)), source->shown);
        status = mp_ids_append(ids, (uint32_t)id);
        if (status != MP_OK)
            return status;
    }
    return MP_OK;
}

static enum mp_status load_template(const struct mp_tok_source *source, const json_t *object,
                                    struct mp_tokenizer *tok)
{
    static const char *const known[] = { "type", "single", "pair", "special_tokens", NULL };
    enum mp_status status = mp_tok_check_keys(source, object, "TemplateProcessing", known);
    json_t *single, *piece;
    bool seen = false;
    size_t i;

    if (status == MP_OK)
        status = mp_json_array(object, "single", source->name, &single);
    if (status != MP_OK)
        return status;
    json_array_foreach(single, i, piece)
    {
        const json_t *special = json_object_get(piece, "SpecialToken");
        const json_t *sequence = json_object_get(piece, "Sequence");
        const char *name = "";

        if (special != NULL) {
            status =
                load_template_ids(source, object, special, tok, seen ? &tok->suffix : &tok->prefix);
        } else {
            status = mp_json_string(sequence, "id", source->name, &name);
            if (status == MP_OK && (seen || strcmp(name, "A") != 0))
                status = mp_fail(MP_ERR_MODEL, "E_TOK_TEMPLATE",
                                 "the post-processor in '%s' does not have the text exactly once",
                                 source->shown);
            seen = true;
        }
        if (status != MP_OK)
            return status;
    }
    if (!seen)
        return mp_fail(MP_ERR_MODEL, "E_TOK_TEMPLATE",
                       "the post-processor in '%s' leaves out the text", source->shown);
    return MP_OK;
}

static enum mp_status load_posts(const struct mp_tok_source *source, const json_t *object,
                                 bool *seen, struct mp_tokenizer *tok)
{
    const char *type;
    json_t *members, *member;
    size_t i;
    enum mp_status status =
        stage_type(source, object, "post-processor", "processors", &type, &members);

    if (status != MP_OK)
        return status;
    json_array_foreach(members, i, member)
    {
        if (status == MP_OK)
            status = load_posts(source, member, seen, tok);
    }
    /* ByteLevel only moves offsets, which nobody here asks for. */
    if (members != NULL || strcmp(type, "ByteLevel") == 0)
        return status;
    if (strcmp(type, "TemplateProcessing") != 0)
        return mp_tok_refuse_type(source, "post-processor", type);
    if (*seen)
        return mp_fail(MP_ERR_MODEL, "E_TOK_TEMPLATE",
                       "'%s' has more than one TemplateProcessing, which is not supported",
                       source->shown);
    *seen = true;
    return load_template(source, object, tok);
}

enum mp_status mp_tok_load_post_processor(const struct mp_tok_source *source, const json_t *root,
                                          struct mp_tokenizer *tok)
{
    const json_t *object = json_object_get(root, "post_processor");
    bool seen = false;

    return object == NULL || json_is_null(object) ? MP_OK : load_posts(source, object, &seen, tok);
}
