/*
 * The judge of evict policy `shadow`; evict_shadow.c says what it is for.
 */
#include "policy/shadow.h"

#include <math.h>
#include <string.h>

#define HALF_LIFE 128 /* tokens, of the counts of MP_SHADOW_RECENT */

void mp_shadow_place_first(struct mp_shadow *shadow)
{
    for (uint32_t i = 0; i < shadow->placed && i < shadow->units; i++) {
        shadow->ghosts[MP_SHADOW_STATIC].held[shadow->order[i]] = 1;
        shadow->ghosts[MP_SHADOW_RECENT].held[shadow->order[i]] = 1;
        shadow->ghosts[MP_SHADOW_LAYERS].held[i] = 1;
    }
    shadow->is_placed = true;
}

/*
 * What the batch takes with these units resident; executors[] says who then computes. Which
 * executors the machine has is told by what is known of their costs.
 */
static uint64_t batch_cost(struct mp_shadow *shadow, const uint8_t *resident, uint64_t link_busy_ns)
{
    const struct mp_assign_facts facts = {
        .count = shadow->batch_count,
        .tokens = shadow->tokens,
        .resident = resident,
        .executors = 1u << MP_EXECUTOR_DEVICE | 1u << MP_EXECUTOR_CPU | 1u << MP_EXECUTOR_IN_PLACE,
        .costs = shadow->costs,
        .link_busy_ns = link_busy_ns,
    };
    uint64_t misses = 0;

    if (mp_shadow_times_known(shadow))
        return mp_assign_plan(&facts, &shadow->sorter, shadow->executors);
    for (uint32_t i = 0; i < shadow->batch_count; i++) {
        misses += !resident[i];
        shadow->executors[i] = MP_EXECUTOR_DEVICE;
    }
    return misses;
}

void mp_shadow_refresh(struct mp_shadow *shadow, uint32_t unit)
{
    if (shadow->residents.place[unit] != MP_UNIT_NONE && !shadow->ghosts[shadow->leader].held[unit])
        mp_residents_add(&shadow->strange, unit);
    else
        mp_residents_remove(&shadow->strange, unit);
}

static void ghost_loads(struct mp_shadow *shadow, uint32_t g)
{
    struct mp_ghost *ghost = &shadow->ghosts[g];

    for (uint32_t i = 0; i < shadow->batch_count; i++) {
        const uint32_t unit = shadow->batch[i];
        uint32_t left;

        if (shadow->resident[i] || shadow->executors[i] != MP_EXECUTOR_DEVICE)
            continue;
        left = mp_ghost_load(ghost, unit);
        if (g == shadow->leader && left != MP_UNIT_NONE)
            mp_shadow_refresh(shadow, left);
        if (g == shadow->leader)
            mp_shadow_refresh(shadow, unit);
    }
}

static void follow(struct mp_shadow *shadow, uint32_t leader)
{
    shadow->leader = leader;
    shadow->was_static |= mp_shadow_is_static(leader);
    shadow->changes++;
    memset(shadow->overrun, 0, sizeof(shadow->overrun));
    memset(shadow->lead, 0, sizeof(shadow->lead));
    for (uint32_t i = 0; i < shadow->residents.count; i++)
        mp_shadow_refresh(shadow, shadow->residents.unit[i]);
}

/* Which static ghost is exceeded by more than `limit` by what is really paid, or none (GHOSTS). */
static uint32_t overrun(struct mp_shadow *shadow, const uint64_t cost[MP_SHADOW_GHOSTS],
                        uint64_t paid, uint64_t limit)
{
    uint32_t exceeded = MP_SHADOW_GHOSTS;

    for (uint32_t i = 0; i < MP_ARRAY_LEN(shadow->overrun); i++) {
        const uint64_t sum = shadow->overrun[i] + paid, fixed = cost[MP_SHADOW_STATIC + i];

        shadow->overrun[i] = sum > fixed && shadow->is_placed ? sum - fixed : 0;
        if (shadow->overrun[i] > limit)
            exceeded = MP_SHADOW_STATIC + i;
    }
    return mp_shadow_is_static(shadow->leader) ? MP_SHADOW_GHOSTS : exceeded;
}

/* Change the leader if another one is clearly cheaper, or what is paid is too much. */
static void choose_leader(struct mp_shadow *shadow, const uint64_t cost[MP_SHADOW_GHOSTS],
                          uint64_t paid)
{
    const uint64_t load = mp_shadow_times_known(shadow) ? shadow->costs->load_ns : 1;
    const uint64_t limit = shadow->hysteresis * shadow->facts.slots * load / 100;
    const uint32_t exceeded = overrun(shadow, cost, paid, limit);
    uint32_t best = shadow->leader;

    for (uint32_t g = 0; g < MP_SHADOW_GHOSTS; g++) {
        const uint64_t sum = shadow->lead[g] + cost[shadow->leader];
        const bool back = mp_shadow_is_static(shadow->leader) && !mp_shadow_is_static(g);

        shadow->lead[g] = sum > cost[g] ? sum - cost[g] : 0;
        if (g >= MP_SHADOW_STATIC && !shadow->is_placed)
            shadow->lead[g] = 0;
        if (shadow->lead[g] > (back ? limit * shadow->patience : limit) &&
            shadow->lead[g] > shadow->lead[best])
            best = g;
    }
    if (best != shadow->leader) {
        follow(shadow, best);
    } else if (exceeded < MP_SHADOW_GHOSTS) {
        shadow->patience = shadow->patience < 1u << 20 ? shadow->patience * 2 : shadow->patience;
        follow(shadow, exceeded);
    }
}

void mp_shadow_settle(struct mp_shadow *shadow)
{
    const uint64_t layer_ns = mp_shadow_times_known(shadow) ? shadow->costs->layer_ns : 0;
    const uint64_t load = mp_shadow_times_known(shadow) ? shadow->costs->load_ns : 0;
    uint64_t cost[MP_SHADOW_GHOSTS], paid;

    if (shadow->settled)
        return;
    shadow->settled = true;
    /* At most one of the loads that nobody waits for is in a demand's way. */
    paid = batch_cost(shadow, shadow->actual, shadow->debt_ns < load ? shadow->debt_ns : load);
    shadow->debt_ns -= shadow->debt_ns < paid + layer_ns ? shadow->debt_ns : paid + layer_ns;
    for (uint32_t g = 0; g < MP_SHADOW_GHOSTS; g++) {
        for (uint32_t i = 0; i < shadow->batch_count; i++) {
            if (shadow->ghosts[g].held[shadow->batch[i]])
                mp_ghost_detach(&shadow->ghosts[g], shadow->batch[i]);
        }
    }
    for (uint32_t i = 0; i < shadow->batch_count; i++) {
        mp_ghost_facts_use(&shadow->facts, shadow->batch[i], shadow->tokens[i]);
        shadow->recent[shadow->batch[i]] += shadow->weight;
    }
    for (uint32_t g = 0; g < MP_SHADOW_GHOSTS; g++) {
        struct mp_ghost *ghost = &shadow->ghosts[g];

        for (uint32_t i = 0; i < shadow->batch_count; i++)
            shadow->resident[i] = ghost->held[shadow->batch[i]];
        cost[g] =
            batch_cost(shadow, shadow->resident, 0) + shadow->swaps[g] * (load > 0 ? load : 1);
        shadow->swaps[g] = 0;
        if (g < MP_SHADOW_STATIC)
            ghost_loads(shadow, g);
        for (uint32_t i = 0; i < shadow->batch_count; i++) {
            if (ghost->held[shadow->batch[i]])
                mp_ghost_attach(ghost, shadow->batch[i]);
        }
    }
    choose_leader(shadow, cost, paid);
}

/* Batches that used the unit, as the ghost counts them. */
static double count_of(const struct mp_shadow *shadow, uint32_t g, uint32_t unit)
{
    return g == MP_SHADOW_STATIC ? (double)shadow->facts.count[unit]
                                 : shadow->recent[unit] / shadow->weight;
}

/* Hottest first. Equal ones are taken from all layers alike: the lanes of every layer are then busy
 * side by side. */
static void sort_units(struct mp_shadow *shadow, uint32_t g)
{
    const uint32_t experts = shadow->facts.experts;

    for (uint32_t u = 0; u < shadow->units; u++)
        shadow->key[u] = (uint64_t)(count_of(shadow, g, u) * 1e6) + experts - u % experts;
    mp_sorter_sort(shadow->order, shadow->units, shadow->key);
}

/* The hottest outside against the coldest inside, as long as the difference is more than chance. */
static void place_again(struct mp_shadow *shadow, uint32_t g)
{
    uint8_t *held = shadow->ghosts[g].held;
    uint32_t in = 0, out = shadow->units;

    sort_units(shadow, g);
    for (;; shadow->swaps[g]++) {
        double hot, cold;

        while (in < shadow->units && held[shadow->order[in]])
            in++;
        while (out > 0 && !held[shadow->order[out - 1]])
            out--;
        if (in >= shadow->units || out == 0 || in >= out)
            return;
        hot = count_of(shadow, g, shadow->order[in]);
        cold = count_of(shadow, g, shadow->order[out - 1]);
        if (hot <= cold + sqrt(hot + cold))
            return;
        held[shadow->order[in]] = 1;
        held[shadow->order[out - 1]] = 0;
        if (shadow->leader == g) {
            mp_shadow_refresh(shadow, shadow->order[in]);
            mp_shadow_refresh(shadow, shadow->order[out - 1]);
        }
    }
}

static void place(struct mp_shadow *shadow)
{
    shadow->changes += mp_shadow_places(shadow);
    if (!shadow->is_placed) {
        sort_units(shadow, MP_SHADOW_STATIC);
        mp_shadow_place_first(shadow);
        return;
    }
    place_again(shadow, MP_SHADOW_STATIC);
    place_again(shadow, MP_SHADOW_RECENT);
}

/* Counts fade because those that come later weigh more. */
static void fade(struct mp_shadow *shadow)
{
    shadow->weight *= exp2(1.0 / HALF_LIFE / shadow->facts.layers);
    if (shadow->weight < 1e100)
        return;
    for (uint32_t u = 0; u < shadow->units; u++)
        shadow->recent[u] /= shadow->weight;
    shadow->weight = 1;
}

void mp_shadow_turn(struct mp_shadow *shadow, uint64_t now)
{
    mp_shadow_settle(shadow);
    shadow->batch_count = 0;
    shadow->settled = false;
    shadow->now = now;
    fade(shadow);
    if (++shadow->batches < shadow->choose_at)
        return;
    shadow->choose_at += (uint64_t)MP_SHADOW_TOKENS * shadow->facts.layers;
    place(shadow);
}
