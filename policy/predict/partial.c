/*
 * SMoE section IV-C: the next layer's attention and router on what the resident and the shared
 * experts of this layer give; absent experts contribute zero, and the next layer's keys and values
 * are not kept. The engine does the arithmetic; one layer ahead.
 */
#include "policy/builtins.h"

static enum mp_status partial_create(const void *config, const struct mp_shape *shape,
                                     struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_predict_partial.info, policy_p);
}

const struct mp_predict_ops mp_predict_partial = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "partial",
              .summary = "the next layer run on what resident and shared experts give (SMoE)" },
    .create = partial_create,
    .destroy = mp_policy_free,
    .source = MP_SCORES_PARTIAL,
    .predict = mp_predict_source,
};
