/*
 * SMoE ("Enabling MoE on the Edge via Importance-Driven Expert Scheduling") Alg. 1, the
 * expert-cache router: experts that a token chooses with low scores and that are not resident are
 * replaced by resident ones with scores close by. This changes the model's output.
 *
 * With the scores of a token in descending order, S = S(k+1) and
 *
 *     top-score     rank <= k and s > (1 + alpha) S      never touched; over the batch: set C
 *     low-score     rank <= k and s <= (1 + alpha) S     replaced if neither resident nor in C
 *     substitutes   rank > k and s > (1 - alpha) S       if resident or in C
 *
 * the low-score experts to be replaced, the lowest first, get the substitutes with the highest
 * scores, as long as there are any. Substitutes bring their own scores, so weights are what the
 * router says.
 *
 * Departures, all where the printed algorithm contradicts the text (k experts are chosen, from the
 * model's own top k): printed bounds put expert k + 1 among the low-score ones, which makes k + 1
 * experts; it replaces resident low-score experts too; C grows while tokens are visited, here a
 * first pass over the batch finds all of it.
 *
 * `smoe-similar` is ours: a substitute's output must also resemble that of the expert it replaces,
 * with a mean cosine of at least COSINE in the calibration.
 *
 * TPOT_MS: eq. 5, see smoe_alpha.h.
 */
#include "policy/builtins.h"

#include <string.h>

#include "policy/route/smoe_alpha.h"
#include "policy/top_k.h"
#include "vmm/base/error.h"

struct smoe_config {
    double alpha;
    uint64_t tpot_ms;
    double cosine;
};

#define ALPHA_OPT(policy)                                                              \
    MP_OPT_REAL("ALPHA", struct smoe_config, alpha, "-1", -1, 1,                       \
                "How far from the first expert not chosen a score may be, as a share " \
                "of it, for route policy " policy " to replace or to substitute; "     \
                "below 0: the paper's for the model's shape, 0.25 for most.")
#define TPOT_OPT(policy)                                                             \
    MP_OPT(MP_OPT_MS, "TPOT_MS", struct smoe_config, tpot_ms, "0", 0, 3600000,       \
           "Time per output token that route policy " policy " shall meet with the " \
           "smallest alpha that does; 0: ALPHA is used as it is.")

static const struct mp_opt smoe_opts[] = { ALPHA_OPT("smoe"), TPOT_OPT("smoe"), MP_OPT_END };

static const struct mp_opt similar_opts[] = {
    ALPHA_OPT("smoe-similar"),
    TPOT_OPT("smoe-similar"),
    MP_OPT_REAL("COSINE", struct smoe_config, cosine, "0.5", -1, 1,
                "Least cosine between the outputs of an expert and of its substitute, for route "
                "policy smoe-similar."),
    MP_OPT_END,
};

struct smoe {
    struct mp_policy super;
    uint32_t experts, k;
    struct mp_smoe_alpha alpha;
    const float *similarity; // (layers, experts, experts), or NULL
    float cosine;

    uint32_t *best;       // (k + 1): one token's ranks
    float *best_score;    // (k + 1)
    float *bar;           // (tokens_max): S(k+1)
    uint8_t *top;         // (experts): in C
    uint8_t *mine;        // (experts): chosen by the token, or replaced
    uint32_t *trial;      // (tokens_max, k): with a budget only
    float *trial_weights; // (tokens_max, k)
};

static void smoe_take(struct mp_policy *policy, const struct mp_shape *shape,
                      struct mp_arena *arena)
{
    struct smoe *self = (struct smoe *)policy;
    const size_t ranks = (size_t)shape->top_k + 1, tokens = shape->tokens_max;
    const size_t rows = (self->alpha.budget_ns > 0 ? tokens : 1) * shape->top_k;

    self->best = mp_arena_take(arena, ranks, sizeof(uint32_t));
    self->best_score = mp_arena_take(arena, ranks, sizeof(float));
    self->bar = mp_arena_take(arena, tokens, sizeof(float));
    self->top = mp_arena_take(arena, shape->experts, 1);
    self->mine = mp_arena_take(arena, shape->experts, 1);
    self->trial = mp_arena_take(arena, rows, sizeof(uint32_t));
    self->trial_weights = mp_arena_take(arena, rows, sizeof(float));
}

static enum mp_status create_as(const struct mp_policy_info *info, const struct smoe_config *config,
                                const struct mp_shape *shape, struct mp_policy **policy_p)
{
    struct smoe draft = {
        .super.info = info,
        .experts = shape->experts,
        .k = shape->top_k,
        .cosine = (float)config->cosine,
    };

    mp_smoe_alpha_init(&draft.alpha, shape,
                       config->alpha < 0 ? mp_smoe_alpha_of_shape(shape) : config->alpha,
                       config->tpot_ms);
    return mp_policy_make(&draft.super, sizeof(draft), smoe_take, shape, policy_p);
}

static enum mp_status smoe_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    return create_as(&mp_route_smoe.info, config, shape, policy_p);
}

static enum mp_status similar_create(const void *config, const struct mp_shape *shape,
                                     struct mp_policy **policy_p)
{
    enum mp_status status;

    if (shape->calibration == NULL || shape->calibration->similarity == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_CALIBRATION",
                       "route policy 'smoe-similar' needs to know how similar the experts' outputs "
                       "are, and this model has no such calibration; run moepager calibrate, or "
                       "use route policy 'smoe'");
    status = create_as(&mp_route_smoe_similar.info, config, shape, policy_p);
    if (status == MP_OK)
        ((struct smoe *)*policy_p)->similarity = shape->calibration->similarity;
    return status;
}

/* The model's own routing, and S(k+1) of each token into bar[]. k < experts. */
static void route_exactly(struct smoe *self, const struct mp_route_facts *facts, uint32_t *experts,
                          float *weights)
{
    const uint32_t k = facts->k;

    for (uint32_t t = 0; t < facts->tokens; t++) {
        mp_top_k(facts->scores + (size_t)t * facts->experts, facts->experts, k + 1, self->best,
                 self->best_score);
        memcpy(experts + (size_t)t * k, self->best, k * sizeof(*experts));
        memcpy(weights + (size_t)t * k, self->best_score, k * sizeof(*weights));
        self->bar[t] = self->best_score[k];
    }
}

/* First pass: C, the top-score experts of the batch. */
static void find_top(struct smoe *self, const struct mp_route_facts *facts, float alpha,
                     const uint32_t *experts, const float *weights)
{
    memset(self->top, 0, self->experts);
    for (uint32_t t = 0; t < facts->tokens; t++) {
        for (uint32_t r = 0; r < facts->k; r++) {
            const size_t i = (size_t)t * facts->k + r;

            if (weights[i] > (1 + alpha) * self->bar[t])
                self->top[experts[i]] = 1;
        }
    }
}

/* The best substitute for `expert` of a token with these scores, or UINT32_MAX. */
static uint32_t find_substitute(const struct smoe *self, const struct mp_route_facts *facts,
                                const float *scores, uint32_t expert, float least)
{
    const float *similar =
        self->similarity != NULL
            ? self->similarity + ((size_t)facts->layer * self->experts + expert) * self->experts
            : NULL;
    uint32_t best = UINT32_MAX;

    for (uint32_t e = 0; e < self->experts; e++) {
        if (scores[e] > least && !self->mine[e] && (facts->resident[e] || self->top[e]) &&
            (similar == NULL || similar[e] >= self->cosine) &&
            (best == UINT32_MAX || scores[e] > scores[best]))
            best = e;
    }
    return best;
}

/* Best first again, after some were replaced; ties to the lower id. */
static void sort_row(uint32_t *experts, float *weights, uint32_t k)
{
    for (uint32_t i = 1; i < k; i++) {
        const uint32_t expert = experts[i];
        const float weight = weights[i];
        uint32_t at = i;

        while (at > 0 && (weights[at - 1] < weight ||
                          (weights[at - 1] == weight && experts[at - 1] > expert))) {
            experts[at] = experts[at - 1];
            weights[at] = weights[at - 1];
            at--;
        }
        experts[at] = expert;
        weights[at] = weight;
    }
}

/* Second pass, one token. */
static void substitute(struct smoe *self, const struct mp_route_facts *facts, uint32_t t,
                       float alpha, uint32_t *experts, float *weights)
{
    const float *scores = facts->scores + (size_t)t * facts->experts;
    const float bar = self->bar[t];
    bool marked = false;

    for (uint32_t r = facts->k; r-- > 0 && weights[r] <= (1 + alpha) * bar;) {
        const uint32_t expert = experts[r];
        uint32_t instead;

        if (facts->resident[expert] || self->top[expert])
            continue;
        if (!marked) {
            memset(self->mine, 0, self->experts);
            for (uint32_t i = 0; i < facts->k; i++)
                self->mine[experts[i]] = 1;
            marked = true;
        }
        instead = find_substitute(self, facts, scores, expert, (1 - alpha) * bar);
        if (instead == UINT32_MAX)
            continue;
        self->mine[instead] = 1;
        experts[r] = instead;
        weights[r] = scores[instead];
    }
    if (marked)
        sort_row(experts, weights, facts->k);
}

static void route_with(struct smoe *self, const struct mp_route_facts *facts, float alpha,
                       uint32_t *experts, float *weights)
{
    find_top(self, facts, alpha, experts, weights);
    for (uint32_t t = 0; t < facts->tokens; t++)
        substitute(self, facts, t, alpha, experts + (size_t)t * facts->k,
                   weights + (size_t)t * facts->k);
}

/* Route once more with another alpha, for the budget; what it chooses is only counted. */
static void try_alpha(struct smoe *self, const struct mp_route_facts *facts, float alpha,
                      const uint32_t *experts, const float *weights)
{
    const size_t count = (size_t)facts->tokens * facts->k;
    uint32_t resident = 0, cold = 0;

    memcpy(self->trial, experts, count * sizeof(*experts));
    memcpy(self->trial_weights, weights, count * sizeof(*weights));
    route_with(self, facts, alpha, self->trial, self->trial_weights);
    memset(self->mine, 0, self->experts);
    for (size_t i = 0; i < count; i++) {
        const uint32_t e = self->trial[i];

        resident += !self->mine[e] && facts->resident[e];
        cold += !self->mine[e] && !facts->resident[e];
        self->mine[e] = 1;
    }
    mp_smoe_alpha_note(&self->alpha, facts, resident, cold);
}

static void smoe_route(struct mp_policy *policy, const struct mp_route_facts *facts,
                       uint32_t *experts, float *weights)
{
    struct smoe *self = (struct smoe *)policy;
    float trial;

    if (facts->k >= facts->experts) {
        mp_route_top_k(facts, experts, weights); /* there is nothing to substitute with */
        return;
    }
    route_exactly(self, facts, experts, weights);
    trial = mp_smoe_alpha_trial(&self->alpha, facts);
    if (trial >= 0)
        try_alpha(self, facts, trial, experts, weights);
    route_with(self, facts, self->alpha.alpha, experts, weights);
}

const struct mp_route_ops mp_route_smoe = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "smoe",
              .summary = "cold experts of low score give way to resident ones (SMoE Alg. 1)",
              .opts = smoe_opts,
              .config_size = sizeof(struct smoe_config),
              .costs = true },
    .create = smoe_create,
    .destroy = mp_policy_free,
    .exact = false,
    .route = smoe_route,
};

const struct mp_route_ops mp_route_smoe_similar = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "smoe-similar",
              .summary = "as smoe, if the outputs of the two are also similar",
              .opts = similar_opts,
              .config_size = sizeof(struct smoe_config),
              .calibrated = true,
              .costs = true },
    .create = similar_create,
    .destroy = mp_policy_free,
    .exact = false,
    .route = smoe_route,
};
