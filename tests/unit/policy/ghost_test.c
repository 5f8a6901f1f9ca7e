/*
 * Ghosts against the evict policies that they stand for: the same units leave, in random histories
 * of single requests, at every number of slots that gives each layer a share.
 */
#include <stdlib.h>

#include "policy/evict/ghost.h"

#include "policy/builtins.h"
#include "tests/unit/policy/instance.h"
#include "tests/support/random.h"

#define LAYERS 3
#define UNITS 24

static uint64_t random_state = 20261124;

/* The policy's victim for `unit`, or MP_EXPERT_NONE while there is room. */
static uint32_t load(const struct mp_evict_ops *ops, struct mp_policy *policy, uint8_t *resident,
                     uint32_t *count, const struct mp_shape *shape, uint32_t unit, uint64_t now)
{
    const struct mp_evict_query query = { .for_id = unit,
                                          .scope_layer = MP_LAYER_ANY,
                                          .experts = shape->experts,
                                          .evictable = resident };
    uint32_t victim = MP_EXPERT_NONE;

    if (*count == shape->slots) {
        victim = ops->pick(policy, &query);
        CHECK(victim < UNITS && resident[victim]);
        ops->on_remove(policy, victim, now);
        resident[victim] = 0;
        --*count;
    }
    ops->on_insert(policy, unit, now);
    resident[unit] = 1;
    ++*count;
    return victim;
}

static void play(enum mp_ghost_kind kind, const struct mp_evict_ops *ops, uint32_t layers,
                 uint32_t slots)
{
    const struct mp_shape shape = {
        .layers = layers, .experts = UNITS / layers, .top_k = 1, .tokens_max = 1, .slots = slots
    };
    struct mp_policy *policy = instance(&ops->info, ops->create, &shape, NULL);
    uint8_t resident[UNITS] = { 0 };
    struct mp_arena arena = { 0 };
    struct mp_ghost_facts facts;
    struct mp_ghost ghost;
    uint32_t count = 0;

    mp_ghost_facts_take(&facts, &shape, &arena);
    mp_ghost_take(&ghost, kind, &facts, &arena);
    CHECK_EQ(mp_arena_open(&arena, "a test"), MP_OK);
    mp_ghost_facts_take(&facts, &shape, &arena);
    mp_ghost_take(&ghost, kind, &facts, &arena);
    for (uint32_t i = 0; i < 2000; i++) {
        /* A favoured third, so that counts differ. */
        const uint32_t unit = random_below(random_below(2) ? UNITS : UNITS / 3);

        if (resident[unit])
            mp_ghost_detach(&ghost, unit);
        mp_ghost_facts_use(&facts, unit, 1);
        ops->on_access(policy, unit, 1, i + 1);
        CHECK_EQ(ghost.held[unit], resident[unit]);
        if (!resident[unit])
            CHECK_EQ(mp_ghost_load(&ghost, unit),
                     load(ops, policy, resident, &count, &shape, unit, i + 1));
        mp_ghost_attach(&ghost, unit);
        CHECK_EQ(ghost.count, count);
    }
    free(arena.block);
    ops->destroy(policy);
}

static void ghosts_hold_what_policies_would(void)
{
    for (uint32_t slots = 1; slots <= UNITS; slots++) {
        if (slots >= LAYERS) /* a layer with no share at all takes from anywhere */
            play(MP_GHOST_LAYER_LRU, &mp_evict_layer_lru, LAYERS, slots);
        play(MP_GHOST_LAYER_LFU, &mp_evict_layer_lfu, LAYERS, slots);
        play(MP_GHOST_LCP, &mp_evict_lcp, 1,
             slots); /* layers that are run equally often fade alike */
    }
}

/* What nobody has used is in the order of its numbers. */
static void ties_are_in_the_order_of_numbers(void)
{
    const struct mp_shape shape = {
        .layers = 1, .experts = 4, .top_k = 1, .tokens_max = 1, .slots = 2
    };

    for (int kind = MP_GHOST_LAYER_LFU; kind <= MP_GHOST_STATIC; kind++) {
        struct mp_arena arena = { 0 };
        struct mp_ghost_facts facts;
        struct mp_ghost ghost;

        mp_ghost_facts_take(&facts, &shape, &arena);
        mp_ghost_take(&ghost, (enum mp_ghost_kind)kind, &facts, &arena);
        CHECK_EQ(mp_arena_open(&arena, "a test"), MP_OK);
        mp_ghost_facts_take(&facts, &shape, &arena);
        mp_ghost_take(&ghost, (enum mp_ghost_kind)kind, &facts, &arena);
        for (uint32_t a = 0; a < 4; a++) {
            for (uint32_t b = 0; b < 4; b++)
                CHECK_EQ(mp_ghost_before(&ghost, a, b), a < b);
        }
        free(arena.block);
    }
}

int main(void)
{
    RUN(ghosts_hold_what_policies_would);
    RUN(ties_are_in_the_order_of_numbers);
    return 0;
}
