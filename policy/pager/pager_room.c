/*
 * Makes room in the device tier: units that may be evicted, the evict policy's victims, and quotas.
 *
 * Policies are notified of an expert (on_insert) when it takes its first slot, not when its bytes
 * have arrived. So decisions of a demand-only policy do not depend on the timing of reads.
 */
#include <inttypes.h>
#include <string.h>

#include "policy/pager/pager_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

void mp_pager_refresh(struct mp_pager *pager, uint32_t unit)
{
    struct mp_space *space = pager->config.space;
    const uint8_t protecting = MP_PAGER_NEEDED | MP_PAGER_KEEP | MP_PAGER_FORESEEN;
    const uint8_t now = (pager->flags[unit] & protecting) == 0 &&
                        mp_space_state(space, unit) == MP_RES_VALID &&
                        mp_space_leases(space, unit) == 0;

    if (now == pager->may_go[unit])
        return;
    pager->may_go[unit] = now;
    mp_slices_set_going(&pager->slices, unit, now);
}

void mp_pager_set_flags(struct mp_pager *pager, uint32_t unit, uint8_t flags)
{
    const uint8_t change = pager->flags[unit] ^ flags;

    mp_assert(unit < pager->units);
    mp_assert(!(pager->flags[unit] & MP_PAGER_KEEP) || pager->kept_count > 0);
    if (change & MP_PAGER_KEEP)
        pager->kept_count += flags & MP_PAGER_KEEP ? 1 : (uint32_t)-1;
    if (change & MP_PAGER_MISPREDICTED) {
        pager->mispredicted[mp_slices_layer(&pager->slices, unit)] +=
            flags & MP_PAGER_MISPREDICTED ? 1 : (uint32_t)-1;
        pager->mispredicted_count += flags & MP_PAGER_MISPREDICTED ? 1 : (uint32_t)-1;
    }
    pager->flags[unit] = flags;
    mp_pager_refresh(pager, unit);
}

static void note_inserted(struct mp_pager *pager, uint32_t unit)
{
    const struct mp_policies *set = mp_pager_policies(pager);

    mp_assert(mp_pager_is_present(pager, unit));
    if (mp_slices_insert(&pager->slices, unit))
        set->evict_ops->on_insert(set->evict, mp_slices_expert(&pager->slices, unit), pager->now);
}

void mp_pager_note_removed(struct mp_pager *pager, uint32_t unit)
{
    const struct mp_policies *set = mp_pager_policies(pager);

    mp_assert(!mp_pager_is_present(pager, unit));
    if (mp_slices_remove(&pager->slices, unit))
        set->evict_ops->on_remove(set->evict, mp_slices_expert(&pager->slices, unit), pager->now);
    if (pager->flags[unit] & MP_PAGER_AHEAD)
        pager->config.counters->prefetch_unused_bytes +=
            mp_space_unit_bytes(pager->config.space, unit);
    mp_pager_set_flags(pager, unit, pager->flags[unit] & MP_PAGER_NEEDED);
}

void mp_pager_note_nothing(struct mp_pager *pager, uint32_t unit)
{
    mp_assert(unit < pager->units);
    mp_pager_set_flags(pager, unit, pager->flags[unit] & (uint8_t)~MP_PAGER_AHEAD);
    mp_pager_note_removed(pager, unit);
}

void mp_pager_evict(struct mp_pager *pager, uint32_t unit)
{
    const enum mp_status status = mp_space_evict(pager->config.space, unit);

    /* Busy: the client that has its pages cannot let go. Then it stays, and no load finds room. */
    mp_assert(status == MP_OK || status == MP_ERR_BUSY);
    if (status == MP_OK)
        mp_pager_note_removed(pager, unit);
}

/* Which units may give their slot to `for_unit`. */
struct candidates {
    uint32_t scope_layer;
    uint32_t class_index;
    enum mp_slices_part part;
    uint8_t placed_max; /* enum mp_placed: experts that are kept more than that stay */
    bool strict;    /* only units without protecting flags; else also those that are predicted */
    bool one_class; /* all units have the same size */
};

static bool is_candidate(const struct mp_pager *pager, const struct candidates *c, uint32_t unit)
{
    struct mp_space *space = pager->config.space;

    mp_assert(unit < pager->units);
    /* Asked of every unit there is, so the question that most of them fail comes first. */
    if (!pager->may_go[unit] &&
        (c->strict || (pager->flags[unit] & MP_PAGER_NEEDED) ||
         mp_space_state(space, unit) != MP_RES_VALID || mp_space_leases(space, unit) > 0))
        return false;
    return mp_slices_is_in(&pager->slices, unit, c->part) &&
           mp_space_unit_class(space, unit) == c->class_index;
}

/* The last unit of an expert that can go, or MP_UNIT_NONE. */
static uint32_t last_candidate(const struct mp_pager *pager, const struct candidates *c,
                               uint32_t expert)
{
    const struct mp_unit_range units = mp_slices_part_of(&pager->slices, expert, c->part);

    mp_assert(expert < pager->experts);
    for (uint32_t unit = units.end; unit-- > units.first;) {
        if (is_candidate(pager, c, unit))
            return unit;
    }
    return MP_UNIT_NONE;
}

static uint32_t first_allowed(const struct mp_pager *pager, const struct mp_evict_query *query)
{
    mp_assert(query->evictable != NULL);
    for (uint32_t expert = 0; expert < pager->experts; expert++) {
        if (mp_evict_allows(query, expert))
            return expert;
    }
    return MP_UNIT_NONE;
}

/*
 * One call of the evict policy, its result checked. With `must` the policy cannot keep
 * everything: a need waits for the slot and nothing else can give one.
 */
static uint32_t ask_victim(struct mp_pager *pager, const struct mp_evict_query *query, bool must)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const uint64_t start_ns = mp_clock_now_ns(pager->config.clock);
    uint32_t expert = set->evict_ops->pick(set->evict, query);
    const bool bad =
        expert != MP_EXPERT_NONE && (expert >= pager->experts || !mp_evict_allows(query, expert));

    mp_assert(query->scope_layer == MP_LAYER_ANY ||
              query->scope_layer < pager->config.shape.layers);
    if (bad || (must && expert == MP_EXPERT_NONE)) {
        expert = first_allowed(pager, query);
        pager->config.counters->invalid_decisions += bad || expert != MP_EXPERT_NONE;
    }
    pager->config.counters->decisions_ns += mp_clock_now_ns(pager->config.clock) - start_ns;
    return expert;
}

/* The placement keeps it, and `c` respects that. */
static bool is_spared(const struct mp_pager *pager, const struct candidates *c, uint32_t expert)
{
    return pager->placed != NULL && pager->placed[expert] > c->placed_max;
}

/* The placement keeps it, which is no guess that the policy may refuse to make room for, and
 * `c` has only what the placement does not keep. */
static bool is_placed(const struct mp_pager *pager, const struct candidates *c, uint32_t expert)
{
    return c->placed_max == MP_PLACED_NOT && pager->placed != NULL &&
           pager->placed[expert] != MP_PLACED_NOT;
}

/* A candidate that was mispredicted, or MP_UNIT_NONE. */
static uint32_t find_mispredicted(const struct mp_pager *pager, const struct candidates *c)
{
    const bool any = c->scope_layer == MP_LAYER_ANY;
    const uint32_t first = any ? 0 : c->scope_layer;
    const uint32_t end = any ? pager->config.shape.layers : first + 1;

    mp_assert(any || end <= pager->config.shape.layers);
    if (pager->mispredicted_count == 0)
        return MP_UNIT_NONE;
    for (uint32_t l = first; l < end; l++) {
        const struct mp_unit_range units = mp_slices_of_layer(&pager->slices, l);

        if (pager->mispredicted[l] == 0)
            continue;
        for (uint32_t u = units.first; u < units.end; u++) {
            if ((pager->flags[u] & MP_PAGER_MISPREDICTED) && is_candidate(pager, c, u) &&
                !is_spared(pager, c, mp_slices_expert(&pager->slices, u)))
                return u;
        }
    }
    return MP_UNIT_NONE;
}

/* Has the expert a candidate? Where a count says it, without a look at its units: this is asked of
 * all experts for each unit that needs room. */
static bool has_candidate(const struct mp_pager *pager, const struct candidates *c, uint32_t expert)
{
    const uint32_t going = mp_slices_going(&pager->slices, expert, c->part);

    mp_assert(going <= pager->slices.count);
    if (c->strict && (going == 0 || c->one_class))
        return going > 0;
    return last_candidate(pager, c, expert) != MP_UNIT_NONE;
}

/* fallback(experts) := 1 where the expert has a candidate. */
static void list_candidates(struct mp_pager *pager, const struct candidates *c)
{
    const uint32_t experts = pager->config.shape.experts;
    const bool any = c->scope_layer == MP_LAYER_ANY;
    const uint32_t first = any ? 0 : c->scope_layer * experts;
    const uint32_t end = any ? pager->experts : first + experts;

    mp_assert(end <= pager->experts);
    memset(pager->fallback, 0, pager->experts);
    for (uint32_t e = first; e < end; e++)
        pager->fallback[e] = !is_spared(pager, c, e) && has_candidate(pager, c, e);
}

/* A candidate to make room for `for_unit`, or MP_UNIT_NONE. */
static uint32_t pick_among(struct mp_pager *pager, uint32_t for_unit, struct candidates c)
{
    struct mp_space *space = pager->config.space;
    const bool one_class = mp_space_class_count(space) == 1;
    const bool all =
        mp_slices_is_all(&pager->slices, c.part) && c.strict && one_class && pager->placed == NULL;
    struct mp_evict_query query = {
        .for_id = mp_slices_expert(&pager->slices, for_unit),
        .scope_layer = c.scope_layer,
        .experts = pager->config.shape.experts,
        .evictable = all ? pager->slices.evictable : pager->fallback,
    };
    uint32_t expert, mispredicted;

    c.class_index = mp_space_unit_class(space, for_unit);
    c.one_class = one_class;
    if (!all)
        list_candidates(pager, &c);
    mispredicted = find_mispredicted(pager, &c);
    if (mispredicted != MP_UNIT_NONE)
        return mispredicted;
    expert = ask_victim(pager, &query, !c.strict);
    if (expert == MP_EXPERT_NONE && is_placed(pager, &c, query.for_id))
        expert = first_allowed(pager, &query);
    mp_assert(expert == MP_EXPERT_NONE || mp_evict_allows(&query, expert));
    return expert != MP_EXPERT_NONE ? last_candidate(pager, &c, expert) : MP_UNIT_NONE;
}

/* The last resort: nothing of this size is in use or on its way that could give room later. */
static bool takes_sole(const struct mp_pager *pager, uint32_t for_unit)
{
    return pager->ahead_count == 0 &&
           !mp_pager_in_use(pager, mp_space_unit_class(pager->config.space, for_unit));
}

/* The same; what a placement keeps only where `for_unit` waits for a demand and nothing else goes.
 */
static uint32_t pick_victim(struct mp_pager *pager, uint32_t for_unit, struct candidates c)
{
    uint32_t victim = MP_UNIT_NONE, most = MP_PLACED_NOT;

    mp_assert(for_unit < pager->units);
    if (pager->placed != NULL && pager->takes_placed)
        most = takes_sole(pager, for_unit) ? MP_PLACED_SOLE : MP_PLACED_KEEP;
    for (uint32_t placed = 0; placed <= most && victim == MP_UNIT_NONE; placed++) {
        c.placed_max = (uint8_t)placed;
        victim = pick_among(pager, for_unit, c);
    }
    return victim;
}

/* Within what the quotas say: a layer that has its share gives up one of its own, else what counts
 * for no share goes first. */
static uint32_t pick_within_quota(struct mp_pager *pager, uint32_t unit, bool over)
{
    const struct mp_slices *slices = &pager->slices;
    const struct candidates surplus = { .scope_layer = MP_LAYER_ANY,
                                        .part = MP_SLICES_SURPLUS,
                                        .strict = true };
    const struct candidates own = {
        .scope_layer = over ? mp_slices_layer(slices, unit) : mp_slices_greediest_layer(slices),
        .part = over ? MP_SLICES_RETAINED : MP_SLICES_ALL,
        .strict = true,
    };
    uint32_t victim = MP_UNIT_NONE;

    mp_assert(unit < pager->units);
    if (!over && slices->surplus_going > 0)
        victim = pick_victim(pager, unit, surplus);
    return victim != MP_UNIT_NONE ? victim : pick_victim(pager, unit, own);
}

/* A demand's victim where its layer and quota have none: anything, and then also what is kept for a
 * later layer, because a demand comes first. */
static uint32_t pick_beyond_quota(struct mp_pager *pager, uint32_t unit)
{
    struct candidates all = { .scope_layer = MP_LAYER_ANY, .part = MP_SLICES_ALL, .strict = true };
    uint32_t victim = pick_victim(pager, unit, all);

    mp_assert(unit < pager->units);
    all.strict = false;
    return victim != MP_UNIT_NONE ? victim : pick_victim(pager, unit, all);
}

uint32_t mp_pager_pick_leaving(struct mp_pager *pager, uint32_t class_index)
{
    uint32_t unit = 0;

    while (unit < pager->units && mp_space_unit_class(pager->config.space, unit) != class_index)
        unit++;
    mp_assert(unit < pager->units);
    pager->takes_placed = true;
    return pick_beyond_quota(pager, unit);
}

/* The policy keeps everything, and what the open layer is still using may be of those that leave.
 */
static bool must_wait(const struct mp_pager *pager, uint32_t unit)
{
    mp_assert(unit < pager->units);
    return mp_pager_policies(pager)->evict_ops->waits &&
           mp_pager_in_use(pager, mp_space_unit_class(pager->config.space, unit));
}

static enum mp_status fill(struct mp_pager *pager, uint32_t unit, enum mp_priority priority)
{
    return pager->coming != NULL ? mp_space_put(pager->config.space, unit, pager->coming)
                                 : mp_space_load(pager->config.space, unit, priority);
}

enum mp_status mp_pager_start_load(struct mp_pager *pager, uint32_t unit, enum mp_priority priority)
{
    const bool over = mp_slices_over_quota(&pager->slices, unit);
    uint32_t victim;
    enum mp_status status = MP_ERR_NO_SPACE;

    mp_assert(unit < pager->units);
    mp_assert(!mp_pager_is_present(pager, unit));
    if (!over)
        status = fill(pager, unit, priority);
    if (status == MP_ERR_NO_SPACE) {
        pager->takes_placed = false;
        victim = pick_within_quota(pager, unit, over);
        pager->takes_placed = priority == MP_PRIORITY_DEMAND;
        if (victim == MP_UNIT_NONE && priority == MP_PRIORITY_DEMAND) {
            if (over)
                status = fill(pager, unit, priority);
            if (status == MP_ERR_NO_SPACE && !must_wait(pager, unit))
                victim = pick_beyond_quota(pager, unit);
        }
        if (victim != MP_UNIT_NONE) {
            mp_pager_evict(pager, victim);
            status = fill(pager, unit, priority);
        }
    }
    if (status == MP_OK)
        note_inserted(pager, unit);
    return status;
}

uint32_t mp_pager_slots(const struct mp_pager *pager)
{
    return pager->slots / pager->slices.count;
}

uint32_t mp_pager_quota(const struct mp_pager *pager, uint32_t layer)
{
    mp_assert(layer < pager->config.shape.layers);
    return pager->slices.quota[layer];
}

uint64_t mp_pager_revisions(const struct mp_pager *pager)
{
    return pager->revisions;
}

uint32_t mp_pager_retained(const struct mp_pager *pager, uint32_t layer)
{
    mp_assert(layer < pager->config.shape.layers);
    return pager->slices.retained[layer];
}

void mp_pager_ask_retained(struct mp_pager *pager)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const struct mp_shape *shape = &pager->config.shape;

    if (pager->slices.count == 1 || pager->global || set->partition_ops->retained == NULL)
        return;
    set->partition_ops->retained(set->partition, shape, pager->revised);
    for (uint32_t l = 0; l < shape->layers; l++) {
        if (pager->revised[l] >= 1 && pager->revised[l] <= pager->slices.count)
            continue;
        pager->revised[l] = pager->slices.count;
        pager->config.counters->invalid_decisions++;
    }
    mp_slices_retain(&pager->slices, pager->revised);
    for (uint32_t u = 0; u < pager->units; u++)
        mp_slices_recount(&pager->slices, u, mp_pager_is_present(pager, u), pager->may_go[u]);
}

bool mp_pager_make_partition(struct mp_pager *pager)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const struct mp_shape *shape = &pager->config.shape;
    const uint64_t cycle = (uint64_t)shape->layers * shape->top_k;
    uint64_t sum = 0;

    mp_assert(shape->slots > 0);
    pager->global = set->partition_ops->global;
    if (pager->global) {
        for (uint32_t l = 0; l < shape->layers; l++)
            pager->slices.quota[l] = UINT32_MAX;
    } else {
        set->partition_ops->quota(set->partition, shape, pager->slices.quota);
        for (uint32_t l = 0; l < shape->layers; l++) {
            sum += pager->slices.quota[l];
            pager->slices.quota[l] *= pager->slices.count;
        }
    }
    if (sum > shape->slots)
        return false;
    if (pager->global && !set->evict_ops->per_layer && pager->slots < cycle * pager->slices.count) {
        mp_log_warn("pager",
                    "%u slots are less than one token cycle (%" PRIu64 " experts): a global order "
                    "would never hit, so each of the %u layers gets an equal share",
                    pager->slots, cycle, shape->layers);
        pager->global = false;
        for (uint32_t l = 0; l < shape->layers; l++)
            pager->slices.quota[l] = mp_equal_share(pager->slots, shape->layers, l);
        return true;
    }
    mp_pager_ask_retained(pager);
    return true;
}

bool mp_pager_has(const struct mp_pager *pager, uint32_t expert)
{
    const struct mp_unit_range units = mp_slices_of_expert(&pager->slices, expert);

    mp_assert(expert < pager->experts);
    for (uint32_t u = units.first; u < units.end; u++) {
        if (mp_space_state(pager->config.space, u) != MP_RES_VALID)
            return false;
    }
    return true;
}

void mp_pager_residents(struct mp_pager *pager, uint32_t layer, bool on_the_way, uint8_t *resident)
{
    const uint32_t experts = pager->config.shape.experts;

    mp_assert(resident != NULL);
    mp_assert(layer < pager->config.shape.layers);
    if (!pager->config.deterministic)
        mp_pager_settle_ahead(pager, false); /* what has arrived meanwhile is there */
    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t expert = layer * experts + e;

        resident[e] = pager->slices.present[expert] == pager->slices.count &&
                      (on_the_way || mp_pager_has(pager, expert));
    }
}
