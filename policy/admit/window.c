/*
 * DALI section 4.3: what a layer loads on demand leaves when the layer has used it; residents
 * change at the ends of windows only, by evict policy `workload`. With any other evict policy
 * nothing that was loaded on demand is ever kept.
 */
#include "policy/builtins.h"

static enum mp_status window_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_admit_window.info, policy_p);
}

static bool window_admit(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    (void)policy;
    (void)id;
    (void)tokens;
    (void)now;
    return false;
}

const struct mp_admit_ops mp_admit_window = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "window",
              .summary = "residents change at the ends of windows only (DALI)" },
    .create = window_create,
    .destroy = mp_policy_free,
    .admit = window_admit,
};
