/*
 * The model's own routing: the k highest scores of each token. Ties go to the lower id, so that the
 * answer never depends on the order of a sort.
 */
#include "policy/builtins.h"

void mp_route_top_k(const struct mp_route_facts *facts, uint32_t *experts, float *weights)
{
    const uint32_t k = facts->k;

    for (uint32_t t = 0; t < facts->tokens; t++) {
        const float *scores = facts->scores + (size_t)t * facts->experts;
        uint32_t *chosen = experts + (size_t)t * k;
        float *score = weights + (size_t)t * k;
        uint32_t count = 0;

        /* Insertion into a short sorted list: k is small, and equal scores stay in order of id. */
        for (uint32_t e = 0; e < facts->experts; e++) {
            uint32_t at = count < k ? count : k;

            while (at > 0 && score[at - 1] < scores[e])
                at--;
            if (at == k)
                continue;
            if (count < k)
                count++;
            for (uint32_t i = count - 1; i > at; i--) {
                chosen[i] = chosen[i - 1];
                score[i] = score[i - 1];
            }
            chosen[at] = e;
            score[at] = scores[e];
        }
    }
}

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
    .destroy = mp_policy_destroy_plain,
    .exact = true,
    .route = exact_route,
};
