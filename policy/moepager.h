#ifndef MOEPAGER_H
#define MOEPAGER_H

/*
 * libmoepager: the pager of moepager for a program that has its own engine.
 *
 * The program says where in its model files each expert of each layer lies; the pager keeps as many
 * experts in memory as a budget allows and reads the others when they are needed or predicted. It
 * computes nothing and never changes a byte: for the time of a lease it hands out the address of
 * an expert's bytes as they stand in the file.
 *
 *     struct moepager_config config = MOEPAGER_CONFIG_INIT;
 *     ... files, shape, pieces, budget_bytes ...
 *     moepager_open(&config, &pager);
 *
 *     moepager_begin(pager, layer, experts, tokens, count);
 *     moepager_prefetch(pager, layer + 1, guessed, guessed_count);
 *     while (moepager_next(pager, &ready) == MOEPAGER_OK && ready.index != MOEPAGER_NONE) {
 *         ... compute expert experts[ready.index] with ready.pieces ...
 *         moepager_done(pager, ready.index);
 *     }
 *     moepager_end(pager);
 *
 *     moepager_close(pager);
 *
 * Resident experts come first, the others as they arrive. That order depends on timing, so a
 * program that needs reproducible results must sum in a fixed order. If a layer needs more experts
 * than the budget holds, they come in waves: hold as few leases as possible, and never wait for
 * another expert while holding all of them.
 *
 * A program with an event loop asks with moepager_try_next(), which never waits, and polls the
 * descriptor of moepager_event_fd(). A process may have many pagers, each with a budget of its own;
 * files of several may be the same.
 *
 * Memory is RAM ("host"); weights are read with io_uring and O_DIRECT where system and file system
 * allow it, else by threads or through the page cache. Of the environment, moepager_open() and
 * moepager_plan() read only the reader's variables (MOEPAGER_IO, MOEPAGER_IO_*, MOEPAGER_URING) and
 * the options of the chosen policies (MOEPAGER_<POLICY>_*).
 *
 * Errors: a failing function returns a status and sets a code and a sentence for the calling thread
 * (moepager_error_code(), moepager_error_text()). Nothing is printed, and the process is never
 * ended. Thread safety: one thread at a time per pager; different pagers are independent.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef MOEPAGER_API
#define MOEPAGER_API __attribute__((visibility("default")))
#endif

/* Values are never changed or reused; new ones may be added. */
enum moepager_status {
    MOEPAGER_OK = 0,
    MOEPAGER_ERR_INVALID = -1,   /* invalid argument or call */
    MOEPAGER_ERR_NO_SPACE = -2,  /* not enough memory in the tier */
    MOEPAGER_ERR_NO_MEMORY = -3, /* out of memory */
    MOEPAGER_ERR_DEVICE = -4,
    MOEPAGER_ERR_UNSUPPORTED = -5,
    MOEPAGER_ERR_BUSY = -6,   /* leases must be released first */
    MOEPAGER_ERR_IO = -7,     /* a file cannot be read, or changed */
    MOEPAGER_ERR_MODEL = -8,  /* pieces that do not fit their files */
    MOEPAGER_ERR_CONFIG = -9, /* budget, profile or policy */
    MOEPAGER_ERR_CANCELED = -10,
    MOEPAGER_ERR_OVERFLOW = -11,
    MOEPAGER_ERR_CLUSTER = -12
};

/* "0.2.0", say. Static. */
MOEPAGER_API const char *moepager_version(void);

/* A short sentence for any value. Static, never NULL. */
MOEPAGER_API const char *moepager_status_text(enum moepager_status status);

/*
 * Code and text of the calling thread's last failed call: a stable code such as "E_OPEN" (they are
 * listed in docs/errors.md) and one sentence. Empty strings if nothing failed yet. Valid until this
 * thread's next call.
 */
MOEPAGER_API const char *moepager_error_code(void);
MOEPAGER_API const char *moepager_error_text(void);

/* Warnings and errors of the library, one line each, from any thread; without it they are dropped.
 * level: 0 error, 1 warning. Call it before the first moepager_open(). NULL drops them again. */
MOEPAGER_API void moepager_set_log(void (*line)(void *ctx, int level, const char *text), void *ctx);

#define MOEPAGER_PIECES_MAX 4
#define MOEPAGER_NONE UINT32_MAX
#define MOEPAGER_PENDING (UINT32_MAX - 1)
#define MOEPAGER_BUDGET_ALL UINT64_MAX

/* A range of one file, such as an expert's gate, up or down rows. Any alignment. */
struct moepager_piece {
    uint32_t file; /* index in config.files */
    uint64_t offset_bytes;
    uint64_t bytes; /* > 0 */
};

struct moepager_config {
    size_t size; /* sizeof(struct moepager_config); other versions are refused */

    const char *const *files; /* (file_count): paths of regular files */
    uint32_t file_count;

    uint32_t layers;  /* MoE layers, 1..4096 */
    uint32_t experts; /* of a layer, 1..4096 */
    uint32_t top_k;   /* experts that one token uses in a layer, 1..experts */

    /* (layers, experts, pieces_per_expert): where each expert lies; with `slices`, (layers,
     * experts, slices, pieces_per_expert). Copied. */
    const struct moepager_piece *pieces;
    uint32_t pieces_per_expert; /* of a slice; 1..MOEPAGER_PIECES_MAX */

    uint64_t budget_bytes; /* of RAM for experts; MOEPAGER_BUDGET_ALL: room for all of them */

    /* Names as listed by `moepager info`; NULL: the default, or the profile's. */
    const char *profile, *admit, *evict, *partition;
    uint64_t seed;     /* of policies that choose at random */
    int deterministic; /* nonzero: order and evictions do not depend on the timing of reads */

    /* Parts in which an expert is read and kept, 1..16; 0 is the same as 1, whole experts. Parts of
     * equal size waste least memory. */
    uint32_t slices;
};

/* Zero but for `size`; budget_bytes must be set. */
#define MOEPAGER_CONFIG_INIT                                                        \
    {                                                                               \
        sizeof(struct moepager_config), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* The effect of a budget. */
struct moepager_plan {
    uint64_t expert_bytes;   /* of all experts, as in the files */
    uint64_t smallest_bytes; /* least budget that moepager_open() accepts: two slots for each size
                                of expert */
    uint64_t full_bytes;     /* budget at which every expert has a slot */
    uint32_t slots;          /* experts that config.budget_bytes holds at once */
};

/* Opens the files and checks everything that moepager_open() checks except the size of the budget;
 * leaves nothing open. If the budget is too small, slots is 0. */
MOEPAGER_API enum moepager_status moepager_plan(const struct moepager_config *config,
                                                struct moepager_plan *plan_p);

struct moepager;

/*
 * Open the files, allocate memory for `budget_bytes` of experts and start the reader. No expert is
 * read yet. MOEPAGER_ERR_CONFIG E_BUDGET_SMALL names budget and minimum. On failure nothing is
 * left.
 */
MOEPAGER_API enum moepager_status moepager_open(const struct moepager_config *config,
                                                struct moepager **pager_p);

/* Waits for reads in flight; open layers and leases end. NULL is allowed. */
MOEPAGER_API void moepager_close(struct moepager *pager);

/*
 * Open a layer and start to read missing experts. Does not block, except with `deterministic`,
 * which waits for prefetches.
 *
 * experts  (count): ascending, each at most once. Copied
 * tokens   (count): how many tokens of the batch use each expert, for the policies; NULL: one each
 *
 * MOEPAGER_ERR_INVALID: a layer is open, or a number is out of range.
 */
MOEPAGER_API enum moepager_status moepager_begin(struct moepager *pager, uint32_t layer,
                                                 const uint32_t *experts, const uint32_t *tokens,
                                                 uint32_t count);

struct moepager_ready {
    /* Index in the experts of moepager_begin(); with `slices`, times slices plus the slice; the
     * slices of an expert come in ascending order. MOEPAGER_NONE: all experts have been returned.
     */
    uint32_t index;
    const void *pieces[MOEPAGER_PIECES_MAX]; /* (pieces_per_expert); readable until done */
};

/*
 * Take a lease of the next expert whose bytes are complete; blocks until there is one.
 *
 * MOEPAGER_ERR_BUSY: all slots are leased; call moepager_done() for one of them first. After
 * another error (a file that cannot be read, or was changed), call moepager_abort() or try again.
 */
MOEPAGER_API enum moepager_status moepager_next(struct moepager *pager,
                                                struct moepager_ready *ready_p);

/*
 * The same without waiting: ready_p->index is MOEPAGER_PENDING if no expert can be leased now. One
 * can when a read has ended (moepager_event_fd()), or after moepager_done() if leases take all
 * room.
 */
MOEPAGER_API enum moepager_status moepager_try_next(struct moepager *pager,
                                                    struct moepager_ready *ready_p);

/*
 * A descriptor for poll() and the like, the same at every call: it becomes readable when a read of
 * this pager has ended, also of a prefetch, well or not. It is an eventfd that does not block: read
 * its 8 bytes, then call moepager_try_next() until nothing is ready, then poll. It belongs to the
 * pager, which closes it in moepager_close(). MOEPAGER_ERR_IO: the process has no descriptor left.
 */
MOEPAGER_API enum moepager_status moepager_event_fd(struct moepager *pager, int *fd_p);

/* End the lease of this index; its pieces are no longer used. MOEPAGER_ERR_INVALID: it has no
 * lease. */
MOEPAGER_API enum moepager_status moepager_done(struct moepager *pager, uint32_t index);

/* Close the layer. MOEPAGER_ERR_INVALID, without effect: not all experts have been returned by
 * moepager_next() and released. */
MOEPAGER_API enum moepager_status moepager_end(struct moepager *pager);

/* Close the layer whatever its state: leases end now. No effect if none is open. */
MOEPAGER_API void moepager_abort(struct moepager *pager);

/*
 * Prefetch experts that `layer` will probably need, likeliest first: they are read after all
 * demands, as far as there is room. A wrong prediction only costs time. MOEPAGER_ERR_INVALID,
 * without effect: a number is out of range.
 */
MOEPAGER_API enum moepager_status moepager_prefetch(struct moepager *pager, uint32_t layer,
                                                    const uint32_t *experts, uint32_t count);

/*
 * Change config.budget_bytes, in bytes, between two layers (MOEPAGER_BUDGET_ALL: room for all
 * experts): on the thread that uses the pager, with no layer open. Waits for reads in flight. If
 * experts must leave, the evict policy chooses them; others may move, so addresses change with the
 * next moepager_next().
 *
 * MOEPAGER_ERR_INVALID: a layer is open. MOEPAGER_ERR_CONFIG E_BUDGET_SMALL: below smallest_bytes
 * of the plan; in both cases nothing has changed. MOEPAGER_ERR_NO_SPACE: not enough memory; what
 * has been allocated so far is kept. The pager is usable after any error.
 */
MOEPAGER_API enum moepager_status moepager_set_budget(struct moepager *pager,
                                                      uint64_t budget_bytes);

/* Since moepager_open(), but for resident_bytes, which is now. */
struct moepager_counters {
    uint64_t hits, misses; /* experts that were, and were not, in memory when needed */
    uint64_t load_bytes, prefetch_bytes, prefetch_unused_bytes;
    uint64_t evictions;
    uint64_t exposed_wait_ns; /* time that moepager_next() was blocked */
    uint64_t resident_bytes, resident_peak_bytes;
};

MOEPAGER_API void moepager_get_counters(const struct moepager *pager,
                                        struct moepager_counters *counters_p);

/* Begin with MOEPAGER_STATISTICS_INIT. Later versions add members at the end. */
struct moepager_statistics {
    size_t size; /* sizeof(struct moepager_statistics) of the program */

    /* Since moepager_open(). */
    uint64_t hits, misses;
    uint64_t loads, load_bytes; /* on demand, and ahead */
    uint64_t prefetches, prefetches_used, prefetch_bytes, prefetch_unused_bytes;
    uint64_t evictions, evicted_bytes;
    uint64_t exposed_wait_ns;

    /* Now. */
    uint64_t budget_bytes; /* as set; MOEPAGER_BUDGET_ALL: all */
    uint64_t slots;        /* experts that it holds */
    uint64_t reading;      /* experts, or slices, being read or about to be */
    uint64_t resident_bytes, resident_peak_bytes;
    const char *reader; /* "io_uring" or "threads". Static */
};

#define MOEPAGER_STATISTICS_INIT                                                              \
    {                                                                                         \
        sizeof(struct moepager_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* Between layers. MOEPAGER_ERR_INVALID, without effect: no size, or a size beyond this library's.
 */
MOEPAGER_API enum moepager_status moepager_get_statistics(struct moepager *pager,
                                                          struct moepager_statistics *statistics_p);

#ifdef __cplusplus
}
#endif

#endif
