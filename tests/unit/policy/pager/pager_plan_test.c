/*
 * Moves that no need asked for: first residents, swaps after a layer, revised shares; and what goes
 * with them: waiting demands, prefetches that end at the router's result, scores for evict.
 */
#include <string.h>

#include "policy/builtins.h"
#include "policy/pager/pager.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/test.h"

#define UB WORLD_UNIT_BYTES

static const uint32_t ids[] = { 0, 1, 2, 3, 4, 5, 6, 7 };

/* ---- policies that do as a test says; one set at a time */

static uint32_t plan_units[32], plan_count;
static struct mp_swap plan_swaps[8];
static struct mp_clock *plan_clock; // of reads
static uint32_t plan_swap_count;
static uint32_t plan_quota[4], revisions, seen_needed, seen_hits, seen_layer;
static bool plan_revises, plan_due, seen_idle, plan_admits;
static uint64_t scores_now;
static float seen_score;

static uint32_t first(struct mp_policy *policy, const struct mp_shape *shape, uint32_t *units)
{
    (void)policy;
    (void)shape;
    memcpy(units, plan_units, (plan_count > 32 ? 0 : plan_count) * sizeof(units[0]));
    return plan_count;
}

static void observe(struct mp_policy *policy, uint32_t layer, uint32_t needed, uint32_t hits,
                    uint64_t now)
{
    (void)policy;
    (void)now;
    seen_layer = layer;
    seen_needed = needed;
    seen_hits = hits;
}

static bool revise(struct mp_policy *policy, const struct mp_shape *shape, bool idle,
                   uint32_t *quota)
{
    (void)policy;
    revisions++;
    seen_idle = idle;
    if (plan_revises)
        memcpy(quota, plan_quota, shape->layers * sizeof(quota[0]));
    return plan_revises;
}

/* Does as MoEpic's: moves when it is due and the device is idle. */
static bool due(const struct mp_policy *policy, const struct mp_shape *shape)
{
    (void)policy;
    (void)shape;
    return plan_due;
}

static bool revise_when_idle(struct mp_policy *policy, const struct mp_shape *shape, bool idle,
                             uint32_t *quota)
{
    plan_revises = plan_due && idle;
    if (revise(policy, shape, idle, quota))
        plan_due = false;
    return plan_revises;
}

static uint32_t replace(struct mp_policy *policy, const struct mp_evict_query *query, uint64_t now,
                        struct mp_swap *swaps, uint32_t max)
{
    (void)policy;
    (void)query;
    (void)now;
    (void)max;
    memcpy(swaps, plan_swaps, plan_swap_count > 8 ? 0 : plan_swap_count * sizeof(swaps[0]));
    return plan_swap_count;
}

static void on_scores(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                      const float *scores, const uint32_t *chosen, uint64_t now)
{
    (void)policy;
    (void)layer;
    (void)tokens;
    (void)k;
    seen_score = scores[chosen[0]];
    scores_now = now;
}

static uint64_t access_now;

static void on_access(struct mp_policy *policy, uint32_t unit, uint32_t tokens, uint64_t now)
{
    (void)policy;
    (void)unit;
    (void)tokens;
    access_now = now;
}

static void on_move(struct mp_policy *policy, uint32_t unit, uint64_t now)
{
    (void)policy;
    (void)unit;
    (void)now;
}

static uint32_t keep_all(struct mp_policy *policy, const struct mp_evict_query *query)
{
    (void)policy;
    (void)query;
    return MP_EXPERT_NONE;
}

static bool admit(struct mp_policy *policy, uint32_t unit, uint32_t tokens, uint64_t now)
{
    (void)policy;
    (void)unit;
    (void)tokens;
    (void)now;
    return plan_admits;
}

static struct mp_partition_ops partition_ops;
static struct mp_evict_ops evict_ops;
static struct mp_admit_ops admit_ops;
static struct mp_prefetch_ops prefetch_ops;
static struct mp_policies set;

/* The set `lru` with room for other tables; world->policies is a copy of it. */
static void open_planned(struct world *w, uint32_t layers, uint32_t slots, bool global)
{
    static struct mp_policies base;
    static struct mp_shape shape;
    const struct mp_policy_names names = { .profile = "lru" };
    struct world_options options = {
        .layers = layers, .experts = 8, .top_k = 2, .slots = slots, .set = &set
    };
    struct mp_profile profile;

    options.reads_clock = plan_clock;
    mp_policies_destroy(&base);
    shape = (struct mp_shape){ .layers = layers, .experts = 8, .top_k = 2, .slots = slots };
    shape.tokens_max = 1;
    shape.expert_bytes = UB;
    CHECK_EQ(mp_policy_resolve(&names, &profile), MP_OK);
    CHECK_EQ(mp_policies_create(&profile, &shape, NULL, &base), MP_OK);
    set = base;
    partition_ops = global ? mp_partition_global : mp_partition_uniform;
    partition_ops.first = first;
    partition_ops.observe = observe;
    partition_ops.revise = revise;
    evict_ops = *base.evict_ops;
    evict_ops.replace = replace;
    admit_ops = *base.admit_ops;
    prefetch_ops = *base.prefetch_ops;
    set.partition_ops = &partition_ops;
    set.evict_ops = &evict_ops;
    set.admit_ops = &admit_ops;
    set.prefetch_ops = &prefetch_ops;
    world_open(&options, w);
}

static void reset_plan(void)
{
    plan_count = plan_swap_count = revisions = 0;
    plan_revises = plan_due = false;
    plan_admits = true;
}

static uint32_t residents(struct world *w, uint32_t layer)
{
    uint8_t resident[8];
    uint32_t bits = 0;

    mp_pager_residents(w->pager, layer, true, resident);
    for (uint32_t e = 0; e < 8; e++)
        bits |= (uint32_t)resident[e] << e;
    return bits;
}

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

/* Newer swaps of a layer take the place of those that did not get their turn. */
static void newer_swaps_replace_those_that_wait(void)
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
    for (plan_swap_count = 0; plan_swap_count < 3; plan_swap_count++)
        plan_swaps[plan_swap_count] =
            (struct mp_swap){ .in = 4 + plan_swap_count, .out = plan_swap_count };
    world_gate_set(&gate, true);
    world_run(&w, 0, ids, 1);
    plan_swaps[0] = (struct mp_swap){ .in = 7, .out = 3 };
    plan_swap_count = 1;
    world_run(&w, 0, ids + 2, 1);
    plan_swap_count = 0;
    world_gate_set(&gate, false);
    for (int i = 0; i < 2; i++) {
        world_wait_until_idle(&w);
        world_run(&w, 0, ids + 4, 1);
    }
    CHECK_EQ(residents(&w, 0), 1u << 2 | 1u << 4 | 1u << 5 | 1u << 7);
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

static void shares_are_revised_after_the_last_layer(void)
{
    struct world w;

    reset_plan();
    open_planned(&w, 2, 8, false);
    world_run(&w, 0, ids, 2);
    CHECK_EQ(revisions, 0);
    plan_revises = true;
    plan_quota[0] = 6;
    plan_quota[1] = 2;
    world_run(&w, 1, ids, 2);
    CHECK_EQ(revisions, 1);
    CHECK(seen_idle);
    CHECK_EQ(seen_layer, 1);
    CHECK_EQ(mp_pager_quota(w.pager, 0), 6);
    CHECK_EQ(mp_pager_quota(w.pager, 1), 2);
    plan_quota[1] = 3; /* nine slots of eight */
    world_run(&w, 1, ids, 2);
    CHECK_EQ(w.counters.invalid_decisions, 1);
    CHECK_EQ(mp_pager_quota(w.pager, 1), 2);
    world_run(&w, 0, ids, 6);
    world_run(&w, 1, ids, 4); /* borrows beyond its two */
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

/* Between layers a pause waits for what is read ahead, and then the device is idle. */
static void a_pause_is_idle(void)
{
    struct world w;

    reset_plan();
    open_planned(&w, 2, 8, false);
    world_run(&w, 0, ids, 2);
    mp_pager_pause(w.pager);
    CHECK_EQ(revisions, 1);
    CHECK(seen_idle);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

/* Guesses keep the link busy at the end of every step. A partition that is due gets its idle moment
 * all the same: nothing is read ahead until then, and is afterwards. */
static void what_is_due_is_not_put_off_by_guesses(void)
{
    struct world_gate gate;
    struct world w;

    reset_plan();
    world_gate_init(&gate);
    plan_clock = &gate.super;
    open_planned(&w, 2, 8, false);
    plan_clock = NULL;
    partition_ops.revise = revise_when_idle;
    partition_ops.due = due;
    plan_quota[0] = 6;
    plan_quota[1] = 2;
    for (uint32_t step = 0; step < 4; step++) {
        plan_due |= step == 1;
        world_run(&w, 0, NULL, 0);
        if (step != 2) {
            CHECK_EQ(world_begin(&w, 1, NULL, 0), MP_OK);
            world_gate_set(&gate, true);
            mp_pager_prefetch(w.pager, 0, ids + step, 1); /* starts and stands still */
            world_gate_wait(&gate);
            CHECK_EQ(world_finish(&w, 1, NULL, 0), MP_OK);
        } else {
            CHECK_EQ(world_begin(&w, 1, NULL, 0), MP_OK);
            mp_pager_prefetch(w.pager, 0, ids + step, 1);
            CHECK_EQ(w.counters.prefetch_issued, 2);
            CHECK_EQ(world_finish(&w, 1, NULL, 0), MP_OK);
            CHECK_EQ(w.counters.prefetch_issued, 3); /* what was queued begins now */
        }
        CHECK_EQ(seen_idle, step == 2);
        CHECK_EQ(mp_pager_quota(w.pager, 0), step < 2 ? 4 : 6);
        CHECK(mp_pager_check(w.pager));
        world_gate_set(&gate, false);
        world_wait_until_idle(&w);
    }
    CHECK_EQ(w.counters.prefetch_issued, 4);
    CHECK(!plan_due);
    world_close(&w);
}

/* Six residents that never leave and two slots for everything else. */
static void a_demand_waits_where_residents_stay(void)
{
    struct world w;

    reset_plan();
    for (plan_count = 0; plan_count < 6; plan_count++)
        plan_units[plan_count] = plan_count;
    plan_admits = false;
    open_planned(&w, 2, 8, true);
    admit_ops.admit = admit;
    evict_ops.pick = keep_all;
    evict_ops.waits = true;
    world_wait_until_idle(&w);
    for (uint32_t round = 0; round < 3; round++) {
        world_run(&w, 1, ids, 8); /* eight loads through two slots */
        CHECK_EQ(residents(&w, 0), 0x3f);
        CHECK_EQ(residents(&w, 1), 0);
    }
    CHECK_EQ(w.counters.invalid_decisions, 0);
    CHECK_EQ(w.counters.misses, 24);

    plan_admits = true; /* now they stay, so somebody has to go after all */
    world_run(&w, 1, ids, 8);
    CHECK(w.counters.invalid_decisions > 0);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

static void prefetches_end_at_the_routers_result(void)
{
    struct world_gate gate;
    struct world_options options = { .layers = 3, .experts = 8, .top_k = 2, .slots = 16 };
    struct world w;

    reset_plan();
    world_gate_init(&gate);
    options.reads_clock = &gate.super;
    world_open(&options, &w);
    prefetch_ops = *w.policies.prefetch_ops;
    prefetch_ops.until_routed = true;
    w.policies.prefetch_ops = &prefetch_ops;
    world_run(&w, 0, ids, 1);
    CHECK_EQ(world_begin(&w, 0, ids, 1), MP_OK);
    mp_pager_prefetch(w.pager, 1, ids, 2);
    world_wait_until_idle(&w);
    CHECK_EQ(world_finish(&w, 0, ids, 1), MP_OK);
    world_run(&w, 1, ids, 1);
    CHECK_EQ(w.counters.prefetch_canceled, 0); /* nothing was left to take back */

    world_gate_set(&gate, true);
    CHECK_EQ(world_begin(&w, 0, ids, 1), MP_OK);
    mp_pager_prefetch(w.pager, 2, ids, 4); /* the first starts and stands still, the second waits */
    world_gate_wait(&gate);
    CHECK_EQ(world_finish(&w, 0, ids, 1), MP_OK);
    CHECK_EQ(w.counters.prefetch_canceled, 0);
    CHECK_EQ(world_begin(&w, 1, ids, 1), MP_OK); /* another layer's result ends them all the same */
    CHECK_EQ(w.counters.prefetch_canceled, 1);
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 2), 3);
    world_gate_set(&gate, false);
    CHECK_EQ(world_finish(&w, 1, ids, 1), MP_OK);
    world_wait_until_idle(&w);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

static void scores_come_with_the_time_of_their_layer(void)
{
    static const float scores[8] = { 0.1f, 0.5f, 0.2f };
    static const uint32_t chosen[2] = { 1, 2 };
    struct world w;

    reset_plan();
    open_planned(&w, 2, 8, true);
    evict_ops.on_scores = on_scores;
    evict_ops.on_access = on_access;
    evict_ops.on_insert = on_move;
    evict_ops.on_remove = on_move;
    evict_ops.pick = keep_all;
    world_run(&w, 0, ids, 1);
    mp_pager_scores(w.pager, 1, 1, 2, scores, chosen);
    world_run(&w, 1, ids + 1, 2);
    CHECK(seen_score == 0.5f);
    CHECK_EQ(scores_now, access_now);
    world_close(&w);
}

int main(void)
{
    world_prepare();
    RUN(first_residents_are_there_before_the_first_layer);
    RUN(first_residents_respect_slots_and_shares);
    RUN(swaps_are_carried_out_after_the_layer);
    RUN(residents_stay_until_their_successors_are_read);
    RUN(newer_swaps_replace_those_that_wait);
    RUN(what_was_swapped_in_is_not_judged_by_guesses);
    RUN(bad_swaps_are_refused);
    RUN(swaps_between_layers_need_a_common_tier);
    RUN(shares_are_revised_after_the_last_layer);
    RUN(a_pause_is_idle);
    RUN(what_is_due_is_not_put_off_by_guesses);
    RUN(a_demand_waits_where_residents_stay);
    RUN(prefetches_end_at_the_routers_result);
    RUN(scores_come_with_the_time_of_their_layer);
    return 0;
}
