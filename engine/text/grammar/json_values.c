/*
 * Values that a schema says in full (enum, const), and the types that they may have. The other
 * values of a schema are json_schema.c's.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/grammar_int.h"
#include "vmm/base/compiler.h"

#define VALUES_MAX 1024u
#define VALUE_BYTES_MAX 256u

/* ---- types */

const struct mp_grammar_type *mp_grammar_type(const json_t *name)
{
    static const struct mp_grammar_type types[] = {
        { "string", JSON_STRING, MP_FN_STRING },    { "number", JSON_REAL, MP_FN_NUMBER },
        { "integer", JSON_INTEGER, MP_FN_INTEGER }, { "boolean", JSON_TRUE, MP_FN_FIXED },
        { "null", JSON_NULL, MP_FN_FIXED },         { "object", JSON_OBJECT, MP_FN_FIXED },
        { "array", JSON_ARRAY, MP_FN_FIXED },
    };

    for (size_t i = 0; json_is_string(name) && i < MP_ARRAY_LEN(types); i++) {
        if (strcmp(types[i].name, json_string_value(name)) == 0)
            return &types[i];
    }
    return NULL;
}

static bool fits_name(const json_t *name, const json_t *literal)
{
    const struct mp_grammar_type *wanted = mp_grammar_type(name);
    const json_type type = json_is_false(literal) ? JSON_TRUE : json_typeof(literal);

    return wanted != NULL &&
           (wanted->type == type || (wanted->type == JSON_REAL && type == JSON_INTEGER));
}

bool mp_grammar_fits_type(const json_t *type, const json_t *literal)
{
    const json_t *item;
    size_t i;

    if (!json_is_array(type))
        return type == NULL || fits_name(type, literal);
    json_array_foreach(type, i, item)
    {
        if (fits_name(item, literal))
            return true;
    }
    return false;
}

/* ---- values */

void mp_grammar_literal(struct mp_grammar *g, const json_t *literal)
{
    char *text = json_dumps(literal, JSON_ENCODE_ANY | JSON_COMPACT);

    if (text == NULL) {
        if (g->status == MP_OK)
            g->status = mp_fail_no_memory("a schema", 0);
        return;
    }
    mp_grammar_bytes(g, text, strlen(text));
    free(text);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* texts[0..count) from byte `at` on, sorted, different, the same up to there: a tree, so that few
 * ways are open at once. */
static void tree(struct mp_grammar *g, char *const *texts, size_t count, size_t at)
{
    uint16_t ends[257];
    unsigned end_count = 0;

    while (count == 1 && texts[0][at] != '\0')
        (void)mp_grammar_emit(g, MP_OP_SET, (uint8_t)texts[0][at++], 0);
    for (size_t i = 0; i < count && count > 1 && g->status == MP_OK;) {
        const char byte = texts[i][at];
        const uint16_t split = mp_grammar_at(g);
        size_t same = 1;

        while (i + same < count && texts[i + same][at] == byte)
            same++;
        if (i + same < count)
            (void)mp_grammar_emit(g, MP_OP_SPLIT, split + 1u, 0);
        if (byte != '\0') {
            (void)mp_grammar_emit(g, MP_OP_SET, (uint8_t)byte, 0);
            tree(g, texts + i, same, at + 1);
        }
        i += same;
        if (i < count) {
            ends[end_count++] = mp_grammar_emit(g, MP_OP_JUMP, 0, 0);
            mp_grammar_set_b(g, split, mp_grammar_at(g));
        }
    }
    while (end_count > 0)
        mp_grammar_set_a(g, ends[--end_count], mp_grammar_at(g));
}

/* The values as texts, sorted, each once. */
static size_t literal_texts(struct mp_grammar *g, const json_t *values, const json_t *type,
                            char **texts)
{
    const json_t *item;
    size_t count = 0, kept = 0, i;

    json_array_foreach(values, i, item)
    {
        if (!mp_grammar_fits_type(type, item))
            continue;
        texts[count] = json_dumps(item, JSON_ENCODE_ANY | JSON_COMPACT);
        if (texts[count] == NULL) {
            if (g->status == MP_OK)
                g->status = mp_fail_no_memory("a schema", 0);
            break;
        }
        if (strlen(texts[count++]) > VALUE_BYTES_MAX)
            mp_grammar_refuse(g, "a value of more than 256 bytes in", "enum");
    }
    qsort(texts, count, sizeof(*texts), by_text);
    for (i = 0; i < count; i++) {
        if (kept > 0 && strcmp(texts[kept - 1], texts[i]) == 0)
            free(texts[i]);
        else
            texts[kept++] = texts[i];
    }
    return kept;
}

void mp_grammar_enum(struct mp_grammar *g, const json_t *values, const json_t *type)
{
    char **texts;
    size_t count;

    if (json_array_size(values) == 0 || json_array_size(values) > VALUES_MAX) {
        mp_grammar_refuse(g, "need 1 to 1024 values in", "enum");
        return;
    }
    texts = calloc(json_array_size(values), sizeof(*texts));
    if (texts == NULL) {
        if (g->status == MP_OK)
            g->status = mp_fail_no_memory("a schema", VALUES_MAX * sizeof(*texts));
        return;
    }
    count = literal_texts(g, values, type, texts);
    if (count == 0)
        mp_grammar_refuse(g, "no value of the type in", "enum");
    tree(g, texts, count, 0);
    while (count > 0)
        free(texts[--count]);
    free(texts);
}
