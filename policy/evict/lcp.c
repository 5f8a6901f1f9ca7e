/*
 * Least cache priority, MoEpic section 3.3: the expert with the smallest P = mu * rho^(nu / omega)
 * leaves (eq. 4), where mu counts its activations and nu the tokens since the last one. Defaults
 * omega 128 and rho 0.25 as in the paper. Ties, which it leaves open, go to the oldest use, then
 * the lower id.
 *
 * Departures: a batch is one activation of each expert that it uses, and one moment, so nu is 0 for
 * everything that the layer's latest batch used. P is compared as its logarithm, which does not
 * underflow. on_access is O(1) but for the first of a batch, O(experts); pick O(residents).
 */
#include "policy/builtins.h"

#include <math.h>

#include "policy/priority.h"
#include "policy/residents.h"

struct lcp_config {
    double rho, omega;
};

static const struct mp_opt lcp_opts[] = {
    MP_OPT_REAL("RHO", struct lcp_config, rho, "0.25", 0.001, 0.999,
                "What is left of an expert's cache priority after OMEGA tokens without it."),
    MP_OPT_REAL("OMEGA", struct lcp_config, omega, "128", 1, 1e6,
                "Observation window of evict policy lcp, in tokens."),
    MP_OPT_END,
};

struct lcp {
    struct mp_evict_base base;
    struct mp_priority priority;
};

static void lcp_take(struct mp_policy *policy, const struct mp_shape *shape, struct mp_arena *arena)
{
    struct lcp *lcp = (struct lcp *)policy;

    mp_residents_take(&lcp->base.set, shape, arena);
    mp_priority_take(&lcp->priority, arena);
}

static enum mp_status lcp_create(const void *config_, const struct mp_shape *shape,
                                 struct mp_policy **policy_p)
{
    const struct lcp_config *config = config_;
    struct lcp draft = { .base.super.info = &mp_evict_lcp.info };

    mp_priority_init(&draft.priority, shape, config->rho, config->omega);
    return mp_policy_make(&draft.base.super, sizeof(draft), lcp_take, shape, policy_p);
}

static void lcp_on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    struct lcp *lcp = (struct lcp *)policy;

    mp_priority_access(&lcp->priority, id, tokens, now + 1);
    mp_residents_use(&lcp->base.set, id);
}

static uint32_t lcp_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct lcp *lcp = (const struct lcp *)policy;
    uint32_t best = MP_EXPERT_NONE;
    double lowest = INFINITY;

    for (uint32_t i = 0; i < lcp->base.set.count; i++) {
        const uint32_t id = lcp->base.set.id[i];
        double mine;

        if (!mp_evict_allows(query, id)) /* the cheaper question */
            continue;
        mine = mp_priority_log(&lcp->priority, id);
        /* No two stamps are equal, so there is no tie left for ids. */
        if (best != MP_EXPERT_NONE &&
            (mine > lowest ||
             (mine == lowest && lcp->base.set.stamp[id] > lcp->base.set.stamp[best])))
            continue;
        best = id;
        lowest = mine;
    }
    return best;
}

const struct mp_evict_ops mp_evict_lcp = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "lcp",
              .summary = "least cache priority: activations that fade (MoEpic)",
              .opts = lcp_opts,
              .config_size = sizeof(struct lcp_config) },
    .create = lcp_create,
    .destroy = mp_policy_free,
    .on_insert = mp_evict_insert,
    .on_remove = mp_evict_remove,
    .on_access = lcp_on_access,
    .pick = lcp_pick,
};
