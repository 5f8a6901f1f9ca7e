/*
 * Creation and destruction of a space, and queries. Units are moved by space_move.c, space_host.c
 * and space_resize.c.
 */
#include "vmm/space/space.h"

#include <inttypes.h>
#include <stdlib.h>

#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/space/space_int.h"

enum mp_status mp_space_make_plan(const struct mp_space_config *config,
                                  struct mp_space_plan *plan_p)
{
    struct mp_space_layout layout;
    const enum mp_status status = mp_space_layout_init(config, &layout);

    if (status != MP_OK)
        return status;
    mp_assert(layout.plan.smallest_bytes <= layout.plan.full_bytes);
    *plan_p = layout.plan;
    mp_space_layout_fini(&layout);
    return MP_OK;
}

static void take_arrays(struct mp_space *space, struct mp_arena *arena)
{
    const uint32_t count = space->layout.unit_count;

    space->units = mp_arena_take(arena, count, sizeof(*space->units));
    space->waiting = mp_arena_take(arena, count, sizeof(*space->waiting));
    if (space->layout.host_tier)
        space->draining = mp_arena_take(arena, count, sizeof(*space->draining));
    for (uint32_t c = 0; c < space->layout.class_count; c++)
        space->owner[c] =
            mp_arena_take(arena, mp_tier_index_end(space->tier, c), sizeof(*space->owner[c]));
}

/* With the tier, which says how many slots there can be. */
static enum mp_status make_arrays(struct mp_space *space)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    mp_assert(space->arrays == NULL && space->tier != NULL);
    take_arrays(space, &arena);
    status = mp_arena_open(&arena, "the units of a model");
    if (status != MP_OK)
        return status;
    take_arrays(space, &arena);
    space->arrays = arena.block;
    for (uint32_t c = 0; c < space->layout.class_count; c++) {
        for (uint32_t i = 0; i < mp_tier_index_end(space->tier, c); i++)
            space->owner[c][i] = SPACE_NOBODY;
    }
    return MP_OK;
}

static enum mp_status make_movers(struct mp_space *space, const struct mp_space_config *config)
{
    struct mp_reader_config reader = config->reader;
    const struct mp_frame *frames;
    uint32_t frame_count;
    enum mp_status status = mp_tier_create(config->backend, MP_TIER_DEVICE, space->layout.classes,
                                           space->layout.class_count, &space->tier);

    mp_assert(space->reader == NULL);
    if (status == MP_OK)
        status = make_arrays(space);
    if (status != MP_OK)
        return status;
    if (space->layout.host_tier)
        return mp_space_make_host(space, config);
    reader.files = config->files;
    reader.clock = config->clock;
    reader.timeline = config->timeline;
    reader.by_extent = config->by_piece;
    status = mp_reader_create(&reader, &space->reader);
    frames = mp_tier_frames(space->tier, &frame_count);
    if (status == MP_OK && config->populate && config->backend->caps.cpu_access)
        space->populate =
            mp_populate_start(frames, frame_count, config->backend->caps.collapse, config->clock);
    return status;
}

/* Also takes a half-made space. */
static void space_free(struct mp_space *space)
{
    mp_assert(space->resident_bytes == 0);
    mp_space_end_host(space);
    mp_reader_destroy(space->reader);
    mp_populate_stop(space->populate);
    mp_tier_destroy(space->tier);
    free(space->arrays);
    mp_space_layout_fini(&space->layout);
    free(space);
}

enum mp_status mp_space_create(const struct mp_space_config *config, struct mp_space **space_p)
{
    struct mp_space *space = calloc(1, sizeof(*space));
    enum mp_status status;

    mp_assert(config->backend != NULL && config->files != NULL);
    if (space == NULL)
        return mp_fail_no_memory("a space", sizeof(*space));
    status = mp_space_layout_init(config, &space->layout);
    if (status != MP_OK) {
        free(space);
        return status;
    }
    mp_counters_reset(&space->own_counters);
    space->backend = config->backend;
    space->shared_memory = config->backend->caps.cpu_access;
    space->exclusive = space->layout.host_tier && config->host_residency == MP_HOST_EXCLUSIVE;
    space->whole_pages = config->whole_pages;
    space->leaving = config->leaving;
    space->leaving_ctx = config->leaving_ctx;
    space->timeline = config->timeline;
    space->counters = config->counters != NULL ? config->counters : &space->own_counters;
    status = make_movers(space, config);
    if (status != MP_OK) {
        space_free(space);
        return status;
    }
    mp_log_info("space",
                "%" PRIu32 " units of %" PRIu64 " bytes, %" PRIu32 " slots in %" PRIu64
                " bytes, %s reads by %s",
                space->layout.unit_count, space->layout.plan.unit_bytes, space->layout.plan.slots,
                mp_tier_frame_bytes(space->tier), space->layout.plan.direct ? "direct" : "buffered",
                mp_space_reader_engine(space));
    *space_p = space;
    return MP_OK;
}

void mp_space_destroy(struct mp_space *space)
{
    if (space == NULL)
        return;
    for (uint32_t i = 0; i < space->layout.unit_count; i++) {
        struct space_unit *unit = &space->units[i];

        mp_assert(unit->residency.leases == 0);
        if (unit->residency.leases > 0)
            mp_log_error("space", "unit %" PRIu32 " is destroyed with %" PRIu32 " leases", i,
                         unit->residency.leases);
        if (unit->residency.state == MP_RES_FILLING && mp_space_cancel(space, i) == MP_ERR_BUSY)
            continue; /* it has started, and is waited for */
    }
    for (uint32_t i = 0; i < space->layout.unit_count; i++) {
        struct mp_ticket *ticket = &space->units[i].ticket;

        if (mp_ticket_state(ticket) != MP_TICKET_IDLE)
            mp_reader_wait(space->reader, ticket);
    }
    mp_space_count_reads(space);
    mp_space_set_resident(space, 0);
    space_free(space);
}

uint32_t mp_space_unit_count(const struct mp_space *space)
{
    return space->layout.unit_count;
}

uint64_t mp_space_unit_bytes(const struct mp_space *space, uint32_t unit)
{
    return layout_of(space, unit)->bytes;
}

uint32_t mp_space_unit_class(const struct mp_space *space, uint32_t unit)
{
    return layout_of(space, unit)->class_index;
}

uint32_t mp_space_class_count(const struct mp_space *space)
{
    return space->layout.class_count;
}

uint32_t mp_space_class_slots(const struct mp_space *space, uint32_t class_index)
{
    mp_assert(class_index < space->layout.class_count);
    return mp_tier_slots(space->tier, class_index);
}

uint32_t mp_space_class_free(const struct mp_space *space, uint32_t class_index)
{
    mp_assert(class_index < space->layout.class_count);
    return mp_tier_free_slots(space->tier, class_index);
}

enum mp_res_state mp_space_state(const struct mp_space *space, uint32_t unit)
{
    return (enum mp_res_state)unit_of(space, unit)->residency.state;
}

uint32_t mp_space_leases(const struct mp_space *space, uint32_t unit)
{
    return unit_of(space, unit)->residency.leases;
}

void mp_space_get_plan(const struct mp_space *space, struct mp_space_plan *plan_p)
{
    *plan_p = space->layout.plan;
}

const char *mp_space_reader_engine(const struct mp_space *space)
{
    return space->host != NULL ? mp_host_tier_engine(space->host) : mp_reader_engine(space->reader);
}

bool mp_space_reader_idle(const struct mp_space *space)
{
    return mp_reader_idle(space->reader);
}

uint64_t mp_space_generation(const struct mp_space *space)
{
    return space->generation;
}

uint64_t mp_space_read_ns(const struct mp_space *space, uint32_t unit)
{
    const struct mp_ticket *ticket = &unit_of(space, unit)->ticket;

    mp_assert(mp_space_state(space, unit) == MP_RES_VALID && ticket->done_ns >= ticket->started_ns);
    return ticket->copy_ns > 0 ? ticket->copy_ns : ticket->done_ns - ticket->started_ns;
}

const struct mp_error *mp_space_unit_error(const struct mp_space *space, uint32_t unit)
{
    mp_assert(mp_space_state(space, unit) == MP_RES_FAILED);
    return &unit_of(space, unit)->ticket.error;
}

static bool has_slot(enum mp_res_state state)
{
    return state == MP_RES_FILLING || state == MP_RES_VALID;
}

/* One unit: its ticket and its slot fit its state. */
static bool check_unit(const struct mp_space *space, uint32_t unit)
{
    const struct space_unit *u = &space->units[unit];
    const enum mp_res_state state = (enum mp_res_state)u->residency.state;
    const enum mp_ticket_state ticket = mp_ticket_state(&u->ticket);

    mp_assert(unit < space->layout.unit_count);
    if (u->residency.leases > 0 && state != MP_RES_VALID)
        return false;
    if (state == MP_RES_FILLING && ticket == MP_TICKET_IDLE)
        return false;
    if (state == MP_RES_VALID && !u->put && ticket != MP_TICKET_DONE)
        return false;
    if (state == MP_RES_FAILED && (ticket != MP_TICKET_FAILED || u->ticket.error.status == MP_OK))
        return false;
    if (state == MP_RES_ABSENT && (ticket == MP_TICKET_QUEUED || ticket == MP_TICKET_STARTED))
        return false;
    return !has_slot(state) || (u->slot.class_index == space->layout.units[unit].class_index &&
                                space->owner[u->slot.class_index][u->slot.index] == unit);
}

bool mp_space_check(const struct mp_space *space)
{
    uint32_t held[MP_TIER_CLASSES_MAX] = { 0 };
    uint64_t resident_bytes = 0;

    for (uint32_t i = 0; i < space->layout.unit_count; i++) {
        const enum mp_res_state state = mp_space_state(space, i);

        if (!check_unit(space, i))
            return false;
        if (has_slot(state))
            held[space->layout.units[i].class_index]++;
        if (state == MP_RES_VALID)
            resident_bytes += space->layout.units[i].bytes;
    }
    for (uint32_t c = 0; c < space->layout.class_count; c++) {
        uint32_t owned = 0;

        for (uint32_t s = 0; s < mp_tier_index_end(space->tier, c); s++)
            owned += space->owner[c][s] != SPACE_NOBODY;
        if (owned != held[c] ||
            mp_tier_free_slots(space->tier, c) + held[c] != mp_tier_slots(space->tier, c))
            return false;
    }
    return resident_bytes == space->resident_bytes && mp_tier_check(space->tier) &&
           (space->host == NULL || mp_host_tier_check(space->host)) &&
           (space->windows == NULL || mp_windows_check(space->windows));
}
