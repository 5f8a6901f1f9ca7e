/* The pre-tokenizers that GGUF files know by name, and the name of one that a tokenizer.json spells
 * out. */
#include <string.h>

#include "engine/text/tokenizer_export.h"
#include "engine/text/tokenizer_impl.h"

static const struct mp_tok_gguf_pre pres[] = {
    { "gpt-2", NULL, { NULL }, false, false },
    { "qwen2", "NFC", { mp_tok_pattern_qwen2 }, false, false },
    { "llama-bpe", NULL, { mp_tok_pattern_llama3 }, true, true },
    { "glm4", NULL, { mp_tok_pattern_llama3 }, false, false },
    { "chatglm-bpe", NULL, { mp_tok_pattern_llama3 }, false, false },
    { "olmo", "NFC", { NULL }, false, false },
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

static bool has_stages(const json_t *root, const struct mp_tok_gguf_pre *pre)
{
    const json_t *first = json_object_get(root, "pre_tokenizer");
    const json_t *stages = json_object_get(first, "pretokenizers");
    size_t i = 0;

    if (pre->patterns[0] == NULL)
        return is_byte_level(first, true);
    for (; i < MP_TOK_GGUF_PATTERNS_MAX && pre->patterns[i] != NULL; i++) {
        const json_t *stage = json_array_get(stages, i);
        const char *regex = text_of(json_object_get(stage, "pattern"), "Regex");
        const char *behaviour = text_of(stage, "behavior");

        if (!is_type(stage, "Split") || regex == NULL || strcmp(regex, pre->patterns[i]) != 0 ||
            behaviour == NULL || strcmp(behaviour, "Isolated") != 0 ||
            json_is_true(json_object_get(stage, "invert")))
            return false;
    }
    return json_array_size(stages) == i + 1 && is_byte_level(json_array_get(stages, i), false);
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
