/*
 * Whatever was loaded on demand stays until something else needs its place.
 */
#include "policy/builtins.h"

static enum mp_status always_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_admit_always.info, policy_p);
}

static bool always_admit(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    (void)policy;
    (void)id;
    (void)tokens;
    (void)now;
    return true;
}

const struct mp_admit_ops mp_admit_always = {
    .info = { .abi = MP_POLICY_ABI, .name = "always", .summary = "keep what was loaded" },
    .create = always_create,
    .destroy = mp_policy_free,
    .admit = always_admit,
};
