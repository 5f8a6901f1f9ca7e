/*
 * One list by last use, in three parts: blocks, the last blocks (those that a step less of memory
 * would not hold) and ghosts, which are blocks without bytes. A beginning is used from its last
 * block to its first, so that a block is never older than one that follows it.
 */
#include "engine/batch/prefix_store.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/error.h"

#define BUCKETS_FIRST 256u

enum part { PART_FIRST, PART_LAST, PART_GHOST, PART_COUNT };

struct block {
    struct block *next_in_bucket;
    struct block *newer, *older;
    struct block *before; /* of the same beginning; only within a call */
    enum part part;
    uint64_t number, previous; /* its own, and that of the block before it; 0: none */
    uint64_t round;            /* the call that used it last */
    uint64_t lost;             /* of a ghost: how many had become one before */
    uint32_t ids[MP_PREFIX_TOKENS];
    void *data; /* NULL: a ghost */
};

struct list {
    struct block *newest, *oldest;
    uint64_t count, max;
};

struct mp_prefix_store {
    uint64_t block_bytes, step_blocks;
    uint64_t numbers, round, lost;
    struct list lists[PART_COUNT];
    struct block **buckets; // (bucket_count), a power of two
    size_t bucket_count;
    struct mp_prefix_stats stats;
};

/* ---- lists */

static void unlink_block(struct mp_prefix_store *s, struct block *block)
{
    struct list *list = &s->lists[block->part];

    *(block->newer != NULL ? &block->newer->older : &list->newest) = block->older;
    *(block->older != NULL ? &block->older->newer : &list->oldest) = block->newer;
    list->count--;
}

static void link_newest(struct mp_prefix_store *s, struct block *block, enum part part)
{
    struct list *list = &s->lists[part];

    block->part = part;
    block->newer = NULL;
    block->older = list->newest;
    *(list->newest != NULL ? &list->newest->newer : &list->oldest) = block;
    list->newest = block;
    list->count++;
}

static void link_oldest(struct mp_prefix_store *s, struct block *block, enum part part)
{
    struct list *list = &s->lists[part];

    block->part = part;
    block->older = NULL;
    block->newer = list->oldest;
    *(list->oldest != NULL ? &list->oldest->older : &list->newest) = block;
    list->oldest = block;
    list->count++;
}

/* ---- the table */

static size_t bucket_of(const struct mp_prefix_store *s, uint64_t previous, const uint32_t *ids)
{
    uint64_t hash = previous;

    for (size_t i = 0; i < MP_PREFIX_TOKENS; i++) {
        hash = (hash ^ ids[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return (size_t)hash & (s->bucket_count - 1);
}

static struct block *find_block(const struct mp_prefix_store *s, uint64_t previous,
                                const uint32_t *ids)
{
    struct block *block = s->buckets[bucket_of(s, previous, ids)];

    while (block != NULL &&
           (block->previous != previous || memcmp(block->ids, ids, sizeof(block->ids)) != 0))
        block = block->next_in_bucket;
    return block;
}

static void put_in_table(struct mp_prefix_store *s, struct block *block)
{
    struct block **bucket = &s->buckets[bucket_of(s, block->previous, block->ids)];

    block->next_in_bucket = *bucket;
    *bucket = block;
}

/* Where there is no memory for it, the table is slower, nothing else. */
static void grow_table(struct mp_prefix_store *s)
{
    struct block **old = s->buckets;
    const size_t old_count = s->bucket_count;
    struct block **buckets = calloc(2 * old_count, sizeof(struct block *));

    if (buckets == NULL)
        return;
    s->buckets = buckets;
    s->bucket_count = 2 * old_count;
    for (size_t i = 0; i < old_count; i++) {
        struct block *next;

        for (struct block *block = old[i]; block != NULL; block = next) {
            next = block->next_in_bucket;
            put_in_table(s, block);
        }
    }
    free(old);
}

static void remove_block(struct mp_prefix_store *s, struct block *block)
{
    struct block **at = &s->buckets[bucket_of(s, block->previous, block->ids)];

    while (*at != block)
        at = &(*at)->next_in_bucket;
    *at = block->next_in_bucket;
    unlink_block(s, block);
    free(block->data);
    free(block);
}

/* ---- room */

static void make_ghost(struct mp_prefix_store *s, struct block *block)
{
    unlink_block(s, block);
    free(block->data);
    block->data = NULL;
    block->lost = s->lost++;
    link_newest(s, block, PART_GHOST);
    while (s->lists[PART_GHOST].count > s->lists[PART_GHOST].max)
        remove_block(s, s->lists[PART_GHOST].oldest);
}

static struct block *oldest_with_data(const struct mp_prefix_store *s)
{
    return s->lists[PART_LAST].count > 0 ? s->lists[PART_LAST].oldest : s->lists[PART_FIRST].oldest;
}

/* Each part has as many as it may, and the second only what the first has no room for. */
static void balance(struct mp_prefix_store *s)
{
    struct list *first = &s->lists[PART_FIRST], *last = &s->lists[PART_LAST];

    while (first->count > first->max) {
        struct block *block = first->oldest;

        unlink_block(s, block);
        link_newest(s, block, PART_LAST);
    }
    while (first->count < first->max && last->count > 0) {
        struct block *block = last->newest;

        unlink_block(s, block);
        link_oldest(s, block, PART_FIRST);
    }
    while (last->count > last->max)
        make_ghost(s, last->oldest);
    s->stats.blocks = first->count + last->count;
    s->stats.bytes = s->stats.blocks * (s->block_bytes + sizeof(struct block));
}

void mp_prefix_store_set_budget(struct mp_prefix_store *s, uint64_t budget_bytes)
{
    const uint64_t blocks = budget_bytes / (s->block_bytes + sizeof(struct block));
    const uint64_t last = blocks < s->step_blocks ? blocks : s->step_blocks;

    s->lists[PART_FIRST].max = blocks - last;
    s->lists[PART_LAST].max = last;
    balance(s);
}

enum mp_status mp_prefix_store_create(uint64_t block_bytes, uint64_t budget_bytes,
                                      uint64_t step_bytes, struct mp_prefix_store **store_p)
{
    struct mp_prefix_store *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return mp_fail_no_memory("kept prompts", sizeof(*s));
    s->block_bytes = block_bytes;
    s->step_blocks = step_bytes / (block_bytes + sizeof(struct block));
    s->step_blocks += s->step_blocks == 0;
    s->lists[PART_GHOST].max = MP_PREFIX_FAR_STEPS * s->step_blocks;
    s->bucket_count = BUCKETS_FIRST;
    s->buckets = calloc(s->bucket_count, sizeof(struct block *));
    if (s->buckets == NULL) {
        free(s);
        return mp_fail_no_memory("kept prompts", BUCKETS_FIRST * sizeof(struct block *));
    }
    mp_prefix_store_set_budget(s, budget_bytes);
    *store_p = s;
    return MP_OK;
}

void mp_prefix_store_destroy(struct mp_prefix_store *s)
{
    if (s == NULL)
        return;
    for (unsigned part = 0; part < PART_COUNT; part++)
        while (s->lists[part].oldest != NULL)
            remove_block(s, s->lists[part].oldest);
    free(s->buckets);
    free(s);
}

/* ---- beginnings */

/* The block and those before it become the newest, its first one last. */
static void use(struct mp_prefix_store *s, struct block *block)
{
    for (; block != NULL; block = block->before) {
        unlink_block(s, block);
        link_newest(s, block, PART_FIRST);
        block->round = s->round;
    }
    balance(s);
}

/* The block that follows `before` (NULL: the first one) with these tokens. */
static struct block *follow(const struct mp_prefix_store *s, struct block *before,
                            const uint32_t *ids)
{
    struct block *block = find_block(s, before != NULL ? before->number : 0, ids);

    if (block != NULL)
        block->before = before;
    return block;
}

static void count_use(struct mp_prefix_store *s, const struct block *block)
{
    if (block->data != NULL) {
        s->stats.found_tokens += MP_PREFIX_TOKENS;
        s->stats.lost_tokens += block->part == PART_LAST ? MP_PREFIX_TOKENS : 0;
    } else {
        s->stats.far_tokens += MP_PREFIX_TOKENS;
        s->stats.missing_tokens += s->lost - block->lost <= s->step_blocks ? MP_PREFIX_TOKENS : 0;
    }
}

uint32_t mp_prefix_store_find(struct mp_prefix_store *s, const uint32_t *ids, uint32_t count,
                              uint32_t first)
{
    struct block *before = NULL, *block, *deepest = NULL;
    uint32_t at = 0, found = 0;

    for (; at + MP_PREFIX_TOKENS <= count; at += MP_PREFIX_TOKENS, before = block) {
        block = follow(s, before, ids + at);
        if (block == NULL)
            break;
        if (block->data != NULL && found == at) {
            deepest = block;
            found = at + MP_PREFIX_TOKENS;
        }
        if (at + MP_PREFIX_TOKENS <= first)
            continue;
        count_use(s, block);
    }
    s->round++;
    use(s, deepest);
    return found;
}

/* Room for one more block, without the loss of one that this call has used. */
static bool make_room(struct mp_prefix_store *s)
{
    const uint64_t max = s->lists[PART_FIRST].max + s->lists[PART_LAST].max;
    struct block *oldest = oldest_with_data(s);

    if (s->stats.blocks < max)
        return true;
    if (oldest == NULL || oldest->round == s->round)
        return false;
    make_ghost(s, oldest);
    balance(s);
    return true;
}

/* A new block, or the ghost of one, with bytes that are still to be written; NULL: no memory. */
static struct block *make_block(struct mp_prefix_store *s, struct block *ghost,
                                struct block *before, const uint32_t *ids)
{
    struct block *block = ghost != NULL ? ghost : calloc(1, sizeof(*block));

    if (block == NULL)
        return NULL;
    block->data = malloc(s->block_bytes);
    if (block->data == NULL) {
        if (ghost == NULL)
            free(block);
        return NULL;
    }
    if (ghost == NULL) {
        block->number = ++s->numbers;
        block->previous = before != NULL ? before->number : 0;
        memcpy(block->ids, ids, sizeof(block->ids));
        put_in_table(s, block);
    } else {
        unlink_block(s, block);
    }
    block->before = before;
    block->round = s->round;
    link_newest(s, block, PART_FIRST);
    balance(s);
    return block;
}

void mp_prefix_store_keep(struct mp_prefix_store *s, const uint32_t *ids, uint32_t count,
                          void (*save)(void *ctx, uint32_t first, void *out), void *ctx)
{
    struct block *before = NULL;

    s->round++;
    for (uint32_t at = 0; at + MP_PREFIX_TOKENS <= count; at += MP_PREFIX_TOKENS) {
        struct block *block = follow(s, before, ids + at);

        if (block != NULL)
            block->round = s->round;
        if (block == NULL || block->data == NULL) {
            /* The ghost may be forgotten for the room of the one that it shall become. */
            if (!make_room(s))
                break;
            block = make_block(s, follow(s, before, ids + at), before, ids + at);
            if (block == NULL)
                break;
            save(ctx, at, block->data);
        }
        before = block;
    }
    use(s, before);
    if (s->stats.blocks > s->bucket_count)
        grow_table(s);
}

uint32_t mp_prefix_store_load(struct mp_prefix_store *s, const uint32_t *ids, uint32_t count,
                              uint32_t first,
                              void (*restore)(void *ctx, uint32_t first, const void *in), void *ctx)
{
    struct block *block = NULL;
    uint32_t at = 0;

    for (; at + MP_PREFIX_TOKENS <= count; at += MP_PREFIX_TOKENS) {
        block = follow(s, block, ids + at);
        if (block == NULL || block->data == NULL)
            break;
        if (at + MP_PREFIX_TOKENS > first)
            restore(ctx, at, block->data);
    }
    return at > first ? at : first;
}

const struct mp_prefix_stats *mp_prefix_store_stats(const struct mp_prefix_store *s)
{
    return &s->stats;
}
