#ifndef MP_INTERPOSE_TIERS_H
#define MP_INTERPOSE_TIERS_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/policy.h"
#include "vmm/backend/backend.h"

/*
 * Same-address tiering: windows, ranges of device addresses that are handed to a program instead of
 * an allocation. A window consists of units of one size. Every unit is mapped at all times, to a
 * device frame or to a host frame that the device reads over its link, so a kernel may touch
 * any byte at any time; which of both it is changes only while the device does nothing.
 *
 *     device frames <= device budget, host frames <= host budget; the spare counts
 *     a window's units are all mapped, or there is no window
 *     one frame is spare: of the device, or of the host after half of a swap
 *
 * A unit moves by a copy to the spare frame, which then takes its place: the old frame is the new
 * spare. Nothing is known of who writes, so bytes are copied both ways, whatever they are.
 *
 * What is hot comes from touches (addresses that launches and copies name); what is worth more,
 * from what the bytes are; which of equals leaves, from an evict policy whose units these are.
 *
 * It knows nothing of programs, hooks and streams. Thread safety: all functions, from any thread;
 * mp_tiers_move() and mp_tiers_free() only while no work that could touch a window is unfinished or
 * can begin, which the caller sees to.
 */
struct mp_tiers;

/* What a unit's bytes are, by what they are worth on the device, the least first. */
enum mp_tiers_kind {
    MP_TIERS_EXPERT, /* of experts that a router chooses */
    MP_TIERS_DENSE,  /* weights that every token needs */
    MP_TIERS_OTHER,  /* not known: caches, activations */
    MP_TIERS_KIND_COUNT
};

struct mp_tiers_config {
    struct mp_backend *backend; /* with windows and both tiers; must outlive the tiers */
    uint64_t unit_bytes;        /* rounded up to granules */
    uint64_t device_bytes;      /* budget of device frames, two units at least */
    uint64_t host_bytes;        /* budget of host frames */
    const char *evict;          /* name of the evict policy */
};

struct mp_tiers_stats {
    uint64_t windows, units, device_units; /* that live */
    uint64_t made;                         /* windows, ever */
    uint64_t moves, failed_moves, moved_bytes;
    uint64_t touches, refused; /* windows that were asked for and refused */
    uint64_t lost_bytes;       /* that could not be given back */
    bool broken;               /* a move failed half-way: nothing moves any more */
};

enum mp_status mp_tiers_open(const struct mp_tiers_config *config,
                             struct mp_tiers **tiers_p) MP_MUST_CHECK;

/* No window may be in use. NULL is allowed. */
void mp_tiers_close(struct mp_tiers *tiers);

/* The same while others may still ask: they find no window, and none is made. What is left needs no
 * backend. */
void mp_tiers_end(struct mp_tiers *tiers);

/*
 * A window of `bytes`, mapped as a whole, the first units to the device as far as the budget goes.
 * MP_ERR_NO_SPACE: the budgets, or the memory that there is, do not cover it; nothing is kept.
 * MP_ERR_DEVICE and others: the driver refused something; nothing is kept.
 */
enum mp_status mp_tiers_reserve(struct mp_tiers *tiers, uint64_t bytes,
                                void **address_p) MP_MUST_CHECK;

/* Give the window that begins at this address back. False: there is none. */
bool mp_tiers_free(struct mp_tiers *tiers, const void *address);

/* Any window that lives. False: there is none. */
bool mp_tiers_find_window(struct mp_tiers *tiers, const void **address_p, uint64_t *bytes_p);

/* Does a window begin at the address, and how long is it? 0: none. */
bool mp_tiers_is_begin(struct mp_tiers *tiers, const void *address);
uint64_t mp_tiers_window_bytes(struct mp_tiers *tiers, const void *address);

/* Does the address lie in a window? Without a lock where it lies in none, mostly. */
bool mp_tiers_holds(struct mp_tiers *tiers, const void *address);

/*
 * The tier of the unit at `address`, and how many of `bytes` bytes from there can be copied in one
 * call: those in device units that follow one another, or in one host unit, as no copy may touch
 * two pieces of host memory. MP_TIER_KIND_COUNT: it lies in no window.
 */
enum mp_tier_kind mp_tiers_run(struct mp_tiers *tiers, const void *address, uint64_t bytes,
                               uint64_t *run_bytes_p);

/* From now on [address, +bytes) is this; a unit is worth what the most of it is. Elsewhere: no
 * effect. */
void mp_tiers_mark(struct mp_tiers *tiers, const void *address, uint64_t bytes,
                   enum mp_tiers_kind kind);

/* The units in the range stay where they are for good: something remembers what they are. */
void mp_tiers_pin(struct mp_tiers *tiers, const void *address, uint64_t bytes);

/* Work that was begun may touch the range. */
void mp_tiers_touch(struct mp_tiers *tiers, const void *address, uint64_t bytes);

/* Would mp_tiers_move() move something? A guess that costs nothing. */
bool mp_tiers_wants(const struct mp_tiers *tiers);

/* Swap up to `swaps_max` pairs of units, the most wanted first. Returns how many units moved. */
unsigned mp_tiers_move(struct mp_tiers *tiers, unsigned swaps_max);

/* Bytes of both budgets that no frame has. */
void mp_tiers_room(struct mp_tiers *tiers, uint64_t *device_bytes_p, uint64_t *host_bytes_p);

/* The device budget becomes smaller or larger by what the program takes without windows. */
void mp_tiers_set_device_budget(struct mp_tiers *tiers, uint64_t bytes);

void mp_tiers_get_stats(struct mp_tiers *tiers, struct mp_tiers_stats *stats);

/* Re-derive the equations of state; false is a bug of ours. */
bool mp_tiers_check(struct mp_tiers *tiers);

#endif
