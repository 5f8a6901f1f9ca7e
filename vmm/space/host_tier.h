#ifndef MP_HOST_TIER_H
#define MP_HOST_TIER_H

#include "vmm/space/space_layout.h"

/*
 * The host tier of a space whose device tier cannot be filled from files: slots in host frames,
 * from which units are copied over the link, and a thread, the stager, that fills them from the
 * files and packs them. Part of vmm/space and of no other module.
 *
 * Inclusive, where copies are kept: the units that stay are chosen once, all of them or as many as
 * fit, spread evenly over the model. The others pass through a few slots that are kept free for
 * that. Exclusive, where a unit is in one tier only: every slot holds a unit that is not in the
 * device tier, and the same few slots stay free, so that a load always finds one.
 *
 * From the start the stager fills slots in the order of the units; a unit that is loaded goes
 * first.
 *
 * Thread safety: any thread. Calls about one unit come from the pager's thread, except those that
 * the link makes for a ticket that it has started.
 */
struct mp_host_tier;

struct mp_host_tier_config {
    struct mp_backend *backend;
    struct mp_files *files;
    const struct mp_space_layout *layout; /* these three outlive the tier */
    enum mp_host_residency residency;
    struct mp_reader_config reader; /* of files; complete */
};

/* Makes the frames. On failure nothing is kept. */
enum mp_status mp_host_tier_create(const struct mp_host_tier_config *config,
                                   struct mp_host_tier **tier_p) MP_MUST_CHECK;

/* Start the stager. `link` copies what is loaded, and outlives mp_host_tier_stop(). */
enum mp_status mp_host_tier_start(struct mp_host_tier *tier, struct mp_reader *link) MP_MUST_CHECK;

/* Ends reads and the stager; no load may be waiting. Then destroy. Both allow NULL. */
void mp_host_tier_stop(struct mp_host_tier *tier);
void mp_host_tier_destroy(struct mp_host_tier *tier);

/*
 * Submit the ticket that copies a unit to the device: at once where the unit is here, else held and
 * let go, or failed with the error of the read, when it has come from its file. Extent 0 gets its
 * `src` here. Never fails and never blocks.
 */
void mp_host_tier_load(struct mp_host_tier *tier, uint32_t unit, struct mp_ticket *ticket);
void mp_host_tier_promote(struct mp_host_tier *tier, uint32_t unit, struct mp_ticket *ticket);

/* As mp_reader_cancel(), for a ticket of mp_host_tier_load(). */
bool mp_host_tier_cancel(struct mp_host_tier *tier, uint32_t unit, struct mp_ticket *ticket);

/* The link has copied the unit to the device, or failed to. */
void mp_host_tier_copied(struct mp_host_tier *tier, uint32_t unit, bool ok);

/* Exclusive: a slot to copy the unit back into, before the device tier gives it up. NULL: there is
 * none to spare, or the unit is here. Then mp_host_tier_came_back(). */
void *mp_host_tier_make_room(struct mp_host_tier *tier, uint32_t unit);
void mp_host_tier_came_back(struct mp_host_tier *tier, uint32_t unit, bool ok);

/*
 * Instead of those two, when the device was lost under the copy: the slot is never used again,
 * because it may still be read or written. What waits for a unit fails with this error, and so does
 * every later load of a unit that is not here. What is here stays readable.
 */
void mp_host_tier_give_up(struct mp_host_tier *tier, const struct mp_error *error);

/* Behind mp_space_lease_host() and the two functions after it. NULL: the unit is not here. */
const char *mp_host_tier_lease(struct mp_host_tier *tier, uint32_t unit);
void mp_host_tier_release(struct mp_host_tier *tier, uint32_t unit);
bool mp_host_tier_holds(struct mp_host_tier *tier, uint32_t unit);

const char *mp_host_tier_engine(const struct mp_host_tier *tier);
void mp_host_tier_stats(const struct mp_host_tier *tier, struct mp_reader_stats *stats_p);

/* Block until the filling at the start, and what has been asked for meanwhile, has ended. */
void mp_host_tier_wait_filled(struct mp_host_tier *tier);

/* Re-derive counts from scratch; false is a bug of ours. */
bool mp_host_tier_check(struct mp_host_tier *tier);

#endif
