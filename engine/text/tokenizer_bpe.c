/*
 * Byte pair encoding of one word. Words are cut in tokenizer_split.c.
 */
#include "engine/text/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/checked.h"

/*
 * Byte pair encoding of one word: while there is a pair of neighbours with a merge, the merge of
 * the least rank is done, of equal ranks the leftmost. Pairs wait in a heap of four children per
 * node; an entry whose pair has changed since is recognised when it comes up: its merge would give
 * another token. (The comparison is by token, not by rank, as in the reference: an outdated entry
 * counts if the pair that stands there now gives the same token.)
 */

enum mp_status mp_tok_push_symbol(struct mp_tok_encoder *enc, struct mp_tok_symbol symbol)
{
    if (enc->symbol_count == enc->symbol_capacity) {
        const size_t capacity = enc->symbol_capacity + enc->symbol_capacity / 2 + 64;
        size_t bytes;

        if (!mp_mul_size(capacity, sizeof(*enc->symbols), &bytes))
            return mp_fail_no_memory("a word", UINT64_MAX);
        struct mp_tok_symbol *grown = realloc(enc->symbols, bytes);
        if (grown == NULL)
            return mp_fail_no_memory("a word", bytes);
        enc->symbols = grown;
        enc->symbol_capacity = capacity;
    }
    enc->symbols[enc->symbol_count++] = symbol;
    return MP_OK;
}

static enum mp_status push_symbol(struct mp_tok_encoder *enc, uint32_t id)
{
    return mp_tok_push_symbol(enc, (struct mp_tok_symbol){ .id = id });
}

static enum mp_status heap_reserve(struct mp_tok_encoder *enc, size_t count)
{
    size_t bytes;

    if (count <= enc->heap_capacity)
        return MP_OK;
    count += count / 2 + 64;
    if (!mp_mul_size(count, sizeof(*enc->heap), &bytes))
        return mp_fail_no_memory("a word", UINT64_MAX);
    uint64_t *grown = realloc(enc->heap, bytes);
    if (grown == NULL)
        return mp_fail_no_memory("a word", bytes);
    enc->heap = grown;
    enc->heap_capacity = count;
    return MP_OK;
}

static void heap_sift_down(uint64_t *heap, size_t count, size_t at)
{
    const uint64_t moved = heap[at];

    for (;;) {
        const size_t child = at * 4 + 1;
        size_t least = child;

        if (child >= count)
            break;
        for (size_t i = child + 1; i < child + 4 && i < count; i++) {
            if (heap[i] < heap[least])
                least = i;
        }
        if (moved <= heap[least])
            break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = moved;
}

enum mp_status mp_tok_heap_push(struct mp_tok_encoder *enc, uint64_t entry)
{
    enum mp_status status = heap_reserve(enc, enc->heap_count + 1);
    size_t at = enc->heap_count;

    if (status != MP_OK)
        return status;
    enc->heap_count++;
    while (at > 0 && enc->heap[(at - 1) / 4] > entry) {
        enc->heap[at] = enc->heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    enc->heap[at] = entry;
    return MP_OK;
}

uint64_t mp_tok_heap_pop(struct mp_tok_encoder *enc)
{
    const uint64_t top = enc->heap[0];

    enc->heap[0] = enc->heap[--enc->heap_count];
    if (enc->heap_count > 0)
        heap_sift_down(enc->heap, enc->heap_count, 0);
    return top;
}

/* Push the pair (left, its next) if it has a merge. */
static enum mp_status push_pair(struct mp_tok_encoder *enc, uint32_t left)
{
    const struct mp_tok_symbol *symbol = &enc->symbols[left];
    const uint32_t rank =
        mp_tok_merges_find(&enc->tok->merges, symbol->id, enc->symbols[symbol->next].id);

    return rank == MP_TOKEN_NONE ? MP_OK : mp_tok_heap_push(enc, (uint64_t)rank << 32 | left);
}

static enum mp_status collect_pairs(struct mp_tok_encoder *enc)
{
    const uint32_t count = (uint32_t)enc->symbol_count;

    enc->heap_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        enc->symbols[i].prev = i > 0 ? i - 1 : MP_TOKEN_NONE;
        enc->symbols[i].next = i + 1 < count ? i + 1 : MP_TOKEN_NONE;
    }
    for (uint32_t i = 0; i + 1 < count; i++) {
        const uint32_t rank =
            mp_tok_merges_find(&enc->tok->merges, enc->symbols[i].id, enc->symbols[i + 1].id);

        if (rank == MP_TOKEN_NONE)
            continue;
        const enum mp_status status = heap_reserve(enc, enc->heap_count + 1);
        if (status != MP_OK)
            return status;
        enc->heap[enc->heap_count++] = (uint64_t)rank << 32 | i;
    }
    for (size_t i = enc->heap_count / 4 + 1; i-- > 0;) {
        if (i < enc->heap_count)
            heap_sift_down(enc->heap, enc->heap_count, i);
    }
    return MP_OK;
}

/* One heap entry: the merge at `left`, if it still makes the same token. */
static enum mp_status merge_at(struct mp_tok_encoder *enc, uint32_t left, uint32_t result)
{
    const struct mp_tok_merges *merges = &enc->tok->merges;
    struct mp_tok_symbol *symbol = &enc->symbols[left];
    enum mp_status status = MP_OK;

    if (symbol->id == MP_TOKEN_NONE || symbol->next == MP_TOKEN_NONE)
        return MP_OK;
    struct mp_tok_symbol *right = &enc->symbols[symbol->next];
    const uint32_t rank = mp_tok_merges_find(merges, symbol->id, right->id);
    if (rank == MP_TOKEN_NONE || merges->result[rank] != result)
        return MP_OK;

    symbol->id = result;
    symbol->next = right->next;
    right->id = MP_TOKEN_NONE;
    if (symbol->next != MP_TOKEN_NONE)
        enc->symbols[symbol->next].prev = left;
    if (symbol->prev != MP_TOKEN_NONE)
        status = push_pair(enc, symbol->prev);
    if (status == MP_OK && symbol->next != MP_TOKEN_NONE)
        status = push_pair(enc, left);
    return status;
}

/* The first symbols of a word of a byte-level vocabulary: one for each byte. */
static enum mp_status symbols_of_bytes(struct mp_tok_encoder *enc, const char *word, size_t bytes)
{
    const struct mp_tokenizer *tok = enc->tok;
    enum mp_status status = MP_OK;
    bool unknown = false;

    for (size_t i = 0; i < bytes && status == MP_OK; i++) {
        const uint32_t id = tok->byte_ids[(unsigned char)word[i]];

        if (id == MP_TOKEN_NONE && unknown && tok->fuse_unk)
            continue;
        unknown = id == MP_TOKEN_NONE;
        status = push_symbol(enc, unknown ? tok->unk : id);
    }
    return status;
}

bool mp_tok_has_bytes(const struct mp_tokenizer *tok, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (tok->byte_ids[(unsigned char)text[i]] == MP_TOKEN_NONE)
            return false;
    }
    return true;
}

/*
 * The first symbols of a word otherwise: one for each character, else its bytes, else the unknown
 * token. As in the reference, an unknown token waits until a known character follows, also past
 * characters that became bytes.
 */
static enum mp_status symbols_of_characters(struct mp_tok_encoder *enc, const char *word,
                                            size_t bytes)
{
    const struct mp_tokenizer *tok = enc->tok;
    enum mp_status status = MP_OK;
    bool pending = false;

    for (size_t at = 0, step; at < bytes && status == MP_OK; at += step) {
        step = mp_tok_utf8_bytes((unsigned char)word[at]);
        const uint32_t id = mp_tok_vocab_find_model(&tok->vocab, word + at, step);

        if (id != MP_TOKEN_NONE) {
            if (pending)
                status = push_symbol(enc, tok->unk);
            pending = false;
            if (status == MP_OK)
                status = push_symbol(enc, id);
        } else if (tok->byte_fallback && mp_tok_has_bytes(tok, word + at, step)) {
            for (size_t i = 0; i < step && status == MP_OK; i++)
                status = push_symbol(enc, tok->byte_ids[(unsigned char)word[at + i]]);
        } else {
            if (pending && !tok->fuse_unk)
                status = push_symbol(enc, tok->unk);
            pending = true;
        }
    }
    if (status == MP_OK && pending)
        status = push_symbol(enc, tok->unk);
    return status;
}

/* The token that is the whole word, for files that set ignore_merges. */
static enum mp_status find_word(struct mp_tok_encoder *enc, const char *word, size_t bytes,
                                uint32_t *id_p)
{
    *id_p = MP_TOKEN_NONE;
    if (bytes > MP_TOK_TOKEN_BYTES_MAX)
        return MP_OK;
    if (!enc->tok->byte_level) {
        *id_p = mp_tok_vocab_find_model(&enc->tok->vocab, word, bytes);
        return MP_OK;
    }
    enc->word.bytes = 0;
    for (size_t i = 0; i < bytes; i++) {
        char out[4];
        const size_t put = mp_tok_utf8_put(out, mp_tok_byte_char((unsigned char)word[i]));
        const enum mp_status status = mp_tok_buf_append(&enc->word, out, put);

        if (status != MP_OK)
            return status;
    }
    *id_p = mp_tok_vocab_find_model(&enc->tok->vocab, enc->word.data, enc->word.bytes);
    return MP_OK;
}

enum mp_status mp_tok_bpe(struct mp_tok_encoder *enc, const char *word, size_t bytes)
{
    const struct mp_tokenizer *tok = enc->tok;
    enum mp_status status;

    if (bytes == 0)
        return MP_OK;
    if (tok->ignore_merges) {
        uint32_t id;

        status = find_word(enc, word, bytes, &id);
        if (status != MP_OK)
            return status;
        if (id != MP_TOKEN_NONE)
            return mp_ids_append(enc->out, id);
    }
    enc->symbol_count = 0;
    status = tok->byte_level ? symbols_of_bytes(enc, word, bytes)
                             : symbols_of_characters(enc, word, bytes);
    if (status == MP_OK)
        status = collect_pairs(enc);
    while (status == MP_OK && enc->heap_count > 0) {
        const uint64_t top = mp_tok_heap_pop(enc);

        status = merge_at(enc, (uint32_t)top, tok->merges.result[top >> 32]);
    }
    for (uint32_t i = 0; i < enc->symbol_count && status == MP_OK; i++) {
        if (enc->symbols[i].id != MP_TOKEN_NONE)
            status = mp_ids_append(enc->out, enc->symbols[i].id);
    }
    return status;
}
