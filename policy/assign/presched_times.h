#ifndef MP_POLICY_PRESCHED_H
#define MP_POLICY_PRESCHED_H

#include "policy/policy.h"
#include "vmm/base/arena.h"

/*
 * PreSched (PreScope, section 4.3): shared by assign and prefetch policy `presched`. Lists are in
 * descending order of tokens, so the loaded experts are always a prefix: the first of the list is
 * the paper's m_N.
 */
struct mp_presched_times {
    bool cpu; /* false: there is no helper, so every expert must be loaded */
    uint64_t cpu_fixed_ns, cpu_token_ns; /* s and t: c(n) = t * n + s (eq. 3) */
    uint64_t load_ns;                    /* T_io */
    uint64_t device_ns;                  /* T_g: of the expert with the most tokens */
    uint64_t layer_ns;                   /* T_a */
    uint64_t busy_ns;                    /* D: remaining time of loads in flight */
};

/* The times of a layer whose largest expert has `tokens`. False: costs are unknown. */
bool mp_presched_times(const struct mp_assign_facts *facts, uint32_t tokens,
                       struct mp_presched_times *times_p);

/* c(n) */
uint64_t mp_presched_cpu_ns(const struct mp_presched_times *times, uint32_t tokens);

/*
 * Q1, eq. 4: how many experts of the merged list tokens(count) must be loaded to the GPU: m_j is
 * one while D + (N - j + 1) * T_io + T_g < c(n_1) + ... + c(n_j). O(count): the left side rises as
 * j falls and the right side falls, so they cross once.
 */
uint32_t mp_presched_queue(const struct mp_presched_times *times, const uint32_t *tokens,
                           uint32_t count);

/*
 * Eq. 5, the recheck for the current layer alone: how many of the first `queued` of its
 * tokens(count) are loaded. The queue's entries for the current layer are dropped from the smallest
 * on, until loading takes less time than the CPU would need with one more.
 */
uint32_t mp_presched_recheck(const struct mp_presched_times *times, const uint32_t *tokens,
                             uint32_t count, uint32_t queued);

/* Q2: the time that the current layer leaves for prefetches, after `loads` demands; `compute_ns` is
 * its time outside attention. */
uint64_t mp_presched_gap_ns(const struct mp_presched_times *times, uint64_t compute_ns,
                            uint32_t loads);

/* Eq. 6: prefetches that fit into the gap, rounded half up, at most `members`. */
uint32_t mp_presched_fit(const struct mp_presched_times *times, uint64_t gap_ns, uint32_t members);

/* Q3, eq. 7: true if the last of `count` prefetches pays off, given that it is right with
 * probability `hit`. */
bool mp_presched_pays(const struct mp_presched_times *times, uint64_t gap_ns, uint32_t count,
                      double hit);

/*
 * The merged list of the absent experts of the current layer and of `next_count` absent ones of a
 * later layer, whose tokens are given in descending order of priority. Ties: the current layer
 * first, then the lower id. Each array has room for all of them.
 */
struct mp_presched_list {
    uint64_t *key;    // (2 * experts): scratch
    uint32_t *order;  // (2 * experts): scratch
    uint32_t *tokens; // (2 * experts): of the merged list
    uint8_t *is_next; // (2 * experts)
    uint32_t *index;  // (2 * experts): in facts->experts, or in the later layer's list
    uint32_t count;
};

/* Its arrays; called twice, before and after mp_arena_open(). */
void mp_presched_list_take(struct mp_presched_list *list, const struct mp_shape *shape,
                           struct mp_arena *arena);
void mp_presched_merge(struct mp_presched_list *list, const struct mp_assign_facts *facts,
                       const uint32_t *next_tokens, uint32_t next_count);

#endif
