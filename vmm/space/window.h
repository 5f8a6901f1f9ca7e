#ifndef MP_WINDOW_H
#define MP_WINDOW_H

#include "vmm/space/space_layout.h"

/*
 * Private to vmm/space. Windows: every unit has a fixed address, at which its frame is mapped while
 * it is resident.
 *
 * The link's thread (the mapper) changes page tables, and only for a slot that is about to be
 * filled, on which no unit has a lease. When a budget changes, the pager's thread does so too: it
 * unmaps frames that are released, and slots that units move to. Otherwise a frame stays mapped
 * until another unit is loaded into it.
 *
 * A unit that cannot be mapped is found at its alias; the first time is logged. A place that cannot
 * be unmapped is lost: it is logged, counted and never used again.
 *
 * Thread safety: any thread; a unit's address may be queried only after its ticket has ended.
 */
struct mp_windows;

/* `timeline` gets a track "mapper", with every change of page tables; or NULL. */
enum mp_status mp_windows_create(struct mp_backend *backend, const struct mp_space_layout *layout,
                                 const struct mp_tier *tier, struct mp_timeline *timeline,
                                 struct mp_windows **windows_p) MP_MUST_CHECK;

/* Unmaps everything; before the tier is destroyed. NULL is allowed. */
void mp_windows_destroy(struct mp_windows *windows);

/* Unmap the frame of the slot. */
void mp_windows_clear(struct mp_windows *windows, struct mp_slot slot);

/* To be called before the unit is loaded into the slot: unmap the slot's frame, and what is still
 * mapped at the unit's place, unless they are the same. */
void mp_windows_prepare(struct mp_windows *windows, uint32_t unit, struct mp_slot slot);

/* Map the frame of the slot at the unit's place; after mp_windows_prepare(). */
void mp_windows_map(struct mp_windows *windows, uint32_t unit, struct mp_slot slot);

/* Address of the unit; NULL: not mapped, use its alias. */
const char *mp_windows_address(const struct mp_windows *windows, uint32_t unit);

/* Bytes of places that could not be unmapped. */
uint64_t mp_windows_lost_bytes(struct mp_windows *windows);

/* Check that no two frames are mapped at one place. For tests. */
bool mp_windows_check(struct mp_windows *windows);

#endif
