/*
 * MoEpic's cache configurator (section 3.4, Algorithm 1): counts, for every layer, how often a
 * cache of each size would have held what was activated (H), how often the y-th best predicted
 * expert was activated (P) and was held (PH), and every TAU tokens, when nothing is being read,
 * moves slots between layers and chooses how much of each expert stays (theta), so that the sum of
 * exposed loading times falls. policy/partition/fixed_point_config.h has the equations. Priorities
 * are those of evict policy `lcp` (eq. 4) with the paper's parameters.
 *
 * Departures. V_i are whole slots, and ZETA is at most 1 / (4 layers) but one slot at least, so
 * that a donor never ends below one slot; the printed V_i - zeta V_e can fall below 0. theta is a
 * multiple of 1 / slices and searched instead of C, C = V / theta up to all experts; where experts
 * are whole it is 1. THETA, which is ours, fixes it, as the paper's figure 4 does. U_b, the buffer
 * for what is not kept, is top_k slots, but a quarter of all at most. A run that is due waits for
 * the next idle moment (printed: exactly at q mod tau == 0, else tau tokens more), and the pager
 * loads nothing ahead until there was one: else guesses could keep the link busy for ever. T_head,
 * the first layer's extra window, is not known here and left out. Of a batch the last SAMPLES
 * tokens are counted, y goes up to four times top_k, and the counts start uniform with theta 1/2
 * but without random first residents. Costs that are not known leave all as it is. Memory: layers *
 * 8 top_k * experts counters.
 */
#include "policy/builtins.h"

#include <string.h>

#include "policy/partition/fixed_point_config.h"
#include "policy/priority.h"
#include "policy/sorter.h"

#define SAMPLES 4u
#define LCP_RHO 0.25
#define LCP_OMEGA 128

struct fixed_point_config {
    double zeta;
    uint64_t tau, theta;
};

static const struct mp_opt fixed_point_opts[] = {
    MP_OPT_REAL("ZETA", struct fixed_point_config, zeta, "0.01", 0.0001, 0.25,
                "Share of the slots that partition fixed-point moves at once; at most a quarter of "
                "a layer's equal share, at least one slot."),
    MP_OPT(MP_OPT_U64, "TAU", struct fixed_point_config, tau, "5000", 1, 1000000000,
           "Tokens after which partition fixed-point thinks again."),
    MP_OPT(MP_OPT_U64, "THETA", struct fixed_point_config, theta, "0", 0, 16,
           "Sixteenths of each expert that partition fixed-point keeps in every layer, if experts "
           "are stored in slices; 0: it decides, and begins with 8."),
    MP_OPT_END,
};

struct fixed_point {
    struct mp_policy super;
    struct mp_fixed_point point;
    struct mp_priority priority;
    uint64_t tau, seen, due; /* tokens */
    uint64_t moment;
    uint32_t step;
    uint32_t *slots, *retained; // (layers)
    double *late;               // (4 * layers): scratch
    uint32_t *moved;            // (3 * layers): scratch
    uint32_t *order;            // (experts): scratch
    uint32_t *tops;             // (layers, experts): scratch
    uint32_t *rank;             // (experts): scratch
    uint32_t *uses;             // (experts): scratch
    uint64_t *key;              // (experts): scratch

    /* What was predicted for the layer that is run next, of each sampled token. */
    uint32_t *forecast; // (SAMPLES, guesses)
    uint32_t forecast_layer, forecast_tokens;
};

static void fixed_point_take(struct mp_policy *policy, const struct mp_shape *shape,
                             struct mp_arena *arena)
{
    struct fixed_point *self = (struct fixed_point *)policy;
    const size_t layers = shape->layers, experts = shape->experts;
    const uint32_t guesses = 4 * shape->top_k < shape->experts ? 4 * shape->top_k : shape->experts;

    mp_fixed_point_take(&self->point, shape, guesses, arena);
    mp_priority_take(&self->priority, arena);
    self->slots = mp_arena_take(arena, layers, sizeof(uint32_t));
    self->retained = mp_arena_take(arena, layers, sizeof(uint32_t));
    self->late = mp_arena_take(arena, 4 * layers, sizeof(double));
    self->moved = mp_arena_take(arena, 3 * layers, sizeof(uint32_t));
    self->order = mp_arena_take(arena, experts, sizeof(uint32_t));
    self->tops = mp_arena_take(arena, layers * experts, sizeof(uint32_t));
    self->rank = mp_arena_take(arena, experts, sizeof(uint32_t));
    self->uses = mp_arena_take(arena, experts, sizeof(uint32_t));
    self->key = mp_arena_take(arena, experts, sizeof(uint64_t));
    self->forecast = mp_arena_take(arena, (size_t)SAMPLES * guesses, sizeof(uint32_t));
}

/* Sixteenths as slices, of which an expert has as many as it has; 0: not given. */
static uint32_t given_top(uint64_t sixteenths, uint32_t slices)
{
    const uint32_t retained = ((uint32_t)sixteenths * slices + 8) / 16;

    return sixteenths == 0 || retained > 0 ? retained : 1;
}

static enum mp_status fixed_point_create(const void *config_, const struct mp_shape *shape,
                                         struct mp_policy **policy_p)
{
    const struct fixed_point_config *config = config_;
    const double most = 0.25 / shape->layers;
    const bool split = shape->slices > 1;
    const uint32_t buffer = shape->top_k < shape->slots / 4 ? shape->top_k : shape->slots / 4;
    const uint32_t slots = split ? shape->slots - buffer : shape->slots;
    const uint32_t step = (uint32_t)((config->zeta < most ? config->zeta : most) * slots);
    uint32_t first_retained = 1;
    struct fixed_point draft = {
        .super.info = &mp_partition_fixed_point.info,
        .tau = config->tau,
        .due = config->tau,
        .step = step > 0 ? step : 1,
        .forecast_layer = MP_LAYER_ANY,
    }, *self;
    enum mp_status status;

    mp_priority_init(&draft.priority, shape, LCP_RHO, LCP_OMEGA);
    status = mp_policy_make(&draft.super, sizeof(draft), fixed_point_take, shape, policy_p);
    if (status != MP_OK)
        return status;
    self = (struct fixed_point *)*policy_p;
    self->point.fixed_top = split ? given_top(config->theta, shape->slices) : 0;
    if (self->point.fixed_top > 0)
        first_retained = self->point.fixed_top;
    else if (split)
        first_retained = shape->slices / 2;
    for (uint32_t l = 0; l < shape->layers; l++) {
        const uint32_t equal = mp_equal_share(slots, shape->layers, l);

        self->slots[l] = equal < shape->experts ? equal : shape->experts;
        self->retained[l] = first_retained;
    }
    return MP_OK;
}

static void fixed_point_quota(struct mp_policy *policy, const struct mp_shape *shape,
                              uint32_t *quota)
{
    memcpy(quota, ((const struct fixed_point *)policy)->slots, shape->layers * sizeof(quota[0]));
}

static void fixed_point_retained(struct mp_policy *policy, const struct mp_shape *shape,
                                 uint32_t *retained)
{
    memcpy(retained, ((const struct fixed_point *)policy)->retained,
           shape->layers * sizeof(retained[0]));
}

/* Numbers that order as the values do; NaN as nothing special. */
static uint64_t sort_key(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

static void fixed_point_predicted(struct mp_policy *policy, uint32_t layer, uint32_t tokens,
                                  const float *scores)
{
    struct fixed_point *self = (struct fixed_point *)policy;
    const uint32_t samples = tokens < SAMPLES ? tokens : SAMPLES;
    const uint32_t experts = self->point.experts, guesses = self->point.guesses;

    for (uint32_t s = 0; s < samples; s++) {
        const float *mine = scores + (size_t)(tokens - samples + s) * experts;

        for (uint32_t e = 0; e < experts; e++)
            self->key[e] = sort_key((double)mine[e]);
        mp_sorter_sort(self->order, experts, self->key);
        memcpy(self->forecast + (size_t)s * guesses, self->order, guesses * sizeof(uint32_t));
    }
    self->forecast_layer = layer;
    self->forecast_tokens = tokens;
}

/* rank[e] := how many experts of the layer have a higher priority. */
static void rank_layer(struct fixed_point *self, uint32_t layer)
{
    const uint32_t experts = self->point.experts;

    for (uint32_t e = 0; e < experts; e++)
        self->key[e] = sort_key(mp_priority_log(&self->priority, layer * experts + e));
    mp_sorter_sort(self->order, experts, self->key);
    for (uint32_t r = 0; r < experts; r++)
        self->rank[self->order[r]] = r;
}

/* Experts of which the layer's slots hold the part that is retained. */
static uint32_t kept_of(const struct fixed_point *self, const struct mp_shape *shape,
                        uint32_t layer)
{
    const uint32_t slices = shape->slices > 1 ? shape->slices : 1;
    const uint64_t kept = (uint64_t)self->slots[layer] * slices / self->retained[layer];

    return kept < shape->experts ? (uint32_t)kept : shape->experts;
}

/* The experts that each layer keeps now, by priority, those of rank 0 of all layers first. Before
 * the first layer none has been used. */
static uint32_t fixed_point_first(struct mp_policy *policy, const struct mp_shape *shape,
                                  uint32_t *ids)
{
    struct fixed_point *self = (struct fixed_point *)policy;
    const uint64_t most = mp_partition_first_max(shape);
    const uint32_t experts = shape->experts;
    uint32_t count = 0;

    for (uint32_t l = 0; l < shape->layers; l++) {
        rank_layer(self, l);
        memcpy(self->tops + (size_t)l * experts, self->order, experts * sizeof(uint32_t));
    }
    for (uint32_t r = 0; r < experts; r++) {
        for (uint32_t l = 0; l < shape->layers; l++) {
            const uint32_t id = l * experts + self->tops[(size_t)l * experts + r];

            if (r < kept_of(self, shape, l) && self->priority.count[id] > 0 && count < most)
                ids[count++] = id;
        }
    }
    return count;
}

/* One token: what was active, and where what had been predicted for it stood. */
static void count_token(struct fixed_point *self, uint32_t layer, uint32_t k,
                        const uint32_t *chosen, const uint32_t *forecast)
{
    struct mp_fixed_point *point = &self->point;

    point->tokens[layer]++;
    for (uint32_t r = 0; r < k; r++)
        point->active[(size_t)layer * point->experts + self->rank[chosen[r]]]++;
    if (forecast == NULL)
        return;
    point->asked[layer]++;
    for (uint32_t y = 0; y < point->guesses; y++) {
        const size_t row = (size_t)layer * point->guesses + y;

        for (uint32_t r = 0; r < k; r++)
            point->right[row] += chosen[r] == forecast[y];
        point->held[row * point->experts + self->rank[forecast[y]]]++;
    }
}

static void fixed_point_routed(struct mp_policy *policy, uint32_t layer, uint32_t tokens,
                               uint32_t k, const uint32_t *chosen)
{
    struct fixed_point *self = (struct fixed_point *)policy;
    const uint32_t samples = tokens < SAMPLES ? tokens : SAMPLES;
    const bool asked = self->forecast_layer == layer && self->forecast_tokens == tokens;
    const uint32_t experts = self->point.experts;

    rank_layer(self, layer);
    for (uint32_t s = 0; s < samples; s++)
        count_token(self, layer, k, chosen + (size_t)(tokens - samples + s) * k,
                    asked ? self->forecast + (size_t)s * self->point.guesses : NULL);
    self->forecast_layer = MP_LAYER_ANY;

    memset(self->uses, 0, experts * sizeof(self->uses[0]));
    for (size_t i = 0; i < (size_t)tokens * k; i++)
        self->uses[chosen[i]]++;
    self->moment++;
    for (uint32_t e = 0; e < experts; e++) {
        if (self->uses[e] > 0)
            mp_priority_access(&self->priority, layer * experts + e, self->uses[e], self->moment);
    }
    self->seen += layer == 0 ? tokens : 0;
}

/* Where costs are not known there is nothing to compute with, however idle the device is. */
static bool fixed_point_due(const struct mp_policy *policy, const struct mp_shape *shape)
{
    const struct fixed_point *self = (const struct fixed_point *)policy;

    return self->seen >= self->due && shape->costs != NULL && shape->costs->load_ns > 0;
}

static bool fixed_point_revise(struct mp_policy *policy, const struct mp_shape *shape, bool idle,
                               uint32_t *quota)
{
    struct fixed_point *self = (struct fixed_point *)policy;
    const struct mp_costs *costs = shape->costs;

    if (!idle || !fixed_point_due(policy, shape))
        return false;
    self->due = self->seen + self->tau;
    self->point.load_ns = (double)costs->load_ns;
    self->point.expert_ns = (double)mp_executor_ns(&costs->executors[MP_EXECUTOR_HOME], 1);
    self->point.attention_ns = (double)costs->layer_ns;
    mp_fixed_point_sum(&self->point);
    mp_fixed_point_allocate(&self->point, self->step, self->slots, self->retained, self->late,
                            self->moved);
    fixed_point_quota(policy, shape, quota);
    return true;
}

const struct mp_partition_ops mp_partition_fixed_point = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "fixed-point",
              .summary = "slots move to the layers whose loads show most (MoEpic)",
              .opts = fixed_point_opts,
              .config_size = sizeof(struct fixed_point_config),
              .costs = true },
    .create = fixed_point_create,
    .destroy = mp_policy_free,
    .quota = fixed_point_quota,
    .first = fixed_point_first,
    .revise = fixed_point_revise,
    .due = fixed_point_due,
    .predicted = fixed_point_predicted,
    .routed = fixed_point_routed,
    .retained = fixed_point_retained,
};
