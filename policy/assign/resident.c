/*
 * The device computes what it holds, the CPU all else: static placement as in llama.cpp and
 * KTransformers. Where there is no CPU executor the device loads what it lacks.
 */
#include "policy/builtins.h"

static enum mp_status resident_create(const void *config, const struct mp_shape *shape,
                                      struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_assign_resident.info, policy_p);
}

static void resident_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                            uint32_t *executors)
{
    const uint32_t helper = mp_costs_helper(facts->costs); /* or the home executor again */

    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = facts->resident[i] ? MP_EXECUTOR_HOME : helper;
}

const struct mp_assign_ops mp_assign_resident = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "resident",
              .summary = "the device computes what it holds, the CPU all else" },
    .create = resident_create,
    .destroy = mp_policy_free,
    .assign = resident_assign,
};
