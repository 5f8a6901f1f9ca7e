/*
 * The stager: reads units from their files into slots of the host tier, packs them, and starts the
 * copies that wait for them. Demands come before prefetches, and those before the initial filling.
 *
 * It waits for its reads and for new requests at the same time: setting `notified` interrupts the
 * wait.
 */
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/space/host_tier_int.h"

static void fill_ticket(const struct mp_host_tier *tier, uint32_t unit, enum mp_priority priority,
                        struct mp_ticket *ticket)
{
    const struct mp_unit_layout *layout = mp_host_layout(tier, unit);

    mp_unit_set_extents(layout, mp_host_address(tier, unit), ticket);
    ticket->direct = layout->direct;
    ticket->priority = priority;
    ticket->tag = unit;
}

static struct host_job *free_job(struct mp_host_tier *tier, bool ahead)
{
    struct host_job *found = NULL;
    uint32_t aheads = 0;

    mp_assert_held(&tier->lock);
    for (uint32_t i = 0; i < HOST_JOBS; i++) {
        if (tier->jobs[i].unit == HOST_NOBODY)
            found = &tier->jobs[i];
        else
            aheads += tier->jobs[i].ahead;
    }
    return ahead && aheads >= HOST_JOBS_AHEAD ? NULL : found;
}

/* Begin to read the first unit of the list that there is a slot for. False: none. */
static bool start_one_locked(struct mp_host_tier *tier, enum host_request request)
{
    const bool ahead = request != HOST_DEMAND;
    struct host_job *job = free_job(tier, ahead);
    uint32_t unit = tier->lists[request].first;

    mp_assert_held(&tier->lock);
    if (job == NULL)
        return false;
    while (unit != HOST_NOBODY && !mp_host_take_slot_locked(tier, unit))
        unit = tier->units[unit].next;
    if (unit == HOST_NOBODY) {
        /* Exclusive: the slots went to units that came back. */
        while (request == HOST_FILL && mp_host_exclusive(tier) &&
               tier->lists[HOST_FILL].first != HOST_NOBODY)
            mp_host_request_locked(tier, tier->lists[HOST_FILL].first, HOST_IDLE);
        return false;
    }
    mp_host_request_locked(tier, unit, HOST_IDLE);
    mp_host_apply_locked(tier, unit, MP_RES_EV_FILL_BEGIN);
    tier->units[unit].in_job = true;
    job->unit = unit;
    job->ahead = ahead;
    fill_ticket(tier, unit, ahead ? MP_PRIORITY_PREFETCH : MP_PRIORITY_DEMAND, &job->ticket);
    mp_reader_submit(tier->reader, &job->ticket);
    return true;
}

static void start_all_locked(struct mp_host_tier *tier)
{
    mp_assert_held(&tier->lock);
    atomic_store_explicit(&tier->notified, false, memory_order_relaxed);
    for (int request = HOST_DEMAND; request <= HOST_FILL && !tier->stopping; request++) {
        while (start_one_locked(tier, (enum host_request)request))
            ;
    }
}

static void end_good_locked(struct mp_host_tier *tier, uint32_t unit)
{
    struct host_unit *u = &tier->units[unit];
    struct mp_ticket *waiting = u->waiting;

    mp_assert_held(&tier->lock);
    mp_host_apply_locked(tier, unit, MP_RES_EV_FILL_DONE);
    u->waiting = NULL;
    if (waiting == NULL) {
        mp_host_settle_locked(tier, unit);
        return;
    }
    mp_host_apply_locked(tier, unit, MP_RES_EV_LEASE);
    waiting->extents[0].src = mp_host_address(tier, unit);
    mp_reader_let_go(tier->link, waiting);
}

static void end_bad_locked(struct mp_host_tier *tier, uint32_t unit, const struct mp_error *error)
{
    struct host_unit *u = &tier->units[unit];
    struct mp_ticket *waiting = u->waiting;

    mp_assert_held(&tier->lock);
    mp_assert(error->status != MP_OK);
    mp_host_apply_locked(tier, unit, MP_RES_EV_FILL_FAILED);
    mp_host_give_slot_locked(tier, unit);
    u->waiting = NULL;
    if (waiting != NULL)
        mp_reader_fail_held(tier->link, waiting, error);
    else /* whoever needs it will read it again, and get the error */
        mp_log_warn("host", "unit %u was not read ahead: %s", unit, error->text);
}

/* Take note of a read that has ended. The lock is dropped while the unit is packed: it is FILLING,
 * so nobody else looks at its slot. */
static void end_locked(struct mp_host_tier *tier, struct host_job *job)
{
    const uint32_t unit = job->unit;

    mp_assert_held(&tier->lock);
    mp_assert(tier->units[unit].in_job);
    if (mp_ticket_state(&job->ticket) == MP_TICKET_DONE) {
        char *slot = mp_host_address(tier, unit);

        mp_unlock(&tier->lock);
        mp_space_pack(mp_host_layout(tier, unit), slot);
        mp_lock(&tier->lock);
        tier->units[unit].in_job = false;
        end_good_locked(tier, unit);
    } else {
        tier->units[unit].in_job = false;
        end_bad_locked(tier, unit, &job->ticket.error);
    }
    job->unit = HOST_NOBODY;
}

static bool is_notified(void *ctx)
{
    return atomic_load_explicit(&((struct mp_host_tier *)ctx)->notified, memory_order_relaxed);
}

/* Wait for a read of `tickets` or for a request; the lock is not held. */
static uint32_t wait_for_reads(struct mp_host_tier *tier, struct mp_ticket *const *tickets,
                               uint32_t count)
{
    const struct mp_interrupt interrupt = { .ready = is_notified, .ctx = tier };

    mp_assert(count > 0 && count <= HOST_JOBS);
    return mp_reader_wait_any_or(tier->reader, tickets, count, &interrupt);
}

void *mp_host_stager_run(void *arg)
{
    struct mp_host_tier *tier = arg;

    mp_lock(&tier->lock);
    for (;;) {
        struct mp_ticket *tickets[HOST_JOBS];
        struct host_job *jobs[HOST_JOBS];
        uint32_t count = 0, ended;

        start_all_locked(tier);
        mp_cond_broadcast(&tier->filled); /* lists and jobs are not what they were */
        for (uint32_t i = 0; i < HOST_JOBS; i++) {
            if (tier->jobs[i].unit != HOST_NOBODY) {
                jobs[count] = &tier->jobs[i];
                tickets[count++] = &tier->jobs[i].ticket;
            }
        }
        if (count == 0 && tier->stopping)
            break;
        if (count == 0) {
            if (!is_notified(tier))
                mp_cond_wait(&tier->work, &tier->lock);
            continue;
        }
        mp_unlock(&tier->lock);
        ended = wait_for_reads(tier, tickets, count);
        mp_lock(&tier->lock);
        if (ended < count)
            end_locked(tier, jobs[ended]);
    }
    mp_unlock(&tier->lock);
    return NULL;
}
