/*
 * `gate`, and from the last layer also layer 0 of the next token: the hidden states of the token
 * that ends stand for those of the one that begins (AdapMoE; MoEpic, section
 * 3.2). The guess is worse than from layer to layer.
 */
#include "policy/builtins.h"

static enum mp_status around_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_predict_gate_around.info, policy_p);
}

const struct mp_predict_ops mp_predict_gate_around = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "gate-around",
              .summary = "gate, and the first layer from the last of the previous token" },
    .create = around_create,
    .destroy = mp_policy_free,
    .source = MP_SCORES_GATE,
    .wraps = true,
    .predict = mp_predict_source,
};
