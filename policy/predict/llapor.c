/*
 * LLaPor (PreScope, section 4.2): a small network per MoE layer, trained on what
 * a calibration recorded, guesses the layer's experts from the hidden states, choices and weights
 * of the layer before. The engine evaluates it (MP_SCORES_LLAPOR); here is only the declaration.
 *
 * Departure: the paper does not say what a network gets for a layer further ahead (PreSched's Q4
 * asks for up to three). It is not asked then; the engine takes the residual vectors of the
 * calibration for such layers, or the gate where there are none.
 */
#include "policy/builtins.h"

static enum mp_status llapor_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_predict_llapor.info, policy_p);
}

const struct mp_predict_ops mp_predict_llapor = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "llapor",
              .summary = "a trained network of each layer (PreScope)" },
    .create = llapor_create,
    .destroy = mp_policy_free,
    .source = MP_SCORES_LLAPOR,
    .reach = 3,
    .predict = mp_predict_source,
};
