#ifndef MP_TIER_H
#define MP_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/backend/backend.h"

/*
 * The slots of one tier: places of equal size, by size class, inside frames that are made at start,
 * or later when a budget changes.
 *
 *     free + taken == slots          per class
 *     frame bytes  <= budget         always; frames are all the memory that a tier holds
 *
 * Large units get a frame each when slots of a frame would waste more; small units share frames. A
 * tier never evicts: take returns MP_ERR_NO_SPACE and the pager decides.
 *
 * Locking: none; one caller at a time.
 */
struct mp_tier;

#define MP_TIER_CLASSES_MAX 16

struct mp_tier_class {
    uint64_t slot_bytes; /* multiple of 4096 */
    uint32_t slots;      /* wanted; no more are useful than there are units of the class */
    uint32_t slots_max;  /* with those that may be added later; below `slots`: none may */
    bool own_frames;     /* a frame for each slot, whatever that wastes */
    bool small_frames;   /* as few slots in one as granules allow, so that they can come and go */
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
 * both numbers if that does not fit (code E_BUDGET_SMALL); it says to raise `option`.
 */
enum mp_status mp_tier_fit(const struct mp_backend *backend, uint64_t budget_bytes,
                           const char *option, struct mp_tier_class *classes,
                           uint32_t class_count) MP_MUST_CHECK;

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

/* Alias of a slot, 4096-aligned, fixed for the life of its frame. */
void *mp_tier_address(const struct mp_tier *tier, struct mp_slot slot);

/* The frame that a slot is in; the tier's own. */
const struct mp_frame *mp_tier_frame(const struct mp_tier *tier, struct mp_slot slot);

/*
 * Frames of a class are numbered 0..mp_tier_frame_count(); their slots follow one another. A number
 * whose frame does not exist has no slots.
 */
uint32_t mp_tier_frame_count(const struct mp_tier *tier, uint32_t class_index);
uint32_t mp_tier_frame_slots(const struct mp_tier *tier, uint32_t class_index, uint32_t frame,
                             uint32_t *first_p);

/* Give the frame back; all of its slots are free. */
void mp_tier_remove_frame(struct mp_tier *tier, uint32_t class_index, uint32_t frame);

/*
 * Make one more frame, of `slots` slots at most; 0: of as many as one has. MP_ERR_INVALID (no
 * text): there is no number left for it, or, with 0, the class has all the slots that it may have.
 * MP_ERR_NO_SPACE: the backend has no memory.
 */
enum mp_status mp_tier_add_frame(struct mp_tier *tier, uint32_t class_index,
                                 uint32_t slots) MP_MUST_CHECK;

/* The number that the next frame would have; UINT32_MAX: there is none left. */
uint32_t mp_tier_frame_gap(const struct mp_tier *tier, uint32_t class_index);

/* Bytes that mp_tier_add_frame() with so many slots takes; 0: none can be added. */
uint64_t mp_tier_next_frame_bytes(const struct mp_tier *tier, uint32_t class_index, uint32_t slots);

/* Slots of a full frame. */
uint32_t mp_tier_slots_per_frame(const struct mp_tier *tier, uint32_t class_index);

/* Take a free slot out of circulation until mp_tier_give(). It is free. */
void mp_tier_take_slot(struct mp_tier *tier, struct mp_slot slot);
bool mp_tier_is_free(const struct mp_tier *tier, struct mp_slot slot);

uint32_t mp_tier_slots(const struct mp_tier *tier, uint32_t class_index);
/* Slots have indexes below this; more than there are slots where frames are missing. */
uint32_t mp_tier_index_end(const struct mp_tier *tier, uint32_t class_index);
uint32_t mp_tier_free_slots(const struct mp_tier *tier, uint32_t class_index);
uint64_t mp_tier_frame_bytes(const struct mp_tier *tier);

/* All frames, in the order of their slots; the tier's own. One that does not exist has no bytes. */
const struct mp_frame *mp_tier_frames(const struct mp_tier *tier, uint32_t *count_p);

/* Re-derive the equation of state; false is a bug of ours. For tests and debug builds. */
bool mp_tier_check(const struct mp_tier *tier);

#endif
