#ifndef MP_POLICY_ASSIGN_TIMES_H
#define MP_POLICY_ASSIGN_TIMES_H

#include "policy/policy.h"
#include "policy/sorter.h"

/*
 * The times by which assign policies compare the home executor (the device in the papers) with the
 * helper (their CPU): DALI eq. 4-6.
 */

/* True if the machine has a helper and its times and that of a load are known. Else there is
 * nothing to compare, and the home executor gets everything. */
static inline bool mp_assign_can_weigh(const struct mp_assign_facts *facts)
{
    const uint32_t helper = mp_costs_helper(facts->costs);

    return helper != MP_EXECUTOR_HOME && facts->costs->load_ns > 0 &&
           mp_executor_is_known(&facts->costs->executors[helper]);
}

/* Time of the helper, which must exist. */
static inline uint64_t mp_assign_helper_ns(const struct mp_costs *costs, uint32_t tokens)
{
    return mp_executor_ns(&costs->executors[mp_costs_helper(costs)], tokens);
}

/* Time of the home executor for what is resident. */
static inline uint64_t mp_assign_compute_ns(const struct mp_costs *costs, uint32_t tokens)
{
    return mp_executor_ns(&costs->executors[MP_EXECUTOR_HOME], tokens);
}

/* Expert i is absent, but its bytes are on their way. */
static inline bool mp_assign_is_coming(const struct mp_assign_facts *facts, uint32_t i)
{
    return !facts->resident[i] && facts->arrival_ns != NULL &&
           facts->arrival_ns[i] != MP_ARRIVAL_NEVER;
}

/* The home executor would have to load it. */
static inline bool mp_assign_is_cold(const struct mp_assign_facts *facts, uint32_t i)
{
    return !facts->resident[i] && !mp_assign_is_coming(facts, i);
}

/* Time until the home executor has its bytes, if nothing else is loaded. */
static inline uint64_t mp_assign_fetch_ns(const struct mp_assign_facts *facts, uint32_t i)
{
    if (facts->resident[i])
        return 0;
    return mp_assign_is_coming(facts, i) ? facts->arrival_ns[i] : facts->costs->load_ns;
}

/* t_gpu of DALI: a load and computation overlap, so the longer counts; a resident expert needs no
 * load, and one on its way the rest of it. */
static inline uint64_t mp_assign_home_ns(const struct mp_assign_facts *facts, uint32_t i)
{
    const uint64_t compute_ns = mp_assign_compute_ns(facts->costs, facts->tokens[i]);
    const uint64_t fetch_ns = mp_assign_fetch_ns(facts, i);

    return compute_ns > fetch_ns ? compute_ns : fetch_ns;
}

/* Everything to the home executor. */
static inline void mp_assign_all_home(const struct mp_assign_facts *facts, uint32_t *executors)
{
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = MP_EXECUTOR_HOME;
}

/* sorter->order := the experts of the facts by descending |t_gpu - t_cpu|: DALI Alg. 1, line 5. */
void mp_assign_sort_by_difference(struct mp_sorter *sorter, const struct mp_assign_facts *facts);

#endif
