#ifndef MP_POLICY_SHADOW_H
#define MP_POLICY_SHADOW_H

#include "policy/assign/plan.h"
#include "policy/evict/ghost.h"
#include "policy/evict/likely.h"
#include "policy/residents.h"

/*
 * What the two parts of evict policy `shadow` share: shadow.c is the policy, shadow_judge.c
 * computes the cost of each ghost, the leader, and the sets of the ghosts that place experts.
 */
#define MP_SHADOW_GHOSTS 9u
#define MP_SHADOW_STATIC \
    6u /* this ghost and later ones place experts instead of loading on demand */
#define MP_SHADOW_LAYERS 7u
#define MP_SHADOW_RECENT 8u
#define MP_SHADOW_TOKENS 16u /* between placements */

struct mp_shadow {
    struct mp_policy super;
    struct mp_residents residents;
    struct mp_residents strange; /* residents that are not in the leader's ghost */
    struct mp_ghost_facts facts;
    struct mp_likely chances; /* where scores are given */
    struct mp_ghost ghosts[MP_SHADOW_GHOSTS];
    uint64_t lead[MP_SHADOW_GHOSTS]; /* how much cheaper than the leader it has been */
    /* Actual cost in excess of that of STATIC and LAYERS. */
    uint64_t overrun[2];
    uint64_t patience; /* multiple of the hysteresis needed to leave the static placement */
    const struct mp_costs *costs;
    uint32_t ids, leader, changes;
    uint64_t absent;     /* loads of the leader's ghost since it leads */
    uint32_t placed;     /* experts of a ghost that places them */
    uint32_t room;       /* slots that it leaves free if anything is loaded on demand */
    uint64_t passed;     /* loads on demand that STATIC would have needed since it was placed */
    uint64_t hysteresis; /* percent */
    uint64_t *stamp;     // (ids): order of last use or insertion, of residents
    uint64_t stamps;
    bool was_static; /* that ghost has led */
    bool is_placed;  /* those that place experts hold some */

    /* Placing. */
    uint32_t *order; // (ids): scratch
    uint64_t *key;   // (ids): scratch
    double *recent;  // (ids): decayed counts of batches, times `weight`
    double weight;   /* of a use now */
    double *likely;  // (ids): the same with a short memory, times `likely_weight`; with scores an
                     // estimate from those, in the same measure, and a weight of 1
    double likely_weight;
    double likely_min;                /* below that it is chance */
    uint64_t choose_at;               /* batches */
    uint64_t swaps[MP_SHADOW_GHOSTS]; /* since the last batch */

    /* The present batch. */
    uint32_t *batch;  // (experts)
    uint32_t *tokens; // (experts)
    uint8_t *actual;  // (experts): resident when it was needed
    uint64_t *asked;  // (ids): 1 + `now` of the last batch that needed it
    uint32_t batch_count;
    bool settled;
    uint64_t now, batches;
    uint64_t debt_ns; /* of the link: time of loads that were not demands */
    double unloaded;  /* share of absent experts, fading, that are computed without a load */

    /* Scratch. */
    struct mp_sorter sorter;
    uint8_t *resident;   // (experts)
    uint32_t *executors; // (experts)
};

static inline bool mp_shadow_places(const struct mp_shadow *shadow)
{
    return shadow->leader >= MP_SHADOW_STATIC;
}

/* True for a ghost whose set does not depend on uses. */
static inline bool mp_shadow_is_static(uint32_t ghost)
{
    return ghost == MP_SHADOW_STATIC || ghost == MP_SHADOW_LAYERS;
}

static inline bool mp_shadow_times_known(const struct mp_shadow *shadow)
{
    return shadow->costs != NULL && shadow->costs->load_ns > 0;
}

/* True if an executor computes without loading, so that an absent expert may never be loaded. */
static inline bool mp_shadow_others_known(const struct mp_shadow *shadow)
{
    const struct mp_costs *costs = shadow->costs;

    if (!mp_shadow_times_known(shadow))
        return false;
    for (uint32_t x = 0; x < costs->executor_count; x++) {
        if (!mp_executor_loads(&costs->executors[x]) && mp_executor_is_known(&costs->executors[x]))
            return true;
    }
    return false;
}

/* True if what is likely comes in while nothing else is read, and what is unlikely leaves for it:
 * where a helper is quicker than a load, nothing else would ever bring it in. An executor that
 * reads in place shares the link with loads, so it must be quicker than most of them. */
static inline bool mp_shadow_fills(const struct mp_shadow *shadow)
{
    return !mp_shadow_places(shadow) && mp_shadow_others_known(shadow) &&
           (mp_costs_helper(shadow->costs) != MP_EXECUTOR_HOME || shadow->unloaded > 0.5);
}

/* Begin a new batch: evaluate the previous one, and place experts anew every MP_SHADOW_TOKENS
 * tokens. */
void mp_shadow_turn(struct mp_shadow *shadow, uint64_t now);

/* The batch is complete: add its cost to each ghost and update their sets. A second call has no
 * effect. */
void mp_shadow_settle(struct mp_shadow *shadow);

/* Update whether `id` is a resident that the leader would not hold. */
void mp_shadow_refresh(struct mp_shadow *shadow, uint32_t id);

/* Make the first placement, from the beginning of order[]. */
void mp_shadow_place_first(struct mp_shadow *shadow);

#endif
