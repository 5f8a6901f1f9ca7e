/*
 * Slots of the host tier. State changes follow the table of vmm/space/residency.c.
 */
#include "vmm/space/host_tier.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/base/thread.h"
#include "vmm/space/host_tier_int.h"

void mp_host_apply_locked(struct mp_host_tier *tier, uint32_t unit, enum mp_res_event event)
{
    const enum mp_status status = mp_res_apply(&tier->units[unit].residency, event);

    mp_assert_held(&tier->lock);
    mp_assert(status == MP_OK);
    (void)status;
}

char *mp_host_address(const struct mp_host_tier *tier, uint32_t unit)
{
    mp_assert(tier->units[unit].residency.state == MP_RES_FILLING ||
              tier->units[unit].residency.state == MP_RES_VALID);
    return mp_tier_address(tier->slots, tier->units[unit].slot);
}

static void unlink_locked(struct mp_host_tier *tier, uint32_t unit)
{
    struct host_unit *u = &tier->units[unit];
    struct host_list *list = &tier->lists[u->request];

    mp_assert_held(&tier->lock);
    if (u->request == HOST_IDLE)
        return;
    if (u->prev != HOST_NOBODY)
        tier->units[u->prev].next = u->next;
    else
        list->first = u->next;
    if (u->next != HOST_NOBODY)
        tier->units[u->next].prev = u->prev;
    else
        list->last = u->prev;
    u->request = HOST_IDLE;
    if (list == &tier->lists[HOST_FILL] && list->first == HOST_NOBODY)
        mp_cond_broadcast(&tier->filled);
}

void mp_host_request_locked(struct mp_host_tier *tier, uint32_t unit, enum host_request request)
{
    struct host_unit *u = &tier->units[unit];
    struct host_list *list = &tier->lists[request];

    mp_assert((unsigned)request < HOST_REQUEST_COUNT);
    mp_assert_held(&tier->lock);
    unlink_locked(tier, unit);
    if (request == HOST_IDLE)
        return;
    u->request = (uint8_t)request;
    u->prev = list->last;
    u->next = HOST_NOBODY;
    if (list->last != HOST_NOBODY)
        tier->units[list->last].next = unit;
    else
        list->first = unit;
    list->last = unit;
}

void mp_host_notify_locked(struct mp_host_tier *tier)
{
    mp_assert_held(&tier->lock);
    atomic_store_explicit(&tier->notified, true, memory_order_relaxed);
    mp_cond_signal(&tier->work);
    mp_reader_wake(tier->reader);
}

bool mp_host_take_slot_locked(struct mp_host_tier *tier, uint32_t unit)
{
    struct host_unit *u = &tier->units[unit];
    const uint32_t class_index = mp_host_layout(tier, unit)->class_index;
    const uint32_t passing = tier->config.layout->passing[class_index];
    const uint32_t reserve = mp_host_exclusive(tier) && u->waiting == NULL ? passing : 0;

    mp_assert(u->residency.state != MP_RES_FILLING && u->residency.state != MP_RES_VALID);
    mp_assert_held(&tier->lock);
    if (!mp_host_exclusive(tier) && !u->stays && tier->passing_used[class_index] == passing)
        return false;
    if (mp_tier_free_slots(tier->slots, class_index) <= reserve ||
        mp_tier_take(tier->slots, class_index, &u->slot) != MP_OK)
        return false;
    tier->passing_used[class_index] += !mp_host_exclusive(tier) && !u->stays;
    return true;
}

void mp_host_give_slot_locked(struct mp_host_tier *tier, uint32_t unit)
{
    struct host_unit *u = &tier->units[unit];

    mp_assert(u->residency.state != MP_RES_FILLING && u->residency.state != MP_RES_VALID);
    mp_assert_held(&tier->lock);
    tier->passing_used[u->slot.class_index] -= !mp_host_exclusive(tier) && !u->stays;
    mp_tier_give(tier->slots, u->slot);
    mp_host_notify_locked(tier);
}

/* It is in the device tier now, or sits in a slot that loads are to find free. */
static bool must_leave_locked(const struct mp_host_tier *tier, uint32_t unit)
{
    const uint32_t class_index = mp_host_layout(tier, unit)->class_index;

    mp_assert_held(&tier->lock);
    return tier->units[unit].leaves ||
           mp_tier_free_slots(tier->slots, class_index) < tier->config.layout->passing[class_index];
}

void mp_host_settle_locked(struct mp_host_tier *tier, uint32_t unit)
{
    struct host_unit *u = &tier->units[unit];

    mp_assert(u->residency.state == MP_RES_VALID);
    mp_assert_held(&tier->lock);
    if (u->residency.leases > 0 ||
        (mp_host_exclusive(tier) ? !must_leave_locked(tier, unit) : u->stays))
        return;
    u->leaves = false;
    mp_host_apply_locked(tier, unit, MP_RES_EV_EVICT);
    mp_host_give_slot_locked(tier, unit);
}

/* What is being read of the unit, if anything, is no longer read ahead. */
static void promote_job_locked(struct mp_host_tier *tier, uint32_t unit)
{
    mp_assert_held(&tier->lock);
    if (!tier->units[unit].in_job)
        return;
    for (uint32_t i = 0; i < HOST_JOBS; i++) {
        if (tier->jobs[i].unit == unit)
            mp_reader_promote(tier->reader, &tier->jobs[i].ticket);
    }
}

void mp_host_tier_load(struct mp_host_tier *tier, uint32_t unit, struct mp_ticket *ticket)
{
    struct host_unit *u = &tier->units[unit];

    mp_assert(ticket->copy == MP_COPY_TO_DEVICE && ticket->extent_count == 1);
    mp_lock(&tier->lock);
    mp_assert(u->waiting == NULL);
    if (u->residency.state == MP_RES_VALID) {
        u->leaves = false;
        mp_host_apply_locked(tier, unit, MP_RES_EV_LEASE);
        ticket->extents[0].src = mp_host_address(tier, unit);
        mp_reader_submit(tier->link, ticket);
    } else if (tier->error.status != MP_OK) {
        mp_reader_submit_held(tier->link, ticket);
        mp_reader_fail_held(tier->link, ticket, &tier->error);
    } else {
        const bool demand = ticket->priority == MP_PRIORITY_DEMAND;

        mp_reader_submit_held(tier->link, ticket);
        u->waiting = ticket;
        if (!u->in_job)
            mp_host_request_locked(tier, unit, demand ? HOST_DEMAND : HOST_PREFETCH);
        else if (demand)
            promote_job_locked(tier, unit);
        mp_host_notify_locked(tier);
    }
    mp_unlock(&tier->lock);
}

void mp_host_tier_promote(struct mp_host_tier *tier, uint32_t unit, struct mp_ticket *ticket)
{
    struct host_unit *u = &tier->units[unit];

    mp_lock(&tier->lock);
    mp_assert(u->waiting == NULL || u->waiting == ticket);
    mp_reader_promote(tier->link, ticket);
    if (u->waiting == ticket && u->request == HOST_PREFETCH)
        mp_host_request_locked(tier, unit, HOST_DEMAND);
    promote_job_locked(tier, unit);
    mp_host_notify_locked(tier);
    mp_unlock(&tier->lock);
}

bool mp_host_tier_cancel(struct mp_host_tier *tier, uint32_t unit, struct mp_ticket *ticket)
{
    struct host_unit *u = &tier->units[unit];
    bool canceled;

    mp_lock(&tier->lock);
    canceled = mp_reader_cancel(tier->link, ticket);
    if (canceled && u->waiting == ticket) {
        u->waiting = NULL;
        /* What is being read goes on: the bytes may be of use, and end in a slot either way. */
        if (u->request != HOST_IDLE)
            mp_host_request_locked(tier, unit, u->stays ? HOST_FILL : HOST_IDLE);
    } else if (canceled) {
        mp_host_apply_locked(tier, unit, MP_RES_EV_RELEASE);
        mp_host_settle_locked(tier, unit);
    }
    mp_unlock(&tier->lock);
    return canceled;
}

void mp_host_tier_copied(struct mp_host_tier *tier, uint32_t unit, bool ok)
{
    struct host_unit *u = &tier->units[unit];

    mp_lock(&tier->lock);
    mp_assert(u->residency.leases > 0);
    u->leaves = ok && mp_host_exclusive(tier);
    mp_host_apply_locked(tier, unit, MP_RES_EV_RELEASE);
    mp_host_settle_locked(tier, unit);
    mp_unlock(&tier->lock);
}

void *mp_host_tier_make_room(struct mp_host_tier *tier, uint32_t unit)
{
    struct host_unit *u = &tier->units[unit];
    void *address = NULL;

    mp_assert(mp_host_exclusive(tier));
    mp_lock(&tier->lock);
    if (u->residency.state == MP_RES_VALID) {
        u->leaves = false; /* leased, so it has not gone */
    } else if (tier->error.status == MP_OK && u->residency.state != MP_RES_FILLING &&
               mp_host_take_slot_locked(tier, unit)) {
        mp_host_apply_locked(tier, unit, MP_RES_EV_FILL_BEGIN);
        address = mp_host_address(tier, unit);
    }
    mp_unlock(&tier->lock);
    return address;
}

void mp_host_tier_came_back(struct mp_host_tier *tier, uint32_t unit, bool ok)
{
    mp_assert(mp_host_exclusive(tier));
    mp_lock(&tier->lock);
    if (ok) {
        mp_host_apply_locked(tier, unit, MP_RES_EV_FILL_DONE);
    } else {
        mp_host_apply_locked(tier, unit, MP_RES_EV_FILL_FAILED);
        mp_host_give_slot_locked(tier, unit);
    }
    mp_unlock(&tier->lock);
}

void mp_host_tier_give_up(struct mp_host_tier *tier, const struct mp_error *error)
{
    mp_assert(error->status != MP_OK);
    mp_lock(&tier->lock);
    if (tier->error.status == MP_OK)
        tier->error = *error;
    for (uint32_t i = 0; i < tier->config.layout->unit_count; i++) {
        struct host_unit *u = &tier->units[i];

        if (u->waiting == NULL)
            continue;
        mp_reader_fail_held(tier->link, u->waiting, &tier->error);
        u->waiting = NULL;
        if (u->request != HOST_IDLE)
            mp_host_request_locked(tier, i, u->stays ? HOST_FILL : HOST_IDLE);
    }
    mp_host_notify_locked(tier);
    mp_unlock(&tier->lock);
}

/* Only units that are here for good, or until they are loaded: slots to pass through are few. */
static bool holds_locked(const struct mp_host_tier *tier, uint32_t unit)
{
    const struct host_unit *u = &tier->units[unit];

    mp_assert_held(&tier->lock);
    return u->residency.state == MP_RES_VALID && !u->leaves &&
           (u->stays || mp_host_exclusive(tier));
}

const char *mp_host_tier_lease(struct mp_host_tier *tier, uint32_t unit)
{
    const char *address = NULL;

    mp_assert(unit < tier->config.layout->unit_count);
    mp_lock(&tier->lock);
    if (holds_locked(tier, unit)) {
        mp_host_apply_locked(tier, unit, MP_RES_EV_LEASE);
        address = mp_host_address(tier, unit);
    }
    mp_unlock(&tier->lock);
    return address;
}

void mp_host_tier_release(struct mp_host_tier *tier, uint32_t unit)
{
    mp_assert(unit < tier->config.layout->unit_count);
    mp_lock(&tier->lock);
    mp_host_apply_locked(tier, unit, MP_RES_EV_RELEASE);
    mp_host_settle_locked(tier, unit);
    mp_unlock(&tier->lock);
}

bool mp_host_tier_holds(struct mp_host_tier *tier, uint32_t unit)
{
    bool holds;

    mp_assert(unit < tier->config.layout->unit_count);
    mp_lock(&tier->lock);
    holds = holds_locked(tier, unit);
    mp_unlock(&tier->lock);
    return holds;
}

const char *mp_host_tier_engine(const struct mp_host_tier *tier)
{
    return mp_reader_engine(tier->reader);
}

void mp_host_tier_stats(const struct mp_host_tier *tier, struct mp_reader_stats *stats_p)
{
    mp_reader_get_stats(tier->reader, stats_p);
}

/* A unit that is asked for meanwhile leaves the list of those to fill for another one. */
static bool is_filling_locked(const struct mp_host_tier *tier)
{
    bool filling = false;

    mp_assert_held(&tier->lock);
    for (int request = HOST_DEMAND; request <= HOST_FILL; request++)
        filling |= tier->lists[request].first != HOST_NOBODY;
    for (uint32_t i = 0; i < HOST_JOBS; i++)
        filling |= tier->jobs[i].unit != HOST_NOBODY;
    return filling;
}

void mp_host_tier_wait_filled(struct mp_host_tier *tier)
{
    mp_assert_none_held();
    mp_lock(&tier->lock);
    while (is_filling_locked(tier))
        mp_cond_wait(&tier->filled, &tier->lock);
    mp_unlock(&tier->lock);
}

bool mp_host_tier_check(struct mp_host_tier *tier)
{
    const struct mp_space_layout *layout = tier->config.layout;
    uint32_t held[MP_TIER_CLASSES_MAX] = { 0 }, passing[MP_TIER_CLASSES_MAX] = { 0 };
    bool right = true;

    mp_lock(&tier->lock);
    for (uint32_t i = 0; i < layout->unit_count; i++) {
        const struct host_unit *u = &tier->units[i];
        const uint32_t class_index = layout->units[i].class_index;
        const bool slot =
            u->residency.state == MP_RES_FILLING || u->residency.state == MP_RES_VALID;

        held[class_index] += slot;
        passing[class_index] += slot && !u->stays && !mp_host_exclusive(tier);
        right &= !(slot && u->slot.class_index != class_index);
        right &= !(u->residency.state == MP_RES_VALID && u->waiting != NULL);
        right &= u->waiting == NULL || u->in_job || u->request != HOST_IDLE;
    }
    for (uint32_t c = 0; c < layout->class_count; c++)
        right &= passing[c] == tier->passing_used[c] && passing[c] <= layout->passing[c] &&
                 held[c] + mp_tier_free_slots(tier->slots, c) == mp_tier_slots(tier->slots, c);
    right &= mp_tier_check(tier->slots);
    mp_unlock(&tier->lock);
    return right;
}

/* Which units are filled from the start: as many of each class as may stay, spread evenly. */
static void choose_units(struct mp_host_tier *tier)
{
    const struct mp_space_layout *layout = tier->config.layout;
    uint64_t seen[MP_TIER_CLASSES_MAX] = { 0 };

    mp_lock(&tier->lock);
    for (uint32_t i = 0; i < layout->unit_count; i++) {
        const uint32_t c = layout->units[i].class_index;
        const uint64_t keep = mp_tier_slots(tier->slots, c) - layout->passing[c];
        const uint64_t units = layout->class_units[c];
        const bool chosen = (seen[c] + 1) * keep / units > seen[c] * keep / units;

        mp_assert(keep <= units);
        seen[c]++;
        tier->units[i].stays = chosen && !mp_host_exclusive(tier);
        if (chosen)
            mp_host_request_locked(tier, i, HOST_FILL);
    }
    mp_unlock(&tier->lock);
}

enum mp_status mp_host_tier_create(const struct mp_host_tier_config *config,
                                   struct mp_host_tier **tier_p)
{
    const struct mp_space_layout *layout = config->layout;
    struct mp_host_tier *tier = calloc(1, sizeof(*tier));
    enum mp_status status;

    mp_assert(layout->host_tier && layout->unit_count > 0);
    if (tier == NULL)
        return mp_fail_no_memory("the host tier", sizeof(*tier));
    tier->config = *config;
    mp_mutex_init(&tier->lock, MP_LOCK_TIER, "host_tier");
    mp_cond_init(&tier->work);
    mp_cond_init(&tier->filled);
    for (int i = 0; i < HOST_REQUEST_COUNT; i++)
        tier->lists[i] = (struct host_list){ HOST_NOBODY, HOST_NOBODY };
    for (uint32_t i = 0; i < HOST_JOBS; i++)
        tier->jobs[i].unit = HOST_NOBODY;
    tier->units = calloc(layout->unit_count, sizeof(*tier->units));
    status = tier->units != NULL ? MP_OK
                                 : mp_fail_no_memory("the units of the host tier",
                                                     layout->unit_count * sizeof(*tier->units));
    if (status == MP_OK)
        status = mp_tier_create(config->backend, MP_TIER_HOST, layout->host_classes,
                                layout->class_count, &tier->slots);
    if (status == MP_OK)
        status = mp_reader_create(&config->reader, &tier->reader);
    if (status != MP_OK) {
        mp_host_tier_destroy(tier);
        return status;
    }
    choose_units(tier);
    *tier_p = tier;
    return MP_OK;
}

enum mp_status mp_host_tier_start(struct mp_host_tier *tier, struct mp_reader *link)
{
    char number[32];
    int error_number;

    mp_assert(!tier->started && link != NULL);
    tier->link = link;
    error_number = mp_thread_start(&tier->thread, "mp-stager", mp_host_stager_run, tier);
    if (error_number != 0)
        return mp_fail(MP_ERR_NO_MEMORY, "E_THREADS",
                       "cannot start the stager's thread: %s; raise the limit on %s",
                       mp_errno_name(number, error_number), mp_thread_limit());
    tier->started = true;
    return MP_OK;
}

void mp_host_tier_stop(struct mp_host_tier *tier)
{
    if (tier == NULL || !tier->started)
        return;
    mp_lock(&tier->lock);
    tier->stopping = true;
    mp_host_notify_locked(tier);
    mp_unlock(&tier->lock);
    pthread_join(tier->thread, NULL);
    tier->started = false;
}

/* Also takes a half-made tier. */
void mp_host_tier_destroy(struct mp_host_tier *tier)
{
    if (tier == NULL)
        return;
    mp_host_tier_stop(tier);
    mp_assert(!tier->started);
    mp_reader_destroy(tier->reader);
    mp_tier_destroy(tier->slots);
    free(tier->units);
    mp_cond_fini(&tier->filled);
    mp_cond_fini(&tier->work);
    mp_mutex_fini(&tier->lock);
    free(tier);
}
