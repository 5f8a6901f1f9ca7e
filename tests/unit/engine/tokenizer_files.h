#ifndef MP_TESTS_TOKENIZER_FILES_H
#define MP_TESTS_TOKENIZER_FILES_H

/* Tokenizers from the fixtures, with one text of a file replaced, and what they make of texts. */
#include "tests/support/test.h"
#include "engine/text/tokenizer.h"

#define FIXTURES "tests/data/tokenizers/"

static inline char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text;
    long bytes;

    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    bytes = ftell(file);
    rewind(file);
    text = malloc((size_t)bytes + 1);
    CHECK(text != NULL && fread(text, 1, (size_t)bytes, file) == (size_t)bytes);
    text[bytes] = '\0';
    fclose(file);
    return text;
}

/* The fixture's tokenizer.json with the first `from` replaced by `to`. */
static inline char *changed_json(const char *fixture, const char *from, const char *to)
{
    char path[256], *text, *out, *at;
    size_t bytes;

    snprintf(path, sizeof(path), FIXTURES "%s/tokenizer.json", fixture);
    text = read_text(path);
    at = strstr(text, from);
    if (at == NULL) {
        fprintf(stderr, "%s has no %s\n", path, from);
        exit(1);
    }
    bytes = strlen(text) + strlen(to) + 1;
    out = malloc(bytes);
    CHECK(out != NULL);
    snprintf(out, bytes, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    return out;
}

static inline void check_parse_fails(const char *json, const char *code, const char *text)
{
    struct mp_tokenizer *tok = NULL;

    mp_error_clear();
    CHECK_EQ(mp_tokenizer_parse("t.json", json, strlen(json), NULL, 0, &tok), MP_ERR_MODEL);
    CHECK(tok == NULL);
    CHECK_EQ(mp_status_exit_code(mp_error_last()->status), 3);
    if (strcmp(mp_error_last()->code, code) != 0 || strstr(mp_error_last()->text, text) == NULL) {
        fprintf(stderr, "got      %s: %s\nexpected %s: %s\n", mp_error_last()->code,
                mp_error_last()->text, code, text);
        exit(1);
    }
    CHECK(strstr(mp_error_last()->text, "t.json") != NULL);
}

static inline void check_change_fails(const char *fixture, const char *from, const char *to,
                                      const char *code, const char *text)
{
    char *json = changed_json(fixture, from, to);

    check_parse_fails(json, code, text);
    free(json);
}

static inline struct mp_tokenizer *load(const char *fixture)
{
    struct mp_tokenizer *tok;
    char path[256];

    snprintf(path, sizeof(path), FIXTURES "%s", fixture);
    CHECK_EQ(mp_tokenizer_load(path, &tok), MP_OK);
    return tok;
}

static inline struct mp_tokenizer *parse(const char *json)
{
    struct mp_tokenizer *tok;

    if (mp_tokenizer_parse("t.json", json, strlen(json), NULL, 0, &tok) != MP_OK) {
        fprintf(stderr, "%s: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
    return tok;
}

static inline struct mp_ids encode(const struct mp_tokenizer *tok, const char *text, size_t bytes,
                                   unsigned flags)
{
    struct mp_ids ids = { 0 };

    CHECK_EQ(mp_tokenizer_encode(tok, text, bytes, flags, &ids), MP_OK);
    return ids;
}

static inline void check_round_trip(const struct mp_tokenizer *tok, const char *text, size_t bytes,
                                    const char *expected, size_t expected_bytes)
{
    struct mp_ids ids = encode(tok, text, bytes, MP_ENCODE_ADD_SPECIAL);
    char *out;
    size_t out_bytes;

    CHECK_EQ(mp_tokenizer_decode(tok, ids.ids, ids.count, MP_DECODE_SKIP_SPECIAL, &out, &out_bytes),
             MP_OK);
    CHECK_EQ(out_bytes, expected_bytes);
    CHECK(memcmp(out, expected, expected_bytes) == 0);
    free(out);
    mp_ids_free(&ids);
}

#endif
