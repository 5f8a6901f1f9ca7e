/*
 * Beginnings of prompts: what is found is what was kept, of those tokens and no others; the oldest
 * leave first, ends before beginnings; what a step more or less of memory is worth is counted; and
 * without memory less is kept, and nothing else happens.
 */
#include "engine/batch/prefix_store.h"

#include <string.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/random.h"
#include "tests/support/test.h"

#define TOKENS MP_PREFIX_TOKENS
#define DATA 64u

static uint64_t random_state = 11;

/* What a block takes, told by the store itself. */
static uint64_t block_bytes;

/* The bytes of a block are a sum over the tokens up to its end: that is what it stands for. */
static void fill(const uint32_t *ids, uint32_t first, uint8_t out[DATA])
{
    uint64_t sum = 1;

    for (uint32_t i = 0; i < first + TOKENS; i++)
        sum = sum * 31 + ids[i];
    for (uint32_t i = 0; i < DATA; i++)
        out[i] = (uint8_t)(sum >> (i % 56));
}

static void save(void *ctx, uint32_t first, void *out)
{
    CHECK_EQ(first % TOKENS, 0);
    fill(ctx, first, out);
}

static void check(void *ctx, uint32_t first, const void *in)
{
    uint8_t wanted[DATA];

    fill(ctx, first, wanted);
    CHECK(memcmp(in, wanted, DATA) == 0);
}

static struct mp_prefix_store *open_store(uint64_t blocks, uint64_t step_blocks)
{
    struct mp_prefix_store *s;

    CHECK_EQ(mp_prefix_store_create(DATA, blocks * block_bytes, step_blocks * block_bytes, &s),
             MP_OK);
    return s;
}

static void keep(struct mp_prefix_store *s, uint32_t *ids, uint32_t count)
{
    mp_prefix_store_keep(s, ids, count, save, ids);
}

/* All that is found can be loaded. */
static uint32_t find(struct mp_prefix_store *s, uint32_t *ids, uint32_t count)
{
    const uint32_t found = mp_prefix_store_find(s, ids, count, 0);

    CHECK_EQ(mp_prefix_store_load(s, ids, count, 0, check, ids), found);
    return found;
}

/* `count` tokens of text `text`, of which the first `common` are those of text 0. */
static void make_text(uint32_t *ids, uint32_t count, uint32_t text, uint32_t common)
{
    for (uint32_t i = 0; i < count; i++)
        ids[i] = i * 7 + (i < common ? 0 : text * 1000);
}

static void learn_the_size_of_a_block(void)
{
    struct mp_prefix_store *s;
    uint32_t ids[TOKENS] = { 0 };

    CHECK_EQ(mp_prefix_store_create(DATA, 1 << 20, 1 << 16, &s), MP_OK);
    keep(s, ids, TOKENS);
    CHECK_EQ(mp_prefix_store_stats(s)->blocks, 1);
    block_bytes = mp_prefix_store_stats(s)->bytes;
    CHECK(block_bytes >= DATA);
    mp_prefix_store_destroy(s);
    mp_prefix_store_destroy(NULL);
}

static void whole_blocks_of_the_same_beginning_are_found(void)
{
    struct mp_prefix_store *s = open_store(32, 4);
    uint32_t a[5 * TOKENS], b[5 * TOKENS];

    make_text(a, 5 * TOKENS, 1, 0);
    make_text(b, 5 * TOKENS, 2, 0);
    memcpy(b, a, 2 * TOKENS * sizeof(uint32_t));
    CHECK_EQ(find(s, a, 5 * TOKENS), 0);
    keep(s, a, 4 * TOKENS + 7);
    CHECK_EQ(mp_prefix_store_stats(s)->blocks, 4);
    CHECK_EQ(find(s, a, 5 * TOKENS), 4 * TOKENS);
    CHECK_EQ(find(s, a, 3 * TOKENS - 1), 2 * TOKENS);
    CHECK_EQ(find(s, b, 5 * TOKENS), 2 * TOKENS);
    /* The same tokens behind others are another block. */
    CHECK_EQ(find(s, a + TOKENS, 2 * TOKENS), 0);
    keep(s, b, 4 * TOKENS);
    CHECK_EQ(mp_prefix_store_stats(s)->blocks, 6);
    CHECK_EQ(find(s, b, 5 * TOKENS), 4 * TOKENS);
    CHECK_EQ(find(s, a, 5 * TOKENS), 4 * TOKENS);
    /* From `first` on only. */
    CHECK_EQ(mp_prefix_store_load(s, a, 4 * TOKENS, 3 * TOKENS + 5, check, a), 4 * TOKENS);
    CHECK_EQ(mp_prefix_store_load(s, a, 4 * TOKENS, 4 * TOKENS + 5, check, a), 4 * TOKENS + 5);
    mp_prefix_store_destroy(s);
}

static void the_oldest_leaves_and_ends_before_beginnings(void)
{
    struct mp_prefix_store *s = open_store(6, 2);
    uint32_t text[4][4 * TOKENS];

    for (uint32_t i = 0; i < 4; i++)
        make_text(text[i], 4 * TOKENS, i + 1, 0);
    keep(s, text[0], 3 * TOKENS);
    keep(s, text[1], 3 * TOKENS);
    CHECK_EQ(find(s, text[0], 3 * TOKENS), 3 * TOKENS); /* text 1 is the older one now */
    keep(s, text[2], 2 * TOKENS);
    CHECK_EQ(find(s, text[1], 3 * TOKENS), TOKENS);
    CHECK_EQ(find(s, text[0], 3 * TOKENS), 3 * TOKENS);
    CHECK_EQ(find(s, text[2], 3 * TOKENS), 2 * TOKENS);
    /* One that has more blocks than there is room for does not drive out itself. */
    mp_prefix_store_set_budget(s, 2 * block_bytes);
    CHECK_EQ(mp_prefix_store_stats(s)->blocks, 2);
    keep(s, text[3], 4 * TOKENS);
    CHECK_EQ(find(s, text[3], 4 * TOKENS), 2 * TOKENS);
    mp_prefix_store_set_budget(s, 0);
    CHECK_EQ(mp_prefix_store_stats(s)->bytes, 0);
    keep(s, text[3], 4 * TOKENS);
    CHECK_EQ(find(s, text[3], 4 * TOKENS), 0);
    mp_prefix_store_set_budget(s, 4 * block_bytes);
    keep(s, text[3], 4 * TOKENS);
    CHECK_EQ(find(s, text[3], 4 * TOKENS), 4 * TOKENS);
    mp_prefix_store_destroy(s);
}

/* Texts in turn, one more than there is room for: with a step more all would be found. */
static void the_worth_of_a_step_is_counted(void)
{
    struct mp_prefix_store *s = open_store(4, 1);
    const struct mp_prefix_stats *stats = mp_prefix_store_stats(s);
    uint32_t text[5][TOKENS];

    for (uint32_t i = 0; i < 5; i++) {
        make_text(text[i], TOKENS, i + 1, 0);
        keep(s, text[i], TOKENS);
    }
    for (uint32_t i = 0; i < 10; i++) {
        CHECK_EQ(find(s, text[i % 5], TOKENS), 0);
        keep(s, text[i % 5], TOKENS);
    }
    CHECK_EQ(stats->found_tokens, 0);
    CHECK_EQ(stats->missing_tokens, 10 * TOKENS);
    mp_prefix_store_set_budget(s, 5 * block_bytes);
    keep(s, text[0], TOKENS);
    for (uint32_t i = 0; i < 10; i++)
        CHECK_EQ(find(s, text[(i + 1) % 5], TOKENS), TOKENS);
    CHECK_EQ(stats->found_tokens, 10 * TOKENS);
    CHECK_EQ(stats->lost_tokens, 10 * TOKENS); /* with a step less none would be */
    for (uint32_t i = 0; i < 10; i++)
        CHECK_EQ(find(s, text[1], TOKENS), TOKENS);
    CHECK_EQ(stats->lost_tokens, 11 * TOKENS);
    /* What somebody else holds is not worth anything. */
    CHECK_EQ(mp_prefix_store_find(s, text[1], TOKENS, TOKENS), TOKENS);
    CHECK_EQ(stats->found_tokens, 20 * TOKENS);
    mp_prefix_store_destroy(s);
}

/* Thousands of texts that share beginnings, with a budget that changes. */
static void what_is_found_is_right_whatever_happened(void)
{
    struct mp_prefix_store *s = open_store(40, 8);
    const struct mp_prefix_stats *stats = mp_prefix_store_stats(s);
    uint64_t budget = 40, found = 0;
    uint32_t ids[12 * TOKENS];

    for (uint32_t i = 0; i < 20000; i++) {
        const uint32_t count = 1 + random_below(12 * TOKENS);

        make_text(ids, count, random_below(30), TOKENS * random_below(6));
        found += find(s, ids, count);
        if (random_below(2) == 0)
            keep(s, ids, count);
        if (random_below(50) == 0) {
            budget = random_below(900);
            mp_prefix_store_set_budget(s, budget * block_bytes);
        }
        CHECK(stats->blocks <= budget && stats->bytes == stats->blocks * block_bytes);
    }
    CHECK_EQ(stats->found_tokens, found);
    CHECK(found > 20000 && stats->missing_tokens > 0);
    mp_prefix_store_destroy(s);
}

/* Whatever allocation fails, the store holds less and stays right. */
static void without_memory_less_is_kept(void)
{
    uint32_t ids[3 * TOKENS];
    uint64_t n;

    for (n = 0;; n++) {
        struct mp_prefix_store *s = NULL;
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_prefix_store_create(DATA, 300 * block_bytes, block_bytes, &s);
        for (uint32_t text = 0; status == MP_OK && text < 100; text++) {
            make_text(ids, 3 * TOKENS, text + 1, 0);
            keep(s, ids, 3 * TOKENS);
        }
        if (fault_end() == 0) {
            CHECK_EQ(mp_prefix_store_stats(s)->blocks, 300);
            mp_prefix_store_destroy(s);
            break;
        }
        CHECK(status == MP_OK || (status == MP_ERR_NO_MEMORY && n < 2));
        for (uint32_t text = 0; status == MP_OK && text < 100; text++) {
            make_text(ids, 3 * TOKENS, text + 1, 0);
            (void)find(s, ids, 3 * TOKENS);
            keep(s, ids, 3 * TOKENS);
            CHECK_EQ(find(s, ids, 3 * TOKENS), 3 * TOKENS);
        }
        mp_prefix_store_destroy(s);
    }
    CHECK(n >= 602);
}

int main(void)
{
    RUN(learn_the_size_of_a_block);
    RUN(whole_blocks_of_the_same_beginning_are_found);
    RUN(the_oldest_leaves_and_ends_before_beginnings);
    RUN(the_worth_of_a_step_is_counted);
    RUN(what_is_found_is_right_whatever_happened);
    RUN(without_memory_less_is_kept);
    return 0;
}
