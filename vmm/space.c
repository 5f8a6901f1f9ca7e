/*
 * Per unit: its residency, the slot it holds, and the ticket of its read. A unit holds a slot
 * exactly in the states FILLING, VALID and DRAINING; the slot goes back before a failure becomes
 * visible, so whoever sees FAILED can load something else at once.
 *
 *     free + units with a slot == slots            per class
 *     resident_bytes == bytes of units in VALID
 */
#include "vmm/space.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/populate.h"
#include "vmm/space_layout.h"
#include "vmm/tier.h"

#define NOBODY UINT32_MAX

struct space_unit {
    struct mp_residency residency;
    struct mp_slot slot; /* in the states with a slot */
    bool demand;         /* counted as a load, not as a prefetch */
    struct mp_ticket ticket;
};

struct mp_space {
    struct mp_space_layout layout;
    struct space_unit *units;
    struct mp_tier *tier;
    struct mp_reader *reader;
    struct mp_populate *populate; /* or NULL */
    struct mp_timeline *timeline;
    struct mp_counters *counters;
    struct mp_counters own_counters;      /* where the caller wants none */
    struct mp_reader_stats seen;          /* what of the reader's is in the counters */
    struct mp_ticket **waiting;           /* (units): of mp_space_wait_any() */
    uint32_t *owner[MP_TIER_CLASSES_MAX]; /* (slots): unit, or NOBODY */
    uint64_t resident_bytes;
};

enum mp_status mp_space_make_plan(const struct mp_space_config *config,
                                  struct mp_space_plan *plan_p)
{
    struct mp_space_layout layout;
    const enum mp_status status = mp_space_layout_init(config, &layout);

    if (status != MP_OK)
        return status;
    *plan_p = layout.plan;
    mp_space_layout_fini(&layout);
    return MP_OK;
}

static enum mp_status make_tables(struct mp_space *space)
{
    const uint32_t count = space->layout.unit_count;
    size_t bytes;

    if (!mp_mul_size(count, sizeof(*space->units), &bytes))
        return mp_fail_no_memory("the units of a model", UINT64_MAX);
    space->units = calloc(count, sizeof(*space->units));
    if (space->units == NULL)
        return mp_fail_no_memory("the units of a model", bytes);
    space->waiting = calloc(count, sizeof(*space->waiting));
    if (space->waiting == NULL)
        return mp_fail_no_memory("the list of reads", count * sizeof(*space->waiting));
    for (uint32_t c = 0; c < space->layout.class_count; c++) {
        const uint32_t slots = space->layout.classes[c].slots;

        space->owner[c] = malloc(slots * sizeof(*space->owner[c]));
        if (space->owner[c] == NULL)
            return mp_fail_no_memory("the owners of slots", slots * sizeof(*space->owner[c]));
        memset(space->owner[c], 0xff, slots * sizeof(*space->owner[c]));
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

    if (status != MP_OK)
        return status;
    reader.files = config->files;
    reader.clock = config->clock;
    reader.timeline = config->timeline;
    status = mp_reader_create(&reader, &space->reader);
    frames = mp_tier_frames(space->tier, &frame_count);
    if (status == MP_OK && config->populate && config->backend->caps.cpu_access)
        space->populate = mp_populate_start(frames, frame_count);
    return status;
}

/* Also takes a half-made space. */
static void space_free(struct mp_space *space)
{
    mp_reader_destroy(space->reader);
    mp_populate_stop(space->populate);
    mp_tier_destroy(space->tier);
    for (uint32_t c = 0; c < space->layout.class_count; c++)
        free(space->owner[c]);
    free(space->waiting);
    free(space->units);
    mp_space_layout_fini(&space->layout);
    free(space);
}

enum mp_status mp_space_create(const struct mp_space_config *config, struct mp_space **space_p)
{
    struct mp_space *space = calloc(1, sizeof(*space));
    enum mp_status status;

    if (space == NULL)
        return mp_fail_no_memory("a space", sizeof(*space));
    status = mp_space_layout_init(config, &space->layout);
    if (status != MP_OK) {
        free(space);
        return status;
    }
    mp_counters_reset(&space->own_counters);
    space->timeline = config->timeline;
    space->counters = config->counters != NULL ? config->counters : &space->own_counters;
    status = make_tables(space);
    if (status == MP_OK)
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
                mp_reader_engine(space->reader));
    *space_p = space;
    return MP_OK;
}

/* The reader counts for itself and on its threads; take over what has come since the last time. */
static void count_reads(struct mp_space *space)
{
    struct mp_reader_stats now;

    mp_reader_get_stats(space->reader, &now);
    space->counters->read_requests += now.requests - space->seen.requests;
    space->counters->read_bytes += now.read_bytes - space->seen.read_bytes;
    space->counters->read_retries += now.retries - space->seen.retries;
    space->counters->read_errors += now.errors - space->seen.errors;
    space->seen = now;
}

static void set_resident(struct mp_space *space, uint64_t bytes)
{
    struct mp_counters *counters = space->counters;

    counters->resident_bytes += bytes - space->resident_bytes;
    if (counters->resident_bytes > counters->resident_peak_bytes)
        counters->resident_peak_bytes = counters->resident_bytes;
    space->resident_bytes = bytes;
    mp_timeline_level(space->timeline, "resident_bytes", mp_timeline_now_ns(space->timeline),
                      bytes);
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
        if (unit->residency.state == MP_RES_FILLING)
            (void)mp_reader_cancel(space->reader, &unit->ticket);
    }
    for (uint32_t i = 0; i < space->layout.unit_count; i++) {
        struct mp_ticket *ticket = &space->units[i].ticket;

        if (mp_ticket_state(ticket) != MP_TICKET_IDLE)
            mp_reader_wait(space->reader, ticket);
    }
    count_reads(space);
    set_resident(space, 0);
    space_free(space);
}

static const struct mp_unit_layout *layout_of(const struct mp_space *space, uint32_t unit)
{
    mp_assert(unit < space->layout.unit_count);
    return &space->layout.units[unit];
}

static struct space_unit *unit_of(const struct mp_space *space, uint32_t unit)
{
    mp_assert(unit < space->layout.unit_count);
    return &space->units[unit];
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
    return mp_tier_slots(space->tier, class_index);
}

uint32_t mp_space_class_free(const struct mp_space *space, uint32_t class_index)
{
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
    return mp_reader_engine(space->reader);
}

bool mp_space_reader_idle(const struct mp_space *space)
{
    return mp_reader_idle(space->reader);
}

const struct mp_error *mp_space_unit_error(const struct mp_space *space, uint32_t unit)
{
    mp_assert(mp_space_state(space, unit) == MP_RES_FAILED);
    return &unit_of(space, unit)->ticket.error;
}

/* What the table refuses as invalid is the caller's bug and gets a text; busy is an answer. */
static enum mp_status refuse(const struct mp_space *space, uint32_t unit, enum mp_res_event event,
                             enum mp_status status)
{
    if (status == MP_ERR_INVALID)
        return mp_fail(status, "E_INTERNAL", "%s of unit %" PRIu32 ", which is %s",
                       mp_res_event_name(event), unit,
                       mp_res_state_name(mp_space_state(space, unit)));
    return status;
}

/* For events whose legality the code around has established. */
static void must_apply(struct mp_space *space, uint32_t unit, enum mp_res_event event)
{
    const enum mp_status status = mp_res_apply(&space->units[unit].residency, event);

    mp_assert(status == MP_OK);
    (void)status;
}

static void give_slot(struct mp_space *space, uint32_t unit)
{
    const struct mp_slot slot = space->units[unit].slot;

    mp_assert(space->owner[slot.class_index][slot.index] == unit);
    space->owner[slot.class_index][slot.index] = NOBODY;
    mp_tier_give(space->tier, slot);
}

static void fill_ticket(struct mp_space *space, uint32_t unit, enum mp_priority priority)
{
    const struct mp_unit_layout *layout = &space->layout.units[unit];
    struct mp_ticket *ticket = &space->units[unit].ticket;
    char *slot = mp_tier_address(space->tier, space->units[unit].slot);

    for (uint32_t i = 0; i < layout->extent_count; i++) {
        const struct mp_unit_extent *extent = &layout->extents[i];

        ticket->extents[i] = (struct mp_extent){
            .file = extent->file,
            .offset = extent->offset_bytes,
            .bytes = extent->bytes,
            .need_bytes = extent->need_bytes,
            .dst = slot + extent->slot_bytes,
        };
    }
    ticket->extent_count = layout->extent_count;
    ticket->direct = space->layout.plan.direct;
    ticket->priority = priority;
    ticket->tag = unit;
}

enum mp_status mp_space_load(struct mp_space *space, uint32_t unit, enum mp_priority priority)
{
    struct space_unit *u = unit_of(space, unit);
    enum mp_status status =
        mp_res_rule((enum mp_res_state)u->residency.state, MP_RES_EV_FILL_BEGIN, false).status;

    if (status != MP_OK)
        return refuse(space, unit, MP_RES_EV_FILL_BEGIN, status);
    status = mp_tier_take(space->tier, layout_of(space, unit)->class_index, &u->slot);
    if (status != MP_OK)
        return status;
    mp_assert(space->owner[u->slot.class_index][u->slot.index] == NOBODY);
    space->owner[u->slot.class_index][u->slot.index] = unit;
    u->demand = priority == MP_PRIORITY_DEMAND;
    fill_ticket(space, unit, priority);
    must_apply(space, unit, MP_RES_EV_FILL_BEGIN);
    mp_reader_submit(space->reader, &u->ticket);
    return MP_OK;
}

void mp_space_promote(struct mp_space *space, uint32_t unit)
{
    struct space_unit *u = unit_of(space, unit);

    if (u->residency.state == MP_RES_FILLING)
        mp_reader_promote(space->reader, &u->ticket);
}

enum mp_status mp_space_cancel(struct mp_space *space, uint32_t unit)
{
    struct space_unit *u = unit_of(space, unit);
    const enum mp_status status =
        mp_res_rule((enum mp_res_state)u->residency.state, MP_RES_EV_FILL_CANCELED, false).status;

    if (status != MP_OK)
        return refuse(space, unit, MP_RES_EV_FILL_CANCELED, status);
    if (!mp_reader_cancel(space->reader, &u->ticket))
        return MP_ERR_BUSY;
    give_slot(space, unit);
    must_apply(space, unit, MP_RES_EV_FILL_CANCELED);
    return MP_OK;
}

enum mp_res_state mp_space_poll(struct mp_space *space, uint32_t unit)
{
    struct space_unit *u = unit_of(space, unit);
    enum mp_ticket_state ticket;

    if (u->residency.state != MP_RES_FILLING)
        return (enum mp_res_state)u->residency.state;
    ticket = mp_ticket_state(&u->ticket);
    if (ticket == MP_TICKET_DONE) {
        must_apply(space, unit, MP_RES_EV_FILL_DONE);
        set_resident(space, space->resident_bytes + layout_of(space, unit)->bytes);
        if (u->demand) {
            space->counters->loads++;
            space->counters->load_bytes += layout_of(space, unit)->bytes;
        } else {
            space->counters->prefetch_bytes += layout_of(space, unit)->bytes;
        }
        count_reads(space);
    } else if (ticket == MP_TICKET_FAILED) {
        give_slot(space, unit);
        must_apply(space, unit, MP_RES_EV_FILL_FAILED);
        count_reads(space);
    }
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

uint32_t mp_space_wait_any(struct mp_space *space, const uint32_t *units, uint32_t count)
{
    return mp_space_wait_any_or(space, units, count, NULL);
}

void mp_space_wake(struct mp_space *space)
{
    mp_reader_wake(space->reader);
}

uint32_t mp_space_wait_any_or(struct mp_space *space, const uint32_t *units, uint32_t count,
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

enum mp_status mp_space_evict(struct mp_space *space, uint32_t unit)
{
    const enum mp_status status = mp_res_apply(&unit_of(space, unit)->residency, MP_RES_EV_EVICT);

    if (status != MP_OK)
        return refuse(space, unit, MP_RES_EV_EVICT, status);
    give_slot(space, unit);
    set_resident(space, space->resident_bytes - layout_of(space, unit)->bytes);
    space->counters->evictions++;
    space->counters->evicted_bytes += layout_of(space, unit)->bytes;
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
    slot = mp_tier_address(space->tier, u->slot);
    for (uint32_t i = 0; i < layout->piece_count; i++)
        piece_p[i] = slot + layout->piece_offset_bytes[i];
    return MP_OK;
}

void mp_space_release(struct mp_space *space, uint32_t unit)
{
    mp_assert(mp_space_leases(space, unit) > 0);
    must_apply(space, unit, MP_RES_EV_RELEASE);
}

static bool has_slot(enum mp_res_state state)
{
    return state == MP_RES_FILLING || state == MP_RES_VALID || state == MP_RES_DRAINING;
}

/* One unit: its ticket and its slot fit its state. */
static bool check_unit(const struct mp_space *space, uint32_t unit)
{
    const struct space_unit *u = &space->units[unit];
    const enum mp_res_state state = (enum mp_res_state)u->residency.state;
    const enum mp_ticket_state ticket = mp_ticket_state(&u->ticket);

    if (u->residency.leases > 0 && state != MP_RES_VALID)
        return false;
    if (state == MP_RES_FILLING && ticket == MP_TICKET_IDLE)
        return false;
    if (state == MP_RES_VALID && ticket != MP_TICKET_DONE)
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
        if (state == MP_RES_VALID || state == MP_RES_DRAINING)
            resident_bytes += space->layout.units[i].bytes;
    }
    for (uint32_t c = 0; c < space->layout.class_count; c++) {
        uint32_t owned = 0;

        for (uint32_t s = 0; s < mp_tier_slots(space->tier, c); s++)
            owned += space->owner[c][s] != NOBODY;
        if (owned != held[c] ||
            mp_tier_free_slots(space->tier, c) + held[c] != mp_tier_slots(space->tier, c))
            return false;
    }
    return resident_bytes == space->resident_bytes && mp_tier_check(space->tier);
}
