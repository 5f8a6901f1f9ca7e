/*
 * Earliest finish, from what work costs on this machine (mp_costs, which the client measures again
 * while running): experts in descending order of tokens go, one by one, to whoever would be done
 * with them first, counting what each has been given already. A resident expert is the device's or
 * the CPU's; an absent one may also be loaded, behind the loads before it, or read in place over
 * the link. Ties: the device, then in place, then the CPU.
 *
 * Ours; it is list scheduling in order of longest work first. Costs that are not known leave their
 * executor out; if that of a load is not known, everything goes to the device.
 * O(experts * log experts).
 */
#include "policy/builtins.h"

#include "policy/assign_times.h"
#include "policy/sorter.h"

static enum mp_status cost_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    (void)config;
    return mp_sorter_create(&mp_assign_cost.info, shape, sizeof(struct mp_sorter), policy_p);
}

/* When each is free again. */
struct lanes {
    uint64_t device, link, cpu;
};

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The lanes after `executor` has done the expert; *end_p is when it is done. */
static struct lanes after(struct lanes lanes, const struct mp_assign_facts *facts, uint32_t i,
                          enum mp_executor executor, uint64_t *end_p)
{
    const struct mp_costs *costs = facts->costs;
    const uint32_t tokens = facts->tokens[i];

    switch (executor) {
    case MP_EXECUTOR_CPU: *end_p = lanes.cpu += mp_assign_cpu_ns(costs, tokens); break;
    case MP_EXECUTOR_IN_PLACE:
        *end_p = later(lanes.device, lanes.link) + costs->in_place_fixed_ns +
                 costs->in_place_token_ns * tokens;
        lanes.device = lanes.link = *end_p;
        break;
    default:
        if (!facts->resident[i])
            lanes.device = later(lanes.device, lanes.link += costs->load_ns);
        *end_p = lanes.device += mp_assign_compute_ns(costs, tokens);
        break;
    }
    return lanes;
}

static void cost_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                        enum mp_executor *executors)
{
    struct mp_sorter *sorter = (struct mp_sorter *)policy;
    const struct mp_costs *costs = facts->costs;
    const bool in_place = (facts->executors & 1u << MP_EXECUTOR_IN_PLACE) &&
                          (costs->in_place_fixed_ns > 0 || costs->in_place_token_ns > 0);
    const bool cpu = mp_assign_can_weigh(facts);
    struct lanes lanes = { .link = facts->link_busy_ns };

    mp_assign_all(facts, MP_EXECUTOR_DEVICE, executors);
    if (costs->load_ns == 0)
        return;
    for (uint32_t i = 0; i < facts->count; i++)
        sorter->key[i] = facts->tokens[i];
    mp_sorter_sort(sorter->order, facts->count, sorter->key);
    for (uint32_t p = 0; p < facts->count; p++) {
        const uint32_t i = sorter->order[p];
        uint64_t best, end;
        struct lanes chosen = after(lanes, facts, i, MP_EXECUTOR_DEVICE, &best), other;

        if (in_place && !facts->resident[i]) {
            other = after(lanes, facts, i, MP_EXECUTOR_IN_PLACE, &end);
            if (end < best) {
                executors[i] = MP_EXECUTOR_IN_PLACE;
                chosen = other;
                best = end;
            }
        }
        if (cpu) {
            other = after(lanes, facts, i, MP_EXECUTOR_CPU, &end);
            if (end < best) {
                executors[i] = MP_EXECUTOR_CPU;
                chosen = other;
            }
        }
        lanes = chosen;
    }
}

const struct mp_assign_ops mp_assign_cost = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "cost",
              .summary = "whoever is done first, by measured times" },
    .create = cost_create,
    .destroy = mp_sorter_destroy,
    .assign = cost_assign,
};
