#ifndef MP_HOST_TIER_INT_H
#define MP_HOST_TIER_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "vmm/base/assert.h"
#include "vmm/base/lock.h"
#include "vmm/space/host_tier.h"

/*
 * Shared by the two files of the host tier: host_tier.c has slots and the interface, host_stager.c
 * the thread that reads.
 *
 *     free + units with a slot == slots       per class
 *     passing_used <= passing                  inclusive: units that do not stay
 *
 * A unit has a slot in the states FILLING and VALID. `request` is its list of fills that the stager
 * has to do; `waiting` is the ticket that waits for it.
 */
#define HOST_NOBODY UINT32_MAX

/* Most units that are read at the same time, and of them those that no load waits for. */
#define HOST_JOBS 6
#define HOST_JOBS_AHEAD 2

enum host_request { HOST_IDLE, HOST_DEMAND, HOST_PREFETCH, HOST_FILL, HOST_REQUEST_COUNT };

struct host_unit {
    struct mp_residency residency; /* leases: copies over the link, and of mp_host_tier_lease() */
    struct mp_slot slot;
    uint8_t request; /* enum host_request: in that list */
    bool stays;      /* inclusive: keeps its slot permanently */
    bool in_job;
    bool leaves; /* exclusive: is in the device tier; leaves when its last lease ends */
    uint32_t next, prev;
    struct mp_ticket *waiting; /* held */
};

struct host_list {
    uint32_t first, last;
};

struct host_job {
    uint32_t unit; /* HOST_NOBODY: free */
    bool ahead;
    struct mp_ticket ticket;
};

struct mp_host_tier {
    struct mp_host_tier_config config;
    struct mp_tier *slots;    /* its free list is guarded by lock */
    struct mp_reader *reader; /* of files */
    struct mp_reader *link;
    pthread_t thread;
    bool started;

    struct mp_mutex lock;
    struct mp_cond work;   /* for the stager */
    struct mp_cond filled; /* nothing is left to fill */
    struct host_unit *units MP_GUARDED_BY(lock);
    struct host_list lists[HOST_REQUEST_COUNT] MP_GUARDED_BY(lock);
    uint32_t passing_used[MP_TIER_CLASSES_MAX] MP_GUARDED_BY(lock);
    bool stopping MP_GUARDED_BY(lock);
    struct mp_error error MP_GUARDED_BY(lock); /* the error that the device was lost with */

    /* The stager has to check its lists again. Relaxed: the setter then takes the reader's lock to
     * wake it. */
    _Atomic(bool) notified;

    struct host_job jobs[HOST_JOBS] MP_GUARDED_BY(
        lock); /* the reader owns the tickets of those in flight */
};

static inline bool mp_host_exclusive(const struct mp_host_tier *tier)
{
    return tier->config.residency == MP_HOST_EXCLUSIVE;
}

static inline const struct mp_unit_layout *mp_host_layout(const struct mp_host_tier *tier,
                                                          uint32_t unit)
{
    mp_assert(unit < tier->config.layout->unit_count);
    return &tier->config.layout->units[unit];
}

/* Apply an event that is known to be legal here. */
void mp_host_apply_locked(struct mp_host_tier *tier, uint32_t unit, enum mp_res_event event);

void mp_host_request_locked(struct mp_host_tier *tier, uint32_t unit, enum host_request request);

/* Take a slot for a unit that is read from its file. False: none is free for it now. */
bool mp_host_take_slot_locked(struct mp_host_tier *tier, uint32_t unit);
void mp_host_give_slot_locked(struct mp_host_tier *tier, uint32_t unit);

/* Keep or drop a VALID unit whose last user is gone. */
void mp_host_settle_locked(struct mp_host_tier *tier, uint32_t unit);

/* Wake the stager. The lock is held, so that no wake-up is lost. */
void mp_host_notify_locked(struct mp_host_tier *tier);

char *mp_host_address(const struct mp_host_tier *tier, uint32_t unit);

/* Body of the stager's thread. */
void *mp_host_stager_run(void *arg);

#endif
