/*
 * DALI Alg. 1: experts in descending order of |t_gpu - t_cpu|; each goes to the side that would be
 * done sooner with it, the device on a tie. t_gpu is the longer of transfer and computing, since
 * both overlap (eq. 5-6), without transfer for residents (end of section 4.3).
 *
 * Departure: the printed algorithm ignores the memory bound, eq. 9. Here costs->transient is the
 * number of experts that can be in the device tier beside the residents that the layer uses; once
 * so many cold ones go to the device, the others go to the CPU. Ties in the order go to the lower
 * expert.
 */
#include "policy/assign/times.h"
#include "policy/builtins.h"

static enum mp_status greedy_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    (void)config;
    return mp_sorter_create(&mp_assign_greedy.info, shape, policy_p);
}

static void greedy_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                          uint32_t *executors)
{
    const uint32_t helper = mp_costs_helper(facts->costs);
    struct mp_sorter *self = (struct mp_sorter *)policy;
    const struct mp_costs *costs = facts->costs;
    uint64_t device_sum_ns = 0, cpu_sum_ns = 0;
    uint32_t loads = 0;

    mp_assign_all_home(facts, executors);
    if (!mp_assign_can_weigh(facts))
        return;
    mp_assign_sort_by_difference(self, facts);
    for (uint32_t n = 0; n < facts->count; n++) {
        const uint32_t i = self->order[n];
        const uint64_t device_ns = mp_assign_home_ns(facts, i);
        const uint64_t cpu_ns = mp_assign_helper_ns(costs, facts->tokens[i]);
        const bool cold = mp_assign_is_cold(facts, i);
        const bool full = cold && costs->transient > 0 && loads >= costs->transient;

        if (!full && device_sum_ns + device_ns <= cpu_sum_ns + cpu_ns) {
            device_sum_ns += device_ns;
            loads += cold;
        } else {
            cpu_sum_ns += cpu_ns;
            executors[i] = helper;
        }
    }
}

const struct mp_assign_ops mp_assign_greedy = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "greedy",
              .summary = "the clearest cases first, each to the side done sooner (DALI Alg. 1)",
              .costs = true },
    .create = greedy_create,
    .destroy = mp_policy_free,
    .assign = greedy_assign,
};
