/*
 * MoE-Infinity's activation matrices: how many tokens of the present request chose each expert of
 * each layer, compared with those of the latest KEEP requests. The most similar one says what the
 * layers to come will want:
 *
 *     similarity(M, P) = mean of cos(M[l], P[l]) over the layers l that M knows; ties: lower place
 *     score(e) = P[l][e] / sum of P[l], P the most similar
 *
 * Departures. The paper begins with matrices that were recorded beforehand; here they are those of
 * the run itself, and until there is one the request's own takes its place. Requests of a batch are
 * one. Nobody says where a request begins: a step with more tokens than the one before is taken for
 * a prompt, which is known once its layer 0 has run. So requests are distinguished in a program
 * that serves one after the other. The weight that falls with the distance of a layer orders
 * nothing within a layer and is left out. predict is O(tokens * experts), observe O(KEEP * (experts
 * + layers)).
 */
#include "policy/builtins.h"

#include <math.h>
#include <string.h>

#include "vmm/base/assert.h"

struct activation_config {
    uint64_t keep;
};

static const struct mp_opt activation_opts[] = {
    MP_OPT(MP_OPT_U64, "KEEP", struct activation_config, keep, "32", 1, 1024,
           "Earlier requests whose choices predict policy activation compares with."),
    MP_OPT_END,
};

struct activation {
    struct mp_policy super;
    uint32_t layers, experts, keep;
    uint32_t *present;       // (layers, experts): of this request
    uint32_t *past;          // (keep, layers, experts)
    double *like;            // (keep, layers): cosines of their rows with those of the present one
    uint64_t requests;       /* before this one; the i-th is at i % keep */
    const uint32_t *nearest; /* of them, or present */
    uint32_t tokens;         /* of the latest step */
};

static void activation_take(struct mp_policy *policy, const struct mp_shape *shape,
                            struct mp_arena *arena)
{
    struct activation *self = (struct activation *)policy;
    const size_t ids = (size_t)shape->layers * shape->experts;

    self->present = mp_arena_take(arena, ids, sizeof(uint32_t));
    self->past = mp_arena_take(arena, ids * self->keep, sizeof(uint32_t));
    self->like = mp_arena_take(arena, (size_t)self->keep * shape->layers, sizeof(double));
    self->nearest = self->present;
}

static enum mp_status activation_create(const void *config, const struct mp_shape *shape,
                                        struct mp_policy **policy_p)
{
    struct activation draft = {
        .super.info = &mp_predict_activation.info,
        .layers = shape->layers,
        .experts = shape->experts,
        .keep = (uint32_t)((const struct activation_config *)config)->keep,
    };

    return mp_policy_make(&draft.super, sizeof(draft), activation_take, shape, policy_p);
}

/* The cosine of two rows, 0 if one of them is empty. */
static double alike(const uint32_t *a, const uint32_t *b, uint32_t count)
{
    double ab = 0, aa = 0, bb = 0;

    for (uint32_t e = 0; e < count; e++) {
        ab += (double)a[e] * b[e];
        aa += (double)a[e] * a[e];
        bb += (double)b[e] * b[e];
    }
    return ab > 0 ? ab / sqrt(aa * bb) : 0;
}

/* The present request's row of `layer` has changed. Rows that it does not know add 0 to all, so
 * that sums order as means do. */
static void find_nearest(struct activation *self, uint32_t layer)
{
    const size_t ids = (size_t)self->layers * self->experts, row = (size_t)layer * self->experts;
    double best = -1;

    mp_assert(layer < self->layers);
    for (uint32_t i = 0; i < self->keep && i < self->requests; i++) {
        const uint32_t *past = self->past + i * ids;
        double *like = self->like + (size_t)i * self->layers, sum = 0;

        like[layer] = alike(self->present + row, past + row, self->experts);
        for (uint32_t l = 0; l < self->layers; l++)
            sum += like[l];
        if (sum > best)
            self->nearest = past;
        best = sum > best ? sum : best;
    }
}

static void begin_request(struct activation *self)
{
    const size_t ids = (size_t)self->layers * self->experts;

    memcpy(self->past + self->requests++ % self->keep * ids, self->present, ids * sizeof(uint32_t));
    memset(self->present, 0, ids * sizeof(uint32_t));
    memset(self->like, 0, (size_t)self->keep * self->layers * sizeof(double));
}

static void activation_observe(struct mp_policy *policy, uint32_t layer, uint32_t tokens,
                               uint32_t k, const uint32_t *chosen)
{
    struct activation *self = (struct activation *)policy;

    if (layer == 0) {
        if (tokens > self->tokens && self->tokens > 0)
            begin_request(self);
        self->tokens = tokens;
    }
    for (size_t i = 0; i < (size_t)tokens * k; i++)
        self->present[(size_t)layer * self->experts + chosen[i]]++;
    find_nearest(self, layer);
}

static bool activation_predict(struct mp_policy *policy, const struct mp_predict_facts *facts,
                               float *scores)
{
    const struct activation *self = (const struct activation *)policy;
    const uint32_t *row = self->nearest + (size_t)facts->target_layer * self->experts;
    double sum = 0;

    for (uint32_t e = 0; e < facts->experts; e++)
        sum += row[e];
    for (uint32_t e = 0; e < facts->experts; e++)
        scores[e] = sum > 0 ? (float)(row[e] / sum) : 0;
    for (uint32_t t = 1; t < facts->tokens; t++)
        memcpy(scores + (size_t)t * facts->experts, scores, facts->experts * sizeof(scores[0]));
    return sum > 0;
}

const struct mp_predict_ops mp_predict_activation = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "activation",
              .summary = "what the most similar earlier request chose (MoE-Infinity)",
              .opts = activation_opts,
              .config_size = sizeof(struct activation_config) },
    .create = activation_create,
    .destroy = mp_policy_free,
    .source = MP_SCORES_NONE,
    .reach = 3,
    .observe = activation_observe,
    .predict = activation_predict,
};
