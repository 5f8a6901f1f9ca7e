#ifndef MP_POLICY_CANDIDATES_H
#define MP_POLICY_CANDIDATES_H

#include "policy/policy.h"
#include "vmm/base/arena.h"

/*
 * Candidates for prefetching: experts with high predicted scores, counted over the tokens of a
 * batch and sorted.
 */
struct mp_candidate {
    uint32_t expert, tokens;
    float score; /* sum over the tokens that count it */
};

struct mp_candidates {
    struct mp_candidate *list; // (experts)
    uint32_t *best;            // (experts): scratch, one token's ranks
    float *best_score;         // (experts)
};

#define MP_MARGIN_NONE (-1.0f)

/* Its arrays; called twice, before and after mp_arena_open(). */
void mp_candidates_take(struct mp_candidates *set, const struct mp_shape *shape,
                        struct mp_arena *arena);

/*
 * set->list := the experts that are among the `ranks` best of at least one token, those of most
 * tokens first, then by the sum of their scores, then by id. Returns how many.
 *
 * With a margin >= 0 a token counts only those of its `ranks` best whose score exceeds
 * (1 + margin) times that of the next rank; with ranks == facts->experts, where there is no next
 * rank, all of them.
 */
uint32_t mp_candidates_gather(struct mp_candidates *set, const struct mp_prefetch_facts *facts,
                              uint32_t ranks, float margin);

#endif
