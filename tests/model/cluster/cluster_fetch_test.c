/*
 * What rank 2 of three lacks comes out of another's memory where that is faster than its file. The
 * bytes are those of the file, and nothing else is taken for them.
 */
#include "tests/model/cluster/move_world.h"
#include "tests/support/slow_link.h"

/* Rank 2 gets ten experts that rank 1 has, in both directions by turns. */
static void move_some(uint32_t turns)
{
    for (uint32_t i = 0; i < turns; i++) {
        const uint32_t first = i % 2 == 0 ? KEPT + 20 : 0;

        say_place(i + 1, first);
        turn(MS);
        for (uint32_t id = 0; id < IDS; id++)
            say_have(1, 2 * (i + 1), id, right(id));
        for (uint32_t id = first; id < first + KEPT; id++)
            wait_until_there(id);
        say_bare(0, MP_MESSAGE_SWITCH, i + 1);
        turn(MS);
        CHECK_EQ(w.rank->report.migrations, i + 1);
    }
}

/* The file takes 60 ms and more, rank 1 answers at once. */
static void a_slow_file_is_not_read(void)
{
    struct mp_rank_report report;

    slow_link_us = 30000;
    open_world(slow_link_clock());
    move_some(6);
    mp_rank_report(w.rank, &report);
    fprintf(stderr, "slow file: %llu fetched, %u asked, %.0f us; %llu read, %.0f us\n",
            (unsigned long long)report.fetched, w.asked, report.fetch_ns / 1e3,
            (unsigned long long)(report.read_bytes / w.bytes), report.fill_ns / 1e3);
    CHECK(report.fetched > 6 * KEPT / 4); /* also where the machine stands still now and then */
    CHECK(report.fetch_ns < report.fill_ns);
    close_world();
}

/* Rank 1 takes 20 ms for each, the file less. */
static void a_slow_peer_is_not_asked(void)
{
    struct mp_rank_report report;

    open_world(NULL);
    w.held_ns = 20 * MS;
    move_some(6);
    mp_rank_report(w.rank, &report);
    fprintf(stderr, "slow peer: %u asked, %.0f us, from the file %.0f us\n", w.asked,
            report.fetch_ns / 1e3, report.fill_ns / 1e3);
    CHECK(w.asked > 0 && w.asked < 6 * KEPT / 3);
    CHECK(report.fill_ns < report.fetch_ns);
    close_world();
}

/* Bytes of another expert are not taken for it, nor those that nobody asked for. */
static void what_was_not_asked_for_is_not_taken(void)
{
    struct mp_message_head never = { .id = 1000, .layer = 0, .groups = 30 };

    open_world(slow_link_clock());
    say_bytes(1, &never);
    turn(MS);
    CHECK(!has(30));
    CHECK_EQ(w.rank->report.late, 1);
    w.lies = true;
    move_some(2);
    CHECK(w.asked > 0);
    CHECK_EQ(w.rank->report.fetched, 0);
    close_world();
}

/* A call for an expert that rank 2 has is answered by its bytes, else refused. */
static void who_asks_gets_bytes(void)
{
    struct said asked = { .head = { .id = 5, .groups = 3 } };
    static struct said said;

    open_world(NULL);
    say(0, &asked, MP_MESSAGE_FETCH, 0);
    turn(MS);
    CHECK(hear(0, MP_MESSAGE_BYTES, &said));
    CHECK_EQ(said.head.id, 5);
    CHECK(memcmp(said.body + sizeof(uint64_t), w.file[3], w.bytes) == 0);
    asked.head.groups = 31;
    say(0, &asked, MP_MESSAGE_FETCH, 0);
    turn(MS);
    CHECK(hear(0, MP_MESSAGE_REFUSE, &said));
    CHECK_EQ(w.rank->report.lent, 1);
    close_world();
}

/* A layer is about to begin that needs expert 40, which rank 1 has. True: it was there then. */
static bool fetched_for_a_layer(double read_ns)
{
    const uint32_t expert = 40 % EXPERTS, tokens = 1;
    const uint8_t resident = 0;
    const struct mp_assign_facts facts = { .layer = 40 / EXPERTS,
                                           .count = 1,
                                           .experts = &expert,
                                           .tokens = &tokens,
                                           .resident = &resident };

    w.rank->where[expert] = MP_WHERE_HERE;
    w.rank->own_reads = 1;
    w.rank->reads.first_ns = read_ns;
    CHECK_EQ(mp_rank_fetch_missing(w.rank, &facts), MP_OK);
    CHECK_EQ(w.rank->own_reads, !has(40));
    return has(40);
}

static void a_layer_waits_for_what_comes_faster(void)
{
    struct mp_message_head asked = { .layer = 40 / EXPERTS, .groups = 40 % EXPERTS };
    uint64_t start;

    open_world(NULL);
    w.rank->fetch_ns = 1e6;
    CHECK(!fetched_for_a_layer(0)); /* a read is measured first */
    CHECK(!fetched_for_a_layer(9e5));
    turn(MS);
    CHECK_EQ(w.asked, 0);
    asked.id = w.rank->next_call + 1;
    say_bytes(1, &asked); /* the answer is on its way */
    CHECK(fetched_for_a_layer(1e7));
    CHECK_EQ(w.rank->report.fetched, 1);
    turn(MS);
    CHECK_EQ(w.asked, 1);
    close_world();

    open_world(NULL);
    start = now_ns();
    CHECK(!fetched_for_a_layer(1e7)); /* nobody answers: from the file */
    CHECK(now_ns() - start >= 500 * MS && now_ns() - start < 5000 * MS);
    CHECK(w.rank->fetch_ns >= 500e6);
    CHECK_EQ(w.rank->no_fetch[40], 1);
    close_world();

    open_world(NULL);
    loopback_kill(w.net, 1);
    CHECK(!fetched_for_a_layer(1e7));
    close_world();
}

int main(void)
{
    RUN(a_slow_file_is_not_read);
    RUN(a_slow_peer_is_not_asked);
    RUN(what_was_not_asked_for_is_not_taken);
    RUN(who_asks_gets_bytes);
    RUN(a_layer_waits_for_what_comes_faster);
    return 0;
}
