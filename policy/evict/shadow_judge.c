/*
 * Computes the costs of the ghosts of evict policy `shadow` and chooses the leader; see shadow.c.
 */
#include "policy/evict/shadow.h"

#include <math.h>
#include <string.h>

#define HALF_LIFE 128     /* tokens, of the counts of MP_SHADOW_RECENT */
#define LIKELY_LIFE 7     /* tokens, of likely[] */
#define LIKELY_USES 10.6  /* what a use in each token adds up to in likely[] */
#define DEVIATIONS 2      /* standard, of the leader's loads: less is chance */
#define MEMORY (1.0 / 64) /* an absent expert's weight in `unloaded` */

void mp_shadow_place_first(struct mp_shadow *shadow)
{
    for (uint32_t i = 0; i < shadow->placed && i < shadow->ids; i++) {
        shadow->ghosts[MP_SHADOW_STATIC].held[shadow->order[i]] = 1;
        shadow->ghosts[MP_SHADOW_RECENT].held[shadow->order[i]] = 1;
        shadow->ghosts[MP_SHADOW_LAYERS].held[i] = 1;
    }
    shadow->is_placed = true;
}

/* What the batch takes with these experts resident; executors[] says who then computes. */
static uint64_t batch_cost(struct mp_shadow *shadow, const uint8_t *resident, uint64_t link_busy_ns)
{
    const struct mp_assign_facts facts = {
        .count = shadow->batch_count,
        .tokens = shadow->tokens,
        .resident = resident,
        .costs = shadow->costs,
        .link_busy_ns = link_busy_ns,
    };
    uint64_t misses = 0;

    if (mp_shadow_times_known(shadow))
        return mp_assign_plan(&facts, &shadow->sorter, shadow->executors);
    for (uint32_t i = 0; i < shadow->batch_count; i++) {
        misses += !resident[i];
        shadow->executors[i] = MP_EXECUTOR_HOME;
    }
    return misses;
}

void mp_shadow_refresh(struct mp_shadow *shadow, uint32_t id)
{
    if (shadow->residents.place[id] != MP_EXPERT_NONE && !shadow->ghosts[shadow->leader].held[id])
        mp_residents_add(&shadow->strange, id);
    else
        mp_residents_remove(&shadow->strange, id);
}

static void ghost_loads(struct mp_shadow *shadow, uint32_t g)
{
    struct mp_ghost *ghost = &shadow->ghosts[g];

    for (uint32_t i = 0; i < shadow->batch_count; i++) {
        const uint32_t id = shadow->batch[i];
        uint32_t left;

        if (shadow->resident[i] || shadow->executors[i] != MP_EXECUTOR_HOME)
            continue;
        left = mp_ghost_load(ghost, id);
        if (g == shadow->leader && left != MP_EXPERT_NONE)
            mp_shadow_refresh(shadow, left);
        if (g == shadow->leader)
            mp_shadow_refresh(shadow, id);
    }
}

static void follow(struct mp_shadow *shadow, uint32_t leader)
{
    shadow->leader = leader;
    shadow->was_static |= mp_shadow_is_static(leader);
    shadow->changes++;
    shadow->absent = 0;
    memset(shadow->overrun, 0, sizeof(shadow->overrun));
    memset(shadow->lead, 0, sizeof(shadow->lead));
    for (uint32_t i = 0; i < shadow->residents.count; i++)
        mp_shadow_refresh(shadow, shadow->residents.id[i]);
}

/* How many experts of the ghost the leader's has not: what a change would load. At least one, so
 * that nothing changes for nothing. */
static uint64_t count_different(const struct mp_shadow *shadow, uint32_t g)
{
    const uint8_t *mine = shadow->ghosts[shadow->leader].held, *other = shadow->ghosts[g].held;
    uint32_t count = 0;

    for (uint32_t u = 0; u < shadow->ids; u++)
        count += other[u] & ~mine[u] & 1;
    return count > 0 ? count : 1;
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
    const uint64_t chance = (uint64_t)(DEVIATIONS * sqrt((double)shadow->absent));
    uint32_t best = shadow->leader;

    for (uint32_t g = 0; g < MP_SHADOW_GHOSTS; g++) {
        const uint64_t sum = shadow->lead[g] + cost[shadow->leader];
        const bool back = mp_shadow_is_static(shadow->leader) && !mp_shadow_is_static(g);
        uint64_t enough;

        shadow->lead[g] = sum > cost[g] ? sum - cost[g] : 0;
        if (g >= MP_SHADOW_STATIC && !shadow->is_placed)
            shadow->lead[g] = 0;
        if (shadow->lead[g] <= shadow->lead[best])
            continue;
        enough = (shadow->hysteresis * count_different(shadow, g) / 100 + chance) * load;
        if (shadow->lead[g] > (back ? enough * shadow->patience : enough))
            best = g;
    }
    if (best != shadow->leader) {
        follow(shadow, best);
    } else if (exceeded < MP_SHADOW_GHOSTS) {
        shadow->patience = shadow->patience < 1u << 20 ? shadow->patience * 2 : shadow->patience;
        follow(shadow, exceeded);
    }
}

/* Where the router's scores are known they tell more than what was chosen. */
static void estimate_likely(struct mp_shadow *shadow, uint32_t layer)
{
    const struct mp_ghost_facts *facts = &shadow->facts;
    const uint32_t first = layer * facts->experts;

    if (facts->weighed[layer] <= 0)
        return;
    mp_likely_batch(&shadow->chances, layer, shadow->batch, shadow->tokens, shadow->batch_count);
    for (uint32_t id = first; id < first + facts->experts; id++)
        shadow->likely[id] = LIKELY_USES * mp_likely_share(&shadow->chances, id);
    shadow->likely_weight = 1;
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
    for (uint32_t i = 0; i < shadow->batch_count; i++) {
        if (!shadow->actual[i])
            shadow->unloaded +=
                ((shadow->executors[i] != MP_EXECUTOR_HOME) - shadow->unloaded) * MEMORY;
    }
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
        if (!shadow->facts.scored)
            shadow->likely[shadow->batch[i]] += shadow->likely_weight;
    }
    if (shadow->batch_count > 0)
        mp_ghost_facts_batch(&shadow->facts, shadow->batch[0] / shadow->facts.experts,
                             shadow->batch, shadow->tokens, shadow->batch_count);
    if (shadow->batch_count > 0 && shadow->facts.scored)
        estimate_likely(shadow, shadow->batch[0] / shadow->facts.experts);
    for (uint32_t g = 0; g < MP_SHADOW_GHOSTS; g++) {
        struct mp_ghost *ghost = &shadow->ghosts[g];

        for (uint32_t i = 0; i < shadow->batch_count; i++)
            shadow->resident[i] =
                ghost->held[shadow->batch[i]] && shadow->facts.count[shadow->batch[i]] > 1;
        cost[g] =
            batch_cost(shadow, shadow->resident, 0) + shadow->swaps[g] * (load > 0 ? load : 1);
        shadow->swaps[g] = 0;
        for (uint32_t i = 0; g == shadow->leader && i < shadow->batch_count; i++)
            shadow->absent += !shadow->resident[i] && shadow->executors[i] == MP_EXECUTOR_HOME;
        if (g == MP_SHADOW_STATIC) {
            for (uint32_t i = 0; i < shadow->batch_count; i++)
                shadow->passed +=
                    !ghost->held[shadow->batch[i]] && shadow->executors[i] == MP_EXECUTOR_HOME;
        }
        if (g < MP_SHADOW_STATIC)
            ghost_loads(shadow, g);
        for (uint32_t i = 0; i < shadow->batch_count; i++) {
            if (ghost->held[shadow->batch[i]])
                mp_ghost_attach(ghost, shadow->batch[i]);
        }
    }
    choose_leader(shadow, cost, paid);
}

/* Batches that used the expert, as the ghost counts them. */
static double count_of(const struct mp_shadow *shadow, uint32_t g, uint32_t id)
{
    return g == MP_SHADOW_STATIC ? (double)shadow->facts.count[id]
                                 : shadow->recent[id] / shadow->weight;
}

/* Equal ones are taken from all layers alike, so that all executors have work in every layer. */
static void weigh_experts(struct mp_shadow *shadow, uint32_t g)
{
    const uint32_t experts = shadow->facts.experts;
    uint32_t e = 0;

    for (uint32_t u = 0; u < shadow->ids; u++) {
        shadow->key[u] = (uint64_t)(count_of(shadow, g, u) * 1e6) + experts - e;
        e = e + 1 < experts ? e + 1 : 0;
    }
}

/* A part of order[] with the hottest or the coldest expert on top. To sort all would take
 * milliseconds where there are thousands, and few are ever swapped. */
struct heap {
    const uint64_t *key;
    uint32_t *id;
    uint32_t count;
    bool hottest;
};

static bool is_above(const struct heap *heap, uint32_t a, uint32_t b)
{
    const bool hotter = heap->key[a] > heap->key[b] || (heap->key[a] == heap->key[b] && a < b);

    return hotter == heap->hottest;
}

static void sink(struct heap *heap, uint32_t at)
{
    const uint32_t id = heap->id[at];

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child + 1 < heap->count && is_above(heap, heap->id[child + 1], heap->id[child]))
            child++;
        if (child >= heap->count || !is_above(heap, heap->id[child], id))
            break;
        heap->id[at] = heap->id[child];
        at = child;
    }
    heap->id[at] = id;
}

static void make_heap(struct heap *heap)
{
    for (uint32_t at = heap->count / 2; at-- > 0;)
        sink(heap, at);
}

static uint32_t take_top(struct heap *heap)
{
    const uint32_t top = heap->id[0];

    heap->id[0] = heap->id[--heap->count];
    if (heap->count > 0)
        sink(heap, 0);
    return top;
}

static void hold(struct mp_shadow *shadow, uint32_t g, uint32_t id, bool held)
{
    shadow->ghosts[g].held[id] = held;
    if (shadow->leader == g)
        mp_shadow_refresh(shadow, id);
}

/* The hottest outside against the coldest inside, as long as the difference is more than chance. */
static void place_again(struct mp_shadow *shadow, uint32_t g)
{
    uint8_t *held = shadow->ghosts[g].held;
    struct heap outside = { .key = shadow->key, .id = shadow->order, .hottest = true };
    struct heap inside = { .key = shadow->key };

    weigh_experts(shadow, g);
    inside.id = shadow->order + shadow->ids;
    for (uint32_t u = 0; u < shadow->ids; u++) {
        if (held[u])
            *--inside.id = u;
        else
            outside.id[outside.count++] = u;
    }
    inside.count = shadow->ids - outside.count;
    make_heap(&outside);
    make_heap(&inside);
    while (inside.count > shadow->placed)
        hold(shadow, g, take_top(&inside), false);
    for (uint32_t n = inside.count; n < shadow->placed && outside.count > 0; n++) {
        hold(shadow, g, take_top(&outside), true);
        shadow->swaps[g]++;
    }
    while (outside.count > 0 && inside.count > 0) {
        const uint32_t in = take_top(&outside), out = take_top(&inside);
        const double hot = count_of(shadow, g, in), cold = count_of(shadow, g, out);

        if (hot <= cold + sqrt(hot + cold))
            return;
        hold(shadow, g, in, true);
        hold(shadow, g, out, false);
        shadow->swaps[g]++;
    }
}

/* Slots are left for what passes through, if with the placement anything is loaded on demand at
 * all; where somebody else computes what is absent, all slots are the placement's. */
static void choose_room(struct mp_shadow *shadow)
{
    const bool passes = shadow->passed > 0 || !mp_shadow_others_known(shadow);
    const uint32_t slots = shadow->facts.slots, room = passes ? shadow->room : 0;

    shadow->passed = 0;
    shadow->placed = slots > room ? slots - room : 0;
    for (uint32_t u = 0; u < slots && u < shadow->ids; u++)
        hold(shadow, MP_SHADOW_LAYERS, u, u < shadow->placed);
}

static void place(struct mp_shadow *shadow)
{
    shadow->changes += mp_shadow_places(shadow);
    if (!shadow->is_placed) {
        weigh_experts(shadow, MP_SHADOW_STATIC);
        mp_sorter_sort(shadow->order, shadow->ids, shadow->key);
        mp_shadow_place_first(shadow);
        return;
    }
    choose_room(shadow);
    place_again(shadow, MP_SHADOW_STATIC);
    place_again(shadow, MP_SHADOW_RECENT);
}

/* Counts fade because those that come later weigh more. */
static void fade_counts(const struct mp_shadow *shadow, double half_life, double *counts,
                        double *weight)
{
    *weight *= exp2(1.0 / half_life / shadow->facts.layers);
    if (*weight < 1e100)
        return;
    for (uint32_t u = 0; u < shadow->ids; u++)
        counts[u] /= *weight;
    *weight = 1;
}

void mp_shadow_turn(struct mp_shadow *shadow, uint64_t now)
{
    mp_shadow_settle(shadow);
    shadow->batch_count = 0;
    shadow->settled = false;
    shadow->now = now;
    fade_counts(shadow, HALF_LIFE, shadow->recent, &shadow->weight);
    if (!shadow->facts.scored)
        fade_counts(shadow, LIKELY_LIFE, shadow->likely, &shadow->likely_weight);
    if (++shadow->batches < shadow->choose_at)
        return;
    shadow->choose_at += (uint64_t)MP_SHADOW_TOKENS * shadow->facts.layers;
    place(shadow);
}
