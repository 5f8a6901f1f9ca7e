/*
 * An exponential moving average of what the router said of each expert, chosen or not, is taken for
 * how likely it is to be chosen soon: what is least likely leaves, and what is likely comes in
 * while nothing else is read. With KEEP = d, after a batch of n tokens with the mean scores s of a
 * layer
 *
 *     S := (1 - d^n) * s + d^n * S         of all experts of the layer, at first 0
 *
 * The resident with the lowest S leaves, of equal ones the one not used for longest. After a layer
 * its absent expert with the highest S comes in, behind all other reads, if S is at least a quarter
 * of an even share (below that it is chance) and
 *
 *     a slot is free, or S >= 2 * (the lowest S of a resident), which then leaves for it.
 *
 * Why that reads something worth having: an expert that is chosen for the first time was mostly
 * among the best that were not chosen, some tokens before. A guess from the next layer's router
 * knows it a layer ahead, which is less than a read takes; this one knows it sooner, and a disk
 * that is waited for some of the time is idle for the rest.
 *
 * Swaps are judged by what came of them: an expert that came in and was chosen counts for them, one
 * that left and was missed against, both against the swaps made, older ones less with each. While
 * that is below GAIN_MIN, a read's cost beside that of a wait, only every PROBE-th one is made.
 * Where experts follow no rule, each is as likely as the other and the gain is about 0.
 *
 * Ours, after SMoE's scores (score.c), HybriMoE's moving average of high ones (mrs.c) and DALI's
 * swaps (workload.c). Where nobody gives scores (a trace without them, a router that is not seen),
 * s is the share of the batch's choices that were the expert. on_scores O(tokens * experts), pick
 * and replace O(residents + experts).
 */
#include "policy/builtins.h"

#include <math.h>
#include <string.h>

#include "policy/residents.h"

#define SHARE_MIN 0.25    /* of 1 / experts */
#define BETTER 2u         /* times as likely as what leaves */
#define GAIN_MIN 0.25     /* of a swap: experts that were there less those that were not */
#define MEMORY (1.0 / 32) /* a swap's weight in the gain */
#define PROBE 64u         /* layers */

struct ema_config {
    double keep;
};

static const struct mp_opt ema_opts[] = {
    MP_OPT_REAL("KEEP", struct ema_config, keep, "0.9", 0, 1,
                "What is left of an expert's mean score in evict policy ema after a token."),
    MP_OPT_END,
};

/* What a swap has made of an expert. */
enum ema_swap {
    EMA_NONE,
    EMA_NAMED, /* is to come in */
    EMA_CAME,  /* has come in and was not chosen since */
    EMA_LEFT,  /* left for another and was not chosen since */
};

struct ema {
    struct mp_evict_base base;
    double keep;
    uint64_t share_min; /* as a key */
    uint32_t top_k;
    uint64_t *key;        // (layers * experts): S
    bool scored;          /* the router's scores are given */
    uint64_t batch_now;   /* `now` of the batch in uses[], plus 1; 0: none waits to be added */
    uint64_t batch_total; /* sum of uses */
    uint32_t batch_layer;
    uint32_t *uses;             // (experts): tokens of that batch that chose it
    uint8_t *swap;              // (layers * experts): enum ema_swap
    uint32_t *partner;          // (layers * experts): of a named one, who leaves for it
    double *batch;              // (experts): scratch
    double used, missed, swaps; /* forgotten at the same rate */
    uint64_t layers;            /* in which a swap would have been made but for the gain */
};

static void ema_take(struct mp_policy *policy, const struct mp_shape *shape, struct mp_arena *arena)
{
    struct ema *self = (struct ema *)policy;
    const size_t ids = (size_t)shape->layers * shape->experts;

    mp_residents_take(&self->base.set, shape, arena);
    self->key = mp_arena_take(arena, ids, sizeof(uint64_t));
    self->uses = mp_arena_take(arena, shape->experts, sizeof(uint32_t));
    self->swap = mp_arena_take(arena, ids, 1);
    self->partner = mp_arena_take(arena, ids, sizeof(uint32_t));
    self->batch = mp_arena_take(arena, shape->experts, sizeof(double));
}

static enum mp_status ema_create(const void *config_, const struct mp_shape *shape,
                                 struct mp_policy **policy_p)
{
    const struct ema_config *config = config_;
    struct ema draft = {
        .base.super.info = &mp_evict_ema.info,
        .keep = config != NULL ? config->keep : 0.9,
        .share_min = mp_residents_key(SHARE_MIN / shape->experts),
        .top_k = shape->top_k,
        .used = 1 / MEMORY, /* as if all had been right until something is known */
        .swaps = 1 / MEMORY,
    };

    return mp_policy_make(&draft.base.super, sizeof(draft), ema_take, shape, policy_p);
}

static void ema_on_insert(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct ema *self = (struct ema *)policy;
    const uint32_t partner = self->partner[id];

    mp_evict_insert(policy, id, now);
    if (self->swap[id] != EMA_NAMED)
        return;
    self->swap[id] = EMA_CAME;
    self->used -= self->used * MEMORY;
    self->missed -= self->missed * MEMORY;
    self->swaps += 1 - self->swaps * MEMORY;
    if (partner != MP_EXPERT_NONE && self->base.set.place[partner] == MP_EXPERT_NONE)
        self->swap[partner] = EMA_LEFT;
}

/* Before a batch is added to the averages of a layer. */
static void forget(struct ema *self, uint32_t layer, double keep)
{
    uint64_t *key = self->key + (size_t)layer * self->base.set.experts;

    for (uint32_t e = 0; e < self->base.set.experts; e++)
        key[e] = (uint64_t)((double)key[e] * keep);
}

/* What was chosen stands for scores. Its shares are known when the batch is complete, which is when
 * anything follows from it. */
static void add_batch(struct ema *self)
{
    const uint32_t experts = self->base.set.experts, first = self->batch_layer * experts;
    const double tokens = (double)self->batch_total / self->top_k;
    const double keep = pow(self->keep, tokens > 1 ? tokens : 1);

    if (self->batch_now == 0)
        return;
    forget(self, self->batch_layer, keep);
    for (uint32_t e = 0; e < experts; e++)
        self->key[first + e] +=
            mp_residents_key((1 - keep) * self->uses[e] / (double)self->batch_total);
    memset(self->uses, 0, experts * sizeof(self->uses[0]));
    self->batch_now = self->batch_total = 0;
}

static void ema_on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    struct ema *self = (struct ema *)policy;
    const uint32_t layer = id / self->base.set.experts;
    const bool came = self->swap[id] == EMA_CAME, left = self->swap[id] == EMA_LEFT;

    mp_residents_use(&self->base.set, id);
    self->used += came;
    self->missed += left;
    self->swap[id] = EMA_NONE;
    if (self->scored)
        return;
    if (self->batch_now != now + 1 || self->batch_layer != layer)
        add_batch(self);
    self->batch_now = now + 1;
    self->batch_layer = layer;
    self->batch_total += tokens;
    self->uses[id % self->base.set.experts] += tokens;
}

static void ema_on_scores(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                          const float *scores, const uint32_t *chosen, uint64_t now)
{
    struct ema *self = (struct ema *)policy;
    const uint32_t experts = self->base.set.experts;
    const double keep = pow(self->keep, tokens);

    (void)k;
    (void)chosen;
    (void)now;
    self->scored = true;
    forget(self, layer, keep);
    memset(self->batch, 0, experts * sizeof(self->batch[0]));
    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t e = 0; e < experts; e++)
            self->batch[e] += (double)scores[(size_t)t * experts + e];
    }
    for (uint32_t e = 0; e < experts; e++)
        self->key[layer * experts + e] += mp_residents_key((1 - keep) * self->batch[e] / tokens);
}

static uint32_t ema_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    struct ema *self = (struct ema *)policy;

    add_batch(self); /* a second time it has no effect */
    return mp_residents_min(&self->base.set, query, MP_LAYER_ANY, self->key, self->base.set.stamp);
}

/* The layer's absent expert with the highest average, or MP_EXPERT_NONE. */
static uint32_t best_absent(const struct ema *self, uint32_t layer)
{
    const uint32_t first = layer * self->base.set.experts;
    uint32_t best = MP_EXPERT_NONE;

    for (uint32_t id = first; id < first + self->base.set.experts; id++) {
        if (self->base.set.place[id] == MP_EXPERT_NONE &&
            (best == MP_EXPERT_NONE || self->key[id] > self->key[best]))
            best = id;
    }
    return best;
}

static uint32_t ema_replace(struct mp_policy *policy, const struct mp_evict_query *query,
                            uint64_t now, struct mp_swap *swaps, uint32_t max)
{
    struct ema *self = (struct ema *)policy;
    const struct mp_residents *set = &self->base.set;
    struct mp_evict_query wide = *query;
    uint32_t held = set->held[query->scope_layer], out = MP_EXPERT_NONE;
    uint32_t slots = mp_equal_share(set->slots, set->layers, query->scope_layer), in;

    (void)now;
    add_batch(self);
    in = best_absent(self, query->scope_layer);
    if (in == MP_EXPERT_NONE || max == 0 || self->key[in] < self->share_min)
        return 0;
    if (query->shared) {
        wide.scope_layer = MP_LAYER_ANY;
        held = set->count;
        slots = set->slots;
    }
    if (held >= slots) {
        out = mp_residents_min(set, &wide, MP_LAYER_ANY, self->key, set->stamp);
        if (out == MP_EXPERT_NONE || self->key[in] / BETTER < self->key[out])
            return 0;
    }
    if (self->used - self->missed < GAIN_MIN * self->swaps && ++self->layers % PROBE != 0)
        return 0;
    self->swap[in] = EMA_NAMED;
    self->partner[in] = out;
    swaps[0] = (struct mp_swap){ .in = in, .out = out };
    return 1;
}

const struct mp_evict_ops mp_evict_ema = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "ema",
              .summary = "lowest moving average of the router's scores; likely ones come in early",
              .opts = ema_opts,
              .config_size = sizeof(struct ema_config) },
    .create = ema_create,
    .destroy = mp_policy_free,
    .on_insert = ema_on_insert,
    .on_remove = mp_evict_remove,
    .on_access = ema_on_access,
    .on_scores = ema_on_scores,
    .scores_optional = true,
    .pick = ema_pick,
    .replace = ema_replace,
};
