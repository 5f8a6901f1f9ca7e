/*
 * Tokenizer files that are refused, cases K1 to K6, K9 and K11 by name, each with status, code and
 * text. tokenizer_cases_test.c has wicked texts for files that are accepted.
 */
#include "engine/text/tokenizer.h"
#include "tests/support/test.h"
#include "tests/unit/engine/tokenizer_files.h"

#define BPE "\"model\":{\"type\":\"BPE\""

static void k1_models_and_forms_of_merges(void)
{
    char *strings, *pairs;
    struct mp_tokenizer *a, *b;
    struct mp_ids ids_a, ids_b;

    check_change_fails("gpt2", BPE, "\"model\":{\"type\":\"WordPiece\"", "E_TOK_TYPE",
                       "model of type 'WordPiece' in 't.json' is not supported");
    check_change_fails("gpt2", BPE, "\"model\":{\"type\":\"Unigram\"", "E_TOK_FIELD", "'dropout'");
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

/* A merge file of old begins with its version, which is no merge. */
static void k1_a_version_among_merges(void)
{
    struct mp_tokenizer *tok = parse("{" BPE ",\"unk_token\":\"a\",\"vocab\":{\"a\":0,\"aa\":1},"
                                     "\"merges\":[\"#version: 0.2\",\"a a\"]}}");
    struct mp_ids ids = encode(tok, "aa", 2, 0);

    CHECK_EQ(ids.count, 1);
    CHECK_EQ(ids.ids[0], 1);
    mp_ids_free(&ids);
    mp_tokenizer_destroy(tok);
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

static void k9_a_content_has_at_most_1024_bytes(void)
{
    char to[1100];

    for (int bytes = 1024; bytes <= 1025; bytes++) {
        snprintf(to, sizeof(to), "\"content\":\"%0*d\"", bytes, 7);
        if (bytes > 1024) {
            check_change_fails("qwen2", "\"content\":\"<think>\"", to, "E_TOK_ADDED",
                               "has a content of 1025 bytes, need 1 to 1024");
        } else {
            char *json = changed_json("qwen2", "\"content\":\"<think>\"", to);

            mp_tokenizer_destroy(parse(json));
            free(json);
        }
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

int main(void)
{
    RUN(k1_models_and_forms_of_merges);
    RUN(k1_a_version_among_merges);
    RUN(k2_ids_twice_negative_broken_huge);
    RUN(k3_merges_of_tokens_that_are_not_there);
    RUN(k3_too_many_merges);
    RUN(k4_vocabulary_and_embedding);
    RUN(k5_byte_tokens_have_two_digits);
    RUN(k6_patterns_by_list);
    RUN(k6_the_inverted_form);
    RUN(k9_a_content_has_at_most_1024_bytes);
    RUN(k11_what_is_not_supported_is_refused);
    RUN(names_of_the_end_token);
    return 0;
}
