/*
 * The model's own routing: the k highest scores of each token, ties to the lower id.
 */
#include "policy/builtins.h"
#include "policy/top_k.h"

static enum mp_status exact_create(const void *config, const struct mp_shape *shape,
                                   struct mp_policy **policy_p)
{
    (void)config;
    (void)shape;
    return mp_policy_create_plain(&mp_route_exact.info, policy_p);
}

static void exact_route(struct mp_policy *policy, const struct mp_route_facts *facts,
                        uint32_t *experts, float *weights)
{
    (void)policy;
    mp_route_top_k(facts, experts, weights);
}

const struct mp_route_ops mp_route_exact = {
    .info = { .abi = MP_POLICY_ABI, .name = "exact", .summary = "the model's own top k" },
    .create = exact_create,
    .destroy = mp_policy_free,
    .exact = true,
    .route = exact_route,
};
