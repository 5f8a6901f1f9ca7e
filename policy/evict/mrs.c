/*
 * HybriMoE ("Hybrid CPU-GPU Scheduling and Cache Management for Efficient MoE Inference", DAC
 * 2025), "minus recent score": each time a layer runs
 *
 *     S := alpha * TopP(s) + (1 - alpha) * S
 *
 * for all of its experts, where TopP keeps the P highest router scores and makes the rest zero; the
 * resident with the lowest S leaves. alpha = 0.5 and P = 2 * top_k are those of the published code,
 * which keeps the layers apart like partition `uniform`. Ours: a batch counts by the mean over its
 * tokens; ties go to the one not used for longest, then to the lower id.
 */
#include "policy/builtins.h"

#include <string.h>

#include "policy/residents.h"
#include "policy/top_k.h"

struct mrs_config {
    double alpha;
    uint64_t p;
};

static const struct mp_opt mrs_opts[] = {
    MP_OPT_REAL("ALPHA", struct mrs_config, alpha, "0.5", 0, 1,
                "Weight of the newest score in evict policy mrs."),
    MP_OPT(MP_OPT_U64, "P", struct mrs_config, p, "0", 0, 4096,
           "Scores of each token that evict policy mrs counts, the highest; 0: twice as many as "
           "the model chooses."),
    MP_OPT_END,
};

struct mrs {
    struct mp_evict_base base;
    double alpha;
    uint32_t p;
    double *score;     // (layers * experts): S
    uint64_t *key;     // (layers * experts): S as an integer
    double *batch;     // (experts): scratch
    uint32_t *best;    // (experts)
    float *best_score; // (experts)
};

static void mrs_take(struct mp_policy *policy, const struct mp_shape *shape, struct mp_arena *arena)
{
    struct mrs *self = (struct mrs *)policy;
    const size_t ids = (size_t)shape->layers * shape->experts;

    mp_residents_take(&self->base.set, shape, arena);
    self->score = mp_arena_take(arena, ids, sizeof(double));
    self->key = mp_arena_take(arena, ids, sizeof(uint64_t));
    self->batch = mp_arena_take(arena, shape->experts, sizeof(double));
    self->best = mp_arena_take(arena, shape->experts, sizeof(uint32_t));
    self->best_score = mp_arena_take(arena, shape->experts, sizeof(float));
}

static enum mp_status mrs_create(const void *config_, const struct mp_shape *shape,
                                 struct mp_policy **policy_p)
{
    const struct mrs_config *config = config_;
    const uint64_t p = config != NULL && config->p > 0 ? config->p : 2 * shape->top_k;
    struct mrs draft = {
        .base.super.info = &mp_evict_mrs.info,
        .alpha = config != NULL ? config->alpha : 0.5,
        .p = p < shape->experts ? (uint32_t)p : shape->experts,
    };

    return mp_policy_make(&draft.base.super, sizeof(draft), mrs_take, shape, policy_p);
}

static void mrs_on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    struct mrs *self = (struct mrs *)policy;

    (void)tokens;
    (void)now;
    mp_residents_use(&self->base.set, id);
}

static void mrs_on_scores(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                          const float *scores, const uint32_t *chosen, uint64_t now)
{
    struct mrs *self = (struct mrs *)policy;
    const uint32_t experts = self->base.set.experts;

    (void)k;
    (void)chosen;
    (void)now;
    memset(self->batch, 0, experts * sizeof(self->batch[0]));
    for (uint32_t t = 0; t < tokens; t++) {
        mp_top_k(scores + (size_t)t * experts, experts, self->p, self->best, self->best_score);
        for (uint32_t r = 0; r < self->p; r++)
            self->batch[self->best[r]] += (double)self->best_score[r];
    }
    for (uint32_t e = 0; e < experts; e++) {
        const size_t id = (size_t)layer * experts + e;
        const double s =
            self->alpha * self->batch[e] / tokens + (1 - self->alpha) * self->score[id];

        self->score[id] = s;
        self->key[id] = mp_residents_key(s);
    }
}

static uint32_t mrs_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct mrs *self = (const struct mrs *)policy;

    return mp_residents_min(&self->base.set, query, MP_LAYER_ANY, self->key, self->base.set.stamp);
}

const struct mp_evict_ops mp_evict_mrs = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "mrs",
              .summary = "lowest running mean of the high router scores (HybriMoE)",
              .opts = mrs_opts,
              .config_size = sizeof(struct mrs_config) },
    .create = mrs_create,
    .destroy = mp_policy_free,
    .on_insert = mp_evict_insert,
    .on_remove = mp_evict_remove,
    .on_access = mrs_on_access,
    .on_scores = mrs_on_scores,
    .pick = mrs_pick,
};
