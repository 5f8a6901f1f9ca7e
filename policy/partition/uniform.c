/*
 * Every layer owns the same number of slots; what does not divide goes to the first layers.
 */
#include "policy/builtins.h"

static enum mp_status uniform_create(const void *config, const struct mp_shape *shape,
                                     struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_partition_uniform.info, policy_p);
}

static void uniform_quota(struct mp_policy *policy, const struct mp_shape *shape, uint32_t *quota)
{
    (void)policy;
    for (uint32_t l = 0; l < shape->layers; l++)
        quota[l] = mp_equal_share(shape->slots, shape->layers, l);
}

const struct mp_partition_ops mp_partition_uniform = {
    .info = { .abi = MP_POLICY_ABI, .name = "uniform", .summary = "equal slots for each layer" },
    .create = uniform_create,
    .destroy = mp_policy_free,
    .quota = uniform_quota,
};
