/*
 * The vocabulary and the merges as hash tables. Reads no file.
 */
#include "engine/text/tokenizer_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/checked.h"

/*
 * Open addressing with linear probing at a load of at most one half. A file made to collide is
 * refused after this many probes instead of being read in quadratic time; honest files need a few
 * dozen at most.
 */
#define PROBES_MAX 2048

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    return x;
}

static uint64_t hash_bytes(const char *data, size_t bytes)
{
    uint64_t hash = mix(bytes + UINT64_C(0x9e3779b97f4a7c15)), word;

    for (; bytes >= 8; bytes -= 8, data += 8) {
        memcpy(&word, data, 8);
        hash = mix(hash ^ word);
    }
    word = 0;
    memcpy(&word, data, bytes);
    return mix(hash ^ word);
}

static uint32_t buckets_for(uint64_t entries)
{
    uint32_t buckets = 16;

    while (buckets < entries * 2)
        buckets *= 2;
    return buckets;
}

static enum mp_status too_many_probes(const char *file, const char *what)
{
    return mp_fail(MP_ERR_MODEL, "E_TOK_COLLIDE",
                   "%s in '%s' collide more than %d times in a hash table; "
                   "the file was made to do that",
                   what, file, PROBES_MAX);
}

enum mp_status mp_tok_vocab_init(struct mp_tok_vocab *vocab, uint32_t count, uint64_t tokens)
{
    const uint32_t buckets = buckets_for(tokens);

    vocab->flags = calloc(count, sizeof(*vocab->flags));
    vocab->offset = calloc(count, sizeof(*vocab->offset));
    vocab->bytes = calloc(count, sizeof(*vocab->bytes));
    vocab->buckets = malloc(buckets * sizeof(*vocab->buckets));
    if (vocab->flags == NULL || vocab->offset == NULL || vocab->bytes == NULL ||
        vocab->buckets == NULL) {
        mp_tok_vocab_fini(vocab);
        return mp_fail_no_memory("the vocabulary", (uint64_t)count * 9 + (uint64_t)buckets * 4);
    }
    memset(vocab->buckets, 0xff, buckets * sizeof(*vocab->buckets));
    vocab->bucket_mask = buckets - 1;
    vocab->count = count;
    return MP_OK;
}

void mp_tok_vocab_fini(struct mp_tok_vocab *vocab)
{
    free(vocab->flags);
    free(vocab->offset);
    free(vocab->bytes);
    free(vocab->buckets);
    mp_tok_buf_free(&vocab->arena);
    memset(vocab, 0, sizeof(*vocab));
}

static bool vocab_is(const struct mp_tok_vocab *vocab, uint32_t id, const char *content,
                     size_t bytes)
{
    return vocab->bytes[id] == bytes &&
           memcmp(mp_tok_vocab_content(vocab, id), content, bytes) == 0;
}

enum mp_status mp_tok_vocab_add(struct mp_tok_vocab *vocab, const char *file, const char *content,
                                size_t bytes, uint32_t id, uint8_t flags)
{
    const size_t offset = vocab->arena.bytes;
    uint32_t bucket = (uint32_t)hash_bytes(content, bytes) & vocab->bucket_mask;
    enum mp_status status;

    for (int probe = 0; vocab->buckets[bucket] != MP_TOKEN_NONE; probe++) {
        if (probe == PROBES_MAX)
            return too_many_probes(file, "tokens");
        bucket = (bucket + 1) & vocab->bucket_mask;
    }
    status = mp_tok_buf_append(&vocab->arena, content, bytes);
    if (status == MP_OK)
        status = mp_tok_buf_append(&vocab->arena, "", 1);
    if (status != MP_OK)
        return status;
    vocab->flags[id] = flags | MP_TOK_USED;
    vocab->offset[id] = (uint32_t)offset;
    vocab->bytes[id] = (uint32_t)bytes;
    vocab->buckets[bucket] = id;
    return MP_OK;
}

uint32_t mp_tok_vocab_find(const struct mp_tok_vocab *vocab, const char *content, size_t bytes)
{
    uint32_t bucket = (uint32_t)hash_bytes(content, bytes) & vocab->bucket_mask;

    while (vocab->buckets[bucket] != MP_TOKEN_NONE) {
        if (vocab_is(vocab, vocab->buckets[bucket], content, bytes))
            return vocab->buckets[bucket];
        bucket = (bucket + 1) & vocab->bucket_mask;
    }
    return MP_TOKEN_NONE;
}

enum mp_status mp_tok_merges_init(struct mp_tok_merges *merges, uint32_t count)
{
    const uint32_t buckets = buckets_for(count);

    merges->result = calloc((size_t)count + 1, sizeof(*merges->result));
    merges->pairs = malloc(buckets * sizeof(*merges->pairs));
    merges->ranks = malloc(buckets * sizeof(*merges->ranks));
    if (merges->result == NULL || merges->pairs == NULL || merges->ranks == NULL) {
        mp_tok_merges_fini(merges);
        return mp_fail_no_memory("the merges", (uint64_t)count * 4 + (uint64_t)buckets * 12);
    }
    memset(merges->pairs, 0xff, buckets * sizeof(*merges->pairs));
    merges->bucket_mask = buckets - 1;
    merges->count = count;
    return MP_OK;
}

void mp_tok_merges_fini(struct mp_tok_merges *merges)
{
    free(merges->result);
    free(merges->pairs);
    free(merges->ranks);
    memset(merges, 0, sizeof(*merges));
}

enum mp_status mp_tok_merges_add(struct mp_tok_merges *merges, const char *file, uint32_t rank,
                                 uint32_t left, uint32_t right, uint32_t result)
{
    const uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t bucket = (uint32_t)mix(pair) & merges->bucket_mask;

    for (int probe = 0; merges->pairs[bucket] != UINT64_MAX && merges->pairs[bucket] != pair;
         probe++) {
        if (probe == PROBES_MAX)
            return too_many_probes(file, "merges");
        bucket = (bucket + 1) & merges->bucket_mask;
    }
    merges->pairs[bucket] = pair;
    merges->ranks[bucket] = rank;
    merges->result[rank] = result;
    return MP_OK;
}

uint32_t mp_tok_merges_find(const struct mp_tok_merges *merges, uint32_t left, uint32_t right)
{
    const uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t bucket = (uint32_t)mix(pair) & merges->bucket_mask;

    while (merges->pairs[bucket] != UINT64_MAX) {
        if (merges->pairs[bucket] == pair)
            return merges->ranks[bucket];
        bucket = (bucket + 1) & merges->bucket_mask;
    }
    return MP_TOKEN_NONE;
}
