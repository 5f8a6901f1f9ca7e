/*
 * Nothing is loaded ahead.
 */
#include "policy/builtins.h"

static enum mp_status none_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_prefetch_none.info, policy_p);
}

const struct mp_prefetch_ops mp_prefetch_none = {
    .info = { .abi = MP_POLICY_ABI, .name = "none", .summary = "loads on demand only" },
    .create = none_create,
    .destroy = mp_policy_free,
};
