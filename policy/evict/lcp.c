/*
 * Least cache priority, MoEpic section 3.3: the unit with the smallest P = mu * rho^(nu / omega)
 * leaves (eq. 4), where mu counts its activations and nu the tokens since the last one. Defaults
 * omega 128 and rho 0.25 as in the paper. Ties, which it leaves open, go to the oldest use, then
 * the lower id.
 *
 * Departures: activations are counted in tokens; all tokens of a batch are one moment, so nu is 0
 * for everything that the layer's latest batch used. P is compared as its logarithm, which does not
 * underflow. on_access is O(1) but for the first of a batch, O(experts); pick O(residents).
 */
#include "policy/builtins.h"

#include <math.h>
#include <stdlib.h>

#include "policy/priority.h"
#include "policy/residents.h"
#include "vmm/base/error.h"

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

static void lcp_destroy(struct mp_policy *policy)
{
    struct lcp *lcp = (struct lcp *)policy;

    mp_residents_fini(&lcp->base.set);
    mp_priority_fini(&lcp->priority);
    free(lcp);
}

static enum mp_status lcp_create(const void *config_, const struct mp_shape *shape,
                                 struct mp_policy **policy_p)
{
    const struct lcp_config *config = config_;
    struct lcp *lcp = calloc(1, sizeof(*lcp));
    enum mp_status status;

    if (lcp == NULL)
        return mp_fail_no_memory("evict policy 'lcp'", sizeof(*lcp));
    lcp->base.super.info = &mp_evict_lcp.info;
    status = mp_residents_init(&lcp->base.set, shape);
    if (status == MP_OK)
        status = mp_priority_init(&lcp->priority, shape, config->rho, config->omega);
    if (status != MP_OK) {
        lcp_destroy(&lcp->base.super);
        return status;
    }
    *policy_p = &lcp->base.super;
    return MP_OK;
}

static void lcp_on_access(struct mp_policy *policy, uint32_t unit, uint32_t tokens, uint64_t now)
{
    struct lcp *lcp = (struct lcp *)policy;

    mp_priority_access(&lcp->priority, unit, tokens, now + 1);
    mp_residents_use(&lcp->base.set, unit);
}

static uint32_t lcp_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct lcp *lcp = (const struct lcp *)policy;
    uint32_t best = MP_UNIT_NONE;
    double lowest = INFINITY;

    for (uint32_t i = 0; i < lcp->base.set.count; i++) {
        const uint32_t unit = lcp->base.set.unit[i];
        double mine;

        if (!mp_evict_allows(query, unit)) /* the cheaper question */
            continue;
        mine = mp_priority_log(&lcp->priority, unit);
        /* No two stamps are equal, so there is no tie left for ids. */
        if (best != MP_UNIT_NONE &&
            (mine > lowest ||
             (mine == lowest && lcp->base.set.stamp[unit] > lcp->base.set.stamp[best])))
            continue;
        best = unit;
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
    .destroy = lcp_destroy,
    .on_insert = mp_evict_insert,
    .on_remove = mp_evict_remove,
    .on_access = lcp_on_access,
    .pick = lcp_pick,
};
