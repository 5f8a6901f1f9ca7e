/*
 * Replays the decisions of a log. The file is untrusted: policies get only arguments that the pager
 * and the step could have given them.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "policy/record/decisions_replay_int.h"
#include "policy/regular.h"
#include "vmm/base/error.h"

static void call_route(struct mp_log_replay *r, const struct mp_call_args *args,
                       struct mp_call_result *got)
{
    const size_t count = (size_t)args->route.tokens * args->route.k;
    uint32_t *experts = mp_code_room(&r->code, count, sizeof(uint32_t));
    float *weights = mp_code_room(&r->code, count, sizeof(float));

    if (experts == NULL || weights == NULL)
        return;
    r->set.route_ops->route(r->set.route, &args->route, experts, weights);
    *got = (struct mp_call_result){ 0, experts, weights, count, count };
}

static void call_assign(struct mp_log_replay *r, const struct mp_call_args *args,
                        struct mp_call_result *got)
{
    uint32_t *executors = mp_code_room(&r->code, args->assign.count, sizeof(uint32_t));

    if (executors == NULL)
        return;
    r->set.assign_ops->assign(r->set.assign, &args->assign, executors);
    *got = (struct mp_call_result){ .list = executors, .list_count = args->assign.count };
}

static void call_predict(struct mp_log_replay *r, const struct mp_call_args *args,
                         struct mp_call_result *got)
{
    const struct mp_predict_ops *ops = r->set.predict_ops;
    const size_t count = (size_t)args->predict.tokens * args->predict.experts;
    float *scores;

    if (ops->predict == NULL || (args->predict.source != NULL) != (ops->source != MP_SCORES_NONE)) {
        mp_code_problem(&r->code, "the predict policy asks for other scores");
        return;
    }
    scores = mp_code_room(&r->code, count, sizeof(float));
    if (scores == NULL)
        return;
    got->number = ops->predict(r->set.predict, &args->predict, scores);
    got->values = scores;
    got->value_count = got->number ? count : 0;
}

static void call_choose(struct mp_log_replay *r, const struct mp_call_args *args,
                        struct mp_call_result *got)
{
    const uint32_t experts = r->shape.experts;
    uint32_t *list = mp_code_room(&r->code, experts, sizeof(uint32_t));

    if (list == NULL)
        return;
    got->number = r->set.prefetch_ops->choose(r->set.prefetch, &args->prefetch, list);
    got->list = list;
    got->list_count = got->number <= experts ? got->number : 0;
}

static void call_replace(struct mp_log_replay *r, const struct mp_call_args *args,
                         struct mp_call_result *got)
{
    struct mp_swap *swaps = mp_code_room(&r->code, args->max, sizeof(struct mp_swap));

    if (swaps == NULL)
        return;
    got->number =
        r->set.evict_ops->replace(r->set.evict, &args->query, args->now, swaps, args->max);
    got->list = &swaps[0].in;
    got->list_count = got->number <= args->max ? 2 * (size_t)got->number : 0;
}

/* Slots of layers, or first residents, with the shape as it was then. */
static void call_partition(struct mp_log_replay *r, const struct mp_call_args *args,
                           struct mp_call_result *got)
{
    const struct mp_partition_ops *ops = r->set.partition_ops;
    const uint32_t layers = r->shape.layers;
    uint32_t first_max, *list;

    r->shape.slots = args->slots;
    first_max = (uint32_t)mp_partition_first_max(&r->shape);
    list =
        mp_code_room(&r->code, args->call == MP_CALL_FIRST ? first_max : layers, sizeof(uint32_t));
    if (list == NULL)
        return;
    r->shape.expert_bytes = args->expert_bytes;
    got->list = list;
    if (args->call == MP_CALL_FIRST) {
        got->number = ops->first(r->set.partition, &r->shape, list);
        got->list_count = got->number <= first_max ? got->number : 0;
    } else if (args->call == MP_CALL_QUOTA || args->call == MP_CALL_RETAINED) {
        (args->call == MP_CALL_QUOTA ? ops->quota : ops->retained)(r->set.partition, &r->shape,
                                                                   list);
        got->list_count = layers;
    } else {
        memcpy(list, args->quota, layers * sizeof(list[0]));
        got->number = ops->revise(r->set.partition, &r->shape, args->idle, list);
        got->list_count = got->number ? layers : 0;
    }
}

/* Calls without a result. */
static void notify_policy(struct mp_log_replay *r, const struct mp_call_args *args)
{
    const struct mp_policies *s = &r->set;

    switch (args->call) {
    case MP_CALL_PREDICT_OBSERVE:
        s->predict_ops->observe(s->predict, args->layer, args->tokens, args->k, args->chosen);
        break;
    case MP_CALL_PREFETCH_OBSERVE:
        s->prefetch_ops->observe(s->prefetch, args->layer, args->tokens, args->k, args->chosen);
        break;
    case MP_CALL_INSERT: s->evict_ops->on_insert(s->evict, args->id, args->now); break;
    case MP_CALL_REMOVE: s->evict_ops->on_remove(s->evict, args->id, args->now); break;
    case MP_CALL_ACCESS:
        s->evict_ops->on_access(s->evict, args->id, args->tokens, args->now);
        break;
    case MP_CALL_SCORES:
        s->evict_ops->on_scores(s->evict, args->layer, args->tokens, args->k, args->scores,
                                args->chosen, args->now);
        break;
    case MP_CALL_PARTITION_PREDICTED:
        s->partition_ops->predicted(s->partition, args->layer, args->tokens, args->scores);
        break;
    case MP_CALL_PARTITION_ROUTED:
        s->partition_ops->routed(s->partition, args->layer, args->tokens, args->k, args->chosen);
        break;
    default:
        s->partition_ops->observe(s->partition, args->layer, args->needed, args->hits, args->now);
        break;
    }
}

/* The kind of a call, and whether its policy has the function. */
static enum mp_policy_kind kind_of(const struct mp_log_replay *r, enum mp_call call, bool *has_p)
{
    const struct mp_policies *s = &r->set;

    *has_p = true;
    switch (call) {
    case MP_CALL_ROUTE: return MP_POLICY_ROUTE;
    case MP_CALL_ASSIGN: return MP_POLICY_ASSIGN;
    case MP_CALL_PREDICT_OBSERVE:
        *has_p = s->predict_ops->observe != NULL;
        return MP_POLICY_PREDICT;
    case MP_CALL_PREDICT: *has_p = s->predict_ops->predict != NULL; return MP_POLICY_PREDICT;
    case MP_CALL_PREFETCH_OBSERVE:
        *has_p = s->prefetch_ops->observe != NULL;
        return MP_POLICY_PREFETCH;
    case MP_CALL_CHOOSE: *has_p = s->prefetch_ops->choose != NULL; return MP_POLICY_PREFETCH;
    case MP_CALL_ADMIT: return MP_POLICY_ADMIT;
    case MP_CALL_ACCESS: *has_p = s->evict_ops->on_access != NULL; return MP_POLICY_EVICT;
    case MP_CALL_SCORES: *has_p = s->evict_ops->on_scores != NULL; return MP_POLICY_EVICT;
    case MP_CALL_REPLACE: *has_p = s->evict_ops->replace != NULL; return MP_POLICY_EVICT;
    case MP_CALL_QUOTA: *has_p = s->partition_ops->quota != NULL; return MP_POLICY_PARTITION;
    case MP_CALL_FIRST: *has_p = s->partition_ops->first != NULL; return MP_POLICY_PARTITION;
    case MP_CALL_PARTITION_OBSERVE:
        *has_p = s->partition_ops->observe != NULL;
        return MP_POLICY_PARTITION;
    case MP_CALL_REVISE: *has_p = s->partition_ops->revise != NULL; return MP_POLICY_PARTITION;
    case MP_CALL_PARTITION_PREDICTED:
        *has_p = s->partition_ops->predicted != NULL;
        return MP_POLICY_PARTITION;
    case MP_CALL_PARTITION_ROUTED:
        *has_p = s->partition_ops->routed != NULL;
        return MP_POLICY_PARTITION;
    case MP_CALL_RETAINED: *has_p = s->partition_ops->retained != NULL; return MP_POLICY_PARTITION;
    case MP_CALL_INSERT:
    case MP_CALL_REMOVE:
    case MP_CALL_PICK:
    case MP_CALL_END:
    case MP_CALL_COUNT: break;
    }
    return MP_POLICY_EVICT;
}

/* True: the call has a result, and *got is that of the new instance. */
static bool make_call(struct mp_log_replay *r, const struct mp_call_args *args,
                      struct mp_call_result *got)
{
    const struct mp_policies *s = &r->set;

    *got = (struct mp_call_result){ 0 };
    switch (args->call) {
    case MP_CALL_ROUTE: call_route(r, args, got); return true;
    case MP_CALL_ASSIGN: call_assign(r, args, got); return true;
    case MP_CALL_PREDICT: call_predict(r, args, got); return true;
    case MP_CALL_CHOOSE: call_choose(r, args, got); return true;
    case MP_CALL_ADMIT:
        got->number = s->admit_ops->admit(s->admit, args->id, args->tokens, args->now);
        return true;
    case MP_CALL_PICK: got->number = s->evict_ops->pick(s->evict, &args->query); return true;
    case MP_CALL_REPLACE: call_replace(r, args, got); return true;
    case MP_CALL_QUOTA:
    case MP_CALL_FIRST:
    case MP_CALL_RETAINED:
    case MP_CALL_REVISE: call_partition(r, args, got); return true;
    default: notify_policy(r, args); return false;
    }
}

/* ---- comparison ---- */

/* The MoE layer that a call was about; MP_LAYER_ANY: none. */
static uint32_t layer_of(const struct mp_log_replay *r, const struct mp_call_args *args)
{
    switch (args->call) {
    case MP_CALL_ROUTE: return args->route.layer;
    case MP_CALL_ASSIGN: return args->assign.layer;
    case MP_CALL_PREDICT: return args->predict.layer;
    case MP_CALL_CHOOSE: return args->prefetch.layer;
    case MP_CALL_ADMIT: return args->id / r->shape.experts;
    case MP_CALL_PICK:
    case MP_CALL_REPLACE:
        return args->query.for_id != MP_EXPERT_NONE ? args->query.for_id / r->shape.experts
                                                    : args->query.scope_layer;
    default: return MP_LAYER_ANY;
    }
}

static enum mp_status differs(const struct mp_log_replay *r, const struct mp_call_args *args,
                              unsigned kind, const char *what, size_t i, double got, double need)
{
    const uint32_t layer = layer_of(r, args);
    char quoted[MP_QUOTE_BYTES], where[48] = "", which[32] = "";

    if (layer != MP_LAYER_ANY)
        snprintf(where, sizeof(where), ", MoE layer %u", layer);
    if (i != SIZE_MAX)
        snprintf(which, sizeof(which), " %zu", i);
    return mp_fail(MP_ERR_MODEL, "E_DECISION_DIFFERS",
                   "decision log '%s', call %" PRIu64 ", %s of '%s'%s: %s%s: got %.9g, need %.9g",
                   mp_quote(quoted, r->path, strlen(r->path)), r->report->calls,
                   mp_call_name(args->call), r->report->policy[kind], where, what, which, got,
                   need);
}

static enum mp_status compare(const struct mp_log_replay *r, const struct mp_call_args *args,
                              unsigned kind, const struct mp_call_result *got,
                              const struct mp_call_result *need)
{
    if (got->number != need->number)
        return differs(r, args, kind, "result", SIZE_MAX, got->number, need->number);
    if (got->list_count != need->list_count)
        return differs(r, args, kind, "length of the result", SIZE_MAX, (double)got->list_count,
                       (double)need->list_count);
    for (size_t i = 0; i < need->list_count; i++) {
        if (got->list[i] != need->list[i])
            return differs(r, args, kind, "entry", i, got->list[i], need->list[i]);
    }
    if (got->value_count != need->value_count)
        return differs(r, args, kind, "number of values", SIZE_MAX, (double)got->value_count,
                       (double)need->value_count);
    for (size_t i = 0; i < need->value_count; i++) {
        if (memcmp(&got->values[i], &need->values[i], sizeof(float)) != 0)
            return differs(r, args, kind, "value", i, (double)got->values[i],
                           (double)need->values[i]);
    }
    return MP_OK;
}

static enum mp_status check_code(const struct mp_log_replay *r)
{
    if (r->code.problem == NULL)
        return MP_OK;
    if (r->code.no_memory)
        return mp_fail_no_memory("a decision log", r->code.left);
    if (ferror(r->file))
        return mp_regular_fail(r->path, "read", errno);
    return mp_log_bad(r, r->code.problem);
}

/* The next call; *more_p is false at the end. */
static enum mp_status replay_call(struct mp_log_replay *r, bool *more_p)
{
    struct mp_call_args args = { .call = MP_CALL_END };
    struct mp_call_result got, need = { 0 };
    enum mp_policy_kind kind;
    enum mp_status status;
    bool has, has_result;

    mp_code_recycle(&r->code);
    mp_code_call(&r->code, &args);
    status = check_code(r);
    if (status != MP_OK)
        return status;
    *more_p = args.call != MP_CALL_END;
    if (!*more_p)
        return args.now == r->report->calls && r->code.left == 0
                   ? MP_OK
                   : mp_log_bad(r, "the log does not end where it says");
    r->report->calls++;
    kind = kind_of(r, args.call, &has);
    if (!has)
        return mp_log_bad(r, "the policy has no such function");
    r->report->calls_of[kind]++;
    has_result = make_call(r, &args, &got);
    if (has_result)
        mp_code_result(&r->code, &need);
    status = check_code(r);
    if (status != MP_OK || !has_result)
        return status;
    r->report->results++;
    return compare(r, &args, kind, &got, &need);
}

bool mp_decisions_is_log(const char *path)
{
    char line[sizeof(MP_DECISIONS_MAGIC)] = "";
    uint64_t bytes;
    FILE *file;

    if (mp_regular_open(path, &file, &bytes) != MP_OK) {
        mp_error_clear(); /* whoever reads it next will say */
        return false;
    }
    if (fgets(line, sizeof(line), file) == NULL)
        line[0] = '\0';
    fclose(file);
    return !strcmp(line, MP_DECISIONS_MAGIC);
}

enum mp_status mp_decisions_replay(const char *path, const volatile sig_atomic_t *cancel,
                                   struct mp_decisions_report *report_p)
{
    struct mp_log_replay *r = calloc(1, sizeof(*r));
    bool more = true;
    enum mp_status status;

    *report_p = (struct mp_decisions_report){ 0 };
    if (r == NULL)
        return mp_fail_no_memory("a decision log", sizeof(*r));
    r->path = path;
    r->report = report_p;
    status = mp_regular_open(path, &r->file, &r->file_bytes);
    if (status == MP_OK)
        status = mp_log_read_head(r);
    while (status == MP_OK && more) {
        status = replay_call(r, &more);
        if (status == MP_OK && cancel != NULL && *cancel)
            status = mp_fail(MP_ERR_CANCELED, "E_CANCELED", "interrupted");
    }
    mp_policies_destroy(&r->set);
    mp_code_fini(&r->code);
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        free(r->groups[kind].config);
    if (r->file != NULL)
        fclose(r->file);
    free(r);
    return status;
}
