/*
 * All layers compete for all slots.
 */
#include "policy/builtins.h"

static enum mp_status global_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_partition_global.info, policy_p);
}

const struct mp_partition_ops mp_partition_global = {
    .info = { .abi = MP_POLICY_ABI, .name = "global", .summary = "layers compete for all slots" },
    .create = global_create,
    .destroy = mp_policy_free,
    .global = true,
};
