/*
 * Leases the needs of a layer: the slices of each expert in order, as their bytes arrive.
 *
 * Why a need cannot starve: leased needs are returned first. If there is none to return and no read
 * of a need is in flight, the caller holds no lease (or gets MP_ERR_BUSY), so every VALID unit that
 * is not NEEDED can be evicted, a prefetch in flight ends or is cancelled, and a later slice that
 * waits for an earlier one of its expert gives up its slot.
 */
#include <string.h>

#include "policy/pager/pager_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/space/tier.h"

enum mp_status mp_pager_lease_need(struct mp_pager *pager, struct mp_pager_need *need)
{
    enum mp_status status = mp_space_lease(pager->config.space, need->unit, need->pieces);

    mp_assert(need->state == MP_NEED_WAITING || need->state == MP_NEED_LOADING);
    if (status == MP_OK) {
        need->state = MP_NEED_LEASED;
        mp_pager_refresh(pager, need->unit);
    }
    return status;
}

enum mp_status mp_pager_start_waiting(struct mp_pager *pager)
{
    uint32_t full = 0; /* bits of classes */

    mp_assert(pager->open);
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

static void hand_out(struct mp_pager *pager, uint32_t index, struct mp_ready *ready_p)
{
    struct mp_pager_need *need = &pager->needs[index];

    mp_assert(index < pager->need_count);
    mp_assert(need->state == MP_NEED_LEASED);
    need->state = MP_NEED_HANDED;
    ready_p->need = index;
    memcpy(ready_p->pieces, need->pieces, sizeof(need->pieces));
}

/* Reads share the disk, so the shortest ones say most about it; what is longer counts slowly, as
 * the disk may have become slower. */
static void note_read(struct mp_pager *pager, uint32_t unit)
{
    const uint64_t ns = mp_space_read_ns(pager->config.space, unit);

    if (pager->read_ns == 0 || ns < pager->read_ns)
        pager->read_ns = pager->read_ns == 0 ? ns : (pager->read_ns + ns) / 2;
    else
        pager->read_ns += (ns - pager->read_ns) / 32;
}

uint64_t mp_pager_load_ns(const struct mp_pager *pager)
{
    return pager->read_ns * pager->slices.count;
}

/* Look at needs that are being read; lease those that are complete. */
static enum mp_status settle_needs(struct mp_pager *pager)
{
    mp_assert(pager->open);
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
        note_read(pager, need->unit);
        status = mp_pager_lease_need(pager, need);
        if (status != MP_OK)
            return status;
    }
    return MP_OK;
}

/* Leased, and no earlier unit of its expert is still to be handed out? */
static bool is_next(const struct mp_pager *pager, uint32_t index)
{
    mp_assert(index < pager->need_count);
    return pager->needs[index].state == MP_NEED_LEASED &&
           (index % pager->slices.count == 0 || pager->needs[index - 1].state == MP_NEED_HANDED ||
            pager->needs[index - 1].state == MP_NEED_DONE);
}

/*
 * The need to hand out now, or MP_NEED_NONE: those that were resident at begin first, because a
 * slot that others wait for can be one of theirs; then any, deterministic in order.
 */
static uint32_t find_leased(const struct mp_pager *pager, bool hits_only)
{
    mp_assert(pager->open);
    for (uint32_t i = 0; i < pager->need_count; i++) {
        if (pager->needs[i].hit && is_next(pager, i))
            return i;
    }
    if (hits_only)
        return MP_NEED_NONE;
    for (uint32_t i = 0; i < pager->need_count; i++) {
        const enum mp_need_state state = pager->needs[i].state;

        if (is_next(pager, i))
            return i;
        if (pager->config.deterministic && (state == MP_NEED_WAITING || state == MP_NEED_LOADING))
            break;
    }
    return MP_NEED_NONE;
}

uint32_t mp_pager_count_needs(const struct mp_pager *pager, enum mp_need_state state)
{
    uint32_t count = 0;

    mp_assert(state <= MP_NEED_DONE);
    for (uint32_t i = 0; i < pager->need_count; i++)
        count += pager->needs[i].state == state;
    return count;
}

bool mp_pager_in_use(const struct mp_pager *pager, uint32_t class_index)
{
    mp_assert(pager->open || pager->need_count == 0);
    for (uint32_t i = 0; i < pager->need_count; i++) {
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
    const uint32_t at = mp_space_wait_any(pager->config.space, pager->wait_list, count, interrupt);
    uint64_t end_ns;

    mp_assert(count > 0);
    if (interrupt != NULL && !interrupt->exposed)
        return at < count;
    end_ns = mp_clock_now_ns(pager->config.clock);
    pager->config.counters->exposed_wait_ns += end_ns - start_ns;
    mp_timeline_span(pager->config.timeline, pager->track, "wait for expert", start_ns, end_ns,
                     NULL);
    return at < count;
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

    while (pager->needs[i].state != MP_NEED_WAITING) {
        i++;
        mp_assert(i < pager->need_count);
    }
    return mp_space_unit_class(pager->config.space, pager->needs[i].unit);
}

/* The last need of this size class that holds a slot and waits for an earlier slice goes back to
 * waiting itself. False: there is none. */
static bool give_back_one(struct mp_pager *pager, uint32_t class_index)
{
    mp_assert(class_index < mp_space_class_count(pager->config.space));
    for (uint32_t i = pager->need_count; i-- > 0;) {
        struct mp_pager_need *need = &pager->needs[i];

        if (need->state != MP_NEED_LEASED ||
            mp_space_unit_class(pager->config.space, need->unit) != class_index)
            continue;
        mp_space_release(pager->config.space, need->unit);
        need->state = MP_NEED_WAITING;
        need->hit = false;
        mp_pager_evict(pager, need->unit);
        return true;
    }
    return false;
}

/* No lease can be given and no need is being read: get a slot from the reads ahead, or from what
 * came too early. */
static enum mp_status unblock(struct mp_pager *pager, const struct mp_interrupt *interrupt)
{
    const uint32_t class_index = waiting_class(pager);
    uint32_t count = 0;

    mp_assert(mp_pager_count_needs(pager, MP_NEED_LOADING) == 0);
    if (mp_pager_count_needs(pager, MP_NEED_HANDED) > 0)
        return MP_ERR_BUSY;
    pager->room_changed = true;
    if (mp_pager_cancel_ahead(pager, class_index) || give_back_one(pager, class_index))
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
    mp_assert(ready_p != NULL);
    if (!pager->open)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_ORDER", "no layer is open");
    for (;;) {
        enum mp_status status = settle_needs(pager);
        uint32_t index;

        if (status != MP_OK)
            return status;
        index = find_leased(pager, false);
        if (index != MP_NEED_NONE) {
            hand_out(pager, index, ready_p);
            mp_pager_pursue(pager);
            return MP_OK;
        }
        /* Asked only when the result can be new, so that timing does not show in the policies. */
        if (pager->room_changed)
            status = mp_pager_start_waiting(pager);
        if (status != MP_OK)
            return status;
        if (mp_pager_count_needs(pager, MP_NEED_LOADING) > 0) {
            if (!wait_for_need(pager, interrupt))
                return MP_ERR_BUSY;
            continue;
        }
        if (mp_pager_count_needs(pager, MP_NEED_WAITING) == 0) {
            ready_p->need = MP_NEED_NONE;
            return MP_OK;
        }
        status = unblock(pager, interrupt);
        if (status != MP_OK)
            return status;
    }
}

static enum mp_status next_now(struct mp_pager *pager, bool hits_only, struct mp_ready *ready_p)
{
    enum mp_status status;
    uint32_t index;

    mp_assert(ready_p != NULL);
    if (!pager->open)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_ORDER", "no layer is open");
    ready_p->need = MP_NEED_NONE;
    if (mp_pager_count_needs(pager, MP_NEED_WAITING) > 0)
        return MP_OK;
    status = settle_needs(pager);
    if (status != MP_OK)
        return status;
    index = find_leased(pager, hits_only);
    if (index != MP_NEED_NONE)
        hand_out(pager, index, ready_p);
    return MP_OK;
}

enum mp_status mp_pager_next_now(struct mp_pager *pager, struct mp_ready *ready_p)
{
    return next_now(pager, false, ready_p);
}

enum mp_status mp_pager_next_early(struct mp_pager *pager, struct mp_ready *ready_p)
{
    return next_now(pager, pager->config.deterministic, ready_p);
}

void mp_pager_release_need(struct mp_pager *pager, struct mp_pager_need *need)
{
    mp_assert(need->state == MP_NEED_LEASED || need->state == MP_NEED_HANDED);
    mp_space_release(pager->config.space, need->unit);
    need->state = MP_NEED_DONE;
    mp_pager_set_flags(pager, need->unit, 0);
}

/* All units of the expert are done: those that were loaded on demand stay only if admitted. */
static void admit(struct mp_pager *pager, uint32_t first)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const struct mp_pager_need *need = &pager->needs[first];
    const uint32_t expert = mp_slices_expert(&pager->slices, need->unit);
    bool loaded = false;

    mp_assert(first % pager->slices.count == 0);
    for (uint32_t s = 0; s < pager->slices.count; s++) {
        if (need[s].state != MP_NEED_DONE)
            return;
        loaded |= need[s].loaded;
    }
    if (!loaded || set->admit_ops->admit(set->admit, expert, need->tokens, pager->now))
        return;
    for (uint32_t s = pager->slices.count; s-- > 0;) {
        /* One that was done early may have left already, or be wanted again by a guess. */
        if (need[s].loaded && pager->may_go[need[s].unit])
            mp_pager_evict(pager, need[s].unit);
    }
}

void mp_pager_done(struct mp_pager *pager, uint32_t index)
{
    struct mp_pager_need *need;

    mp_assert(pager->open && index < pager->need_count);
    need = &pager->needs[index];
    mp_assert(need->state == MP_NEED_HANDED);
    mp_pager_release_need(pager, need);
    admit(pager, index - index % pager->slices.count);
    /* An error here comes back from the next mp_pager_next(), which tries again. */
    if (mp_pager_start_waiting(pager) != MP_OK)
        mp_error_clear();
    mp_pager_pursue(pager);
}
