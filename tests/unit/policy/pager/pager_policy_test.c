/*
 * The pager and its policies: what they decide is carried out, whatever they keep or refuse to
 * name.
 */
#include "policy/pager/pager.h"
#include "tests/unit/policy/pager/two_layers.h"

#include "policy/builtins.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

static char warning[1024];
static unsigned warnings;

static void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    if (level == MP_LOG_WARN && strstr(line, "pager") != NULL) {
        warnings++;
        snprintf(warning, sizeof(warning), "%s", line);
    }
}

static void quotas_keep_the_layers_apart(void)
{
    static const uint32_t a[] = { 0, 1 }, b[] = { 2, 3 }, three[] = { 4, 5, 6 };
    const struct world_options options = { .layers = 3,
                                           .experts = 8,
                                           .top_k = 2,
                                           .slots = 6,
                                           .names.policy[MP_POLICY_PARTITION] = "uniform" };
    struct world w;

    world_open(&options, &w);
    for (uint32_t l = 0; l < 3; l++)
        CHECK_EQ(mp_pager_quota(w.pager, l), 2);
    world_run(&w, 0, a, 2);
    world_run(&w, 1, a, 2);
    world_run(&w, 0, b, 2); /* two slots are free, but layer 0 has its two */
    CHECK(!world_is_resident(&w, 0, 0) && !world_is_resident(&w, 0, 1));
    CHECK(world_is_resident(&w, 0, 2) && world_is_resident(&w, 0, 3));
    CHECK(world_is_resident(&w, 1, 0) && world_is_resident(&w, 1, 1));
    CHECK_EQ(w.counters.evictions, 2);
    world_run(&w, 0, three, 3); /* more than the quota at once: one free slot beyond it */
    CHECK(world_is_resident(&w, 0, 4) && world_is_resident(&w, 0, 5) &&
          world_is_resident(&w, 0, 6));
    CHECK(world_is_resident(&w, 1, 0) && world_is_resident(&w, 1, 1));
    CHECK_EQ(w.counters.evictions, 4);
    world_run(&w, 2, a, 2); /* one free slot, then layer 0 gives back what is not its own */
    CHECK_EQ(w.counters.evictions, 5);
    CHECK(world_is_resident(&w, 1, 0) && world_is_resident(&w, 1, 1));
    CHECK(world_is_resident(&w, 2, 0) && world_is_resident(&w, 2, 1));
    world_close(&w);
}

static void under_one_token_cycle_global_orders_are_divided(void)
{
    struct world_options options = { .layers = 4, .experts = 8, .top_k = 2, .slots = 7 };
    struct world w;

    warnings = 0;
    world_open(&options, &w); /* 7 slots, 8 experts of one token */
    CHECK_EQ(warnings, 1);
    CHECK(strstr(warning, "7 slots") != NULL && strstr(warning, "8 experts") != NULL);
    for (uint32_t l = 0; l < 4; l++)
        CHECK_EQ(mp_pager_quota(w.pager, l), l < 3 ? 2 : 1);
    for (unsigned i = 0; i < 10; i++) {
        for (uint32_t l = 0; l < 4; l++)
            world_run(&w, l, ids, 2);
    }
    CHECK_EQ(warnings, 1);
    /* The first three layers hit from the second round on; the last holds one of its two. */
    CHECK(w.counters.hits >= 9 * 6);
    world_close(&w);

    options.slots = 8; /* one token cycle */
    world_open(&options, &w);
    CHECK_EQ(mp_pager_quota(w.pager, 0), MP_LAYER_ANY);
    world_close(&w);
    options.slots = 7;
    options.names.policy[MP_POLICY_EVICT] = "layer-lru"; /* minds the layers itself */
    world_open(&options, &w);
    CHECK_EQ(mp_pager_quota(w.pager, 0), MP_LAYER_ANY);
    world_close(&w);
    CHECK_EQ(warnings, 1);
}

static void two_slots_suffice_for_every_evict_policy(void)
{
    const struct mp_policy_info *info;

    for (size_t i = 0; (info = mp_policy_builtin(MP_POLICY_EVICT, i)) != NULL; i++) {
        struct world_options options = { .layers = 3, .experts = 8, .top_k = 8, .slots = 2 };
        struct world w;

        options.names.policy[MP_POLICY_EVICT] = info->name;
        options.deterministic = i % 2 == 0;
        world_open(&options, &w);
        for (unsigned round = 0; round < 3; round++) {
            for (uint32_t l = 0; l < 3; l++)
                world_run(&w, l, ids, 8);
        }
        CHECK_EQ(w.counters.hits + w.counters.misses, 72);
        CHECK(w.counters.resident_peak_bytes <= 2 * UB);
        CHECK_EQ(w.counters.invalid_decisions, 0);
        world_close(&w);
    }
}

/* All calls of the evict policy, in order, as one number. */
static uint64_t decisions, decision_count;

static void note(uint64_t what, uint64_t value)
{
    decisions = (decisions ^ (what << 32 | value)) * UINT64_C(1099511628211);
    decision_count++;
}

static void noting_insert(struct mp_policy *policy, uint32_t unit, uint64_t now)
{
    note(1, unit), note(1, now);
    mp_evict_random.on_insert(policy, unit, now);
}

static void noting_remove(struct mp_policy *policy, uint32_t unit, uint64_t now)
{
    note(2, unit), note(2, now);
    mp_evict_random.on_remove(policy, unit, now);
}

static uint32_t noting_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const uint32_t unit = mp_evict_random.pick(policy, query);

    note(3, unit), note(3, query->for_id), note(3, query->scope_layer);
    for (uint32_t u = 0; u < 48; u++)
        note(4, query->evictable[u]);
    return unit;
}

static void deterministic_runs_make_the_same_decisions(void)
{
    static struct mp_evict_ops ops;
    uint64_t first = 0, first_count = 0, seed;
    struct world_options options = {
        .layers = 4, .experts = 12, .top_k = 2, .slots = 9, .deterministic = true, .seed = 11
    };

    options.names.policy[MP_POLICY_EVICT] = "random";
    ops = mp_evict_random;
    ops.on_insert = noting_insert;
    ops.on_remove = noting_remove;
    ops.pick = noting_pick;
    for (unsigned run = 0; run < 6; run++) {
        struct world w;

        options.uring = run % 2 == 1; /* other timing */
        world_open(&options, &w);
        w.policies.evict_ops = &ops;
        decisions = decision_count = 0;
        seed = 77;
        for (unsigned step = 0; step < 200; step++) {
            const uint32_t layer = step % 4;
            uint32_t experts[12], count = 0;

            for (uint32_t e = 0; e < 12; e++) {
                seed = seed * UINT64_C(6364136223846793005) + 1;
                if (seed >> 62 == 0 || step % 16 == 0)
                    experts[count++] = e;
            }
            CHECK_EQ(world_begin(&w, layer, experts, count), MP_OK);
            mp_pager_prefetch(w.pager, (layer + 1) % 4, experts, count);
            if (run > 2)
                world_wait_until_idle(&w); /* other timing still */
            CHECK_EQ(world_finish(&w, layer, experts, count), MP_OK);
        }
        if (run == 0) {
            first = decisions;
            first_count = decision_count;
            CHECK(w.counters.prefetch_used > 0 && w.counters.hits > 0 && w.counters.evictions > 0);
        }
        CHECK_EQ(decision_count, first_count);
        CHECK_EQ(decisions, first);
        world_close(&w);
    }
}

static uint32_t pick_nobody(struct mp_policy *policy, const struct mp_evict_query *query)
{
    (void)policy;
    (void)query;
    return MP_EXPERT_NONE;
}

static void a_policy_that_keeps_everything_stalls_no_demand(void)
{
    static struct mp_evict_ops ops;
    struct world w;

    world_open(&two_layers, &w);
    ops = mp_evict_lru;
    ops.pick = pick_nobody;
    w.policies.evict_ops = &ops;
    world_run(&w, 0, ids, 8);
    CHECK_EQ(w.counters.invalid_decisions, 0);
    mp_pager_prefetch(w.pager, 1, ids, 2); /* it may refuse these */
    CHECK_EQ(w.counters.prefetch_issued, 0);
    CHECK_EQ(w.counters.invalid_decisions, 0);
    world_run(&w, 1, ids, 5);
    CHECK_EQ(w.counters.invalid_decisions, 5);
    world_close(&w);
}

static bool admit_even(struct mp_policy *policy, uint32_t unit, uint32_t tokens, uint64_t now)
{
    (void)policy;
    CHECK(tokens == 1 && now > 0);
    return unit % 2 == 0;
}

static void what_is_not_admitted_leaves_with_its_layer(void)
{
    static struct mp_admit_ops ops;
    struct world w;

    world_open(&two_layers, &w);
    ops = mp_admit_always;
    ops.admit = admit_even;
    w.policies.admit_ops = &ops;
    world_run(&w, 0, ids, 4);
    for (uint32_t e = 0; e < 4; e++)
        CHECK_EQ(world_is_resident(&w, 0, e), e % 2 == 0);
    mp_pager_prefetch(w.pager, 1, &ids[1], 1); /* not a demand: stays */
    world_wait_until_idle(&w);
    world_run(&w, 1, &ids[1], 1);
    CHECK(world_is_resident(&w, 1, 1));
    world_close(&w);
}

/* Whoever may leave has a slot that fits. */
static const struct world *asking;
static unsigned picks;

static uint32_t pick_that_fits(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const uint32_t class_index = mp_space_unit_class(asking->space, query->for_id);

    for (uint32_t u = 0; u < asking->unit_count; u++)
        CHECK(!query->evictable[u] || mp_space_unit_class(asking->space, u) == class_index);
    picks++;
    return mp_evict_lru.pick(policy, query);
}

static void victims_are_of_the_size_that_is_needed(void)
{
    static struct mp_evict_ops ops;
    struct world_options options = { .layers = 1, .experts = 12, .top_k = 2, .slots = 4 };

    for (options.sizes = 2; options.sizes <= 3; options.sizes++) {
        struct world w;

        world_open(&options, &w);
        CHECK_EQ(mp_space_class_count(w.space), options.sizes);
        ops = *w.policies.evict_ops;
        ops.pick = pick_that_fits;
        w.policies.evict_ops = &ops;
        asking = &w;
        picks = 0;
        for (uint32_t e = 0; e < 24; e++)
            world_run(&w, 0, &ids[e % 12], 1);
        CHECK(picks > 12);
        CHECK_EQ(w.counters.invalid_decisions, 0);
        w.policies.evict_ops = &mp_evict_lru;
        world_close(&w);
    }
}

/* A policy that keeps its residents: what a placement keeps takes the room of what it does not. */
static void what_is_placed_comes_whatever_the_policy_keeps(void)
{
    static const uint8_t placed[16] = {
        [12] = MP_PLACED_KEEP, MP_PLACED_SOLE, MP_PLACED_KEEP, MP_PLACED_SOLE
    };
    struct world_options options = two_layers;
    struct world w;

    options.names = (struct mp_policy_names){ .profile = "lru", .policy[MP_POLICY_EVICT] = "none" };
    world_open(&options, &w);
    for (uint32_t i = 0; i < 2; i++) { /* full: 0 to 3 of both layers */
        for (uint32_t layer = 0; layer < 2; layer++)
            world_run(&w, layer, ids + 2 * i, 2);
    }
    mp_pager_place(w.pager, placed);
    mp_pager_fill_placed(w.pager, NULL, NULL);
    world_wait_until_idle(&w);
    for (uint32_t expert = 4; expert < 8; expert++)
        CHECK(world_is_resident(&w, 1, expert));
    CHECK_EQ(w.counters.prefetch_issued, 4);
    CHECK_EQ(w.counters.invalid_decisions, 0);
    CHECK(mp_pager_check(w.pager));
    world_close(&w);
}

/* Another client holds all slots: an error that names the layer, which goes on when one is free. */
static void a_layer_without_any_slot_to_free_is_an_error(void)
{
    const struct world_options options = { .layers = 2, .experts = 8, .top_k = 1, .slots = 2 };
    const void *pieces[MP_UNIT_PIECES_MAX];
    struct mp_ready ready;
    struct world w;

    world_open(&options, &w);
    world_run(&w, 0, ids, 1);
    world_run(&w, 1, ids, 1);
    CHECK_EQ(mp_space_lease(w.space, 0, pieces), MP_OK);
    CHECK_EQ(mp_space_lease(w.space, 8, pieces), MP_OK);
    CHECK_EQ(world_begin(&w, 1, ids + 1, 1), MP_OK);
    CHECK_EQ(mp_pager_next(w.pager, &ready), MP_ERR_INVALID);
    CHECK_STR(mp_error_last()->code, "E_PAGER_STUCK");
    CHECK(strstr(mp_error_last()->text, "layer 1 has needs, but no slot can be freed") != NULL);
    mp_space_release(w.space, 0);
    CHECK_EQ(world_finish(&w, 1, ids + 1, 1), MP_OK);
    mp_space_release(w.space, 8);
    world_close(&w);
}

int main(void)
{
    mp_log_set_sink(keep_line, NULL);
    world_prepare();
    RUN(quotas_keep_the_layers_apart);
    RUN(under_one_token_cycle_global_orders_are_divided);
    RUN(two_slots_suffice_for_every_evict_policy);
    RUN(deterministic_runs_make_the_same_decisions);
    RUN(a_policy_that_keeps_everything_stalls_no_demand);
    RUN(what_is_not_admitted_leaves_with_its_layer);
    RUN(victims_are_of_the_size_that_is_needed);
    RUN(what_is_placed_comes_whatever_the_policy_keeps);
    RUN(a_layer_without_any_slot_to_free_is_an_error);
    return 0;
}
