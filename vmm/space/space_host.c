/*
 * The space of a device that is filled from a host tier. Its tickets are copies over a link, whose
 * thread is also the mapper: it unmaps the frame of a slot from the old unit's place before it
 * fills the slot, and maps it at the new unit's place afterwards.
 */
#include <inttypes.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/space/space_int.h"

/* Enough to fill a link, little enough that a demand waits for not much. */
#define LINK_CHUNK_BYTES (UINT64_C(4) << 20)
#define LINK_DEPTH 3
#define LINK_PREFETCH_DEPTH 2

static enum mp_status start_ticket(void *ctx, const struct mp_ticket *ticket)
{
    struct mp_space *space = ctx;

    mp_assert(ticket->tag < space->layout.unit_count);
    if (space->windows != NULL && ticket->copy == MP_COPY_TO_DEVICE)
        mp_windows_prepare(space->windows, (uint32_t)ticket->tag, space->units[ticket->tag].slot);
    return MP_OK;
}

static enum mp_status finish_ticket(void *ctx, const struct mp_ticket *ticket)
{
    struct mp_space *space = ctx;
    const uint32_t unit = (uint32_t)ticket->tag;
    const bool ok = ticket->error.status == MP_OK;
    struct mp_backend *backend = space->backend;

    mp_assert(ticket->tag < space->layout.unit_count);
    if (!ok && backend->ops->lost != NULL && backend->ops->lost(backend)) {
        mp_host_tier_give_up(space->host, &ticket->error);
        return MP_OK;
    }
    if (ticket->copy == MP_COPY_TO_HOST) {
        mp_host_tier_came_back(space->host, unit, ok);
        return MP_OK;
    }
    if (space->windows != NULL && ok)
        mp_windows_map(space->windows, unit, space->units[unit].slot);
    mp_host_tier_copied(space->host, unit, ok);
    return MP_OK;
}

static enum mp_status make_link(struct mp_space *space, const struct mp_space_config *config)
{
    const struct mp_reader_config link = {
        .clock = config->clock,
        .timeline = config->timeline,
        .depth = LINK_DEPTH,
        .prefetch_depth = LINK_PREFETCH_DEPTH,
        .threads = 1,
        .chunk_bytes = LINK_CHUNK_BYTES,
        .spin = config->spin,
        .memory = &space->memory,
    };

    mp_assert(space->reader == NULL && space->host != NULL);
    space->memory = (struct mp_memory_link){
        .backend = config->backend, .start = start_ticket, .finish = finish_ticket, .ctx = space
    };
    return mp_reader_create(&link, &space->reader);
}

enum mp_status mp_space_make_host(struct mp_space *space, const struct mp_space_config *config)
{
    struct mp_host_tier_config host = {
        .backend = config->backend,
        .files = config->files,
        .layout = &space->layout,
        .residency = config->host_residency,
        .reader = config->reader,
    };
    enum mp_status status = MP_OK;

    mp_assert(space->layout.host_tier && space->draining != NULL);
    host.reader.files = config->files;
    host.reader.clock = config->clock;
    host.reader.timeline = config->timeline;
    host.reader.prefetch_depth = 0; /* the tier itself limits what nobody waits for */
    if (space->layout.addressing == MP_ADDRESSING_WINDOW)
        status = mp_windows_create(config->backend, &space->layout, space->tier, config->timeline,
                                   &space->windows);
    if (status == MP_OK)
        status = mp_host_tier_create(&host, &space->host);
    if (status == MP_OK)
        status = make_link(space, config);
    if (status == MP_OK)
        status = mp_host_tier_start(space->host, space->reader);
    if (status == MP_OK)
        mp_log_info("space", "%" PRIu64 " bytes of host frames for %" PRIu32 " units, %s",
                    space->layout.plan.host_bytes, space->layout.plan.host_slots,
                    space->windows != NULL ? "windows" : "table");
    return status;
}

/* The stager lets go of tickets and the link's thread gives slots back: it ends first, then the
 * link, then what both of them use. */
void mp_space_end_host(struct mp_space *space)
{
    if (!space->layout.host_tier)
        return;
    mp_host_tier_stop(space->host);
    mp_reader_destroy(space->reader);
    space->reader = NULL;
    mp_host_tier_destroy(space->host);
    mp_windows_destroy(space->windows);
}

bool mp_space_drain(struct mp_space *space, uint32_t unit)
{
    struct space_unit *u = unit_of(space, unit);
    const uint64_t bytes = layout_of(space, unit)->packed_bytes;
    void *room = mp_host_tier_make_room(space->host, unit);

    mp_assert(space->exclusive && space->draining_count < space->layout.unit_count);
    if (room == NULL)
        return false;
    u->ticket.extents[0] = (struct mp_extent){
        .bytes = bytes,
        .need_bytes = bytes,
        .dst = room,
        .src = mp_tier_address(space->tier, u->slot),
    };
    u->ticket.extent_count = 1;
    u->ticket.copy = MP_COPY_TO_HOST;
    u->ticket.priority = MP_PRIORITY_DEMAND;
    u->ticket.tag = unit;
    mp_space_must_apply(space, unit, MP_RES_EV_DRAIN_BEGIN);
    mp_space_give_slot(space, unit);
    mp_space_settle_drains(space, unit, false);
    space->draining[space->draining_count++] = unit;
    mp_reader_submit(space->reader, &u->ticket);
    return true;
}

void mp_space_settle_drains(struct mp_space *space, uint32_t unit, bool block)
{
    uint32_t left = 0;

    mp_assert(!block || mp_space_state(space, unit) == MP_RES_DRAINING);
    if (block)
        mp_reader_wait(space->reader, &space->units[unit].ticket);
    for (uint32_t i = 0; i < space->draining_count; i++) {
        const uint32_t one = space->draining[i];
        const enum mp_ticket_state ticket = mp_ticket_state(&space->units[one].ticket);

        /* Where the copy failed the unit has to come from its file again, no more. */
        if (ticket == MP_TICKET_DONE || ticket == MP_TICKET_FAILED)
            mp_space_must_apply(space, one, MP_RES_EV_DRAIN_DONE);
        else
            space->draining[left++] = one;
    }
    space->draining_count = left;
}

enum mp_status mp_space_lease_host(struct mp_space *space, uint32_t unit,
                                   const void *piece_p[MP_UNIT_PIECES_MAX])
{
    const struct mp_unit_layout *layout = layout_of(space, unit);
    const char *slot = space->host != NULL ? mp_host_tier_lease(space->host, unit) : NULL;

    if (slot == NULL)
        return MP_ERR_NO_SPACE;
    for (uint32_t i = 0; i < layout->piece_count; i++)
        piece_p[i] = slot + layout->piece_offset_bytes[i];
    return MP_OK;
}

void mp_space_release_host(struct mp_space *space, uint32_t unit)
{
    mp_assert(space->host != NULL && unit < space->layout.unit_count);
    mp_host_tier_release(space->host, unit);
}

bool mp_space_in_host(const struct mp_space *space, uint32_t unit)
{
    mp_assert(unit < space->layout.unit_count);
    return space->host != NULL && mp_host_tier_holds(space->host, unit);
}

void mp_space_wait_filled(struct mp_space *space)
{
    if (space->host != NULL)
        mp_host_tier_wait_filled(space->host);
}
