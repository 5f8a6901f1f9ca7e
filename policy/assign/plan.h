#ifndef MP_POLICY_ASSIGN_PLAN_H
#define MP_POLICY_ASSIGN_PLAN_H

#include "policy/assign/times.h"

/*
 * Models the time of a layer from the costs of work (struct mp_costs), and makes a plan that
 * shortens it: for assign policy `cost`, and for policies that compare the cost of several sets of
 * residents.
 *
 * Processors and the link work in parallel. The home executor computes residents first, then loaded
 * experts as they arrive. Executors of one processor run one at a time; an executor that reads over
 * the link occupies that too. The link loads one expert after the other, after the transfers
 * already in flight. The hand-off of an executor precedes the first expert on its processor.
 */

/* The time at which the last processor is done if executors[i] computes expert i of the facts.
 * load_ns must be known. */
uint64_t mp_assign_span_ns(const struct mp_assign_facts *facts, const uint32_t *executors);

/*
 * Choose executors by measured times; returns the span. Absent experts are taken from both ends:
 * the one with most tokens for whoever but the helper finishes it first (ties: the first of the
 * list), after those on their way, soonest first; the one with fewest for the helper, whichever of
 * the two is done first. Then the helper takes residents with the fewest tokens as long as that
 * shortens the layer. If it is faster that the helper computes exactly the absent experts, that is
 * the plan; so the plan is never slower than assign policy `resident` with the same residents.
 * Executors of unknown cost are not used. scratch: order and key, each with room for the experts.
 * O(n log n + residents * loads).
 */
uint64_t mp_assign_plan(const struct mp_assign_facts *facts, struct mp_sorter *scratch,
                        uint32_t *executors);

#endif
