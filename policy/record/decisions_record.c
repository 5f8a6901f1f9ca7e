/*
 * Writes a decision log: every function of a policy is replaced by one that writes its arguments,
 * calls the policy, and writes the result.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "policy/record/decisions.h"
#include "policy/record/decisions_code.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/output/out.h"

/* What the pager and the step hold in place of a policy. */
struct recorder {
    struct mp_policy super;
    struct mp_decisions *log;
};

struct mp_decisions {
    struct mp_out out;
    struct mp_code code;
    bool open;
    uint64_t calls;
    struct mp_policies inner;
    struct recorder recorders[MP_POLICY_KIND_COUNT];
#define X(kind, KIND) struct mp_##kind##_ops kind##_ops;
    MP_POLICY_KIND_MAP(X)
#undef X
};

static struct mp_decisions *log_of(struct mp_policy *policy)
{
    return ((struct recorder *)policy)->log;
}

static void put_call(struct mp_decisions *log, struct mp_call_args *args)
{
    mp_assert(args->call < MP_CALL_COUNT);
    if (!log->open)
        return;
    log->calls++;
    mp_code_call(&log->code, args);
}

static void put_result(struct mp_decisions *log, struct mp_call_result result)
{
    if (log->open)
        mp_code_result(&log->code, &result);
}

static void route(struct mp_policy *policy, const struct mp_route_facts *facts, uint32_t *experts,
                  float *weights)
{
    struct mp_decisions *log = log_of(policy);
    const size_t count = (size_t)facts->tokens * facts->k;

    put_call(log, &(struct mp_call_args){ .call = MP_CALL_ROUTE, .route = *facts });
    log->inner.route_ops->route(log->inner.route, facts, experts, weights);
    put_result(log, (struct mp_call_result){ 0, experts, weights, count, count });
}

static void assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                   uint32_t *executors)
{
    struct mp_decisions *log = log_of(policy);

    put_call(log, &(struct mp_call_args){ .call = MP_CALL_ASSIGN, .assign = *facts });
    log->inner.assign_ops->assign(log->inner.assign, facts, executors);
    put_result(log, (struct mp_call_result){ .list = executors, .list_count = facts->count });
}

static bool predict(struct mp_policy *policy, const struct mp_predict_facts *facts, float *scores)
{
    struct mp_decisions *log = log_of(policy);
    const size_t count = (size_t)facts->tokens * facts->experts;
    bool known;

    put_call(log, &(struct mp_call_args){ .call = MP_CALL_PREDICT, .predict = *facts });
    known = log->inner.predict_ops->predict(log->inner.predict, facts, scores);
    put_result(log, (struct mp_call_result){
                        .number = known, .values = scores, .value_count = known ? count : 0 });
    return known;
}

/* The arguments of both observers. */
static void put_seen(struct mp_decisions *log, enum mp_call call, uint32_t layer, uint32_t tokens,
                     uint32_t k, const uint32_t *chosen)
{
    put_call(log, &(struct mp_call_args){
                      .call = call, .layer = layer, .tokens = tokens, .k = k, .chosen = chosen });
}

static void predict_observe(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                            const uint32_t *chosen)
{
    struct mp_decisions *log = log_of(policy);

    put_seen(log, MP_CALL_PREDICT_OBSERVE, layer, tokens, k, chosen);
    log->inner.predict_ops->observe(log->inner.predict, layer, tokens, k, chosen);
}

static void prefetch_observe(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                             const uint32_t *chosen)
{
    struct mp_decisions *log = log_of(policy);

    put_seen(log, MP_CALL_PREFETCH_OBSERVE, layer, tokens, k, chosen);
    log->inner.prefetch_ops->observe(log->inner.prefetch, layer, tokens, k, chosen);
}

static uint32_t choose(struct mp_policy *policy, const struct mp_prefetch_facts *facts,
                       uint32_t *experts)
{
    struct mp_decisions *log = log_of(policy);
    uint32_t count;

    put_call(log, &(struct mp_call_args){ .call = MP_CALL_CHOOSE, .prefetch = *facts });
    count = log->inner.prefetch_ops->choose(log->inner.prefetch, facts, experts);
    put_result(log, (struct mp_call_result){ .number = count,
                                             .list = experts,
                                             .list_count = count <= facts->experts ? count : 0 });
    return count;
}

static bool admit(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    struct mp_decisions *log = log_of(policy);
    bool yes;

    put_call(log, &(struct mp_call_args){
                      .call = MP_CALL_ADMIT, .id = id, .tokens = tokens, .now = now });
    yes = log->inner.admit_ops->admit(log->inner.admit, id, tokens, now);
    put_result(log, (struct mp_call_result){ .number = yes });
    return yes;
}

static void on_insert(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct mp_decisions *log = log_of(policy);

    put_call(log, &(struct mp_call_args){ .call = MP_CALL_INSERT, .id = id, .now = now });
    log->inner.evict_ops->on_insert(log->inner.evict, id, now);
}

static void on_remove(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct mp_decisions *log = log_of(policy);

    put_call(log, &(struct mp_call_args){ .call = MP_CALL_REMOVE, .id = id, .now = now });
    log->inner.evict_ops->on_remove(log->inner.evict, id, now);
}

static void on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    struct mp_decisions *log = log_of(policy);

    put_call(log, &(struct mp_call_args){
                      .call = MP_CALL_ACCESS, .id = id, .tokens = tokens, .now = now });
    log->inner.evict_ops->on_access(log->inner.evict, id, tokens, now);
}

static uint32_t pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    struct mp_decisions *log = log_of(policy);
    uint32_t id;

    put_call(log, &(struct mp_call_args){ .call = MP_CALL_PICK, .query = *query });
    id = log->inner.evict_ops->pick(log->inner.evict, query);
    put_result(log, (struct mp_call_result){ .number = id });
    return id;
}

static void on_scores(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                      const float *scores, const uint32_t *chosen, uint64_t now)
{
    struct mp_decisions *log = log_of(policy);

    put_call(log, &(struct mp_call_args){ .call = MP_CALL_SCORES,
                                          .layer = layer,
                                          .tokens = tokens,
                                          .k = k,
                                          .scores = scores,
                                          .chosen = chosen,
                                          .now = now });
    log->inner.evict_ops->on_scores(log->inner.evict, layer, tokens, k, scores, chosen, now);
}

static uint32_t replace(struct mp_policy *policy, const struct mp_evict_query *query, uint64_t now,
                        struct mp_swap *swaps, uint32_t max)
{
    struct mp_decisions *log = log_of(policy);
    uint32_t count;

    _Static_assert(sizeof(struct mp_swap) == 2 * sizeof(uint32_t), "swaps are coded as numbers");
    put_call(log, &(struct mp_call_args){
                      .call = MP_CALL_REPLACE, .query = *query, .now = now, .max = max });
    count = log->inner.evict_ops->replace(log->inner.evict, query, now, swaps, max);
    put_result(log, (struct mp_call_result){ .number = count,
                                             .list = &swaps[0].in,
                                             .list_count = count <= max ? 2 * (size_t)count : 0 });
    return count;
}

/* What it says follows from calls that are written. */
static bool wants(const struct mp_policy *policy, uint32_t layer, uint32_t distance)
{
    const struct mp_decisions *log = ((const struct recorder *)policy)->log;

    return log->inner.prefetch_ops->wants(log->inner.prefetch, layer, distance);
}

/* So does this. */
static bool due(const struct mp_policy *policy, const struct mp_shape *shape)
{
    const struct mp_decisions *log = ((const struct recorder *)policy)->log;

    return log->inner.partition_ops->due(log->inner.partition, shape);
}

/* It decides nothing, so it is not written. */
static const char *notice(const struct mp_policy *policy)
{
    const struct mp_decisions *log = ((const struct recorder *)policy)->log;

    return log->inner.evict_ops->notice(log->inner.evict);
}

/* A question to a partition, with what may have changed since it was made. */
static struct mp_call_args partition_call(enum mp_call call, const struct mp_shape *shape)
{
    return (struct mp_call_args){ .call = call,
                                  .slots = shape->slots,
                                  .expert_bytes = shape->expert_bytes };
}

static void quota(struct mp_policy *policy, const struct mp_shape *shape, uint32_t *slots)
{
    struct mp_decisions *log = log_of(policy);
    struct mp_call_args args = partition_call(MP_CALL_QUOTA, shape);

    put_call(log, &args);
    log->inner.partition_ops->quota(log->inner.partition, shape, slots);
    put_result(log, (struct mp_call_result){ .list = slots, .list_count = shape->layers });
}

static uint32_t first(struct mp_policy *policy, const struct mp_shape *shape, uint32_t *ids)
{
    struct mp_decisions *log = log_of(policy);
    struct mp_call_args args = partition_call(MP_CALL_FIRST, shape);
    uint32_t count;

    put_call(log, &args);
    count = log->inner.partition_ops->first(log->inner.partition, shape, ids);
    put_result(log, (struct mp_call_result){
                        .number = count,
                        .list = ids,
                        .list_count = count <= mp_partition_first_max(shape) ? count : 0 });
    return count;
}

static void partition_observe(struct mp_policy *policy, uint32_t layer, uint32_t needed,
                              uint32_t hits, uint64_t now)
{
    struct mp_decisions *log = log_of(policy);

    put_call(log, &(struct mp_call_args){ .call = MP_CALL_PARTITION_OBSERVE,
                                          .layer = layer,
                                          .needed = needed,
                                          .hits = hits,
                                          .now = now });
    log->inner.partition_ops->observe(log->inner.partition, layer, needed, hits, now);
}

static bool revise(struct mp_policy *policy, const struct mp_shape *shape, bool idle,
                   uint32_t *slots)
{
    struct mp_decisions *log = log_of(policy);
    struct mp_call_args args = partition_call(MP_CALL_REVISE, shape);
    bool changed;

    args.idle = idle;
    args.quota = slots;
    put_call(log, &args);
    changed = log->inner.partition_ops->revise(log->inner.partition, shape, idle, slots);
    put_result(log, (struct mp_call_result){ .number = changed,
                                             .list = slots,
                                             .list_count = changed ? shape->layers : 0 });
    return changed;
}

static void partition_predicted(struct mp_policy *policy, uint32_t layer, uint32_t tokens,
                                const float *scores)
{
    struct mp_decisions *log = log_of(policy);

    put_call(log, &(struct mp_call_args){ .call = MP_CALL_PARTITION_PREDICTED,
                                          .layer = layer,
                                          .tokens = tokens,
                                          .scores = scores });
    log->inner.partition_ops->predicted(log->inner.partition, layer, tokens, scores);
}

static void partition_routed(struct mp_policy *policy, uint32_t layer, uint32_t tokens, uint32_t k,
                             const uint32_t *chosen)
{
    struct mp_decisions *log = log_of(policy);

    put_seen(log, MP_CALL_PARTITION_ROUTED, layer, tokens, k, chosen);
    log->inner.partition_ops->routed(log->inner.partition, layer, tokens, k, chosen);
}

static void retained(struct mp_policy *policy, const struct mp_shape *shape, uint32_t *parts)
{
    struct mp_decisions *log = log_of(policy);
    struct mp_call_args args = partition_call(MP_CALL_RETAINED, shape);

    put_call(log, &args);
    log->inner.partition_ops->retained(log->inner.partition, shape, parts);
    put_result(log, (struct mp_call_result){ .list = parts, .list_count = shape->layers });
}

#define X(kind, KIND)                                       \
    static void kind##_destroy(struct mp_policy *policy)    \
    {                                                       \
        struct mp_policies *inner = &log_of(policy)->inner; \
                                                            \
        inner->kind##_ops->destroy(inner->kind);            \
        inner->kind = NULL;                                 \
    }
MP_POLICY_KIND_MAP(X)
#undef X

/* Only what a policy has is put in between: what it lacks means something. */
#define WRAP(kind, member, function)           \
    do {                                       \
        if (log->kind##_ops.member)            \
            log->kind##_ops.member = function; \
    } while (0)

void mp_decisions_record(struct mp_decisions *log, struct mp_policies *policies)
{
    log->inner = *policies;
#define X(kind_, KIND)                                                                       \
    log->kind_##_ops = *policies->kind_##_ops;                                               \
    log->kind_##_ops.destroy = kind_##_destroy;                                              \
    log->recorders[MP_POLICY_##KIND] = (struct recorder){ { &log->kind_##_ops.info }, log }; \
    policies->kind_##_ops = &log->kind_##_ops;                                               \
    policies->kind_ = &log->recorders[MP_POLICY_##KIND].super;
    MP_POLICY_KIND_MAP(X)
#undef X
    WRAP(route, route, route);
    WRAP(assign, assign, assign);
    WRAP(predict, observe, predict_observe);
    WRAP(predict, predict, predict);
    WRAP(prefetch, observe, prefetch_observe);
    WRAP(prefetch, choose, choose);
    WRAP(prefetch, wants, wants);
    WRAP(admit, admit, admit);
    WRAP(evict, on_insert, on_insert);
    WRAP(evict, on_remove, on_remove);
    WRAP(evict, on_access, on_access);
    WRAP(evict, pick, pick);
    WRAP(evict, on_scores, on_scores);
    WRAP(evict, replace, replace);
    WRAP(evict, notice, notice);
    WRAP(partition, quota, quota);
    WRAP(partition, first, first);
    WRAP(partition, observe, partition_observe);
    WRAP(partition, revise, revise);
    WRAP(partition, due, due);
    WRAP(partition, predicted, partition_predicted);
    WRAP(partition, routed, partition_routed);
    WRAP(partition, retained, retained);
}

/* Every option of the policy, as it is in force. */
static void put_options(FILE *file, const struct mp_policy_info *info,
                        const struct mp_opt_group *groups)
{
    char text[MP_OPT_TEXT_BYTES];

    if (info->opts == NULL || groups == NULL)
        return;
    for (; groups->prefix != NULL; groups++) {
        if (groups->table != info->opts)
            continue;
        for (const struct mp_opt *opt = info->opts; opt->name != NULL; opt++)
            fprintf(file, "option %s %s\n", opt->name,
                    mp_opt_format(opt, (const char *)groups->config + opt->offset, text));
        return;
    }
}

static void put_header(struct mp_decisions *log, const struct mp_profile *chosen,
                       const struct mp_opt_group *groups)
{
    const struct mp_shape *shape = &log->code.shape;
    FILE *file = log->out.file;

    fprintf(file,
            MP_DECISIONS_MAGIC MP_DECISIONS_VERSION
            "\nabi %u\nlayers %u\nexperts %u\ntop_k %u\ntokens_max %u\n"
            "slots %u\nunit_bytes %" PRIu64 "\nseed %" PRIu64 "\n"
            "slices %u\ncosts %d\ncalibration %d\n",
            MP_POLICY_ABI, shape->layers, shape->experts, shape->top_k, shape->tokens_max,
            shape->slots, shape->expert_bytes, shape->seed, shape->slices, shape->costs != NULL,
            shape->calibration != NULL);
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        const struct mp_policy_info *info = mp_policy_find(kind, chosen->policy[kind]);

        fprintf(file, "%s %s\n", mp_policy_kind_name(kind), chosen->policy[kind]);
        if (info != NULL)
            put_options(file, info, groups);
    }
    fputs("calls\n", file);
    mp_code_shape_costs(&log->code);
    if (shape->calibration != NULL) {
        struct mp_calibration calibration = *shape->calibration;

        mp_code_calibration(&log->code, &calibration);
    }
}

enum mp_status mp_decisions_create(const char *path, const struct mp_profile *chosen,
                                   const struct mp_shape *shape, const struct mp_opt_group *groups,
                                   struct mp_decisions **log_p)
{
    struct mp_decisions *log = calloc(1, sizeof(*log));
    enum mp_status status;

    if (log == NULL)
        return mp_fail_no_memory("a decision log", sizeof(*log));
    status = mp_out_open(&log->out, path);
    if (status == MP_OK)
        status = mp_code_init(&log->code, log->out.file, false, 0, shape);
    if (status != MP_OK) {
        mp_decisions_destroy(log);
        return status;
    }
    log->open = true;
    put_header(log, chosen, groups);
    *log_p = log;
    return MP_OK;
}

enum mp_status mp_decisions_close(struct mp_decisions *log)
{
    struct mp_call_args end = { .call = MP_CALL_END, .now = log->calls };

    if (!log->open)
        return MP_OK;
    mp_code_call(&log->code, &end);
    log->open = false;
    return mp_out_commit(&log->out);
}

void mp_decisions_destroy(struct mp_decisions *log)
{
    if (log == NULL)
        return;
    mp_out_abandon(&log->out);
    mp_code_fini(&log->code);
    free(log);
}
