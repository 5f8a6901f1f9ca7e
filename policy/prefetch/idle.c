/*
 * Load ahead only what the link has time for: the current layer's loads, and those that run, are
 * subtracted from what the layer takes, and what is left is filled with the predicted experts that
 * most tokens want. While the layer's own loads keep the link busy nothing is named.
 *
 * For a batch one more, which the link cannot end before the next layer begins, is named if it pays
 * by the share of first guesses that were right lately, loaded or not: it saves what is done of it
 * by then, or delays by the rest (as PreScope's eq. 7 has it). Not for one token, whose victims are
 * needed as likely as what is guessed: there it lost up to 1 % of the simulated time.
 *
 * What was named and then chosen is counted with what it saved: the layer's time by layer_ns() with
 * what the prediction missed there, less the time without those. While that is less than what a
 * prediction takes, only one layer in PROBE is predicted.
 *
 * Ours. Where times are not known: nothing while the layer loads anything, else as many as a token
 * chooses. O(tokens * experts * k).
 */
#include "policy/builtins.h"

#include <math.h>

#include "policy/assign/times.h"
#include "policy/prefetch/candidates.h"
#include "policy/assign/presched_times.h"

#define STRETCH 64u /* layers over which gains are averaged */
#define PROBE 17u   /* of so many layers one is predicted although it has not paid */

/* What is to be loaded for a layer. */
struct named {
    uint32_t *experts; // (experts)
    uint32_t count, layer;
    uint32_t needed, absent; /* of the layer, by the prediction */
    uint32_t first;          /* the best one that is absent, loaded or not; or MP_EXPERT_NONE */
};

struct idle {
    struct mp_policy super;
    struct mp_candidates candidates;
    const struct mp_costs *costs;
    struct named named[2]; /* for the layer that is run, and for the one that it predicts */
    uint64_t layers;       /* observed */
    double gain_ns;        /* of a predicted layer, on average */
    double right;          /* share of first guesses that were right */
};

static void idle_take(struct mp_policy *policy, const struct mp_shape *shape,
                      struct mp_arena *arena)
{
    struct idle *idle = (struct idle *)policy;

    mp_candidates_take(&idle->candidates, shape, arena);
    for (uint32_t i = 0; i < 2; i++)
        idle->named[i].experts = mp_arena_take(arena, shape->experts, sizeof(uint32_t));
}

static enum mp_status idle_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    struct idle draft = {
        .super.info = &mp_prefetch_idle.info,
        .costs = shape->costs,
        .named = { { .layer = MP_LAYER_ANY }, { .layer = MP_LAYER_ANY } },
        .gain_ns = INFINITY, /* until something is known */
        .right = 0.5,
    };

    (void)config;
    return mp_policy_make(&draft.super, sizeof(draft), idle_take, shape, policy_p);
}

/* How many loads the link has time for beside those of the layer, and one more if that pays. */
static uint32_t free_loads(const struct idle *idle, const struct mp_prefetch_facts *facts)
{
    const struct mp_assign_facts *current = facts->current;
    const struct mp_costs *costs = current->costs;
    struct mp_presched_times times = { .load_ns = costs->load_ns,
                                       .layer_ns = costs->layer_ns,
                                       .busy_ns = current->link_busy_ns };
    uint64_t home_ns = 0, helper_ns = 0, gap_ns;
    uint32_t loads = 0, fit;

    for (uint32_t i = 0; i < current->count; i++) {
        const struct mp_executor *executor = &costs->executors[facts->executors[i]];

        if (executor->reads == MP_READS_HOST) {
            helper_ns += mp_executor_ns(executor, current->tokens[i]);
        } else {
            home_ns += mp_assign_compute_ns(costs, current->tokens[i]);
            loads += mp_assign_is_cold(current, i);
            if (mp_assign_is_coming(current, i) && current->arrival_ns[i] > times.busy_ns)
                times.busy_ns = current->arrival_ns[i];
        }
    }
    if (costs->load_ns == 0)
        return loads > 0 || current->link_busy_ns > 0 ? 0 : facts->k;
    gap_ns = mp_presched_gap_ns(&times, home_ns > helper_ns ? home_ns : helper_ns, loads);
    fit = mp_presched_fit(&times, gap_ns, facts->experts);
    return fit + (facts->tokens > 1 && mp_presched_pays(&times, gap_ns, fit + 1, idle->right));
}

static uint32_t idle_choose(struct mp_policy *policy, const struct mp_prefetch_facts *facts,
                            uint32_t *experts)
{
    struct idle *idle = (struct idle *)policy;
    /* What was named for the layer that is run is looked at only when it has run. */
    struct named *mine = &idle->named[idle->named[0].layer == facts->layer];
    uint32_t left = free_loads(idle, facts), count = 0, named;

    mine->layer = facts->target_layer;
    mine->count = 0;
    mine->first = MP_EXPERT_NONE;
    named = mp_candidates_gather(&idle->candidates, facts, facts->k, MP_MARGIN_NONE);
    mine->needed = named;
    mine->absent = 0;
    for (uint32_t r = 0; r < named; r++) {
        const uint32_t expert = idle->candidates.list[r].expert;

        if (!facts->resident[expert] && mine->absent++ == 0)
            mine->first = expert;
    }
    if (left == 0)
        return 0;
    for (uint32_t r = 0; r < named; r++) {
        const uint32_t expert = idle->candidates.list[r].expert;

        if (!facts->resident[expert] && left-- == 0)
            break;
        if (!facts->resident[expert] && count < facts->max)
            mine->experts[mine->count++] = expert;
        experts[count++] = expert; /* resident ones are kept */
    }
    return count;
}

/*
 * What a layer takes of which `absent` of `needed` experts are not there: the home executor has
 * most of them to compute, and meanwhile the link and the quickest other executor share what is
 * absent.
 */
static double layer_ns(const struct mp_costs *costs, uint32_t needed, uint32_t absent)
{
    const double home_ns = (double)needed * (double)mp_assign_compute_ns(costs, 1);
    double other_ns = INFINITY, absent_ns;

    for (uint32_t x = 0; x < costs->executor_count; x++) {
        const struct mp_executor *executor = &costs->executors[x];

        if (!mp_executor_loads(executor) && mp_executor_is_known(executor))
            other_ns = fmin(other_ns, (double)mp_executor_ns(executor, 1));
    }
    absent_ns = absent / (1 / (double)costs->load_ns + 1 / other_ns);
    return fmax(home_ns, absent_ns);
}

static bool is_chosen(uint32_t expert, const uint32_t *chosen, size_t count)
{
    size_t i = 0;

    while (i < count && chosen[i] != expert)
        i++;
    return i < count;
}

static void idle_observe(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                         const uint32_t *chosen)
{
    struct idle *idle = (struct idle *)policy;
    struct named *mine = &idle->named[idle->named[1].layer == layer];
    uint32_t right = 0;
    double saved_ns;

    idle->layers++;
    if (mine->layer != layer || idle->costs == NULL)
        return;
    for (uint32_t n = 0; n < mine->count; n++)
        right += is_chosen(mine->experts[n], chosen, (size_t)tokens * k);
    if (mine->first != MP_EXPERT_NONE)
        idle->right += (is_chosen(mine->first, chosen, (size_t)tokens * k) - idle->right) / STRETCH;
    if (isinf(idle->gain_ns))
        idle->gain_ns = 2 * (double)idle->costs->predict_ns;
    saved_ns = layer_ns(idle->costs, mine->needed, mine->absent) -
               layer_ns(idle->costs, mine->needed, mine->absent - right);
    idle->gain_ns += (saved_ns - idle->gain_ns) / STRETCH;
    mine->layer = MP_LAYER_ANY;
}

static bool idle_wants(const struct mp_policy *policy, uint32_t layer, uint32_t distance)
{
    const struct idle *idle = (const struct idle *)policy;

    (void)layer;
    (void)distance;
    return idle->costs == NULL || idle->gain_ns >= (double)idle->costs->predict_ns ||
           idle->layers % PROBE == 0;
}

const struct mp_prefetch_ops mp_prefetch_idle = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "idle",
              .summary = "the best predicted experts that an idle link has time for",
              .costs = true },
    .create = idle_create,
    .destroy = mp_policy_free,
    .choose = idle_choose,
    .wants = idle_wants,
    .observe = idle_observe,
};
