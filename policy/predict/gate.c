/*
 * The next layer's router, asked one layer early: residual streams change little from layer to
 * layer, so its scores on the present hidden states resemble those that it will give. Used by
 * Mixtral-offloading (speculative loading), by HybriMoE for three layers, and as the baseline of
 * DALI (section 4.2) and others.
 */
#include "policy/builtins.h"

#include <string.h>

bool mp_predict_source(struct mp_policy *policy, const struct mp_predict_facts *facts,
                       float *scores)
{
    (void)policy;
    memcpy(scores, facts->source, (size_t)facts->tokens * facts->experts * sizeof(*scores));
    return true;
}

static enum mp_status gate_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_predict_gate.info, policy_p);
}

const struct mp_predict_ops mp_predict_gate = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "gate",
              .summary = "the next layer's router on this layer's hidden states" },
    .create = gate_create,
    .destroy = mp_policy_free,
    .source = MP_SCORES_GATE,
    .reach = 3,
    .predict = mp_predict_source,
};
