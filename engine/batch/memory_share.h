#ifndef MP_MEMORY_SHARE_H
#define MP_MEMORY_SHARE_H

#include <stddef.h>

#include "engine/batch/batcher.h"

/*
 * One budget for experts, for prompts that are kept (prefix_store.h) and for keys and values of
 * sequences: every MP_SHARE_STEPS steps of the batcher one step of memory may move between the
 * first two, where by what was measured since the last look it saves more time there than it costs
 * here.
 *
 *     a kept token   time to compute a token of a prompt, times the tokens that were found in the
 *                    last step of memory, or would have been in one more; or of several more
 *                    their share, as prompts in turn are worth nothing until all have room
 *     an expert      time that compute waited per use of an expert that was not there, times the
 *                    uses of the least used residents, or of the most used others, that a step of
 *                    memory holds
 *
 * Nothing moves for a gain of less than a quarter.
 *
 * A job that waits for memory gets it in whole steps, from whichever of the two loses less, down to
 * the experts' smallest budget: at once if no job goes on, so that none waits for ever; else if
 * what was computed since the last look would, with one more sequence, have saved more time than
 * the bytes have. What no sequence needed between two looks goes back to whichever gains more; free
 * sequences have then given up what they hold, if they had no job since the last look.
 *
 *     experts + kept prompts + sequences == total, each within its budget at any time
 *
 * No output changes by a bit.
 *
 * Thread safety: one thread at a time, the engine's.
 */
struct mp_memory_share;

#define MP_SHARE_STEPS 64
#define MP_SHARE_PARTS 32 /* a step is such a part of all, or two experts where those are more */

struct mp_memory_share_config {
    struct mp_engine *engine;
    struct mp_batcher *batcher;
    const uint64_t *uses;                // (layers, experts): how often each was chosen, counted on
    uint64_t total_bytes;                /* for all three */
    uint64_t budget_bytes, kv_bytes;     /* of them, those of experts and sequences now */
    uint64_t smallest_bytes, full_bytes; /* of experts, as in struct mp_space_plan */
    uint64_t expert_bytes;               /* of all experts */
};

struct mp_memory_share_stats {
    uint64_t budget_bytes, prefix_bytes, kv_bytes;
    uint64_t to_experts, to_prefixes;      /* steps of memory that have moved between the two */
    uint64_t to_sequences, from_sequences; /* how often these got memory, and gave it back */
};

/* Nanoseconds that a step of memory would have saved, and those that its loss would have cost. */
struct mp_worth {
    double gain_ns, loss_ns;
};

/* What `total_bytes` divide a step into; also for struct mp_batcher_config. */
uint64_t mp_memory_share_step(uint64_t total_bytes, uint64_t one_expert_bytes);

enum mp_status mp_memory_share_create(const struct mp_memory_share_config *config,
                                      struct mp_memory_share **share_p) MP_MUST_CHECK;

/* NULL is allowed. */
void mp_memory_share_destroy(struct mp_memory_share *share);

/* After a step of the batcher. An error is that of mp_engine_set_budget(); then nothing moves any
 * more by worth, and if no job runs, one that waits for memory ends with it. */
enum mp_status mp_memory_share_look(struct mp_memory_share *share) MP_MUST_CHECK;

/* Experts get `budget_bytes`, prompts the rest, and sequences keep what they have or, if that is
 * too much, what they need; from there on it goes on as before. MP_ERR_CONFIG E_REQUEST: more than
 * there is; else as mp_engine_set_budget(). */
enum mp_status mp_memory_share_set(struct mp_memory_share *share,
                                   uint64_t budget_bytes) MP_MUST_CHECK;

const struct mp_memory_share_stats *mp_memory_share_stats(const struct mp_memory_share *share);

/*
 * The worth of `step` experts of `count`, of which each was used so often and is resident or not,
 * where a use of one that is not costs `ns`. uses(count) is sorted by the way.
 */
struct mp_expert_use {
    uint64_t uses;
    bool resident;
};
struct mp_worth mp_worth_of_experts(struct mp_expert_use *uses, size_t count, size_t step,
                                    double ns);

/* 1: a step of memory goes to experts, -1: to prompts, 0: nowhere. */
int mp_memory_share_decide(const struct mp_worth *experts, const struct mp_worth *prefixes);

#endif
