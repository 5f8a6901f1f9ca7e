/*
 * Vocabularies whose pieces have scores, as SentencePiece makes them: reads them, and finds the
 * pieces of a word, by merging (its BPE) or as the best path through all pieces (Unigram).
 */
#include "engine/text/tokenizer_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/checked.h"

/* How much worse than the worst piece a character is that no piece has. */
#define UNKNOWN_PENALTY 10.0

/* ---- from JSON */

/* A hole, which only the loader of GGUF files makes, is null; a piece that no text becomes has the
 * score null. */
static bool is_piece(const json_t *entry, bool holes)
{
    const json_t *score = json_array_get(entry, 1);

    if (json_is_null(entry))
        return holes;
    return json_array_size(entry) == 2 && json_is_string(json_array_get(entry, 0)) &&
           (json_is_number(score) || (holes && json_is_null(score)));
}

enum mp_status mp_tok_check_pieces(const struct mp_tok_source *source, const json_t *vocab,
                                   bool holes)
{
    char got[MP_QUOTE_BYTES];
    const json_t *entry;
    size_t i;

    if (json_array_size(vocab) > MP_TOK_VOCAB_MAX)
        return mp_fail(MP_ERR_MODEL, "E_TOK_LONG",
                       "the vocabulary in '%s' has %zu pieces, need at most %u", source->shown,
                       json_array_size(vocab), MP_TOK_VOCAB_MAX);
    json_array_foreach(vocab, i, entry)
    {
        if (!is_piece(entry, holes))
            return mp_fail(MP_ERR_MODEL, "E_TOK_PIECE",
                           "piece %zu of the vocabulary in '%s' is %s, need a text and its score",
                           i, source->shown, mp_json_describe(got, entry));
        if (json_string_length(json_array_get(entry, 0)) > MP_TOK_TOKEN_BYTES_MAX)
            return mp_fail(MP_ERR_MODEL, "E_TOK_LONG",
                           "piece %zu of the vocabulary in '%s' has %zu bytes, need at most %u", i,
                           source->shown, json_string_length(json_array_get(entry, 0)),
                           MP_TOK_TOKEN_BYTES_MAX);
    }
    return MP_OK;
}

static enum mp_status add_pieces(const struct mp_tok_source *source, const json_t *vocab,
                                 struct mp_tokenizer *tok)
{
    char quoted[MP_QUOTE_BYTES];
    const json_t *entry;
    size_t i;

    json_array_foreach(vocab, i, entry)
    {
        const char *text = json_string_value(json_array_get(entry, 0));
        const size_t bytes = json_string_length(json_array_get(entry, 0));
        const json_t *score = json_array_get(entry, 1);
        enum mp_status status;

        if (text == NULL)
            continue;
        if (mp_tok_vocab_find(&tok->vocab, text, bytes) != MP_TOKEN_NONE)
            return mp_fail(MP_ERR_MODEL, "E_TOK_TWICE",
                           "token '%s' is in '%s' twice, the second time with id %zu",
                           mp_quote(quoted, text, bytes), source->shown, i);
        status = mp_tok_vocab_add(&tok->vocab, source->shown, text, bytes, (uint32_t)i,
                                  json_is_number(score) ? MP_TOK_MODEL : 0);
        if (status != MP_OK)
            return status;
        tok->scores[i] = json_number_value(score);
    }
    return MP_OK;
}

static enum mp_status load_unk_id(const struct mp_tok_source *source, const json_t *model,
                                  struct mp_tokenizer *tok)
{
    const json_t *unk = json_object_get(model, "unk_id");
    char got[MP_QUOTE_BYTES];

    if (unk == NULL || json_is_null(unk))
        return MP_OK;
    if (!json_is_integer(unk) || json_integer_value(unk) < 0 ||
        json_integer_value(unk) >= tok->vocab.count ||
        (tok->vocab.flags[json_integer_value(unk)] & MP_TOK_USED) == 0)
        return mp_fail(MP_ERR_MODEL, "E_TOK_ID_RANGE",
                       "unk_id in '%s' is %s, need the number of a piece", source->shown,
                       mp_json_describe(got, unk));
    tok->unk = (uint32_t)json_integer_value(unk);
    return MP_OK;
}

struct piece {
    const char *text;
    double score;
    uint32_t bytes, id;
};

static int by_text(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    const uint32_t least = x->bytes < y->bytes ? x->bytes : y->bytes;
    const int order = memcmp(x->text, y->text, least);

    return order != 0 ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_score(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;

    return (x->score < y->score) - (x->score > y->score);
}

/* The tables that words are looked up with. */
static void fill_tables(struct mp_tokenizer *tok, struct piece *pieces, uint32_t count)
{
    double least = 0;
    uint32_t rank = 0;

    if (tok->model == MP_TOK_UNIGRAM) {
        qsort(pieces, count, sizeof(*pieces), by_text);
        for (uint32_t i = 0; i < count; i++) {
            tok->sorted[i] = pieces[i].id;
            least = pieces[i].score < least || i == 0 ? pieces[i].score : least;
        }
        tok->sorted_count = count;
        tok->unk_score = least - UNKNOWN_PENALTY;
        return;
    }
    qsort(pieces, count, sizeof(*pieces), by_score);
    for (uint32_t i = 0; i < count; i++) {
        rank += i > 0 && pieces[i].score < pieces[i - 1].score;
        tok->score_ranks[pieces[i].id] = rank;
    }
}

static enum mp_status make_tables(struct mp_tokenizer *tok)
{
    struct piece *pieces = calloc(tok->vocab.count, sizeof(*pieces));
    uint32_t **table = tok->model == MP_TOK_UNIGRAM ? &tok->sorted : &tok->score_ranks;
    uint32_t count = 0;

    *table = calloc(tok->vocab.count, sizeof(**table));
    if (pieces == NULL || *table == NULL) {
        free(pieces);
        return mp_fail_no_memory("the pieces", (uint64_t)tok->vocab.count * sizeof(*pieces));
    }
    for (uint32_t id = 0; id < tok->vocab.count; id++) {
        if ((tok->vocab.flags[id] & MP_TOK_MODEL) != 0 && tok->vocab.bytes[id] > 0)
            pieces[count++] = (struct piece){ .text = mp_tok_vocab_content(&tok->vocab, id),
                                              .bytes = tok->vocab.bytes[id],
                                              .score = tok->scores[id],
                                              .id = id };
    }
    fill_tables(tok, pieces, count);
    free(pieces);
    return MP_OK;
}

enum mp_status mp_tok_load_pieces(const struct mp_tok_source *source, const json_t *model,
                                  const json_t *vocab, struct mp_tokenizer *tok)
{
    enum mp_status status;

    tok->fuse_unk = true;
    tok->scores = calloc(tok->vocab.count, sizeof(*tok->scores));
    if (tok->scores == NULL)
        return mp_fail_no_memory("the scores", (uint64_t)tok->vocab.count * sizeof(*tok->scores));
    status = add_pieces(source, vocab, tok);
    if (status == MP_OK)
        status = load_unk_id(source, model, tok);
    return status == MP_OK ? make_tables(tok) : status;
}

/* ---- what no piece has */

/* Its bytes, or the unknown token, of which several in a row are one. */
static enum mp_status append_unknown(struct mp_tok_encoder *enc, const char *text, size_t bytes,
                                     bool *unknown)
{
    const struct mp_tokenizer *tok = enc->tok;
    enum mp_status status = MP_OK;

    if (!tok->byte_fallback || !mp_tok_has_bytes(tok, text, bytes)) {
        if (!*unknown)
            status = mp_ids_append(enc->out, tok->unk);
        *unknown = true;
        return status;
    }
    *unknown = false;
    for (size_t i = 0; i < bytes && status == MP_OK; i++)
        status = mp_ids_append(enc->out, tok->byte_ids[(unsigned char)text[i]]);
    return status;
}

/* ---- merging by scores
 *
 * While two neighbours make a piece together, those that make the piece of the highest score do, of
 * equal ones the leftmost. An entry of the heap whose neighbours have changed since counts if what
 * stands there now has the same score.
 */

static uint32_t piece_of_pair(const struct mp_tok_encoder *enc, const char *word, uint32_t left)
{
    const struct mp_tok_symbol *symbol = &enc->symbols[left];

    if (symbol->bytes == 0 || symbol->next == MP_TOKEN_NONE)
        return MP_TOKEN_NONE;
    return mp_tok_vocab_find_model(&enc->tok->vocab, word + symbol->begin,
                                   (size_t)symbol->bytes + enc->symbols[symbol->next].bytes);
}

static enum mp_status push_pair(struct mp_tok_encoder *enc, const char *word, uint32_t left)
{
    const uint32_t id = piece_of_pair(enc, word, left);

    if (id == MP_TOKEN_NONE)
        return MP_OK;
    return mp_tok_heap_push(enc, (uint64_t)enc->tok->score_ranks[id] << 32 | left);
}

static enum mp_status merge_pair(struct mp_tok_encoder *enc, const char *word, uint64_t entry)
{
    const uint32_t left = (uint32_t)entry, id = piece_of_pair(enc, word, left);
    struct mp_tok_symbol *symbol = &enc->symbols[left], *right;
    enum mp_status status = MP_OK;

    if (id == MP_TOKEN_NONE || enc->tok->score_ranks[id] != entry >> 32)
        return MP_OK;
    right = &enc->symbols[symbol->next];
    symbol->bytes += right->bytes;
    symbol->next = right->next;
    right->bytes = 0;
    if (symbol->next != MP_TOKEN_NONE)
        enc->symbols[symbol->next].prev = left;
    if (symbol->prev != MP_TOKEN_NONE)
        status = push_pair(enc, word, symbol->prev);
    return status == MP_OK ? push_pair(enc, word, left) : status;
}

static enum mp_status push_characters(struct mp_tok_encoder *enc, const char *word, size_t bytes)
{
    enum mp_status status = MP_OK;

    enc->symbol_count = enc->heap_count = 0;
    for (size_t at = 0; at < bytes && status == MP_OK;) {
        const uint32_t index = (uint32_t)enc->symbol_count;
        const struct mp_tok_symbol symbol = {
            .begin = (uint32_t)at,
            .bytes = (uint32_t)mp_tok_utf8_bytes((unsigned char)word[at]),
            .prev = index > 0 ? index - 1 : MP_TOKEN_NONE,
            .next = index + 1,
        };

        at += symbol.bytes;
        status = mp_tok_push_symbol(enc, symbol);
    }
    if (status == MP_OK)
        enc->symbols[enc->symbol_count - 1].next = MP_TOKEN_NONE;
    return status;
}

enum mp_status mp_tok_scored(struct mp_tok_encoder *enc, const char *word, size_t bytes)
{
    enum mp_status status = bytes > 0 ? push_characters(enc, word, bytes) : MP_OK;
    bool unknown = false;

    if (bytes == 0)
        return MP_OK;
    for (uint32_t i = 0; i < enc->symbol_count && status == MP_OK; i++)
        status = push_pair(enc, word, i);
    while (status == MP_OK && enc->heap_count > 0)
        status = merge_pair(enc, word, mp_tok_heap_pop(enc));
    for (uint32_t i = 0; i < enc->symbol_count && status == MP_OK; i++) {
        const struct mp_tok_symbol *symbol = &enc->symbols[i];
        const char *text = word + symbol->begin;
        const uint32_t id = mp_tok_vocab_find_model(&enc->tok->vocab, text, symbol->bytes);

        if (symbol->bytes == 0)
            continue;
        if (id == MP_TOKEN_NONE) {
            status = append_unknown(enc, text, symbol->bytes, &unknown);
            continue;
        }
        unknown = false;
        status = mp_ids_append(enc->out, id);
    }
    return status;
}

/* ---- the best path
 *
 * node[at] is the best way to `at`: the sum of scores, and the last piece. Pieces that begin at a
 * place are found in the sorted list, in a range that each further byte narrows.
 */

struct range {
    uint32_t low, high;
};

static unsigned byte_at(const struct mp_tokenizer *tok, uint32_t index, uint32_t at)
{
    return (unsigned char)mp_tok_vocab_content(&tok->vocab, tok->sorted[index])[at];
}

/* Of a range whose pieces are longer than `at`, the first whose byte there is at least `byte`. */
static uint32_t lower_bound(const struct mp_tokenizer *tok, struct range range, uint32_t at,
                            unsigned byte)
{
    while (range.low < range.high) {
        const uint32_t middle = range.low + (range.high - range.low) / 2;

        if (byte_at(tok, middle, at) < byte)
            range.low = middle + 1;
        else
            range.high = middle;
    }
    return range.low;
}

static void improve(struct mp_tok_node *node, double score, uint32_t begin, uint32_t id)
{
    if (node->begin == MP_TOKEN_NONE || score > node->score)
        *node = (struct mp_tok_node){ .score = score, .begin = begin, .id = id };
}

/* All pieces that begin at `at`. */
static void extend(struct mp_tok_encoder *enc, const char *word, size_t bytes, uint32_t at)
{
    const struct mp_tokenizer *tok = enc->tok;
    const double before = enc->nodes[at].score;
    const uint32_t step = (uint32_t)mp_tok_utf8_bytes((unsigned char)word[at]);
    struct range range = { 0, tok->sorted_count };
    bool alone = false;

    for (uint32_t length = 1; range.low < range.high && at + length <= bytes; length++) {
        const unsigned byte = (unsigned char)word[at + length - 1];
        const uint32_t low = lower_bound(tok, range, length - 1, byte);

        range.high = lower_bound(tok, range, length - 1, byte + 1);
        range.low = low;
        if (low == range.high || tok->vocab.bytes[tok->sorted[low]] != length)
            continue;
        improve(&enc->nodes[at + length], before + tok->scores[tok->sorted[low]], at,
                tok->sorted[low]);
        alone = alone || length == step;
        range.low++; /* the others are longer */
    }
    if (!alone)
        improve(&enc->nodes[at + step], before + tok->unk_score, at, MP_TOKEN_NONE);
}

static enum mp_status reserve_nodes(struct mp_tok_encoder *enc, size_t count)
{
    size_t bytes;

    if (count > enc->node_capacity) {
        if (!mp_mul_size(count, sizeof(*enc->nodes), &bytes))
            return mp_fail_no_memory("a word", UINT64_MAX);
        free(enc->nodes);
        enc->node_capacity = 0;
        enc->nodes = malloc(bytes);
        if (enc->nodes == NULL)
            return mp_fail_no_memory("a word", bytes);
        enc->node_capacity = count;
    }
    for (size_t i = 0; i < count; i++)
        enc->nodes[i] = (struct mp_tok_node){ .begin = MP_TOKEN_NONE };
    return MP_OK;
}

/* Turn the way back into one forwards: at the beginning of a piece is then where it ends. */
static void turn_back(struct mp_tok_node *nodes, uint32_t end)
{
    uint32_t next = MP_TOKEN_NONE;

    while (end != MP_TOKEN_NONE) {
        const uint32_t begin = nodes[end].begin;

        nodes[end].begin = next;
        next = end;
        end = begin;
    }
}

enum mp_status mp_tok_unigram(struct mp_tok_encoder *enc, const char *word, size_t bytes)
{
    enum mp_status status = reserve_nodes(enc, bytes + 1);
    bool unknown = false;

    if (status != MP_OK)
        return status;
    for (uint32_t at = 0; at < bytes; at += (uint32_t)mp_tok_utf8_bytes((unsigned char)word[at]))
        extend(enc, word, bytes, at);
    turn_back(enc->nodes, (uint32_t)bytes);
    for (uint32_t at = 0, end; at < bytes && status == MP_OK; at = end) {
        uint32_t id;

        end = enc->nodes[at].begin;
        id = enc->nodes[end].id;
        if (id != MP_TOKEN_NONE) {
            status = mp_ids_append(enc->out, id);
            continue;
        }
        /* Unknown characters in a row become bytes together, or one unknown token. */
        while (end < bytes && enc->nodes[enc->nodes[end].begin].id == MP_TOKEN_NONE)
            end = enc->nodes[end].begin;
        unknown = false;
        status = append_unknown(enc, word + at, end - at, &unknown);
    }
    return status;
}
