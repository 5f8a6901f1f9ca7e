#ifndef MP_SPACE_H
#define MP_SPACE_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/backend/backend.h"
#include "vmm/base/clock.h"
#include "vmm/io/file.h"
#include "vmm/io/reader.h"
#include "vmm/output/counters.h"
#include "vmm/output/timeline.h"
#include "vmm/space/residency.h"

/*
 * A space is the set of all units of a model: which bytes each consists of, where those bytes are
 * now, and operations that move them. It is mechanism: it never chooses what to load or evict. A
 * full tier returns MP_ERR_NO_SPACE.
 *
 * A unit is filled from pieces, ranges of files (gate, up and down of an expert, say). Pieces that
 * touch or overlap after alignment become one extent. In the `file` layout with direct reads a slot
 * holds the aligned superset of each extent, so that the device writes where compute reads; with
 * buffered reads the pieces follow one another, each on a 64-byte boundary.
 *
 * Thread safety: one thread at a time (the pager's), except where stated. Effects of the reader's
 * threads become visible only in mp_space_poll() and mp_space_wait().
 */
struct mp_space;

#define MP_UNIT_PIECES_MAX 4
#define MP_SPACE_PAGE_BYTES 4096

struct mp_piece {
    uint32_t file; /* index in the mp_files */
    uint64_t offset_bytes;
    uint64_t bytes; /* > 0 */
};

struct mp_unit {
    struct mp_piece pieces[MP_UNIT_PIECES_MAX];
    uint32_t piece_count; /* >= 1 */
};

/*
 * The host tier, on backends whose device tier cannot be filled from files: slots in host frames,
 * from which units are copied over a link. Units that it cannot hold are read from their files
 * through a few slots reserved for that (three tiers).
 */
enum mp_host_residency {
    MP_HOST_INCLUSIVE, /* units in the device tier are in the host tier too: eviction costs nothing
                        */
    MP_HOST_EXCLUSIVE, /* each unit is in one of the two: eviction copies it back, or drops it */
    MP_HOST_RESIDENCY_COUNT
};

/* How compute finds a unit in the device tier. */
enum mp_addressing {
    MP_ADDRESSING_TABLE,  /* at its slot, which changes when it is loaded again */
    MP_ADDRESSING_WINDOW, /* at a fixed address of its own, mapped while it is resident */
    MP_ADDRESSING_COUNT
};

struct mp_space_config {
    struct mp_backend *backend;  /* must outlive the space */
    struct mp_files *files;      /* must outlive the space */
    const struct mp_unit *units; /* copied */
    uint32_t unit_count;
    uint64_t budget_bytes; /* of the device tier; UINT64_MAX: room for every unit */
    /* Without caps.file_target only: */
    uint64_t host_budget_bytes; /* of the host tier; UINT64_MAX: as much as needed */
    enum mp_host_residency host_residency;
    enum mp_addressing addressing; /* window: falls back to table, with one warning, where a frame
                                      per unit would waste more than 15 % */
    enum mp_io_mode io_mode;
    bool populate;              /* pre-fault the frames of a backend that the CPU writes to */
    const struct mp_spin *spin; /* of waits for copies to the device tier; NULL: asleep */

    /*
     * For a client that maps the pages of a slot elsewhere. Units then have the same page offsets
     * (MP_SPACE_PAGE_BYTES) in their slots as in their files, and each page that a piece touches is
     * read completely, up to the end of the file. Slots keep their addresses; mp_space_set_budget()
     * is MP_ERR_INVALID. Not with a host tier.
     */
    bool whole_pages;

    /* Read the pieces of a unit in the order in which it names them, and the first ones of all
     * demands before the second ones, for a client that uses each when it is there
     * (mp_space_piece()). Only with whole_pages. */
    bool by_piece;

    /* Called before a unit loses its slot, because mp_space_evict() evicts it or its read has
     * failed; on the pager's thread; it must not call the pager. False: its pages are still in use.
     * Then mp_space_evict() returns MP_ERR_BUSY; after a read that failed, with the slot free,
     * nothing is loaded any more. Or NULL. */
    bool (*leaving)(void *ctx, uint32_t unit);
    void *leaving_ctx;

    struct mp_reader_config reader; /* files, clock and timeline are filled in by the space */
    struct mp_clock *clock;
    struct mp_timeline *timeline; /* or NULL */
    struct mp_counters *counters; /* loads, evictions, reads and resident bytes are counted here;
                                     or NULL */
};

/* The effect of a budget, computed without allocating anything. */
struct mp_space_plan {
    uint64_t unit_bytes;     /* of all units, as in the files */
    uint64_t smallest_bytes; /* least budget that is accepted */
    uint64_t full_bytes;     /* budget at which every unit has a slot */
    uint64_t slot_bytes_max;
    uint32_t slots; /* with this budget */
    bool direct;    /* reads bypass the page cache */
    /* Without caps.file_target only, else 0: */
    uint64_t host_bytes;   /* of host frames */
    uint32_t host_slots;   /* of them, for retained units; not those that units pass through */
    uint64_t waste_bytes;  /* of the device tier's frames, lost to rounding up to granules */
    uint64_t window_bytes; /* reserved; 0: table */
};

enum mp_status mp_space_make_plan(const struct mp_space_config *config,
                                  struct mp_space_plan *plan_p) MP_MUST_CHECK;

/*
 * Create the device tier and the reader. All pieces are checked against the sizes of their files.
 * MP_ERR_CONFIG E_BUDGET_SMALL names budget and minimum. On failure nothing is left.
 */
enum mp_status mp_space_create(const struct mp_space_config *config,
                               struct mp_space **space_p) MP_MUST_CHECK;

/* Waits for reads in flight. No unit may be leased. NULL is allowed. */
void mp_space_destroy(struct mp_space *space);

/* Facts. */
uint32_t mp_space_unit_count(const struct mp_space *space);
uint64_t mp_space_unit_bytes(const struct mp_space *space, uint32_t unit); /* sum of its pieces */
uint32_t mp_space_unit_class(const struct mp_space *space, uint32_t unit);
uint32_t mp_space_class_count(const struct mp_space *space);
uint32_t mp_space_class_slots(const struct mp_space *space, uint32_t class_index); /* for tests */
uint32_t mp_space_class_free(const struct mp_space *space, uint32_t class_index);
enum mp_res_state mp_space_state(const struct mp_space *space, uint32_t unit);
uint32_t mp_space_leases(const struct mp_space *space, uint32_t unit);
void mp_space_get_plan(const struct mp_space *space, struct mp_space_plan *plan_p);
const char *mp_space_reader_engine(const struct mp_space *space);
bool mp_space_reader_idle(const struct mp_space *space);

/*
 * ABSENT or FAILED -> FILLING: take a slot and submit the read. Returns at once, but waits for a
 * unit that is being copied down (DRAINING). MP_ERR_NO_SPACE: no slot of its class is free; nothing
 * changed (no error text). MP_ERR_INVALID: it is already filling or valid.
 */
enum mp_status mp_space_load(struct mp_space *space, uint32_t unit,
                             enum mp_priority priority) MP_MUST_CHECK;

/*
 * ABSENT or FAILED -> VALID: take a slot and copy the unit's pieces, which follow one another in
 * `bytes`, into it, instead of reading them. Statuses as mp_space_load(); MP_ERR_UNSUPPORTED (no
 * text): there is a host tier, or a client that uses whole pages.
 */
enum mp_status mp_space_put(struct mp_space *space, uint32_t unit, const void *bytes) MP_MUST_CHECK;

/* The pieces of a VALID unit, one after the other. False: it is not VALID, or the CPU may not read
 * it where it is. */
bool mp_space_get(struct mp_space *space, uint32_t unit, void *bytes);

/* To be called before computing: see mp_reader_push(). No effect over a link. */
void mp_space_push(struct mp_space *space);

/* Turn a prefetch that is FILLING into a demand. No effect in other states. */
void mp_space_promote(struct mp_space *space, uint32_t unit);

/* FILLING and not started -> ABSENT. MP_ERR_BUSY: it has started and will finish. */
enum mp_status mp_space_cancel(struct mp_space *space, uint32_t unit) MP_MUST_CHECK;

/*
 * Process the end of a read of this unit, without blocking: FILLING -> VALID or FAILED. Returns the
 * state afterwards.
 */
enum mp_res_state mp_space_poll(struct mp_space *space, uint32_t unit);

/*
 * Block until the unit is no longer FILLING. MP_OK: it is VALID. Otherwise the read's own error
 * (file, byte, reason), the unit is FAILED and its slot is free again.
 */
enum mp_status mp_space_wait(struct mp_space *space, uint32_t unit) MP_MUST_CHECK;

/*
 * Block until one of the units is not FILLING and return its index in the list. count >= 1; no unit
 * occurs twice. Ends early, with `count`, when the interrupt is ready (vmm/io/reader.h); NULL: no
 * interrupt. mp_space_wake(), from any thread, makes it be evaluated again.
 */
uint32_t mp_space_wait_any(struct mp_space *space, const uint32_t *units, uint32_t count,
                           const struct mp_interrupt *interrupt);
void mp_space_wake(struct mp_space *space);
/* See mp_reader_tell(). */
void mp_space_tell(struct mp_space *space, int event_fd);

/*
 * Where piece `k` of a unit is, if its bytes are there, which may be before the unit is VALID;
 * NULL: they are not, or there is a host tier. Valid until the unit is evicted, or its read fails,
 * which config.leaving hears of. For an interrupt, too.
 */
const void *mp_space_piece(const struct mp_space *space, uint32_t unit, uint32_t k);

/* Duration of the read of a VALID unit, from its first byte to its last; with a host tier, what its
 * copy took of the link. */
uint64_t mp_space_read_ns(const struct mp_space *space, uint32_t unit);

/* The error of a FAILED unit, until it is loaded again. */
const struct mp_error *mp_space_unit_error(const struct mp_space *space, uint32_t unit);

/* VALID and not leased -> ABSENT; the slot is free. MP_ERR_BUSY if leased or filling, or if
 * config.leaving returns false. */
enum mp_status mp_space_evict(struct mp_space *space, uint32_t unit) MP_MUST_CHECK;

/*
 * Take a lease of a VALID unit: its pieces are readable at the addresses in piece_p[0..piece_count)
 * (any byte alignment) until the lease is released. MP_ERR_INVALID if it is not valid.
 */
enum mp_status mp_space_lease(struct mp_space *space, uint32_t unit,
                              const void *piece_p[MP_UNIT_PIECES_MAX]) MP_MUST_CHECK;
void mp_space_release(struct mp_space *space, uint32_t unit);

/*
 * Take a lease of a unit in the host tier: its pieces are readable at these addresses, by the CPU
 * and by the device over its link, until mp_space_release_host(). MP_ERR_NO_SPACE (no text): the
 * host tier does not hold it, or there is none. A unit with such a lease does not leave the host
 * tier.
 */
enum mp_status mp_space_lease_host(struct mp_space *space, uint32_t unit,
                                   const void *piece_p[MP_UNIT_PIECES_MAX]) MP_MUST_CHECK;
void mp_space_release_host(struct mp_space *space, uint32_t unit);

/* True if the unit is in the host tier, so that mp_space_lease_host() would succeed. For tests, in
 * which a lease would change the state under test. */
bool mp_space_in_host(const struct mp_space *space, uint32_t unit);

/* Block until the initial filling of the host tier has ended; for measurements. */
void mp_space_wait_filled(struct mp_space *space);

/*
 * Release whole frames of the device tier, or allocate them again, until they fit into
 * `budget_bytes`. Residents stay resident, but units without a lease may move to other slots; their
 * addresses change. May wait for copies in flight.
 *
 * MP_ERR_INVALID: with config.whole_pages. MP_ERR_NO_SPACE, without text, and *evict_p > 0: evict
 * *evict_p more units of class *class_p and call again. MP_ERR_BUSY, without text: every frame that
 * could be released or merged with another has a unit that is leased or being filled; call again
 * later. MP_ERR_CONFIG E_BUDGET_SMALL: below the smallest budget. MP_ERR_NO_SPACE with *evict_p ==
 * 0: the device has no more memory; frames allocated so far are kept. After any other error there
 * may be fewer or more frames than before, in a consistent state.
 */
enum mp_status mp_space_set_budget(struct mp_space *space, uint64_t budget_bytes, uint32_t *class_p,
                                   uint32_t *evict_p) MP_MUST_CHECK;

/*
 * Changes whenever a unit takes, loses or changes its slot, and when all of its bytes have arrived.
 * While it is unchanged, so are mp_space_state() and the leased addresses of all units.
 */
uint64_t mp_space_generation(const struct mp_space *space);

/* Bytes of the device tier's frames now. */
uint64_t mp_space_frame_bytes(const struct mp_space *space);

/* Bytes of addresses and memory that could not be returned to the driver and are never reused:
 * places in windows, and lost frames of the backend. */
uint64_t mp_space_lost_bytes(const struct mp_space *space);

/* Check invariants by recomputing counts and states. For tests. */
bool mp_space_check(const struct mp_space *space);

#endif
