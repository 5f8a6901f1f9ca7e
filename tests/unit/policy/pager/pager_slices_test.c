/*
 * Experts in slices: the order in which they are handed out, what of an expert stays, what of it
 * leaves first, and that no slice waits for ever for another one.
 */
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "policy/builtins.h"
#include "policy/pager/pager.h"
#include "tests/support/log_guard.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/test.h"

static const uint32_t ids[] = { 0, 1, 2, 3, 4, 5, 6, 7 };

/* Slices of an expert that have their bytes, as bits. */
static uint32_t slices_there(const struct world *w, uint32_t layer, uint32_t expert)
{
    const uint32_t slices = w->shape.slices;
    uint32_t bits = 0;

    for (uint32_t s = 0; s < slices; s++) {
        const uint32_t unit = (layer * w->shape.experts + expert) * slices + s;

        bits |= (uint32_t)(mp_space_state(w->space, unit) == MP_RES_VALID) << s;
    }
    return bits;
}

/* One layer of 4 experts in 4 slices and 10 slots. */
static const struct world_options four_slices = {
    .layers = 1,
    .experts = 4,
    .top_k = 1,
    .slices = 4,
    .slots = 10,
};

static void what_leaves_of_an_expert_is_its_end(void)
{
    struct world w;

    world_open(&four_slices, &w);
    CHECK_EQ(w.shape.slots, 2);
    world_run(&w, 0, ids, 2); /* 8 slices */
    CHECK_EQ(w.counters.misses, 2);
    CHECK_EQ(w.counters.loads, 8);
    world_run(&w, 0, ids + 2, 1); /* two free slots, and the end of expert 0, the oldest */
    CHECK_EQ(slices_there(&w, 0, 0), 3);
    CHECK_EQ(slices_there(&w, 0, 1), 15);
    CHECK_EQ(slices_there(&w, 0, 2), 15);
    CHECK_EQ(w.counters.partial_hits, 0);

    world_run(&w, 0, ids, 1); /* half of it is there; the other half takes the end of expert 1 */
    CHECK_EQ(w.counters.hits, 0);
    CHECK_EQ(w.counters.misses, 4);
    CHECK_EQ(w.counters.partial_hits, 1);
    CHECK_EQ(w.counters.loads, 14);
    CHECK_EQ(slices_there(&w, 0, 0), 15);
    CHECK_EQ(slices_there(&w, 0, 1), 3);
    world_run(&w, 0, ids, 1);
    CHECK_EQ(w.counters.hits, 1);
    world_close(&w);
}

/* The reads of expert 0's end stand still, and its beginning is handed out and done. */
static void the_beginning_is_handed_out_while_the_end_loads(void)
{
    struct world_options options = four_slices;
    struct world_gate gate;
    struct mp_ready ready;
    uint8_t resident[4];
    struct world w;

    world_gate_init(&gate);
    options.reads_clock = &gate.super;
    world_open(&options, &w);
    world_run(&w, 0, ids, 2);
    world_run(&w, 0, ids + 2, 1);
    CHECK_EQ(slices_there(&w, 0, 0), 3);
    mp_pager_residents(w.pager, 0, true, resident);
    CHECK(resident[0] == 0 && resident[1] == 1 && resident[2] == 1);

    world_gate_set(&gate, true);
    CHECK_EQ(world_begin(&w, 0, ids, 1), MP_OK);
    world_gate_wait(&gate);
    CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
    CHECK_EQ(ready.need, 0);
    CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
    CHECK_EQ(ready.need, 1);
    mp_pager_done(w.pager, 0);
    mp_pager_done(w.pager, 1);
    CHECK_EQ(mp_pager_next_now(w.pager, &ready), MP_OK);
    CHECK_EQ(ready.need, MP_NEED_NONE);
    world_gate_set(&gate, false);
    for (uint32_t s = 2; s < 4; s++) {
        CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
        CHECK_EQ(ready.need, s);
        mp_pager_done(w.pager, s);
    }
    CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
    CHECK_EQ(ready.need, MP_NEED_NONE);
    mp_pager_end(w.pager);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

/* Two slots hold the ends of two experts, whose beginnings then need them. */
static void an_end_that_came_first_gives_its_slot_back(void)
{
    struct world_options options = four_slices;
    struct world w;

    options.slots = 2;
    for (unsigned deterministic = 0; deterministic < 2; deterministic++) {
        options.deterministic = deterministic;
        world_open(&options, &w);
        world_run(&w, 0, ids, 2);
        /* What stays after an expert went through two slots is whatever came last: its end. */
        CHECK(slices_there(&w, 0, 1) >= 8);
        for (unsigned round = 0; round < 3; round++)
            world_run(&w, 0, ids, 4);
        CHECK_EQ(w.counters.hits, 0);
        world_close(&w);
    }
}

/* ---- a partition that keeps a part of each expert */

static uint32_t plan_retained[2], plan_quota[2];
static bool plan_revises;

static void quota(struct mp_policy *policy, const struct mp_shape *shape, uint32_t *slots)
{
    (void)policy;
    memcpy(slots, plan_quota, shape->layers * sizeof(slots[0]));
}

static void retained(struct mp_policy *policy, const struct mp_shape *shape, uint32_t *parts)
{
    (void)policy;
    memcpy(parts, plan_retained, shape->layers * sizeof(parts[0]));
}

static bool revise(struct mp_policy *policy, const struct mp_shape *shape, bool idle,
                   uint32_t *slots)
{
    (void)idle;
    quota(policy, shape, slots);
    return plan_revises;
}

/* lru with that partition; the tables are static because the world's set points to them. */
static void open_split(struct world *w, const struct world_options *options)
{
    static struct mp_partition_ops ops;
    struct world_options asked = *options;

    asked.names.policy[MP_POLICY_PARTITION] = "uniform";
    world_open(&asked, w);
    mp_pager_destroy(w->pager);
    ops = mp_partition_uniform;
    ops.quota = quota;
    ops.retained = retained;
    ops.revise = revise;
    plan_revises = false;
    w->policies.partition_ops = &ops;
    CHECK_EQ(mp_pager_create(&w->config, &w->pager), MP_OK);
}

/*
 * Half of each expert is kept: 2 layers of 4 experts in 4 slices, 12 slots. A layer's share is one
 * expert's worth, 4 slots, which hold the beginnings of two; 4 slots are left for the ends.
 */
static void beginnings_stay_and_ends_come_and_go(void)
{
    const struct world_options options = {
        .layers = 2, .experts = 4, .top_k = 1, .slices = 4, .slots = 12
    };
    struct world w;

    plan_retained[0] = plan_retained[1] = 2;
    plan_quota[0] = plan_quota[1] = 1;
    open_split(&w, &options);
    CHECK_EQ(mp_pager_quota(w.pager, 0), 4);
    CHECK_EQ(mp_pager_retained(w.pager, 1), 2);
    world_run(&w, 0, ids, 2); /* 8 slots: 4 beginnings within the share, 4 ends */
    CHECK(slices_there(&w, 0, 0) == 15 && slices_there(&w, 0, 1) == 15);
    world_run(&w, 1, ids, 2); /* 4 free slots, then the ends of layer 0 */
    CHECK(slices_there(&w, 0, 0) == 3 && slices_there(&w, 0, 1) == 3);
    CHECK(slices_there(&w, 1, 0) == 15 && slices_there(&w, 1, 1) == 15);
    world_run(&w, 0, ids + 2, 1); /* its beginning replaces that of expert 0, not more */
    CHECK(slices_there(&w, 0, 0) == 0 && slices_there(&w, 0, 1) == 3);
    CHECK_EQ(slices_there(&w, 0, 2), 15);
    CHECK(slices_there(&w, 1, 0) == 3 && slices_there(&w, 1, 1) >= 3);
    world_run(&w, 0, ids + 1, 1); /* a partial hit that moves two slices */
    CHECK_EQ(w.counters.partial_hits, 1);
    CHECK_EQ(w.counters.loads, 8 + 8 + 4 + 2);

    /* The whole of each from now on: the share holds one. */
    plan_retained[0] = plan_retained[1] = 4;
    plan_revises = true;
    world_run(&w, 1, ids, 1);
    CHECK_EQ(mp_pager_retained(w.pager, 0), 4);
    CHECK(mp_pager_check(w.pager));
    plan_retained[0] = 5; /* no such part */
    world_run(&w, 1, ids, 1);
    CHECK_EQ(w.counters.invalid_decisions, 1);
    CHECK_EQ(mp_pager_retained(w.pager, 0), 4);
    world_run(&w, 0, ids, 4);
    world_close(&w);
}

/* Of an expert whose beginning is there only the end is read ahead. */
static void guesses_load_what_is_missing(void)
{
    const struct world_options options = {
        .layers = 2, .experts = 4, .top_k = 1, .slices = 4, .slots = 16
    };
    struct world w;

    plan_retained[0] = plan_retained[1] = 2;
    plan_quota[0] = plan_quota[1] = 1;
    open_split(&w, &options);
    world_run(&w, 1, ids, 1);
    world_run(&w, 0, ids, 3); /* now all slots are taken */
    world_run(&w, 0, ids + 3, 1);
    CHECK_EQ(slices_there(&w, 0, 0), 12); /* the oldest of the layer gave up its beginning */
    CHECK_EQ(slices_there(&w, 1, 0), 3);
    CHECK_EQ(mp_pager_prefetch_room(w.pager, 1), 1);
    mp_pager_prefetch(w.pager, 1, ids, 1);
    world_wait_until_idle(&w);
    CHECK_EQ(w.counters.prefetch_issued, 2);
    world_run(&w, 1, ids, 1);
    CHECK_EQ(w.counters.hits, 1);
    CHECK_EQ(w.counters.prefetch_used, 2);
    CHECK_EQ(w.counters.prefetch_bytes, 2 * WORLD_UNIT_BYTES);
    world_close(&w);
}

static void what_is_not_admitted_leaves_but_for_what_was_there(void)
{
    struct mp_admit_ops admit = mp_admit_never;
    struct world w;

    world_open(&four_slices, &w);
    world_run(&w, 0, ids, 2);
    world_run(&w, 0, ids + 2, 1);
    CHECK_EQ(slices_there(&w, 0, 0), 3);
    w.policies.admit_ops = &admit;
    world_run(&w, 0, ids, 1);
    CHECK_EQ(slices_there(&w, 0, 0), 3); /* what was loaded for it is gone */
    world_run(&w, 0, ids + 3, 1);
    CHECK_EQ(slices_there(&w, 0, 3), 0);
    w.policies.admit_ops = &mp_admit_always;
    world_close(&w);
}

/* ---- whoever waits for work is woken; what is computed elsewhere takes no slot */

struct waker {
    struct world *world;
    _Atomic bool ready;
    _Atomic unsigned asked;
};

static bool waker_ready(void *ctx)
{
    struct waker *waker = ctx;

    waker->asked++;
    return waker->ready;
}

static void *wake(void *ctx)
{
    struct waker *waker = ctx;

    while (waker->asked == 0)
        sched_yield();
    waker->ready = true;
    mp_pager_wake(waker->world->pager);
    return NULL;
}

/* A read stands still; the wait for it ends because another thread has something to report. */
static void a_wait_for_bytes_ends_when_it_is_woken(void)
{
    struct world_options options = four_slices;
    struct waker waker = { 0 };
    const struct mp_interrupt interrupt = { .ready = waker_ready, .ctx = &waker };
    struct world_gate gate;
    struct mp_ready ready;
    pthread_t thread;
    struct world w;

    world_gate_init(&gate);
    options.slices = 1;
    options.slots = 2;
    options.reads_clock = &gate.super;
    world_open(&options, &w);
    waker.world = &w;
    world_gate_set(&gate, true);
    CHECK_EQ(world_begin(&w, 0, ids, 1), MP_OK);
    CHECK_EQ(pthread_create(&thread, NULL, wake, &waker), 0);
    CHECK_EQ(mp_pager_next_or(w.pager, &interrupt, &ready), MP_ERR_BUSY);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(waker.asked > 0);
    CHECK_EQ(w.counters.exposed_wait_ns, 0); /* there was something else to do */
    world_gate_set(&gate, false);
    waker.ready = false;
    CHECK_EQ(mp_pager_next_or(w.pager, &interrupt, &ready), MP_OK);
    CHECK_EQ(ready.need, 0);
    mp_pager_done(w.pager, 0);
    mp_pager_end(w.pager);
    world_close(&w);
}

static void what_is_computed_elsewhere_takes_no_slot(void)
{
    const struct mp_need needs[] = {
        { .expert = 0, .tokens = 1, .elsewhere = true },
        { .expert = 1, .tokens = 2 },
        { .expert = 3, .tokens = 1, .elsewhere = true },
    };
    struct mp_ready ready;
    struct world w;

    for (uint32_t slices = 1; slices <= 4; slices += 3) {
        struct world_options options = four_slices;

        options.slices = slices;
        options.slots = slices == 1 ? 3 : 10;
        world_open(&options, &w);
        world_run(&w, 0, ids, 1);
        CHECK_EQ(mp_pager_begin(w.pager, 0, needs, 3), MP_OK);
        CHECK_EQ(w.counters.hits, 1);      /* expert 0, wherever it is computed */
        CHECK_EQ(w.counters.elsewhere, 1); /* expert 3 */
        CHECK_EQ(w.counters.misses, 2);    /* expert 0 at first, and expert 1 */
        for (uint32_t s = 0; s < slices; s++) {
            CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
            CHECK_EQ(ready.need, slices + s);
            mp_pager_done(w.pager, ready.need);
        }
        CHECK_EQ(mp_pager_next(w.pager, &ready), MP_OK);
        CHECK_EQ(ready.need, MP_NEED_NONE);
        mp_pager_end(w.pager);
        CHECK_EQ(w.counters.loads, 2 * slices);
        CHECK(mp_pager_check(w.pager));
        world_close(&w);
    }
}

static void shapes_must_fit_the_space(void)
{
    struct mp_pager *pager = NULL;
    struct world w;

    world_open(&four_slices, &w);
    w.config.shape.slices = 2;
    CHECK_EQ(mp_pager_create(&w.config, &pager), MP_ERR_INVALID);
    w.config.shape.slices = 17;
    CHECK_EQ(mp_pager_create(&w.config, &pager), MP_ERR_INVALID);
    CHECK(pager == NULL);
    world_close(&w);
}

int main(void)
{
    mp_test_drop_log(); /* budgets under one token cycle are warned of, rightly */
    world_prepare();
    RUN(what_leaves_of_an_expert_is_its_end);
    RUN(the_beginning_is_handed_out_while_the_end_loads);
    RUN(an_end_that_came_first_gives_its_slot_back);
    RUN(beginnings_stay_and_ends_come_and_go);
    RUN(guesses_load_what_is_missing);
    RUN(what_is_not_admitted_leaves_but_for_what_was_there);
    RUN(a_wait_for_bytes_ends_when_it_is_woken);
    RUN(what_is_computed_elsewhere_takes_no_slot);
    RUN(shapes_must_fit_the_space);
    return 0;
}
