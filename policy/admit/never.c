/*
 * Whatever was loaded on demand leaves as soon as it was used (PreScope: the hot table is the only
 * thing that stays).
 */
#include "policy/builtins.h"

static enum mp_status never_create(const void *config, const struct mp_shape *shape,
                                   struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_admit_never.info, policy_p);
}

static bool never_admit(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    (void)policy;
    (void)id;
    (void)tokens;
    (void)now;
    return false;
}

const struct mp_admit_ops mp_admit_never = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "never",
              .summary = "what was loaded on demand leaves after its use" },
    .create = never_create,
    .destroy = mp_policy_free,
    .admit = never_admit,
};
