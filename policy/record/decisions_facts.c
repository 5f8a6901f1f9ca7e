/*
 * Arguments and results of each call, in their order in a log.
 */
#include <string.h>

#include "policy/record/decisions_code.h"

/* Whoever gives policies more facts puts them into the functions below, and the size here. */
_Static_assert(sizeof(struct mp_route_facts) == 56, "facts have changed: see mp_code_call()");
_Static_assert(sizeof(struct mp_assign_facts) == 80, "facts have changed: see mp_code_call()");
_Static_assert(sizeof(struct mp_predict_facts) == 40, "facts have changed: see mp_code_call()");
_Static_assert(sizeof(struct mp_prefetch_facts) == 64, "facts have changed: see mp_code_call()");
_Static_assert(sizeof(struct mp_evict_query) == 24, "facts have changed: see mp_code_call()");
_Static_assert(sizeof(struct mp_costs) == 352, "costs have changed: see code_costs()");
_Static_assert(sizeof(struct mp_executor) == 40, "executors have changed: see code_executor()");
_Static_assert(sizeof(struct mp_shape) == 64, "see put_header(), read_shape(), code_shape()");
_Static_assert(sizeof(struct mp_calibration) == 40, "see mp_code_calibration()");

static const char *const call_names[MP_CALL_COUNT] = {
    [MP_CALL_END] = "end",
    [MP_CALL_ROUTE] = "route.route",
    [MP_CALL_ASSIGN] = "assign.assign",
    [MP_CALL_PREDICT_OBSERVE] = "predict.observe",
    [MP_CALL_PREDICT] = "predict.predict",
    [MP_CALL_PREFETCH_OBSERVE] = "prefetch.observe",
    [MP_CALL_CHOOSE] = "prefetch.choose",
    [MP_CALL_ADMIT] = "admit.admit",
    [MP_CALL_INSERT] = "evict.on_insert",
    [MP_CALL_REMOVE] = "evict.on_remove",
    [MP_CALL_ACCESS] = "evict.on_access",
    [MP_CALL_PICK] = "evict.pick",
    [MP_CALL_SCORES] = "evict.on_scores",
    [MP_CALL_REPLACE] = "evict.replace",
    [MP_CALL_QUOTA] = "partition.quota",
    [MP_CALL_FIRST] = "partition.first",
    [MP_CALL_PARTITION_OBSERVE] = "partition.observe",
    [MP_CALL_REVISE] = "partition.revise",
    [MP_CALL_PARTITION_PREDICTED] = "partition.predicted",
    [MP_CALL_PARTITION_ROUTED] = "partition.routed",
    [MP_CALL_RETAINED] = "partition.retained",
};

const char *mp_call_name(enum mp_call call)
{
    return (unsigned)call < MP_CALL_COUNT ? call_names[call] : "?";
}

static size_t ids_of(const struct mp_code *code)
{
    return (size_t)code->shape.layers * code->shape.experts;
}

static bool same_executor(const struct mp_executor *a, const struct mp_executor *b)
{
    return a->fixed_ns == b->fixed_ns && a->token_ns == b->token_ns &&
           a->handoff_ns == b->handoff_ns && a->reads == b->reads && a->processor == b->processor;
}

static bool same_costs(const struct mp_costs *a, const struct mp_costs *b)
{
    bool same = a->load_ns == b->load_ns && a->predict_ns == b->predict_ns &&
                a->layer_ns == b->layer_ns && a->transient == b->transient &&
                a->executor_count == b->executor_count;

    for (uint32_t x = 0; x < a->executor_count && same; x++)
        same = same_executor(&a->executors[x], &b->executors[x]);
    return same;
}

/* Its name is for people: it is not in the log. */
static void code_executor(struct mp_code *code, struct mp_executor *executor)
{
    uint32_t reads = executor->reads;

    mp_code_u32(code, &reads, 0, MP_READS_COUNT - 1);
    mp_code_u32(code, &executor->processor, 0, MP_EXECUTORS_MAX - 1);
    mp_code_u64(code, &executor->fixed_ns, UINT64_MAX);
    mp_code_u64(code, &executor->token_ns, UINT64_MAX);
    mp_code_u64(code, &executor->handoff_ns, UINT64_MAX);
    executor->reads = (enum mp_reads)reads;
    if (code->reading)
        executor->name = "";
}

/* 1: as last time, 2: new ones. */
static void code_cost_values(struct mp_code *code, const struct mp_costs *costs,
                             struct mp_code_costs *latest)
{
    struct mp_costs now = code->reading ? latest->costs : *costs;
    uint32_t how = latest->known && same_costs(&now, &latest->costs) ? 1 : 2;

    mp_code_u32(code, &how, 1, 2);
    if (how == 1 && !latest->known)
        mp_code_problem(code, "costs are missing");
    if (how != 2)
        return;
    mp_code_u64(code, &now.load_ns, UINT64_MAX);
    mp_code_u64(code, &now.predict_ns, UINT64_MAX);
    mp_code_u64(code, &now.layer_ns, UINT64_MAX);
    mp_code_u32(code, &now.transient, 0, UINT32_MAX);
    mp_code_u32(code, &now.executor_count, 1, MP_EXECUTORS_MAX);
    for (uint32_t x = 0; x < now.executor_count && code->problem == NULL; x++)
        code_executor(code, &now.executors[x]);
    if (code->reading && now.executors[MP_EXECUTOR_HOME].reads != MP_READS_DEVICE)
        mp_code_problem(code, "the first executor does not read the device tier");
    latest->costs = now;
    latest->known = true;
}

static void code_costs(struct mp_code *code, const struct mp_costs **costs)
{
    code_cost_values(code, *costs, &code->fact_costs);
    if (code->reading)
        *costs = &code->fact_costs.costs;
}

void mp_code_shape_costs(struct mp_code *code)
{
    if (code->shape.costs != NULL)
        code_cost_values(code, code->shape.costs, &code->shape_costs);
}

/* The experts whose flag has changed since the last question, as distances. */
static void code_evictable(struct mp_code *code, const uint8_t **flags)
{
    const size_t ids = ids_of(code);
    uint32_t count = 0, distance;
    size_t at = 0;

    if (!code->reading) {
        for (size_t u = 0; u < ids; u++)
            count += ((*flags)[u] != 0) != code->evictable[u];
    }
    mp_code_u32(code, &count, 0, (uint32_t)ids);
    for (uint32_t i = 0; i < count && code->problem == NULL; i++) {
        const size_t from = at;

        while (!code->reading && ((*flags)[at] != 0) == code->evictable[at])
            at++;
        distance = (uint32_t)(at - from);
        mp_code_u32(code, &distance, 0, (uint32_t)ids);
        if (from + distance >= ids) {
            mp_code_problem(code, "an expert is out of range");
            break;
        }
        at = from + distance;
        code->evictable[at] ^= 1;
        at++;
    }
    if (!code->reading)
        return;
    for (size_t u = 0; u < ids && code->problem == NULL; u++) {
        if (code->evictable[u] && !code->resident[u])
            mp_code_problem(code, "an expert that is not resident is to be evicted");
    }
    *flags = code->evictable;
}

/* The experts of each token differ. */
static void check_chosen(struct mp_code *code, const uint32_t *chosen, uint32_t tokens, uint32_t k)
{
    if (!code->reading)
        return;
    for (size_t i = 0; i < (size_t)tokens * k && code->problem == NULL; i++) {
        for (size_t j = i - i % k; j < i; j++) {
            if (chosen[j] == chosen[i])
                mp_code_problem(code, "a token has an expert twice");
        }
    }
}

static void code_chosen(struct mp_code *code, const uint32_t **chosen, uint32_t tokens, uint32_t k)
{
    mp_code_u32s(code, chosen, (size_t)tokens * k, 0, code->shape.experts - 1);
    check_chosen(code, *chosen, tokens, k);
}

static void code_layer(struct mp_code *code, uint32_t *layer)
{
    mp_code_u32(code, layer, 0, code->shape.layers - 1);
}

/* A batch: how many tokens; experts and k are those of the model. */
static void code_batch(struct mp_code *code, uint32_t *tokens, uint32_t *experts, uint32_t *k)
{
    mp_code_u32(code, tokens, 1, code->shape.tokens_max);
    *experts = code->shape.experts;
    *k = code->shape.top_k;
}

/* Only where something is on its way. MP_ARRIVAL_NEVER is 0, all else one more. */
static void code_arrivals(struct mp_code *code, const uint64_t **arrival_ns, uint32_t count)
{
    bool any = !code->reading && *arrival_ns != NULL;
    uint64_t *read = NULL;

    mp_code_bool(code, &any);
    if (code->reading)
        *arrival_ns = NULL;
    if (!any)
        return;
    if (code->reading)
        *arrival_ns = read = mp_code_room(code, count, sizeof(*read));
    for (uint32_t i = 0; i < count && code->problem == NULL; i++) {
        uint64_t value = code->reading ? 0 : (*arrival_ns)[i] + 1;

        mp_code_u64(code, &value, UINT64_MAX);
        if (read != NULL)
            read[i] = value - 1;
    }
}

static void code_route(struct mp_code *code, struct mp_route_facts *f)
{
    code_layer(code, &f->layer);
    code_batch(code, &f->tokens, &f->experts, &f->k);
    mp_code_matrix(code, &f->scores, (size_t)f->tokens * f->experts, true);
    mp_code_flags(code, &f->resident, f->experts);
    code_arrivals(code, &f->arrival_ns, f->experts);
    mp_code_u64(code, &f->step_ns, UINT64_MAX);
    code_costs(code, &f->costs);
}

static void code_assign(struct mp_code *code, struct mp_assign_facts *f)
{
    const uint32_t experts = code->shape.experts;
    bool ahead = !code->reading && f->next_tokens != NULL;

    code_layer(code, &f->layer);
    mp_code_u32(code, &f->count, 1, experts);
    mp_code_u32s(code, &f->experts, f->count, 0, experts - 1);
    if (code->reading) {
        for (uint32_t i = 1; i < f->count && code->problem == NULL; i++) {
            if (f->experts[i] <= f->experts[i - 1])
                mp_code_problem(code, "experts are not in ascending order");
        }
    }
    mp_code_u32s(code, &f->tokens, f->count, 1, code->shape.tokens_max);
    mp_code_floats(code, &f->scores, f->count, true);
    mp_code_flags(code, &f->resident, f->count);
    code_arrivals(code, &f->arrival_ns, f->count);
    code_costs(code, &f->costs);
    mp_code_u64(code, &f->link_busy_ns, UINT64_MAX);
    mp_code_bool(code, &ahead);
    if (ahead) {
        mp_code_u32s(code, &f->next_tokens, experts, 0, code->shape.tokens_max);
        mp_code_flags(code, &f->next_resident, experts);
    }
}

static void code_predict(struct mp_code *code, struct mp_predict_facts *f)
{
    bool source = !code->reading && f->source != NULL;

    code_layer(code, &f->layer);
    code_layer(code, &f->target_layer);
    code_batch(code, &f->tokens, &f->experts, &f->k);
    code_chosen(code, &f->chosen, f->tokens, f->k);
    mp_code_bool(code, &source);
    if (source)
        mp_code_matrix(code, &f->source, (size_t)f->tokens * f->experts, true);
}

static void code_prefetch(struct mp_code *code, struct mp_call_args *args)
{
    struct mp_prefetch_facts *f = &args->prefetch;

    if (!code->reading)
        args->current = *f->current;
    code_layer(code, &f->layer);
    code_layer(code, &f->target_layer);
    code_batch(code, &f->tokens, &f->experts, &f->k);
    mp_code_matrix(code, &f->scores, (size_t)f->tokens * f->experts, true);
    mp_code_flags(code, &f->resident, f->experts);
    mp_code_u32(code, &f->max, 0, UINT32_MAX);
    mp_code_u32(code, &f->distance, 1, UINT32_MAX);
    code_assign(code, &args->current);
    mp_code_u32s(code, &f->executors, args->current.count, 0,
                 args->current.costs->executor_count - 1);
    f->current = &args->current;
}

/* A pick is for an expert; swaps are for none, but within a layer. */
static void code_query(struct mp_code *code, struct mp_evict_query *q, bool pick)
{
    uint32_t scope = q->scope_layer + 1; /* 0: all layers */
    uint32_t id = q->for_id + 1;         /* 0: none */

    mp_code_u32(code, &id, pick ? 1 : 0, pick ? (uint32_t)ids_of(code) : 0);
    mp_code_u32(code, &scope, pick ? 0 : 1, code->shape.layers);
    q->for_id = id - 1;
    q->scope_layer = scope - 1;
    q->experts = code->shape.experts;
    code_evictable(code, &q->evictable);
}

/* A use of one expert. */
static void code_use(struct mp_code *code, struct mp_call_args *args)
{
    mp_code_u32(code, &args->id, 0, (uint32_t)ids_of(code) - 1);
    if (args->call == MP_CALL_ACCESS || args->call == MP_CALL_ADMIT)
        mp_code_u32(code, &args->tokens, 1, code->shape.tokens_max);
    mp_code_u64(code, &args->now, UINT64_MAX);
    if (!code->reading || code->problem != NULL)
        return;
    if (args->call == MP_CALL_INSERT || args->call == MP_CALL_REMOVE) {
        if (code->resident[args->id] != (args->call == MP_CALL_REMOVE))
            mp_code_problem(code, "an expert comes or leaves twice");
        code->resident[args->id] ^= 1;
    }
}

/* What a layer really was. */
static void code_seen(struct mp_code *code, struct mp_call_args *args)
{
    uint32_t experts;

    code_layer(code, &args->layer);
    code_batch(code, &args->tokens, &experts, &args->k);
    code_chosen(code, &args->chosen, args->tokens, args->k);
    if (args->call == MP_CALL_SCORES) {
        mp_code_matrix(code, &args->scores, (size_t)args->tokens * experts, true);
        mp_code_u64(code, &args->now, UINT64_MAX);
    }
}

/* A partition is asked with the shape as it is then. A budget that changes changes the slots, and
 * the largest expert's bytes where slots of one size are gone; costs follow the call's number. */
static void code_shape(struct mp_code *code, struct mp_call_args *args)
{
    mp_code_u32(code, &args->slots, 1, MP_CODE_SLOTS_MAX);
    mp_code_u64(code, &args->expert_bytes, MP_CODE_EXPERT_BYTES_MAX);
    if (code->reading && args->expert_bytes == 0)
        mp_code_problem(code, "experts have no bytes");
}

void mp_code_call(struct mp_code *code, struct mp_call_args *args)
{
    uint32_t call = args->call;

    mp_code_u32(code, &call, 0, MP_CALL_COUNT - 1);
    args->call = (enum mp_call)call;
    if (args->call != MP_CALL_END)
        mp_code_shape_costs(code);
    switch (args->call) {
    case MP_CALL_ROUTE: code_route(code, &args->route); break;
    case MP_CALL_ASSIGN: code_assign(code, &args->assign); break;
    case MP_CALL_PREDICT: code_predict(code, &args->predict); break;
    case MP_CALL_CHOOSE: code_prefetch(code, args); break;
    case MP_CALL_PREDICT_OBSERVE:
    case MP_CALL_PREFETCH_OBSERVE:
    case MP_CALL_PARTITION_ROUTED:
    case MP_CALL_SCORES: code_seen(code, args); break;
    case MP_CALL_PARTITION_PREDICTED:
        code_layer(code, &args->layer);
        mp_code_u32(code, &args->tokens, 1, code->shape.tokens_max);
        mp_code_matrix(code, &args->scores, (size_t)args->tokens * code->shape.experts, true);
        break;
    case MP_CALL_ADMIT:
    case MP_CALL_INSERT:
    case MP_CALL_REMOVE:
    case MP_CALL_ACCESS: code_use(code, args); break;
    case MP_CALL_PICK: code_query(code, &args->query, true); break;
    case MP_CALL_REPLACE:
        code_query(code, &args->query, false);
        mp_code_u32(code, &args->query.shared, 0, 1);
        mp_code_u64(code, &args->now, UINT64_MAX);
        mp_code_u32(code, &args->max, 0, code->shape.experts);
        break;
    case MP_CALL_PARTITION_OBSERVE:
        code_layer(code, &args->layer);
        mp_code_u32(code, &args->needed, 0, code->shape.experts);
        mp_code_u32(code, &args->hits, 0, args->needed);
        mp_code_u64(code, &args->now, UINT64_MAX);
        break;
    case MP_CALL_REVISE:
        code_shape(code, args);
        mp_code_bool(code, &args->idle);
        mp_code_u32s(code, &args->quota, code->shape.layers, 0, UINT32_MAX);
        break;
    case MP_CALL_END: mp_code_u64(code, &args->now, UINT64_MAX); break;
    case MP_CALL_QUOTA:
    case MP_CALL_FIRST:
    case MP_CALL_RETAINED: code_shape(code, args); break;
    case MP_CALL_COUNT: break;
    }
}

void mp_code_result(struct mp_code *code, struct mp_call_result *result)
{
    uint32_t list = (uint32_t)result->list_count, values = (uint32_t)result->value_count;

    mp_code_u32(code, &result->number, 0, UINT32_MAX);
    mp_code_u32(code, &list, 0, UINT32_MAX);
    mp_code_u32s(code, &result->list, list, 0, UINT32_MAX);
    mp_code_u32(code, &values, 0, UINT32_MAX);
    if (values > 0)
        mp_code_matrix(code, &result->values, values, false);
    result->list_count = list;
    result->value_count = values;
}

static void code_optional(struct mp_code *code, const float **array, size_t count)
{
    bool present = !code->reading && *array != NULL;

    mp_code_bool(code, &present);
    if (present)
        mp_code_floats(code, array, count, true);
}

void mp_code_calibration(struct mp_code *code, struct mp_calibration *c)
{
    const size_t ids = ids_of(code), pairs = ids * code->shape.experts;
    bool group = !code->reading && c->group != NULL;

    code_optional(code, &c->hot, ids);
    code_optional(code, &c->together, pairs);
    code_optional(code, &c->next, pairs);
    code_optional(code, &c->similarity, pairs);
    mp_code_bool(code, &group);
    if (group) {
        mp_code_u32s(code, &c->group, code->shape.layers, 0, UINT32_MAX);
        for (uint32_t l = 1; l < code->shape.layers && code->problem == NULL; l++) {
            if (c->group[l] > c->group[l - 1] + 1 || c->group[l] < c->group[l - 1])
                mp_code_problem(code, "layer groups are not in ascending order");
        }
    }
    code->kept_blocks = code->used_blocks;
}
