#ifndef MP_INTERPOSE_SCORES_H
#define MP_INTERPOSE_SCORES_H

#include "interpose/pager/paged.h"

/*
 * What a later layer's router would say now: MP_SCORES_GATE (policy/policy.h). The router and the
 * norms lie in the program's mapping, and the input of the open layer in the program's memory while
 * its operation runs; both are read where they are. With `mutex` held.
 */

/* More tokens have no scores of their own: nearly all experts are then wanted anyway. */
#define MP_SCORES_TOKENS_MAX 16u

/* NULL: no router is known, or no memory is left; nothing is guessed then. */
struct mp_paged_scores *mp_paged_scores_create(const struct mp_paged *paged);
void mp_paged_scores_destroy(struct mp_paged_scores *scores);

/*
 * guess(tokens, experts) := the scores of `target` for what routing->input has. False: nobody can
 * say.
 */
bool mp_paged_scores_guess(struct mp_paged *paged, const struct mp_routing *routing,
                           uint32_t target, float *guess);

#endif
