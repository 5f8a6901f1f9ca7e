/*
 * Reads ahead over a real space: when they start, what they may take, what becomes of guesses that
 * were right, wrong or failed.
 */
#include "policy/pager/pager.h"
#include "tests/unit/policy/pager/two_layers.h"

#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/test.h"

static void taking_what_is_ready_never_waits(void)
{
    static const struct world_options options = {
        .layers = 1, .experts = 4, .top_k = 1, .slots = 3, .deterministic = true
    };
    struct mp_ready ready;
    struct world w;

    world_open(&options, &w);
    CHECK_EQ(mp_pager_next_now(w.pager, &ready), MP_ERR_INVALID);
    world_run(&w, 0, ids + 1, 2);
    CHECK_EQ(world_begin(&w, 0, ids, 3), MP_OK);
    for (uint32_t i = 1; i < 3; i++) { /* what was resident, in order */
        CHECK_EQ(mp_pager_next_now(w.pager, &ready), MP_OK);
        CHECK_EQ(ready.need, i);
    }
    world_wait_until_idle(&w);
    CHECK_EQ(mp_pager_next_now(w.pager, &ready), MP_OK);
    CHECK_EQ(ready.need, 0);
    CHECK(world_pieces_are_right(&w, 0, ready.pieces));
    CHECK_EQ(mp_pager_next_now(w.pager, &ready), MP_OK);
    CHECK_EQ(ready.need, MP_NEED_NONE);
    for (uint32_t i = 0; i < 3; i++)
        mp_pager_done(w.pager, i);
    mp_pager_end(w.pager);

    /* The fourth has no slot: the others come one by one. */
    CHECK_EQ(world_begin(&w, 0, ids, 4), MP_OK);
    CHECK_EQ(mp_pager_next_now(w.pager, &ready), MP_OK);
    CHECK_EQ(ready.need, MP_NEED_NONE);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
        mp_pager_done(w.pager, ready.need);
    }
    CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
    CHECK_EQ(ready.need, MP_NEED_NONE);
    mp_pager_end(w.pager);
    world_close(&w);
}

static void prefetches_are_accounted_to_the_byte(void)
{
    static const uint32_t predicted[] = { 2, 3, 4 }, used[] = { 2 }, others[] = { 5, 6 };
    struct world w;

    world_open(&two_layers, &w);
    CHECK_EQ(world_begin(&w, 0, ids, 2), MP_OK);
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 0), 0); /* the open layer */
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 1), 2); /* a quarter of the slots */
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 2), 0);
    mp_pager_prefetch(w.pager, 1, predicted, 3);
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 1), 0);
    CHECK_EQ(world_finish(&w, 0, ids, 2), MP_OK);
    world_wait_until_idle(&w);
    world_run(&w, 1, used, 1); /* 2 is a hit, 3 was mispredicted */
    CHECK_EQ(w.counters.hits, 1);
    CHECK_EQ(w.counters.prefetch_issued, 2);
    CHECK_EQ(w.counters.prefetch_used, 1);
    CHECK_EQ(w.counters.prefetch_bytes, 2 * UB);
    CHECK_EQ(w.counters.prefetch_unused_bytes, 0); /* not yet */
    CHECK_EQ(w.counters.loads, 2);
    CHECK_EQ(w.counters.load_bytes, 2 * UB);
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 1), 2); /* its layer has run */

    mp_pager_prefetch(w.pager, 1, &predicted[1], 1); /* there already: kept, nothing is read */
    CHECK_EQ(w.counters.prefetch_issued, 2);
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 1), 1);
    world_run(&w, 1, others, 2);
    world_run(&w, 0, ids, 8); /* needs every slot: 3 leaves unused */
    CHECK_EQ(w.counters.prefetch_unused_bytes, UB);
    CHECK_EQ(w.counters.prefetch_bytes, 2 * UB);

    mp_pager_prefetch(w.pager, 1, predicted, 1);
    world_wait_until_idle(&w);
    mp_pager_destroy(w.pager); /* it arrived and nobody will use it */
    w.pager = NULL;
    CHECK_EQ(w.counters.prefetch_bytes, 3 * UB);
    CHECK_EQ(w.counters.prefetch_unused_bytes, 2 * UB);
    CHECK_EQ(w.counters.prefetch_used, 1);
    CHECK_EQ(w.counters.prefetch_canceled, 0);
    world_close(&w);
}

static void a_promoted_prefetch_is_counted_once(void)
{
    struct world_options options = two_layers;
    struct world_gate gate;
    struct world w;

    world_gate_init(&gate);
    options.reads_clock = &gate.super;
    world_open(&options, &w);
    world_gate_set(&gate, true);
    mp_pager_prefetch(w.pager, 1, ids, 2); /* one stands still, one has not started */
    world_gate_wait(&gate);
    CHECK_EQ(world_begin(&w, 1, ids, 3), MP_OK);
    CHECK(!world_is_resident(&w, 1, 0));
    CHECK_EQ(w.counters.misses, 3);
    CHECK_EQ(w.counters.prefetch_used, 2);
    CHECK_EQ(w.counters.prefetch_bytes + w.counters.load_bytes, 0); /* nothing has arrived */
    world_gate_set(&gate, false);
    CHECK_EQ(world_finish(&w, 1, ids, 3), MP_OK);
    CHECK_EQ(w.counters.prefetch_bytes, 2 * UB);
    CHECK_EQ(w.counters.load_bytes, UB);
    CHECK_EQ(w.counters.read_bytes, 3 * UB);
    world_close(&w);
    CHECK_EQ(w.counters.prefetch_unused_bytes, 0);
}

static void abort_cancels_what_has_not_started(void)
{
    struct world_options options = two_layers;
    struct world_gate gate;
    struct world w;

    world_gate_init(&gate);
    options.reads_clock = &gate.super;
    world_open(&options, &w);
    mp_pager_abort(w.pager); /* no layer is open: no effect */
    world_gate_set(&gate, true);
    CHECK_EQ(world_begin(&w, 0, ids, 3), MP_OK); /* 0 stands still, 1 and 2 wait */
    world_gate_wait(&gate);
    mp_pager_prefetch(w.pager, 1, ids, 2);
    CHECK(mp_pager_check(w.pager));
    mp_pager_abort(w.pager);
    CHECK(mp_pager_check(w.pager));
    CHECK_EQ(w.counters.prefetch_issued, 0); /* they were to come after the loads */
    CHECK_EQ(w.counters.prefetch_canceled, 0);
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 1), 2);
    world_gate_set(&gate, false);
    world_wait_until_idle(&w);

    world_run(&w, 0, ids, 3); /* the load that had started serves the second try */
    CHECK_EQ(w.counters.hits, 1);
    CHECK_EQ(w.counters.misses, 3 + 2);
    CHECK_EQ(w.counters.loads, 3);
    CHECK_EQ(w.counters.prefetch_used, 0);
    CHECK_EQ(w.counters.prefetch_bytes, 0);
    world_close(&w);
    CHECK_EQ(w.counters.prefetch_unused_bytes, 0);
}

/* Units of layer 1 that have a slot: resident or on their way. */
static uint32_t with_slot(struct world *w, uint32_t layer)
{
    uint8_t resident[64];
    uint32_t count = 0;

    mp_pager_residents(w->pager, layer, true, resident);
    for (uint32_t e = 0; e < w->shape.experts; e++)
        count += resident[e];
    return count;
}

static void reads_ahead_wait_until_all_needs_are_read(void)
{
    struct world_options options = { .layers = 2, .experts = 8, .top_k = 2, .slots = 16 };
    struct world_gate gate;
    struct mp_ready ready;
    struct world w;

    world_gate_init(&gate);
    options.reads_clock = &gate.super;
    world_open(&options, &w);
    world_gate_set(&gate, true);
    CHECK_EQ(world_begin(&w, 0, ids, 1), MP_OK);
    mp_pager_prefetch(w.pager, 1, ids, 4);
    CHECK_EQ(w.counters.prefetch_issued, 0);
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 1), 0); /* but they count */
    mp_pager_prefetch(w.pager, 1, ids, 1);
    world_gate_wait(&gate);
    world_gate_set(&gate, false);
    CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
    CHECK_EQ(w.counters.prefetch_issued, 2); /* one is read, one is next */
    mp_pager_done(w.pager, ready.need);
    mp_pager_end(w.pager);
    world_wait_until_idle(&w);
    world_run(&w, 1, ids, 2);
    CHECK_EQ(w.counters.prefetch_used, 2);
    CHECK_EQ(w.counters.hits, 2);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

/* Each layer finds that all reads ahead have ended and that more prefetches were queued: twice as
 * many are read at once, while they are fewer than an eighth of the slots. */
static void give_more(uint32_t slots, uint32_t last)
{
    const uint32_t expected[3] = { 2, 4, last };
    struct world_options options = { .layers = 4, .experts = 32, .top_k = 2, .slots = slots };
    struct world_gate gate;
    struct world w;

    world_gate_init(&gate);
    options.reads_clock = &gate.super;
    world_open(&options, &w);
    for (uint32_t layer = 0; layer < 3; layer++) {
        CHECK_EQ(world_begin(&w, layer, NULL, 0), MP_OK);
        world_gate_set(&gate, true);
        mp_pager_prefetch(w.pager, layer + 1, ids, 8);
        mp_pager_end(w.pager);
        world_gate_set(&gate, false);
        world_wait_until_idle(&w);
        CHECK_EQ(with_slot(&w, layer + 1), expected[layer]);
    }
    CHECK_EQ(w.counters.prefetch_issued, 6 + last);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

static void an_idle_disk_is_given_more(void)
{
    give_more(128, 8);
    give_more(40, 6); /* no more may be kept */
    give_more(39, 4);
}

/* Four at once, of which a layer finds two unfinished: three at once leave one. */
static void all_but_one_of_the_unfinished_were_too_many(void)
{
    struct world_options options = { .layers = 4, .experts = 32, .top_k = 2, .slots = 128 };
    struct world_gate gate;
    struct world w;

    world_gate_init(&gate);
    options.reads_clock = &gate.super;
    world_open(&options, &w);
    CHECK_EQ(world_begin(&w, 0, NULL, 0), MP_OK);
    world_gate_set(&gate, true);
    mp_pager_prefetch(w.pager, 1, ids, 8);
    mp_pager_end(w.pager);
    world_gate_set(&gate, false);
    world_wait_until_idle(&w);
    CHECK_EQ(world_begin(&w, 1, NULL, 0), MP_OK); /* four from now on */
    world_gate_set(&gate, true);
    mp_pager_prefetch(w.pager, 2, ids, 2); /* the first stands still, the other waits */
    mp_pager_end(w.pager);
    world_gate_wait(&gate);
    CHECK_EQ(world_begin(&w, 2, NULL, 0), MP_OK);
    CHECK_EQ(with_slot(&w, 2), 1);
    mp_pager_prefetch(w.pager, 3, ids, 8);
    CHECK_EQ(with_slot(&w, 3), 2);
    mp_pager_end(w.pager);
    world_gate_set(&gate, false);
    world_wait_until_idle(&w);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

static void a_slow_disk_is_given_less_and_wrong_guesses_end(void)
{
    struct world_options options = { .layers = 3, .experts = 8, .top_k = 2, .slots = 24 };
    struct world_gate gate;
    struct world w;

    world_gate_init(&gate);
    options.reads_clock = &gate.super;
    world_open(&options, &w);
    world_gate_set(&gate, true);
    mp_pager_prefetch(w.pager, 1, ids, 4); /* the first starts and stands still */
    world_gate_wait(&gate);
    CHECK_EQ(w.counters.prefetch_issued, 2);
    CHECK_EQ(world_begin(&w, 1, NULL, 0), MP_OK);
    CHECK_EQ(w.counters.prefetch_canceled, 1);
    CHECK_EQ(with_slot(&w, 1), 1);
    mp_pager_end(w.pager);
    mp_pager_prefetch(w.pager, 2, ids, 4);
    CHECK_EQ(w.counters.prefetch_issued, 2); /* the one that stands still is enough */
    world_gate_set(&gate, false);
    world_wait_until_idle(&w);
    CHECK_EQ(world_begin(&w, 0, NULL, 0), MP_OK);
    mp_pager_end(w.pager);
    CHECK(w.counters.prefetch_issued > 2);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

static void what_was_mispredicted_leaves_first(void)
{
    static const uint32_t guess[] = { 7 }, other[] = { 6 };
    struct world w;

    world_open(&two_layers, &w);
    world_run(&w, 0, ids, 6);
    mp_pager_prefetch(w.pager, 1, guess, 1);
    world_wait_until_idle(&w);
    world_run(&w, 1, other, 1); /* takes the last free slot; 7 was mispredicted */
    world_run(&w, 0, ids, 6);   /* all hits; by its last use 7 is now the newest of layer 1 */
    CHECK_EQ(w.counters.hits, 6);
    CHECK_EQ(w.counters.evictions, 0);
    world_run(&w, 1, ids, 1);
    CHECK_EQ(w.counters.evictions, 1);
    CHECK(!world_is_resident(&w, 1, 7));
    CHECK(world_is_resident(&w, 1, 6));
    CHECK_EQ(w.counters.prefetch_unused_bytes, UB);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

static void run_elsewhere(struct world *w, uint32_t layer, uint32_t expert)
{
    const struct mp_need need = { .expert = expert, .tokens = 1, .elsewhere = true };
    struct mp_ready ready;

    CHECK_EQ(mp_pager_begin(w->pager, layer, &need, 1), MP_OK);
    CHECK_EQ(mp_pager_next(w->pager, &ready), MP_OK);
    CHECK_EQ(ready.need, MP_NEED_NONE);
    mp_pager_end(w->pager);
    CHECK(mp_pager_check(w->pager));
}

/* Who computes an expert does not make the guess wrong that brought it. */
static void a_right_guess_is_used_wherever_its_expert_is_computed(void)
{
    static const uint32_t guess[] = { 7 };
    struct world_options options = two_layers;
    struct world_gate gate;
    struct world w;

    world_gate_init(&gate);
    options.reads_clock = &gate.super;
    for (int arrives = 0; arrives < 2; arrives++) {
        world_open(&options, &w);
        world_run(&w, 0, ids, 6);
        world_gate_set(&gate, true);
        mp_pager_prefetch(w.pager, 1, guess, 1);
        world_gate_wait(&gate);
        if (arrives) {
            world_gate_set(&gate, false);
            world_wait_until_idle(&w);
        }
        run_elsewhere(&w, 1, 7);
        world_gate_set(&gate, false);
        world_wait_until_idle(&w);
        CHECK_EQ(w.counters.prefetch_used, 1);
        CHECK_EQ(mp_pager_prefetch_room(w.pager, 1), 2);
        world_run(&w, 1, ids, 1); /* the last free slot */
        world_run(&w, 1, ids + 1, 1);
        CHECK_EQ(w.counters.evictions, 1);
        CHECK(world_is_resident(&w, 1, 7)); /* what was used longest ago leaves */
        CHECK_EQ(w.counters.prefetch_unused_bytes, 0);
        world_close(&w);
    }
}

/* Of two guesses in flight the second one arrives a load later. What has arrived is resident at the
 * next question, without a layer in between. */
static void arrivals_follow_from_the_order_of_reads(void)
{
    static const uint32_t guess[] = { 5, 7 };
    struct world_options options = two_layers;
    uint8_t resident[8];
    uint64_t arrival_ns[8];
    struct world_gate gate;
    struct world w;

    world_gate_init(&gate);
    options.reads_clock = &gate.super;
    world_open(&options, &w);
    world_run(&w, 0, ids, 6);
    mp_pager_residents(w.pager, 1, false, resident);
    CHECK(!mp_pager_arrivals(w.pager, 1, resident, 40, 100, arrival_ns));
    world_gate_set(&gate, true);
    mp_pager_prefetch(w.pager, 1, guess, 2);
    world_gate_wait(&gate);
    CHECK_EQ(mp_pager_reading(w.pager), 2);
    mp_pager_residents(w.pager, 1, false, resident);
    CHECK(mp_pager_arrivals(w.pager, 1, resident, 40, 100, arrival_ns));
    CHECK_EQ(arrival_ns[5], 40);
    CHECK_EQ(arrival_ns[7], 140);
    CHECK_EQ(arrival_ns[0], MP_ARRIVAL_NEVER);
    CHECK(!mp_pager_arrivals(w.pager, 0, resident, 40, 100, arrival_ns));
    world_gate_set(&gate, false);
    world_wait_until_idle(&w);
    mp_pager_residents(w.pager, 1, false, resident);
    CHECK(resident[5]);
    world_close(&w);
}

/* Not even for a unit of another layer that was mispredicted does a layer get more than its share.
 */
static void a_layer_with_its_share_gives_up_one_of_its_own(void)
{
    static const uint32_t guess[] = { 7 }, other[] = { 6 }, next[] = { 4 };
    struct world_options options = two_layers;
    struct world w;

    options.names.policy[MP_POLICY_PARTITION] = "uniform";
    for (uint32_t layer = 0; layer < 2; layer++) {
        world_open(&options, &w);
        world_run(&w, layer, ids, 4); /* all that it may have */
        mp_pager_prefetch(w.pager, !layer, guess, 1);
        world_wait_until_idle(&w);
        world_run(&w, !layer, other, 1);
        world_run(&w, layer, next, 1);
        CHECK_EQ(w.counters.evictions, 1);
        CHECK(!world_is_resident(&w, layer, 0));
        CHECK(world_is_resident(&w, !layer, 7));
        world_close(&w);
    }
}

/* Kept because it was predicted, there because it was needed before: its layer runs without it. */
static void what_was_kept_is_kept_for_one_run_of_its_layer(void)
{
    static const uint32_t old[] = { 0 }, other[] = { 5 };
    struct world w;

    world_open(&two_layers, &w);
    world_run(&w, 1, old, 1);
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 1), 2);
    mp_pager_prefetch(w.pager, 1, old, 1);
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 1), 1);
    world_run(&w, 1, other, 1);
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 1), 2);
    world_close(&w);
}

static void what_is_predicted_is_kept_while_others_can_go(void)
{
    static const uint32_t old[] = { 0 }, more[] = { 1, 2, 3, 4, 5, 6, 7 };
    struct world w;

    world_open(&two_layers, &w);
    world_run(&w, 1, old, 1);
    world_run(&w, 0, more, 7); /* full; layer 1's unit 0 is oldest */
    mp_pager_prefetch(w.pager, 1, old, 1);
    world_run(&w, 0, old, 1); /* takes another */
    CHECK(world_is_resident(&w, 1, 0));
    world_run(&w, 0, ids, 8); /* needs all slots: now it goes */
    CHECK(!world_is_resident(&w, 1, 0));
    CHECK_EQ(w.counters.prefetch_issued, 0);
    CHECK_EQ(w.counters.invalid_decisions, 0);
    world_close(&w);
}

/* A need found only slots that were being filled; the reads end while somebody else looks. */
static void what_has_arrived_meanwhile_is_room(void)
{
    static const uint8_t placed[4] = { MP_PLACED_KEEP, MP_PLACED_KEEP };
    const uint32_t expert = 1;
    struct world_options options = { .layers = 2, .experts = 2, .top_k = 1, .slots = 2 };
    uint8_t resident[2];
    struct world_gate gate;
    struct world w;

    world_gate_init(&gate);
    options.reads_clock = &gate.super;
    world_open(&options, &w);
    world_gate_set(&gate, true);
    mp_pager_place(w.pager, placed);
    mp_pager_fill_placed(w.pager, NULL, NULL);
    mp_pager_place(w.pager, NULL);
    CHECK_EQ(world_begin(&w, 1, &expert, 1), MP_OK);
    world_gate_set(&gate, false);
    world_wait_until_idle(&w);
    mp_pager_residents(w.pager, 1, false, resident);
    CHECK_EQ(world_finish(&w, 1, &expert, 1), MP_OK);
    CHECK_EQ(w.counters.prefetch_issued, 2);
    world_close(&w);
}

int main(void)
{
    world_prepare();
    RUN(taking_what_is_ready_never_waits);
    RUN(prefetches_are_accounted_to_the_byte);
    RUN(a_promoted_prefetch_is_counted_once);
    RUN(abort_cancels_what_has_not_started);
    RUN(reads_ahead_wait_until_all_needs_are_read);
    RUN(an_idle_disk_is_given_more);
    RUN(all_but_one_of_the_unfinished_were_too_many);
    RUN(a_slow_disk_is_given_less_and_wrong_guesses_end);
    RUN(what_was_mispredicted_leaves_first);
    RUN(a_right_guess_is_used_wherever_its_expert_is_computed);
    RUN(arrivals_follow_from_the_order_of_reads);
    RUN(a_layer_with_its_share_gives_up_one_of_its_own);
    RUN(what_was_kept_is_kept_for_one_run_of_its_layer);
    RUN(what_is_predicted_is_kept_while_others_can_go);
    RUN(what_has_arrived_meanwhile_is_room);
    return 0;
}
