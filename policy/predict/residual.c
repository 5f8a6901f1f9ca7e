/*
 * DALI eq. 10-11: the next layer's router on this layer's hidden states plus the mean change
 * between the two layers, which a calibration has measured. The engine does the arithmetic; one
 * layer ahead, as in the paper, so there is nothing for layer 0.
 */
#include "policy/builtins.h"

static enum mp_status residual_create(const void *config, const struct mp_shape *shape,
                                      struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_predict_residual.info, policy_p);
}

const struct mp_predict_ops mp_predict_residual = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "residual",
              .summary = "the next layer's router after the mean change between layers (DALI)" },
    .create = residual_create,
    .destroy = mp_policy_free,
    .source = MP_SCORES_RESIDUAL,
    .predict = mp_predict_source,
};
