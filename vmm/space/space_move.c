/*
 * Moves units: loads, waits, evictions, leases.
 */
#include <inttypes.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/space/space_int.h"

/* The reader counts for itself and on its threads; take over what has come since the last time. */
void mp_space_count_reads(struct mp_space *space)
{
    struct mp_reader_stats now;

    if (space->host != NULL)
        mp_host_tier_stats(space->host, &now);
    else
        mp_reader_get_stats(space->reader, &now);
    mp_assert(now.requests >= space->seen.requests && now.read_bytes >= space->seen.read_bytes);
    space->counters->read_requests += now.requests - space->seen.requests;
    space->counters->read_bytes += now.read_bytes - space->seen.read_bytes;
    space->counters->read_retries += now.retries - space->seen.retries;
    space->counters->read_errors += now.errors - space->seen.errors;
    space->seen = now;
}

void mp_space_set_resident(struct mp_space *space, uint64_t bytes)
{
    struct mp_counters *counters = space->counters;

    mp_assert(bytes <= space->layout.plan.unit_bytes);
    counters->resident_bytes += bytes - space->resident_bytes;
    if (counters->resident_bytes > counters->resident_peak_bytes)
        counters->resident_peak_bytes = counters->resident_bytes;
    space->resident_bytes = bytes;
    mp_timeline_level(space->timeline, "resident_bytes", mp_timeline_now_ns(space->timeline),
                      bytes);
}

/* What the table refuses as invalid is the caller's bug and gets a text; busy is a normal result.
 */
static enum mp_status refuse(const struct mp_space *space, uint32_t unit, enum mp_res_event event,
                             enum mp_status status)
{
    mp_assert(status != MP_OK);
    if (status == MP_ERR_INVALID)
        return mp_fail(status, "E_INTERNAL", "%s of unit %" PRIu32 ", which is %s",
                       mp_res_event_name(event), unit,
                       mp_res_state_name(mp_space_state(space, unit)));
    return status;
}

void mp_space_must_apply(struct mp_space *space, uint32_t unit, enum mp_res_event event)
{
    const enum mp_status status = mp_res_apply(&space->units[unit].residency, event);

    mp_assert(status == MP_OK);
    (void)status;
    if (event != MP_RES_EV_RELEASE)
        space->generation++;
}

void mp_space_give_slot(struct mp_space *space, uint32_t unit)
{
    const struct mp_slot slot = space->units[unit].slot;

    mp_assert(space->owner[slot.class_index][slot.index] == unit);
    space->owner[slot.class_index][slot.index] = SPACE_NOBODY;
    mp_tier_give(space->tier, slot);
}

static void fill_ticket(struct mp_space *space, uint32_t unit, enum mp_priority priority)
{
    struct mp_ticket *ticket = &space->units[unit].ticket;

    mp_unit_set_extents(&space->layout.units[unit],
                        mp_tier_address(space->tier, space->units[unit].slot), ticket);
    ticket->direct = space->layout.plan.direct;
    ticket->priority = priority;
    ticket->tag = unit;
}

/* The same from the host tier, which knows where the unit is. */
static void fill_copy(struct mp_space *space, uint32_t unit, enum mp_priority priority)
{
    const uint64_t bytes = space->layout.units[unit].packed_bytes;
    struct mp_ticket *ticket = &space->units[unit].ticket;

    mp_assert(bytes > 0 && bytes <= space->layout.units[unit].slot_bytes);
    ticket->extents[0] = (struct mp_extent){
        .bytes = bytes,
        .need_bytes = bytes,
        .dst = mp_tier_address(space->tier, space->units[unit].slot),
    };
    ticket->extent_count = 1;
    ticket->copy = MP_COPY_TO_DEVICE;
    ticket->priority = priority;
    ticket->tag = unit;
}

/* A slot for what is ABSENT or FAILED, which is then FILLING. */
static enum mp_status begin_filling(struct mp_space *space, uint32_t unit)
{
    struct space_unit *u = unit_of(space, unit);
    enum mp_status status;

    if (space->stuck.status != MP_OK) {
        mp_error_set(&space->stuck);
        return space->stuck.status;
    }
    if (u->residency.state == MP_RES_DRAINING)
        mp_space_settle_drains(space, unit, true);
    status = mp_res_rule((enum mp_res_state)u->residency.state, MP_RES_EV_FILL_BEGIN, false).status;
    if (status != MP_OK)
        return refuse(space, unit, MP_RES_EV_FILL_BEGIN, status);
    status = mp_tier_take(space->tier, layout_of(space, unit)->class_index, &u->slot);
    if (status != MP_OK)
        return status;
    mp_assert(space->owner[u->slot.class_index][u->slot.index] == SPACE_NOBODY);
    space->owner[u->slot.class_index][u->slot.index] = unit;
    mp_space_must_apply(space, unit, MP_RES_EV_FILL_BEGIN);
    return MP_OK;
}

enum mp_status mp_space_load(struct mp_space *space, uint32_t unit, enum mp_priority priority)
{
    struct space_unit *u = unit_of(space, unit);
    const enum mp_status status = begin_filling(space, unit);

    mp_assert((unsigned)priority < MP_PRIORITY_COUNT);
    if (status != MP_OK)
        return status;
    u->demand = priority == MP_PRIORITY_DEMAND;
    u->put = false;
    if (space->host == NULL) {
        fill_ticket(space, unit, priority);
        mp_reader_submit(space->reader, &u->ticket);
    } else {
        fill_copy(space, unit, priority);
        mp_host_tier_load(space->host, unit, &u->ticket);
    }
    return MP_OK;
}

enum mp_status mp_space_put(struct mp_space *space, uint32_t unit, const void *bytes)
{
    const struct mp_unit_layout *layout = layout_of(space, unit);
    struct space_unit *u = unit_of(space, unit);
    const char *from = bytes;
    enum mp_status status;

    if (space->host != NULL || space->whole_pages)
        return MP_ERR_UNSUPPORTED;
    status = begin_filling(space, unit);
    if (status != MP_OK)
        return status;
    for (uint32_t k = 0; k < layout->piece_count; k++) {
        memcpy((char *)mp_tier_address(space->tier, u->slot) + layout->piece_offset_bytes[k], from,
               layout->piece_bytes[k]);
        from += layout->piece_bytes[k];
    }
    u->put = true;
    mp_space_must_apply(space, unit, MP_RES_EV_FILL_DONE);
    mp_space_set_resident(space, space->resident_bytes + layout->bytes);
    return MP_OK;
}

bool mp_space_get(struct mp_space *space, uint32_t unit, void *bytes)
{
    const struct mp_unit_layout *layout = layout_of(space, unit);
    const void *piece[MP_UNIT_PIECES_MAX];
    char *to = bytes;

    if (space->host != NULL || mp_space_state(space, unit) != MP_RES_VALID ||
        mp_space_lease(space, unit, piece) != MP_OK)
        return false;
    for (uint32_t k = 0; k < layout->piece_count; k++) {
        memcpy(to, piece[k], layout->piece_bytes[k]);
        to += layout->piece_bytes[k];
    }
    mp_space_release(space, unit);
    return true;
}

void mp_space_push(struct mp_space *space)
{
    mp_reader_push(space->reader);
}

void mp_space_promote(struct mp_space *space, uint32_t unit)
{
    struct space_unit *u = unit_of(space, unit);

    if (u->residency.state != MP_RES_FILLING)
        return;
    if (space->host == NULL)
        mp_reader_promote(space->reader, &u->ticket);
    else
        mp_host_tier_promote(space->host, unit, &u->ticket);
}

enum mp_status mp_space_cancel(struct mp_space *space, uint32_t unit)
{
    struct space_unit *u = unit_of(space, unit);
    const enum mp_status status =
        mp_res_rule((enum mp_res_state)u->residency.state, MP_RES_EV_FILL_CANCELED, false).status;

    if (status != MP_OK)
        return refuse(space, unit, MP_RES_EV_FILL_CANCELED, status);
    if (space->host == NULL ? !mp_reader_cancel(space->reader, &u->ticket)
                            : !mp_host_tier_cancel(space->host, unit, &u->ticket))
        return MP_ERR_BUSY;
    mp_space_give_slot(space, unit);
    mp_space_must_apply(space, unit, MP_RES_EV_FILL_CANCELED);
    mp_assert(u->residency.state == MP_RES_ABSENT);
    return MP_OK;
}

enum mp_res_state mp_space_poll(struct mp_space *space, uint32_t unit)
{
    struct space_unit *u = unit_of(space, unit);
    enum mp_ticket_state ticket;

    if (u->residency.state != MP_RES_FILLING) {
        if (u->residency.state == MP_RES_DRAINING)
            mp_space_settle_drains(space, unit, false);
        return (enum mp_res_state)u->residency.state;
    }
    ticket = mp_ticket_state(&u->ticket);
    if (ticket == MP_TICKET_DONE) {
        mp_space_must_apply(space, unit, MP_RES_EV_FILL_DONE);
        mp_space_set_resident(space, space->resident_bytes + layout_of(space, unit)->bytes);
        if (u->demand) {
            space->counters->loads++;
            space->counters->load_bytes += layout_of(space, unit)->bytes;
        } else {
            space->counters->prefetch_bytes += layout_of(space, unit)->bytes;
        }
        mp_space_count_reads(space);
    } else if (ticket == MP_TICKET_FAILED) {
        if (space->leaving != NULL && !space->leaving(space->leaving_ctx, unit))
            space->stuck = u->ticket.error; /* who uses the slot's pages must not see others' */
        mp_space_give_slot(space, unit);
        mp_space_must_apply(space, unit, MP_RES_EV_FILL_FAILED);
        mp_space_count_reads(space);
    }
    mp_assert(u->residency.state != MP_RES_VALID || space->resident_bytes > 0);
    return (enum mp_res_state)u->residency.state;
}

enum mp_status mp_space_wait(struct mp_space *space, uint32_t unit)
{
    struct space_unit *u = unit_of(space, unit);

    if (u->residency.state == MP_RES_FILLING)
        mp_reader_wait(space->reader, &u->ticket);
    switch (mp_space_poll(space, unit)) {
    case MP_RES_VALID: return MP_OK;
    case MP_RES_FAILED: mp_error_set(&u->ticket.error); return u->ticket.error.status;
    default: return refuse(space, unit, MP_RES_EV_FILL_DONE, MP_ERR_INVALID);
    }
}

void mp_space_wake(struct mp_space *space)
{
    mp_reader_wake(space->reader);
}

void mp_space_tell(struct mp_space *space, int event_fd)
{
    mp_reader_tell(space->reader, event_fd);
}

uint32_t mp_space_wait_any(struct mp_space *space, const uint32_t *units, uint32_t count,
                           const struct mp_interrupt *interrupt)
{
    uint32_t ticket;

    mp_assert(count >= 1 && count <= space->layout.unit_count);
    for (uint32_t i = 0; i < count; i++) {
        if (mp_space_poll(space, units[i]) != MP_RES_FILLING)
            return i;
        space->waiting[i] = &space->units[units[i]].ticket;
    }
    ticket = mp_reader_wait_any_or(space->reader, space->waiting, count, interrupt);
    if (ticket == count)
        return count;
    mp_space_poll(space, units[ticket]);
    mp_assert(mp_space_state(space, units[ticket]) != MP_RES_FILLING);
    return ticket;
}

/* The extent that a piece is in. */
static uint32_t extent_of(const struct mp_unit_layout *layout, uint32_t k)
{
    uint32_t e = 0;

    mp_assert(k < layout->piece_count);
    while (layout->piece_offset_bytes[k] < layout->extents[e].slot_bytes ||
           layout->piece_offset_bytes[k] - layout->extents[e].slot_bytes >=
               layout->extents[e].bytes)
        e++;
    mp_assert(e < layout->extent_count);
    return e;
}

const void *mp_space_piece(const struct mp_space *space, uint32_t unit, uint32_t k)
{
    const struct mp_unit_layout *layout = layout_of(space, unit);
    const struct space_unit *u = unit_of(space, unit);
    const enum mp_res_state state = (enum mp_res_state)u->residency.state;

    if (space->host != NULL || (state != MP_RES_FILLING && state != MP_RES_VALID) ||
        !mp_ticket_has(&u->ticket, extent_of(layout, k)))
        return NULL;
    return (const char *)mp_tier_address(space->tier, u->slot) + layout->piece_offset_bytes[k];
}

enum mp_status mp_space_evict(struct mp_space *space, uint32_t unit)
{
    struct space_unit *u = unit_of(space, unit);
    const enum mp_res_state state = (enum mp_res_state)u->residency.state;
    enum mp_status status = mp_res_rule(state, MP_RES_EV_EVICT, u->residency.leases > 0).status;

    if (status != MP_OK)
        return refuse(space, unit, MP_RES_EV_EVICT, status);
    if (space->leaving != NULL && !space->leaving(space->leaving_ctx, unit))
        return MP_ERR_BUSY;
    if (!space->exclusive || !mp_space_drain(space, unit)) {
        mp_space_must_apply(space, unit, MP_RES_EV_EVICT);
        mp_space_give_slot(space, unit);
    }
    mp_space_set_resident(space, space->resident_bytes - layout_of(space, unit)->bytes);
    space->counters->evictions++;
    space->counters->evicted_bytes += layout_of(space, unit)->bytes;
    mp_assert(u->residency.state == MP_RES_ABSENT || u->residency.state == MP_RES_DRAINING);
    return MP_OK;
}

enum mp_status mp_space_lease(struct mp_space *space, uint32_t unit,
                              const void *piece_p[MP_UNIT_PIECES_MAX])
{
    const struct mp_unit_layout *layout = layout_of(space, unit);
    struct space_unit *u = unit_of(space, unit);
    const enum mp_status status = mp_res_apply(&u->residency, MP_RES_EV_LEASE);
    const char *slot;

    if (status != MP_OK)
        return refuse(space, unit, MP_RES_EV_LEASE, status);
    mp_assert(u->residency.state == MP_RES_VALID && u->residency.leases > 0);
    slot = space->windows != NULL ? mp_windows_address(space->windows, unit) : NULL;
    if (slot == NULL)
        slot = mp_tier_address(space->tier, u->slot);
    for (uint32_t i = 0; i < layout->piece_count; i++)
        piece_p[i] = slot + layout->piece_offset_bytes[i];
    return MP_OK;
}

void mp_space_release(struct mp_space *space, uint32_t unit)
{
    mp_assert(mp_space_leases(space, unit) > 0);
    mp_space_must_apply(space, unit, MP_RES_EV_RELEASE);
}
