/*
 * No prediction: nothing is ever loaded ahead.
 */
#include "policy/builtins.h"

static enum mp_status none_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_predict_none.info, policy_p);
}

const struct mp_predict_ops mp_predict_none = {
    .info = { .abi = MP_POLICY_ABI, .name = "none", .summary = "no prediction" },
    .create = none_create,
    .destroy = mp_policy_free,
    .source = MP_SCORES_NONE,
};
