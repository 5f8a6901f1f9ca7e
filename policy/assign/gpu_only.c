/*
 * Every chosen expert is brought into the device tier and computed there. On a machine without a
 * GPU the device tier is RAM under a budget and the device is the CPU.
 */
#include "policy/builtins.h"

static enum mp_status gpu_only_create(const void *config, const struct mp_shape *shape,
                                      struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_assign_gpu_only.info, policy_p);
}

static void gpu_only_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                            uint32_t *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = MP_EXECUTOR_HOME;
}

const struct mp_assign_ops mp_assign_gpu_only = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "gpu-only",
              .summary = "everything is computed by the device, cold experts are loaded first" },
    .create = gpu_only_create,
    .destroy = mp_policy_free,
    .assign = gpu_only_assign,
};
