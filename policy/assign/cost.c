/*
 * Earliest finish, from what work costs on this machine (mp_costs, which the client measures again
 * while running): policy/assign/plan.h has the rules.
 *
 * Ours; it is list scheduling in order of longest work first, with the device's residents ahead of
 * all. If the cost of a load is not known, everything goes to the device.
 */
#include "policy/builtins.h"

#include "policy/assign/plan.h"

static enum mp_status cost_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    (void)config;
    return mp_sorter_create(&mp_assign_cost.info, shape, policy_p);
}

static void cost_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                        uint32_t *executors)
{
    if (facts->costs->load_ns == 0)
        mp_assign_all_home(facts, executors);
    else
        (void)mp_assign_plan(facts, (struct mp_sorter *)policy, executors);
}

const struct mp_assign_ops mp_assign_cost = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "cost",
              .summary = "whoever is done first, by measured times",
              .costs = true },
    .create = cost_create,
    .destroy = mp_policy_free,
    .assign = cost_assign,
};
