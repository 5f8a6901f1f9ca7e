/*
 * From one placement to the next, as rank 2 of three sees it. An expert leaves its memory only when
 * another rank has it, whatever it has to read meanwhile, also if that rank dies or gives up.
 */
#include "tests/model/cluster/move_world.h"

/* Expert 0 is to be with rank 1: rank 2 says that it leaves, and is told that it is there. */
static void what_leaves_waits_until_another_rank_has_it(void)
{
    static struct said said;

    open_world(NULL);
    say_place(1, 1);
    turn(MS);
    CHECK(hear(0, MP_MESSAGE_LEAVE, &said));
    CHECK_EQ(said.head.epoch, 2);
    CHECK_EQ(said.head.groups, 1);
    CHECK_EQ(*(uint32_t *)said.body, 0);
    press();
    CHECK(has(0));
    say_have(1, 1, 0, right(0)); /* in another move */
    say_have(1, 2, 0, right(0) + 1);
    say_have(0, 2, 7, right(7)); /* another expert */
    press();
    CHECK(has(0));
    wait_until_there(KEPT); /* there is room for what comes, beside it */
    say_have(1, 2, 0, right(0));
    CHECK(!hear(0, MP_MESSAGE_LEFT, &said));
    press();
    CHECK(!has(0));
    CHECK(hear(0, MP_MESSAGE_LEFT, &said));
    CHECK(said.head.epoch == 2 && said.head.groups == 1 && *(uint32_t *)said.body == 0);
    press();
    CHECK(!hear(0, MP_MESSAGE_LEFT, &said));
    for (uint32_t id = 1; id <= KEPT; id++)
        wait_until_there(id);
    say_bare(0, MP_MESSAGE_SWITCH, 1);
    turn(MS);
    CHECK_EQ(w.rank->report.epoch, 1);
    CHECK_EQ(w.rank->report.migrations, 1);
    close_world();
}

/* After the switch, too: who has not heard that it is elsewhere keeps it. */
static void what_leaves_waits_beyond_the_switch(void)
{
    open_world(NULL);
    say_place(1, 1);
    wait_until_there(KEPT);
    say_bare(0, MP_MESSAGE_SWITCH, 1);
    turn(MS);
    CHECK_EQ(w.rank->report.migrations, 1);
    press();
    CHECK(has(0));
    say_have(1, 2, 0, right(0));
    press();
    CHECK(!has(0));
    close_world();
}

/* Rank 0 drops it, too: it has the lower number, so that it is to wait for rank 1. */
static void of_two_that_drop_it_the_lower_one_keeps_it(void)
{
    open_world(NULL);
    say_place(1, 1);
    turn(MS);
    say_have(0, 2, 0, right(0));
    press();
    CHECK(!has(0));
    close_world();
}

/* The rank that is to have it dies, its copy being under way. */
static void who_was_to_have_it_dies(void)
{
    open_world(NULL);
    say_place(1, 1);
    turn(MS);
    loopback_kill(w.net, 1);
    press();
    CHECK(has(0));
    CHECK(!w.rank->copying);
    CHECK_EQ(w.rank->keeps[0], MP_PLACED_KEEP);
    close_world();
}

/* It dies when it has it: the bytes come back from the file. */
static void who_has_it_dies(void)
{
    open_world(NULL);
    say_place(1, 1);
    turn(MS);
    say_have(1, 2, 0, right(0));
    press();
    CHECK(!has(0));
    loopback_kill(w.net, 1);
    wait_until_there(0);
    CHECK_EQ(w.rank->report.epoch, 0);
    close_world();
}

/* One dies that was to keep nothing: the placement comes all the same. Not if it was the one that
 * decided, as nobody would say when to switch. */
static void who_keeps_nothing_dies(void)
{
    static struct said said;

    for (uint32_t dead = 0; dead < 2; dead++) {
        const uint32_t from = 1 - dead;
        uint64_t until = now_ns() + 10000 * MS;

        open_world(NULL);
        memset(&said, 0, sizeof(said));
        for (uint32_t id = 0; id < IDS; id++)
            ((uint16_t *)said.body)[(id > 0 && id <= KEPT ? SELF : from) * IDS + id] = 1;
        said.head.epoch = 1;
        say(from, &said, MP_MESSAGE_PLACE, 3 * IDS * sizeof(uint16_t));
        turn(MS);
        loopback_kill(w.net, dead);
        turn(MS);
        CHECK(w.rank->report.lost == 1 && w.rank->copying);
        say_have(from, 2, 0, right(0));
        while (!hear(from, MP_MESSAGE_READY, &said) && now_ns() < until)
            CHECK_EQ(mp_rank_idle(w.rank, now_ns() + MS / 4), MP_OK);
        CHECK_EQ(said.head.epoch, 1);
        say_bare(from, MP_MESSAGE_SWITCH, 1);
        turn(MS);
        CHECK_EQ(w.rank->report.epoch, 1);
        close_world();
    }
    open_world(NULL);
    say_place(1, 1);
    turn(MS);
    loopback_kill(w.net, 0);
    turn(MS);
    CHECK(w.rank->report.lost == 1 && !w.rank->copying);
    close_world();
}

/* As the scheduler, rank 1: rank 0 dies, which may have used the next number and alone kept some
 * experts. There is a placement with these at once, without any epoch; and another one if that
 * cannot come. */
static void who_alone_kept_some_dies(void)
{
    static struct said said;
    const uint64_t until = now_ns() + 10000 * MS;

    open_world_of(1, NULL);
    w.rank->config.deadline_ns = 10 * MS;
    w.rank->now.device[0 * IDS + 5] = 1;
    w.rank->now.device[2 * IDS + 5] = 0;
    loopback_kill(w.net, 0);
    for (uint32_t i = 0; i < 2; i++) {
        while (!hear(2, MP_MESSAGE_PLACE, &said) && now_ns() < until)
            CHECK_EQ(mp_rank_idle(w.rank, now_ns() + MS / 4), MP_OK);
        CHECK_EQ(said.head.epoch, 2 + 2 * i);
        for (uint32_t id = 0; id < IDS; id++) {
            const uint16_t *device = (const uint16_t *)said.body;

            CHECK(device[id] == 0 && device[IDS + id] + device[2 * IDS + id] > 0);
        }
    }
    close_world();
}

/* Its copy fails: it never says that it has it, and the scheduler gives up. */
static void the_copy_fails(void)
{
    static struct said said;

    open_world(NULL);
    say_place(1, 1);
    wait_until_there(KEPT);
    say_bare(0, MP_MESSAGE_GIVEUP, 1);
    turn(MS);
    CHECK(hear(0, MP_MESSAGE_LEAVE, &said)); /* now it is the other one that leaves */
    CHECK_EQ(said.head.epoch, 3);
    CHECK_EQ(*(uint32_t *)said.body, KEPT);
    press();
    CHECK(has(0) && has(KEPT));
    say_have(1, 3, KEPT, right(KEPT));
    press();
    CHECK(has(0) && !has(KEPT));
    mp_rank_greet(w.rank, 0);
    CHECK(hear(0, MP_MESSAGE_HELLO, &said));
    CHECK_EQ(said.head.epoch, 1); /* who comes back goes on with the next one */
    say_place(1, 1);              /* this number is used up */
    turn(MS);
    CHECK(!w.rank->copying);
    say_place(2, 1);
    turn(MS);
    CHECK(w.rank->copying);
    close_world();
}

/* Rank 1 drops what rank 2 gets: it hears of it when it is there, and each time it asks. */
static void who_waits_hears_of_copies(void)
{
    static struct said said;

    open_world(NULL);
    say_leaving(1, 2, KEPT); /* before the placement comes */
    say_place(1, 1);
    wait_until_there(KEPT);
    turn(MS);
    CHECK(hear(0, MP_MESSAGE_HAVE, &said));
    CHECK_EQ(said.head.epoch, 2);
    CHECK_EQ(said.head.groups, 1);
    CHECK_EQ(((struct mp_message_copy *)said.body)->id, KEPT);
    CHECK_EQ(((struct mp_message_copy *)said.body)->hash, right(KEPT));
    CHECK_EQ(w.rank->keeps[KEPT], MP_PLACED_SOLE);
    press();
    CHECK(has(KEPT));
    CHECK(!hear(0, MP_MESSAGE_HAVE, &said));
    say_leaving(0, 2, KEPT);
    turn(MS);
    CHECK(hear(0, MP_MESSAGE_HAVE, &said));
    say_leaving(0, 1, KEPT); /* of an earlier move */
    turn(MS);
    CHECK(!hear(0, MP_MESSAGE_HAVE, &said));
    close_world();
}

/* What others were told to be here is kept from demands until they have dropped it, not longer;
 * also beyond the switch. */
static void what_is_relied_on_stays(void)
{
    open_world(NULL);
    say_leaving(0, 2, KEPT);
    say_leaving(1, 2, KEPT);
    say_place(1, 1);
    wait_until_there(KEPT);
    turn(MS);
    CHECK_EQ(w.rank->keeps[KEPT], MP_PLACED_SOLE);
    say_id(0, MP_MESSAGE_LEFT, 2, KEPT);
    say_id(1, MP_MESSAGE_LEFT, 1, KEPT);     /* in another move */
    say_id(1, MP_MESSAGE_LEFT, 2, KEPT - 1); /* another expert */
    say_bare(0, MP_MESSAGE_SWITCH, 1);
    turn(MS);
    CHECK_EQ(w.rank->report.epoch, 1);
    CHECK_EQ(w.rank->keeps[KEPT], MP_PLACED_SOLE);
    say_id(1, MP_MESSAGE_LEFT, 2, KEPT);
    turn(MS);
    CHECK_EQ(w.rank->keeps[KEPT], MP_PLACED_KEEP);
    say_leaving(1, 2, KEPT); /* it went back, got it again, and is now to drop it after all */
    turn(MS);
    CHECK_EQ(w.rank->keeps[KEPT], MP_PLACED_SOLE);
    close_world();
}

static void who_was_yet_to_drop_it_dies(void)
{
    open_world(NULL);
    say_leaving(1, 2, KEPT);
    say_place(1, 1);
    wait_until_there(KEPT);
    say_bare(0, MP_MESSAGE_SWITCH, 1);
    turn(MS);
    CHECK_EQ(w.rank->keeps[KEPT], MP_PLACED_SOLE);
    loopback_kill(w.net, 1);
    turn(MS);
    CHECK_EQ(w.rank->report.lost, 1);
    CHECK_EQ(w.rank->keeps[KEPT], MP_PLACED_KEEP);
    close_world();
}

/* Who keeps its copies for another one hears of it also if its queue was full. */
static void what_has_left_is_told_again(void)
{
    static struct said said;

    open_world(NULL);
    say_place(1, 1);
    wait_until_there(KEPT);
    say_have(1, 2, 0, right(0));
    loopback_limit(w.net, 1); /* the answer to the first call fills it */
    press();
    CHECK(!has(0));
    CHECK(!hear(0, MP_MESSAGE_LEFT, &said));
    turn(MS);
    CHECK(hear(0, MP_MESSAGE_LEFT, &said));
    turn(MS);
    CHECK(!hear(0, MP_MESSAGE_LEFT, &said));
    close_world();
}

/* The link was cut when the placement went round, and all others have switched: rank 2 goes on with
 * the one it had and answers for that, until it gets the new one with the word to use it. */
static void a_placement_that_did_not_come(void)
{
    open_world(NULL);
    say_bare(0, MP_MESSAGE_SWITCH, 1);
    turn(MS);
    CHECK_EQ(w.rank->report.epoch, 0);
    CHECK(w.rank->keeps[0] == MP_PLACED_KEEP && w.rank->keeps[KEPT] == MP_PLACED_NOT);
    press();
    CHECK(has(0));
    say_place(1, 1);
    say_bare(0, MP_MESSAGE_SWITCH, 1);
    turn(MS);
    CHECK_EQ(w.rank->report.epoch, 1);
    CHECK_EQ(w.rank->keeps[0], MP_PLACED_SOLE); /* nobody has said that it is elsewhere */
    press();
    CHECK(has(0));
    wait_until_there(KEPT);
    say_have(1, 2, 0, right(0));
    press();
    CHECK(!has(0));
    close_world();
}

/* As the scheduler, rank 0: rank 2 is silent, and the others switch without it. When it is heard of
 * again, with the old epoch, it gets the placement in use; who has it does not. */
static void who_missed_a_placement_gets_it(void)
{
    static struct said said;
    uint64_t until = now_ns() + 10000 * MS;

    open_world_of(0, NULL);
    w.rank->config.deadline_ns = 20 * MS;
    w.rank->config.epoch_ns = MS;
    w.rank->config.always_adopts = true;
    while (w.rank->peer[2].state == MP_PEER_LIVE && now_ns() < until) {
        mp_rank_check_silence(w.rank, 2, 0);
        CHECK_EQ(mp_rank_idle(w.rank, now_ns() + MS / 4), MP_OK);
    }
    while (!hear(1, MP_MESSAGE_PLACE, &said) && now_ns() < until)
        CHECK_EQ(mp_rank_idle(w.rank, now_ns() + MS / 4), MP_OK);
    w.rank->config.epoch_ns = 0; /* and none after this one */
    while (w.rank->report.migrations == 0 && now_ns() < until) {
        say_bare(1, MP_MESSAGE_READY, w.rank->next_epoch);
        turn(MS);
    }
    CHECK_EQ(w.rank->report.migrations, 1);
    (void)hear(2, MP_MESSAGE_KIND_COUNT, &said); /* what was lost on its way */
    say_bare(2, MP_MESSAGE_BEAT, 1);
    turn(MS);
    CHECK(!hear(2, MP_MESSAGE_PLACE, &said));
    say_bare(2, MP_MESSAGE_BEAT, 0);
    turn(MS);
    CHECK(hear(2, MP_MESSAGE_SWITCH, &said));
    CHECK_EQ(said.head.epoch, 1);
    say_bare(2, MP_MESSAGE_BEAT, 0);
    turn(MS);
    CHECK(hear(2, MP_MESSAGE_PLACE, &said));
    CHECK_EQ(said.head.epoch, 1);
    CHECK(!memcmp(said.body, w.rank->now.device, 3 * IDS * sizeof(uint16_t)));
    close_world();
}

/* What rank 2 answers if rank 0 asks it for an expert. */
static enum mp_message_kind ask_for(uint32_t id)
{
    struct said said = { .head = { .id = 1, .layer = id / EXPERTS } };
    struct mp_message_group *group = (void *)said.body;
    static struct said heard;

    said.head.groups = said.head.tokens = said.head.rows = 1;
    *group = (struct mp_message_group){ id % EXPERTS, 1 };
    say(0, &said, MP_MESSAGE_CALL,
        mp_message_call_bytes(&w.rank->limits, 1, 1, 1) - sizeof(said.head));
    CHECK_EQ(mp_rank_idle(w.rank, now_ns()), MP_OK);
    return hear(0, MP_MESSAGE_REPLY, &heard) ? MP_MESSAGE_REPLY : MP_MESSAGE_REFUSE;
}

/* Without `reads` it computes what it keeps, and what has come for the next placement, as rank 0
 * may have heard; nothing else. */
static void what_has_come_is_computed_before_the_switch(void)
{
    open_world(NULL);
    w.rank->config.reads = false;
    CHECK_EQ(ask_for(1), MP_MESSAGE_REPLY);
    CHECK_EQ(ask_for(KEPT), MP_MESSAGE_REFUSE);
    say_place(1, 1);
    wait_until_there(KEPT);
    CHECK_EQ(w.rank->report.epoch, 0);
    CHECK_EQ(ask_for(KEPT), MP_MESSAGE_REPLY);
    CHECK_EQ(ask_for(KEPT + 9), MP_MESSAGE_REFUSE);
    close_world();
}

/* Without `reads`: rank 1 is asked for expert KEPT and refuses, as it has dropped it for rank 2,
 * which takes the switch while it waits. */
static void a_switch_makes_a_call_local(void)
{
    const struct mp_peers *peers;
    const uint32_t tokens[] = { 0, 1 }, of[] = { 1, 0 };
    const struct mp_expert_work work = { .expert = KEPT, .rows = { tokens, of, 2 } };
    const struct mp_served served = { .expert = KEPT, .rows = { tokens, of, 2 } };
    struct said said = { .head = { 0 } };
    float *input, *results, *expected;
    size_t rows, hidden;

    open_world(NULL);
    hidden = w.h.model.hidden;
    rows = 2 * w.h.model.experts_per_token * hidden;
    input = calloc(2 * hidden, sizeof(float));
    results = calloc(rows, sizeof(float));
    expected = calloc(rows, sizeof(float));
    for (size_t i = 0; i < 2 * hidden; i++)
        input[i] = (float)i / 100 - 1;
    say_place(1, 1);
    wait_until_there(KEPT);
    w.rank->config.reads = false;
    peers = mp_rank_peers(w.rank);
    w.rank->where[KEPT] = 1;
    said.head.id = w.rank->next_call + 1;
    say(1, &said, MP_MESSAGE_REFUSE, 0);
    say_bare(0, MP_MESSAGE_SWITCH, 1);
    CHECK_EQ(peers->ask(w.rank, 0, input, &work, 1), MP_OK);
    w.rank->peer[0].about.reads = w.rank->peer[1].about.reads = 0;
    CHECK_EQ(peers->collect(w.rank, results), MP_OK);
    CHECK_EQ(w.rank->report.epoch, 1);
    CHECK_EQ(w.rank->report.redone, 1);
    CHECK_EQ(mp_engine_serve(w.h.engine, 0, &served, 1, input, expected), MP_OK);
    CHECK(!memcmp(results, expected, rows * sizeof(float)));
    free(input);
    free(results);
    free(expected);
    close_world();
}

/* ---- when the scheduler decides */

#define HOUR_NS (UINT64_C(3600000) * MS)

/* As rank 0, at the end of an epoch of an hour. */
static void open_at_the_end_of_an_epoch(void)
{
    open_world_of(0, NULL);
    w.rank->config.always_adopts = true;
    w.rank->config.epoch_ns = HOUR_NS;
    w.rank->epoch_ns = now_ns() - HOUR_NS;
}

static void say_stats(uint32_t from)
{
    static struct said said;

    memset(&said, 0, sizeof(said));
    say(from, &said, MP_MESSAGE_STATS,
        sizeof(struct mp_message_stats) + 2 * (IDS + 3) * sizeof(double));
}

static bool has_decided(void)
{
    static struct said said;

    turn(MS);
    return hear(2, MP_MESSAGE_PLACE, &said);
}

static void a_decision_waits_for_what_all_have_used(void)
{
    open_at_the_end_of_an_epoch();
    CHECK(!has_decided());
    say_stats(1);
    CHECK(!has_decided());
    say_stats(2);
    CHECK(has_decided());
    CHECK(!has_decided());
    close_world();
}

/* It has said so before the epoch's end here, but once for each decision. */
static void what_came_before_counts_once(void)
{
    open_at_the_end_of_an_epoch();
    w.rank->epoch_ns = now_ns();
    say_stats(1);
    say_stats(2);
    CHECK(!has_decided());
    w.rank->epoch_ns -= HOUR_NS;
    CHECK(has_decided());
    w.rank->proposed = w.rank->copying = false;
    w.rank->epoch_ns -= HOUR_NS;
    CHECK(!has_decided());
    close_world();
}

static void who_has_no_more_to_run_is_not_waited_for(void)
{
    open_at_the_end_of_an_epoch();
    say_stats(2);
    CHECK(!has_decided());
    say_bare(1, MP_MESSAGE_DONE, 0);
    CHECK(has_decided());
    close_world();
}

static void who_is_silent_is_waited_for_a_while(void)
{
    open_at_the_end_of_an_epoch();
    CHECK(!has_decided());
    w.rank->epoch_ns -= HOUR_NS / 5;
    CHECK(!has_decided());
    w.rank->epoch_ns -= HOUR_NS / 15;
    CHECK(has_decided());
    close_world();
}

int main(void)
{
    RUN(what_leaves_waits_until_another_rank_has_it);
    RUN(what_leaves_waits_beyond_the_switch);
    RUN(of_two_that_drop_it_the_lower_one_keeps_it);
    RUN(who_was_to_have_it_dies);
    RUN(who_has_it_dies);
    RUN(who_keeps_nothing_dies);
    RUN(who_alone_kept_some_dies);
    RUN(the_copy_fails);
    RUN(who_waits_hears_of_copies);
    RUN(what_is_relied_on_stays);
    RUN(who_was_yet_to_drop_it_dies);
    RUN(what_has_left_is_told_again);
    RUN(a_placement_that_did_not_come);
    RUN(who_missed_a_placement_gets_it);
    RUN(what_has_come_is_computed_before_the_switch);
    RUN(a_switch_makes_a_call_local);
    RUN(a_decision_waits_for_what_all_have_used);
    RUN(what_came_before_counts_once);
    RUN(who_has_no_more_to_run_is_not_waited_for);
    RUN(who_is_silent_is_waited_for_a_while);
    return 0;
}
