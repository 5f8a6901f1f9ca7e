#ifndef MP_TIER_H
#define MP_TIER_H

#include <stdint.h>

#include "vmm/backend.h"

/*
 * The slots of one tier: places of equal size, by size class, inside frames that are made at start.
 *
 *     free + taken == slots          per class
 *     frame bytes  <= budget         always; frames are all the memory that a tier holds
 *
 * Large units get a frame each when slots of a frame would waste more; small units share frames. A
 * tier never evicts: take answers MP_ERR_NO_SPACE and the pager decides.
 *
 * Locking: none; one caller at a time.
 */
struct mp_tier;

#define MP_TIER_CLASSES_MAX 16

struct mp_tier_class {
    uint64_t slot_bytes; /* multiple of 4096 */
    uint32_t slots;      /* wanted; no more are useful than there are units of the class */
};

struct mp_slot {
    uint32_t class_index;
    uint32_t index; /* within the class */
};

/*
 * Bytes of frames that `classes` cost on this backend, granules included.
 * MP_ERR_OVERFLOW if that does not fit.
 */
enum mp_status mp_tier_cost(const struct mp_backend *backend, const struct mp_tier_class *classes,
                            uint32_t class_count, uint64_t *bytes_p) MP_MUST_CHECK;

/*
 * Shrink the slot counts of `classes` in proportion until the frames fit into `budget_bytes`.
 * Each class keeps at least two slots: MP_ERR_CONFIG "budget ... is below the minimum ..." with
 * both numbers if that does not fit (code E_BUDGET_SMALL).
 */
enum mp_status mp_tier_fit(const struct mp_backend *backend, uint64_t budget_bytes,
                           struct mp_tier_class *classes, uint32_t class_count) MP_MUST_CHECK;

/*
 * Make all frames. On failure nothing is kept and *tier_p is untouched.
 * MP_ERR_NO_SPACE: the backend has not that much memory free, or makes not that many frames.
 */
enum mp_status mp_tier_create(struct mp_backend *backend, enum mp_tier_kind kind,
                              const struct mp_tier_class *classes, uint32_t class_count,
                              struct mp_tier **tier_p) MP_MUST_CHECK;
void mp_tier_destroy(struct mp_tier *tier);

/* MP_ERR_NO_SPACE: every slot of the class is taken. The lowest free index comes first. */
enum mp_status mp_tier_take(struct mp_tier *tier, uint32_t class_index,
                            struct mp_slot *slot_p) MP_MUST_CHECK;
void mp_tier_give(struct mp_tier *tier, struct mp_slot slot);

/* Alias of a slot, 4096-aligned, fixed for the tier's life. */
void *mp_tier_address(const struct mp_tier *tier, struct mp_slot slot);

uint32_t mp_tier_slots(const struct mp_tier *tier, uint32_t class_index);
uint32_t mp_tier_free_slots(const struct mp_tier *tier, uint32_t class_index);
uint64_t mp_tier_frame_bytes(const struct mp_tier *tier);

/* All frames, in the order of their slots; the tier's own. */
const struct mp_frame *mp_tier_frames(const struct mp_tier *tier, uint32_t *count_p);

/* Re-derive the equation of state; false is a bug of ours. For tests and debug builds. */
bool mp_tier_check(const struct mp_tier *tier);

#endif
