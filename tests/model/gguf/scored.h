#ifndef MP_TESTS_SCORED_H
#define MP_TESTS_SCORED_H

/* Models with tokenizers of tests/data/tokenizers that mark spaces. */
#include <string.h>

#include "tests/model/gguf/convert.h"
#include "vmm/format/json.h"

/* As many rows as that tokenizer has tokens. */
static uint64_t token_rows;

static inline void make_rows(struct rewritten *tensor)
{
    if (strstr(tensor->name, "embed_tokens") == NULL && strstr(tensor->name, "lm_head") == NULL)
        return;
    tensor->bytes = tensor->bytes / tensor->shape[0] * token_rows;
    tensor->shape[0] = token_rows;
    free(tensor->data);
    tensor->data = calloc(1, tensor->bytes);
    CHECK(tensor->data != NULL);
}

/* All cuts of every piece, in the order of ids, as a SentencePiece model's tokenizer.json has them.
 */
static inline json_t *all_merges(json_t *vocab)
{
    const size_t count = json_object_size(vocab);
    const char **texts = calloc(count, sizeof(*texts)), *key;
    json_t *merges = json_array(), *id;

    CHECK(texts != NULL);
    json_object_foreach(vocab, key, id) texts[json_integer_value(id)] = key;
    for (size_t i = 3; i < count; i++) {
        for (size_t at = 1; at < strlen(texts[i]); at++) {
            json_t *left = json_stringn_nocheck(texts[i], at);

            if (json_object_get(vocab, texts[i] + at) != NULL &&
                json_object_get(vocab, json_string_value(left)) != NULL)
                json_array_append_new(merges, json_pack("[O, s]", left, texts[i] + at));
            json_decref(left);
        }
    }
    free(texts);
    return merges;
}

/* The tokenizer of that name, with all merges if it is to be whole. */
static inline json_t *load_tokenizer(const char *name, bool all)
{
    char path[PATH_BYTES];
    json_t *root, *model;

    snprintf(path, sizeof(path), "tests/data/tokenizers/%s/tokenizer.json", name);
    root = json_load_file(path, 0, NULL);
    CHECK(root != NULL);
    model = json_object_get(root, "model");
    token_rows = json_object_size(json_object_get(model, "vocab"));
    if (all)
        json_object_set_new(model, "merges", all_merges(json_object_get(model, "vocab")));
    return root;
}

/* A model of `source` with this tokenizer (stolen), in a folder of that name. */
static inline const char *model_with(const char *source, const char *name, json_t *tokenizer)
{
    char path[PATH_BYTES], *text;
    const char *model = in_tmpdir(name);
    json_t *config;

    snprintf(path, sizeof(path), "%s/config.json", source);
    config = json_load_file(path, 0, NULL);
    CHECK_EQ(json_object_set_new(config, "vocab_size", json_integer((json_int_t)token_rows)), 0);
    text = json_dumps(config, JSON_COMPACT);
    rewrite_model(source, model, text, make_rows);
    free(text);
    json_decref(config);
    snprintf(path, sizeof(path), "%s/tokenizer.json", model);
    CHECK_EQ(json_dump_file(tokenizer, path, JSON_COMPACT), 0);
    json_decref(tokenizer);
    return model;
}

#endif
