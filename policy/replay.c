/*
 * The pager's accounting: the real evict and partition policies are told what the pager would tell
 * them, and a scope never holds more units than its slots.
 */
#include "policy/replay.h"

#include <stdlib.h>
#include <string.h>

#include "policy/replay_int.h"
#include "vmm/base/error.h"

struct run {
    const struct mp_replay_trace *trace;
    struct mp_policies policies;
    struct mp_shape shape;
    struct mp_replay_set set;
    uint32_t *slots;             // (layers): of each scope
    uint8_t *evictable;          // (layers * experts)
    struct mp_replay_use *needs; // (experts): of one batch, ascending
    bool per_layer;              /* of the partition as asked for */
    uint64_t now;
};

static int compare_unit(const void *a, const void *b)
{
    const uint32_t x = ((const struct mp_replay_use *)a)->unit;
    const uint32_t y = ((const struct mp_replay_use *)b)->unit;

    return (x > y) - (x < y);
}

/* A valid victim, or MP_UNIT_NONE if nothing may go. */
static uint32_t pick(struct run *run, uint32_t for_unit, uint32_t scope)
{
    const struct mp_evict_query query = {
        .for_unit = for_unit,
        .scope_layer = run->set.per_layer ? scope : MP_LAYER_ANY,
        .experts = run->trace->experts,
        .evictable = run->evictable,
    };
    const uint32_t unit = run->policies.evict_ops->pick(run->policies.evict, &query);
    const uint32_t *held = run->set.unit + (size_t)scope * run->trace->experts;

    if (unit < run->trace->layers * run->trace->experts && mp_evict_allows(&query, unit))
        return unit;
    for (uint32_t i = 0; i < run->set.count[scope]; i++) {
        if (mp_evict_allows(&query, held[i]))
            return held[i];
    }
    return MP_UNIT_NONE;
}

/* Room first, then the unit. What the batch has used already goes only if nothing else can. */
static void load(struct run *run, uint32_t unit, const struct mp_replay_group *group)
{
    const uint32_t scope = mp_replay_scope(&run->set, unit);
    const struct mp_evict_ops *ops = run->policies.evict_ops;

    if (run->slots[scope] == 0)
        return;
    if (run->set.count[scope] == run->slots[scope]) {
        uint32_t victim = pick(run, unit, scope);

        if (victim == MP_UNIT_NONE) {
            for (uint32_t i = 0; i < group->count; i++)
                run->evictable[run->needs[i].unit] = mp_replay_holds(&run->set, run->needs[i].unit);
            victim = pick(run, unit, scope);
        }
        mp_replay_remove(&run->set, victim);
        run->evictable[victim] = 0;
        ops->on_remove(run->policies.evict, victim, run->now);
    }
    mp_replay_add(&run->set, unit);
    ops->on_insert(run->policies.evict, unit, run->now);
}

static void replay_group(struct run *run, const struct mp_replay_group *group,
                         struct mp_replay_result *result)
{
    const struct mp_evict_ops *ops = run->policies.evict_ops;
    uint32_t misses = 0;

    memcpy(run->needs, &run->trace->uses[group->first], group->count * sizeof(run->needs[0]));
    qsort(run->needs, group->count, sizeof(run->needs[0]), compare_unit);
    run->now++;
    for (uint32_t i = 0; i < group->count; i++) {
        const struct mp_replay_use *use = &run->needs[i];

        if (ops->on_access != NULL)
            ops->on_access(run->policies.evict, use->unit, use->tokens, run->now);
        mp_replay_count(result, run->trace, group, mp_replay_holds(&run->set, use->unit));
        run->evictable[use->unit] = 0;
        run->set.touched[use->unit] = mp_replay_holds(&run->set, use->unit) ? 0 : ++misses;
    }
    for (uint32_t i = 0; i < group->count && misses > 0; i++) {
        if (run->set.touched[run->needs[i].unit] > 0)
            load(run, run->needs[i].unit, group);
    }
    for (uint32_t i = 0; i < group->count; i++)
        run->evictable[run->needs[i].unit] = mp_replay_holds(&run->set, run->needs[i].unit);
}

/* Slots of each scope. As in the pager, a global order below one token cycle is divided. */
static enum mp_status share_slots(struct run *run, bool belady)
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
            run->slots[l] =
                shape->slots / shape->layers + (l < shape->slots % shape->layers ? 1 : 0);
    }
    return MP_OK;
}

static void run_close(struct run *run)
{
    mp_policies_destroy(&run->policies);
    mp_replay_set_fini(&run->set);
    free(run->slots);
    free(run->evictable);
    free(run->needs);
}

static enum mp_status run_open(struct run *run, const struct mp_replay_trace *trace,
                               const struct mp_replay_config *config, const char *evict)
{
    const size_t units = (size_t)trace->layers * trace->experts;
    const uint64_t slots = config->budget_bytes / trace->unit_bytes;
    const struct mp_policy_names names = {
        .policy = { [MP_SLOT_EVICT] = evict, [MP_SLOT_PARTITION] = config->partition }
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
        .tokens_max = 1,
        .slots = (uint32_t)(slots < units ? slots : units),
        .unit_bytes = trace->unit_bytes,
        .seed = config->seed,
    };
    run->slots = calloc(trace->layers, sizeof(uint32_t));
    run->evictable = calloc(units, 1);
    run->needs = calloc(trace->experts, sizeof(run->needs[0]));
    if (run->slots == NULL || run->evictable == NULL || run->needs == NULL)
        return mp_fail_no_memory("a replay", units);
    status = mp_replay_set_init(&run->set, trace, false);
    return status == MP_OK
               ? mp_policies_create(&chosen, &run->shape, config->groups, &run->policies)
               : status;
}

/* Curves have bytes instead of slots: as many slots as the smallest experts would need. */
static void curve_slots(struct run *run, uint64_t budget_bytes)
{
    const struct mp_replay_trace *trace = run->trace;
    uint64_t smallest = trace->unit_bytes;

    for (uint32_t l = 0; l < trace->layers; l++) {
        const uint64_t slots = budget_bytes / trace->layers / trace->layer_bytes[l];

        run->slots[l] = (uint32_t)(slots < trace->experts ? slots : trace->experts);
        if (trace->layer_bytes[l] < smallest)
            smallest = trace->layer_bytes[l];
    }
    if (!run->per_layer) {
        const uint64_t units = (uint64_t)trace->layers * trace->experts;

        run->slots[0] =
            (uint32_t)(budget_bytes / smallest < units ? budget_bytes / smallest : units);
    }
}

static enum mp_status bound(struct run *run, struct mp_replay_result *result)
{
    struct mp_replay_result best = { 0 };
    enum mp_status status = mp_replay_optimum(run->trace, run->per_layer, run->slots, true, &best);

    result->bound_decode_hits = best.decode_hits;
    return status;
}

static enum mp_status replay_pager(struct run *run, bool belady, uint64_t budget_bytes,
                                   struct mp_replay_result *result)
{
    enum mp_status status = MP_OK;

    if (run->shape.slots == 0)
        return mp_fail(MP_ERR_CONFIG, "E_REPLAY",
                       "a budget of %llu bytes holds no expert, which is %llu bytes",
                       (unsigned long long)budget_bytes,
                       (unsigned long long)run->trace->unit_bytes);
    result->partition = run->policies.partition_ops->info.name;
    if (belady)
        status = mp_replay_optimum(run->trace, run->per_layer, run->slots, false, result);
    for (size_t g = 0; g < run->trace->group_count && !belady; g++)
        replay_group(run, &run->trace->groups[g], result);
    if (run->set.per_layer != run->per_layer)
        run->slots[0] = run->shape.slots; /* the bound is for what was asked */
    return status;
}

static enum mp_status replay(const struct mp_replay_trace *trace,
                             const struct mp_replay_config *config, const char *evict,
                             struct mp_replay_result *result)
{
    const bool belady = evict == NULL;
    struct run run = { 0 };
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

enum mp_status mp_replay(const struct mp_replay_trace *trace, const struct mp_replay_config *config,
                         struct mp_replay_result *result_p)
{
    const bool belady = !strcmp(config->evict, "belady");
    const char *name = !strcmp(config->evict, "layer")      ? "layer-lru"
                       : !strcmp(config->evict, "layerlfu") ? "layer-lfu"
                                                            : config->evict;
    struct mp_replay_config used = *config;
    const struct mp_policy_info *info = mp_policy_find(MP_SLOT_EVICT, name);
    enum mp_status status = MP_OK;

    *result_p = (struct mp_replay_result){ .evict = belady ? "belady" : name };
    if (info != NULL)
        result_p->evict = info->name;
    if (config->accounting == MP_REPLAY_CURVE && (belady || info != NULL)) {
        status = mp_replay_curve(trace, config, result_p);
        used.partition = result_p->partition;
    }
    return status == MP_OK ? replay(trace, &used, belady ? NULL : name, result_p) : status;
}
