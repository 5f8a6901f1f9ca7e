#ifndef MP_SPACE_LAYOUT_H
#define MP_SPACE_LAYOUT_H

#include "vmm/space/space.h"
#include "vmm/space/tier.h"

/*
 * Private to vmm/space. The layout of every unit in its slot, the reads that fill it, the size
 * classes, and the number of slots that fit into a budget. Computed once from files and units.
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
    bool direct;                                     /* how the extents are read */
    uint64_t piece_offset_bytes[MP_UNIT_PIECES_MAX]; /* in the slot, in the caller's order */
    uint64_t piece_bytes[MP_UNIT_PIECES_MAX];
    uint64_t bytes;      /* of its pieces */
    uint64_t slot_bytes; /* that it needs; its class's may be more */

    /*
     * Layout `packed`: extents are read into a slot of the host tier as they are in the files; then
     * each piece is moved from its raw offset down to its final one, in the order of `packing`. The
     * first packed_bytes of that are copied to the slot of the device.
     */
    uint64_t packed_bytes;
    uint64_t host_slot_bytes;
    uint64_t raw_offset_bytes[MP_UNIT_PIECES_MAX];
    uint32_t packing[MP_UNIT_PIECES_MAX]; /* numbers of pieces */
};

struct mp_space_layout {
    struct mp_unit_layout *units;
    uint32_t unit_count;
    struct mp_tier_class classes[MP_TIER_CLASSES_MAX]; /* ascending slot_bytes; slots in budget */
    uint32_t class_count;
    uint32_t class_units[MP_TIER_CLASSES_MAX];
    struct mp_space_plan plan;

    /* With a host tier: its classes, one for each class of the device tier, and the number of slots
     * of each that are reserved for units passing through. */
    bool host_tier;
    struct mp_tier_class host_classes[MP_TIER_CLASSES_MAX];
    uint32_t passing[MP_TIER_CLASSES_MAX];
    enum mp_addressing addressing;              /* as decided */
    uint64_t stride_bytes[MP_TIER_CLASSES_MAX]; /* of windows */
};

/*
 * Check all units against their files, choose the kind of reads, lay units out and fit the budget.
 * Statuses and texts as mp_space_create(). On failure nothing is kept.
 */
enum mp_status mp_space_layout_init(const struct mp_space_config *config,
                                    struct mp_space_layout *layout) MP_MUST_CHECK;
void mp_space_layout_fini(struct mp_space_layout *layout);

/* Set the extents of a ticket that reads the unit from its file into the slot at this address. */
void mp_unit_set_extents(const struct mp_unit_layout *layout, char *slot, struct mp_ticket *ticket);

/* space_packed.c: lay the unit out for a host tier; the layout is that of `direct` reads, or not.
 */
bool mp_space_pack_unit(const struct mp_unit *unit, const uint32_t order[MP_UNIT_PIECES_MAX],
                        bool direct, struct mp_unit_layout *layout) MP_MUST_CHECK;

/* Move the pieces of a unit that was read into `slot` to their places. */
void mp_space_pack(const struct mp_unit_layout *layout, char *slot);

/* space_budget.c: size classes, and how many slots of each the budgets pay for. */
enum mp_status mp_space_make_classes(struct mp_space_layout *layout) MP_MUST_CHECK;
enum mp_status mp_space_fit_budget(const struct mp_space_config *config,
                                   struct mp_space_layout *layout) MP_MUST_CHECK;

#endif
