/*
 * PreSched, the part that loads ahead (PreScope, section 4.3, Q2 to Q4). The merged list and its
 * queue are those of assign policy `presched` (Q1). Of the queued experts of the later layer, those
 * of most tokens first, as many are loaded as fit into the time that the current layer leaves to
 * the link (Q2); the last of them, which may be late, only if it pays at the rate at which the
 * predictor's rank has been right so far (Q3). If the queue has none of the next layer, the same is
 * asked for the one after it, up to HORIZON layers (Q4; the number is ours).
 *
 * Departures: the rate h is measured per distance and predicted rank from what was chosen in the
 * end, and begins at 1; equal tokens go by predicted score, then lower id; at most GROUP experts
 * (the size of a buffer group, not in the paper, ours: as many as a token chooses) are named for
 * one layer. Whatever assign policy is used, the plan follows from who got what. Without a CPU
 * executor the layer's compute time is that of the device; without known times there is nothing to
 * weigh and everything predicted is loaded up to the limits. O(tokens * experts * k).
 */
#include "policy/builtins.h"

#include <string.h>

#include "policy/assign/times.h"
#include "policy/prefetch/candidates.h"
#include "policy/assign/presched_times.h"
#include "vmm/base/assert.h"

#define HORIZON_MAX 3

struct presched_config {
    uint64_t horizon, group;
};

static const struct mp_opt presched_opts[] = {
    MP_OPT(MP_OPT_U64, "HORIZON", struct presched_config, horizon, "3", 1, HORIZON_MAX,
           "Layers that prefetch policy presched looks ahead, if the nearer ones need nothing."),
    MP_OPT(MP_OPT_U64, "GROUP", struct presched_config, group, "0", 0, 4096,
           "Experts that prefetch policy presched loads ahead for one layer at most; 0: as many as "
           "a token chooses."),
    MP_OPT_END,
};

struct presched {
    struct mp_policy super;
    uint32_t horizon, group, layers, experts;
    struct mp_candidates candidates;
    struct mp_presched_list list;
    uint32_t *next_tokens;   // (experts): of absent candidates
    uint32_t *next_rank;     // (experts): their ranks among all candidates
    uint8_t *chosen;         // (experts): scratch of observe
    uint32_t *ranked;        // (HORIZON_MAX, layers, experts): forecasts of each layer
    uint32_t *ranked_count;  // (HORIZON_MAX, layers); 0: none
    uint64_t *trials, *hits; // (HORIZON_MAX, experts): by distance - 1 and rank
    uint32_t found_layer;    /* for which a nearer layer has been found to load for */
};

static void presched_take(struct mp_policy *policy, const struct mp_shape *shape,
                          struct mp_arena *arena)
{
    struct presched *presched = (struct presched *)policy;
    const size_t experts = shape->experts, lists = (size_t)HORIZON_MAX * shape->layers;

    mp_candidates_take(&presched->candidates, shape, arena);
    mp_presched_list_take(&presched->list, shape, arena);
    presched->next_tokens = mp_arena_take(arena, experts, sizeof(uint32_t));
    presched->next_rank = mp_arena_take(arena, experts, sizeof(uint32_t));
    presched->chosen = mp_arena_take(arena, experts, 1);
    presched->ranked = mp_arena_take(arena, lists * experts, sizeof(uint32_t));
    presched->ranked_count = mp_arena_take(arena, lists, sizeof(uint32_t));
    presched->trials = mp_arena_take(arena, HORIZON_MAX * experts, sizeof(uint64_t));
    presched->hits = mp_arena_take(arena, HORIZON_MAX * experts, sizeof(uint64_t));
}

static enum mp_status presched_create(const void *config_, const struct mp_shape *shape,
                                      struct mp_policy **policy_p)
{
    const struct presched_config *config = config_;
    struct presched draft = {
        .super.info = &mp_prefetch_presched.info,
        .horizon = (uint32_t)config->horizon,
        .group = config->group > 0 ? (uint32_t)config->group : shape->top_k,
        .layers = shape->layers,
        .experts = shape->experts,
        .found_layer = MP_LAYER_ANY,
    };

    return mp_policy_make(&draft.super, sizeof(draft), presched_take, shape, policy_p);
}

/* Remember the ranks, to see later how right they were. */
static void note_forecast(struct presched *presched, const struct mp_prefetch_facts *facts,
                          uint32_t count)
{
    const size_t at = (size_t)(facts->distance - 1) * presched->layers + facts->target_layer;

    mp_assert(facts->distance >= 1 && facts->distance <= HORIZON_MAX);
    mp_assert(count <= presched->experts);
    for (uint32_t r = 0; r < count; r++)
        presched->ranked[at * presched->experts + r] = presched->candidates.list[r].expert;
    presched->ranked_count[at] = count;
}

static double hit_rate(const struct presched *presched, uint32_t distance, uint32_t rank)
{
    const size_t at = (size_t)(distance - 1) * presched->experts + rank;

    mp_assert(distance >= 1 && rank < presched->experts);
    return presched->trials[at] == 0 ? 1
                                     : (double)presched->hits[at] / (double)presched->trials[at];
}

/* What passes outside attention, and demand loads on the link, as the layer was assigned. */
static uint64_t compute_ns(const struct mp_prefetch_facts *facts,
                           const struct mp_presched_times *times, uint32_t *loads_p)
{
    const struct mp_assign_facts *current = facts->current;
    uint64_t sum = 0;

    *loads_p = 0;
    for (uint32_t i = 0; i < current->count; i++) {
        const struct mp_executor *executor = &current->costs->executors[facts->executors[i]];

        if (!times->cpu)
            sum += mp_assign_compute_ns(current->costs, current->tokens[i]);
        else if (executor->reads == MP_READS_HOST)
            sum += mp_presched_cpu_ns(times, current->tokens[i]);
        *loads_p += mp_assign_is_cold(current, i) && mp_executor_loads(executor);
    }
    return sum;
}

/* How many of the `members` queued experts of the later layer, largest first, to load now. */
static uint32_t plan(const struct presched *presched, const struct mp_prefetch_facts *facts,
                     const struct mp_presched_times *times, uint32_t members)
{
    uint64_t gap_ns;
    uint32_t loads, count;

    gap_ns = compute_ns(facts, times, &loads);
    gap_ns = mp_presched_gap_ns(times, gap_ns, loads);
    count = mp_presched_fit(times, gap_ns, members);
    if (count > 0 &&
        !mp_presched_pays(times, gap_ns, count,
                          hit_rate(presched, facts->distance, presched->next_rank[count - 1])))
        count--;
    return count;
}

/* Q4: a layer further ahead only if the nearer ones have nothing to load. */
static bool presched_wants(const struct mp_policy *policy, uint32_t layer, uint32_t distance)
{
    const struct presched *presched = (const struct presched *)policy;

    mp_assert(distance > 0);
    return distance == 1 || (distance <= presched->horizon && presched->found_layer != layer);
}

static uint32_t presched_choose(struct mp_policy *policy, const struct mp_prefetch_facts *facts,
                                uint32_t *experts)
{
    struct presched *presched = (struct presched *)policy;
    const uint32_t most = facts->max < presched->group ? facts->max : presched->group;
    struct mp_presched_times times;
    uint32_t absent = 0, members = 0, ranked, count;

    if (facts->distance == 1)
        presched->found_layer = MP_LAYER_ANY;
    if (!presched_wants(policy, facts->layer, facts->distance))
        return 0;
    ranked = mp_candidates_gather(&presched->candidates, facts, facts->k, MP_MARGIN_NONE);
    note_forecast(presched, facts, ranked);
    for (uint32_t r = 0; r < ranked; r++) {
        const struct mp_candidate *one = &presched->candidates.list[r];

        if (!facts->resident[one->expert]) {
            experts[absent] = one->expert;
            presched->next_rank[absent] = r;
            presched->next_tokens[absent++] = one->tokens;
        }
    }
    mp_presched_merge(&presched->list, facts->current, presched->next_tokens, absent);
    if (presched->list.count == 0)
        return 0;
    if (mp_presched_times(facts->current, presched->list.tokens[0], &times)) {
        const uint32_t queued =
            mp_presched_queue(&times, presched->list.tokens, presched->list.count);

        for (uint32_t p = 0; p < queued; p++)
            members += presched->list.is_next[p];
        count = plan(presched, facts, &times, members);
    } else {
        members = count = absent;
    }
    if (members > 0)
        presched->found_layer = facts->layer;
    return count < most ? count : most;
}

static void presched_observe(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                             const uint32_t *chosen)
{
    struct presched *presched = (struct presched *)policy;

    memset(presched->chosen, 0, presched->experts);
    for (size_t i = 0; i < (size_t)tokens * k; i++)
        presched->chosen[chosen[i]] = 1;
    for (uint32_t d = 0; d < HORIZON_MAX; d++) {
        const size_t at = (size_t)d * presched->layers + layer;
        const uint32_t *expert = presched->ranked + at * presched->experts;

        for (uint32_t r = 0; r < presched->ranked_count[at]; r++) {
            presched->trials[d * presched->experts + r]++;
            presched->hits[d * presched->experts + r] += presched->chosen[expert[r]];
        }
        presched->ranked_count[at] = 0;
    }
}

const struct mp_prefetch_ops mp_prefetch_presched = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "presched",
              .summary = "what fits beside the CPU's work, if it pays, up to 3 layers (PreScope)",
              .opts = presched_opts,
              .config_size = sizeof(struct presched_config),
              .costs = true },
    .create = presched_create,
    .destroy = mp_policy_free,
    .choose = presched_choose,
    .reach = HORIZON_MAX,
    .wants = presched_wants,
    .observe = presched_observe,
};
