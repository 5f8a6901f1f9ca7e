/*
 * SMoE ("Enabling MoE on the Edge via Importance-Driven Expert Scheduling"), section IV-C, C4: load
 * ahead the top-score experts only. For each token an expert is top-score if it is among the k best
 * predicted and its score exceeds (1 + alpha) * S(k+1), S(k+1) being the score of rank k + 1
 * (section IV-A). The low-score rest is what route policy `smoe` can substitute, so bytes are not
 * spent on it.
 *
 * Departures: alpha is an option of its own, because a route policy may follow a TPOT budget
 * (eq. 5). The order among several is not in the paper: those wanted by most tokens first, then the
 * higher sum of scores, then the lower id.
 */
#include "policy/builtins.h"

#include "policy/prefetch/candidates.h"
#include "policy/route/smoe_alpha.h"

struct top_score_config {
    double alpha;
};

static const struct mp_opt top_score_opts[] = {
    MP_OPT_REAL("ALPHA", struct top_score_config, alpha, "-1", -1, 1,
                "Prefetch policy top-score loads ahead what is predicted above 1 + alpha times the "
                "score of the first expert not chosen; below 0: the paper's alpha for the model's "
                "shape, 0.25 for most."),
    MP_OPT_END,
};

struct top_score {
    struct mp_policy super;
    float alpha;
    struct mp_candidates candidates;
};

static void top_score_take(struct mp_policy *policy, const struct mp_shape *shape,
                           struct mp_arena *arena)
{
    mp_candidates_take(&((struct top_score *)policy)->candidates, shape, arena);
}

static enum mp_status top_score_create(const void *config_, const struct mp_shape *shape,
                                       struct mp_policy **policy_p)
{
    const struct top_score_config *config = config_;
    struct top_score draft = {
        .super.info = &mp_prefetch_top_score.info,
        .alpha = (float)(config->alpha < 0 ? mp_smoe_alpha_of_shape(shape) : config->alpha),
    };

    return mp_policy_make(&draft.super, sizeof(draft), top_score_take, shape, policy_p);
}

static uint32_t top_score_choose(struct mp_policy *policy, const struct mp_prefetch_facts *facts,
                                 uint32_t *experts)
{
    struct top_score *self = (struct top_score *)policy;
    const uint32_t count = mp_candidates_gather(&self->candidates, facts, facts->k, self->alpha);

    for (uint32_t i = 0; i < count; i++)
        experts[i] = self->candidates.list[i].expert;
    return count;
}

const struct mp_prefetch_ops mp_prefetch_top_score = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "top-score",
              .summary = "only what is predicted well above the first expert not chosen (SMoE)",
              .opts = top_score_opts,
              .config_size = sizeof(struct top_score_config) },
    .create = top_score_create,
    .destroy = mp_policy_free,
    .choose = top_score_choose,
};
