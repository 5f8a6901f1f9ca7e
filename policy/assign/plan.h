#ifndef MP_POLICY_ASSIGN_PLAN_H
#define MP_POLICY_ASSIGN_PLAN_H

#include "policy/assign/times.h"

/*
 * How long a layer takes by what work costs (struct mp_costs), and a plan that makes it short: of
 * assign policy `cost`, and of those who compare what several sets of residents would have cost.
 *
 * Three lanes work side by side. The device computes residents first, then what was loaded, as it
 * arrives, and reads in place, which also takes the link. The link loads one unit after the other,
 * behind what it does already. The CPU has a hand-off before its first expert.
 */

/* When the last lane is done if executors[i] computes expert i of the facts. load_ns is known. */
uint64_t mp_assign_span_ns(const struct mp_assign_facts *facts, const enum mp_executor *executors);

/*
 * Choose executors, by measured times; the result is the span. Absent experts, most tokens first,
 * go to whoever is done with them first (ties: the device, then in place, then the CPU); then the
 * CPU takes residents with fewest tokens as long as that shortens the layer; and if it is shorter
 * still that the CPU computes all that is absent and nothing else, that is the plan. So it is never
 * longer than what assign policy `resident` does with the same residents. Executors of unknown cost
 * are left out. scratch: order and key with room for the experts. O(n log n + residents * loads).
 */
uint64_t mp_assign_plan(const struct mp_assign_facts *facts, struct mp_sorter *scratch,
                        enum mp_executor *executors);

#endif
