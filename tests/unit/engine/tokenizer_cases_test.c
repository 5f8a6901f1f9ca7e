/*
 * Bad tokenizer files and wicked texts: cases K1 to K12 by name (K12 is in chat_test.c), each with
 * status, code and text.
 */
#include "tests/support/test.h"
#include "tests/support/fault/wrap.h"
#include "engine/text/tokenizer.h"

#define FIXTURES "tests/data/tokenizers/"

static char *read_text(const char *path)
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
static char *changed_json(const char *fixture, const char *from, const char *to)
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

static void check_parse_fails(const char *json, const char *code, const char *text)
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

static void check_change_fails(const char *fixture, const char *from, const char *to,
                               const char *code, const char *text)
{
    char *json = changed_json(fixture, from, to);

    check_parse_fails(json, code, text);
    free(json);
}

static struct mp_tokenizer *load(const char *fixture)
{
    struct mp_tokenizer *tok;
    char path[256];

    snprintf(path, sizeof(path), FIXTURES "%s", fixture);
    CHECK_EQ(mp_tokenizer_load(path, &tok), MP_OK);
    return tok;
}

static struct mp_tokenizer *parse(const char *json)
{
    struct mp_tokenizer *tok;

    if (mp_tokenizer_parse("t.json", json, strlen(json), NULL, 0, &tok) != MP_OK) {
        fprintf(stderr, "%s: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
    return tok;
}

static struct mp_ids encode(const struct mp_tokenizer *tok, const char *text, size_t bytes,
                            unsigned flags)
{
    struct mp_ids ids = { 0 };

    CHECK_EQ(mp_tokenizer_encode(tok, text, bytes, flags, &ids), MP_OK);
    return ids;
}

static void check_round_trip(const struct mp_tokenizer *tok, const char *text, size_t bytes,
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

#define BPE "\"model\":{\"type\":\"BPE\""

static void k1_models_and_forms_of_merges(void)
{
    char *strings, *pairs;
    struct mp_tokenizer *a, *b;
    struct mp_ids ids_a, ids_b;

    check_change_fails("gpt2", BPE, "\"model\":{\"type\":\"WordPiece\"", "E_TOK_TYPE",
                       "model of type 'WordPiece' in 't.json' is not supported");
    check_change_fails("gpt2", BPE, "\"model\":{\"type\":\"Unigram\"", "E_TOK_TYPE", "'Unigram'");
    check_change_fails("gpt2", "\"model\"", "\"madel\"", "E_TOK_FIELD", "field 'madel'");
    check_change_fails("gpt2", "\"vocab\"", "\"vocabulary\"", "E_TOK_FIELD", "field 'vocabulary'");
    check_parse_fails("{" BPE ",\"merges\":[]}}", "E_JSON_KEY", "vocab");
    check_parse_fails("{}", "E_JSON_KEY", "model");
    check_parse_fails("[]", "E_TOK_TYPE", "an array of 0, need an object");
    check_parse_fails("{\"version\":", "E_JSON", "at byte");
    check_change_fails("gpt2", "\"version\":\"1.0\"", "\"version\":\"2.0\"", "E_TOK_VERSION",
                       "got '2.0', need '1.0'");

    /* Both forms of merges mean the same. */
    strings = changed_json("gpt2", "\"i n\"", "\"i n\"");
    pairs = changed_json("gpt2", "\"i n\"", "[\"i\",\"n\"]");
    a = parse(strings);
    b = parse(pairs);
    ids_a = encode(a, "finding in", 10, 0);
    ids_b = encode(b, "finding in", 10, 0);
    CHECK_EQ(ids_a.count, ids_b.count);
    CHECK(memcmp(ids_a.ids, ids_b.ids, ids_a.count * sizeof(*ids_a.ids)) == 0);
    mp_ids_free(&ids_a);
    mp_ids_free(&ids_b);
    mp_tokenizer_destroy(a);
    mp_tokenizer_destroy(b);
    free(strings);
    free(pairs);
}

static void k2_ids_twice_negative_broken_huge(void)
{
    check_change_fails("gpt2", "\"#\":2", "\"!\":2", "E_TOK_TWICE",
                       "duplicate object key near '\"!\"'");
    check_change_fails("gpt2", "\"#\":2", "\"#\":1", "E_TOK_ID_TWICE",
                       "token '#' in 't.json' has id 1, which token '\"' has already");
    check_change_fails("gpt2", "\"#\":2", "\"#\":-2", "E_TOK_ID_RANGE", "got -2, need an integer");
    check_change_fails("gpt2", "\"#\":2", "\"#\":1.5", "E_TOK_ID_RANGE", "got 1.5");
    check_change_fails("gpt2", "\"#\":2", "\"#\":\"2\"", "E_TOK_ID_RANGE", "got '2'");
    check_change_fails("gpt2", "\"#\":2", "\"#\":1099511627776", "E_TOK_ID_RANGE",
                       "got 1099511627776, need an integer from 0 to 4194303");
    check_change_fails("gpt2", "\"#\":2", "\"#\":2147483647", "E_TOK_ID_RANGE", "got 2147483647");
    check_change_fails("gpt2", "\"#\":2", "\"#\":4194304", "E_TOK_ID_RANGE", "got 4194304");

    /* Ids may have holes; what lies in one is no token. */
    char *json = changed_json("gpt2", "\"#\":2", "\"#\":4194303");
    struct mp_tokenizer *tok = parse(json);
    size_t bytes;

    CHECK_EQ(mp_tokenizer_vocab_count(tok), 4194304);
    CHECK_EQ(mp_tokenizer_find(tok, "#", 1), 4194303);
    CHECK(mp_tokenizer_content(tok, 2, &bytes) == NULL);
    CHECK(mp_tokenizer_content(tok, 4194304, &bytes) == NULL);
    CHECK_STR(mp_tokenizer_content(tok, 4194303, &bytes), "#");
    check_round_trip(tok, "a#b", 3, "a#b", 3);
    mp_tokenizer_destroy(tok);
    free(json);
}

static void k3_merges_of_tokens_that_are_not_there(void)
{
    check_change_fails("gpt2", "\"i n\"", "\"i qqq\"", "E_TOK_MERGE",
                       "merge 4 ('i', 'qqq') in 't.json': its right side 'qqq' is not in");
    check_change_fails("gpt2", "\"i n\"", "\"qqq n\"", "E_TOK_MERGE", "its left side 'qqq'");
    check_change_fails("gpt2", "\"i n\"", "\"~ ~\"", "E_TOK_MERGE", "its result '~~'");
    check_change_fails("gpt2", "\"i n\"", "\"in\"", "E_TOK_MERGE", "merge 4 in 't.json': got 'in'");
    check_change_fails("gpt2", "\"i n\"", "\"i n g\"", "E_TOK_MERGE", "need two tokens");
    check_change_fails("gpt2", "\"i n\"", "[\"i\"]", "E_TOK_MERGE", "got an array of 1");
    check_change_fails("gpt2", "\"i n\"", "7", "E_TOK_MERGE", "got 7");

    /* Merges that feed each other end, since each makes the word shorter. */
    struct mp_tokenizer *tok =
        parse("{" BPE ",\"unk_token\":\"a\",\"vocab\":{\"a\":0,\"aa\":1,\"aaa\":2,\"aaaa\":3},"
              "\"merges\":[\"aaa a\",\"a aa\",\"aa aa\",\"a aa\",\"aa a\",\"a a\"]}}");
    struct mp_ids ids = encode(tok, "aaaaaaaaa", 9, 0);

    CHECK_EQ(ids.count, 3);
    CHECK_EQ(ids.ids[0] + ids.ids[1] + ids.ids[2], 6);
    mp_ids_free(&ids);
    mp_tokenizer_destroy(tok);
}

/* `merges` broken ones: counted before any is looked at. */
static void check_merge_count(size_t merges, const char *code, const char *text)
{
    static const char head[] = "{" BPE ",\"unk_token\":\"a\",\"vocab\":{\"a\":0},\"merges\":[";
    const size_t bytes = sizeof(head) + merges * 2 + 4;
    char *json = malloc(bytes);
    size_t at = strlen(head);

    CHECK(json != NULL);
    memcpy(json, head, at);
    for (size_t i = 0; i < merges; i++, at += 2)
        memcpy(json + at, "0,", 2);
    memcpy(json + at - 1, "]}}", 4);
    check_parse_fails(json, code, text);
    free(json);
}

static void k3_too_many_merges(void)
{
    check_merge_count(3000000, "E_TOK_MERGES", "has 3000000 merges, need at most 2097152");
    check_merge_count(10000000, "E_JSON_COUNT", "more than");
}

static void k4_vocabulary_and_embedding(void)
{
    struct mp_tokenizer *tok = load("qwen2");

    CHECK_EQ(mp_tokenizer_vocab_count(tok), 1212);
    CHECK_EQ(mp_tokenizer_check_rows(tok, 1212), MP_OK);
    CHECK_EQ(mp_tokenizer_check_rows(tok, 2048), MP_OK);
    CHECK_EQ(mp_tokenizer_check_rows(tok, 1211), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_TOK_VOCAB_ROWS");
    CHECK(
        strstr(mp_error_last()->text, "has id 1211, but the embedding of the model has 1211 rows"));
    mp_tokenizer_destroy(tok);
}

static void k5_byte_tokens_have_two_digits(void)
{
    check_change_fails("llama", "<0x06>", "<0x-1>", "E_TOK_BYTE", "byte token '<0x-1>' (id 9)");
    check_change_fails("llama", "<0x06>", "<0xZZ>", "E_TOK_BYTE", "'<0xZZ>'");
    check_change_fails("llama", "<0x06>", "<0x100>", "E_TOK_BYTE", "'<0x100>'");
    check_change_fails("llama", "<0x06>", "<0x>", "E_TOK_BYTE", "'<0x>'");
    check_change_fails("llama", "<0x06>", "<0x+A>", "E_TOK_BYTE", "'<0x+A>'");
}

#define QWEN_HEAD "\"(?i:'s|"

static void k6_patterns_by_list(void)
{
    check_change_fails("qwen2", QWEN_HEAD, "\"(a+)+$|", "E_TOK_PATTERN", "Split pattern '(a+)+$|");
    check_change_fails("qwen2", QWEN_HEAD, "\"(?<=x)|", "E_TOK_PATTERN", "(?<=x)|");
    check_change_fails("qwen2", QWEN_HEAD, "\"((((((|", "E_TOK_PATTERN", "((((((|");
    check_change_fails("qwen2", "\"Regex\"", "\"String\"", "E_TOK_PATTERN", "is not one of the");
    check_change_fails("qwen2", "\"Isolated\"", "\"Contiguous\"", "E_TOK_TYPE",
                       "behavior 'Contiguous' with invert false");
    check_change_fails("qwen2", "\"type\":\"Split\"", "\"type\":\"Whitespace\"", "E_TOK_TYPE",
                       "pre-tokenizer of type 'Whitespace'");
    check_change_fails("qwen2", "{\"type\":\"Split\"",
                       "{\"type\":\"ByteLevel\",\"add_prefix_space\":false},{\"type\":\"Split\"",
                       "E_TOK_STAGES", "a stage after ByteLevel");
}

/* Removed and inverted with a pattern that matches everything is the same as isolated. */
static void k6_the_inverted_form(void)
{
    char *json = changed_json("qwen2", "\"behavior\":\"Isolated\",\"invert\":false",
                              "\"behavior\":\"Removed\",\"invert\":true");
    struct mp_tokenizer *tok = parse(json);

    check_round_trip(tok, "it's  12 x\n\ny", 13, "it's  12 x\n\ny", 13);
    mp_tokenizer_destroy(tok);
    free(json);
}

static void k7_wicked_texts(void)
{
    static const char *const fixtures[] = { "gpt2", "qwen2", "llama3", "nfkc" };

    for (size_t i = 0; i < MP_ARRAY_LEN(fixtures); i++) {
        struct mp_tokenizer *tok = load(fixtures[i]);

        check_round_trip(tok, "", 0, "", 0);
        check_round_trip(tok, "a\0b", 3, "a\0b", 3);
        check_round_trip(tok, "\xff", 1, "\xef\xbf\xbd", 3);
        check_round_trip(tok, "\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 9);
        check_round_trip(tok, "x\xf0\x9f\x98", 4, "x\xef\xbf\xbd", 4);
        mp_tokenizer_destroy(tok);
    }
    struct mp_tokenizer *tok = load("gpt2");
    struct mp_ids ids = { 0 };

    /* Sizes are looked at before texts. */
    CHECK_EQ(mp_tokenizer_encode(tok, "", (size_t)1 << 31, 0, &ids), MP_ERR_INVALID);
    CHECK_STR(mp_error_last()->code, "E_TOK_TEXT");
    CHECK_EQ(mp_tokenizer_encode(tok, "", SIZE_MAX, 0, &ids), MP_ERR_INVALID);
    CHECK_EQ(ids.count, 0);
    mp_tokenizer_destroy(tok);
}

/* One word of 16 MiB, and long runs of words, marks, blanks and broken bytes. */
static void k7_long_words(void)
{
    static const struct {
        const char *fixture, *unit;
        size_t bytes;
    } cases[] = {
        { "gpt2", "a", 16u << 20 },
        { "llama", "in the ", 2u << 20 },
        { "qwen2", " ", 2u << 20 },
        { "qwen2", "\n ", 2u << 20 },
        { "qwen2", "\xcc\x81\xcc\x96", 2u << 20 },
        { "llama", "\xf0\x9f\x98", 2u << 20 },
        { "metaspace_cut", " ", 2u << 20 },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const size_t unit = strlen(cases[i].unit), bytes = cases[i].bytes;
        struct mp_tokenizer *tok = load(cases[i].fixture);
        char *text = malloc(bytes + unit), *out;
        struct mp_ids ids;
        size_t out_bytes;

        CHECK(text != NULL);
        for (size_t at = 0; at < bytes; at += unit)
            memcpy(text + at, cases[i].unit, unit);
        ids = encode(tok, text, bytes, 0);
        CHECK(ids.count > 0 && ids.count <= bytes * 3);
        CHECK_EQ(mp_tokenizer_decode(tok, ids.ids, ids.count, 0, &out, &out_bytes), MP_OK);
        CHECK(out_bytes >= bytes / 2);
        free(out);
        free(text);
        mp_ids_free(&ids);
        mp_tokenizer_destroy(tok);
    }
}

static void k8_special_text_is_text_unless_asked(void)
{
    static const char text[] = "a<|im_end|>b<think>";
    struct mp_tokenizer *tok = load("qwen2");
    const uint32_t end = mp_tokenizer_find(tok, "<|im_end|>", 10);
    const uint32_t think = mp_tokenizer_find(tok, "<think>", 7);
    struct mp_ids plain = encode(tok, text, sizeof(text) - 1, 0);
    struct mp_ids parsed = encode(tok, text, sizeof(text) - 1, MP_ENCODE_PARSE_SPECIAL);

    CHECK(mp_tokenizer_is_special(tok, end) && !mp_tokenizer_is_special(tok, think));
    CHECK(!mp_tokenizer_is_special(tok, UINT32_MAX));
    for (size_t i = 0; i < plain.count; i++)
        CHECK(plain.ids[i] != end);
    /* Not special, so recognised in any text. */
    CHECK_EQ(plain.ids[plain.count - 1], think);
    CHECK_EQ(parsed.count, 4);
    CHECK_EQ(parsed.ids[1], end);
    CHECK_EQ(parsed.ids[3], think);
    mp_ids_free(&plain);
    mp_ids_free(&parsed);
    mp_tokenizer_destroy(tok);
}

/* A token across the border of two spans is not one that the template wrote. */
static void k8_spans(void)
{
    struct mp_tokenizer *tok = load("qwen2");
    const uint32_t end = mp_tokenizer_find(tok, "<|im_end|>", 10);
    const struct mp_span spans[] = {
        { "<|im_end|>", 10, true }, { "<|im_end|>", 10, false }, { "<|im_", 5, true },
        { "end|>", 5, false },      { "<|im_", 5, true },        { "end|>", 5, true },
    };
    struct mp_ids ids = { 0 };
    size_t ends = 0;

    CHECK_EQ(mp_tokenizer_encode_spans(tok, spans, 6, 0, &ids), MP_OK);
    for (size_t i = 0; i < ids.count; i++)
        ends += ids.ids[i] == end;
    CHECK_EQ(ends, 2);
    CHECK_EQ(ids.ids[0], end);
    CHECK_EQ(ids.ids[ids.count - 1], end);
    mp_ids_free(&ids);
    mp_tokenizer_destroy(tok);
}

/* Specials that are matched after normalization cannot be distinguished from a user's. */
static void k8_specials_behind_a_normalizer(void)
{
    char *json = changed_json("qwen2", "\"normalized\":false", "\"normalized\":true");
    struct mp_tokenizer *tok = parse(json);
    const struct mp_span spans[] = { { "<|endoftext|>", 13, true }, { "x", 1, false } };
    struct mp_ids ids = { 0 };

    CHECK_EQ(mp_tokenizer_encode_spans(tok, spans, 1, 0, &ids), MP_OK);
    CHECK_EQ(ids.count, 1);
    CHECK_EQ(mp_tokenizer_encode_spans(tok, spans + 1, 1, 0, &ids), MP_OK);
    CHECK_EQ(mp_tokenizer_encode_spans(tok, spans, 2, 0, &ids), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_TOK_SPECIAL_NORMALIZED");
    CHECK_EQ(ids.count, 2);
    mp_ids_free(&ids);
    mp_tokenizer_destroy(tok);
    free(json);
}

static void k9_added_tokens(void)
{
    struct mp_tokenizer *tok = load("qwen2");
    struct mp_ids ids;

    check_change_fails("qwen2", "\"content\":\"<think>\"", "\"content\":\"\"", "E_TOK_ADDED",
                       "has a content of 0 bytes, need 1 to 1024");
    check_change_fails("qwen2", "\"content\":\"<think>\"", "\"contents\":\"x\"", "E_TOK_ADDED",
                       "entry 3 of added_tokens");
    check_change_fails("qwen2", "\"id\":1203", "\"id\":7", "E_TOK_ID_TWICE",
                       "has id 7, which token '(' has already");
    check_change_fails("qwen2", "\"id\":1203,\"content\":\"<think>\"",
                       "\"id\":1203,\"content\":\"(\"", "E_TOK_ADDED",
                       "added token '(' in 't.json' has id 1203, the vocabulary has it as 7");
    check_change_fails("qwen2", "\"content\":\"<think>\"", "\"content\":\"</think>\"",
                       "E_TOK_ADDED", "has id 1204, the vocabulary has it as 1203");
    check_change_fails("qwen2", "\"id\":1203,", "", "E_TOK_ID_RANGE", "got nothing");
    check_change_fails("qwen2", "\"special\":true", "\"special\":1", "E_JSON_TYPE", "special");
    check_change_fails("qwen2", "\"lstrip\":false", "\"lstrap\":false", "E_TOK_FIELD", "'lstrap'");

    /* Of <tool and <tool_call> the longest that stands there. */
    ids = encode(tok, "<tool<tool_call><tool_call", 26, 0);
    CHECK_EQ(ids.ids[0], mp_tokenizer_find(tok, "<tool", 5));
    CHECK_EQ(ids.ids[1], mp_tokenizer_find(tok, "<tool_call>", 11));
    CHECK_EQ(ids.ids[2], mp_tokenizer_find(tok, "<tool", 5));
    mp_ids_free(&ids);
    mp_tokenizer_destroy(tok);
}

static void k10_ids_that_are_not_there(void)
{
    static const uint32_t bad[] = { UINT32_MAX, 1201, 1u << 31 };
    struct mp_tokenizer *tok = load("gpt2");
    struct mp_detok *detok;
    const char *text;
    char *out;
    size_t bytes;

    CHECK_EQ(mp_detok_create(tok, 0, &detok), MP_OK);
    for (size_t i = 0; i < MP_ARRAY_LEN(bad); i++) {
        CHECK_EQ(mp_tokenizer_decode(tok, &bad[i], 1, 0, &out, &bytes), MP_ERR_INVALID);
        CHECK_STR(mp_error_last()->code, "E_TOK_ID");
        CHECK_EQ(mp_detok_push(detok, bad[i], &text, &bytes), MP_ERR_INVALID);
    }
    CHECK(strstr(mp_error_last()->text, "id 2147483648: the vocabulary has ids below 1201"));
    mp_detok_destroy(detok);
    mp_detok_destroy(NULL);
    mp_tokenizer_destroy(NULL);
    mp_tokenizer_destroy(tok);
}

static void k10_incomplete_characters_are_held_back(void)
{
    struct mp_tokenizer *tok = load("gpt2");
    struct mp_ids ids = encode(tok, "\xf0\x9f\xab\xa8!", 5, 0);
    struct mp_detok *detok;
    const char *text;
    size_t bytes;

    const size_t last = ids.count - 2; /* of the first character */

    CHECK(ids.count >= 3);
    CHECK_EQ(mp_detok_create(tok, 0, &detok), MP_OK);
    for (size_t i = 0; i < last; i++) {
        CHECK_EQ(mp_detok_push(detok, ids.ids[i], &text, &bytes), MP_OK);
        CHECK_EQ(bytes, 0);
    }
    CHECK_EQ(mp_detok_push(detok, ids.ids[last], &text, &bytes), MP_OK);
    CHECK_STR(text, "\xf0\x9f\xab\xa8");
    /* At the end what is incomplete is broken; afterwards the detokenizer is as new. */
    CHECK_EQ(mp_detok_push(detok, ids.ids[0], &text, &bytes), MP_OK);
    CHECK_EQ(bytes, 0);
    CHECK_EQ(mp_detok_finish(detok, &text, &bytes), MP_OK);
    CHECK_STR(text, "\xef\xbf\xbd");
    CHECK_EQ(mp_detok_push(detok, ids.ids[last + 1], &text, &bytes), MP_OK);
    CHECK_STR(text, "!");
    CHECK_EQ(mp_detok_finish(detok, &text, &bytes), MP_OK);
    CHECK_STR(text, "");
    mp_detok_destroy(detok);
    mp_ids_free(&ids);
    mp_tokenizer_destroy(tok);
}

/* A text in two parts, wherever it is cut: only its beginning loses a blank. */
static void k10_ids_that_continue_a_text(void)
{
    static const char *const fixtures[] = { "gpt2", "llama", "metaspace", "metaspace_cut" };
    static const char text[] = "the text and all that is in it";

    for (size_t i = 0; i < MP_ARRAY_LEN(fixtures); i++) {
        struct mp_tokenizer *tok = load(fixtures[i]);
        struct mp_ids ids = encode(tok, text, strlen(text), 0);

        CHECK(ids.count > 5);
        for (size_t cut = 1; cut < ids.count; cut++) {
            char joined[2 * sizeof(text)], *parts[2];
            size_t bytes;

            CHECK_EQ(mp_tokenizer_decode(tok, ids.ids, cut, 0, &parts[0], &bytes), MP_OK);
            CHECK_EQ(mp_tokenizer_decode(tok, ids.ids + cut, ids.count - cut, MP_DECODE_CONTINUES,
                                         &parts[1], &bytes),
                     MP_OK);
            snprintf(joined, sizeof(joined), "%s%s", parts[0], parts[1]);
            CHECK_STR(joined, text);
            free(parts[0]);
            free(parts[1]);
        }
        mp_ids_free(&ids);
        mp_tokenizer_destroy(tok);
    }
}

static void k11_what_is_not_supported_is_refused(void)
{
    static const char nfc[] = "\"normalizer\":{\"type\":\"NFC\"}";
    static const char decoder[] = "\"decoder\":{\"type\":\"ByteLevel\"";
    static const char post[] = "\"post_processor\":{\"type\":\"ByteLevel\"";

    check_change_fails("qwen2", nfc, "\"normalizer\":{\"type\":\"Precompiled\"}", "E_TOK_TYPE",
                       "normalizer of type 'Precompiled' in 't.json' is not supported");
    check_change_fails("qwen2", nfc, "\"normalizer\":{\"type\":\"Lowercase\"}", "E_TOK_TYPE",
                       "'Lowercase'");
    check_change_fails("qwen2", nfc, "\"normalizer\":\"NFC\"", "E_TOK_TYPE", "need an object");
    check_change_fails("qwen2", nfc,
                       "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},"
                       "\"content\":\" \"}",
                       "E_TOK_PATTERN", "has the regular expression ' {2,}'");
    check_change_fails("qwen2", nfc,
                       "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},"
                       "\"content\":\" \"}",
                       "E_TOK_PATTERN", "empty pattern");
    check_change_fails("qwen2", decoder, "\"decoder\":{\"type\":\"WordPiece\"", "E_TOK_TYPE",
                       "decoder of type 'WordPiece'");
    check_change_fails("llama", "{\"type\":\"Fuse\"},", "", "E_TOK_STAGES", "decoder 'Strip'");
    check_change_fails("llama", "\"start\":1", "\"start\":1048577", "E_JSON_RANGE", "1048576");
    check_change_fails("llama", "\"stop\":0", "\"stop\":1", "E_JSON_RANGE", "stop");
    check_change_fails("qwen2", post, "\"post_processor\":{\"type\":\"BertProcessing\"",
                       "E_TOK_TYPE", "post-processor of type 'BertProcessing'");
    check_change_fails("llama", "\"ids\":[1]", "\"ids\":[5000]", "E_TOK_TEMPLATE",
                       "special token '<s>' of the post-processor");
    check_change_fails("llama", "{\"Sequence\":{\"id\":\"A\"", "{\"Sequence\":{\"id\":\"B\"",
                       "E_TOK_TEMPLATE", "does not have the text exactly once");
    check_change_fails("gpt2", "\"truncation\":null", "\"truncation\":{\"max_length\":5}",
                       "E_TOK_FIELD", "sets truncation");
    check_change_fails("gpt2", "\"padding\":null", "\"padding\":{}", "E_TOK_FIELD", "sets padding");
    check_change_fails("gpt2", "\"dropout\":null", "\"dropout\":0.1", "E_TOK_FIELD",
                       "'dropout' in 't.json' is 0.1, need null");
    check_change_fails("gpt2", "\"end_of_word_suffix\":\"\"", "\"end_of_word_suffix\":\"</w>\"",
                       "E_TOK_FIELD", "'end_of_word_suffix' in 't.json' is '</w>'");
    check_change_fails("gpt2", "\"use_regex\":true", "\"use_regexp\":true", "E_TOK_FIELD",
                       "field 'use_regexp' of the pre-tokenizer ByteLevel");
    check_change_fails("metaspace", "\"replacement\":\"\xe2\x96\x81\"", "\"replacement\":\"ab\"",
                       "E_TOK_TYPE", "need one character");
    check_change_fails("metaspace", "\"first\"", "\"last\"", "E_TOK_TYPE", "is 'last'");
    check_change_fails("qwen2", "\"!\":0,", "", "E_TOK_COVER", "no token for byte 0x21");
    check_change_fails("llama", "\"byte_fallback\":true,\"ignore", "\"byte_fallback\":7,\"ignore",
                       "E_JSON_TYPE", "byte_fallback");
    check_change_fails("llama",
                       "\"unk_token\":\"<unk>\",\"continuing_subword_prefix\":null,"
                       "\"end_of_word_suffix\":null,\"fuse_unk\":true,\"byte_fallback\":true",
                       "\"fuse_unk\":true", "E_TOK_COVER", "neither bytes nor an unknown token");
}

/* Replacements that would make a text of 16 blanks as long as 16 * 1024^15. */
static void k11_replacements_that_grow_without_end(void)
{
    static const char norm[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
                               "\"content\":\"%1024s\"}%c";
    char *text = malloc(20000), *json;
    size_t at = (size_t)sprintf(text, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    struct mp_tokenizer *tok;
    struct mp_ids ids = { 0 };

    CHECK(text != NULL);
    for (int i = 0; i < 15; i++)
        at += (size_t)sprintf(text + at, norm, "", i < 14 ? ',' : ']');
    sprintf(text + at, "}");
    json = changed_json("gpt2", "\"normalizer\":null", text);
    tok = parse(json);
    CHECK_EQ(mp_tokenizer_encode(tok, "                ", 16, 0, &ids), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_TOK_GROWTH");
    check_round_trip(tok, "abc", 3, "abc", 3);
    mp_ids_free(&ids);
    mp_tokenizer_destroy(tok);
    free(json);
    free(text);
}

static void names_of_the_end_token(void)
{
    struct mp_tokenizer *tok = load("llama");
    char *json = changed_json("llama", "{", "{");
    static const char config[] = "{\"eos_token\": \"</none>\"}";

    CHECK_EQ(mp_tokenizer_bos(tok), 1);
    CHECK_EQ(mp_tokenizer_eos(tok), 2);
    mp_tokenizer_destroy(tok);
    tok = load("nfd");
    CHECK_EQ(mp_tokenizer_bos(tok), MP_TOKEN_NONE);
    mp_tokenizer_destroy(tok);
    CHECK_EQ(mp_tokenizer_parse("t.json", json, strlen(json), config, strlen(config), &tok),
             MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_TOK_CONFIG");
    CHECK(strstr(mp_error_last()->text, "eos_token of tokenizer_config.json is '</none>'"));
    free(json);
    CHECK_EQ(mp_tokenizer_load(FIXTURES "absent", &tok), MP_ERR_IO);
    CHECK_EQ(mp_tokenizer_load(FIXTURES, &tok), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_FILE_MISSING");
}

static void the_bundled_model(void)
{
    static const char text[] = "def f(x):\n    return x + 12  # \xc3\xbc\xe4\xb8\xad\n";
    struct mp_tokenizer *tok;

    CHECK_EQ(mp_tokenizer_load("models/tiny-moe", &tok), MP_OK);
    CHECK(mp_tokenizer_eos(tok) == mp_tokenizer_find(tok, "<|im_end|>", 10));
    CHECK(mp_tokenizer_is_special(tok, mp_tokenizer_eos(tok)));
    check_round_trip(tok, text, sizeof(text) - 1, text, sizeof(text) - 1);
    mp_tokenizer_destroy(tok);
}

/* Every allocation fails once: a clean error each time, and nothing is lost (the sanitizer says).
 */
static enum mp_status use(const char *json)
{
    static const char text[] = "it's caf\x65\xcc\x81 12 <|im_end|> \xff\xe4\xb8";
    struct mp_ids ids = { 0 };
    struct mp_tokenizer *tok;
    char *out = NULL;
    size_t bytes;
    enum mp_status status = mp_tokenizer_parse("t.json", json, strlen(json), NULL, 0, &tok);

    if (status != MP_OK)
        return status;
    status = mp_tokenizer_encode(tok, text, sizeof(text) - 1, MP_ENCODE_PARSE_SPECIAL, &ids);
    CHECK(status == MP_OK || ids.count == 0);
    if (status == MP_OK)
        status = mp_tokenizer_decode(tok, ids.ids, ids.count, 0, &out, &bytes);
    free(out);
    mp_ids_free(&ids);
    mp_tokenizer_destroy(tok);
    return status;
}

static void failing_allocations(void)
{
    static const char *const fixtures[] = { "qwen2", "llama" };

    for (size_t i = 0; i < MP_ARRAY_LEN(fixtures); i++) {
        char *json = changed_json(fixtures[i], "{", "{");
        uint64_t n = 0;

        for (;; n++) {
            enum mp_status status;

            fault_nth(FAULT_ALLOCATIONS, n);
            status = use(json);
            if (fault_end() == 0) {
                CHECK_EQ(status, MP_OK);
                break;
            }
            CHECK_EQ(status, MP_ERR_NO_MEMORY);
        }
        CHECK(n > 20);
        free(json);
    }
}

/* The text of a token that ends one character and begins another, pushed twice: the n-th allocation
 * of the first try fails. */
static void push_again(const struct mp_tokenizer *tok, uint32_t half, uint32_t token, uint64_t n,
                       uint64_t *failed_p, char out[256])
{
    struct mp_detok *detok;
    const char *text;
    size_t bytes;
    enum mp_status status;

    CHECK_EQ(mp_detok_create(tok, 0, &detok), MP_OK);
    CHECK_EQ(mp_detok_push(detok, half, &text, &bytes), MP_OK);
    fault_nth(FAULT_ALLOCATIONS, n);
    status = mp_detok_push(detok, token, &text, &bytes);
    *failed_p = fault_end();
    CHECK_EQ(status, *failed_p > 0 ? MP_ERR_NO_MEMORY : MP_OK);
    if (status != MP_OK)
        CHECK_EQ(mp_detok_push(detok, token, &text, &bytes), MP_OK);
    snprintf(out, 256, "%s", text);
    CHECK_EQ(mp_detok_finish(detok, &text, &bytes), MP_OK);
    CHECK_STR(text, "\xef\xbf\xbd");
    mp_detok_destroy(detok);
}

/* Around the sizes at which the buffer of the text grows. */
static void a_failed_push_changes_nothing(void)
{
    for (int letters = 110; letters < 140; letters++) {
        char token[512], row[160] = "", out[256], expected[256];
        struct mp_tokenizer *tok;
        uint64_t failed = 1;

        memset(row, 'x', (size_t)letters);
        snprintf(token, sizeof(token),
                 "},{\"id\":1201,\"content\":\"\u013a\u0122%s\u00e2\u0124\",\"single_word\":false,"
                 "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":false}],",
                 row);
        char *json = changed_json("gpt2", "}],", token);

        tok = parse(json);
        snprintf(expected, sizeof(expected), "\xf0\x9f\x98\x80%s", row);
        for (uint64_t n = 0; failed > 0; n++) {
            push_again(tok, mp_tokenizer_find(tok, "\u00f0\u0141", 4), 1201, n, &failed, out);
            CHECK_STR(out, expected);
        }
        mp_tokenizer_destroy(tok);
        free(json);
    }
}

int main(void)
{
    RUN(k1_models_and_forms_of_merges);
    RUN(k2_ids_twice_negative_broken_huge);
    RUN(k3_merges_of_tokens_that_are_not_there);
    RUN(k3_too_many_merges);
    RUN(k4_vocabulary_and_embedding);
    RUN(k5_byte_tokens_have_two_digits);
    RUN(k6_patterns_by_list);
    RUN(k6_the_inverted_form);
    RUN(k7_wicked_texts);
    RUN(k7_long_words);
    RUN(k8_special_text_is_text_unless_asked);
    RUN(k8_spans);
    RUN(k8_specials_behind_a_normalizer);
    RUN(k9_added_tokens);
    RUN(k10_ids_that_are_not_there);
    RUN(k10_incomplete_characters_are_held_back);
    RUN(k10_ids_that_continue_a_text);
    RUN(k11_what_is_not_supported_is_refused);
    RUN(k11_replacements_that_grow_without_end);
    RUN(names_of_the_end_token);
    RUN(the_bundled_model);
    RUN(failing_allocations);
    RUN(a_failed_push_changes_nothing);
    return 0;
}
