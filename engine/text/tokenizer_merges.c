/*
 * Reads the merges of tokenizer.json into their table. Applies none of them.
 */
#include "engine/text/tokenizer_impl.h"

#include <string.h>

struct merge_text {
    const char *left, *right;
    size_t left_bytes, right_bytes;
};

/* A merge is "left right" or ["left", "right"]; only the second form can hold spaces. */
static bool split_merge(const json_t *entry, struct merge_text *merge)
{
    if (json_is_array(entry)) {
        const json_t *left = json_array_get(entry, 0), *right = json_array_get(entry, 1);

        if (json_array_size(entry) != 2 || !json_is_string(left) || !json_is_string(right))
            return false;
        *merge = (struct merge_text){ json_string_value(left), json_string_value(right),
                                      json_string_length(left), json_string_length(right) };
        return true;
    }
    if (!json_is_string(entry))
        return false;
    const char *text = json_string_value(entry);
    const size_t bytes = json_string_length(entry);
    const char *space = memchr(text, ' ', bytes);
    if (space == NULL || memchr(space + 1, ' ', bytes - (size_t)(space + 1 - text)) != NULL)
        return false;
    *merge = (struct merge_text){ text, space + 1, (size_t)(space - text),
                                  bytes - (size_t)(space + 1 - text) };
    return true;
}

static enum mp_status merge_token_missing(const struct mp_tok_source *source, size_t index,
                                          const struct merge_text *merge, const char *what,
                                          const char *content, size_t bytes)
{
    char left[MP_QUOTE_BYTES], right[MP_QUOTE_BYTES], quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_TOK_MERGE",
                   "merge %zu ('%.60s', '%.60s') in '%s': %s '%.80s' is not in the vocabulary",
                   index, mp_quote(left, merge->left, merge->left_bytes),
                   mp_quote(right, merge->right, merge->right_bytes), source->shown, what,
                   mp_quote(quoted, content, bytes));
}

static enum mp_status load_merge(const struct mp_tok_source *source, struct mp_tokenizer *tok,
                                 size_t index, uint32_t rank, const struct merge_text *merge,
                                 struct mp_tok_buf *joined)
{
    const uint32_t left = mp_tok_vocab_find_model(&tok->vocab, merge->left, merge->left_bytes);
    const uint32_t right = mp_tok_vocab_find_model(&tok->vocab, merge->right, merge->right_bytes);
    enum mp_status status;
    uint32_t result;

    if (left == MP_TOKEN_NONE)
        return merge_token_missing(source, index, merge, "its left side", merge->left,
                                   merge->left_bytes);
    if (right == MP_TOKEN_NONE)
        return merge_token_missing(source, index, merge, "its right side", merge->right,
                                   merge->right_bytes);
    joined->bytes = 0;
    status = mp_tok_buf_append(joined, merge->left, merge->left_bytes);
    if (status == MP_OK)
        status = mp_tok_buf_append(joined, merge->right, merge->right_bytes);
    if (status != MP_OK)
        return status;
    result = mp_tok_vocab_find_model(&tok->vocab, joined->data, joined->bytes);
    if (result == MP_TOKEN_NONE)
        return merge_token_missing(source, index, merge, "its result", joined->data, joined->bytes);
    return mp_tok_merges_add(&tok->merges, source->shown, rank, left, right, result);
}

enum mp_status mp_tok_load_merges(const struct mp_tok_source *source, const json_t *array,
                                  struct mp_tokenizer *tok)
{
    struct mp_tok_buf joined = { 0 };
    enum mp_status status;
    char got[MP_QUOTE_BYTES];
    uint32_t rank = 0;
    json_t *entry;
    size_t i;

    if (json_array_size(array) > MP_TOK_MERGES_MAX)
        return mp_fail(MP_ERR_MODEL, "E_TOK_MERGES", "'%s' has %zu merges, need at most %u",
                       source->shown, json_array_size(array), MP_TOK_MERGES_MAX);
    status = mp_tok_merges_init(&tok->merges, (uint32_t)json_array_size(array));
    json_array_foreach(array, i, entry)
    {
        struct merge_text merge;

        if (status != MP_OK)
            break;
        if (json_is_string(entry) && strncmp(json_string_value(entry), "#version", 8) == 0)
            continue;
        if (!split_merge(entry, &merge)) {
            status =
                mp_fail(MP_ERR_MODEL, "E_TOK_MERGE", "merge %zu in '%s': got %s, need two tokens",
                        i, source->shown, mp_json_describe(got, entry));
            break;
        }
        status = load_merge(source, tok, i, rank++, &merge, &joined);
    }
    mp_tok_buf_free(&joined);
    return status;
}
