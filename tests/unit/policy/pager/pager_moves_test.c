/*
 * When moves that no need asked for give way: due prefetches, results of routers, pauses.
 */
#include "policy/builtins.h"
#include "policy/pager/pager.h"
#include "tests/support/test.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/unit/policy/pager/planned.h"

/* ---- policies that do as a test says; one set at a time */

/* Does as MoEpic's: moves when it is due and the device is idle. */
static uint64_t scores_now;
static float seen_score;

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

/* ---- tests */

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

/* Layer 0 gets two slots of layer 1, and the experts that the partition names for them at once;
 * layer 1 gives up what was used least lately, and gets nothing beyond its share. */
static void room_of_new_shares_is_filled(void)
{
    struct world w;

    reset_plan();
    open_planned(&w, 2, 8, false);
    world_run(&w, 0, ids, 4);
    world_run(&w, 1, ids, 4);
    CHECK(residents(&w, 0) == 0x0f && residents(&w, 1) == 0x0f);
    plan_revises = true;
    plan_quota[0] = 6;
    plan_quota[1] = 2;
    plan_count = 8;
    for (uint32_t i = 0; i < 8; i++)
        plan_units[i] = i < 6 ? i : 8 + i; /* and two of layer 1 that are not there */
    world_run(&w, 1, ids, 2);
    world_wait_until_idle(&w);
    CHECK_EQ(residents(&w, 0), 0x3f);
    CHECK_EQ(residents(&w, 1), 0x03);
    CHECK_EQ(w.counters.invalid_decisions, 0);
    CHECK(mp_pager_check(w.pager));
    plan_units[7] = 16; /* no such expert */
    world_run(&w, 1, ids, 2);
    CHECK_EQ(w.counters.invalid_decisions, 1);
    world_close(&w);
}

/* More of them than may be read ahead, and used longest ago: no victims until their layer begins,
 * unless a demand finds nothing else. */
static void what_is_foreseen_is_no_victim(void)
{
    struct world w;

    reset_plan();
    open_planned(&w, 2, 8, true);
    world_run(&w, 1, ids, 4);
    world_run(&w, 0, ids, 4);
    CHECK(residents(&w, 0) == 0x0f && residents(&w, 1) == 0x0f);
    mp_pager_foresee(w.pager, 1, ids, 4);
    mp_pager_foresee(w.pager, 1, ids + 7, 1); /* not there: nothing happens */
    world_run(&w, 0, ids + 4, 2);
    CHECK(residents(&w, 0) == 0x3c && residents(&w, 1) == 0x0f);
    CHECK(mp_pager_check(w.pager));
    world_run(&w, 0, ids, 6); /* two of these are demands without another slot */
    CHECK(residents(&w, 0) == 0x3f && residents(&w, 1) == 0x0c);
    world_run(&w, 1, ids + 2, 1); /* from now on 3 is like any other */
    world_run(&w, 0, ids, 7);
    CHECK(residents(&w, 0) == 0x7f && residents(&w, 1) == 0x04);
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
    RUN(shares_are_revised_after_the_last_layer);
    RUN(room_of_new_shares_is_filled);
    RUN(what_is_foreseen_is_no_victim);
    RUN(a_pause_is_idle);
    RUN(what_is_due_is_not_put_off_by_guesses);
    RUN(a_demand_waits_where_residents_stay);
    RUN(prefetches_end_at_the_routers_result);
    RUN(scores_come_with_the_time_of_their_layer);
    return 0;
}
