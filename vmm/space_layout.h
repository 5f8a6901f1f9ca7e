#ifndef MP_SPACE_LAYOUT_H
#define MP_SPACE_LAYOUT_H

#include "vmm/space.h"
#include "vmm/tier.h"

/*
 * Where the pieces of every unit stand in a slot, what is read to fill it, which slots there are
 * and how many of each a budget pays for. Computed once from files and units; part of vmm/space
 * and of no other module.
 */
struct mp_unit_extent {
    uint32_t file;
    uint64_t offset_bytes; /* in the file */
    uint64_t bytes;
    uint64_t need_bytes; /* from the start to the last piece's end */
    uint64_t slot_bytes; /* offset in the slot */
};

struct mp_unit_layout {
    struct mp_unit_extent extents[MP_UNIT_PIECES_MAX];
    uint32_t extent_count;
    uint32_t class_index;
    uint32_t piece_count;
    uint64_t piece_offset_bytes[MP_UNIT_PIECES_MAX]; /* in the slot, in the caller's order */
    uint64_t bytes;                                  /* of its pieces */
    uint64_t slot_bytes;                             /* that it needs; its class's may be more */
};

struct mp_space_layout {
    struct mp_unit_layout *units;
    uint32_t unit_count;
    struct mp_tier_class classes[MP_TIER_CLASSES_MAX]; /* ascending slot_bytes; slots in budget */
    uint32_t class_count;
    struct mp_space_plan plan;
};

/*
 * Check all units against their files, choose the kind of reads, lay units out and fit the budget.
 * Statuses and texts as mp_space_create(). On failure nothing is kept.
 */
enum mp_status mp_space_layout_init(const struct mp_space_config *config,
                                    struct mp_space_layout *layout) MP_MUST_CHECK;
void mp_space_layout_fini(struct mp_space_layout *layout);

#endif
