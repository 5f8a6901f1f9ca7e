#ifndef MP_POLICY_TOP_K_H
#define MP_POLICY_TOP_K_H

#include "policy/policy.h"

/*
 * The k highest of a list of scores, best first; equal ones go to the lower number, so that the
 * result never depends on the order of a sort. Pure functions, for policies, the step and the
 * engine.
 *
 * chosen(k), best(k) := numbers and scores. k <= count.
 */
void mp_top_k(const float *scores, uint32_t count, uint32_t k, uint32_t *chosen, float *best);

/* The same for each token of a batch, (tokens, k): the result of route policy `exact`, and the
 * step's replacement for an invalid decision of a route policy. */
void mp_route_top_k(const struct mp_route_facts *facts, uint32_t *experts, float *weights);

#endif
