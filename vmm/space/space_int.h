#ifndef MP_SPACE_INT_H
#define MP_SPACE_INT_H

#include "vmm/base/assert.h"
#include "vmm/space/host_tier.h"
#include "vmm/space/populate.h"
#include "vmm/space/space_layout.h"
#include "vmm/space/tier.h"
#include "vmm/space/window.h"

/*
 * Private to the files of the space: space.c has creation and queries, space_move.c moves units,
 * space_host.c has the host tier's part, space_resize.c changes the budget.
 *
 * Per unit: its residency, the slot it holds, and the ticket of its read. A unit holds a slot
 * exactly in the states FILLING and VALID; the slot is freed before a failure becomes visible, so a
 * caller that sees FAILED can load something else at once. It is also freed when the copy of a unit
 * to the host tier begins (DRAINING): the link copies in order, so anything loaded into the slot
 * comes later.
 *
 *     free + units with a slot == slots            per class
 *     resident_bytes == bytes of units in VALID
 */
#define SPACE_NOBODY UINT32_MAX

struct space_unit {
    struct mp_residency residency;
    struct mp_slot slot; /* in the states with a slot */
    bool demand;         /* counted as a load, not as a prefetch */
    bool put;            /* its bytes were copied here: the ticket says nothing of them */
    struct mp_ticket ticket;
};

struct mp_space {
    struct mp_space_layout layout;
    void *arrays; /* one block of all arrays */
    struct space_unit *units;
    struct mp_tier *tier;
    struct mp_reader *reader;     /* of files, or the link from the host tier */
    struct mp_populate *populate; /* or NULL */
    struct mp_timeline *timeline;
    struct mp_counters *counters;
    struct mp_counters own_counters;      /* used if the caller passes none */
    struct mp_reader_stats seen;          /* the reader's counts that are already in the counters */
    struct mp_ticket **waiting;           /* (units): of mp_space_wait_any() */
    uint32_t *owner[MP_TIER_CLASSES_MAX]; /* (slots): unit, or SPACE_NOBODY */
    uint64_t resident_bytes;
    uint64_t generation; /* see mp_space_generation() */
    bool whole_pages;
    struct mp_error stuck;                     /* why nothing is loaded any more */
    bool (*leaving)(void *ctx, uint32_t unit); /* or NULL */
    void *leaving_ctx;

    /* Only with a host tier; else files are read into the device tier. */
    struct mp_host_tier *host;
    struct mp_windows *windows; /* or NULL: table */
    struct mp_backend *backend;
    bool exclusive;
    bool shared_memory; /* the CPU moves units between slots */
    struct mp_memory_link memory;
    uint32_t *draining; /* (units): those that were DRAINING at the last check */
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

/* Apply an event that is known to be legal here. */
void mp_space_must_apply(struct mp_space *space, uint32_t unit, enum mp_res_event event);

void mp_space_give_slot(struct mp_space *space, uint32_t unit);
void mp_space_count_reads(struct mp_space *space);
void mp_space_set_resident(struct mp_space *space, uint64_t bytes);

/* space_host.c: create and destroy the host tier, its link and windows; destroying also works after
 * a partial creation. */
enum mp_status mp_space_make_host(struct mp_space *space,
                                  const struct mp_space_config *config) MP_MUST_CHECK;
void mp_space_end_host(struct mp_space *space);

/* Begin to copy a VALID, unleased unit to the host tier. False: no slot is free; nothing changed.
 */
bool mp_space_drain(struct mp_space *space, uint32_t unit);

/* Process copies to the host tier that have ended; with `block` wait for that of this unit. */
void mp_space_settle_drains(struct mp_space *space, uint32_t unit, bool block);

#endif
