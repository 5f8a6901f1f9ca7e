/*
 * Nobody reads what it does not keep: what becomes of experts when a rank dies, is silent or is too
 * busy. Those that only it kept are placed anew and read from the model's file, whatever the
 * placement; calls go to the ranks that keep the experts. Logits are those of one machine.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "engine/cluster/rank_int.h"
#include "tests/model/cluster/team.h"
#include "tests/support/test.h"
#include "vmm/base/clock.h"
#include "vmm/base/compiler.h"

#define MS UINT64_C(1000000)
#define LONG_NS (60000 * MS)

static uint64_t now_ns(void)
{
    return mp_clock_now_ns(mp_clock_monotonic());
}

static struct team_options tiny(uint32_t ranks, const char *place)
{
    return (struct team_options){
        .model = "models/tiny-moe",
        .expect = "tests/data/models/tiny-moe-expect",
        .batch = "b4",
        .ranks = ranks,
        .steps = 6,
        .place = place,
        .no_reads = true,
    };
}

/* ---- experts that only the dead rank kept */

#define RANKS 4u

static uint32_t victim;
static atomic_uint waiting; /* ranks that have done the steps before the death */
static atomic_bool lonely;  /* the victim alone keeps some expert */

static void idle_a_moment(struct mp_rank *rank)
{
    CHECK_EQ(mp_rank_idle(rank, now_ns() + MS), MP_OK);
}

static bool keeps_alone(const struct mp_rank *rank)
{
    bool any = false;

    for (uint32_t id = 0; id < rank->ids; id++)
        any |= mp_rank_keeps(rank, rank->self, id) && rank->now.copies[id] == 1;
    return any;
}

/* One dies while the others have nothing to do, and they go on when what was lost is back. */
static void kill_between_steps(struct loopback *net, uint32_t number, struct mp_rank *rank,
                               uint32_t step)
{
    const uint64_t end = now_ns() + LONG_NS;

    if (step != 3)
        return;
    if (number == victim)
        atomic_store(&lonely, keeps_alone(rank));
    atomic_fetch_add(&waiting, 1);
    while (atomic_load(&waiting) < RANKS && now_ns() < end)
        idle_a_moment(rank);
    if (number == victim) {
        loopback_kill(net, number);
        return;
    }
    while ((rank->report.lost == 0 || rank->report.migrations < atomic_load(&lonely)) &&
           now_ns() < end)
        idle_a_moment(rank);
}

static void what_only_a_dead_rank_kept_is_placed_anew(void)
{
    const struct mp_place_ops *place;
    struct team_rank ranks[TEAM_MAX];
    uint32_t moved = 0;

    for (size_t i = 0; (place = mp_place_builtin(i)) != NULL; i++) {
        struct team_options options = tiny(RANKS, place->name);

        if (!place->calls)
            continue;
        victim = i % 2 ? 2 : 0;
        atomic_store(&waiting, 0);
        options.room = 1.6;
        options.on_step = kill_between_steps;
        fprintf(stderr, "  %s, without rank %u\n", place->name, victim);
        team_run(&options, ranks);
        for (uint32_t r = 0; r < RANKS; r++) {
            CHECK(ranks[r].same);
            if (r == victim)
                continue;
            CHECK_EQ(ranks[r].status, MP_OK);
            CHECK_EQ(ranks[r].rows, 4 * 7);
            CHECK_EQ(ranks[r].report.lost, 1);
            CHECK_EQ(ranks[r].report.migrations, atomic_load(&lonely));
        }
        moved += atomic_load(&lonely);
    }
    CHECK(moved > 4);
}

/* ---- calls that another rank takes */

static bool halved;        /* rank 1 keeps all, 2 and 3 one half each, and 0 nothing */
static atomic_uint placed; /* ranks that know it */
static atomic_bool joined; /* rank 0 has */
static atomic_bool stuck;  /* rank 1 answers nothing from here on */
static atomic_bool first_is_done;

/* The calls of each layer go to ranks 1 and 2, as if both were as slow, or all to rank 1. */
static void share_calls(struct mp_rank *rank)
{
    for (uint32_t p = 1; p < rank->ranks; p++) {
        rank->peer[p].fixed_ns = halved && p > 1 ? 1e12 : 1;
        rank->peer[p].row_ns = 1e6;
    }
}

static void place_halves(struct mp_rank *rank)
{
    for (uint32_t p = 0; p < rank->ranks; p++) {
        for (uint32_t id = 0; id < rank->ids; id++)
            rank->now.device[p * rank->ids + id] = p == 1 || (p > 1 && id % 2 == p - 2);
    }
    mp_rank_keep(rank);
    atomic_fetch_add(&placed, 1);
}

/* Rank 0 begins when rank 1 is as the test wants it. True: this is rank 1, to be made so. */
static bool is_to_be_stuck(uint32_t number, struct mp_rank *rank, uint32_t step)
{
    if (step == 0 && halved)
        place_halves(rank);
    if (number == 0 && step == 0) {
        atomic_store(&joined, true);
        while (!atomic_load(&stuck))
            idle_a_moment(rank);
        share_calls(rank);
    }
    if (number == 0)
        atomic_store(&first_is_done, step > 0);
    while (number > 1 && halved && !atomic_load(&first_is_done))
        idle_a_moment(rank);
    while (number == 1 && (!atomic_load(&joined) || (halved && atomic_load(&placed) < rank->ranks)))
        idle_a_moment(rank);
    return number == 1 && step == 0;
}

static void nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = MS }, NULL);
}

static void wait_for_the_first(void)
{
    const uint64_t end = now_ns() + LONG_NS;

    while (!atomic_load(&first_is_done) && now_ns() < end)
        nap();
}

static void kill_with_a_call(struct loopback *net, uint32_t number, struct mp_rank *rank,
                             uint32_t step)
{
    if (!is_to_be_stuck(number, rank, step))
        return;
    atomic_store(&stuck, true);
    for (uint64_t end = now_ns() + LONG_NS;
         !loopback_holds(net, 1, MP_MESSAGE_CALL) && now_ns() < end;)
        nap();
    loopback_kill(net, 1);
}

static void cut_with_a_call(struct loopback *net, uint32_t number, struct mp_rank *rank,
                            uint32_t step)
{
    if (!is_to_be_stuck(number, rank, step))
        return;
    loopback_cut(net, 1, true);
    atomic_store(&stuck, true);
    wait_for_the_first();
    loopback_cut(net, 1, false);
}

#define FULL 200u /* messages; no other rank's queue gets so long */

static void fill_queue(struct loopback *net, uint32_t number, struct mp_rank *rank, uint32_t step)
{
    const struct mp_message_head head = { .magic = MP_MESSAGE_MAGIC,
                                          .kind = MP_MESSAGE_BEAT,
                                          .bytes = sizeof(head) };

    if (!is_to_be_stuck(number, rank, step))
        return;
    for (uint32_t i = 0; i < FULL; i++)
        loopback_inject(net, 2, 1, &head, sizeof(head));
    loopback_limit(net, FULL);
    atomic_store(&stuck, true);
    wait_for_the_first();
    loopback_limit(net, 0);
}

typedef void hook(struct loopback *net, uint32_t number, struct mp_rank *rank, uint32_t step);
static hook *const hooks[] = { kill_with_a_call, cut_with_a_call, fill_queue };

static void run_without_rank_1(const struct team_options *tiny_options, size_t how,
                               struct team_rank ranks[TEAM_MAX])
{
    struct team_options options = *tiny_options;

    atomic_store(&joined, false);
    atomic_store(&stuck, false);
    atomic_store(&first_is_done, false);
    atomic_store(&placed, 0);
    options.room = 3;
    options.deadline_ns = 3000 * MS;
    options.on_step = hooks[how];
    team_run(&options, ranks);
    for (uint32_t r = 0; r < options.ranks; r++) {
        CHECK(ranks[r].same);
        if (r == 1 && hooks[how] == kill_with_a_call)
            continue;
        CHECK_EQ(ranks[r].status, MP_OK);
        CHECK_EQ(ranks[r].rows, 4 * 7);
        CHECK_EQ(ranks[r].report.lost, hooks[how] == kill_with_a_call);
    }
    CHECK_EQ(ranks[0].report.migrations, 0);
}

/* Ranks 1 and 2 keep all experts, rank 0 few of them. */
static void another_rank_takes_a_call(void)
{
    struct team_rank ranks[TEAM_MAX];

    halved = false;
    for (size_t i = 0; i < MP_ARRAY_LEN(hooks); i++) {
        struct team_options options = tiny(3, "redundance");

        options.first_room = 0.1;
        run_without_rank_1(&options, i, ranks);
        CHECK(ranks[0].report.redone > 0 && ranks[2].report.served >= ranks[0].report.redone);
    }
}

/* Rank 1 has all experts of a call, and ranks 2 and 3 have them between them. */
static void two_ranks_take_a_call(void)
{
    struct team_rank ranks[TEAM_MAX];

    halved = true;
    for (size_t i = 0; i < MP_ARRAY_LEN(hooks); i++) {
        struct team_options options = tiny(4, "redundance");

        options.first_room = 0.1;
        run_without_rank_1(&options, i, ranks);
        CHECK(ranks[0].report.redone > 1);
        CHECK(ranks[2].report.served > 0 && ranks[3].report.served > 0);
    }
}

int main(void)
{
    RUN(what_only_a_dead_rank_kept_is_placed_anew);
    RUN(another_rank_takes_a_call);
    RUN(two_ranks_take_a_call);
    return 0;
}
