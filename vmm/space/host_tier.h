#ifndef MP_HOST_TIER_H
#define MP_HOST_TIER_H

#include "vmm/space/space_layout.h"

/*
 * Private to vmm/space. The host tier of a space whose device tier cannot be filled from files:
 * slots in host frames, from which units are copied over the link, and a thread, the stager, that
 * fills them from the files and packs them.
 *
 * Inclusive: the host tier keeps copies. The retained units are chosen once, all of them or as many
 * as fit, spread evenly over the model; the others pass through a few slots reserved for that.
 * Exclusive: a unit is in one tier only. Every slot holds a unit that is not in the device tier,
 * and the same few slots stay free, so that a load always finds one.
 *
 * From the start the stager fills slots in the order of the units; a unit that is loaded goes
 * first.
 *
 * Thread safety: any thread. Calls for one unit come from the pager's thread, except those that the
 * link makes for a ticket that it has started.
 */
struct mp_host_tier;

struct mp_host_tier_config {
    struct mp_backend *backend;
    struct mp_files *files;
    const struct mp_space_layout *layout; /* these three must outlive the tier */
    enum mp_host_residency residency;
    struct mp_reader_config reader; /* of files; complete */
};

/* Allocates the frames. On failure nothing is left. */
enum mp_status mp_host_tier_create(const struct mp_host_tier_config *config,
                                   struct mp_host_tier **tier_p) MP_MUST_CHECK;

/* Start the stager. `link` copies loaded units to the device and must outlive mp_host_tier_stop().
 */
enum mp_status mp_host_tier_start(struct mp_host_tier *tier, struct mp_reader *link) MP_MUST_CHECK;

/* Ends reads and the stager; no load may be waiting. To be followed by destroy. Both allow NULL. */
void mp_host_tier_stop(struct mp_host_tier *tier);
void mp_host_tier_destroy(struct mp_host_tier *tier);

/*
 * Submit the ticket that copies a unit to the device: at once if the unit is in the host tier; else
 * it is held until the unit has been read from its file, and fails if that read fails. Sets `src`
 * of extent 0. Never fails and never blocks.
 */
void mp_host_tier_load(struct mp_host_tier *tier, uint32_t unit, struct mp_ticket *ticket);
void mp_host_tier_promote(struct mp_host_tier *tier, uint32_t unit, struct mp_ticket *ticket);

/* As mp_reader_cancel(), for a ticket of mp_host_tier_load(). */
bool mp_host_tier_cancel(struct mp_host_tier *tier, uint32_t unit, struct mp_ticket *ticket);

/* The link has copied the unit to the device, or failed to. */
void mp_host_tier_copied(struct mp_host_tier *tier, uint32_t unit, bool ok);

/* Exclusive: reserve a slot into which the device tier copies the unit before it evicts it; to be
 * followed by mp_host_tier_came_back(). NULL: no slot is free, or the unit is in the host tier. */
void *mp_host_tier_make_room(struct mp_host_tier *tier, uint32_t unit);
void mp_host_tier_came_back(struct mp_host_tier *tier, uint32_t unit, bool ok);

/*
 * To be called instead of mp_host_tier_copied() and mp_host_tier_came_back() if the device was lost
 * during the copy: the slot is never reused, because it may still be read or written. Waiting loads
 * fail with this error, and so does every later load of a unit that is not in the host tier. Units
 * in the host tier stay readable.
 */
void mp_host_tier_give_up(struct mp_host_tier *tier, const struct mp_error *error);

/* Implementation of mp_space_lease_host() and the two functions after it. NULL: the unit is not in
 * the host tier. */
const char *mp_host_tier_lease(struct mp_host_tier *tier, uint32_t unit);
void mp_host_tier_release(struct mp_host_tier *tier, uint32_t unit);
bool mp_host_tier_holds(struct mp_host_tier *tier, uint32_t unit);

const char *mp_host_tier_engine(const struct mp_host_tier *tier);
void mp_host_tier_stats(const struct mp_host_tier *tier, struct mp_reader_stats *stats_p);

/* Block until the initial filling and all reads requested meanwhile have ended. */
void mp_host_tier_wait_filled(struct mp_host_tier *tier);

/* Check invariants by recomputing the counts. For tests. */
bool mp_host_tier_check(struct mp_host_tier *tier);

#endif
