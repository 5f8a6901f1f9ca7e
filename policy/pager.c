/*
 * The pager; see pager.h for what it promises. Here is how it keeps that.
 *
 * Every unit has flags. NEEDED: the open layer has not finished with it. KEEP: predicted for a
 * layer that has not run. AHEAD: prefetched, nobody has used it yet (for the accounts only). A unit
 * may be evicted when it is VALID, unleased and neither NEEDED nor KEEP; a demand that finds no
 * such unit may take one with KEEP, never one that is NEEDED. `evictable` is that rule as one byte
 * per unit, kept up to date on each change so that asking a policy costs no scan.
 *
 *     held[layer] == units of the layer that are FILLING or VALID
 *
 * The policies hear of a unit (on_insert) when it takes its slot, not when its bytes have come. So
 * what a demand-only policy decides does not depend on the timing of reads.
 *
 * Why a need cannot starve: mp_pager_next() hands out leased needs first. When it has none and no
 * read of a need is in flight, the caller holds no lease (or it is told MP_ERR_BUSY), so every
 * VALID unit that is not NEEDED can go, and a prefetch in flight ends by itself or is cancelled.
 */
#include "policy/pager.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

enum { FLAG_NEEDED = 1, FLAG_KEEP = 2, FLAG_AHEAD = 4 };

enum need_state { NEED_WAITING, NEED_LOADING, NEED_LEASED, NEED_HANDED, NEED_DONE };

struct need {
    uint32_t unit;
    uint32_t tokens;
    enum need_state state;
    bool hit;    /* leased since begin */
    bool loaded; /* on demand, for admit */
    const void *pieces[MP_UNIT_PIECES_MAX];
};

struct mp_pager {
    struct mp_pager_config config;
    uint32_t units;
    uint8_t *evictable; // (units): VALID, unleased, no protecting flag
    uint8_t *fallback;  // (units): scratch of pick_victim()
    uint8_t *flags;     // (units)
    uint32_t *held;     // (layers)
    uint32_t *quota;    // (layers); MP_LAYER_ANY when global
    bool global;
    uint64_t now;   /* logical time: layers begun */
    unsigned track; /* of the timeline */

    uint32_t *ahead; // (units): prefetches in flight
    uint32_t ahead_count;
    uint32_t kept_count; /* units with FLAG_KEEP */

    bool open;
    uint32_t layer;
    struct need *needs; // (experts)
    uint32_t need_count;
    uint32_t *wait_list; // (experts): scratch of wait_for_need()
};

static uint32_t layer_of(const struct mp_pager *pager, uint32_t unit)
{
    return unit / pager->config.shape.experts;
}

static const struct mp_policies *policies(const struct mp_pager *pager)
{
    return pager->config.policies;
}

static uint64_t clock_now(const struct mp_pager *pager)
{
    return mp_clock_now_ns(pager->config.clock);
}

static void refresh(struct mp_pager *pager, uint32_t unit)
{
    struct mp_space *space = pager->config.space;

    pager->evictable[unit] = (pager->flags[unit] & (FLAG_NEEDED | FLAG_KEEP)) == 0 &&
                             mp_space_state(space, unit) == MP_RES_VALID &&
                             mp_space_leases(space, unit) == 0;
}

static void set_flags(struct mp_pager *pager, uint32_t unit, uint8_t flags)
{
    const uint8_t change = pager->flags[unit] ^ flags;

    if (change & FLAG_KEEP)
        pager->kept_count += flags & FLAG_KEEP ? 1 : (uint32_t)-1;
    pager->flags[unit] = flags;
    refresh(pager, unit);
}

static void note_inserted(struct mp_pager *pager, uint32_t unit)
{
    pager->held[layer_of(pager, unit)]++;
    policies(pager)->evict_ops->on_insert(policies(pager)->evict, unit, pager->now);
}

static void note_removed(struct mp_pager *pager, uint32_t unit)
{
    mp_assert(pager->held[layer_of(pager, unit)] > 0);
    pager->held[layer_of(pager, unit)]--;
    policies(pager)->evict_ops->on_remove(policies(pager)->evict, unit, pager->now);
    if (pager->flags[unit] & FLAG_AHEAD)
        pager->config.counters->prefetch_unused_bytes +=
            mp_space_unit_bytes(pager->config.space, unit);
    set_flags(pager, unit, pager->flags[unit] & FLAG_NEEDED);
}

static enum mp_status evict(struct mp_pager *pager, uint32_t unit)
{
    enum mp_status status = mp_space_evict(pager->config.space, unit);

    if (status == MP_OK)
        note_removed(pager, unit);
    return status;
}

/* One question to the evict policy, its answer checked. */
static uint32_t ask_victim(struct mp_pager *pager, const struct mp_evict_query *query)
{
    const uint64_t start_ns = clock_now(pager);
    uint32_t unit = policies(pager)->evict_ops->pick(policies(pager)->evict, query);

    if (unit != MP_UNIT_NONE && (unit >= pager->units || !mp_evict_allows(query, unit))) {
        pager->config.counters->policy_strikes++;
        unit = MP_UNIT_NONE;
        for (uint32_t u = 0; u < pager->units && unit == MP_UNIT_NONE; u++) {
            if (mp_evict_allows(query, u))
                unit = u;
        }
    }
    pager->config.counters->decisions_ns += clock_now(pager) - start_ns;
    return unit;
}

/*
 * A victim for `for_unit`. Strict: only units without flags. Otherwise also what was predicted or
 * prefetched for later, because a demand comes first.
 */
static uint32_t pick_victim(struct mp_pager *pager, uint32_t for_unit, uint32_t scope_layer,
                            bool strict)
{
    struct mp_space *space = pager->config.space;
    const uint32_t class_index = mp_space_unit_class(space, for_unit);
    const bool one_class = mp_space_class_count(space) == 1;
    struct mp_evict_query query = {
        .for_unit = for_unit,
        .scope_layer = scope_layer,
        .experts = pager->config.shape.experts,
        .evictable = pager->evictable,
    };

    if (!strict || !one_class) {
        for (uint32_t u = 0; u < pager->units; u++) {
            pager->fallback[u] =
                (one_class || mp_space_unit_class(space, u) == class_index) &&
                (pager->evictable[u] ||
                 (!strict && !(pager->flags[u] & FLAG_NEEDED) &&
                  mp_space_state(space, u) == MP_RES_VALID && mp_space_leases(space, u) == 0));
        }
        query.evictable = pager->fallback;
    }
    return ask_victim(pager, &query);
}

static bool over_quota(const struct mp_pager *pager, uint32_t layer)
{
    return !pager->global && pager->held[layer] >= pager->quota[layer];
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

/* Make a demand's room where the quota has none: a free slot of others, then any victim. */
static uint32_t pick_beyond_quota(struct mp_pager *pager, uint32_t unit)
{
    uint32_t victim = pick_victim(pager, unit, MP_LAYER_ANY, true);

    if (victim == MP_UNIT_NONE)
        victim = pick_victim(pager, unit, MP_LAYER_ANY, false);
    return victim;
}

/*
 * Start to load `unit`, making room if that is allowed. MP_ERR_NO_SPACE: nothing may go now.
 */
static enum mp_status start_load(struct mp_pager *pager, uint32_t unit, enum mp_priority priority)
{
    const uint32_t layer = layer_of(pager, unit);
    const bool over = over_quota(pager, layer);
    uint32_t victim = MP_UNIT_NONE;
    enum mp_status status = MP_ERR_NO_SPACE;

    if (!over)
        status = mp_space_load(pager->config.space, unit, priority);
    if (status == MP_ERR_NO_SPACE) {
        victim = pick_victim(pager, unit, over ? layer : greediest_layer(pager), true);
        if (victim == MP_UNIT_NONE && priority == MP_PRIORITY_DEMAND) {
            status = over ? mp_space_load(pager->config.space, unit, priority) : status;
            if (status == MP_ERR_NO_SPACE)
                victim = pick_beyond_quota(pager, unit);
        }
        if (victim != MP_UNIT_NONE) {
            status = evict(pager, victim);
            if (status == MP_OK)
                status = mp_space_load(pager->config.space, unit, priority);
        }
    }
    if (status == MP_OK)
        note_inserted(pager, unit);
    return status;
}

/* Take note of prefetches that have ended; with `block` of all of them. */
static void settle_prefetches(struct mp_pager *pager, bool block)
{
    struct mp_space *space = pager->config.space;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < pager->ahead_count; i++) {
        const uint32_t unit = pager->ahead[i];
        enum mp_res_state state;

        if (block && mp_space_wait(space, unit) != MP_OK)
            mp_error_clear(); /* a guess that failed; a demand will try again and report */
        state = mp_space_poll(space, unit);
        if (state == MP_RES_FILLING) {
            pager->ahead[kept++] = unit;
        } else if (state == MP_RES_VALID) {
            pager->config.counters->prefetch_bytes +=
                mp_space_unit_bytes(pager->config.space, unit);
            refresh(pager, unit);
        } else {
            /* Nothing usable came, so nothing counts as wasted. */
            set_flags(pager, unit, pager->flags[unit] & FLAG_NEEDED);
            note_removed(pager, unit);
        }
    }
    pager->ahead_count = kept;
}

/* Strike a prefetch from the list of those in flight, if it is there. */
static bool forget_prefetch(struct mp_pager *pager, uint32_t unit)
{
    for (uint32_t i = 0; i < pager->ahead_count; i++) {
        if (pager->ahead[i] == unit) {
            memmove(&pager->ahead[i], &pager->ahead[i + 1],
                    (pager->ahead_count - i - 1) * sizeof(pager->ahead[0]));
            pager->ahead_count--;
            return true;
        }
    }
    return false;
}

/* Take back prefetches that have not started, latest first, until one slot is free. */
static bool cancel_one_prefetch(struct mp_pager *pager)
{
    for (uint32_t i = pager->ahead_count; i-- > 0;) {
        const uint32_t unit = pager->ahead[i];

        if (pager->flags[unit] & FLAG_NEEDED)
            continue;
        if (mp_space_cancel(pager->config.space, unit) == MP_OK) {
            forget_prefetch(pager, unit);
            pager->config.counters->prefetch_canceled++;
            /* Nothing was read, so nothing was wasted. */
            set_flags(pager, unit, pager->flags[unit] & (uint8_t)~FLAG_AHEAD);
            note_removed(pager, unit);
            return true;
        }
    }
    return false;
}

static enum mp_status lease_need(struct mp_pager *pager, struct need *need)
{
    enum mp_status status = mp_space_lease(pager->config.space, need->unit, need->pieces);

    if (status == MP_OK) {
        need->state = NEED_LEASED;
        refresh(pager, need->unit);
    }
    return status;
}

/* Start loads for needs that have no slot yet, in order, until there is no room. */
static enum mp_status start_waiting(struct mp_pager *pager)
{
    for (uint32_t i = 0; i < pager->need_count; i++) {
        struct need *need = &pager->needs[i];
        enum mp_status status;

        if (need->state != NEED_WAITING)
            continue;
        status = start_load(pager, need->unit, MP_PRIORITY_DEMAND);
        if (status == MP_ERR_NO_SPACE)
            return MP_OK;
        if (status != MP_OK)
            return status;
        need->state = NEED_LOADING;
        need->loaded = true;
    }
    return MP_OK;
}

static enum mp_status begin_need(struct mp_pager *pager, struct need *need)
{
    struct mp_counters *counters = pager->config.counters;
    const uint32_t unit = need->unit;
    const enum mp_res_state state = mp_space_poll(pager->config.space, unit);
    const bool ahead = pager->flags[unit] & FLAG_AHEAD;

    if (ahead) {
        counters->prefetch_used++;
        if (forget_prefetch(pager, unit))
            counters->prefetch_bytes += mp_space_unit_bytes(pager->config.space, unit);
    }
    set_flags(pager, unit, FLAG_NEEDED);
    if (state == MP_RES_VALID) {
        counters->hits++;
        need->hit = true;
        return lease_need(pager, need);
    }
    counters->misses++;
    need->state = NEED_WAITING;
    if (state == MP_RES_FILLING) {
        mp_space_promote(pager->config.space, unit);
        need->state = NEED_LOADING;
    }
    return MP_OK;
}

enum mp_status mp_pager_begin(struct mp_pager *pager, uint32_t layer, const struct mp_need *needs,
                              uint32_t count)
{
    const struct mp_shape *shape = &pager->config.shape;
    const struct mp_evict_ops *evict_ops = policies(pager)->evict_ops;
    enum mp_status status = MP_OK;

    if (pager->open || layer >= shape->layers || count > shape->experts)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_ORDER", "layer %u begun at the wrong time", layer);
    for (uint32_t i = 0; i < count; i++) {
        if (needs[i].expert >= shape->experts || (i > 0 && needs[i].expert <= needs[i - 1].expert))
            return mp_fail(MP_ERR_INVALID, "E_PAGER_NEEDS", "needs of layer %u are not ascending",
                           layer);
    }

    settle_prefetches(pager, pager->config.deterministic);
    pager->open = true;
    pager->layer = layer;
    pager->need_count = count;
    pager->now++;
    for (uint32_t i = 0; i < count; i++) {
        pager->needs[i] = (struct need){
            .unit = layer * shape->experts + needs[i].expert,
            .tokens = needs[i].tokens,
        };
        if (evict_ops->on_access != NULL)
            evict_ops->on_access(policies(pager)->evict, pager->needs[i].unit, needs[i].tokens,
                                 pager->now);
    }
    for (uint32_t i = 0; i < count && status == MP_OK; i++)
        status = begin_need(pager, &pager->needs[i]);
    if (status == MP_OK)
        status = start_waiting(pager);
    if (status != MP_OK)
        mp_pager_abort(pager);
    return status;
}

static void hand_out(struct mp_pager *pager, uint32_t index, struct mp_ready *ready_p)
{
    struct need *need = &pager->needs[index];

    need->state = NEED_HANDED;
    ready_p->need = index;
    memcpy(ready_p->pieces, need->pieces, sizeof(need->pieces));
}

/* Look at needs that are being read; lease those that are complete. */
static enum mp_status settle_needs(struct mp_pager *pager)
{
    for (uint32_t i = 0; i < pager->need_count; i++) {
        struct need *need = &pager->needs[i];
        enum mp_res_state state;
        enum mp_status status;

        if (need->state != NEED_LOADING)
            continue;
        state = mp_space_poll(pager->config.space, need->unit);
        if (state == MP_RES_FILLING)
            continue;
        if (state != MP_RES_VALID) {
            need->state = NEED_WAITING;
            note_removed(pager, need->unit);
            mp_error_set(mp_space_unit_error(pager->config.space, need->unit));
            return mp_error_last()->status;
        }
        status = lease_need(pager, need);
        if (status != MP_OK)
            return status;
    }
    return MP_OK;
}

/*
 * The need to hand out now, or MP_NEED_NONE. Deterministic: those that were resident at begin, then
 * the others in order; a slot that an early need waits for can be held by a hit, hence hits first.
 */
static uint32_t find_leased(const struct mp_pager *pager)
{
    const bool in_order = pager->config.deterministic;

    for (uint32_t i = 0; i < pager->need_count; i++) {
        if (pager->needs[i].state == NEED_LEASED && (!in_order || pager->needs[i].hit))
            return i;
    }
    for (uint32_t i = 0; in_order && i < pager->need_count; i++) {
        if (pager->needs[i].state == NEED_LEASED)
            return i;
        if (pager->needs[i].state == NEED_WAITING || pager->needs[i].state == NEED_LOADING)
            break;
    }
    return MP_NEED_NONE;
}

static uint32_t count_needs(const struct mp_pager *pager, enum need_state state)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < pager->need_count; i++)
        count += pager->needs[i].state == state;
    return count;
}

/* Block until the read of some need has ended; the clock runs as exposed wait. */
static void wait_for_need(struct mp_pager *pager)
{
    const uint64_t start_ns = clock_now(pager);
    uint32_t count = 0;
    uint64_t end_ns;

    for (uint32_t i = 0; i < pager->need_count; i++) {
        if (pager->needs[i].state != NEED_LOADING)
            continue;
        pager->wait_list[count++] = pager->needs[i].unit;
        if (pager->config.deterministic)
            break;
    }
    mp_space_wait_any(pager->config.space, pager->wait_list, count);
    end_ns = clock_now(pager);
    pager->config.counters->exposed_wait_ns += end_ns - start_ns;
    mp_timeline_span(pager->config.timeline, pager->track, "wait for expert", start_ns, end_ns,
                     NULL);
}

/* No lease can be given and no need is being read: get a slot from the prefetches. */
static enum mp_status unblock(struct mp_pager *pager)
{
    if (count_needs(pager, NEED_HANDED) > 0)
        return MP_ERR_BUSY;
    if (pager->ahead_count == 0)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_STUCK",
                       "layer %u has needs, but no slot can be freed; this is a bug of moepager",
                       pager->layer);
    if (!cancel_one_prefetch(pager)) {
        const uint64_t start_ns = clock_now(pager);

        mp_space_wait_any(pager->config.space, pager->ahead, pager->ahead_count);
        pager->config.counters->exposed_wait_ns += clock_now(pager) - start_ns;
        settle_prefetches(pager, false);
    }
    return MP_OK;
}

enum mp_status mp_pager_next(struct mp_pager *pager, struct mp_ready *ready_p)
{
    enum mp_status status;

    if (!pager->open)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_ORDER", "no layer is open");
    for (;;) {
        uint32_t index;

        status = settle_needs(pager);
        if (status != MP_OK)
            return status;
        index = find_leased(pager);
        if (index != MP_NEED_NONE) {
            hand_out(pager, index, ready_p);
            return MP_OK;
        }
        status = start_waiting(pager);
        if (status != MP_OK)
            return status;
        if (count_needs(pager, NEED_LOADING) > 0) {
            wait_for_need(pager);
            continue;
        }
        if (count_needs(pager, NEED_WAITING) == 0) {
            ready_p->need = MP_NEED_NONE;
            return MP_OK;
        }
        status = unblock(pager);
        if (status != MP_OK)
            return status;
    }
}

static void release_need(struct mp_pager *pager, struct need *need)
{
    mp_space_release(pager->config.space, need->unit);
    need->state = NEED_DONE;
    set_flags(pager, need->unit, 0);
}

void mp_pager_done(struct mp_pager *pager, uint32_t index)
{
    const struct mp_policies *set = policies(pager);
    struct need *need;

    mp_assert(pager->open && index < pager->need_count);
    need = &pager->needs[index];
    mp_assert(need->state == NEED_HANDED);
    release_need(pager, need);
    if (need->loaded && !set->admit_ops->admit(set->admit, need->unit, need->tokens, pager->now)) {
        /* Cannot be refused: it is valid and this was its only lease. */
        if (evict(pager, need->unit) != MP_OK)
            mp_unreachable();
    }
    /* An error here comes back from the next mp_pager_next(), which tries again. */
    if (start_waiting(pager) != MP_OK)
        mp_error_clear();
}

static void close_layer(struct mp_pager *pager)
{
    const uint32_t experts = pager->config.shape.experts;

    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t unit = pager->layer * experts + e;

        /* What was kept for this layer has had its chance. What was prefetched in vain stays
         * marked until it is used or evicted. */
        if (pager->flags[unit] & (FLAG_NEEDED | FLAG_KEEP))
            set_flags(pager, unit, pager->flags[unit] & FLAG_AHEAD);
    }
    pager->open = false;
    pager->need_count = 0;
}

void mp_pager_end(struct mp_pager *pager)
{
    mp_assert(pager->open);
    mp_assert(count_needs(pager, NEED_DONE) == pager->need_count);
    close_layer(pager);
}

void mp_pager_abort(struct mp_pager *pager)
{
    if (!pager->open)
        return;
    for (uint32_t i = 0; i < pager->need_count; i++) {
        struct need *need = &pager->needs[i];

        if (need->state == NEED_LEASED || need->state == NEED_HANDED) {
            release_need(pager, need);
        } else if (need->state == NEED_LOADING) {
            /* From here on it is like a prefetch that nobody has used. */
            set_flags(pager, need->unit, FLAG_AHEAD);
            pager->ahead[pager->ahead_count++] = need->unit;
        } else {
            set_flags(pager, need->unit, pager->flags[need->unit] & (uint8_t)~FLAG_NEEDED);
        }
    }
    while (cancel_one_prefetch(pager))
        ;
    close_layer(pager);
}

uint32_t mp_pager_prefetch_room(const struct mp_pager *pager, uint32_t layer)
{
    const uint32_t limit = pager->config.shape.slots / 4;

    if (layer >= pager->config.shape.layers || (pager->open && layer == pager->layer))
        return 0;
    return limit > pager->kept_count ? limit - pager->kept_count : 0;
}

static void prefetch_one(struct mp_pager *pager, uint32_t unit)
{
    enum mp_status status = start_load(pager, unit, MP_PRIORITY_PREFETCH);

    if (status != MP_OK) {
        mp_error_clear(); /* only a guess */
        return;
    }
    pager->ahead[pager->ahead_count++] = unit;
    set_flags(pager, unit, FLAG_KEEP | FLAG_AHEAD);
    pager->config.counters->prefetch_issued++;
}

void mp_pager_prefetch(struct mp_pager *pager, uint32_t layer, const uint32_t *experts,
                       uint32_t count)
{
    const struct mp_shape *shape = &pager->config.shape;

    for (uint32_t i = 0; i < count && mp_pager_prefetch_room(pager, layer) > 0; i++) {
        const uint32_t unit = layer * shape->experts + experts[i];
        enum mp_res_state state;

        if (experts[i] >= shape->experts) {
            pager->config.counters->policy_strikes++;
            continue;
        }
        state = mp_space_state(pager->config.space, unit);
        if (state == MP_RES_VALID && pager->flags[unit] == 0)
            set_flags(pager, unit, FLAG_KEEP);
        else if (state == MP_RES_ABSENT || state == MP_RES_FAILED)
            prefetch_one(pager, unit);
    }
}

void mp_pager_residents(struct mp_pager *pager, uint32_t layer, bool on_the_way, uint8_t *resident)
{
    const uint32_t experts = pager->config.shape.experts;

    mp_assert(layer < pager->config.shape.layers);
    for (uint32_t e = 0; e < experts; e++) {
        const enum mp_res_state state = mp_space_state(pager->config.space, layer * experts + e);

        resident[e] = state == MP_RES_VALID || (on_the_way && state == MP_RES_FILLING);
    }
}

uint32_t mp_pager_quota(const struct mp_pager *pager, uint32_t layer)
{
    return pager->global ? MP_LAYER_ANY : pager->quota[layer];
}

bool mp_pager_check(struct mp_pager *pager)
{
    const uint32_t experts = pager->config.shape.experts;
    uint32_t kept = 0;

    for (uint32_t l = 0; l < pager->config.shape.layers; l++) {
        uint32_t held = 0;

        for (uint32_t u = l * experts; u < (l + 1) * experts; u++) {
            const enum mp_res_state state = mp_space_state(pager->config.space, u);
            const uint8_t was = pager->evictable[u];

            held += state == MP_RES_FILLING || state == MP_RES_VALID;
            kept += (pager->flags[u] & FLAG_KEEP) != 0;
            refresh(pager, u);
            if (pager->evictable[u] != was || (!pager->open && (pager->flags[u] & FLAG_NEEDED)))
                return false;
        }
        if (held != pager->held[l])
            return false;
    }
    return kept == pager->kept_count && mp_space_check(pager->config.space);
}

static bool make_partition(struct mp_pager *pager)
{
    const struct mp_policies *set = policies(pager);
    const struct mp_shape *shape = &pager->config.shape;
    const uint64_t cycle = (uint64_t)shape->layers * shape->top_k;
    uint64_t sum = 0;

    pager->global = set->partition_ops->global;
    if (!pager->global)
        set->partition_ops->quota(set->partition, shape, pager->quota);
    for (uint32_t l = 0; !pager->global && l < shape->layers; l++)
        sum += pager->quota[l];
    if (sum > shape->slots)
        return false;
    if (pager->global && !set->evict_ops->per_layer && shape->slots < cycle) {
        mp_log_warn("pager",
                    "%u slots are less than one token cycle (%" PRIu64 " experts): a global order "
                    "would never hit, so each of the %u layers gets an equal share",
                    shape->slots, cycle, shape->layers);
        pager->global = false;
        for (uint32_t l = 0; l < shape->layers; l++)
            pager->quota[l] =
                shape->slots / shape->layers + (l < shape->slots % shape->layers ? 1 : 0);
    }
    return true;
}

enum mp_status mp_pager_create(const struct mp_pager_config *config, struct mp_pager **pager_p)
{
    const struct mp_shape *shape = &config->shape;
    const size_t units = mp_space_unit_count(config->space);
    struct mp_pager *pager;

    if (shape->layers == 0 || shape->experts == 0 ||
        (uint64_t)shape->layers * shape->experts != units)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_SHAPE", "%u layers of %u experts are not %zu units",
                       shape->layers, shape->experts, units);
    pager = calloc(1, sizeof(*pager));
    if (pager == NULL)
        return mp_fail_no_memory("the pager", sizeof(*pager));
    pager->config = *config;
    pager->units = (uint32_t)units;
    pager->evictable = calloc(units, 1);
    pager->fallback = calloc(units, 1);
    pager->flags = calloc(units, 1);
    pager->held = calloc(shape->layers, sizeof(uint32_t));
    pager->quota = calloc(shape->layers, sizeof(uint32_t));
    pager->ahead = calloc(units, sizeof(uint32_t));
    pager->needs = calloc(shape->experts, sizeof(struct need));
    pager->wait_list = calloc(shape->experts, sizeof(uint32_t));
    if (pager->evictable == NULL || pager->fallback == NULL || pager->flags == NULL ||
        pager->held == NULL || pager->quota == NULL || pager->ahead == NULL ||
        pager->needs == NULL || pager->wait_list == NULL) {
        mp_pager_destroy(pager);
        return mp_fail_no_memory("the pager's tables", units * 8);
    }
    if (!make_partition(pager)) {
        mp_pager_destroy(pager);
        return mp_fail(MP_ERR_INVALID, "E_PARTITION",
                       "partition policy '%s' gives away more than %u slots",
                       policies(pager)->partition_ops->info.name, shape->slots);
    }
    if (config->timeline != NULL)
        pager->track = mp_timeline_add_track(config->timeline, "wait");
    *pager_p = pager;
    return MP_OK;
}

void mp_pager_destroy(struct mp_pager *pager)
{
    if (pager == NULL)
        return;
    mp_assert(!pager->open);
    for (uint32_t u = 0; pager->flags != NULL && u < pager->units; u++) {
        if (pager->flags[u] & FLAG_AHEAD)
            pager->config.counters->prefetch_unused_bytes +=
                mp_space_unit_bytes(pager->config.space, u);
    }
    free(pager->evictable);
    free(pager->fallback);
    free(pager->flags);
    free(pager->held);
    free(pager->quota);
    free(pager->ahead);
    free(pager->needs);
    free(pager->wait_list);
    free(pager);
}
