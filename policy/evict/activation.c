/*
 * MoE-Infinity's expert cache: least frequently used, weighed with the activation matrix of the
 * present request (policy/predict/activation.c) and with the layer. The expert with the smallest
 *
 *     count * (M[l][e] / sum of M[l] + EPSILON) * (1 - l / layers)
 *
 * leaves, where count is how many batches needed the expert in all requests and M how many tokens
 * of this request chose it; the first layers stay longer, because nothing predicts them in time.
 * Ties go to the oldest use. A layer that M does not know yet counts as 1 / experts.
 *
 * Departures: requests of a batch are one; one begins where layer 0 gets more tokens than the time
 * before, and what it chose there in that step is not counted. pick is O(residents).
 */
#include "policy/builtins.h"

#include <math.h>
#include <string.h>

#include "policy/residents.h"

#define EPSILON 1e-6

struct activation {
    struct mp_evict_base base;
    uint64_t *count;      // (ids): batches that needed it
    uint64_t *matrix;     // (ids): tokens of the request that chose it
    uint64_t *sum;        // (layers): of the matrix
    uint32_t *layer;      // (ids)
    double *per_token;    // (layers): of pick; worth = count * (M * per_token + at_least)
    double *at_least;     // (layers)
    uint64_t first, last; /* tokens times k in layer 0: of this step so far, of the one before */
};

static void activation_take(struct mp_policy *policy, const struct mp_shape *shape,
                            struct mp_arena *arena)
{
    struct activation *self = (struct activation *)policy;
    const size_t ids = (size_t)shape->layers * shape->experts;

    mp_residents_take(&self->base.set, shape, arena);
    self->count = mp_arena_take(arena, ids, sizeof(uint64_t));
    self->matrix = mp_arena_take(arena, ids, sizeof(uint64_t));
    self->sum = mp_arena_take(arena, shape->layers, sizeof(uint64_t));
    self->layer = mp_arena_take(arena, ids, sizeof(uint32_t));
    self->per_token = mp_arena_take(arena, shape->layers, sizeof(double));
    self->at_least = mp_arena_take(arena, shape->layers, sizeof(double));
}

static enum mp_status activation_create(const void *config, const struct mp_shape *shape,
                                        struct mp_policy **policy_p)
{
    struct activation draft = { .base.super.info = &mp_evict_activation.info };
    enum mp_status status =
        mp_policy_make(&draft.base.super, sizeof(draft), activation_take, shape, policy_p);

    (void)config;
    if (status != MP_OK)
        return status;
    for (uint32_t id = 0; id < shape->layers * shape->experts; id++)
        ((struct activation *)*policy_p)->layer[id] = id / shape->experts;
    return MP_OK;
}

/* Layer 0 has run: has a request begun? */
static void end_first_layer(struct activation *self)
{
    const size_t layers = self->base.set.layers, ids = layers * self->base.set.experts;

    if (self->first > self->last) {
        memset(self->matrix, 0, ids * sizeof(self->matrix[0]));
        memset(self->sum, 0, layers * sizeof(self->sum[0]));
    }
    self->last = self->first;
    self->first = 0;
}

static void activation_on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens,
                                 uint64_t now)
{
    struct activation *self = (struct activation *)policy;
    const uint32_t layer = self->layer[id];

    (void)now;
    if (layer == 0)
        self->first += tokens;
    else if (self->first > 0)
        end_first_layer(self);
    self->matrix[id] += tokens;
    self->sum[layer] += tokens;
    self->count[id]++;
    mp_residents_use(&self->base.set, id);
}

/* What a layer's experts have in common. */
static void weigh_layers(struct activation *self)
{
    const uint32_t layers = self->base.set.layers;

    for (uint32_t l = 0; l < layers; l++) {
        const double stays = 1 - (double)l / layers;

        self->per_token[l] = self->sum[l] > 0 ? stays / (double)self->sum[l] : 0;
        self->at_least[l] =
            stays * (EPSILON + (self->sum[l] > 0 ? 0 : 1.0 / self->base.set.experts));
    }
}

static double worth(const struct activation *self, uint32_t id)
{
    const uint32_t layer = self->layer[id];

    return (double)self->count[id] *
           ((double)self->matrix[id] * self->per_token[layer] + self->at_least[layer]);
}

static uint32_t activation_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    struct activation *self = (struct activation *)policy;
    uint32_t best = MP_EXPERT_NONE;
    double lowest = INFINITY;

    weigh_layers(self);
    for (uint32_t i = 0; i < self->base.set.count; i++) {
        const uint32_t id = self->base.set.id[i];
        const double mine = worth(self, id);

        if ((best != MP_EXPERT_NONE &&
             (mine > lowest ||
              (mine == lowest && self->base.set.stamp[id] > self->base.set.stamp[best]))) ||
            !mp_evict_allows(query, id))
            continue;
        best = id;
        lowest = mine;
    }
    return best;
}

const struct mp_evict_ops mp_evict_activation = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "activation",
              .summary = "least frequently used, weighed by the request's choices (MoE-Infinity)" },
    .create = activation_create,
    .destroy = mp_policy_free,
    .on_insert = mp_evict_insert,
    .on_remove = mp_evict_remove,
    .on_access = activation_on_access,
    .pick = activation_pick,
};
