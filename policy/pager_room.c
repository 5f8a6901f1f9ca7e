/*
 * The pager's second half: who may leave, whom the evict policy names, what the quotas allow, and
 * what is loaded ahead.
 *
 * The policies hear of a unit (on_insert) when it takes its slot, not when its bytes have come. So
 * what a demand-only policy decides does not depend on the timing of reads.
 */
#include "policy/pager_int.h"

#include <inttypes.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

static const struct mp_policies *policies(const struct mp_pager *pager)
{
    return pager->config.policies;
}

void mp_pager_refresh(struct mp_pager *pager, uint32_t unit)
{
    struct mp_space *space = pager->config.space;

    pager->evictable[unit] = (pager->flags[unit] & (MP_PAGER_NEEDED | MP_PAGER_KEEP)) == 0 &&
                             mp_space_state(space, unit) == MP_RES_VALID &&
                             mp_space_leases(space, unit) == 0;
}

void mp_pager_set_flags(struct mp_pager *pager, uint32_t unit, uint8_t flags)
{
    const uint8_t change = pager->flags[unit] ^ flags;

    if (change & MP_PAGER_KEEP)
        pager->kept_count += flags & MP_PAGER_KEEP ? 1 : (uint32_t)-1;
    if (change & MP_PAGER_VAIN)
        pager->vain_count += flags & MP_PAGER_VAIN ? 1 : (uint32_t)-1;
    pager->flags[unit] = flags;
    mp_pager_refresh(pager, unit);
}

static void note_inserted(struct mp_pager *pager, uint32_t unit)
{
    pager->held[mp_pager_layer_of(pager, unit)]++;
    policies(pager)->evict_ops->on_insert(policies(pager)->evict, unit, pager->now);
}

void mp_pager_note_removed(struct mp_pager *pager, uint32_t unit)
{
    mp_assert(pager->held[mp_pager_layer_of(pager, unit)] > 0);
    pager->held[mp_pager_layer_of(pager, unit)]--;
    policies(pager)->evict_ops->on_remove(policies(pager)->evict, unit, pager->now);
    if (pager->flags[unit] & MP_PAGER_AHEAD)
        pager->config.counters->prefetch_unused_bytes +=
            mp_space_unit_bytes(pager->config.space, unit);
    mp_pager_set_flags(pager, unit, pager->flags[unit] & MP_PAGER_NEEDED);
}

/* A read that came to nothing: no bytes were moved, so none were wasted. */
static void note_nothing_came(struct mp_pager *pager, uint32_t unit)
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

static uint32_t first_allowed(const struct mp_pager *pager, const struct mp_evict_query *query)
{
    uint32_t unit = 0;

    while (unit < pager->units && !mp_evict_allows(query, unit))
        unit++;
    return unit < pager->units ? unit : MP_UNIT_NONE;
}

/*
 * One question to the evict policy, its answer checked. With `must` the policy cannot keep
 * everything: a need waits for the slot and nothing else can give one.
 */
static uint32_t ask_victim(struct mp_pager *pager, const struct mp_evict_query *query, bool must)
{
    const uint64_t start_ns = mp_clock_now_ns(pager->config.clock);
    uint32_t unit = policies(pager)->evict_ops->pick(policies(pager)->evict, query);
    const bool bad =
        unit != MP_UNIT_NONE && (unit >= pager->units || !mp_evict_allows(query, unit));

    if (bad || (must && unit == MP_UNIT_NONE)) {
        unit = first_allowed(pager, query);
        pager->config.counters->policy_strikes += bad || unit != MP_UNIT_NONE;
    }
    pager->config.counters->decisions_ns += mp_clock_now_ns(pager->config.clock) - start_ns;
    return unit;
}

/* A unit that was prefetched in vain and may go, or MP_UNIT_NONE. */
static uint32_t find_vain(const struct mp_pager *pager, const struct mp_evict_query *query)
{
    uint32_t unit = 0;

    if (pager->vain_count == 0)
        return MP_UNIT_NONE;
    while (unit < pager->units &&
           (!(pager->flags[unit] & MP_PAGER_VAIN) || !mp_evict_allows(query, unit)))
        unit++;
    return unit < pager->units ? unit : MP_UNIT_NONE;
}

/*
 * A victim for `for_unit`. Strict: only units without protecting flags. Otherwise also what is kept
 * for a later layer, because a demand comes first.
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
    uint32_t vain;

    if (!strict || !one_class) {
        for (uint32_t u = 0; u < pager->units; u++) {
            pager->fallback[u] =
                (one_class || mp_space_unit_class(space, u) == class_index) &&
                (pager->evictable[u] ||
                 (!strict && !(pager->flags[u] & MP_PAGER_NEEDED) &&
                  mp_space_state(space, u) == MP_RES_VALID && mp_space_leases(space, u) == 0));
        }
        query.evictable = pager->fallback;
    }
    vain = find_vain(pager, &query);
    return vain != MP_UNIT_NONE ? vain : ask_victim(pager, &query, !strict);
}

bool mp_pager_over_quota(const struct mp_pager *pager, uint32_t layer)
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

/* A demand's victim where its layer and quota have none. */
static uint32_t pick_beyond_quota(struct mp_pager *pager, uint32_t unit)
{
    uint32_t victim = pick_victim(pager, unit, MP_LAYER_ANY, true);

    if (victim == MP_UNIT_NONE)
        victim = pick_victim(pager, unit, MP_LAYER_ANY, false);
    return victim;
}

/* The policy keeps everything, and what the open layer is still using may be of those that leave.
 */
static bool must_wait(const struct mp_pager *pager, uint32_t unit)
{
    return policies(pager)->evict_ops->waits &&
           mp_pager_in_use(pager, mp_space_unit_class(pager->config.space, unit));
}

enum mp_status mp_pager_start_load(struct mp_pager *pager, uint32_t unit, enum mp_priority priority)
{
    struct mp_space *space = pager->config.space;
    const uint32_t layer = mp_pager_layer_of(pager, unit);
    const bool over = mp_pager_over_quota(pager, layer);
    uint32_t victim;
    enum mp_status status = MP_ERR_NO_SPACE;

    if (!over)
        status = mp_space_load(space, unit, priority);
    if (status == MP_ERR_NO_SPACE) {
        victim = pick_victim(pager, unit, over ? layer : greediest_layer(pager), true);
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

void mp_pager_settle_ahead(struct mp_pager *pager, bool block)
{
    struct mp_space *space = pager->config.space;
    uint32_t left = 0;

    for (uint32_t i = 0; i < pager->ahead_count; i++) {
        const uint32_t unit = pager->ahead[i];
        enum mp_res_state state;

        if (block && mp_space_wait(space, unit) != MP_OK)
            mp_error_clear(); /* a guess that failed; a demand will try again and report */
        state = mp_space_poll(space, unit);
        if (state == MP_RES_FILLING)
            pager->ahead[left++] = unit;
        else if (state == MP_RES_VALID)
            mp_pager_refresh(pager, unit);
        else
            note_nothing_came(pager, unit);
    }
    pager->ahead_count = left;
}

bool mp_pager_forget_ahead(struct mp_pager *pager, uint32_t unit)
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

/* Take back the read of ahead[i]. False: it has started. */
static bool cancel_one(struct mp_pager *pager, uint32_t i)
{
    const uint32_t unit = pager->ahead[i];

    mp_assert(!(pager->flags[unit] & MP_PAGER_NEEDED));
    if (mp_space_cancel(pager->config.space, unit) != MP_OK)
        return false;
    mp_pager_forget_ahead(pager, unit);
    if (pager->flags[unit] & MP_PAGER_AHEAD)
        pager->config.counters->prefetch_canceled++;
    note_nothing_came(pager, unit);
    return true;
}

bool mp_pager_cancel_ahead(struct mp_pager *pager, uint32_t class_index)
{
    struct mp_space *space = pager->config.space;

    for (uint32_t i = pager->ahead_count; i-- > 0;) {
        const uint32_t unit = pager->ahead[i];

        if ((class_index == MP_CLASS_ANY || mp_space_unit_class(space, unit) == class_index) &&
            cancel_one(pager, i))
            return true;
    }
    return false;
}

void mp_pager_drop_all(struct mp_pager *pager)
{
    pager->wish_count = 0;
    while (mp_pager_cancel_ahead(pager, MP_CLASS_ANY))
        ;
}

uint32_t mp_pager_prefetch_room(const struct mp_pager *pager, uint32_t layer)
{
    const uint32_t limit = pager->config.shape.slots / 4;
    const uint32_t taken = pager->kept_count + pager->wish_count;

    if (layer >= pager->config.shape.layers || (pager->open && layer == pager->layer))
        return 0;
    return limit > taken ? limit - taken : 0;
}

bool mp_pager_load_ahead(struct mp_pager *pager, uint32_t unit, uint8_t flags)
{
    const enum mp_status status = mp_pager_start_load(pager, unit, MP_PRIORITY_PREFETCH);

    if (status != MP_OK) {
        mp_error_clear(); /* only a guess */
        return false;
    }
    pager->ahead[pager->ahead_count++] = unit;
    mp_pager_set_flags(pager, unit, flags);
    pager->config.counters->prefetch_issued++;
    return true;
}

/* True: it is in the tier or on its way, and is kept now. */
static bool keep_resident(struct mp_pager *pager, uint32_t unit)
{
    const enum mp_res_state state = mp_space_state(pager->config.space, unit);
    const uint8_t flags = pager->flags[unit] & (uint8_t)~MP_PAGER_VAIN;

    if (state != MP_RES_VALID && state != MP_RES_FILLING)
        return false;
    mp_pager_set_flags(pager, unit, flags | MP_PAGER_KEEP);
    return true;
}

static bool is_wished(const struct mp_pager *pager, uint32_t unit)
{
    uint32_t i = 0;

    while (i < pager->wish_count && pager->wishes[i] != unit)
        i++;
    return i < pager->wish_count;
}

void mp_pager_prefetch(struct mp_pager *pager, uint32_t layer, const uint32_t *experts,
                       uint32_t count)
{
    const struct mp_shape *shape = &pager->config.shape;

    for (uint32_t i = 0; i < count && mp_pager_prefetch_room(pager, layer) > 0; i++) {
        const uint32_t unit = layer * shape->experts + experts[i];

        if (experts[i] >= shape->experts)
            pager->config.counters->policy_strikes++;
        else if (!keep_resident(pager, unit) && !is_wished(pager, unit))
            pager->wishes[pager->wish_count++] = unit;
        /* Decisions of a deterministic run must not depend on what has been read by now. */
        if (pager->config.deterministic)
            mp_pager_pursue(pager);
    }
    mp_pager_pursue(pager);
}

static bool needs_are_read(const struct mp_pager *pager)
{
    for (uint32_t i = 0; pager->open && i < pager->need_count; i++) {
        if (pager->needs[i].state == MP_NEED_WAITING || pager->needs[i].state == MP_NEED_LOADING)
            return false;
    }
    return true;
}

void mp_pager_pursue(struct mp_pager *pager)
{
    const bool patient = !pager->config.deterministic;

    if (pager->wish_count == 0 || (patient && !needs_are_read(pager)))
        return;
    if (patient)
        mp_pager_settle_ahead(pager, false);
    while (pager->wish_count > 0 && (!patient || pager->ahead_count < pager->window)) {
        const uint32_t unit = pager->wishes[0];

        pager->wish_count--;
        memmove(pager->wishes, pager->wishes + 1, pager->wish_count * sizeof(pager->wishes[0]));
        if (!keep_resident(pager, unit))
            (void)mp_pager_load_ahead(pager, unit, MP_PAGER_KEEP | MP_PAGER_AHEAD);
    }
}

/* Leave one read unfinished when a layer begins: none would mean an idle disk, more of them slots
 * that were taken from others too early. */
static void adapt_window(struct mp_pager *pager, uint32_t unfinished)
{
    if (unfinished == 0 && pager->wish_count > 0 && pager->window < pager->config.shape.slots / 8)
        pager->window *= 2;
    else if (unfinished > 1)
        pager->window = pager->window > unfinished ? pager->window - unfinished + 1 : 1;
}

void mp_pager_drop_guesses(struct mp_pager *pager, uint32_t unfinished)
{
    const uint8_t guess = MP_PAGER_KEEP | MP_PAGER_AHEAD;
    uint32_t left = 0;

    adapt_window(pager, unfinished);
    for (uint32_t i = 0; i < pager->wish_count; i++) {
        if (mp_pager_layer_of(pager, pager->wishes[i]) != pager->layer)
            pager->wishes[left++] = pager->wishes[i];
    }
    pager->wish_count = left;
    for (uint32_t i = pager->ahead_count; i-- > 0;) {
        const uint32_t unit = pager->ahead[i];

        if (mp_pager_layer_of(pager, unit) == pager->layer && (pager->flags[unit] & guess) == guess)
            (void)cancel_one(pager, i);
    }
}

uint32_t mp_pager_quota(const struct mp_pager *pager, uint32_t layer)
{
    mp_assert(layer < pager->config.shape.layers);
    return pager->global ? MP_LAYER_ANY : pager->quota[layer];
}

bool mp_pager_make_partition(struct mp_pager *pager)
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

void mp_pager_residents(struct mp_pager *pager, uint32_t layer, bool on_the_way, uint8_t *resident)
{
    const uint32_t experts = pager->config.shape.experts;

    mp_assert(layer < pager->config.shape.layers);
    for (uint32_t e = 0; e < experts; e++) {
        const enum mp_res_state state = mp_space_state(pager->config.space, layer * experts + e);

        resident[e] = state == MP_RES_VALID || (on_the_way && state == MP_RES_FILLING);
    }
}

uint64_t mp_pager_unused_bytes(const struct mp_pager *pager)
{
    uint64_t bytes = 0;

    for (uint32_t u = 0; pager->flags != NULL && u < pager->units; u++) {
        if ((pager->flags[u] & MP_PAGER_AHEAD) &&
            mp_space_state(pager->config.space, u) == MP_RES_VALID)
            bytes += mp_space_unit_bytes(pager->config.space, u);
    }
    return bytes;
}
