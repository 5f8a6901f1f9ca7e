/*
 * Fiddler ("CPU-GPU Orchestration for Fast Inference of Mixture-of-Experts Models", ICLR 2025):
 * each expert by itself goes where it is done sooner. A resident one is computed by the device; a
 * cold one by the CPU unless loading it and computing it there takes less time. Since the CPU's
 * time grows with the tokens and that of a load does not, this is a threshold on tokens.
 *
 * The executors work at the same time here, but the rule does not look at how much each has to do
 * already, as in the original.
 */
#include "policy/assign/times.h"
#include "policy/builtins.h"

static enum mp_status threshold_create(const void *config, const struct mp_shape *shape,
                                       struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_assign_threshold.info, policy_p);
}

static void threshold_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                             uint32_t *executors)
{
    const uint32_t helper = mp_costs_helper(facts->costs);
    const struct mp_costs *costs = facts->costs;

    (void)policy;
    mp_assign_all_home(facts, executors);
    if (!mp_assign_can_weigh(facts))
        return;
    for (uint32_t i = 0; i < facts->count; i++) {
        const uint64_t device_ns =
            mp_assign_fetch_ns(facts, i) + mp_assign_compute_ns(costs, facts->tokens[i]);

        if (!facts->resident[i] && mp_assign_helper_ns(costs, facts->tokens[i]) <= device_ns)
            executors[i] = helper;
    }
}

const struct mp_assign_ops mp_assign_threshold = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "threshold",
              .summary = "each cold expert where it alone is done sooner (Fiddler)",
              .costs = true },
    .create = threshold_create,
    .destroy = mp_policy_free,
    .assign = threshold_assign,
};
