#ifndef MP_POLICY_PRIORITY_H
#define MP_POLICY_PRIORITY_H

#include <math.h>

#include "policy/policy.h"
#include "vmm/base/arena.h"

/*
 * MoEpic's cache priority (eq. 4), as its logarithm: P = mu * rho^(nu / omega), where mu is how
 * often an expert was activated and nu how many tokens of its layer have passed since. An
 * activation is a load that was needed, so a batch counts once, whatever the number of its tokens
 * that chose the expert: else one prompt outweighs all that follows. Time is counted in tokens of
 * the layer; of a batch all tokens count as one moment, as their order is not given.
 *
 *     nu == 0 for every expert that the layer's latest batch activated
 */
struct mp_priority {
    uint32_t layers, experts, top_k;
    double fade;      /* decay of an expert's logarithm per (token, expert) pair of its layer */
    uint64_t *pairs;  // (layers): (token, expert) pairs so far, top_k for each token
    uint64_t *moment; // (layers): number of the latest batch
    uint64_t *seen;   // (ids): number of the batch that activated it last; 0: none
    uint64_t *since;  // (ids): pairs of the layer at the end of that batch, unless it is the latest
    uint64_t *count;  // (ids): mu
    double *log_count; // (ids)
};

/* Initialise without activations and without arrays. rho in (0, 1), omega >= 1. */
void mp_priority_init(struct mp_priority *priority, const struct mp_shape *shape, double rho,
                      double omega);

/* Its arrays; called twice, before and after mp_arena_open(). */
void mp_priority_take(struct mp_priority *priority, struct mp_arena *arena);

/* Count an activation of the expert, by `tokens` tokens of batch `moment` (>= 1, different for each
 * batch of the layer). At most one call per expert and batch. */
void mp_priority_access(struct mp_priority *priority, uint32_t id, uint32_t tokens,
                        uint64_t moment);

/* The logarithm of P; -infinity for an expert that was never activated. */
static inline double mp_priority_log(const struct mp_priority *priority, uint32_t id)
{
    const uint32_t layer = id / priority->experts;

    if (priority->count[id] == 0)
        return -INFINITY;
    if (priority->seen[id] == priority->moment[layer])
        return priority->log_count[id];
    return priority->log_count[id] -
           (double)(priority->pairs[layer] - priority->since[id]) * priority->fade;
}

#endif
