/* The pre-tokenizers that GGUF files know by name, and the name of one that a tokenizer.json spells
 * out. */
#include <string.h>

#include "engine/text/tokenizer_export.h"
#include "engine/text/tokenizer_impl.h"

#define DEEPSEEK_LLM                                                                        \
    mp_tok_pattern_newline, mp_tok_pattern_deepseek_letters, mp_tok_pattern_deepseek_marks, \
        mp_tok_pattern_end_blanks, mp_tok_pattern_asian, mp_tok_pattern_digit
#define DEEPSEEK_CODER                                                                \
    mp_tok_pattern_newline, mp_tok_pattern_coder_letters, mp_tok_pattern_coder_marks, \
        mp_tok_pattern_asian, mp_tok_pattern_digit
#define DEEPSEEK_V3 mp_tok_pattern_digits3, mp_tok_pattern_kana, mp_tok_pattern_deepseek3

static const struct mp_tok_gguf_pre pres[] = {
    { "gpt-2", NULL, { NULL }, true, false, false },
    { "qwen2", "NFC", { mp_tok_pattern_qwen2 }, false, false, false },
    { "qwen35", "NFC", { mp_tok_pattern_qwen35 }, false, false, false },
    { "deepseek-r1-qwen", "NFC", { mp_tok_pattern_qwen2 }, false, false, false },
    { "llama-bpe", NULL, { mp_tok_pattern_llama3 }, false, true, true },
    { "lfm2", NULL, { mp_tok_pattern_llama3 }, false, true, true },
    { "glm4", NULL, { mp_tok_pattern_llama3 }, false, false, false },
    { "chatglm-bpe", NULL, { mp_tok_pattern_llama3 }, false, false, false },
    { "dbrx", NULL, { mp_tok_pattern_llama3 }, false, false, false },
    { "gpt-4o", NULL, { mp_tok_pattern_gpt4o }, false, false, false },
    { "llama4", NULL, { mp_tok_pattern_gpt4o }, false, false, false },
    { "minimax-m2", NULL, { mp_tok_pattern_gpt4o }, false, false, false },
    { "tekken", NULL, { mp_tok_pattern_tekken }, false, true, true },
    { "kimi-k2", NULL, { mp_tok_pattern_kimi }, false, false, false },
    { "deepseek-llm", NULL, { DEEPSEEK_LLM }, false, false, false },
    { "deepseek-coder", NULL, { DEEPSEEK_CODER }, false, false, false },
    { "deepseek-v3", NULL, { DEEPSEEK_V3 }, false, false, false },
    { "olmo", "NFC", { NULL }, true, false, false },
    { "refact", NULL, { mp_tok_pattern_digit }, true, false, false },
    { "starcoder", NULL, { mp_tok_pattern_digit }, true, false, false },
};

const struct mp_tok_gguf_pre *mp_tok_gguf_pre_at(size_t index)
{
    return index < MP_ARRAY_LEN(pres) ? &pres[index] : NULL;
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static bool is_type(const json_t *object, const char *type)
{
    const char *got = text_of(object, "type");

    return got != NULL && strcmp(got, type) == 0;
}

/* Bytes as they are: no space before the text, and a pattern of its own or not. */
static bool is_byte_level(const json_t *stage, bool pattern)
{
    const json_t *use = json_object_get(stage, "use_regex");

    return is_type(stage, "ByteLevel") &&
           !json_is_true(json_object_get(stage, "add_prefix_space")) &&
           (use == NULL || json_is_true(use)) == pattern;
}

/* A stage that cuts by this pattern and keeps all. */
static bool is_stage(const json_t *stage, const char *pattern)
{
    const char *regex = text_of(json_object_get(stage, "pattern"), "Regex");
    const char *behaviour = text_of(stage, "behavior");

    if (pattern == mp_tok_pattern_digit && is_type(stage, "Digits"))
        return json_is_true(json_object_get(stage, "individual_digits"));
    return is_type(stage, "Split") && regex != NULL && mp_tok_pattern_is(regex, pattern) &&
           behaviour != NULL && strcmp(behaviour, "Isolated") == 0 &&
           !json_is_true(json_object_get(stage, "invert"));
}

static bool has_stages(const json_t *root, const struct mp_tok_gguf_pre *pre)
{
    const json_t *first = json_object_get(root, "pre_tokenizer");
    const json_t *stages = json_object_get(first, "pretokenizers");
    size_t i = 0;

    if (pre->patterns[0] == NULL)
        return is_byte_level(first, true);
    for (; i < MP_TOK_GGUF_PATTERNS_MAX && pre->patterns[i] != NULL; i++) {
        if (!is_stage(json_array_get(stages, i), pre->patterns[i]))
            return false;
    }
    return json_array_size(stages) == i + 1 && is_byte_level(json_array_get(stages, i), pre->own);
}

const char *mp_tokenizer_gguf_pre(const json_t *root)
{
    const char *normalizer = text_of(json_object_get(root, "normalizer"), "type");
    const bool ignore =
        json_is_true(json_object_get(json_object_get(root, "model"), "ignore_merges"));

    for (size_t i = 0; i < MP_ARRAY_LEN(pres); i++) {
        const char *wanted = pres[i].normalizer;

        if ((normalizer == NULL) == (wanted == NULL) &&
            (wanted == NULL || strcmp(normalizer, wanted) == 0) &&
            ignore == pres[i].ignore_merges && has_stages(root, &pres[i]))
            return pres[i].name;
    }
    return NULL;
}

/* A stage that makes marks of spaces. */
static bool is_marking(const json_t *stage)
{
    const char *from = text_of(json_object_get(stage, "pattern"), "String");
    const char *to = text_of(stage, "content");

    return is_type(stage, "Replace") && from != NULL && strcmp(from, " ") == 0 && to != NULL &&
           strcmp(to, MP_TOK_MARK) == 0;
}

/* Merges, and bytes of what no piece has. */
static bool has_bytes(const json_t *root)
{
    const json_t *model = json_object_get(root, "model");

    return json_is_true(json_object_get(model, "byte_fallback")) &&
           json_is_object(json_object_get(model, "vocab")) &&
           !json_is_true(json_object_get(model, "ignore_merges"));
}

/* Cutting at spaces, of which there are none by then, is no cut. */
bool mp_tokenizer_gguf_marked(const json_t *root)
{
    const json_t *stage = json_object_get(root, "pre_tokenizer");
    const char *cut = text_of(json_object_get(stage, "pattern"), "String");

    return is_marking(json_object_get(root, "normalizer")) && has_bytes(root) &&
           (json_is_null(stage) || stage == NULL ||
            (is_type(stage, "Split") && cut != NULL && strcmp(cut, " ") == 0));
}

/* Two stages, the second of which marks spaces, also the one that the first has put in front. */
static bool is_prefixing(const json_t *normalizer)
{
    const json_t *stages = json_object_get(normalizer, "normalizers");
    const json_t *first = json_array_get(stages, 0);
    const char *text = text_of(first, "prepend");

    return is_type(normalizer, "Sequence") && json_array_size(stages) == 2 &&
           is_type(first, "Prepend") && text != NULL && strcmp(text, MP_TOK_MARK) == 0 &&
           is_marking(json_array_get(stages, 1));
}

/* What begins only the first piece of a text between special tokens has no name there. */
bool mp_tokenizer_gguf_scored(const json_t *root, bool *prefix_p)
{
    const json_t *normalizer = json_object_get(root, "normalizer");
    const json_t *stage = json_object_get(root, "pre_tokenizer");
    const char *mark = text_of(stage, "replacement"), *scheme = text_of(stage, "prepend_scheme");

    *prefix_p = true;
    if (!has_bytes(root))
        return false;
    if (stage == NULL || json_is_null(stage))
        return is_prefixing(normalizer);
    *prefix_p = scheme != NULL && strcmp(scheme, "always") == 0;
    return (normalizer == NULL || json_is_null(normalizer)) && is_type(stage, "Metaspace") &&
           json_is_false(json_object_get(stage, "split")) && mark != NULL &&
           strcmp(mark, MP_TOK_MARK) == 0 && scheme != NULL &&
           (*prefix_p || strcmp(scheme, "never") == 0);
}
