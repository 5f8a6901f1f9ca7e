/*
 * Room in the device tier: who may leave, whom the evict policy names, what the quotas allow.
 *
 * The policies hear of an expert (on_insert) when it takes its first slot, not when its bytes have
 * come. So what a demand-only policy decides does not depend on the timing of reads.
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
    const uint32_t whole = unit / pager->slices;
    const uint8_t now = (pager->flags[unit] & (MP_PAGER_NEEDED | MP_PAGER_KEEP)) == 0 &&
                        mp_space_state(space, unit) == MP_RES_VALID &&
                        mp_space_leases(space, unit) == 0;

    if (now == pager->may_go[unit])
        return;
    pager->may_go[unit] = now;
    pager->going[whole] = (uint8_t)(pager->going[whole] + (now ? 1 : -1));
    pager->evictable[whole] = pager->going[whole] > 0;
    if (mp_pager_is_surplus(pager, unit)) {
        pager->surplus[whole] = (uint8_t)(pager->surplus[whole] + (now ? 1 : -1));
        pager->surplus_going += now ? 1 : (uint32_t)-1;
    }
}

void mp_pager_set_flags(struct mp_pager *pager, uint32_t unit, uint8_t flags)
{
    const uint8_t change = pager->flags[unit] ^ flags;

    if (change & MP_PAGER_KEEP)
        pager->kept_count += flags & MP_PAGER_KEEP ? 1 : (uint32_t)-1;
    if (change & MP_PAGER_MISPREDICTED) {
        pager->mispredicted[mp_pager_layer_of(pager, unit)] +=
            flags & MP_PAGER_MISPREDICTED ? 1 : (uint32_t)-1;
        pager->mispredicted_count += flags & MP_PAGER_MISPREDICTED ? 1 : (uint32_t)-1;
    }
    pager->flags[unit] = flags;
    mp_pager_refresh(pager, unit);
}

static void note_inserted(struct mp_pager *pager, uint32_t unit)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const uint32_t whole = unit / pager->slices;

    if (!mp_pager_is_surplus(pager, unit))
        pager->held[mp_pager_layer_of(pager, unit)]++;
    if (pager->present[whole]++ == 0)
        set->evict_ops->on_insert(set->evict, whole, pager->now);
}

void mp_pager_note_removed(struct mp_pager *pager, uint32_t unit)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const uint32_t whole = unit / pager->slices;

    if (!mp_pager_is_surplus(pager, unit)) {
        mp_assert(pager->held[mp_pager_layer_of(pager, unit)] > 0);
        pager->held[mp_pager_layer_of(pager, unit)]--;
    }
    mp_assert(pager->present[whole] > 0);
    if (--pager->present[whole] == 0)
        set->evict_ops->on_remove(set->evict, whole, pager->now);
    if (pager->flags[unit] & MP_PAGER_AHEAD)
        pager->config.counters->prefetch_unused_bytes +=
            mp_space_unit_bytes(pager->config.space, unit);
    mp_pager_set_flags(pager, unit, pager->flags[unit] & MP_PAGER_NEEDED);
}

void mp_pager_note_nothing(struct mp_pager *pager, uint32_t unit)
{
    mp_pager_set_flags(pager, unit, pager->flags[unit] & (uint8_t)~MP_PAGER_AHEAD);
    mp_pager_note_removed(pager, unit);
}

void mp_pager_evict(struct mp_pager *pager, uint32_t unit)
{
    const enum mp_status status = mp_space_evict(pager->config.space, unit);

    mp_assert(status == MP_OK);
    if (status == MP_OK)
        mp_pager_note_removed(pager, unit);
}

/* Which units may give their slot to `for_unit`. */
struct candidates {
    uint32_t scope_layer;
    uint32_t class_index;
    bool surplus, retained; /* the surplus ones; those that count for a quota */
    bool strict;            /* only units without protecting flags; else also those with KEEP */
    bool one_class;         /* all units have the same size */
};

static bool is_candidate(const struct mp_pager *pager, const struct candidates *c, uint32_t unit)
{
    struct mp_space *space = pager->config.space;

    /* Asked of every slice there is, so the question that most of them fail comes first. */
    if (!pager->may_go[unit] &&
        (c->strict || (pager->flags[unit] & MP_PAGER_NEEDED) ||
         mp_space_state(space, unit) != MP_RES_VALID || mp_space_leases(space, unit) > 0))
        return false;
    return (mp_pager_is_surplus(pager, unit) ? c->surplus : c->retained) &&
           mp_space_unit_class(space, unit) == c->class_index;
}

/* The last slice of an expert that can go, or MP_UNIT_NONE. */
static uint32_t last_candidate(const struct mp_pager *pager, const struct candidates *c,
                               uint32_t whole)
{
    const uint32_t start = whole * pager->slices;
    const uint32_t retained = pager->retained[mp_pager_layer_of(pager, start)];
    const uint32_t first = c->retained ? 0 : retained;

    for (uint32_t s = c->surplus ? pager->slices : retained; s-- > first;) {
        if (is_candidate(pager, c, start + s))
            return start + s;
    }
    return MP_UNIT_NONE;
}

static uint32_t first_allowed(const struct mp_pager *pager, const struct mp_evict_query *query)
{
    uint32_t whole = 0;

    while (whole < pager->wholes && !mp_evict_allows(query, whole))
        whole++;
    return whole < pager->wholes ? whole : MP_UNIT_NONE;
}

/*
 * One call of the evict policy, its result checked. With `must` the policy cannot keep
 * everything: a need waits for the slot and nothing else can give one.
 */
static uint32_t ask_victim(struct mp_pager *pager, const struct mp_evict_query *query, bool must)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const uint64_t start_ns = mp_clock_now_ns(pager->config.clock);
    uint32_t whole = set->evict_ops->pick(set->evict, query);
    const bool bad =
        whole != MP_UNIT_NONE && (whole >= pager->wholes || !mp_evict_allows(query, whole));

    if (bad || (must && whole == MP_UNIT_NONE)) {
        whole = first_allowed(pager, query);
        pager->config.counters->invalid_decisions += bad || whole != MP_UNIT_NONE;
    }
    pager->config.counters->decisions_ns += mp_clock_now_ns(pager->config.clock) - start_ns;
    return whole;
}

/* A candidate that was mispredicted, or MP_UNIT_NONE. */
static uint32_t find_mispredicted(const struct mp_pager *pager, const struct candidates *c)
{
    const uint32_t units = pager->config.shape.experts * pager->slices;
    const bool any = c->scope_layer == MP_LAYER_ANY;

    if (pager->mispredicted_count == 0)
        return MP_UNIT_NONE;
    for (uint32_t l = any ? 0 : c->scope_layer; l < pager->config.shape.layers; l++) {
        for (uint32_t u = l * units; pager->mispredicted[l] > 0 && u < (l + 1) * units; u++) {
            if ((pager->flags[u] & MP_PAGER_MISPREDICTED) && is_candidate(pager, c, u))
                return u;
        }
        if (!any)
            break;
    }
    return MP_UNIT_NONE;
}

/* Has the expert a candidate? Where a count says it, without a look at its slices: this is asked of
 * all experts for each slice that needs room. */
static bool has_candidate(const struct mp_pager *pager, const struct candidates *c, uint32_t whole)
{
    uint32_t going = c->surplus ? pager->surplus[whole] : 0u;

    if (c->retained)
        going += (uint32_t)pager->going[whole] - pager->surplus[whole];

    if (c->strict && (going == 0 || c->one_class))
        return going > 0;
    return last_candidate(pager, c, whole) != MP_UNIT_NONE;
}

/* fallback(wholes) := 1 where the expert has a candidate. */
static void list_candidates(struct mp_pager *pager, const struct candidates *c)
{
    const uint32_t experts = pager->config.shape.experts;
    const bool any = c->scope_layer == MP_LAYER_ANY;
    const uint32_t first = any ? 0 : c->scope_layer * experts;
    const uint32_t end = any ? pager->wholes : first + experts;

    memset(pager->fallback, 0, pager->wholes);
    for (uint32_t w = first; w < end; w++)
        pager->fallback[w] = has_candidate(pager, c, w);
}

/* A candidate to make room for `for_unit`, or MP_UNIT_NONE. */
static uint32_t pick_victim(struct mp_pager *pager, uint32_t for_unit, struct candidates c)
{
    struct mp_space *space = pager->config.space;
    const bool one_class = mp_space_class_count(space) == 1;
    const bool all = (c.surplus || !pager->has_surplus) && c.retained && c.strict && one_class;
    struct mp_evict_query query = {
        .for_unit = for_unit / pager->slices,
        .scope_layer = c.scope_layer,
        .experts = pager->config.shape.experts,
        .evictable = all ? pager->evictable : pager->fallback,
    };
    uint32_t whole, mispredicted;

    c.class_index = mp_space_unit_class(space, for_unit);
    c.one_class = one_class;
    if (!all)
        list_candidates(pager, &c);
    mispredicted = find_mispredicted(pager, &c);
    if (mispredicted != MP_UNIT_NONE)
        return mispredicted;
    whole = ask_victim(pager, &query, !c.strict);
    return whole != MP_UNIT_NONE ? last_candidate(pager, &c, whole) : MP_UNIT_NONE;
}

bool mp_pager_over_quota(const struct mp_pager *pager, uint32_t unit)
{
    const uint32_t layer = mp_pager_layer_of(pager, unit);

    return !pager->global && !mp_pager_is_surplus(pager, unit) &&
           pager->held[layer] >= pager->quota[layer];
}

/* The layer that holds most above its quota, or MP_LAYER_ANY. */
static uint32_t greediest_layer(const struct mp_pager *pager)
{
    uint32_t worst = MP_LAYER_ANY, worst_excess = 0;

    for (uint32_t l = 0; !pager->global && l < pager->config.shape.layers; l++) {
        if (pager->held[l] > pager->quota[l] && pager->held[l] - pager->quota[l] > worst_excess) {
            worst_excess = pager->held[l] - pager->quota[l];
            worst = l;
        }
    }
    return worst;
}

/* Within what the quotas say: a layer that has its share gives up one of its own, else what counts
 * for no share goes first. */
static uint32_t pick_within_quota(struct mp_pager *pager, uint32_t unit, bool over)
{
    const struct candidates surplus = { .scope_layer = MP_LAYER_ANY,
                                        .surplus = true,
                                        .strict = true };
    const struct candidates retained = {
        .scope_layer = over ? mp_pager_layer_of(pager, unit) : greediest_layer(pager),
        .surplus = !over,
        .retained = true,
        .strict = true,
    };
    uint32_t victim = MP_UNIT_NONE;

    if (!over && pager->surplus_going > 0)
        victim = pick_victim(pager, unit, surplus);
    return victim != MP_UNIT_NONE ? victim : pick_victim(pager, unit, retained);
}

/* A demand's victim where its layer and quota have none: anything, and then also what is kept for a
 * later layer, because a demand comes first. */
static uint32_t pick_beyond_quota(struct mp_pager *pager, uint32_t unit)
{
    struct candidates all = {
        .scope_layer = MP_LAYER_ANY, .surplus = true, .retained = true, .strict = true
    };
    uint32_t victim = pick_victim(pager, unit, all);

    all.strict = false;
    return victim != MP_UNIT_NONE ? victim : pick_victim(pager, unit, all);
}

uint32_t mp_pager_pick_leaving(struct mp_pager *pager, uint32_t class_index)
{
    uint32_t unit = 0;

    while (unit < pager->units && mp_space_unit_class(pager->config.space, unit) != class_index)
        unit++;
    mp_assert(unit < pager->units);
    return pick_beyond_quota(pager, unit);
}

/* The policy keeps everything, and what the open layer is still using may be of those that leave.
 */
static bool must_wait(const struct mp_pager *pager, uint32_t unit)
{
    return mp_pager_policies(pager)->evict_ops->waits &&
           mp_pager_in_use(pager, mp_space_unit_class(pager->config.space, unit));
}

enum mp_status mp_pager_start_load(struct mp_pager *pager, uint32_t unit, enum mp_priority priority)
{
    struct mp_space *space = pager->config.space;
    const bool over = mp_pager_over_quota(pager, unit);
    uint32_t victim;
    enum mp_status status = MP_ERR_NO_SPACE;

    if (!over)
        status = mp_space_load(space, unit, priority);
    if (status == MP_ERR_NO_SPACE) {
        victim = pick_within_quota(pager, unit, over);
        if (victim == MP_UNIT_NONE && priority == MP_PRIORITY_DEMAND) {
            if (over)
                status = mp_space_load(space, unit, priority);
            if (status == MP_ERR_NO_SPACE && !must_wait(pager, unit))
                victim = pick_beyond_quota(pager, unit);
        }
        if (victim != MP_UNIT_NONE) {
            mp_pager_evict(pager, victim);
            status = mp_space_load(space, unit, priority);
        }
    }
    if (status == MP_OK)
        note_inserted(pager, unit);
    return status;
}

uint32_t mp_pager_slots(const struct mp_pager *pager)
{
    return pager->slots / pager->slices;
}

uint32_t mp_pager_quota(const struct mp_pager *pager, uint32_t layer)
{
    mp_assert(layer < pager->config.shape.layers);
    return pager->global ? MP_LAYER_ANY : pager->quota[layer];
}

uint64_t mp_pager_revisions(const struct mp_pager *pager)
{
    return pager->revisions;
}

uint32_t mp_pager_retained(const struct mp_pager *pager, uint32_t layer)
{
    mp_assert(layer < pager->config.shape.layers);
    return pager->retained[layer];
}

void mp_pager_ask_retained(struct mp_pager *pager)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const struct mp_shape *shape = &pager->config.shape;

    if (pager->slices == 1 || pager->global || set->partition_ops->retained == NULL)
        return;
    set->partition_ops->retained(set->partition, shape, pager->revised);
    for (uint32_t l = 0; l < shape->layers; l++) {
        const bool sane = pager->revised[l] >= 1 && pager->revised[l] <= pager->slices;

        pager->retained[l] = sane ? pager->revised[l] : pager->slices;
        pager->config.counters->invalid_decisions += !sane;
        pager->held[l] = 0;
    }
    pager->has_surplus = false;
    for (uint32_t l = 0; l < shape->layers; l++)
        pager->has_surplus |= pager->retained[l] < pager->slices;
    pager->surplus_going = 0;
    memset(pager->surplus, 0, pager->wholes);
    for (uint32_t u = 0; u < pager->units; u++) {
        const enum mp_res_state state = mp_space_state(pager->config.space, u);

        if (mp_pager_is_surplus(pager, u)) {
            pager->surplus[u / pager->slices] += pager->may_go[u];
            pager->surplus_going += pager->may_go[u];
        } else {
            pager->held[mp_pager_layer_of(pager, u)] +=
                state == MP_RES_FILLING || state == MP_RES_VALID;
        }
    }
}

bool mp_pager_make_partition(struct mp_pager *pager)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const struct mp_shape *shape = &pager->config.shape;
    const uint64_t cycle = (uint64_t)shape->layers * shape->top_k;
    uint64_t sum = 0;

    pager->global = set->partition_ops->global;
    if (!pager->global)
        set->partition_ops->quota(set->partition, shape, pager->quota);
    for (uint32_t l = 0; !pager->global && l < shape->layers; l++) {
        sum += pager->quota[l];
        pager->quota[l] *= pager->slices;
    }
    if (sum > shape->slots)
        return false;
    if (pager->global && !set->evict_ops->per_layer && pager->slots < cycle * pager->slices) {
        mp_log_warn("pager",
                    "%u slots are less than one token cycle (%" PRIu64 " experts): a global order "
                    "would never hit, so each of the %u layers gets an equal share",
                    pager->slots, cycle, shape->layers);
        pager->global = false;
        for (uint32_t l = 0; l < shape->layers; l++)
            pager->quota[l] = mp_equal_share(pager->slots, shape->layers, l);
        return true;
    }
    mp_pager_ask_retained(pager);
    return true;
}

void mp_pager_residents(struct mp_pager *pager, uint32_t layer, bool on_the_way, uint8_t *resident)
{
    const uint32_t experts = pager->config.shape.experts, slices = pager->slices;

    mp_assert(layer < pager->config.shape.layers);
    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t whole = layer * experts + e;
        bool all = pager->present[whole] == slices;

        for (uint32_t s = 0; all && !on_the_way && s < slices; s++)
            all = mp_space_state(pager->config.space, whole * slices + s) == MP_RES_VALID;
        resident[e] = all;
    }
}
