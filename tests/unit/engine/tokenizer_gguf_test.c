/*
 * Tokenizers of GGUF files: pre-tokenizers by name, against the `tokenizers` library; pieces with
 * scores, against `sentencepiece`; and files that are refused.
 */
#include <jansson.h>
#include <math.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/gguf.h"
#include "tests/unit/engine/tokenizer_expected.h"

#define GGUF FIXTURES "gguf/"

enum { STRING = 8, ARRAY = 9, I32 = 5, F32 = 6, BOOL = 7, U32 = 4 };

static void put_string(const char *key, const char *value)
{
    gguf_text(key);
    gguf_put(STRING, 4);
    gguf_text(value);
}

static void put_array(const char *key, unsigned kind, uint64_t count)
{
    gguf_text(key);
    gguf_put(ARRAY, 4);
    gguf_put(kind, 4);
    gguf_put(count, 8);
}

static void path_of(char path[GGUF_PATH_BYTES])
{
    snprintf(path, GGUF_PATH_BYTES, "%s/t.gguf", test_tmpdir());
}

/* ---- byte-level, by name */

/* A file with the vocabulary and the merges of a tokenizer.json. */
static void write_merges(const char *path, const char *source, const char *model, const char *pre)
{
    json_t *root = json_load_file(source, 0, NULL), *value;
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    json_t *added = json_object_get(root, "added_tokens");
    const char *texts[4096] = { NULL }, *text;
    unsigned kinds[4096] = { 0 };
    size_t i, count = 0;

    CHECK(root != NULL && json_object_size(vocab) > 1400);
    json_object_foreach(vocab, text, value)
    {
        const size_t id = (size_t)json_integer_value(value);

        CHECK(id < 4096);
        texts[id] = text;
        kinds[id] = strlen(text) == 6 && memcmp(text, "<0x", 3) == 0 ? 6 : 1;
        count = id + 1 > count ? id + 1 : count;
    }
    json_array_foreach(added, i, value)
    {
        const size_t id = (size_t)json_integer_value(json_object_get(value, "id"));

        CHECK(id < 4096);
        texts[id] = json_string_value(json_object_get(value, "content"));
        kinds[id] = json_is_true(json_object_get(value, "special")) ? 3 : 4;
        count = id + 1 > count ? id + 1 : count;
    }
    gguf_begin(0, pre != NULL ? 6 : 7);
    put_string("tokenizer.ggml.model", model);
    if (pre != NULL)
        put_string("tokenizer.ggml.pre", pre);
    if (pre == NULL)
        gguf_number("tokenizer.ggml.bos_token_id", U32, 1, 4);
    if (pre == NULL)
        gguf_number("tokenizer.ggml.add_space_prefix", BOOL, 0, 1);
    gguf_number("tokenizer.ggml.add_bos_token", BOOL, pre == NULL, 1);
    put_array("tokenizer.ggml.tokens", STRING, count);
    for (i = 0; i < count; i++)
        gguf_text(texts[i]);
    put_array("tokenizer.ggml.token_type", I32, count);
    for (i = 0; i < count; i++)
        gguf_put(kinds[i], 4);
    put_array("tokenizer.ggml.merges", STRING, json_array_size(merges));
    json_array_foreach(merges, i, value)
    {
        char merge[256];

        snprintf(merge, sizeof(merge), "%s %s", json_string_value(json_array_get(value, 0)),
                 json_string_value(json_array_get(value, 1)));
        gguf_text(merge);
    }
    gguf_data(0);
    gguf_save(path);
    json_decref(root);
}

static void write_bytes(const char *path, const char *pre)
{
    write_merges(path, GGUF "base.json", "gpt2", pre);
}

static struct mp_tokenizer *load(const char *path)
{
    struct mp_tokenizer *tok;

    if (mp_tokenizer_load(path, &tok) != MP_OK) {
        fprintf(stderr, "    %s: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
    return tok;
}

/* Other names of a file's expectations are the same but for what is around a text. */
static void every_pre_tokenizer_by_name(void)
{
    static const char *const names[][2] = {
        { "gpt-2", "gpt-2" },
        { "qwen2", "qwen2" },
        { "deepseek-r1-qwen", "qwen2" },
        { "qwen35", "qwen35" },
        { "llama-bpe", "llama-bpe" },
        { "lfm2", "llama-bpe" },
        { "glm4", "glm4" },
        { "chatglm-bpe", "glm4" },
        { "dbrx", "glm4" },
        { "gpt-4o", "gpt-4o" },
        { "llama4", "gpt-4o" },
        { "minimax-m2", "gpt-4o" },
        { "tekken", "tekken" },
        { "kimi-k2", "kimi-k2" },
        { "deepseek-llm", "deepseek-llm" },
        { "deepseek-coder", "deepseek-coder" },
        { "deepseek-v3", "deepseek-v3" },
        { "olmo", "olmo" },
        { "refact", "refact" },
        { "starcoder", "refact" },
    };
    char path[GGUF_PATH_BYTES], expected[256];

    path_of(path);
    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++) {
        write_bytes(path, names[i][0]);
        snprintf(expected, sizeof(expected), GGUF "%s.bin", names[i][1]);
        check_expected(load(path), names[i][0], expected, true);
    }
}

/* Gemma 4's: the same ids as from its tokenizer.json. */
static void marks_for_spaces(void)
{
    char path[GGUF_PATH_BYTES];

    path_of(path);
    write_merges(path, FIXTURES "gemma/tokenizer.json", "gemma4", NULL);
    check_expected(load(path), "gemma4", FIXTURES "gemma/expected.bin", true);
}

/* Texts that would take forever if a pattern went back and forth in them. */
static void long_texts_take_no_longer(void)
{
    static const char *const names[] = {
        "qwen35",       "gpt-4o",         "tekken",      "kimi-k2",
        "deepseek-llm", "deepseek-coder", "deepseek-v3", "refact"
    };
    static const char *const units[] = { " ", "A", "\xe4\xb8\xad", "\xcc\x81", "1", "! ", "\n " };
    enum { BYTES = 1 << 19 };
    char path[GGUF_PATH_BYTES], *text = malloc(BYTES + 8);

    CHECK(text != NULL);
    path_of(path);
    for (size_t n = 0; n < MP_ARRAY_LEN(names); n++) {
        struct mp_tokenizer *tok;

        write_bytes(path, names[n]);
        tok = load(path);
        for (size_t u = 0; u < MP_ARRAY_LEN(units); u++) {
            struct mp_ids ids = { 0 };
            size_t bytes = 0;

            for (; bytes < BYTES; bytes += strlen(units[u]))
                memcpy(text + bytes, units[u], strlen(units[u]));
            text[bytes++] = 'x';
            CHECK_EQ(mp_tokenizer_encode(tok, text, bytes, 0, &ids), MP_OK);
            CHECK(ids.count > 0);
            mp_ids_free(&ids);
        }
        mp_tokenizer_destroy(tok);
    }
    free(text);
}

/* ---- pieces with scores */

static void pieces_of_sentencepiece(void)
{
    check_expected(load(GGUF "scores.gguf"), "scores", GGUF "scores.bin", false);
}

struct scored {
    const char *text;
    unsigned kind;
    float score;
};

/* Three pieces of letters, and what `first` is. */
static const struct scored plain[] = {
    { "<unk>", 2, 0 },
    { "<s>", 3, 0 },
    { "<think>", 4, 0 },
    { "<0x41>", 6, 0 },
    { "unused", 5, 0 },
    { "a", 1, -3 },
    { "b", 1, -4 },
    { "ab", 1, -2 },
    { "\xe2\x96\x81", 1, -5 },
    { "aa", 1, -1 },
    { "\xe2\x96\x81"
      "a",
      1, -1 },
};

/* Bits of a float in a file. */
static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static void write_scored(const char *path, const struct scored *pieces, size_t count, size_t scores,
                         int prefix)
{
    gguf_begin(0, prefix < 0 ? 5 : 6);
    put_string("tokenizer.ggml.model", "llama");
    gguf_number("tokenizer.ggml.bos_token_id", U32, 1, 4);
    if (prefix >= 0)
        gguf_number("tokenizer.ggml.add_space_prefix", BOOL, (uint64_t)prefix, 1);
    put_array("tokenizer.ggml.tokens", STRING, count);
    for (size_t i = 0; i < count; i++)
        gguf_text(pieces[i].text);
    put_array("tokenizer.ggml.token_type", I32, count);
    for (size_t i = 0; i < count; i++)
        gguf_put(pieces[i].kind, 4);
    put_array("tokenizer.ggml.scores", F32, scores);
    for (size_t i = 0; i < scores; i++)
        gguf_put(bits_of(pieces[i].score), 4);
    gguf_data(0);
    gguf_save(path);
}

static void check_text(const struct mp_tokenizer *tok, const char *text, unsigned flags,
                       const char *want)
{
    struct mp_ids ids = { 0 };
    char got[256] = "";

    CHECK_EQ(mp_tokenizer_encode(tok, text, strlen(text), flags, &ids), MP_OK);
    for (size_t i = 0; i < ids.count; i++)
        snprintf(got + strlen(got), sizeof(got) - strlen(got), "%u ", ids.ids[i]);
    CHECK_STR(got, want);
    mp_ids_free(&ids);
}

/* Equal scores: the leftmost pair. Kinds: what is no piece is found only as a whole, or never. */
static void kinds_of_pieces(void)
{
    char path[GGUF_PATH_BYTES];
    struct mp_tokenizer *tok;

    path_of(path);
    write_scored(path, plain, MP_ARRAY_LEN(plain), MP_ARRAY_LEN(plain), -1);
    tok = load(path);
    check_text(tok, "aaa", MP_ENCODE_ADD_SPECIAL, "1 10 9 ");
    check_text(tok, "ba", 0, "8 6 5 ");
    check_text(tok, "bab", 0, "8 6 7 ");
    check_text(tok, "A", 0, "8 3 ");
    check_text(tok, "zzb", 0, "8 0 6 ");
    check_text(tok, "b<s>b", 0, "8 6 0 6 ");
    check_text(tok, "b<s>b", MP_ENCODE_PARSE_SPECIAL, "8 6 1 8 6 ");
    check_text(tok, "b<think>b", 0, "8 6 2 8 6 ");
    check_text(tok, "b b", 0, "8 6 8 6 ");
    mp_tokenizer_destroy(tok);
    write_scored(path, plain, MP_ARRAY_LEN(plain), MP_ARRAY_LEN(plain), 0);
    tok = load(path);
    check_text(tok, "aaa", MP_ENCODE_ADD_SPECIAL, "1 9 5 ");
    mp_tokenizer_destroy(tok);
}

static void check_refused(const char *path, const char *code, const char *part)
{
    struct mp_tokenizer *tok;

    CHECK(mp_tokenizer_load(path, &tok) != MP_OK);
    if (strcmp(mp_error_last()->code, code) != 0 || strstr(mp_error_last()->text, part) == NULL) {
        fprintf(stderr, "%s: %s\nexpected %s: ...%s...\n", mp_error_last()->code,
                mp_error_last()->text, code, part);
        exit(1);
    }
}

static void broken_pieces_are_refused(void)
{
    struct scored pieces[MP_ARRAY_LEN(plain)];
    const size_t count = MP_ARRAY_LEN(plain);
    char path[GGUF_PATH_BYTES];

    path_of(path);
    write_scored(path, plain, count, count - 1, -1);
    check_refused(path, "E_TOK_TYPE", "has 11 tokens and 10 in 'tokenizer.ggml.scores'");
    memcpy(pieces, plain, sizeof(pieces));
    pieces[5].score = (float)NAN;
    write_scored(path, pieces, count, count, -1);
    check_refused(path, "E_TOK_PIECE", "score of token 5");
    pieces[5].score = -(float)INFINITY;
    write_scored(path, pieces, count, count, -1);
    check_refused(path, "E_TOK_PIECE", "is -inf, need a number");
    pieces[5] = (struct scored){ "b", 1, 0 };
    write_scored(path, pieces, count, count, -1);
    check_refused(path, "E_TOK_TWICE", "token 'b' is in");
    pieces[5] = (struct scored){ "\xff", 1, 0 };
    write_scored(path, pieces, count, count, -1);
    check_refused(path, "E_TOK_TYPE", "need UTF-8");
    memcpy(pieces, plain, sizeof(pieces));
    pieces[3].text = "<0x4g>";
    write_scored(path, pieces, count, count, -1);
    check_refused(path, "E_TOK_BYTE", "byte token '<0x4g>'");
    pieces[3] = pieces[0];
    pieces[3].text = "x";
    pieces[0].kind = pieces[3].kind = 1;
    write_scored(path, pieces, count, count, -1);
    check_refused(path, "E_TOK_COVER", "has no token for byte 0x00");
    write_scored(path, plain, 0, 0, -1);
    check_refused(path, "E_TOK_EMPTY", "has no tokens");
    gguf_begin(0, 1), put_string("tokenizer.ggml.model", "t5"), gguf_data(0), gguf_save(path);
    check_refused(path, "E_TOK_TYPE", "got 't5', need 'gpt2', a byte-level BPE, 'llama', pieces");
    gguf_begin(0, 1), put_string("tokenizer.ggml.model", "llama"), gguf_data(0), gguf_save(path);
    check_refused(path, "E_GGUF_KEY", "tokenizer.ggml.tokens");
}

/* ---- Unigram, from tokenizer.json */

static void check_json(const char *model, const char *code, const char *part)
{
    struct mp_tokenizer *tok;
    char json[1024];

    snprintf(json, sizeof(json), "{\"model\":{\"type\":\"Unigram\",%s}}", model);
    if (mp_tokenizer_parse("t.json", json, strlen(json), NULL, 0, &tok) == MP_OK ||
        strcmp(mp_error_last()->code, code) != 0 || strstr(mp_error_last()->text, part) == NULL) {
        fprintf(stderr, "%s: %s\nexpected %s: ...%s...\n", mp_error_last()->code,
                mp_error_last()->text, code, part);
        exit(1);
    }
}

static void broken_unigrams_are_refused(void)
{
    check_json("\"vocab\":{\"a\":1}", "E_JSON_TYPE", "vocab");
    check_json("\"vocab\":[null]", "E_TOK_PIECE", "piece 0 of the vocabulary in 't.json' is null");
    check_json("\"vocab\":[[\"a\",0],[\"b\"]]", "E_TOK_PIECE", "piece 1");
    check_json("\"vocab\":[[\"a\",null]]", "E_TOK_PIECE", "need a text and its score");
    check_json("\"vocab\":[[\"a\",0],[\"a\",1]]", "E_TOK_TWICE", "the second time with id 1");
    check_json("\"vocab\":[[\"a\",0]],\"unk_id\":1", "E_TOK_ID_RANGE", "unk_id in 't.json' is 1");
    check_json("\"vocab\":[[\"a\",0]],\"unk_id\":\"a\"", "E_TOK_ID_RANGE", "is 'a', need the");
    check_json("\"vocab\":[[\"a\",0]]", "E_TOK_COVER", "neither bytes nor an unknown token");
    check_json("\"vocab\":[]", "E_TOK_EMPTY", "no tokens");
    check_json("\"vocab\":[[\"a\",0]],\"merges\":[]", "E_TOK_FIELD", "field 'merges'");
}

/* ---- every call */

static void use(const struct fault_plan *plan, void *ctx)
{
    static const char text[] = "a caf\xc3\xa9 12 \xe4\xb8\xad";
    struct mp_tokenizer *tok = NULL;
    struct mp_ids ids = { 0 };
    enum mp_status status;
    uint64_t failed;

    fault_begin(plan);
    status = mp_tokenizer_load(ctx, &tok);
    if (status == MP_OK)
        status = mp_tokenizer_encode(tok, text, sizeof(text) - 1, 0, &ids);
    failed = fault_end();
    CHECK(status == MP_OK || failed > 0);
    CHECK(status == MP_OK || status == MP_ERR_NO_MEMORY || status == MP_ERR_IO);
    CHECK(status != MP_OK || ids.count > 5);
    mp_ids_free(&ids);
    mp_tokenizer_destroy(tok);
}

static void every_call_fails_once(void)
{
    static char scored[] = GGUF "scores.gguf", unigram[] = FIXTURES "unigram";
    char marked[GGUF_PATH_BYTES];

    fault_sweep_briefly(true);
    CHECK(fault_sweep(FAULT_ANY, use, scored) > 0);
    CHECK(fault_sweep(FAULT_ANY, use, unigram) > 0);
    path_of(marked);
    write_merges(marked, FIXTURES "gemma/tokenizer.json", "gemma4", NULL);
    CHECK(fault_sweep(FAULT_ANY, use, marked) > 0);
}

int main(void)
{
    RUN(every_pre_tokenizer_by_name);
    RUN(marks_for_spaces);
    RUN(long_texts_take_no_longer);
    RUN(pieces_of_sentencepiece);
    RUN(kinds_of_pieces);
    RUN(broken_pieces_are_refused);
    RUN(broken_unigrams_are_refused);
    RUN(every_call_fails_once);
    return 0;
}
