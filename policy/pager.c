/*
 * The life of a layer; see pager.h for what it promises and pager_int.h for the state and the other
 * parts.
 *
 * Why a need cannot starve: mp_pager_next() hands out leased needs first. When it has none and no
 * read of a need is in flight, the caller holds no lease (or it is told MP_ERR_BUSY), so every
 * VALID unit that is not NEEDED can go, and a prefetch in flight ends by itself or is cancelled.
 */
#include "policy/pager_int.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/tier.h"

/* Reads ahead at a time before anything is known of the disk: one is read, one is next. */
#define WINDOW_START 2

static const struct mp_policies *policies(const struct mp_pager *pager)
{
    return pager->config.policies;
}

static enum mp_status lease_need(struct mp_pager *pager, struct mp_pager_need *need)
{
    enum mp_status status = mp_space_lease(pager->config.space, need->unit, need->pieces);

    if (status == MP_OK) {
        need->state = MP_NEED_LEASED;
        mp_pager_refresh(pager, need->unit);
    }
    return status;
}

/* Start loads for needs that have no slot yet, in order; a size class that is full is skipped. */
static enum mp_status start_waiting(struct mp_pager *pager)
{
    uint32_t full = 0; /* bits of classes */

    _Static_assert(MP_TIER_CLASSES_MAX <= 32, "one bit per class");
    pager->room_changed = false;
    for (uint32_t i = 0; i < pager->need_count; i++) {
        struct mp_pager_need *need = &pager->needs[i];
        const uint32_t class_bit = 1u << mp_space_unit_class(pager->config.space, need->unit);
        enum mp_status status;

        if (need->state != MP_NEED_WAITING || (full & class_bit))
            continue;
        status = mp_pager_start_load(pager, need->unit, MP_PRIORITY_DEMAND);
        if (status == MP_ERR_NO_SPACE) {
            full |= class_bit;
            continue;
        }
        if (status != MP_OK) {
            pager->room_changed = true;
            return status;
        }
        need->state = MP_NEED_LOADING;
        need->loaded = true;
    }
    return MP_OK;
}

static enum mp_status begin_need(struct mp_pager *pager, struct mp_pager_need *need)
{
    struct mp_counters *counters = pager->config.counters;
    const uint32_t unit = need->unit;
    bool on_the_way;
    enum mp_res_state state;

    if (need->elsewhere) {
        need->hit = mp_space_state(pager->config.space, unit) == MP_RES_VALID;
        need->state = MP_NEED_DONE;
        counters->hits += need->hit;
        counters->elsewhere += !need->hit;
        return MP_OK;
    }
    on_the_way = mp_pager_forget_ahead(pager, unit);
    state = mp_space_poll(pager->config.space, unit);
    if (pager->flags[unit] & MP_PAGER_AHEAD)
        counters->prefetch_used++;
    mp_pager_set_flags(pager, unit, MP_PAGER_NEEDED);
    if (state == MP_RES_VALID) {
        counters->hits++;
        need->hit = true;
        return lease_need(pager, need);
    }
    counters->misses++;
    need->state = MP_NEED_WAITING;
    if (state == MP_RES_FILLING) {
        mp_space_promote(pager->config.space, unit);
        need->state = MP_NEED_LOADING;
    } else if (on_the_way) {
        mp_pager_note_removed(pager, unit); /* it failed just now */
    }
    return MP_OK;
}

/* Tell the partition policy how the open layer found its needs. */
static void observe(struct mp_pager *pager)
{
    const struct mp_policies *set = policies(pager);
    uint32_t hits = 0;

    if (set->partition_ops->observe == NULL)
        return;
    for (uint32_t i = 0; i < pager->need_count; i++)
        hits += pager->needs[i].hit;
    set->partition_ops->observe(set->partition, pager->layer, pager->need_count, hits, pager->now);
}

void mp_pager_scores(struct mp_pager *pager, uint32_t layer, uint32_t tokens, uint32_t k,
                     const float *scores, const uint32_t *chosen)
{
    const struct mp_policies *set = policies(pager);

    /* The time that mp_pager_begin() will give to this layer. */
    if (set->evict_ops->on_scores != NULL)
        set->evict_ops->on_scores(set->evict, layer, tokens, k, scores, chosen, pager->now + 1);
}

enum mp_status mp_pager_begin(struct mp_pager *pager, uint32_t layer, const struct mp_need *needs,
                              uint32_t count)
{
    const struct mp_shape *shape = &pager->config.shape;
    const struct mp_evict_ops *evict_ops = policies(pager)->evict_ops;
    enum mp_status status = MP_OK;
    uint32_t unfinished;

    if (pager->open || layer >= shape->layers || count > shape->experts)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_ORDER", "layer %u begun at the wrong time", layer);
    for (uint32_t i = 0; i < count; i++) {
        if (needs[i].expert >= shape->experts || (i > 0 && needs[i].expert <= needs[i - 1].expert))
            return mp_fail(MP_ERR_INVALID, "E_PAGER_NEEDS", "needs of layer %u are not ascending",
                           layer);
    }

    mp_pager_settle_ahead(pager, pager->config.deterministic);
    unfinished = pager->ahead_count;
    pager->open = true;
    pager->layer = layer;
    pager->need_count = count;
    pager->now++;
    for (uint32_t i = 0; i < count; i++) {
        pager->needs[i] = (struct mp_pager_need){
            .unit = layer * shape->experts + needs[i].expert,
            .tokens = needs[i].tokens,
            .elsewhere = needs[i].elsewhere,
        };
        if (evict_ops->on_access != NULL)
            evict_ops->on_access(policies(pager)->evict, pager->needs[i].unit, needs[i].tokens,
                                 pager->now);
    }
    for (uint32_t i = 0; i < count && status == MP_OK; i++)
        status = begin_need(pager, &pager->needs[i]);
    observe(pager);
    mp_pager_drop_guesses(pager, unfinished);
    if (policies(pager)->prefetch_ops->until_routed)
        mp_pager_drop_all(pager);
    if (status == MP_OK)
        status = start_waiting(pager);
    if (status != MP_OK)
        mp_pager_abort(pager);
    return status;
}

static void hand_out(struct mp_pager *pager, uint32_t index, struct mp_ready *ready_p)
{
    struct mp_pager_need *need = &pager->needs[index];

    need->state = MP_NEED_HANDED;
    ready_p->need = index;
    memcpy(ready_p->pieces, need->pieces, sizeof(need->pieces));
}

/* Look at needs that are being read; lease those that are complete. */
static enum mp_status settle_needs(struct mp_pager *pager)
{
    for (uint32_t i = 0; i < pager->need_count; i++) {
        struct mp_pager_need *need = &pager->needs[i];
        enum mp_res_state state;
        enum mp_status status;

        if (need->state != MP_NEED_LOADING)
            continue;
        state = mp_space_poll(pager->config.space, need->unit);
        if (state == MP_RES_FILLING)
            continue;
        if (state != MP_RES_VALID) {
            need->state = MP_NEED_WAITING;
            pager->room_changed = true;
            mp_pager_note_removed(pager, need->unit);
            if (!need->loaded)
                continue; /* somebody's guess failed; the need itself has not been read yet */
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
 * The need to hand out now, or MP_NEED_NONE: those that were resident at begin first, because a
 * slot that others wait for can be one of theirs; then any, deterministic in order.
 */
static uint32_t find_leased(const struct mp_pager *pager)
{
    for (uint32_t i = 0; i < pager->need_count; i++) {
        if (pager->needs[i].state == MP_NEED_LEASED && pager->needs[i].hit)
            return i;
    }
    for (uint32_t i = 0; i < pager->need_count; i++) {
        const enum mp_need_state state = pager->needs[i].state;

        if (state == MP_NEED_LEASED)
            return i;
        if (pager->config.deterministic && (state == MP_NEED_WAITING || state == MP_NEED_LOADING))
            break;
    }
    return MP_NEED_NONE;
}

static uint32_t count_needs(const struct mp_pager *pager, enum mp_need_state state)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < pager->need_count; i++)
        count += pager->needs[i].state == state;
    return count;
}

bool mp_pager_in_use(const struct mp_pager *pager, uint32_t class_index)
{
    for (uint32_t i = 0; pager->open && i < pager->need_count; i++) {
        const struct mp_pager_need *need = &pager->needs[i];

        if (need->state != MP_NEED_WAITING && need->state != MP_NEED_DONE &&
            mp_space_unit_class(pager->config.space, need->unit) == class_index)
            return true;
    }
    return false;
}

/*
 * Block until the read of one of the units in wait_list has ended; the clock runs as exposed wait,
 * unless the caller has something else to do. False: interrupted.
 */
static bool wait_for_one(struct mp_pager *pager, const struct mp_interrupt *interrupt,
                         uint32_t count)
{
    const uint64_t start_ns = mp_clock_now_ns(pager->config.clock);
    const uint32_t at =
        mp_space_wait_any_or(pager->config.space, pager->wait_list, count, interrupt);
    uint64_t end_ns;

    if (interrupt != NULL)
        return at < count;
    end_ns = mp_clock_now_ns(pager->config.clock);
    pager->config.counters->exposed_wait_ns += end_ns - start_ns;
    mp_timeline_span(pager->config.timeline, pager->track, "wait for expert", start_ns, end_ns,
                     NULL);
    return true;
}

static bool wait_for_need(struct mp_pager *pager, const struct mp_interrupt *interrupt)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < pager->need_count; i++) {
        if (pager->needs[i].state != MP_NEED_LOADING)
            continue;
        pager->wait_list[count++] = pager->needs[i].unit;
        if (pager->config.deterministic)
            break;
    }
    return wait_for_one(pager, interrupt, count);
}

/* The size class of the first need without a slot. */
static uint32_t waiting_class(const struct mp_pager *pager)
{
    uint32_t i = 0;

    while (pager->needs[i].state != MP_NEED_WAITING)
        i++;
    return mp_space_unit_class(pager->config.space, pager->needs[i].unit);
}

/* No lease can be given and no need is being read: get a slot from the reads ahead. */
static enum mp_status unblock(struct mp_pager *pager, const struct mp_interrupt *interrupt)
{
    const uint32_t class_index = waiting_class(pager);
    uint32_t count = 0;

    if (count_needs(pager, MP_NEED_HANDED) > 0)
        return MP_ERR_BUSY;
    pager->room_changed = true;
    if (mp_pager_cancel_ahead(pager, class_index))
        return MP_OK;
    for (uint32_t i = 0; i < pager->ahead_count; i++) {
        if (mp_space_unit_class(pager->config.space, pager->ahead[i]) == class_index)
            pager->wait_list[count++] = pager->ahead[i];
    }
    if (count == 0)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_STUCK",
                       "layer %u has needs, but no slot can be freed; this is a bug of moepager",
                       pager->layer);
    if (!wait_for_one(pager, interrupt, count))
        return MP_ERR_BUSY;
    mp_pager_settle_ahead(pager, false);
    return MP_OK;
}

void mp_pager_wake(struct mp_pager *pager)
{
    mp_space_wake(pager->config.space);
}

enum mp_status mp_pager_next(struct mp_pager *pager, struct mp_ready *ready_p)
{
    return mp_pager_next_or(pager, NULL, ready_p);
}

enum mp_status mp_pager_next_or(struct mp_pager *pager, const struct mp_interrupt *interrupt,
                                struct mp_ready *ready_p)
{
    if (!pager->open)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_ORDER", "no layer is open");
    for (;;) {
        enum mp_status status = settle_needs(pager);
        uint32_t index;

        if (status != MP_OK)
            return status;
        index = find_leased(pager);
        if (index != MP_NEED_NONE) {
            hand_out(pager, index, ready_p);
            mp_pager_pursue(pager);
            return MP_OK;
        }
        /* Asked only when the answer can be new, so that timing does not show in the policies. */
        if (pager->room_changed)
            status = start_waiting(pager);
        if (status != MP_OK)
            return status;
        if (count_needs(pager, MP_NEED_LOADING) > 0) {
            if (!wait_for_need(pager, interrupt))
                return MP_ERR_BUSY;
            continue;
        }
        if (count_needs(pager, MP_NEED_WAITING) == 0) {
            ready_p->need = MP_NEED_NONE;
            return MP_OK;
        }
        status = unblock(pager, interrupt);
        if (status != MP_OK)
            return status;
    }
}

enum mp_status mp_pager_next_now(struct mp_pager *pager, struct mp_ready *ready_p)
{
    enum mp_status status;
    uint32_t index;

    if (!pager->open)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_ORDER", "no layer is open");
    ready_p->need = MP_NEED_NONE;
    if (count_needs(pager, MP_NEED_WAITING) > 0)
        return MP_OK;
    status = settle_needs(pager);
    if (status != MP_OK)
        return status;
    index = find_leased(pager);
    if (index != MP_NEED_NONE)
        hand_out(pager, index, ready_p);
    return MP_OK;
}

static void release_need(struct mp_pager *pager, struct mp_pager_need *need)
{
    mp_space_release(pager->config.space, need->unit);
    need->state = MP_NEED_DONE;
    mp_pager_set_flags(pager, need->unit, 0);
}

void mp_pager_done(struct mp_pager *pager, uint32_t index)
{
    const struct mp_policies *set = policies(pager);
    struct mp_pager_need *need;

    mp_assert(pager->open && index < pager->need_count);
    need = &pager->needs[index];
    mp_assert(need->state == MP_NEED_HANDED);
    release_need(pager, need);
    if (need->loaded && !set->admit_ops->admit(set->admit, need->unit, need->tokens, pager->now)) {
        /* Cannot be refused: it is valid and this was its only lease. */
        mp_pager_evict(pager, need->unit);
    }
    /* An error here comes back from the next mp_pager_next(), which tries again. */
    if (start_waiting(pager) != MP_OK)
        mp_error_clear();
    mp_pager_pursue(pager);
}

static void close_layer(struct mp_pager *pager)
{
    const uint32_t experts = pager->config.shape.experts;

    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t unit = pager->layer * experts + e;

        /* What was kept for this layer has had its chance. What was prefetched in vain stays
         * marked until it is used or evicted. */
        if ((pager->flags[unit] & MP_PAGER_AHEAD) && (pager->flags[unit] & MP_PAGER_KEEP))
            mp_pager_set_flags(pager, unit, MP_PAGER_AHEAD | MP_PAGER_VAIN);
        else if (pager->flags[unit] & (MP_PAGER_NEEDED | MP_PAGER_KEEP))
            mp_pager_set_flags(pager, unit, pager->flags[unit] & MP_PAGER_AHEAD);
    }
    pager->open = false;
    pager->need_count = 0;
}

void mp_pager_end(struct mp_pager *pager)
{
    mp_assert(pager->open);
    mp_assert(count_needs(pager, MP_NEED_DONE) == pager->need_count);
    close_layer(pager);
    mp_pager_replace(pager, pager->layer);
    if (pager->layer + 1 == pager->config.shape.layers)
        mp_pager_revise(pager);
    mp_pager_pursue(pager);
}

/* The layer gives up on a need that is being read: the read may end, but nobody waits for it. */
static void abandon_read(struct mp_pager *pager, struct mp_pager_need *need)
{
    const enum mp_res_state state = mp_space_poll(pager->config.space, need->unit);

    mp_pager_set_flags(pager, need->unit, 0);
    if (state == MP_RES_FILLING)
        pager->ahead[pager->ahead_count++] = need->unit;
    else if (state != MP_RES_VALID)
        mp_pager_note_removed(pager, need->unit);
}

void mp_pager_abort(struct mp_pager *pager)
{
    if (!pager->open)
        return;
    for (uint32_t i = 0; i < pager->need_count; i++) {
        struct mp_pager_need *need = &pager->needs[i];

        if (need->state == MP_NEED_LEASED || need->state == MP_NEED_HANDED)
            release_need(pager, need);
        else if (need->state == MP_NEED_LOADING)
            abandon_read(pager, need);
    }
    mp_pager_drop_all(pager);
    close_layer(pager);
}

bool mp_pager_check(struct mp_pager *pager)
{
    const uint32_t experts = pager->config.shape.experts;
    uint32_t kept = 0, vain = 0, filling = 0;

    for (uint32_t l = 0; l < pager->config.shape.layers; l++) {
        uint32_t held = 0;

        for (uint32_t u = l * experts; u < (l + 1) * experts; u++) {
            const enum mp_res_state state = mp_space_state(pager->config.space, u);
            const uint8_t was = pager->evictable[u];

            held += state == MP_RES_FILLING || state == MP_RES_VALID;
            kept += (pager->flags[u] & MP_PAGER_KEEP) != 0;
            vain += (pager->flags[u] & MP_PAGER_VAIN) != 0;
            filling += state == MP_RES_FILLING;
            mp_pager_refresh(pager, u);
            if (pager->evictable[u] != was || (!pager->open && (pager->flags[u] & MP_PAGER_NEEDED)))
                return false;
        }
        if (held != pager->held[l])
            return false;
    }
    for (uint32_t i = 0; i < pager->ahead_count; i++) {
        if (mp_space_state(pager->config.space, pager->ahead[i]) != MP_RES_FILLING ||
            (pager->flags[pager->ahead[i]] & MP_PAGER_NEEDED))
            return false;
    }
    return kept == pager->kept_count && vain == pager->vain_count &&
           filling == pager->ahead_count + count_needs(pager, MP_NEED_LOADING) &&
           mp_space_check(pager->config.space);
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
    for (uint32_t u = 0; u < units; u++) {
        const enum mp_res_state state = mp_space_state(config->space, u);

        if (state != MP_RES_ABSENT && state != MP_RES_FAILED)
            return mp_fail(MP_ERR_INVALID, "E_PAGER_SPACE",
                           "unit %u of the space is in use by somebody else", u);
    }
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
    pager->wishes = calloc(units, sizeof(uint32_t));
    pager->window = WINDOW_START;
    pager->needs = calloc(shape->experts, sizeof(struct mp_pager_need));
    pager->wait_list = calloc(units, sizeof(uint32_t));
    pager->revised = calloc(shape->layers, sizeof(uint32_t));
    pager->swaps = calloc(shape->experts, sizeof(struct mp_swap));
    if (pager->evictable == NULL || pager->fallback == NULL || pager->flags == NULL ||
        pager->held == NULL || pager->quota == NULL || pager->ahead == NULL ||
        pager->wishes == NULL || pager->needs == NULL || pager->wait_list == NULL ||
        pager->revised == NULL || pager->swaps == NULL) {
        mp_pager_destroy(pager);
        return mp_fail_no_memory("the pager's tables", units * 16);
    }
    if (!mp_pager_make_partition(pager)) {
        mp_pager_destroy(pager);
        return mp_fail(MP_ERR_INVALID, "E_PARTITION",
                       "partition policy '%s' gives away more than %u slots",
                       config->policies->partition_ops->info.name, shape->slots);
    }
    if (config->timeline != NULL)
        pager->track = mp_timeline_add_track(config->timeline, "wait");
    mp_pager_load_first(pager);
    *pager_p = pager;
    return MP_OK;
}

void mp_pager_destroy(struct mp_pager *pager)
{
    const struct mp_error before = *mp_error_last();

    if (pager == NULL)
        return;
    mp_assert(!pager->open);
    /* A prefetch on the way is either cancelled or paid for; it does not fall through the books. */
    mp_pager_drop_all(pager);
    mp_pager_settle_ahead(pager, true);
    mp_error_set(&before); /* what ended the run is to be told, not that a guess came to nothing */
    pager->config.counters->prefetch_unused_bytes += mp_pager_unused_bytes(pager);
    free(pager->evictable);
    free(pager->fallback);
    free(pager->flags);
    free(pager->held);
    free(pager->quota);
    free(pager->ahead);
    free(pager->wishes);
    free(pager->needs);
    free(pager->wait_list);
    free(pager->revised);
    free(pager->swaps);
    free(pager);
}
