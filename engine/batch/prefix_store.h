#ifndef MP_PREFIX_STORE_H
#define MP_PREFIX_STORE_H

#include <stdint.h>

#include "vmm/base/status.h"

/*
 * Beginnings of prompts whose keys and values are kept although no sequence holds them any more: a
 * table of blocks of MP_PREFIX_TOKENS tokens, found by a hash of the tokens and of the block before
 * them, and compared token by token. So a block stands for all tokens up to its end, and prompts
 * that begin alike share blocks. What a block's bytes are is the caller's.
 *
 * The blocks that were used longest ago leave when there is no room, last ones of a beginning
 * before its first ones. Beyond that a few more are remembered without their bytes, so that the
 * worth of a step more or less of memory is counted, not guessed: see struct mp_prefix_stats.
 *
 * A block that there is no memory for is not kept, which is no error. Thread safety: one thread at
 * a time.
 */
struct mp_prefix_store;

#define MP_PREFIX_TOKENS 16
#define MP_PREFIX_FAR_STEPS 16

/* Tokens in blocks that were asked for, since the creation. */
struct mp_prefix_stats {
    uint64_t blocks, bytes;  /* now */
    uint64_t found_tokens;   /* were there */
    uint64_t lost_tokens;    /* of them, would not have been with a step less of memory */
    uint64_t missing_tokens; /* were not there, but would have been with a step more */
    uint64_t far_tokens;     /* the same, with MP_PREFIX_FAR_STEPS steps more */
};

/* `block_bytes`, > 0, of each block; `step_bytes`: what the budget changes by at a time. */
enum mp_status mp_prefix_store_create(uint64_t block_bytes, uint64_t budget_bytes,
                                      uint64_t step_bytes,
                                      struct mp_prefix_store **store_p) MP_MUST_CHECK;

/* NULL is allowed. */
void mp_prefix_store_destroy(struct mp_prefix_store *store);

/* Frees blocks if it is less than before. */
void mp_prefix_store_set_budget(struct mp_prefix_store *store, uint64_t budget_bytes);

/* How many of these tokens are there, counted for the worth from `first` on. They are the last to
 * leave from now on. */
uint32_t mp_prefix_store_find(struct mp_prefix_store *store, const uint32_t *ids, uint32_t count,
                              uint32_t first);

/* Keep these tokens, as far as there is room: save() writes the block of the tokens from `first`
 * on. Incomplete blocks are not kept. */
void mp_prefix_store_keep(struct mp_prefix_store *store, const uint32_t *ids, uint32_t count,
                          void (*save)(void *ctx, uint32_t first, void *out), void *ctx);

/* Call restore() for the blocks that are there and have a token from `first` on. Returns where they
 * end; `first` if there is none. */
uint32_t mp_prefix_store_load(struct mp_prefix_store *store, const uint32_t *ids, uint32_t count,
                              uint32_t first,
                              void (*restore)(void *ctx, uint32_t first, const void *in),
                              void *ctx);

const struct mp_prefix_stats *mp_prefix_store_stats(const struct mp_prefix_store *store);

#endif
