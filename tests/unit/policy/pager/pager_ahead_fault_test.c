/*
 * Reads ahead that fail or end at any moment: a guess hides no error and loses no demand.
 */
#include "policy/pager/pager.h"
#include "tests/unit/policy/pager/two_layers.h"

#include <errno.h>

#include "policy/builtins.h"
#include "tests/support/fault/wrap.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

static void a_failed_prefetch_is_only_a_guess(void)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = FAULT_BIT(pread) };
    struct world_options options = two_layers;

    for (unsigned deterministic = 0; deterministic < 2; deterministic++) {
        struct world w;

        options.deterministic = deterministic != 0;
        world_open(&options, &w);
        fault_begin(&plan);
        mp_pager_prefetch(w.pager, 1, ids, 2);
        world_wait_until_idle(&w);
        CHECK(fault_end() > 0);
        world_run(&w, 1, ids, 3); /* read again, as demands */
        CHECK_EQ(w.counters.loads, 3);
        CHECK_EQ(w.counters.prefetch_bytes, 0);
        CHECK_EQ(w.counters.prefetch_issued, 2);
        world_close(&w);
        CHECK_EQ(w.counters.prefetch_unused_bytes, 0);
    }
}

/* What ended a run is reported after everything is destroyed. */
static void a_failed_prefetch_hides_no_error_at_the_end(void)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = FAULT_BIT(pread) };
    struct world w;

    world_open(&two_layers, &w);
    fault_begin(&plan);
    mp_pager_prefetch(w.pager, 1, ids, 2);
    world_wait_until_idle(&w);
    CHECK(fault_end() > 0);
    CHECK_EQ(mp_fail(MP_ERR_IO, "E_TEST", "the reason"), MP_ERR_IO);
    world_close(&w);
    CHECK_STR(mp_error_last()->text, "the reason");
    mp_error_clear();
}

/* The read of a guess fails while a need waits for it: the need is read for itself. */
static void a_promoted_prefetch_that_fails_is_read_again(void)
{
    const struct fault_plan plan = { .mode = FAULT_ONCE,
                                     .calls = FAULT_BIT(pread),
                                     .error_number = EACCES };
    struct world_options options = two_layers;
    struct world_gate gate;
    struct world w;

    world_gate_init(&gate);
    options.reads_clock = &gate.super;
    world_open(&options, &w);
    world_gate_set(&gate, true);
    mp_pager_prefetch(w.pager, 1, ids, 1);
    world_gate_wait(&gate);
    CHECK_EQ(world_begin(&w, 1, ids, 1), MP_OK);
    fault_begin(&plan);
    world_gate_set(&gate, false);
    CHECK_EQ(world_finish(&w, 1, ids, 1), MP_OK);
    CHECK_EQ(fault_end(), 1);
    CHECK_EQ(w.counters.read_errors, 1);
    CHECK_EQ(w.counters.prefetch_bytes, 0);
    CHECK_EQ(w.counters.load_bytes, UB);
    world_close(&w);
}

/* lru, with something happening at the first access. */
static struct world_gate hook_gate;
static struct world *hook_world;

static void opening_on_access(struct mp_policy *policy, uint32_t unit, uint32_t tokens,
                              uint64_t now)
{
    if (hook_world != NULL) {
        world_gate_set(&hook_gate, false);
        world_wait_until_idle(hook_world);
        hook_world = NULL;
    }
    mp_evict_lru.on_access(policy, unit, tokens, now);
}

/* The read ends between the two looks that begin takes at it. */
static void a_prefetch_may_end_at_any_moment_of_begin(void)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = FAULT_BIT(pread) };
    static struct mp_evict_ops ops;
    struct world_options options = two_layers;

    for (unsigned fail = 0; fail < 2; fail++) {
        struct world w;

        world_gate_init(&hook_gate);
        options.reads_clock = &hook_gate.super;
        world_open(&options, &w);
        ops = mp_evict_lru;
        ops.on_access = opening_on_access;
        w.policies.evict_ops = &ops;
        world_gate_set(&hook_gate, true);
        if (fail)
            fault_begin(&plan);
        mp_pager_prefetch(w.pager, 1, ids, 1);
        world_gate_wait(&hook_gate);
        hook_world = &w;
        CHECK_EQ(world_begin(&w, 1, ids, 1), MP_OK);
        CHECK(hook_world == NULL);
        if (fail) {
            CHECK_EQ(world_finish(&w, 1, ids, 1), MP_ERR_IO); /* the demand failed as well */
            CHECK(fault_end() > 0);
            mp_pager_abort(w.pager);
            CHECK(mp_pager_check(w.pager));
        } else {
            CHECK_EQ(w.counters.hits, 1);
            CHECK_EQ(world_finish(&w, 1, ids, 1), MP_OK);
        }
        world_run(&w, 1, ids, 8);
        CHECK_EQ(w.counters.prefetch_bytes, fail ? 0 : UB);
        world_close(&w);
        CHECK_EQ(w.counters.prefetch_unused_bytes, 0);
    }
}

static void a_demand_takes_the_slot_of_a_prefetch_in_flight(void)
{
    /* Four slots, one of them with a prefetch, and all four are needed. */
    struct world_options options = { .layers = 2, .experts = 8, .top_k = 2, .slots = 4 };

    for (unsigned started = 0; started < 2; started++) {
        struct world_gate gate;
        struct world w;

        world_gate_init(&gate);
        options.reads_clock = &gate.super;
        world_open(&options, &w);
        world_gate_set(&gate, true);
        if (started) {
            mp_pager_prefetch(w.pager, 1, ids, 1);
            world_gate_wait(&gate);
        } else {
            CHECK_EQ(world_begin(&w, 0, ids, 1), MP_OK); /* something else keeps the reader busy */
            world_gate_wait(&gate);
            mp_pager_abort(w.pager);
            mp_pager_prefetch(w.pager, 1, ids, 1);
        }
        CHECK_EQ(mp_pager_prefetch_room(w.pager, 1), 0);
        world_gate_set(&gate, false);
        CHECK_EQ(world_begin(&w, 0, ids, 8), MP_OK);
        CHECK_EQ(world_finish(&w, 0, ids, 8), MP_OK);
        CHECK(mp_pager_check(w.pager));
        world_close(&w);
        CHECK(w.counters.prefetch_unused_bytes <= w.counters.prefetch_bytes);
        CHECK_EQ(w.counters.prefetch_canceled + w.counters.prefetch_bytes / UB, 1);
    }
}

int main(void)
{
    world_prepare();
    RUN(a_failed_prefetch_is_only_a_guess);
    RUN(a_failed_prefetch_hides_no_error_at_the_end);
    RUN(a_promoted_prefetch_that_fails_is_read_again);
    RUN(a_prefetch_may_end_at_any_moment_of_begin);
    RUN(a_demand_takes_the_slot_of_a_prefetch_in_flight);
    return 0;
}
