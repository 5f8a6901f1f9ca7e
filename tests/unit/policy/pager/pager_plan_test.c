/*
 * Moves that no need asked for: first residents, swaps after a layer, revised shares; and what goes
 * with them: waiting demands, prefetches that end at the router's result, scores for evict.
 */
#include <string.h>

#include "policy/builtins.h"
#include "policy/pager/pager.h"
#include "tests/support/test.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/unit/policy/pager/planned.h"

/* ---- tests */

static void first_residents_are_there_before_the_first_layer(void)
{
    static const uint32_t wanted[] = { 1, 6, 6, 9, 999, 12 };
    struct world w;

    reset_plan();
    memcpy(plan_units, wanted, sizeof(wanted));
    plan_count = 6;
    open_planned(&w, 2, 8, true);
    world_wait_until_idle(&w);
    CHECK_EQ(residents(&w, 0), 1u << 1 | 1u << 6);
    CHECK_EQ(residents(&w, 1), 1u << 1 | 1u << 4);
    CHECK_EQ(w.counters.invalid_decisions, 2); /* one named twice, one that does not exist */
    world_run(&w, 0, (const uint32_t[]){ 1, 2 }, 2);
    CHECK_EQ(w.counters.hits, 1);
    CHECK_EQ(w.counters.misses, 1);
    CHECK_EQ(w.counters.prefetch_issued, 4);
    CHECK_EQ(w.counters.prefetch_used, 1);
    CHECK_EQ(seen_needed, 2);
    CHECK_EQ(seen_hits, 1);
    world_close(&w);
    CHECK_EQ(w.counters.prefetch_unused_bytes, 3 * UB);
}

static void first_residents_respect_slots_and_shares(void)
{
    struct world w;

    reset_plan();
    for (plan_count = 0; plan_count < 8; plan_count++)
        plan_units[plan_count] = plan_count;
    open_planned(&w, 2, 8, false); /* four each */
    CHECK_EQ(residents(&w, 0), 0x0f);
    CHECK_EQ(w.counters.invalid_decisions, 0);
    CHECK(mp_pager_check(w.pager));
    world_run(&w, 1, ids, 8); /* the other layer works while reads of the first may be under way */
    world_close(&w);

    plan_count = 9; /* more than there are slots */
    open_planned(&w, 2, 8, true);
    CHECK_EQ(residents(&w, 0), 0);
    CHECK_EQ(w.counters.invalid_decisions, 1);
    world_close(&w);
}

static void swaps_are_carried_out_after_the_layer(void)
{
    struct world w;

    reset_plan();
    open_planned(&w, 2, 8, true);
    plan_swaps[0] = (struct mp_swap){ .in = 5, .out = 0 };
    plan_swaps[1] = (struct mp_swap){ .in = 6, .out = MP_EXPERT_NONE };
    plan_swap_count = 2;
    world_run(&w, 0, (const uint32_t[]){ 0, 1 }, 2);
    CHECK_EQ(residents(&w, 0), 1u << 1 | 1u << 5 | 1u << 6);
    CHECK_EQ(w.counters.invalid_decisions, 0);
    world_wait_until_idle(&w);
    plan_swap_count = 0;
    world_run(&w, 0, (const uint32_t[]){ 5, 6 }, 2);
    CHECK_EQ(w.counters.hits, 2);
    world_close(&w);
}

/* A swap has reasons of its own: that a guess about it was wrong is none to give it up first. */
/* While reads stand still two are on their way; what else is to leave stays and is hit. */
static void residents_stay_until_their_successors_are_read(void)
{
    struct world_gate gate;
    struct world w;

    reset_plan();
    world_gate_init(&gate);
    plan_clock = &gate.super;
    open_planned(&w, 1, 4, true);
    plan_clock = NULL;
    world_run(&w, 0, ids, 4);
    world_wait_until_idle(&w);
    for (plan_swap_count = 0; plan_swap_count < 4; plan_swap_count++)
        plan_swaps[plan_swap_count] =
            (struct mp_swap){ .in = 4 + plan_swap_count, .out = plan_swap_count };
    world_gate_set(&gate, true);
    world_run(&w, 0, ids, 1);
    CHECK_EQ(residents(&w, 0), 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5);
    plan_swap_count = 0;
    world_run(&w, 0, ids + 2, 2);
    CHECK_EQ(w.counters.hits, 3);
    CHECK_EQ(residents(&w, 0), 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5);
    world_gate_set(&gate, false);
    for (int i = 0; i < 2; i++) {
        world_wait_until_idle(&w);
        world_run(&w, 0, ids + 4, 1);
    }
    CHECK_EQ(residents(&w, 0), 0xf0);
    CHECK_EQ(w.counters.invalid_decisions, 0);
    world_close(&w);
}

/* Three swaps, of which two are on their way; then one more, and the layer runs again. */
static void plan_beside_one_that_waits(struct world *w, const struct mp_swap *newer)
{
    struct world_gate gate;

    reset_plan();
    world_gate_init(&gate);
    plan_clock = &gate.super;
    open_planned(w, 1, 4, true);
    plan_clock = NULL;
    world_run(w, 0, ids, 4);
    world_wait_until_idle(w);
    for (plan_swap_count = 0; plan_swap_count < 3; plan_swap_count++)
        plan_swaps[plan_swap_count] =
            (struct mp_swap){ .in = 4 + plan_swap_count, .out = plan_swap_count };
    world_gate_set(&gate, true);
    world_run(w, 0, ids, 1);
    CHECK_EQ(w->counters.swaps_planned, 3);
    CHECK_EQ(w->counters.swaps_started, 2);
    CHECK_EQ(w->counters.swaps_late, 0);
    plan_swaps[0] = *newer;
    plan_swap_count = 1;
    world_run(w, 0, ids + 2, 1);
    CHECK_EQ(w->counters.swaps_late, 1);
    plan_swap_count = 0;
    world_gate_set(&gate, false);
    for (int i = 0; i < 3; i++) {
        world_wait_until_idle(w);
        world_run(w, 0, ids + 4, 1);
    }
    CHECK_EQ(w->counters.swaps_planned, 4);
    CHECK_EQ(w->counters.swaps_planned, w->counters.swaps_started + w->counters.swaps_superseded);
    CHECK_EQ(w->counters.invalid_decisions, 0);
}

/* A plan stays until a newer one names one of its experts, however long the disk is busy. */
static void a_swap_waits_until_one_of_its_experts_is_decided_anew(void)
{
    struct world w;

    plan_beside_one_that_waits(&w, &(struct mp_swap){ .in = 7, .out = 3 });
    CHECK_EQ(residents(&w, 0), 0xf0);
    CHECK_EQ(w.counters.swaps_superseded, 0);
    CHECK_EQ(w.counters.swaps_late, 2); /* the newer one waits too */
    world_close(&w);

    plan_beside_one_that_waits(&w, &(struct mp_swap){ .in = 7, .out = 2 });
    CHECK_EQ(residents(&w, 0), 1u << 3 | 1u << 4 | 1u << 5 | 1u << 7);
    CHECK_EQ(w.counters.swaps_superseded, 1);
    world_close(&w);

    plan_beside_one_that_waits(&w, &(struct mp_swap){ .in = 6, .out = 3 });
    CHECK_EQ(residents(&w, 0), 1u << 2 | 1u << 4 | 1u << 5 | 1u << 6);
    CHECK_EQ(w.counters.swaps_superseded, 1);
    world_close(&w);
}

/* The disk stands still on guesses for another layer, as many as may be read: a swap starts. */
static void guesses_do_not_take_the_turn_of_swaps(void)
{
    struct world_gate gate;
    struct world w;

    reset_plan();
    world_gate_init(&gate);
    plan_clock = &gate.super;
    open_planned(&w, 2, 16, true);
    plan_clock = NULL;
    world_run(&w, 0, ids, 2);
    world_gate_set(&gate, true);
    mp_pager_prefetch(w.pager, 1, ids, 3);
    CHECK_EQ(w.counters.guesses_planned, 3);
    CHECK_EQ(w.counters.guesses_started, 2);
    plan_swaps[0] = (struct mp_swap){ .in = 5, .out = 0 };
    plan_swap_count = 1;
    world_run(&w, 0, ids + 1, 1);
    CHECK_EQ(residents(&w, 0), 1u << 1 | 1u << 5);
    CHECK_EQ(w.counters.swaps_started, 1);
    plan_swap_count = 0;
    CHECK_EQ(world_begin(&w, 1, ids, 3), MP_OK); /* two are being read, one waits */
    CHECK_EQ(w.counters.guesses_late, 3);
    CHECK_EQ(w.counters.guesses_superseded, 1);
    world_gate_set(&gate, false);
    CHECK_EQ(world_finish(&w, 1, ids, 3), MP_OK);
    CHECK_EQ(w.counters.swaps_late, 0);
    world_close(&w);
}

static void what_was_swapped_in_is_not_judged_by_guesses(void)
{
    struct world w;

    reset_plan();
    open_planned(&w, 2, 8, true);
    plan_swaps[0] = (struct mp_swap){ .in = 5, .out = MP_EXPERT_NONE };
    plan_swap_count = 1;
    world_run(&w, 0, ids, 2);
    plan_swap_count = 0;
    world_wait_until_idle(&w);
    mp_pager_prefetch(w.pager, 0, (const uint32_t[]){ 5 }, 1); /* it is there, and kept */
    world_run(&w, 0, ids, 1);                                  /* which does not want it */
    world_run(&w, 1, ids, 6); /* five free slots, then lru's oldest: expert 1 of layer 0 */
    CHECK_EQ(residents(&w, 0), 1u << 0 | 1u << 5);
    world_close(&w);
}

static void bad_swaps_are_refused(void)
{
    static const struct mp_swap bad[] = {
        { .in = 1, .out = 0 },              /* in is resident */
        { .in = 3, .out = 2 },              /* out is not */
        { .in = 9, .out = 0 },              /* of another layer */
        { .in = 1000, .out = 0 },           /* no such unit */
        { .in = 3, .out = 1000 },           /* no such unit */
        { .in = MP_EXPERT_NONE, .out = 0 }, /* nothing */
    };
    struct world w;

    reset_plan();
    open_planned(&w, 2, 8, true);
    world_run(&w, 1, (const uint32_t[]){ 0, 1 }, 2);
    memcpy(plan_swaps, bad, sizeof(bad));
    plan_swap_count = 6;
    world_run(&w, 0, (const uint32_t[]){ 0, 1 }, 2);
    CHECK_EQ(w.counters.invalid_decisions, 6);
    CHECK_EQ(residents(&w, 0), 3);
    plan_swap_count = 9; /* more than a layer has */
    world_run(&w, 0, (const uint32_t[]){ 0, 1 }, 2);
    CHECK_EQ(w.counters.invalid_decisions, 7);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

/* A unit of another layer makes room where all layers share the slots, and only there. */
static void swaps_between_layers_need_a_common_tier(void)
{
    for (int shared = 0; shared < 2; shared++) {
        struct world w;

        reset_plan();
        open_planned(&w, 2, 8, shared);
        world_run(&w, 1, (const uint32_t[]){ 0, 1 }, 2);
        plan_swaps[0] = (struct mp_swap){ .in = 3, .out = 8 };
        plan_swap_count = 1;
        world_run(&w, 0, (const uint32_t[]){ 0, 1 }, 2);
        CHECK_EQ(w.counters.invalid_decisions, !shared);
        CHECK_EQ(residents(&w, 0), shared ? 0x0b : 0x03);
        CHECK_EQ(residents(&w, 1), shared ? 0x02 : 0x03);
        CHECK(mp_pager_check(w.pager));
        world_close(&w);
    }
}

/* Policies do not know that experts have sizes: a swap that leaves too little or too much room does
 * not take place, and is nobody's fault. */
static void swaps_between_sizes_do_not_take_place(void)
{
    struct world w;

    reset_plan();
    plan_sizes = 2; /* by turns */
    open_planned(&w, 1, 4, true);
    plan_sizes = 1;
    world_run(&w, 0, (const uint32_t[]){ 0, 1 }, 2);
    plan_swaps[0] = (struct mp_swap){ .in = 3, .out = 0 };
    plan_swaps[1] = (struct mp_swap){ .in = 5, .out = 1 };
    plan_swap_count = 2;
    world_run(&w, 0, (const uint32_t[]){ 0, 1 }, 2);
    CHECK_EQ(w.counters.invalid_decisions, 0);
    CHECK_EQ(residents(&w, 0), 1u << 0 | 1u << 5);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

int main(void)
{
    world_prepare();
    RUN(first_residents_are_there_before_the_first_layer);
    RUN(first_residents_respect_slots_and_shares);
    RUN(swaps_are_carried_out_after_the_layer);
    RUN(residents_stay_until_their_successors_are_read);
    RUN(a_swap_waits_until_one_of_its_experts_is_decided_anew);
    RUN(guesses_do_not_take_the_turn_of_swaps);
    RUN(what_was_swapped_in_is_not_judged_by_guesses);
    RUN(bad_swaps_are_refused);
    RUN(swaps_between_layers_need_a_common_tier);
    RUN(swaps_between_sizes_do_not_take_place);
    return 0;
}
