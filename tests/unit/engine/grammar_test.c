/*
 * Grammars of JSON: texts that schemas accept and do not accept, random texts that the automaton
 * itself leads to and that must be JSON, tokens against bytes, and each allocation failed once.
 */
#include <math.h>

#include "engine/text/grammar/token_mask.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "vmm/base/compiler.h"

static struct mp_grammar *make(const char *schema)
{
    json_t *root = schema != NULL ? json_loads(schema, 0, NULL) : NULL;
    struct mp_grammar *g = NULL;

    CHECK((schema == NULL) == (root == NULL));
    CHECK_EQ(mp_grammar_create(root, &g), MP_OK);
    json_decref(root);
    return g;
}

/* 0: refused on the way, 1: a beginning, 2: complete. */
static int judge(const struct mp_grammar *g, const char *text)
{
    struct mp_grammar_state state, next;

    mp_grammar_begin(g, &state);
    for (; *text != '\0'; text++) {
        if (!mp_grammar_step(g, &state, (uint8_t)*text, &next))
            return 0;
        state = next;
    }
    return mp_grammar_can_end(g, &state) ? 2 : 1;
}

#define PERSON                                                                                    \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":"      \
    "[\"integer\",\"null\"]},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"ab\",3]}," \
    "\"minItems\":1,\"maxItems\":2}},\"required\":[\"name\",\"tags\"],\"additionalProperties\":"  \
    "false,\"title\":\"P\"}"
#define TREE                                                                              \
    "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":" \
    "\"object\",\"properties\":{\"l\":{\"$ref\":\"#/$defs/n\"},\"v\":{\"const\":true}},"  \
    "\"required\":[\"l\",\"v\"]}]}}}"
#define LIST "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}"
#define MUTUAL                                                                              \
    "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"type\":\"object\",\"properties\":{\"b\":{" \
    "\"$ref\":\"#/$defs/b\"}},\"required\":[\"b\"]},\"b\":{\"type\":\"array\",\"items\":{"  \
    "\"anyOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}]}}}}"
#define OPTIONAL                                                                                   \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"" \
    "},\"c\":{}}}"

static void texts_that_a_schema_accepts(void)
{
    static const struct {
        const char *schema, *text;
        int result;
    } cases[] = {
        { NULL, "{}", 2 },
        { NULL, " {\"a\": [1, -2.5e+3, \"\\u00e9\\n\\ud83d\\ude00\xc3\xa9\", null]}", 2 },
        { NULL, "[]", 0 },
        { NULL, "{\"a\":01", 0 },
        { NULL, "{\"a\":\"\n", 0 },
        { NULL, "{\"a\":\"\\ud83dx", 0 },
        { NULL, "{\"a\":\"\xff", 0 },
        { NULL, "{\"a\":\"\xe0\x80", 0 },
        { NULL, "{,", 0 },
        { NULL, "{\"a\":1,}", 0 },
        { NULL, "{\"a\":1", 1 },
        { NULL, "{}}", 0 },
        { PERSON, "{\"name\":\"x\",\"tags\":[\"a\"]}", 2 },
        { PERSON, "{\"name\":\"x\",\"age\":-4, \"tags\":[3, \"ab\"] }", 2 },
        { PERSON, "{\"name\":\"x\",\"age\":null,\"tags\":[\"ab\"]}", 2 },
        { PERSON, "{\"name\":\"x\",\"age\":4.", 0 },
        { PERSON, "{\"age\"", 0 },
        { PERSON, "{\"name\":\"x\"}", 0 },
        { PERSON, "{\"name\":\"x\",\"tags\":[]", 0 },
        { PERSON, "{\"name\":\"x\",\"tags\":[3,3,", 0 },
        { PERSON, "{\"name\":\"x\",\"tags\":[\"ac", 0 },
        { PERSON, "{\"name\":\"x\",\"tags\":[3],", 0 },
        { TREE, "null", 2 },
        { TREE, "{\"l\":{\"l\":null,\"v\":true},\"v\":true}", 2 },
        { TREE, "{\"l\":null,\"v\":f", 0 },
        { LIST, "[[],[ [] ]]", 2 },
        { MUTUAL, "{\"b\":[{\"b\":[]},[[]]]}", 2 },
        { MUTUAL, "{\"b\":null", 0 },
        { OPTIONAL, "{}", 2 },
        { OPTIONAL, "{\"b\":false}", 2 },
        { OPTIONAL, "{\"a\":1.5,\"c\":{\"x\":[]}}", 2 },
        { OPTIONAL, "{\"b\":true,\"a\"", 0 },
        { OPTIONAL, "{\"a\":1,}", 0 },
        { "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", "[ 1,2,3,\n 4 ]", 2 },
        { "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2}", "[1]", 0 },
        { "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2}", "[1,2,3]", 2 },
        { "{\"type\":\"array\",\"maxItems\":0}", "[]", 2 },
        { "{\"type\":\"array\",\"maxItems\":0}", "[1", 0 },
        { "{\"type\":\"integer\"}", "12", 2 },
        { "{\"enum\":[1,12,1]}", "12", 2 },
        { "{\"enum\":[1,12,1]}", "1", 2 },
        { "{\"enum\":[1,12,1]}", "13", 0 },
        { "{\"type\":\"string\",\"enum\":[1,\"x\"]}", "1", 0 },
        { "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}", "{ }", 2 },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        struct mp_grammar *g = make(cases[i].schema);

        if (judge(g, cases[i].text) != cases[i].result)
            fprintf(stderr, "case %zu: %s\n", i, cases[i].text);
        CHECK_EQ(judge(g, cases[i].text), cases[i].result);
        mp_grammar_destroy(g);
    }
}

static void schemas_that_are_refused_by_name(void)
{
    static const struct {
        const char *schema, *shows;
    } cases[] = {
        { "{\"type\":\"string\",\"pattern\":\"a\"}", "'pattern'" },
        { "{\"type\":\"text\"}", "'text'" },
        { "{\"allOf\":[]}", "'allOf'" },
        { "{\"anyOf\":[]}", "'anyOf'" },
        { "{\"enum\":[]}", "'enum'" },
        { "{\"type\":\"null\",\"enum\":[1]}", "'enum'" },
        { "{\"type\":\"null\",\"const\":1}", "'const'" },
        { "{\"$ref\":\"#/$defs/x\"}", "'#/$defs/x'" },
        { "{\"$ref\":\"http://a/b\"}", "'http://a/b'" },
        { "{\"type\":\"object\",\"additionalProperties\":{}}", "'additionalProperties'" },
        { "{\"type\":\"object\",\"properties\":[]}", "'properties'" },
        { "{\"type\":\"object\",\"properties\":{},\"required\":[\"z\"]}", "'z'" },
        { "{\"type\":\"object\",\"properties\":{\"a\":1}}", "'schema'" },
        { "{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "'minItems'" },
        { "{\"type\":\"array\",\"maxItems\":65}", "'minItems'" },
        { "{\"$ref\":\"#\",\"type\":\"null\"}", "'$ref'" },
        { "{\"$ref\":\"#\"}", "begins with itself" },
        { "{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#\"}]}", "begins with itself" },
        { "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}", "without an end" },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
          "without an end" },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\"}},\"$defs\":{\"n\":{"
          "\"type\":\"array\",\"minItems\":2,\"items\":{\"$ref\":\"#/$defs/n\"}}}}",
          "without an end" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        json_t *root = json_loads(cases[i].schema, 0, NULL);
        struct mp_grammar *g = NULL;

        CHECK(root != NULL);
        CHECK_EQ(mp_grammar_create(root, &g), MP_ERR_CONFIG);
        CHECK_STR(mp_error_last()->code, "E_FORMAT");
        if (strstr(mp_error_last()->text, cases[i].shows) == NULL)
            CHECK_STR(mp_error_last()->text, cases[i].shows);
        CHECK(g == NULL);
        json_decref(root);
    }
}

static uint32_t next_random(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33);
}

/* Of the bytes that may come, one that is likely to end things. */
static bool random_step(const struct mp_grammar *g, struct mp_grammar_state *state,
                        uint64_t *random, char *byte_p)
{
    static const char closing[] = "}]\",:";
    struct mp_grammar_state next;
    unsigned at = next_random(random) % 256;

    for (unsigned i = 0; i < 256 + 5; i++) {
        const unsigned byte = i < 5 ? (uint8_t)closing[i] : (at + i) % 256;

        if ((i < 5 && next_random(random) % 3 == 0) ||
            !mp_grammar_step(g, state, (uint8_t)byte, &next))
            continue;
        *byte_p = (char)byte;
        *state = next;
        return true;
    }
    return false;
}

static void whatever_may_come_is_json(void)
{
    static const char *const schemas[] = { NULL, PERSON, TREE, OPTIONAL, LIST, MUTUAL };
    uint64_t random = 1;
    unsigned complete = 0;

    for (size_t i = 0; i < MP_ARRAY_LEN(schemas) * 400; i++) {
        struct mp_grammar *g = make(schemas[i % MP_ARRAY_LEN(schemas)]);
        struct mp_grammar_state state;
        char text[512];
        size_t bytes = 0;

        mp_grammar_begin(g, &state);
        while (bytes < sizeof(text) && random_step(g, &state, &random, &text[bytes]))
            bytes++;
        if (bytes < sizeof(text)) {
            json_t *root = json_loadb(text, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

            if (root == NULL)
                fprintf(stderr, "not JSON: %.*s\n", (int)bytes, text);
            CHECK(root != NULL && mp_grammar_can_end(g, &state));
            complete++;
            json_decref(root);
        }
        mp_grammar_destroy(g);
    }
    fprintf(stderr, "    %u complete texts\n", complete);
    CHECK(complete > 800);
}

/* Of the bytes that may come, one that opens a value, or else the first that goes on. */
static bool deepest_step(const struct mp_grammar *g, struct mp_grammar_state *state, char *byte_p)
{
    const char *const order = mp_grammar_in_string(g, state) ? "\"" : "[{\":]}";
    const unsigned first = (unsigned)strlen(order);
    struct mp_grammar_state next;

    for (unsigned i = 0; i < first + 256; i++) {
        const unsigned byte = i < first ? (uint8_t)order[i] : i - first;

        if (!mp_grammar_step(g, state, (uint8_t)byte, &next))
            continue;
        *byte_p = (char)byte;
        *state = next;
        return true;
    }
    return false;
}

/* Whoever opens what can be opened comes to where only closing is left, and there to an end. */
static void the_deepest_text_has_an_end(void)
{
    static const char *const schemas[] = { NULL, TREE, LIST, "{\"type\":\"array\"}", MUTUAL };

    for (size_t i = 0; i < MP_ARRAY_LEN(schemas); i++) {
        struct mp_grammar *g = make(schemas[i]);
        struct mp_grammar_state state;
        json_t *root;
        char text[8192];
        size_t bytes = 0;
        unsigned opened = 0;

        mp_grammar_begin(g, &state);
        while (bytes < sizeof(text) && deepest_step(g, &state, &text[bytes])) {
            opened += text[bytes] == '[' || text[bytes] == '{';
            bytes++;
        }
        fprintf(stderr, "    %zu bytes, %u opened\n", bytes, opened);
        CHECK(bytes < sizeof(text) && opened > 10 && mp_grammar_can_end(g, &state));
        root = json_loadb(text, bytes, 0, NULL);
        CHECK(root != NULL);
        json_decref(root);
        mp_grammar_destroy(g);
    }
}

static void a_schema_deeper_than_the_stack_is_refused(void)
{
    char text[4096];
    json_t *root;
    struct mp_grammar *g;

    for (unsigned depth = 10; depth <= 80; depth += 70) {
        size_t used = 0;

        for (unsigned i = 0; i < depth; i++)
            used += (size_t)snprintf(text + used, sizeof(text) - used,
                                     "{\"type\":\"array\",\"minItems\":1,\"items\":");
        used += (size_t)snprintf(text + used, sizeof(text) - used, "{\"type\":\"null\"}");
        memset(text + used, '}', depth);
        text[used + depth] = '\0';
        root = json_loads(text, 0, NULL);
        CHECK(root != NULL);
        CHECK_EQ(mp_grammar_create(root, &g), depth < 60 ? MP_OK : MP_ERR_CONFIG);
        if (depth < 60)
            mp_grammar_destroy(g);
        json_decref(root);
    }
}

/* ---- tokens */

/* A token leads to where its bytes lead. */
static void check_follow(struct mp_token_mask *mask, const struct mp_grammar *g, uint32_t id,
                         const struct mp_grammar_state *from, const struct mp_grammar_state *to)
{
    struct mp_grammar_state state = *from;

    mp_token_mask_follow(mask, g, id, &state);
    CHECK_EQ(state.count, to->count);
    for (uint32_t i = 0; i < to->count; i++) {
        const struct mp_grammar_path *a = &state.paths[i], *b = &to->paths[i];

        CHECK(a->op == b->op && a->depth == b->depth);
        CHECK(memcmp(a->back, b->back, b->depth * sizeof(b->back[0])) == 0);
    }
}

static void check_state(struct mp_token_mask *mask, const struct mp_tokenizer *tok,
                        const struct mp_grammar *g, const struct mp_grammar_state *state)
{
    static float logits[1u << 12];
    const uint32_t vocab = mp_tokenizer_vocab_count(tok);
    enum mp_status status;

    CHECK(vocab <= MP_ARRAY_LEN(logits));
    memset(logits, 0, sizeof(logits));
    status = mp_token_mask_apply(mask, g, state, NULL, 0, logits, vocab);
    CHECK(status == MP_OK || mp_grammar_must_end(g, state));
    for (uint32_t id = 0; id < vocab && status == MP_OK; id++) {
        struct mp_grammar_state at = *state, next;
        char text[64];
        const size_t bytes = mp_tokenizer_bytes(tok, id, text, sizeof(text));
        bool good = bytes > 0;

        for (size_t i = 0; i < bytes && good; i++) {
            good = mp_grammar_step(g, &at, (uint8_t)text[i], &next);
            at = next;
        }
        CHECK_EQ(good, !isinf(logits[id]));
        if (good)
            check_follow(mask, g, id, state, &at);
    }
}

static void check_tokens(struct mp_token_mask *mask, const struct mp_tokenizer *tok,
                         const char *schema, const char *text)
{
    struct mp_grammar *g = make(schema);
    struct mp_grammar_state state, next;

    mp_grammar_begin(g, &state);
    for (size_t i = 0; text[i] != '\0'; i++) {
        check_state(mask, tok, g, &state);
        CHECK(mp_grammar_step(g, &state, (uint8_t)text[i], &next));
        state = next;
    }
    CHECK(mp_grammar_must_end(g, &state) && mp_grammar_can_end(g, &state));
    mp_grammar_destroy(g);
}

static void tokens_may_come_if_their_bytes_may(void)
{
    struct mp_tokenizer *tok = NULL;
    struct mp_token_mask *mask = NULL;

    CHECK_EQ(mp_tokenizer_load("models/tiny-moe", &tok), MP_OK);
    CHECK_EQ(mp_token_mask_create(tok, &(struct mp_token_words){ .count = 0 }, &mask), MP_OK);
    check_tokens(mask, tok, PERSON, "{\"name\":\"h \xc3\xa9\\n\",\"age\":12,\"tags\":[\"ab\",3]}");
    /* Token 0 is "!": here it leads on, as it does in no string of any text. */
    check_tokens(mask, tok, "{\"const\":\"!~\"}", "\"!~\"");
    mp_token_mask_destroy(mask);
    mp_tokenizer_destroy(tok);
}

/* 0, 1, 2 as judge(), of the calls of two functions in some form. */
static int judge_calls(const char *next, const char *text)
{
    static const struct mp_grammar_part a[] = { { .text = "a(" },
                                                { .schema = NULL },
                                                { .text = ")" } };
    json_t *one = json_loads("{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"const\":1}}}", 0, NULL);
    json_t *two = json_loads("{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"const\":2}}}", 0, NULL);
    const struct mp_grammar_part b[] = {
        { .text = "b" }, { .text = "<k>", .optional = 2 }, { .schema = one }, { .schema = two }
    };
    const struct mp_grammar_choice choices[] = { { a, 3 }, { b, 4 } };
    const struct mp_grammar_frame frame = { "tools", { NULL, "[" }, next, "]" };
    struct mp_grammar *g = NULL;
    int result;

    CHECK_EQ(mp_grammar_create_choices(&frame, choices, 2, &g), MP_OK);
    result = judge(g, text);
    mp_grammar_destroy(g);
    json_decref(one);
    json_decref(two);
    return result;
}

static void calls_are_one_of_their_choices(void)
{
    CHECK_EQ(judge_calls(NULL, "[a()]"), 2);
    CHECK_EQ(judge_calls(NULL, "[a(any text\n, \xc3\xa9)"), 1);
    CHECK_EQ(judge_calls(NULL, "[a(<"), 0);
    CHECK_EQ(judge_calls(NULL, "[a(\xff"), 0);
    CHECK_EQ(judge_calls(NULL, "[b<k>12]"), 2);
    CHECK_EQ(judge_calls(NULL, "[b2]"), 2);
    CHECK_EQ(judge_calls(NULL, "[b1"), 0); /* each schema's $ref leads into itself */
    CHECK_EQ(judge_calls(NULL, "[b2,b2]"), 0);
    CHECK_EQ(judge_calls(",", "[b2,a(),b<k>12]"), 2);
    CHECK_EQ(judge_calls(",", "[]"), 0);
}

/* <|im_start|> may stand for its bytes where the form has them, but in no string. */
static void words_may_come_outside_of_strings(void)
{
    const struct mp_grammar_part parts[] = { { .text = "<|im_start|>x" } };
    const struct mp_grammar_choice choice = { parts, 1 };
    const struct mp_grammar_frame frame = { .of = "tools" };
    const struct mp_token_words words = { { 2046 }, 1 };
    struct mp_grammar_state state, next;
    struct mp_tokenizer *tok = NULL;
    struct mp_token_mask *mask = NULL;
    struct mp_grammar *g = NULL, *json = make("{\"type\":\"string\"}");
    float logits[2048] = { 0 };

    CHECK_EQ(mp_grammar_create_choices(&frame, &choice, 1, &g), MP_OK);
    CHECK_EQ(mp_tokenizer_load("models/tiny-moe", &tok), MP_OK);
    CHECK_EQ(mp_token_mask_create(tok, &words, &mask), MP_OK);
    mp_grammar_begin(g, &state);
    CHECK_EQ(mp_token_mask_apply(mask, g, &state, NULL, 0, logits, 2048), MP_OK);
    CHECK(logits[2046] == 0 && isinf(logits[2047]) && isinf(logits[270]));
    mp_token_mask_follow(mask, g, 2046, &state);
    CHECK(mp_grammar_step(g, &state, 'x', &next) && mp_grammar_must_end(g, &next));
    mp_grammar_begin(json, &state);
    CHECK(mp_grammar_step(json, &state, '"', &next));
    memset(logits, 0, sizeof(logits));
    CHECK_EQ(mp_token_mask_apply(mask, json, &next, NULL, 0, logits, 2048), MP_OK);
    CHECK(isinf(logits[2046]) && logits[270] == 0);
    mp_token_mask_destroy(mask);
    mp_tokenizer_destroy(tok);
    mp_grammar_destroy(json);
    mp_grammar_destroy(g);
}

static void every_allocation_fails_once(void)
{
    json_t *root = json_loads(PERSON, 0, NULL);
    struct mp_tokenizer *tok = NULL;
    uint64_t n;

    CHECK_EQ(mp_tokenizer_load("models/tiny-moe", &tok), MP_OK);
    for (n = 0;; n++) {
        struct mp_grammar *g = NULL;
        struct mp_token_mask *mask = NULL;
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_grammar_create(root, &g);
        if (status == MP_OK)
            status = mp_token_mask_create(tok, &(struct mp_token_words){ .count = 0 }, &mask);
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            mp_token_mask_destroy(mask);
            mp_grammar_destroy(g);
            break;
        }
        CHECK(status == MP_OK || status == MP_ERR_NO_MEMORY);
        mp_token_mask_destroy(mask);
        mp_grammar_destroy(g);
    }
    CHECK(n >= 6);
    mp_tokenizer_destroy(tok);
    json_decref(root);
}

int main(void)
{
    RUN(texts_that_a_schema_accepts);
    RUN(schemas_that_are_refused_by_name);
    RUN(whatever_may_come_is_json);
    RUN(the_deepest_text_has_an_end);
    RUN(a_schema_deeper_than_the_stack_is_refused);
    RUN(tokens_may_come_if_their_bytes_may);
    RUN(calls_are_one_of_their_choices);
    RUN(words_may_come_outside_of_strings);
    RUN(every_allocation_fails_once);
    return 0;
}
