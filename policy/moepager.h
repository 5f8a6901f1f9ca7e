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
 * Experts that are in memory come first, the others as they arrive; which comes when depends on
 * timing, so a program that wants equal results every time sums in an order of its own. With more
 * experts than the budget holds they come in waves: keep no more leases than needed, and never wait
 * for another one while holding them all.
 *
 * Memory is RAM ("host"); weights are read with io_uring past the page cache where system and file
 * system allow it, with threads and through it where not. Of the environment moepager_open() and
 * moepager_plan() look at the reader's variables (MOEPAGER_IO, MOEPAGER_IO_*, MOEPAGER_URING) and
 * at the options of the chosen policies (MOEPAGER_<POLICY>_*), and at nothing else.
 *
 * Errors: a function that fails says so by its result and leaves a code and a sentence for the
 * calling thread (moepager_error_code(), moepager_error_text()). Nothing is printed, and the
 * process is never ended. Thread safety: one thread at a time per pager; different pagers are
 * independent.
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
    MOEPAGER_ERR_INVALID = -1,   /* called wrongly */
    MOEPAGER_ERR_NO_SPACE = -2,  /* the memory tier cannot give that much */
    MOEPAGER_ERR_NO_MEMORY = -3, /* out of memory */
    MOEPAGER_ERR_DEVICE = -4,
    MOEPAGER_ERR_UNSUPPORTED = -5,
    MOEPAGER_ERR_BUSY = -6,   /* leases must be given back first */
    MOEPAGER_ERR_IO = -7,     /* a file cannot be read, or changed */
    MOEPAGER_ERR_MODEL = -8,  /* pieces that do not fit their files */
    MOEPAGER_ERR_CONFIG = -9, /* budget, profile or policy */
    MOEPAGER_ERR_CANCELED = -10,
    MOEPAGER_ERR_OVERFLOW = -11
};

/* "0.1.0". Static. */
MOEPAGER_API const char *moepager_version(void);

/* A short sentence for any value. Static, never NULL. */
MOEPAGER_API const char *moepager_status_text(enum moepager_status status);

/*
 * What the calling thread's last failing call said: a stable code such as "E_OPEN" (they are
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
#define MOEPAGER_BUDGET_ALL UINT64_MAX

/* A range of one file: an expert's gate, up or down rows, say. Any alignment. */
struct moepager_piece {
    uint32_t file; /* index in config.files */
    uint64_t offset_bytes;
    uint64_t bytes; /* > 0 */
};

struct moepager_config {
    size_t size; /* sizeof(struct moepager_config): one of another version is refused */

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

    /* Names as `moepager info` lists them; NULL: the default, or what the profile says. */
    const char *profile, *admit, *evict, *partition;
    uint64_t seed;     /* of policies that choose at random */
    int deterministic; /* nonzero: order and evictions do not depend on the timing of reads */

    /* Parts that an expert is read and kept in, 1..16; 0: whole, as with 1. Equal sizes serve best.
     */
    uint32_t slices;
};

/* Zero but for `size`; budget_bytes must be set. */
#define MOEPAGER_CONFIG_INIT                                                        \
    {                                                                               \
        sizeof(struct moepager_config), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* What a budget would mean. */
struct moepager_plan {
    uint64_t expert_bytes;   /* of all experts, as in the files */
    uint64_t smallest_bytes; /* least budget that moepager_open() accepts: two of the largest slots
                                for each size of expert */
    uint64_t full_bytes;     /* budget at which every expert has its place */
    uint32_t slots;          /* experts that config.budget_bytes holds at once */
};

/* Opens the files and checks everything that moepager_open() checks but the budget's size; keeps
 * nothing. With a budget that is too small, slots is 0. */
MOEPAGER_API enum moepager_status moepager_plan(const struct moepager_config *config,
                                                struct moepager_plan *plan_p);

struct moepager;

/*
 * Open the files, make room for `budget_bytes` of experts and start the reader. Expert bytes are
 * not read yet. MOEPAGER_ERR_CONFIG E_BUDGET_SMALL names both numbers. On failure nothing is kept.
 */
MOEPAGER_API enum moepager_status moepager_open(const struct moepager_config *config,
                                                struct moepager **pager_p);

/* Waits for reads in flight; open layers and leases end. NULL is allowed. */
MOEPAGER_API void moepager_close(struct moepager *pager);

/*
 * Open a layer and start to read what is missing. Does not wait, unless `deterministic`, then for
 * prefetches.
 *
 * experts  (count): ascending, each once. Copied
 * tokens   (count): how many tokens of the batch use each expert, for the policies; NULL: one each
 *
 * MOEPAGER_ERR_INVALID: a layer is open, or a number is out of range.
 */
MOEPAGER_API enum moepager_status moepager_begin(struct moepager *pager, uint32_t layer,
                                                 const uint32_t *experts, const uint32_t *tokens,
                                                 uint32_t count);

struct moepager_ready {
    /* In the experts of moepager_begin(), with `slices` times slices plus the slice; those of an
     * expert come in ascending order. MOEPAGER_NONE: all were handed out. */
    uint32_t index;
    const void *pieces[MOEPAGER_PIECES_MAX]; /* (pieces_per_expert); readable until done */
};

/*
 * The next expert whose bytes are complete; waits until there is one.
 *
 * MOEPAGER_ERR_BUSY: none can come before moepager_done() is called for one that was handed out.
 * Another error (a file that cannot be read, or was changed): give up with moepager_abort(), or
 * call again to try again.
 */
MOEPAGER_API enum moepager_status moepager_next(struct moepager *pager,
                                                struct moepager_ready *ready_p);

/* The program no longer uses the pieces of this index. MOEPAGER_ERR_INVALID: it is not handed out.
 */
MOEPAGER_API enum moepager_status moepager_done(struct moepager *pager, uint32_t index);

/* Close the layer. MOEPAGER_ERR_INVALID, and nothing happens, before all experts were handed out
 * and given back. */
MOEPAGER_API enum moepager_status moepager_end(struct moepager *pager);

/* Close the layer whatever its state: leases end now. No effect if none is open. */
MOEPAGER_API void moepager_abort(struct moepager *pager);

/*
 * Experts that `layer` will probably need, likeliest first: they are read behind everything that
 * is needed, as far as there is room. A guess costs time at worst. Numbers out of range are
 * MOEPAGER_ERR_INVALID and nothing happens.
 */
MOEPAGER_API enum moepager_status moepager_prefetch(struct moepager *pager, uint32_t layer,
                                                    const uint32_t *experts, uint32_t count);

/*
 * Change config.budget_bytes, in bytes, between two layers (MOEPAGER_BUDGET_ALL: room for all
 * experts): on the thread that uses the pager, with no layer open. Waits for reads in flight.
 * Experts that lose their room leave by the evict policy, others may move: addresses are those of
 * the next moepager_next().
 *
 * MOEPAGER_ERR_INVALID: a layer is open. MOEPAGER_ERR_CONFIG E_BUDGET_SMALL: below smallest_bytes
 * of the plan; in both cases nothing has changed. MOEPAGER_ERR_NO_SPACE: memory for so much cannot
 * be had; what was had is kept. The pager can be used after any error.
 */
MOEPAGER_API enum moepager_status moepager_set_budget(struct moepager *pager,
                                                      uint64_t budget_bytes);

/* Since moepager_open(), but for resident_bytes, which is now. */
struct moepager_counters {
    uint64_t hits, misses; /* experts that were, and were not, in memory when needed */
    uint64_t load_bytes, prefetch_bytes, prefetch_unused_bytes;
    uint64_t evictions;
    uint64_t exposed_wait_ns; /* time that moepager_next() stood still */
    uint64_t resident_bytes, resident_peak_bytes;
};

MOEPAGER_API void moepager_get_counters(const struct moepager *pager,
                                        struct moepager_counters *counters_p);

#ifdef __cplusplus
}
#endif

#endif
