/*
 * Which rank computes an expert, and what is read instead: worked out by hand.
 */
#include <math.h>
#include <string.h>

#include "engine/cluster/rank_int.h"
#include "policy/place/learn.h"
#include "tests/support/test.h"

#define EXPERTS 8

/* Rank 0 of three in a model of one layer; expert e is kept by rank holder[e]. */
struct world {
    struct mp_rank rank;
    struct mp_engine_config engine;
    struct mp_peer peers[3];
    uint16_t device[3 * EXPERTS];
    uint32_t where[EXPERTS];
    struct mp_take_group take[EXPERTS];
    double tokens[EXPERTS], calls[EXPERTS];
    uint64_t live[EXPERTS];
    uint8_t no_fetch[EXPERTS];
};

static void world_init(struct world *w, const char *place, const uint32_t *holder)
{
    memset(w, 0, sizeof(*w));
    w->engine.clock = mp_clock_monotonic();
    w->rank = (struct mp_rank){
        .config = { .engine = &w->engine, .place = mp_place_find(place), .reads = true },
        .limits = { .ranks = 3, .layers = 1, .experts = EXPERTS },
        .ranks = 3,
        .ids = EXPERTS,
        .peer = w->peers,
        .now.device = w->device,
        .placed = true,
        .where = w->where,
        .take = w->take,
        .tokens = w->tokens,
        .calls = w->calls,
        .live = w->live,
        .no_fetch = w->no_fetch,
        .fetch_ns = 1e9, /* not for once in so few layers */
    };
    for (uint32_t e = 0; e < EXPERTS; e++)
        w->device[holder[e] * EXPERTS + e] = 1;
    for (uint32_t p = 1; p < 3; p++)
        w->peers[p] = (struct mp_peer){ .fixed_ns = 1024, .row_ns = 10, .samples = 32 };
}

/* Experts 0 to count - 1 are chosen; bit e of the result: expert e is asked for. */
static uint32_t asked(struct world *w, uint32_t count, const uint32_t *tokens)
{
    static const uint32_t experts[EXPERTS] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    static const uint8_t resident[EXPERTS];
    static const struct mp_costs costs = { .executor_count = 2 };
    const struct mp_assign_facts facts = {
        .count = count, .experts = experts, .tokens = tokens, .resident = resident, .costs = &costs
    };
    uint32_t executors[EXPERTS] = { 0 }, bits = 0;

    CHECK_EQ(mp_rank_choose(&w->rank, &facts, executors), MP_OK);
    for (uint32_t i = 0; i < count; i++) {
        CHECK((executors[i] == MP_EXECUTOR_PEERS) == (w->where[i] != MP_WHERE_HERE));
        bits |= (uint32_t)(executors[i] == MP_EXECUTOR_PEERS) << i;
    }
    return bits;
}

/* One message has all three, so it is compared with three reads: 1024 + 30 ns against 3 * 400, and
 * then 3 * 200. */
static void a_message_is_compared_with_all_its_reads(void)
{
    static const uint32_t holder[EXPERTS] = { 1, 1, 1 }, tokens[EXPERTS] = { 1, 1, 1 };
    struct world w;

    world_init(&w, "united", holder);
    w.rank.reads = (struct mp_learn_reads){ 400, 400 };
    CHECK_EQ(asked(&w, 3, tokens), 7);
    CHECK_EQ(w.rank.own_reads, 0);
    w.rank.reads = (struct mp_learn_reads){ 200, 200 };
    CHECK_EQ(asked(&w, 3, tokens), 0);
    CHECK_EQ(w.rank.own_reads, 3);
    CHECK_EQ(w.rank.steps, 2);
    CHECK_EQ(w.rank.report.all_tokens, 6);
    CHECK_EQ(w.rank.report.local_tokens, 3);
    w.peers[1].samples = 31; /* not yet known */
    CHECK_EQ(asked(&w, 3, tokens), 7);
    world_init(&w, "prism", holder);
    w.rank.reads = (struct mp_learn_reads){ 200, 200 };
    CHECK_EQ(asked(&w, 3, tokens), 7);
}

/* Three reads take 700 + 2 * 50 ns, less than 0.8 of 1054; one more than 0.8 of 1034, and the
 * second of a layer that reads anyway 50. */
static void more_reads_take_less_than_the_first(void)
{
    static const uint32_t holder[EXPERTS] = { 1, 1, 1 }, tokens[EXPERTS] = { 1, 1, 1 };
    static const uint32_t kept[EXPERTS] = { 1, 0 };
    struct world w;

    world_init(&w, "united", holder);
    w.rank.reads = (struct mp_learn_reads){ 700, 50 };
    CHECK_EQ(asked(&w, 3, tokens), 0);
    w.rank.reads = (struct mp_learn_reads){ 850, 50 };
    CHECK_EQ(asked(&w, 1, tokens), 1);
    world_init(&w, "united", kept);
    w.rank.reads = (struct mp_learn_reads){ 700, 50 };
    CHECK_EQ(asked(&w, 2, tokens), 0);
    w.rank.reads = (struct mp_learn_reads){ 700, 700 };
    CHECK_EQ(asked(&w, 2, tokens), 1);
}

/* The first read of a layer takes 500 ns, each more 60. */
static void first_and_further_reads_are_learned(void)
{
    struct mp_learn_reads reads = { 200, 200 };

    for (uint32_t i = 0; i < 300; i++)
        mp_learn_reads(&reads, 500 + 60 * (i % 3), i % 3 + 1);
    CHECK(fabs(reads.first_ns - 500) < 1 && fabs(reads.more_ns - 60) < 1);
    CHECK(fabs(mp_learn_reads_ns(&reads, 4) - 680) < 4 && mp_learn_reads_ns(&reads, 0) == 0);
    mp_learn_reads(&reads, 400, 3); /* less than one: the others are not negative */
    CHECK(reads.more_ns > 40 && reads.more_ns < 50);
}

/* Expert 1 has 100 rows, 1000 ns of 2044. Read in 600 ns it leaves a message of 1044; what remains
 * is not read, as two reads take 1200. */
static void what_has_many_rows_is_read(void)
{
    static const uint32_t holder[EXPERTS] = { 1, 1, 1 }, tokens[EXPERTS] = { 1, 100, 1 };
    struct world w;

    world_init(&w, "united", holder);
    w.rank.reads = (struct mp_learn_reads){ 600, 600 };
    CHECK_EQ(asked(&w, 3, tokens), 5);
}

/* Two ranks are asked at once: reading what one has does not help while the other is waited for;
 * reading the one slow rank's does. */
static void ranks_are_asked_side_by_side(void)
{
    static const uint32_t holder[EXPERTS] = { 1, 1, 2 }, tokens[EXPERTS] = { 1, 1, 1 };
    struct world w;

    world_init(&w, "united", holder);
    w.rank.reads = (struct mp_learn_reads){ 700, 700 };
    CHECK_EQ(asked(&w, 3, tokens), 7);
    w.peers[2].fixed_ns = 4096;
    CHECK_EQ(asked(&w, 3, tokens), 3);
    w.rank.reads = (struct mp_learn_reads){ 100, 100 };
    CHECK_EQ(asked(&w, 3, tokens), 0);
}

/* What a layer could have used and did not becomes cheaper, so that it is tried again. */
static void ways_that_are_not_taken_are_tried_again(void)
{
    static const uint32_t holder[EXPERTS] = { 1, 1 }, tokens[EXPERTS] = { 1, 1 };
    struct world w;
    uint32_t layers = 0;

    world_init(&w, "united", holder);
    w.rank.reads = (struct mp_learn_reads){ 1000, 1000 };
    for (; asked(&w, 2, tokens) == 3; layers++)
        CHECK(layers < 2000);
    CHECK(layers > 20 && fabs(w.peers[1].fixed_ns - 1024) < 10);
    w.rank.reads = (struct mp_learn_reads){ 250, 250 };
    for (layers = 0; asked(&w, 2, tokens) == 0; layers++)
        CHECK(layers < 2000);
    CHECK(layers > 20 && fabs(w.rank.reads.first_ns - 250) < 3);
}

/* No layer has waited for a read yet: what one took in the background stands for it, and the less
 * the longer none was tried. */
static void a_read_that_was_never_tried_is_tried(void)
{
    static const uint32_t holder[EXPERTS] = { 1, 1 }, tokens[EXPERTS] = { 1, 1 };
    struct world w;
    uint32_t layers = 0;

    world_init(&w, "united", holder);
    w.rank.fill_ns = 4000;
    for (; asked(&w, 2, tokens) == 3; layers++)
        CHECK(layers < 2000);
    CHECK(layers > 100 && mp_rank_reads(&w.rank).more_ns < 420);
    w.rank.reads =
        (struct mp_learn_reads){ 800, 800 }; /* it has been: the guess is not looked at any more */
    CHECK_EQ(asked(&w, 2, tokens), 3);
}

/* A rank that was asked with many rows is not taken for slow for ever. */
static void rows_become_cheaper_where_nobody_is_asked(void)
{
    static const uint32_t holder[EXPERTS] = { 1 }, tokens[EXPERTS] = { 50 };
    struct world w;

    world_init(&w, "united", holder);
    w.rank.reads = (struct mp_learn_reads){ 200, 200 };
    w.peers[1].row_ns = 1000;
    for (uint32_t layers = 0; layers < 128; layers++)
        CHECK_EQ(asked(&w, 1, tokens), 0);
    CHECK(w.peers[1].row_ns < 400);
}

/* A pause of the machine says little, and little of it is a row's where there are few. */
static void one_long_call_says_little(void)
{
    double fixed = 1000, row = 10, few = 10;

    mp_learn_call(&fixed, &row, 1e6, 1);
    CHECK(fixed == 1375);
    fixed = 1000;
    mp_learn_call(&fixed, &few, 1e6, 8);
    mp_learn_call(&fixed, &row, 1e6, 64);
    CHECK(few - 10 > 0 && few - 10 < (row - 10) / 7);
}

/* Who may not read asks a rank that may, if nobody keeps an expert. */
static void who_reads_is_asked_for_what_nobody_keeps(void)
{
    static const uint32_t holder[EXPERTS] = { 1 }, tokens[EXPERTS] = { 1 };
    struct world w;

    world_init(&w, "prism", holder);
    w.rank.config.reads = false;
    w.peers[2].about.reads = 1;
    CHECK_EQ(asked(&w, 1, tokens), 1);
    CHECK_EQ(w.where[0], 1);
    w.peers[1].state = MP_PEER_LOST;
    CHECK_EQ(asked(&w, 1, tokens), 1);
    CHECK_EQ(w.where[0], 2);
}

int main(void)
{
    RUN(a_message_is_compared_with_all_its_reads);
    RUN(more_reads_take_less_than_the_first);
    RUN(first_and_further_reads_are_learned);
    RUN(what_has_many_rows_is_read);
    RUN(ranks_are_asked_side_by_side);
    RUN(ways_that_are_not_taken_are_tried_again);
    RUN(a_read_that_was_never_tried_is_tried);
    RUN(rows_become_cheaper_where_nobody_is_asked);
    RUN(one_long_call_says_little);
    RUN(who_reads_is_asked_for_what_nobody_keeps);
    return 0;
}
