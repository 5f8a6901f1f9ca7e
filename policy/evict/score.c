/*
 * SMoE ("Enabling MoE on the Edge via Importance-Driven Expert Scheduling") eq. 3: of the residents
 * of a layer the one leaves whose router score, chosen or not, was lowest on average over the steps
 * j - n .. j. So what stays is likely to be chosen, or to serve as a substitute (route policy
 * `smoe`). What the router has chosen in the open layer is shielded until the layer ends; the pager
 * protects it while it is in use, and the shield covers the rest of the layer.
 *
 * Open in the paper, ours: n = 16; a batch scores an expert by the mean over its tokens; layers
 * have equal shares, as in lru.c. Ties go to the one not used for longest, then to the lower
 * id. A shielded expert is named if nothing else may leave.
 */
#include "policy/builtins.h"

#include "policy/residents.h"

#define SHIELD (UINT64_C(1) << 62)

struct score_config {
    uint64_t n;
};

static const struct mp_opt score_opts[] = {
    MP_OPT(MP_OPT_U64, "N", struct score_config, n, "16", 0, 1024,
           "Steps before the present one over which evict policy score averages the router's "
           "scores."),
    MP_OPT_END,
};

struct score {
    struct mp_evict_base base;
    uint32_t window;    /* n + 1 */
    uint64_t *recent;   // (layers * experts, window): scores in units of 2^-32
    uint64_t *sum;      // (layers * experts): of recent
    uint64_t *key;      // (layers * experts): mean, with SHIELD
    uint64_t *steps;    // (layers)
    uint32_t *shielded; // (experts): ids
    uint32_t shielded_count;
    uint64_t now;
};

static void score_take(struct mp_policy *policy, const struct mp_shape *shape,
                       struct mp_arena *arena)
{
    struct score *self = (struct score *)policy;
    const size_t ids = (size_t)shape->layers * shape->experts;

    mp_residents_take(&self->base.set, shape, arena);
    self->recent = mp_arena_take(arena, ids, self->window * sizeof(uint64_t));
    self->sum = mp_arena_take(arena, ids, sizeof(uint64_t));
    self->key = mp_arena_take(arena, ids, sizeof(uint64_t));
    self->steps = mp_arena_take(arena, shape->layers, sizeof(uint64_t));
    self->shielded = mp_arena_take(arena, shape->experts, sizeof(uint32_t));
}

static enum mp_status score_create(const void *config_, const struct mp_shape *shape,
                                   struct mp_policy **policy_p)
{
    const struct score_config *config = config_;
    struct score draft = {
        .base.super.info = &mp_evict_score.info,
        .window = config != NULL ? (uint32_t)config->n + 1 : 17,
    };

    return mp_policy_make(&draft.base.super, sizeof(draft), score_take, shape, policy_p);
}

/* The shields of the layer before end when the next one begins. */
static void move_to(struct score *self, uint64_t now)
{
    if (now == self->now)
        return;
    self->now = now;
    while (self->shielded_count > 0)
        self->key[self->shielded[--self->shielded_count]] &= ~SHIELD;
}

static void score_on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    struct score *self = (struct score *)policy;

    (void)tokens;
    move_to(self, now);
    mp_residents_use(&self->base.set, id);
    if (!(self->key[id] & SHIELD) && self->shielded_count < self->base.set.experts) {
        self->key[id] |= SHIELD;
        self->shielded[self->shielded_count++] = id;
    }
}

/* The mean score of an expert over the batch, as an integer, so that sums do not drift. */
static uint64_t batch_score(const float *scores, uint32_t tokens, uint32_t experts, uint32_t e)
{
    double sum = 0;

    for (uint32_t t = 0; t < tokens; t++)
        sum += (double)scores[(size_t)t * experts + e];
    sum /= tokens;
    return sum > 0 ? (uint64_t)((sum < 4096 ? sum : 4096) * 0x1p32) : 0;
}

static void score_on_scores(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                            const float *scores, const uint32_t *chosen, uint64_t now)
{
    struct score *self = (struct score *)policy;
    const uint32_t experts = self->base.set.experts, place = self->steps[layer]++ % self->window;
    const uint64_t terms = self->steps[layer] < self->window ? self->steps[layer] : self->window;

    (void)k;
    (void)chosen;
    move_to(self, now);
    for (uint32_t e = 0; e < experts; e++) {
        const size_t id = (size_t)layer * experts + e;
        uint64_t *recent = self->recent + id * self->window + place;

        self->sum[id] -= *recent;
        *recent = batch_score(scores, tokens, experts, e);
        self->sum[id] += *recent;
        self->key[id] = (self->sum[id] / terms) | (self->key[id] & SHIELD);
    }
}

static uint32_t score_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct score *self = (const struct score *)policy;

    return mp_residents_min_fair(&self->base.set, query, self->key, self->base.set.stamp);
}

const struct mp_evict_ops mp_evict_score = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "score",
              .summary = "lowest mean router score over the last steps, per layer (SMoE eq. 3)",
              .opts = score_opts,
              .config_size = sizeof(struct score_config) },
    .create = score_create,
    .destroy = mp_policy_free,
    .per_layer = true,
    .on_insert = mp_evict_insert,
    .on_remove = mp_evict_remove,
    .on_access = score_on_access,
    .on_scores = score_on_scores,
    .pick = score_pick,
};
