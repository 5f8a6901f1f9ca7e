/*
 * Wicked texts, ids and added tokens, cases K7 to K11 by name, and allocations that fail. What is
 * refused of a file is in tokenizer_refusals_test.c, K12 in chat_test.c.
 */
#include "engine/text/tokenizer.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/unit/engine/tokenizer_files.h"

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
    /* What is matched before normalization separates them. */
    const struct mp_span apart[] = { { "<|endoftext|>", 13, true },
                                     { "<think>x", 8, false },
                                     { "<think>", 7, false },
                                     { "<|endoftext|>", 13, true } };
    struct mp_ids ids = { 0 };

    CHECK_EQ(mp_tokenizer_encode_spans(tok, spans, 1, 0, &ids), MP_OK);
    CHECK_EQ(ids.count, 1);
    CHECK_EQ(mp_tokenizer_encode_spans(tok, spans + 1, 1, 0, &ids), MP_OK);
    CHECK_EQ(mp_tokenizer_encode_spans(tok, spans, 2, 0, &ids), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_TOK_SPECIAL_NORMALIZED");
    CHECK_EQ(ids.count, 2);
    CHECK_EQ(mp_tokenizer_encode_spans(tok, apart, 4, 0, &ids), MP_OK);
    CHECK_EQ(ids.count, 2 + 5);
    CHECK_EQ(ids.ids[2], mp_tokenizer_find(tok, "<|endoftext|>", 13));
    CHECK_EQ(ids.ids[6], ids.ids[2]);
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

/* Two that are one text once they are normalized: the least id is found. */
static void k9_of_equal_contents_the_least_id(void)
{
    char *json = changed_json("qwen2", "\"content\":\"wordy\",\"single_word\":true",
                              "\"content\":\"A\\u030angstrom\",\"single_word\":false");
    struct mp_tokenizer *tok = parse(json);
    struct mp_ids ids = encode(tok, "\xc3\x85ngstrom", 9, 0);

    CHECK_EQ(ids.count, 1);
    CHECK_EQ(ids.ids[0], 1210);
    mp_ids_free(&ids);
    mp_tokenizer_destroy(tok);
    free(json);
}

static size_t put_utf8(uint32_t code, char *out)
{
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    for (int i = 1; i < 4; i++)
        out[i] = (char)(0x80 | (code >> (18 - 6 * i) & 0x3f));
    return 4;
}

/* A token that stands for a word is not found behind a letter, of which some are called symbols
 * and joiners. */
static void k9_what_belongs_to_a_word(void)
{
    static const struct {
        uint32_t first, last;
    } letters[] = { { 0x200c, 0x200d },
                    { 0x24b6, 0x24e9 },
                    { 0x1f130, 0x1f149 },
                    { 0x1f150, 0x1f169 },
                    { 0x1f170, 0x1f189 } };
    struct mp_tokenizer *tok = load("qwen2");
    const uint32_t word = mp_tokenizer_find(tok, "wordy", 5);

    CHECK(word != MP_TOKEN_NONE);
    for (size_t i = 0; i < MP_ARRAY_LEN(letters); i++) {
        for (uint32_t code = letters[i].first - 1; code <= letters[i].last + 1; code++) {
            const bool letter = code >= letters[i].first && code <= letters[i].last;
            char text[16];
            const size_t bytes = put_utf8(code, text);
            struct mp_ids ids;

            memcpy(text + bytes, "wordy", 5);
            ids = encode(tok, text, bytes + 5, 0);
            if ((ids.ids[ids.count - 1] == word) == letter) {
                fprintf(stderr, "U+%04X is%s part of a word\n", code, letter ? "" : " no");
                exit(1);
            }
            mp_ids_free(&ids);
        }
    }
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
    RUN(k7_wicked_texts);
    RUN(k7_long_words);
    RUN(k8_special_text_is_text_unless_asked);
    RUN(k8_spans);
    RUN(k8_specials_behind_a_normalizer);
    RUN(k9_added_tokens);
    RUN(k9_of_equal_contents_the_least_id);
    RUN(k9_what_belongs_to_a_word);
    RUN(k10_ids_that_are_not_there);
    RUN(k10_incomplete_characters_are_held_back);
    RUN(k10_ids_that_continue_a_text);
    RUN(k11_replacements_that_grow_without_end);
    RUN(the_bundled_model);
    RUN(failing_allocations);
    RUN(a_failed_push_changes_nothing);
    return 0;
}
