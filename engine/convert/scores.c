/*
 * Scores of pieces, from the merges that were made of them.
 *
 * SentencePiece joins the two neighbours whose piece has the highest score; a tokenizer.json lists
 * every way to cut a piece into two, those of the highest score first. So pieces in the order of
 * their merges have the scores 0, -1, -2, ..., as files of that library number them, if each piece
 * has all of its cuts and they stand together. Merges that were learned by themselves have one cut
 * of each piece, and no scores say the same.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/convert/convert_int.h"
#include "engine/text/tokenizer.h"

struct scoring {
    const json_t *vocab, *merges;
    const struct mp_convert_pieces *pieces;
    uint32_t *cuts; /* [count]: merges that make this piece */
    char *joined;   /* two tokens */
};

static uint32_t find(const struct scoring *s, const char *text, size_t bytes)
{
    const json_t *id = json_object_getn(s->vocab, text, bytes);

    return id != NULL ? (uint32_t)json_integer_value(id) : MP_TOKEN_NONE;
}

/* The piece that a merge, "a b" or ["a", "b"], makes; s->joined has its text. */
static uint32_t made_by(const struct scoring *s, const json_t *merge, size_t *bytes_p)
{
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
    const char *text = json_string_value(json_is_string(merge) ? merge : left);
    const char *space = json_is_string(merge) ? strchr(text, ' ') : NULL;
    const size_t first = space != NULL ? (size_t)(space - text) : json_string_length(left);
    const char *second = space != NULL ? space + 1 : json_string_value(right);
    const size_t rest =
        space != NULL ? json_string_length(merge) - first - 1 : json_string_length(right);

    memcpy(s->joined, text, first);
    memcpy(s->joined + first, second, rest);
    *bytes_p = first + rest;
    return find(s, s->joined, *bytes_p);
}

/* Ways to cut a piece in two pieces. */
static uint32_t count_cuts(const struct scoring *s, const char *text, size_t bytes)
{
    uint32_t cuts = 0;

    for (size_t at = 1; at < bytes; at++) {
        if (((unsigned char)text[at] & 0xc0) != 0x80)
            cuts += find(s, text, at) != MP_TOKEN_NONE &&
                    find(s, text + at, bytes - at) != MP_TOKEN_NONE;
    }
    return cuts;
}

static enum mp_status fail_scores(const char *piece, size_t bytes, const char *why)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_TOK_PATTERN",
                   "'tokenizer.json' merges '%s' %s, which GGUF files cannot say of a tokenizer "
                   "that marks spaces; move it away to write a model without tokenizer",
                   mp_quote(quoted, piece, bytes), why);
}

static enum mp_status score_in_order(const struct scoring *s, float *scores)
{
    uint32_t last = MP_TOKEN_NONE;
    float score = 1;

    for (size_t i = 0; i < json_array_size(s->merges); i++) {
        size_t bytes;
        const uint32_t id = made_by(s, json_array_get(s->merges, i), &bytes);

        if (id >= s->pieces->count)
            continue;
        if (id != last && s->cuts[id] > 0)
            return fail_scores(s->joined, bytes, "at two places of its list");
        score -= id != last;
        s->cuts[id]++;
        scores[id] = score;
        last = id;
    }
    return MP_OK;
}

/* Those of no merge come last; nothing makes them. */
static enum mp_status check_cuts(const struct scoring *s, float *scores)
{
    const char *text;
    json_t *value;
    size_t bytes;

    json_object_keylen_foreach((json_t *)s->vocab, text, bytes, value)
    {
        const uint32_t id = (uint32_t)json_integer_value(value);

        if (id >= s->pieces->count || s->pieces->added[id])
            continue;
        if (s->cuts[id] != count_cuts(s, text, bytes))
            return fail_scores(text, bytes, "in fewer ways than it can be cut");
        if (s->cuts[id] == 0)
            scores[id] = -(float)s->pieces->count;
    }
    return MP_OK;
}

enum mp_status mp_convert_scores(const json_t *root, const struct mp_convert_pieces *pieces,
                                 float *scores)
{
    const json_t *model = json_object_get(root, "model");
    struct scoring s = {
        .vocab = json_object_get(model, "vocab"),
        .merges = json_object_get(model, "merges"),
        .pieces = pieces,
        .cuts = calloc(pieces->count, sizeof(*s.cuts)),
        .joined = calloc(2, MP_TOK_TOKEN_BYTES_MAX),
    };
    enum mp_status status = MP_OK;

    if (s.cuts == NULL || s.joined == NULL)
        status = mp_fail_no_memory("the scores of tokens", pieces->count);
    if (status == MP_OK)
        status = score_in_order(&s, scores);
    if (status == MP_OK)
        status = check_cuts(&s, scores);
    free(s.cuts);
    free(s.joined);
    return status;
}
