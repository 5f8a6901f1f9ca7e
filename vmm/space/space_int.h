#ifndef MP_SPACE_INT_H
#define MP_SPACE_INT_H

#include "vmm/base/assert.h"
#include "vmm/space/host_tier.h"
#include "vmm/space/populate.h"
#include "vmm/space/space_layout.h"
#include "vmm/space/tier.h"
#include "vmm/space/window.h"

/*
 * What the parts of the space share: space.c is its life and the facts, space_move.c what moves
 * units, space_host.c what is there only with a host tier, space_resize.c changes of the budget.
 * Nobody else includes this.
 *
 * Per unit: its residency, the slot it holds, and the ticket of its read. A unit holds a slot
 * exactly in the states FILLING and VALID; the slot goes back before a failure becomes visible, so
 * whoever sees FAILED can load something else at once. It also goes back when a unit begins to be
 * copied down (DRAINING): the link does its copies in order, so whatever is loaded into the slot
 * comes after that.
 *
 *     free + units with a slot == slots            per class
 *     resident_bytes == bytes of units in VALID
 */
#define SPACE_NOBODY UINT32_MAX

struct space_unit {
    struct mp_residency residency;
    struct mp_slot slot; /* in the states with a slot */
    bool demand;         /* counted as a load, not as a prefetch */
    struct mp_ticket ticket;
};

struct mp_space {
    struct mp_space_layout layout;
    void *arrays; /* the block of all arrays */
    struct space_unit *units;
    struct mp_tier *tier;
    struct mp_reader *reader;     /* of files, or the link from the host tier */
    struct mp_populate *populate; /* or NULL */
    struct mp_timeline *timeline;
    struct mp_counters *counters;
    struct mp_counters own_counters;      /* where the caller wants none */
    struct mp_reader_stats seen;          /* what of the reader's is in the counters */
    struct mp_ticket **waiting;           /* (units): of mp_space_wait_any() */
    uint32_t *owner[MP_TIER_CLASSES_MAX]; /* (slots): unit, or SPACE_NOBODY */
    uint64_t resident_bytes;
    uint64_t generation; /* see mp_space_generation() */
    bool whole_pages;
    bool (*leaving)(void *ctx, uint32_t unit); /* or NULL */
    void *leaving_ctx;

    /* Without them files are read into the device tier, and nobody looks at the rest. */
    struct mp_host_tier *host;
    struct mp_windows *windows; /* or NULL: table */
    struct mp_backend *backend;
    bool exclusive;
    bool shared_memory; /* the CPU moves units between slots */
    struct mp_memory_link memory;
    uint32_t *draining; /* (units): DRAINING when last looked at */
    uint32_t draining_count;
};

static inline const struct mp_unit_layout *layout_of(const struct mp_space *space, uint32_t unit)
{
    mp_assert(unit < space->layout.unit_count);
    return &space->layout.units[unit];
}

static inline struct space_unit *unit_of(const struct mp_space *space, uint32_t unit)
{
    mp_assert(unit < space->layout.unit_count);
    return &space->units[unit];
}

/* For events whose legality the code around has established. */
void mp_space_must_apply(struct mp_space *space, uint32_t unit, enum mp_res_event event);

void mp_space_give_slot(struct mp_space *space, uint32_t unit);
void mp_space_count_reads(struct mp_space *space);
void mp_space_set_resident(struct mp_space *space, uint64_t bytes);

/* space_host.c: the host tier, its link and windows; their end also takes half-made ones. */
enum mp_status mp_space_make_host(struct mp_space *space,
                                  const struct mp_space_config *config) MP_MUST_CHECK;
void mp_space_end_host(struct mp_space *space);

/* Begin to copy a VALID, unleased unit down. False: there is no room for it; nothing changed. */
bool mp_space_drain(struct mp_space *space, uint32_t unit);

/* Take note of copies down that have ended; with `block` wait for that of this unit. */
void mp_space_settle_drains(struct mp_space *space, uint32_t unit, bool block);

#endif
