#ifndef MP_POLICY_ASSIGN_TIMES_H
#define MP_POLICY_ASSIGN_TIMES_H

#include "policy/policy.h"
#include "policy/sorter.h"

/*
 * The times by which assign policies weigh the device against the CPU (DALI eq. 4-6).
 */

/* Does the machine have a CPU executor, and are its times and that of a load known? If not there is
 * nothing to weigh, and everything goes to the device. */
static inline bool mp_assign_can_weigh(const struct mp_assign_facts *facts)
{
    const struct mp_costs *costs = facts->costs;

    return (facts->executors & 1u << MP_EXECUTOR_CPU) && costs->load_ns > 0 &&
           (costs->cpu_fixed_ns > 0 || costs->cpu_token_ns > 0);
}

static inline uint64_t mp_assign_cpu_ns(const struct mp_costs *costs, uint32_t tokens)
{
    return costs->cpu_fixed_ns + costs->cpu_token_ns * tokens;
}

static inline uint64_t mp_assign_compute_ns(const struct mp_costs *costs, uint32_t tokens)
{
    return costs->device_fixed_ns + costs->device_token_ns * tokens;
}

/* t_gpu of DALI: loads and computing overlap, so the longer of both counts; a resident expert has
 * no transfer. */
static inline uint64_t mp_assign_device_ns(const struct mp_costs *costs, uint32_t tokens,
                                           bool resident)
{
    const uint64_t compute_ns = mp_assign_compute_ns(costs, tokens);

    return resident || compute_ns > costs->load_ns ? compute_ns : costs->load_ns;
}

static inline void mp_assign_all(const struct mp_assign_facts *facts, enum mp_executor executor,
                                 enum mp_executor *executors)
{
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = executor;
}

/* sorter->order := the experts of the facts by descending |t_gpu - t_cpu|: DALI Alg. 1, line 5. */
void mp_assign_sort_by_difference(struct mp_sorter *sorter, const struct mp_assign_facts *facts);

#endif
