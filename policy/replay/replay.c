/*
 * One replay: the policies, the slots, the accounting, and the bound.
 */
#include "policy/replay/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/replay/replay_int.h"
#include "vmm/base/arena.h"
#include "vmm/base/error.h"

/* Slots of each scope. As in the pager, a global order below one token cycle is divided. */
static enum mp_status share_slots(struct mp_replay_run *run, bool belady)
{
    const struct mp_partition_ops *ops = run->policies.partition_ops;
    const struct mp_shape *shape = &run->shape;
    const uint64_t cycle = (uint64_t)shape->layers * shape->top_k;
    uint64_t sum = 0;

    run->per_layer = !ops->global;
    run->slots[0] = shape->slots;
    if (run->per_layer) {
        ops->quota(run->policies.partition, shape, run->slots);
        for (uint32_t l = 0; l < shape->layers; l++)
            sum += run->slots[l];
        if (sum > shape->slots)
            return mp_fail(MP_ERR_INVALID, "E_PARTITION", "partition '%s' gives away %llu of %u",
                           ops->info.name, (unsigned long long)sum, shape->slots);
    }
    run->set.per_layer = run->per_layer;
    if (!run->per_layer && !belady && !run->policies.evict_ops->per_layer && shape->slots < cycle) {
        run->set.per_layer = true;
        for (uint32_t l = 0; l < shape->layers; l++)
            run->slots[l] = mp_equal_share(shape->slots, shape->layers, l);
    }
    return MP_OK;
}

/* Does the trace have what these policies want to know? */
static enum mp_status check_facts(const struct mp_replay_run *run, const struct mp_profile *chosen)
{
    const struct mp_evict_ops *ops =
        (const void *)mp_policy_find(MP_POLICY_EVICT, chosen->policy[MP_POLICY_EVICT]);
    const struct mp_predict_ops *predict =
        (const void *)mp_policy_find(MP_POLICY_PREDICT, chosen->policy[MP_POLICY_PREDICT]);

    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        const struct mp_policy_info *info = mp_policy_find(kind, chosen->policy[kind]);

        if (info->calibrated && run->shape.calibration == NULL)
            return mp_fail(MP_ERR_UNSUPPORTED, "E_REPLAY_NA",
                           "%s policy '%s' needs a calibration (--calibration FILE)",
                           mp_policy_kind_name(kind), info->name);
    }
    if (predict->source != MP_SCORES_NONE)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_REPLAY_NA",
                       "predict policy '%s' computes with hidden states, which no trace has",
                       predict->info.name);
    if (ops->on_scores != NULL && !ops->scores_optional && run->trace->scores == NULL)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_REPLAY_NA",
                       "evict policy '%s' looks at the scores of all experts, which this trace "
                       "does not have (moepager run --trace-scores)",
                       ops->info.name);
    return MP_OK;
}

static void run_close(struct mp_replay_run *run)
{
    mp_policies_destroy(&run->policies);
    mp_replay_set_fini(&run->set);
    free(run->block);
}

static void know_times(struct mp_replay_run *run, const struct mp_costs *costs)
{
    run->timed = costs != NULL && costs->load_ns > 0;
    run->facts = (struct mp_assign_facts){
        .experts = run->need_experts,
        .tokens = run->need_tokens,
        .scores = run->need_scores,
        .resident = run->need_resident,
        .costs = costs,
    };
}

static void take_tables(struct mp_replay_run *run, struct mp_arena *arena)
{
    const uint64_t layers = run->trace->layers, experts = run->trace->experts;
    const uint64_t ids = layers * experts;

    run->slots = mp_arena_take(arena, layers, sizeof(uint32_t));
    run->evictable = mp_arena_take(arena, ids, 1);
    run->candidates = mp_arena_take(arena, ids, 1);
    run->part = mp_arena_take(arena, ids, 1);
    run->retained = mp_arena_take(arena, layers, sizeof(uint32_t));
    run->used = mp_arena_take(arena, layers, sizeof(uint32_t));
    run->needs = mp_arena_take(arena, experts, sizeof(run->needs[0]));
    run->scratch = mp_arena_take(arena, ids, sizeof(uint32_t));
    run->swaps = mp_arena_take(arena, experts, sizeof(run->swaps[0]));
    run->need_experts = mp_arena_take(arena, experts, sizeof(uint32_t));
    run->need_tokens = mp_arena_take(arena, experts, sizeof(uint32_t));
    run->need_scores = mp_arena_take(arena, experts, sizeof(float));
    run->need_resident = mp_arena_take(arena, experts, 1);
    run->executors = mp_arena_take(arena, experts, sizeof(uint32_t));
    if (run->policies.predict_ops->predict != NULL)
        run->predicted = mp_arena_take(arena, run->trace->tokens_max * experts, sizeof(float));
}

static enum mp_status make_tables(struct mp_replay_run *run)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    take_tables(run, &arena);
    status = mp_arena_open(&arena, "a replay");
    if (status == MP_OK) {
        run->block = arena.block;
        take_tables(run, &arena);
    }
    return status;
}

static enum mp_status run_open(struct mp_replay_run *run, const struct mp_replay_trace *trace,
                               const struct mp_replay_config *config, const char *evict)
{
    const uint64_t ids = (uint64_t)trace->layers * trace->experts;
    const uint64_t slots = config->budget_bytes / trace->expert_bytes;
    const struct mp_policy_names names = {
        .profile = "lru", /* no prediction */
        .policy = { [MP_POLICY_ASSIGN] = config->costs != NULL ? config->assign : NULL,
                    [MP_POLICY_PREDICT] = config->predict,
                    [MP_POLICY_ADMIT] = config->admit,
                    [MP_POLICY_EVICT] = evict,
                    [MP_POLICY_PARTITION] = config->partition },
    };
    struct mp_profile chosen;
    enum mp_status status = mp_policy_resolve(&names, &chosen);

    if (status != MP_OK)
        return status;
    run->trace = trace;
    run->shape = (struct mp_shape){
        .layers = trace->layers,
        .experts = trace->experts,
        .top_k = trace->top_k,
        .tokens_max = trace->tokens_max,
        .slots = (uint32_t)(slots < ids ? slots : ids),
        .expert_bytes = trace->expert_bytes,
        .seed = config->seed,
        .calibration = config->calibration,
        .costs = config->costs,
        .slices = config->slices,
    };
    run->slices = config->slices > 1 ? config->slices : 1;
    status = check_facts(run, &chosen);
    if (status != MP_OK)
        return status;
    status = mp_policies_create(&chosen, &run->shape, config->groups, &run->policies);
    if (status == MP_OK)
        status = make_tables(run);
    if (status == MP_OK)
        status = mp_replay_set_init(&run->set, trace, false);
    if (status == MP_OK)
        know_times(run, config->costs);
    return status;
}

/* Curves have bytes instead of slots: as many slots as the smallest experts would need. */
static void curve_slots(struct mp_replay_run *run, uint64_t budget_bytes)
{
    const struct mp_replay_trace *trace = run->trace;
    uint64_t smallest = trace->expert_bytes;

    for (uint32_t l = 0; l < trace->layers; l++) {
        const uint64_t slots = budget_bytes / trace->layers / trace->layer_bytes[l];

        run->slots[l] = (uint32_t)(slots < trace->experts ? slots : trace->experts);
        if (trace->layer_bytes[l] < smallest)
            smallest = trace->layer_bytes[l];
    }
    if (!run->per_layer) {
        const uint64_t ids = (uint64_t)trace->layers * trace->experts;

        run->slots[0] = (uint32_t)(budget_bytes / smallest < ids ? budget_bytes / smallest : ids);
    }
}

static enum mp_status bound(struct mp_replay_run *run, struct mp_replay_result *result)
{
    struct mp_replay_result best = { 0 };
    enum mp_status status = mp_replay_optimum(run->trace, run->per_layer, run->slots, true, &best);

    result->bound_decode_hits = best.decode_hits;
    return status;
}

static enum mp_status replay_pager(struct mp_replay_run *run, bool belady, uint64_t budget_bytes,
                                   struct mp_replay_result *result)
{
    enum mp_status status = MP_OK;

    if (run->shape.slots == 0)
        return mp_fail(MP_ERR_CONFIG, "E_REPLAY",
                       "a budget of %llu bytes holds no expert, which is %llu bytes",
                       (unsigned long long)budget_bytes,
                       (unsigned long long)run->trace->expert_bytes);
    result->partition = run->policies.partition_ops->info.name;
    if (belady)
        status = mp_replay_optimum(run->trace, run->per_layer, run->slots, false, result);
    else
        mp_replay_pager(run, result);
    if (run->set.per_layer != run->per_layer || run->policies.partition_ops->revise != NULL) {
        /* The bound is for what was asked; where shares change, for all slots together. */
        run->per_layer = false;
        run->slots[0] = run->shape.slots;
    }
    return status;
}

static enum mp_status replay(const struct mp_replay_trace *trace,
                             const struct mp_replay_config *config, const char *evict,
                             struct mp_replay_result *result)
{
    const bool belady = evict == NULL;
    struct mp_replay_run run = { 0 };
    enum mp_status status = run_open(&run, trace, config, evict);

    if (status == MP_OK)
        status = share_slots(&run, belady || config->accounting == MP_REPLAY_CURVE);
    if (status == MP_OK && config->accounting == MP_REPLAY_PAGER)
        status = replay_pager(&run, belady, config->budget_bytes, result);
    else if (status == MP_OK)
        curve_slots(&run, config->budget_bytes);
    if (status == MP_OK)
        status = bound(&run, result);
    run_close(&run);
    return status;
}

/* There is no policy of that name. */
static enum mp_status fail_name(const char *name)
{
    const struct mp_policy_info *info;
    char quoted[MP_QUOTE_BYTES], known[384];
    size_t used = (size_t)snprintf(known, sizeof(known), "belady");

    for (size_t i = 0;
         (info = mp_policy_builtin(MP_POLICY_EVICT, i)) != NULL && used < sizeof(known); i++)
        used += (size_t)snprintf(known + used, sizeof(known) - used, ", %s", info->name);
    return mp_fail(MP_ERR_CONFIG, "E_POLICY", "unknown evict policy '%s'; known are %s",
                   mp_quote(quoted, name, strlen(name)), known);
}

enum mp_status mp_replay(const struct mp_replay_trace *trace, const struct mp_replay_config *config,
                         struct mp_replay_result *result_p)
{
    const bool belady = !strcmp(config->evict, "belady");
    const char *name = !strcmp(config->evict, "layer")      ? "layer-lru"
                       : !strcmp(config->evict, "layerlfu") ? "layer-lfu"
                                                            : config->evict;
    struct mp_replay_config used = *config;
    const struct mp_policy_info *info = mp_policy_find(MP_POLICY_EVICT, name);
    enum mp_status status = MP_OK;

    *result_p = (struct mp_replay_result){ .evict = belady ? "belady" : name };
    if (info != NULL)
        result_p->evict = info->name;
    else if (!belady)
        return fail_name(name);
    if (config->accounting == MP_REPLAY_CURVE) {
        status = mp_replay_curve(trace, config, result_p);
        used.partition = result_p->partition;
    }
    return status == MP_OK ? replay(trace, &used, belady ? NULL : name, result_p) : status;
}
