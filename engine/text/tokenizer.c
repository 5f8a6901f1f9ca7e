/*
 * Creation, destruction and queries of a tokenizer. Loading, encoding and decoding are in other
 * files.
 */
#include "engine/text/tokenizer_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the life of a tokenizer */

void mp_tokenizer_destroy(struct mp_tokenizer *tok)
{
    if (tok == NULL)
        return;
    for (uint32_t i = 0; i < MP_TOK_STAGES_MAX; i++) {
        mp_tok_buf_free(&tok->norms[i].from);
        mp_tok_buf_free(&tok->norms[i].to);
        pcre2_code_free(tok->pres[i].code);
        mp_tok_buf_free(&tok->pres[i].mark);
        mp_tok_buf_free(&tok->decs[i].from);
        mp_tok_buf_free(&tok->decs[i].to);
    }
    mp_ids_free(&tok->prefix);
    mp_ids_free(&tok->suffix);
    free(tok->pattern_of);
    free(tok->scores);
    free(tok->sorted);
    free(tok->score_ranks);
    mp_tok_matcher_fini(&tok->raw);
    mp_tok_matcher_fini(&tok->normalized);
    mp_tok_merges_fini(&tok->merges);
    mp_tok_vocab_fini(&tok->vocab);
    free(tok);
}

static enum mp_status check_top(const struct mp_tok_source *source, const json_t *root)
{
    static const char *const known[] = {
        "version",       "truncation", "padding",        "added_tokens", "normalizer",
        "pre_tokenizer", "model",      "post_processor", "decoder",      NULL
    };
    static const char *const unset[] = { "truncation", "padding" };
    const json_t *version = json_object_get(root, "version");
    char got[MP_QUOTE_BYTES];

    if (!json_is_object(root))
        return mp_fail(MP_ERR_MODEL, "E_TOK_TYPE", "'%s' is %s, need an object", source->shown,
                       mp_json_describe(got, root));
    if (version != NULL && (!json_is_string(version) || strcmp(json_string_value(version), "1.0")))
        return mp_fail(MP_ERR_MODEL, "E_TOK_VERSION", "version of '%s': got %s, need '1.0'",
                       source->shown, mp_json_describe(got, version));
    for (size_t i = 0; i < MP_ARRAY_LEN(unset); i++) {
        const json_t *value = json_object_get(root, unset[i]);

        if (value != NULL && !json_is_null(value))
            return mp_fail(MP_ERR_MODEL, "E_TOK_FIELD",
                           "'%s' sets %s, which is not supported; set it to null", source->shown,
                           unset[i]);
    }
    return mp_tok_check_keys(source, root, "tokenizer", known);
}

/* The pre-tokenizer goes before the model, and the tokens before what names them. */
static enum mp_status load_parts(const struct mp_tok_source *source, const json_t *root,
                                 struct mp_tokenizer *tok)
{
    static enum mp_status (*const loaders[])(const struct mp_tok_source *, const json_t *,
                                             struct mp_tokenizer *) = {
        mp_tok_load_normalizer,     mp_tok_load_pre_tokenizer, mp_tok_load_model,
        mp_tok_load_post_processor, mp_tok_load_decoder,
    };
    enum mp_status status = check_top(source, root);

    for (size_t i = 0; i < MP_ARRAY_LEN(loaders) && status == MP_OK; i++)
        status = loaders[i](source, root, tok);
    return status == MP_OK ? mp_tok_load_matchers(source, tok) : status;
}

/* ---- tokenizer_config.json */

/* "bos_token" and the like: null, a string, or an object with "content". */
static enum mp_status load_named(const json_t *config, const char *key, struct mp_tokenizer *tok,
                                 uint32_t *id_p)
{
    const json_t *value = json_object_get(config, key);
    char got[MP_QUOTE_BYTES];

    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (value == NULL || json_is_null(value))
        return MP_OK;
    if (json_is_string(value))
        *id_p = mp_tok_vocab_find(&tok->vocab, json_string_value(value), json_string_length(value));
    if (*id_p == MP_TOKEN_NONE)
        return mp_fail(MP_ERR_MODEL, "E_TOK_CONFIG",
                       "%s of tokenizer_config.json is %s, which tokenizer.json does not have", key,
                       mp_json_describe(got, value));
    return MP_OK;
}

static enum mp_status load_config(const char *config, size_t bytes, struct mp_tokenizer *tok)
{
    const struct mp_json_options options = { .allow_nul = true };
    json_t *root;
    enum mp_status status =
        mp_json_parse_with(config, bytes, "tokenizer_config.json", &options, &root);

    if (status != MP_OK)
        return status;
    status = load_named(root, "bos_token", tok, &tok->bos);
    if (status == MP_OK)
        status = load_named(root, "eos_token", tok, &tok->eos);
    json_decref(root);
    return status;
}

enum mp_status mp_tok_from_json(const char *name, const json_t *root, struct mp_tokenizer **tok_p)
{
    struct mp_tok_source source = { .name = name };
    struct mp_tokenizer *tok = calloc(1, sizeof(*tok));
    enum mp_status status;

    if (tok == NULL)
        return mp_fail_no_memory("a tokenizer", sizeof(*tok));
    mp_quote(source.shown, name, strlen(name));
    tok->unk = tok->bos = tok->eos = MP_TOKEN_NONE;
    memset(tok->byte_ids, 0xff, sizeof(tok->byte_ids));
    status = load_parts(&source, root, tok);
    if (status == MP_OK)
        *tok_p = tok;
    else
        mp_tokenizer_destroy(tok);
    return status;
}

enum mp_status mp_tokenizer_parse(const char *name, const char *json, size_t json_bytes,
                                  const char *config, size_t config_bytes,
                                  struct mp_tokenizer **tok_p)
{
    const struct mp_json_options options = { .duplicate_code = "E_TOK_TWICE", .allow_nul = true };
    struct mp_tokenizer *tok = NULL;
    json_t *root;
    enum mp_status status = mp_json_parse_with(json, json_bytes, name, &options, &root);

    if (status != MP_OK)
        return status;
    status = mp_tok_from_json(name, root, &tok);
    if (status == MP_OK && config != NULL)
        status = load_config(config, config_bytes, tok);
    if (status == MP_OK)
        *tok_p = tok;
    else
        mp_tokenizer_destroy(tok);
    json_decref(root);
    return status;
}

/* ---- files */

/* An absent tokenizer_config.json is no failure: it only names tokens. */
static enum mp_status read_config(int dirfd, char **text_p, size_t *bytes_p)
{
    const enum mp_status status =
        mp_text_load(dirfd, "tokenizer_config.json", MP_TOK_CONFIG_BYTES_MAX, text_p, bytes_p);

    if (status == MP_ERR_MODEL && strcmp(mp_error_last()->code, "E_FILE_MISSING") == 0) {
        mp_error_clear();
        return MP_OK;
    }
    return status;
}

static enum mp_status load_dir(const char *dir, struct mp_tokenizer **tok_p)
{
    const int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char *json = NULL, *config = NULL, quoted[MP_QUOTE_BYTES];
    size_t json_bytes = 0, config_bytes = 0;
    enum mp_status status;

    if (dirfd < 0)
        return mp_fail(MP_ERR_IO, "E_FILE_OPEN", "cannot open the model directory '%s': %s",
                       mp_quote(quoted, dir, strlen(dir)), strerror(errno));
    status = mp_text_load(dirfd, "tokenizer.json", MP_TOK_FILE_BYTES_MAX, &json, &json_bytes);
    if (status == MP_OK)
        status = read_config(dirfd, &config, &config_bytes);
    if (status == MP_OK)
        status =
            mp_tokenizer_parse("tokenizer.json", json, json_bytes, config, config_bytes, tok_p);
    free(json);
    free(config);
    close(dirfd);
    return status;
}

enum mp_status mp_tokenizer_load(const char *model, struct mp_tokenizer **tok_p)
{
    struct mp_gguf *gguf = NULL;
    enum mp_status status;

    if (!mp_gguf_is_file(model))
        return load_dir(model, tok_p);
    status = mp_gguf_open(model, &gguf);
    if (status == MP_OK)
        status = mp_tok_from_gguf(gguf, tok_p);
    mp_gguf_close(gguf);
    return status;
}

/* ---- questions */

uint32_t mp_tokenizer_vocab_count(const struct mp_tokenizer *tok)
{
    return tok->vocab.count;
}

enum mp_status mp_tokenizer_check_rows(const struct mp_tokenizer *tok, uint64_t rows)
{
    char quoted[MP_QUOTE_BYTES];
    const uint32_t last = tok->vocab.count - 1;

    if (tok->vocab.count <= rows)
        return MP_OK;
    return mp_fail(
        MP_ERR_MODEL, "E_TOK_VOCAB_ROWS",
        "token '%s' of tokenizer.json has id %" PRIu32
        ", but the embedding of the model has %" PRIu64
        " rows; tokenizer and weights do not belong together",
        mp_quote(quoted, mp_tok_vocab_content(&tok->vocab, last), tok->vocab.bytes[last]), last,
        rows);
}

uint32_t mp_tokenizer_find(const struct mp_tokenizer *tok, const char *content, size_t bytes)
{
    return mp_tok_vocab_find(&tok->vocab, content, bytes);
}

const char *mp_tokenizer_content(const struct mp_tokenizer *tok, uint32_t id, size_t *bytes_p)
{
    if (id >= tok->vocab.count || (tok->vocab.flags[id] & MP_TOK_USED) == 0)
        return NULL;
    *bytes_p = tok->vocab.bytes[id];
    return mp_tok_vocab_content(&tok->vocab, id);
}

bool mp_tokenizer_is_special(const struct mp_tokenizer *tok, uint32_t id)
{
    return id < tok->vocab.count && (tok->vocab.flags[id] & MP_TOK_SPECIAL) != 0;
}

uint32_t mp_tokenizer_bos(const struct mp_tokenizer *tok)
{
    return tok->bos;
}

uint32_t mp_tokenizer_eos(const struct mp_tokenizer *tok)
{
    return tok->eos;
}
