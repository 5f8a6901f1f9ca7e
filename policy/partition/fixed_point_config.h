#ifndef MP_POLICY_FIXED_POINT_H
#define MP_POLICY_FIXED_POINT_H

#include "policy/policy.h"
#include "vmm/base/arena.h"

/*
 * MoEpic's cache configuration (section 3.4, eq. 5 to 11, Algorithm 1) as a function of counted
 * statistics, for partition policy `fixed-point` and its tests. All of a layer's experts are ranked
 * by cache priority just before a token updates it; a cache of C experts holds the ranks below C.
 */
struct mp_fixed_point {
    uint32_t layers, experts, top_k;
    uint32_t guesses;   /* number of predicted ranks that are counted, y = 1.. */
    uint32_t slices;    /* theta is a multiple of 1 / slices, 1.. */
    uint32_t fixed_top; /* theta * slices if given; 0: search */
    double load_ns, expert_ns, attention_ns; /* T_load, T_comp of one expert, T_comp of attention */

    uint64_t *tokens; // (layers): q, tokens whose activations were counted
    uint64_t *asked;  // (layers): q, tokens that had a prediction
    uint32_t *active; // (layers, experts): activations at each priority rank
    uint32_t *right;  // (layers, guesses): activations of the expert with the y-th best score
    uint32_t *held;   // (layers, guesses, experts): priority ranks of the expert with that score

    /* Sums of active and held over lower ranks, made by mp_fixed_point_sum(). */
    uint32_t *active_below; // (layers, experts + 1)
    uint32_t *held_below;   // (layers, guesses, experts + 1)
};

/* Initialise with zero counts and unknown times; called twice, before and after mp_arena_open(). */
void mp_fixed_point_take(struct mp_fixed_point *point, const struct mp_shape *shape,
                         uint32_t guesses, struct mp_arena *arena);

/* Compute the sums; after counting, before the two functions below. */
void mp_fixed_point_sum(struct mp_fixed_point *point);

/*
 * ExpertSplit: for budgets slots[l] the exposed loading time late_ns[l] and the split retained[l]
 * in slices that makes it smallest (eq. 11; ties: the larger part).
 */
void mp_fixed_point_split(const struct mp_fixed_point *point, const uint32_t *slots,
                          double *late_ns, uint32_t *retained);

/*
 * VramAllocation: move `step` slots at a time to the layer that gains most from the one that loses
 * least, as long as the sum of exposed times falls. Donors keep at least one slot, no layer gets
 * more than `experts`. scratch has room for 4 * layers doubles and 3 * layers numbers. Returns the
 * number of moves; slots[] keeps its sum.
 */
uint32_t mp_fixed_point_allocate(const struct mp_fixed_point *point, uint32_t step, uint32_t *slots,
                                 uint32_t *retained, double *late_scratch, uint32_t *slot_scratch);

#endif
