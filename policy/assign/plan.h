#ifndef MP_POLICY_ASSIGN_PLAN_H
#define MP_POLICY_ASSIGN_PLAN_H

#include "policy/assign/times.h"

/*
 * How long a layer takes by what work costs (struct mp_costs), and a plan that makes it short: of
 * assign policy `cost`, and of those who compare what several sets of residents would have cost.
 *
 * Processors and the link work side by side. The home executor computes residents first, then what
 * was loaded, as it arrives; executors of one processor take turns, and one that reads over the
 * link takes that, too. The link loads one expert after the other, behind what it does already. An
 * executor has its hand-off before its processor's first expert.
 */

/* When the last processor is done if executors[i] computes expert i of the facts. load_ns is known.
 */
uint64_t mp_assign_span_ns(const struct mp_assign_facts *facts, const uint32_t *executors);

/*
 * Choose executors, by measured times; the result is the span. Absent experts, most tokens first,
 * go to whoever is done with them first (ties: the first of the list); then the helper takes
 * residents with fewest tokens as long as that shortens the layer; and if it is shorter still that
 * the helper computes all that is absent and nothing else, that is the plan. So it is never longer
 * than what assign policy `resident` does with the same residents. Executors of unknown cost are
 * left out. scratch: order and key with room for the experts. O(n log n + residents * loads).
 */
uint64_t mp_assign_plan(const struct mp_assign_facts *facts, struct mp_sorter *scratch,
                        uint32_t *executors);

#endif
