/*
 * The step; see step.h. One function, mp_step_layer(), reads as the list at the top of the header.
 *
 * Experts are grouped by counting sort: rows of one expert stand together, tokens ascending. The
 * order in which experts are executed follows the pager and may differ from run to run; each writes
 * to (token, rank) places of its own and `combine` adds in rank order, so results do not differ.
 */
#include "policy/step.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/builtins.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"

struct mp_step {
    struct mp_step_config config;
    unsigned track;

    float *scores;        // (tokens_max, experts)
    float *source;        // (tokens_max, experts)
    uint32_t *exact;      // (tokens_max, top_k): the model's own routing, if the policy's is not
    float *exact_weights; // (tokens_max, top_k)
    float *predicted;     // (tokens_max, experts)
    uint32_t *chosen;     // (tokens_max, top_k)
    float *weights;       // (tokens_max, top_k)
    uint8_t *resident;    // (experts)

    uint32_t *first;             // (experts + 1): rows of expert e are [first[e], first[e + 1])
    uint32_t *row_token;         // (tokens_max * top_k)
    uint32_t *row_rank;          // (tokens_max * top_k)
    struct mp_need *needs;       // (experts): the chosen ones, ascending
    uint32_t *need_experts;      // (experts)
    uint32_t *need_tokens;       // (experts)
    float *need_scores;          // (experts)
    uint8_t *need_resident;      // (experts)
    enum mp_executor *executors; // (experts)
    uint32_t *ended;             // (experts): needs whose work has ended
    uint32_t under_way;          /* taken over and not ended */
    struct mp_interrupt interrupt;
    uint32_t *wanted;            // (experts): what prefetch names
    uint32_t *next_tokens;       // (experts): predicted for the next layer, for assign
    uint8_t *next_resident;      // (experts)
    struct mp_expert_work *work; // (experts): what is computed in one call
    uint32_t need_count;
    struct mp_assign_facts assigned; /* what assign was told of the open layer */
};

static const struct mp_costs unknown_costs;

static const struct mp_costs *costs(const struct mp_step *step)
{
    return step->config.costs != NULL ? step->config.costs : &unknown_costs;
}

static uint64_t now_ns(const struct mp_step *step)
{
    return mp_clock_now_ns(step->config.clock);
}

static enum mp_status check_scores(const float *scores, uint32_t layer, uint32_t tokens,
                                   uint32_t experts)
{
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

static void route(struct mp_step *step, uint32_t layer, uint32_t tokens)
{
    const struct mp_shape *shape = &step->config.shape;
    const struct mp_policies *set = step->config.policies;
    const struct mp_route_facts facts = {
        .layer = layer,
        .tokens = tokens,
        .experts = shape->experts,
        .k = shape->top_k,
        .scores = step->scores,
        .resident = step->resident,
        .costs = costs(step),
    };
    const uint64_t start_ns = now_ns(step);

    mp_pager_residents(step->config.pager, layer, false, step->resident);
    set->route_ops->route(set->route, &facts, step->chosen, step->weights);
    if (!route_is_sane(step->chosen, step->weights, tokens, shape->top_k, shape->experts)) {
        step->config.counters->policy_strikes++;
        mp_route_top_k(&facts, step->chosen, step->weights);
    }
    step->config.counters->decisions_ns += now_ns(step) - start_ns;
    if (!set->route_ops->exact)
        count_substitutes(step, &facts);
    mp_pager_scores(step->config.pager, layer, tokens, shape->top_k, step->scores, step->chosen);
}

/* Sort (token, rank) pairs by expert and list the experts that have any. */
static void group(struct mp_step *step, uint32_t tokens)
{
    const uint32_t experts = step->config.shape.experts, k = step->config.shape.top_k;
    uint32_t *first = step->first;

    memset(first, 0, (experts + 1) * sizeof(first[0]));
    for (uint32_t i = 0; i < tokens * k; i++)
        first[step->chosen[i] + 1]++;
    step->need_count = 0;
    for (uint32_t e = 0; e < experts; e++) {
        if (first[e + 1] > 0) {
            step->needs[step->need_count] = (struct mp_need){ .expert = e, .tokens = first[e + 1] };
            step->need_experts[step->need_count] = e;
            step->need_tokens[step->need_count] = first[e + 1];
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

/*
 * Scores of the layer `distance` ahead into step->predicted, if the predictor has an idea:
 * *target_p is then that layer, else MP_LAYER_ANY. Past the last layer it goes on at layer 0 of the
 * next step.
 */
static enum mp_status predict(struct mp_step *step, uint32_t layer, uint32_t tokens,
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
    start_ns = now_ns(step);
    if (ops->predict(step->config.policies->predict, &facts, step->predicted)) {
        const struct mp_policies *set = step->config.policies;

        *target_p = facts.target_layer;
        if (distance == 1 && set->partition_ops->predicted != NULL)
            set->partition_ops->predicted(set->partition, facts.target_layer, tokens,
                                          step->predicted);
    }
    step->config.counters->decisions_ns += now_ns(step) - start_ns;
    if (*target_p != MP_LAYER_ANY && step->config.ops->predicted != NULL)
        step->config.ops->predicted(step->config.ctx, layer, *target_p, tokens, step->predicted);
    return MP_OK;
}

/* next_tokens(experts) := how many tokens have the expert among their k best predicted scores. */
static void count_predicted(struct mp_step *step, uint32_t target, uint32_t tokens)
{
    const uint32_t experts = step->config.shape.experts, k = step->config.shape.top_k;

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

static enum mp_status assign(struct mp_step *step, uint32_t layer, uint32_t tokens)
{
    const struct mp_policies *set = step->config.policies;
    uint32_t target = MP_LAYER_ANY;
    uint64_t start_ns;

    step->assigned = (struct mp_assign_facts){
        .layer = layer,
        .count = step->need_count,
        .experts = step->need_experts,
        .tokens = step->need_tokens,
        .scores = step->need_scores,
        .resident = step->need_resident,
        .executors = step->config.executors,
        .costs = costs(step),
        .link_busy_ns =
            step->config.ops->link_busy != NULL ? step->config.ops->link_busy(step->config.ctx) : 0,
    };
    if (set->assign_ops->looks_ahead) {
        const enum mp_status status = predict(step, layer, tokens, 1, &target);

        if (status != MP_OK)
            return status;
    }
    start_ns = now_ns(step);
    if (target != MP_LAYER_ANY) {
        count_predicted(step, target, tokens);
        step->assigned.next_tokens = step->next_tokens;
        step->assigned.next_resident = step->next_resident;
    }
    set->assign_ops->assign(set->assign, &step->assigned, step->executors);
    for (uint32_t i = 0; i < step->need_count; i++) {
        const unsigned executor = step->executors[i];

        if (executor >= MP_EXECUTOR_COUNT || !(step->config.executors & 1u << executor)) {
            step->config.counters->policy_strikes++;
            step->executors[i] = MP_EXECUTOR_DEVICE;
        }
        step->needs[i].elsewhere = step->executors[i] != MP_EXECUTOR_DEVICE;
    }
    step->config.counters->decisions_ns += now_ns(step) - start_ns;
    return MP_OK;
}

/* Every unit has a slot, and those of layer `target` hold their bytes: no guess would move one, and
 * nobody else asks. */
static bool nothing_to_move(struct mp_step *step, uint32_t target)
{
    const struct mp_shape *shape = &step->config.shape;

    if (shape->slots < shape->layers * shape->experts || step->config.ops->predicted != NULL ||
        step->config.policies->partition_ops->predicted != NULL)
        return false;
    mp_pager_residents(step->config.pager, target, false, step->resident);
    return memchr(step->resident, 0, shape->experts) == NULL;
}

/* Guess what one later layer will want and start to load it. */
static enum mp_status look_ahead(struct mp_step *step, uint32_t layer, uint32_t tokens,
                                 uint32_t distance)
{
    const struct mp_shape *shape = &step->config.shape;
    const struct mp_policies *set = step->config.policies;
    struct mp_prefetch_facts wish;
    enum mp_status status;
    uint64_t start_ns;
    uint32_t target, count;

    if (nothing_to_move(step, (layer + distance) % shape->layers))
        return MP_OK;
    status = predict(step, layer, tokens, distance, &target);
    if (status != MP_OK || target == MP_LAYER_ANY)
        return status;
    start_ns = now_ns(step);
    mp_pager_residents(step->config.pager, target, true, step->resident);
    wish = (struct mp_prefetch_facts){
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
    count = set->prefetch_ops->choose(set->prefetch, &wish, step->wanted);
    if (count > shape->experts) {
        step->config.counters->policy_strikes++;
        count = 0;
    }
    step->config.counters->decisions_ns += now_ns(step) - start_ns;
    mp_pager_prefetch(step->config.pager, target, step->wanted, count);
    return MP_OK;
}

static enum mp_status look_ahead_all(struct mp_step *step, uint32_t layer, uint32_t tokens)
{
    const struct mp_prefetch_ops *ops = step->config.policies->prefetch_ops;
    enum mp_status status = MP_OK;

    for (uint32_t d = 1;
         ops->choose != NULL && d <= (ops->reach > 1 ? ops->reach : 1) && status == MP_OK; d++)
        status = look_ahead(step, layer, tokens, d);
    return status;
}

static void add_work(const struct mp_step *step, uint32_t need, struct mp_expert_work *work)
{
    const uint32_t expert = step->needs[need].expert;

    work->need = need;
    work->expert = expert;
    work->executor = step->executors[need];
    work->rows.token = step->row_token + step->first[expert];
    work->rows.rank = step->row_rank + step->first[expert];
    work->rows.count = step->first[expert + 1] - step->first[expert];
}

static void note_ended(struct mp_step *step, uint32_t need)
{
    if (!step->needs[need].elsewhere)
        mp_pager_done(step->config.pager, need);
}

/* Let step->work be computed. */
static enum mp_status hand_over(struct mp_step *step, uint32_t layer, uint32_t count)
{
    const struct mp_step_ops *ops = step->config.ops;
    const enum mp_status status = ops->experts(step->config.ctx, layer, step->work, count);

    if (status != MP_OK)
        return status;
    if (ops->ended != NULL)
        step->under_way += count;
    for (uint32_t i = 0; ops->ended == NULL && i < count; i++)
        note_ended(step, step->work[i].need);
    return MP_OK;
}

/* Wait for work that is under way. */
static enum mp_status take_ended(struct mp_step *step)
{
    uint32_t count = 0;
    const enum mp_status status =
        step->config.ops->ended(step->config.ctx, true, step->ended, &count);

    mp_assert(count > 0 && count <= step->under_way);
    step->under_way -= count;
    for (uint32_t i = 0; i < count; i++)
        note_ended(step, step->ended[i]);
    return status;
}

/* What the device does not compute needs no bytes in its tier and can begin at once. */
static enum mp_status execute_elsewhere(struct mp_step *step, uint32_t layer)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < step->need_count; i++) {
        if (step->needs[i].elsewhere)
            add_work(step, i, &step->work[count++]);
    }
    return count > 0 ? hand_over(step, layer, count) : MP_OK;
}

/* List all needs that are ready, after waiting for one if there is none. 0: none is left, or none
 * is ready. */
static enum mp_status collect(struct mp_step *step, bool wait, uint32_t *count_p)
{
    struct mp_pager *pager = step->config.pager;
    struct mp_ready ready;
    enum mp_status status =
        wait ? mp_pager_next_or(pager, step->under_way > 0 ? &step->interrupt : NULL, &ready)
             : mp_pager_next_now(pager, &ready);

    *count_p = 0;
    while (status == MP_OK && ready.need != MP_NEED_NONE) {
        struct mp_expert_work *work = &step->work[(*count_p)++];

        add_work(step, ready.need, work);
        memcpy(work->pieces, ready.pieces, sizeof(work->pieces));
        status = mp_pager_next_now(pager, &ready);
    }
    return status;
}

/* One round: hand over what is ready, or, with `wait`, wait for what ends first, a read or work
 * that is under way. *more_p: something happened. */
static enum mp_status execute_some(struct mp_step *step, uint32_t layer, bool wait, bool *more_p)
{
    uint32_t count;
    enum mp_status status = collect(step, wait, &count);

    *more_p = true;
    if (status == MP_OK && count > 0)
        return hand_over(step, layer, count);
    if (wait && step->under_way > 0 && (status == MP_OK || status == MP_ERR_BUSY))
        return take_ended(step);
    *more_p = false;
    return status;
}

/* Execute the needs in the order in which their bytes are complete. */
static enum mp_status execute(struct mp_step *step, uint32_t layer)
{
    enum mp_status status;
    bool more;

    do {
        status = execute_some(step, layer, true, &more);
    } while (status == MP_OK && more);
    return status;
}

/* After an error: nobody may work on what the pager takes back. The error stays what it was. */
static void drain(struct mp_step *step)
{
    const struct mp_error before = *mp_error_last();

    while (step->under_way > 0)
        (void)take_ended(step);
    mp_error_set(&before);
}

/* Everything between mp_pager_begin() and mp_pager_end(). A prediction from what the resident
 * experts give comes after them; all others before any of the layer's work, so that reads begin. */
static enum mp_status run_open_layer(struct mp_step *step, uint32_t layer, uint32_t tokens)
{
    const struct mp_step_ops *ops = step->config.ops;
    const bool late = step->config.policies->predict_ops->source == MP_SCORES_PARTIAL;
    enum mp_status status = execute_elsewhere(step, layer);
    bool more;

    if (status == MP_OK && !late)
        status = look_ahead_all(step, layer, tokens);
    if (status == MP_OK && ops->shared != NULL)
        status = ops->shared(step->config.ctx, layer);
    if (status == MP_OK && late)
        status = execute_some(step, layer, false, &more);
    if (status == MP_OK && late)
        status = look_ahead_all(step, layer, tokens);
    if (status == MP_OK)
        status = execute(step, layer);
    return status;
}

/* Tell the policies what was chosen. */
static void observe(struct mp_step *step, uint32_t layer, uint32_t tokens)
{
    const struct mp_policies *set = step->config.policies;
    const uint32_t k = step->config.shape.top_k;
    const uint64_t start_ns = now_ns(step);

    if (set->predict_ops->observe != NULL)
        set->predict_ops->observe(set->predict, layer, tokens, k, step->chosen);
    if (set->prefetch_ops->observe != NULL)
        set->prefetch_ops->observe(set->prefetch, layer, tokens, k, step->chosen);
    if (set->partition_ops->routed != NULL)
        set->partition_ops->routed(set->partition, layer, tokens, k, step->chosen);
    step->config.counters->decisions_ns += now_ns(step) - start_ns;
}

enum mp_status mp_step_layer(struct mp_step *step, uint32_t layer, uint32_t tokens)
{
    const struct mp_shape *shape = &step->config.shape;
    const struct mp_step_ops *ops = step->config.ops;
    const uint64_t start_ns = now_ns(step);
    uint64_t end_ns;
    enum mp_status status;

    if (layer >= shape->layers || tokens == 0 || tokens > shape->tokens_max)
        return mp_fail(MP_ERR_INVALID, "E_STEP", "layer %u, %u tokens: out of range", layer,
                       tokens);

    status = ops->scores(step->config.ctx, layer, step->scores);
    if (status == MP_OK)
        status = check_scores(step->scores, layer, tokens, shape->experts);
    if (status != MP_OK)
        return status;
    route(step, layer, tokens);
    group(step, tokens);
    if (ops->routed != NULL)
        ops->routed(step->config.ctx, layer, tokens, shape->top_k, step->chosen, step->weights);
    status = assign(step, layer, tokens);
    if (status != MP_OK)
        return status;

    status = mp_pager_begin(step->config.pager, layer, step->needs, step->need_count);
    if (status != MP_OK)
        return status;
    status = run_open_layer(step, layer, tokens);
    if (status != MP_OK) {
        drain(step);
        mp_pager_abort(step->config.pager);
        return status;
    }
    mp_pager_end(step->config.pager);

    status = ops->combine(step->config.ctx, layer, step->chosen, step->weights);
    observe(step, layer, tokens);
    end_ns = now_ns(step);
    step->config.counters->layers_ns += end_ns - start_ns;
    mp_timeline_span(step->config.timeline, step->track, "MoE layer", start_ns, end_ns,
                     &(struct mp_timeline_args){ { "layer", "tokens" }, { layer, tokens } });
    return status;
}

enum mp_status mp_step_create(const struct mp_step_config *config, struct mp_step **step_p)
{
    const struct mp_shape *shape = &config->shape;
    const size_t experts = shape->experts;
    size_t score_count, row_count;
    struct mp_step *step;

    if (!mp_mul_size(shape->tokens_max, experts, &score_count) ||
        !mp_mul_size(shape->tokens_max, shape->top_k, &row_count) || row_count > UINT32_MAX ||
        row_count == 0 || shape->top_k > shape->experts)
        return mp_fail(MP_ERR_INVALID, "E_STEP", "%u tokens of %u experts are out of range",
                       shape->tokens_max, shape->experts);
    step = calloc(1, sizeof(*step));
    if (step == NULL)
        return mp_fail_no_memory("the step", sizeof(*step));
    step->config = *config;
    step->interrupt = (struct mp_interrupt){ config->ops->any_ended, config->ctx };
    step->scores = calloc(score_count, sizeof(float));
    step->source = calloc(score_count, sizeof(float));
    step->predicted = calloc(score_count, sizeof(float));
    step->exact = calloc(row_count, sizeof(uint32_t));
    step->exact_weights = calloc(row_count, sizeof(float));
    step->chosen = calloc(row_count, sizeof(uint32_t));
    step->weights = calloc(row_count, sizeof(float));
    step->resident = calloc(experts, 1);
    step->first = calloc(experts + 1, sizeof(uint32_t));
    step->row_token = calloc(row_count, sizeof(uint32_t));
    step->row_rank = calloc(row_count, sizeof(uint32_t));
    step->needs = calloc(experts, sizeof(struct mp_need));
    step->need_experts = calloc(experts, sizeof(uint32_t));
    step->need_tokens = calloc(experts, sizeof(uint32_t));
    step->need_scores = calloc(experts, sizeof(float));
    step->need_resident = calloc(experts, 1);
    step->executors = calloc(experts, sizeof(enum mp_executor));
    step->wanted = calloc(experts, sizeof(uint32_t));
    step->ended = calloc(experts, sizeof(uint32_t));
    step->next_tokens = calloc(experts, sizeof(uint32_t));
    step->next_resident = calloc(experts, 1);
    step->work = calloc(experts, sizeof(struct mp_expert_work));
    if (step->exact == NULL || step->exact_weights == NULL || step->scores == NULL ||
        step->source == NULL || step->predicted == NULL || step->chosen == NULL ||
        step->weights == NULL || step->resident == NULL || step->first == NULL ||
        step->row_token == NULL || step->row_rank == NULL || step->needs == NULL ||
        step->need_scores == NULL || step->need_experts == NULL || step->need_tokens == NULL ||
        step->need_resident == NULL || step->executors == NULL || step->wanted == NULL ||
        step->ended == NULL || step->next_tokens == NULL || step->next_resident == NULL ||
        step->work == NULL) {
        mp_step_destroy(step);
        return mp_fail_no_memory("routing", score_count * 12 + row_count * 16);
    }
    if (config->timeline != NULL)
        step->track = mp_timeline_add_track(config->timeline, "layers");
    *step_p = step;
    return MP_OK;
}

void mp_step_destroy(struct mp_step *step)
{
    if (step == NULL)
        return;
    free(step->scores);
    free(step->source);
    free(step->exact);
    free(step->exact_weights);
    free(step->predicted);
    free(step->chosen);
    free(step->weights);
    free(step->resident);
    free(step->first);
    free(step->row_token);
    free(step->row_rank);
    free(step->needs);
    free(step->need_experts);
    free(step->need_tokens);
    free(step->need_scores);
    free(step->need_resident);
    free(step->executors);
    free(step->wanted);
    free(step->ended);
    free(step->next_tokens);
    free(step->next_resident);
    free(step->work);
    free(step);
}
