/*
 * The step; see step.h. One function, mp_step_layer(), reads as the list at the top of the header.
 *
 * Experts are grouped by counting sort: rows of one expert are adjacent, tokens ascending. The
 * order in which experts are executed follows the pager and may differ from run to run; each writes
 * to its own (token, rank) places and `combine` adds in rank order, so results do not differ.
 */
#include "policy/pager/step_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/top_k.h"
#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

static enum mp_status check_scores(const float *scores, uint32_t layer, uint32_t tokens,
                                   uint32_t experts)
{
    mp_assert(tokens > 0);
    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t e = 0; e < experts; e++) {
            if (!isfinite(scores[(size_t)t * experts + e]))
                return mp_fail(MP_ERR_MODEL, "E_ROUTER_NAN",
                               "router score of MoE layer %u, token %u of the batch, expert %u is "
                               "not a finite number; the weights are damaged or overflow",
                               layer, t, e);
        }
    }
    return MP_OK;
}

/* k different experts in range with finite weights, for every token? */
static bool route_is_sane(const uint32_t *chosen, const float *weights, uint32_t tokens, uint32_t k,
                          uint32_t experts)
{
    mp_assert(k <= experts);
    for (uint32_t t = 0; t < tokens; t++) {
        const uint32_t *mine = chosen + (size_t)t * k;

        for (uint32_t r = 0; r < k; r++) {
            if (mine[r] >= experts || !isfinite(weights[(size_t)t * k + r]))
                return false;
            for (uint32_t s = 0; s < r; s++) {
                if (mine[s] == mine[r])
                    return false;
            }
        }
    }
    return true;
}

/* How many choices of a token are not among its exact ones? */
static void count_substitutes(struct mp_step *step, const struct mp_route_facts *facts)
{
    const uint32_t k = facts->k;

    mp_assert(!step->config.policies->route_ops->exact);
    mp_route_top_k(facts, step->exact, step->exact_weights);
    step->config.counters->route_choices += (uint64_t)facts->tokens * k;
    for (size_t i = 0; i < (size_t)facts->tokens * k; i++) {
        const uint32_t *mine = step->exact + i / k * k;
        uint32_t r = 0;

        while (r < k && mine[r] != step->chosen[i])
            r++;
        step->config.counters->route_substituted += r == k;
    }
}

/* Of the step before, if layer 0 of the next one begins. */
static uint64_t measured_step_ns(struct mp_step *step, uint32_t layer)
{
    const uint64_t now_ns = mp_step_now_ns(step), before_ns = step->begun_ns;

    if (layer > 0 || mp_pager_is_deterministic(step->config.pager))
        return 0;
    step->begun_ns = now_ns;
    return before_ns > 0 ? now_ns - before_ns : 0;
}

static void route(struct mp_step *step, uint32_t layer, uint32_t tokens)
{
    const struct mp_shape *shape = &step->config.shape;
    const struct mp_policies *set = step->config.policies;
    struct mp_route_facts facts = {
        .layer = layer,
        .tokens = tokens,
        .experts = shape->experts,
        .k = shape->top_k,
        .scores = step->scores,
        .resident = step->resident,
        .step_ns = measured_step_ns(step, layer),
        .costs = mp_step_costs(step),
    };
    const uint64_t start_ns = mp_step_now_ns(step);

    mp_pager_residents(step->config.pager, layer, false, step->resident);
    step->arriving =
        mp_pager_arrivals(step->config.pager, layer, step->resident, mp_step_link_busy_ns(step),
                          facts.costs->load_ns / step->slices, step->arrival);
    facts.arrival_ns = step->arriving ? step->arrival : NULL;
    set->route_ops->route(set->route, &facts, step->chosen, step->weights);
    if (!route_is_sane(step->chosen, step->weights, tokens, shape->top_k, shape->experts)) {
        step->config.counters->invalid_decisions++;
        mp_route_top_k(&facts, step->chosen, step->weights);
    }
    step->config.counters->decisions_ns += mp_step_now_ns(step) - start_ns;
    if (!set->route_ops->exact)
        count_substitutes(step, &facts);
    if (step->config.ops->weigh != NULL)
        step->config.ops->weigh(step->config.ctx, layer, step->chosen, step->weights);
    mp_pager_scores(step->config.pager, layer, tokens, shape->top_k, step->scores, step->chosen);
}

/* Sort (token, rank) pairs by expert and list the experts that have any. */
static void group(struct mp_step *step, uint32_t tokens)
{
    const uint32_t experts = step->config.shape.experts, k = step->config.shape.top_k;
    uint32_t *first = step->first;

    mp_assert(tokens <= step->config.shape.tokens_max);
    memset(first, 0, (experts + 1) * sizeof(first[0]));
    for (uint32_t i = 0; i < tokens * k; i++)
        first[step->chosen[i] + 1]++;
    step->need_count = 0;
    for (uint32_t e = 0; e < experts; e++) {
        if (first[e + 1] > 0) {
            step->needs[step->need_count] = (struct mp_need){ .expert = e, .tokens = first[e + 1] };
            step->need_experts[step->need_count] = e;
            step->need_tokens[step->need_count] = first[e + 1];
            step->need_arrival[step->need_count] = step->arrival[e];
            step->need_resident[step->need_count++] = step->resident[e];
        }
        first[e + 1] += first[e];
    }
    /* Place rows from the end, so that first[] is left as the starts. */
    for (uint32_t i = tokens * k; i-- > 0;) {
        const uint32_t at = --first[step->chosen[i] + 1];

        step->row_token[at] = i / k;
        step->row_rank[at] = i % k;
    }
    /* first[e + 1] is now the start of expert e: shift back. */
    memmove(first, first + 1, experts * sizeof(first[0]));
    first[experts] = tokens * k;
    for (uint32_t i = 0; i < step->need_count; i++) {
        const uint32_t e = step->need_experts[i];

        step->need_scores[i] = 0;
        for (uint32_t row = first[e]; row < first[e + 1]; row++)
            step->need_scores[i] +=
                step->weights[(size_t)step->row_token[row] * k + step->row_rank[row]];
    }
}

/* Everything between mp_pager_begin() and mp_pager_end(). A prediction from what the resident
 * experts give comes after them, and one that is computed beside them after they have begun; all
 * others before any of the layer's work, so that reads begin. */
static enum mp_status run_open_layer(struct mp_step *step, uint32_t layer, uint32_t tokens)
{
    const struct mp_step_ops *ops = step->config.ops;
    const bool late = step->config.policies->predict_ops->source == MP_SCORES_PARTIAL;
    enum mp_status status = mp_step_execute_elsewhere(step, layer, false);
    bool more;

    mp_assert(!ops->predicts_beside || ops->ended != NULL);
    if (status == MP_OK && !late && ops->predicts_beside)
        status = mp_step_execute_some(step, layer, false, &more);
    if (status == MP_OK && !late)
        status = mp_step_look_ahead(step, layer, tokens);
    if (status == MP_OK && ops->shared != NULL)
        status = ops->shared(step->config.ctx, layer);
    if (status == MP_OK && late)
        status = mp_step_execute_some(step, layer, false, &more);
    if (status == MP_OK && late)
        status = mp_step_look_ahead(step, layer, tokens);
    if (status == MP_OK)
        status = mp_step_execute(step, layer);
    return status;
}

/* Notify the policies of what was chosen. */
static void observe(struct mp_step *step, uint32_t layer, uint32_t tokens)
{
    const struct mp_policies *set = step->config.policies;
    const uint32_t k = step->config.shape.top_k;
    const uint64_t start_ns = mp_step_now_ns(step);

    if (set->predict_ops->observe != NULL)
        set->predict_ops->observe(set->predict, layer, tokens, k, step->chosen);
    if (set->prefetch_ops->observe != NULL)
        set->prefetch_ops->observe(set->prefetch, layer, tokens, k, step->chosen);
    if (set->partition_ops->routed != NULL)
        set->partition_ops->routed(set->partition, layer, tokens, k, step->chosen);
    step->config.counters->decisions_ns += mp_step_now_ns(step) - start_ns;
}

/* Is all of the layer's work such that the next layer's comes after it? */
static bool may_be_left(const struct mp_step *step, uint32_t layer)
{
    bool ordered = step->config.ops->ended != NULL && layer + 1 < step->config.shape.layers &&
                   step->config.executors[MP_EXECUTOR_HOME].ordered;

    for (uint32_t i = 0; i < step->need_count; i++)
        ordered = ordered && step->executors[i] == MP_EXECUTOR_HOME;
    return ordered;
}

/* The layer is over, though work that is `ordered` may go on. */
static void leave(struct mp_step *step)
{
    step->open = step->under_way > 0;
    if (!step->open)
        mp_pager_end(step->config.pager);
}

/* The layer before, if it was left open: its work has ended, or `status` is an error. */
static enum mp_status close_left(struct mp_step *step, enum mp_status status)
{
    if (!step->open)
        return status;
    if (status == MP_OK)
        status = mp_step_wait(step);
    if (status == MP_OK) {
        mp_pager_end(step->config.pager);
    } else {
        mp_step_drain(step);
        mp_pager_abort(step->config.pager);
    }
    step->open = false;
    return status;
}

void mp_step_abandon(struct mp_step *step)
{
    const struct mp_error before = *mp_error_last();

    (void)close_left(step, MP_ERR_CANCELED);
    mp_error_set(&before);
}

enum mp_status mp_step_layer(struct mp_step *step, uint32_t layer, uint32_t tokens)
{
    const struct mp_shape *shape = &step->config.shape;
    const struct mp_step_ops *ops = step->config.ops;
    const uint64_t start_ns = mp_step_now_ns(step);
    uint64_t end_ns;
    enum mp_status status;

    mp_assert(step->open || step->under_way == 0);
    if (layer >= shape->layers || tokens == 0 || tokens > shape->tokens_max)
        return mp_fail(MP_ERR_INVALID, "E_STEP", "layer %u, %u tokens: out of range", layer,
                       tokens);

    status = close_left(step, ops->scores(step->config.ctx, layer, step->scores));
    if (status == MP_OK)
        status = check_scores(step->scores, layer, tokens, shape->experts);
    if (status != MP_OK)
        return status;
    route(step, layer, tokens);
    group(step, tokens);
    if (ops->routed != NULL)
        ops->routed(step->config.ctx, layer, tokens, shape->top_k, step->chosen, step->weights);
    status = mp_step_assign(step, layer, tokens);
    if (status != MP_OK)
        return status;
    step->leaves = may_be_left(step, layer);

    /* An answer takes longer than a read, so other machines are asked first. */
    status = mp_step_execute_elsewhere(step, layer, true);
    if (status == MP_OK)
        status = mp_pager_begin(step->config.pager, layer, step->needs, step->need_count);
    if (status != MP_OK) {
        mp_step_drain(step);
        return status;
    }
    status = run_open_layer(step, layer, tokens);
    if (status != MP_OK) {
        mp_step_drain(step);
        mp_pager_abort(step->config.pager);
        return status;
    }
    leave(step);

    status = ops->combine(step->config.ctx, layer, step->chosen, step->weights);
    observe(step, layer, tokens);
    if (status != MP_OK)
        status = close_left(step, status);
    end_ns = mp_step_now_ns(step);
    step->config.counters->layers_ns += end_ns - start_ns;
    mp_timeline_span(step->config.timeline, step->track, "MoE layer", start_ns, end_ns,
                     &(struct mp_timeline_args){ { "layer", "tokens" }, { layer, tokens } });
    return status;
}

static void take_parts(struct mp_step *step, struct mp_arena *arena)
{
    const struct mp_shape *shape = &step->config.shape;
    const uint64_t experts = shape->experts, parts = experts * step->slices;
    const uint64_t scores = shape->tokens_max * experts;
    const uint64_t rows = (uint64_t)shape->tokens_max * shape->top_k;

    mp_assert(rows > 0 && step->slices > 0);
    step->scores = mp_arena_take(arena, scores, sizeof(float));
    step->source = mp_arena_take(arena, scores, sizeof(float));
    step->predicted = mp_arena_take(arena, scores, sizeof(float));
    step->exact = mp_arena_take(arena, rows, sizeof(uint32_t));
    step->exact_weights = mp_arena_take(arena, rows, sizeof(float));
    step->chosen = mp_arena_take(arena, rows, sizeof(uint32_t));
    step->weights = mp_arena_take(arena, rows, sizeof(float));
    step->row_token = mp_arena_take(arena, rows, sizeof(uint32_t));
    step->row_rank = mp_arena_take(arena, rows, sizeof(uint32_t));
    step->resident = mp_arena_take(arena, experts, 1);
    step->first = mp_arena_take(arena, experts + 1, sizeof(uint32_t));
    step->needs = mp_arena_take(arena, experts, sizeof(struct mp_need));
    step->need_experts = mp_arena_take(arena, experts, sizeof(uint32_t));
    step->need_tokens = mp_arena_take(arena, experts, sizeof(uint32_t));
    step->need_scores = mp_arena_take(arena, experts, sizeof(float));
    step->need_resident = mp_arena_take(arena, experts, 1);
    step->arrival = mp_arena_take(arena, experts, sizeof(uint64_t));
    step->need_arrival = mp_arena_take(arena, experts, sizeof(uint64_t));
    step->executors = mp_arena_take(arena, experts, sizeof(uint32_t));
    step->wanted = mp_arena_take(arena, experts, sizeof(uint32_t));
    step->wanted_scores = mp_arena_take(arena, experts, sizeof(float));
    step->next_tokens = mp_arena_take(arena, experts, sizeof(uint32_t));
    step->next_resident = mp_arena_take(arena, experts, 1);
    step->ended = mp_arena_take(arena, parts, sizeof(uint32_t));
    step->work = mp_arena_take(arena, parts, sizeof(struct mp_expert_work));
}

enum mp_status mp_step_create(const struct mp_step_config *config, struct mp_step **step_p)
{
    const struct mp_shape *shape = &config->shape;
    const uint64_t rows = (uint64_t)shape->tokens_max * shape->top_k;
    struct mp_arena arena = { 0 };
    struct mp_step *step;
    enum mp_status status;

    if (rows == 0 || rows > UINT32_MAX || shape->top_k > shape->experts)
        return mp_fail(MP_ERR_INVALID, "E_STEP", "%u tokens of %u experts are out of range",
                       shape->tokens_max, shape->experts);
    mp_assert(config->pager != NULL && config->policies != NULL);
    mp_assert(config->ops->scores != NULL && config->ops->combine != NULL);
    step = calloc(1, sizeof(*step));
    if (step == NULL)
        return mp_fail_no_memory("the step", sizeof(*step));
    step->config = *config;
    step->slices = shape->slices > 1 ? shape->slices : 1;
    step->interrupt = (struct mp_interrupt){ .ready = config->ops->any_ended,
                                             .look = config->ops->look,
                                             .ctx = config->ctx };
    take_parts(step, &arena);
    status = mp_arena_open(&arena, "routing");
    if (status != MP_OK) {
        free(step);
        return status;
    }
    step->block = arena.block;
    take_parts(step, &arena);
    if (config->timeline != NULL)
        step->track = mp_timeline_add_track(config->timeline, "layers");
    *step_p = step;
    return MP_OK;
}

void mp_step_destroy(struct mp_step *step)
{
    if (step == NULL)
        return;
    free(step->block);
    free(step);
}
