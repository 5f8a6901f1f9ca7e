/*
 * Decisions of the step before it computes: the executor of each expert, and prefetches for later
 * layers.
 */
#include <string.h>

#include "policy/pager/step_int.h"
#include "policy/top_k.h"
#include "vmm/base/assert.h"

static const struct mp_costs unknown_costs = { .executor_count = 1,
                                               .executors = { { .name = "device" } } };

const struct mp_costs *mp_step_costs(const struct mp_step *step)
{
    return step->config.costs != NULL ? step->config.costs : &unknown_costs;
}

/*
 * Scores of the layer `distance` ahead into step->predicted, if the predictor has an idea:
 * *target_p is then that layer, else MP_LAYER_ANY. Past the last layer it goes on at layer 0 of the
 * next step.
 */
static enum mp_status predict_anew(struct mp_step *step, uint32_t layer, uint32_t tokens,
                                   uint32_t distance, uint32_t *target_p)
{
    const struct mp_shape *shape = &step->config.shape;
    const struct mp_predict_ops *ops = step->config.policies->predict_ops;
    struct mp_predict_facts facts = {
        .layer = layer,
        .target_layer = (layer + distance) % shape->layers,
        .tokens = tokens,
        .experts = shape->experts,
        .k = shape->top_k,
        .chosen = step->chosen,
    };
    enum mp_status status;
    uint64_t start_ns;

    mp_assert(distance > 0);
    mp_assert(layer < shape->layers);
    *target_p = MP_LAYER_ANY;
    if (ops->predict == NULL || distance > (ops->reach > 1 ? ops->reach : 1) ||
        distance >= shape->layers || (layer + distance >= shape->layers && !ops->wraps))
        return MP_OK;
    if (ops->source != MP_SCORES_NONE) {
        if (step->config.ops->source_scores == NULL)
            return MP_OK;
        status = step->config.ops->source_scores(step->config.ctx, layer, facts.target_layer,
                                                 ops->source, step->source);
        if (status != MP_OK)
            return status;
        facts.source = step->source;
    }
    start_ns = mp_step_now_ns(step);
    if (ops->predict(step->config.policies->predict, &facts, step->predicted)) {
        const struct mp_policies *set = step->config.policies;

        *target_p = facts.target_layer;
        if (distance == 1 && set->partition_ops->predicted != NULL)
            set->partition_ops->predicted(set->partition, facts.target_layer, tokens,
                                          step->predicted);
    }
    step->config.counters->decisions_ns += mp_step_now_ns(step) - start_ns;
    if (*target_p != MP_LAYER_ANY && step->config.ops->predicted != NULL)
        step->config.ops->predicted(step->config.ctx, layer, *target_p, tokens, step->predicted);
    return MP_OK;
}

/* The same, but what was predicted for assign is not predicted again, unless there is more to see
 * now: what the resident experts give. */
static enum mp_status predict(struct mp_step *step, uint32_t layer, uint32_t tokens,
                              uint32_t distance, uint32_t *target_p)
{
    const bool partial = step->config.policies->predict_ops->source == MP_SCORES_PARTIAL;
    enum mp_status status;

    mp_assert(distance > 0);
    if (step->shared_distance == distance && !partial) {
        *target_p = step->shared_target;
        return MP_OK;
    }
    step->shared_distance = 0;
    status = predict_anew(step, layer, tokens, distance, target_p);
    if (status != MP_OK)
        return status;
    step->shared_distance = distance;
    step->shared_target = *target_p;
    return MP_OK;
}

/* next_tokens(experts) := how many tokens have the expert among their k best predicted scores. */
static void count_predicted(struct mp_step *step, uint32_t target, uint32_t tokens)
{
    const uint32_t experts = step->config.shape.experts, k = step->config.shape.top_k;

    mp_assert(target < step->config.shape.layers);
    memset(step->next_tokens, 0, experts * sizeof(step->next_tokens[0]));
    for (uint32_t t = 0; t < tokens; t++) {
        const float *scores = step->predicted + (size_t)t * experts;

        for (uint32_t e = 0; e < experts; e++) {
            uint32_t better = 0;

            for (uint32_t o = 0; o < experts && better < k; o++)
                better += scores[o] > scores[e] || (scores[o] == scores[e] && o < e);
            step->next_tokens[e] += better < k;
        }
    }
    mp_pager_residents(step->config.pager, target, true, step->next_resident);
}

/* Slots that are not those of residents which the layer uses: so many more of its experts can be in
 * the device tier at once (DALI eq. 9). One is found in any case, when another is done. */
static uint32_t count_transient(const struct mp_step *step)
{
    const uint32_t slots = mp_pager_slots(step->config.pager);
    uint32_t used = 0;

    for (uint32_t i = 0; i < step->need_count; i++)
        used += step->need_resident[i];
    return slots > used ? slots - used : 1;
}

/* Who really computes a need: the one that was named, if there is one and it can have the bytes. */
static uint32_t settle_executor(struct mp_step *step, uint32_t layer, uint32_t i)
{
    const uint32_t named = step->executors[i];
    const struct mp_step_executor *executor;

    mp_assert(i < step->need_count);
    if (named >= step->costs.executor_count) {
        step->config.counters->invalid_decisions++;
        return MP_EXECUTOR_HOME;
    }
    executor = &step->config.executors[named];
    if (executor->take != NULL && !executor->take(executor->ctx, layer, step->need_experts[i]))
        return MP_EXECUTOR_HOME;
    return named;
}

enum mp_status mp_step_assign(struct mp_step *step, uint32_t layer, uint32_t tokens)
{
    const struct mp_policies *set = step->config.policies;
    const struct mp_step_ops *ops = step->config.ops;
    uint32_t target = MP_LAYER_ANY;
    uint64_t start_ns;

    step->shared_distance = 0;
    step->costs = *mp_step_costs(step);
    step->costs.transient = count_transient(step);
    step->assigned = (struct mp_assign_facts){
        .layer = layer,
        .count = step->need_count,
        .experts = step->need_experts,
        .tokens = step->need_tokens,
        .scores = step->need_scores,
        .resident = step->need_resident,
        .costs = &step->costs,
        .arrival_ns = step->arriving ? step->need_arrival : NULL,
        .link_busy_ns = mp_step_link_busy_ns(step),
    };
    if (set->assign_ops->looks_ahead) {
        const enum mp_status status = predict(step, layer, tokens, 1, &target);

        if (status != MP_OK)
            return status;
    }
    start_ns = mp_step_now_ns(step);
    if (target != MP_LAYER_ANY) {
        count_predicted(step, target, tokens);
        step->assigned.next_tokens = step->next_tokens;
        step->assigned.next_resident = step->next_resident;
    }
    set->assign_ops->assign(set->assign, &step->assigned, step->executors);
    if (ops->assigned != NULL) {
        const enum mp_status status =
            ops->assigned(step->config.ctx, &step->assigned, step->executors);

        if (status != MP_OK)
            return status;
    }
    for (uint32_t i = 0; i < step->need_count; i++) {
        step->executors[i] = settle_executor(step, layer, i);
        step->needs[i].elsewhere = !mp_executor_loads(&step->costs.executors[step->executors[i]]);
    }
    step->config.counters->decisions_ns += mp_step_now_ns(step) - start_ns;
    return MP_OK;
}

/* Every unit has a slot, and those of layer `target` hold their bytes: no guess would move one, and
 * nobody else asks. */
static bool nothing_to_move(struct mp_step *step, uint32_t target)
{
    const struct mp_shape *shape = &step->config.shape;

    mp_assert(target < shape->layers);
    if (mp_pager_slots(step->config.pager) < shape->layers * shape->experts ||
        step->config.ops->predicted != NULL ||
        step->config.policies->partition_ops->predicted != NULL)
        return false;
    mp_pager_residents(step->config.pager, target, false, step->resident);
    return memchr(step->resident, 0, shape->experts) == NULL;
}

/* Has anybody a use for a prediction of the layer `distance` ahead? */
static bool is_wanted(const struct mp_step *step, uint32_t layer, uint32_t distance)
{
    const struct mp_policies *set = step->config.policies;

    mp_assert(distance > 0);
    if (set->prefetch_ops->wants == NULL ||
        (distance == 1 && set->partition_ops->predicted != NULL))
        return true;
    return set->prefetch_ops->wants(set->prefetch, layer, distance);
}

/*
 * Residents that are among a token's best predicted ones are no victims until their layer runs,
 * whether or not the prefetch policy names them: it may name only what is absent, or a few. Where a
 * batch would choose nearly all experts of a layer, nothing is said by that.
 */
static void foresee(struct mp_step *step, uint32_t target, uint32_t tokens)
{
    const uint32_t experts = step->config.shape.experts, k = step->config.shape.top_k;

    mp_assert(target < step->config.shape.layers);
    if (tokens * k > experts)
        return;
    for (uint32_t t = 0; t < tokens; t++) {
        mp_top_k(step->predicted + (size_t)t * experts, experts, k, step->wanted,
                 step->wanted_scores);
        mp_pager_foresee(step->config.pager, target, step->wanted, k);
    }
}

/* Guess what one later layer will want and start to load it. */
static enum mp_status look_ahead(struct mp_step *step, uint32_t layer, uint32_t tokens,
                                 uint32_t distance)
{
    const struct mp_shape *shape = &step->config.shape;
    const struct mp_policies *set = step->config.policies;
    struct mp_prefetch_facts facts;
    enum mp_status status;
    uint64_t start_ns;
    uint32_t target, count;

    mp_assert(distance > 0);
    if (nothing_to_move(step, (layer + distance) % shape->layers) ||
        !is_wanted(step, layer, distance))
        return MP_OK;
    status = predict(step, layer, tokens, distance, &target);
    if (status != MP_OK || target == MP_LAYER_ANY)
        return status;
    start_ns = mp_step_now_ns(step);
    mp_pager_residents(step->config.pager, target, true, step->resident);
    facts = (struct mp_prefetch_facts){
        .layer = layer,
        .target_layer = target,
        .tokens = tokens,
        .experts = shape->experts,
        .k = shape->top_k,
        .scores = step->predicted,
        .resident = step->resident,
        .max = mp_pager_prefetch_room(step->config.pager, target),
        .distance = distance,
        .current = &step->assigned,
        .executors = step->executors,
    };
    foresee(step, target, tokens);
    count = set->prefetch_ops->choose(set->prefetch, &facts, step->wanted);
    if (count > shape->experts) {
        step->config.counters->invalid_decisions++;
        count = 0;
    }
    step->config.counters->decisions_ns += mp_step_now_ns(step) - start_ns;
    mp_pager_prefetch(step->config.pager, target, step->wanted, count);
    return MP_OK;
}

enum mp_status mp_step_look_ahead(struct mp_step *step, uint32_t layer, uint32_t tokens)
{
    const struct mp_policies *set = step->config.policies;
    const struct mp_prefetch_ops *ops = set->prefetch_ops;
    const uint32_t reach = ops->reach > 1 ? ops->reach : 1;
    enum mp_status status = MP_OK;

    mp_assert(tokens <= step->config.shape.tokens_max);
    if (ops->choose == NULL)
        return MP_OK;
    for (uint32_t d = 1; d <= reach && status == MP_OK; d++)
        status = look_ahead(step, layer, tokens, d);
    return status;
}
