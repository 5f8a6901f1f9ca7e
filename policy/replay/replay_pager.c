/*
 * The pager's accounting: the real evict, admit and partition policies get the calls that the pager
 * would make, as if each load of a batch were made and used before the next; a scope never holds
 * more experts than its slots.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/assign/plan.h"
#include "policy/replay/replay_int.h"
#include "vmm/base/assert.h"

static struct mp_evict_query make_query(const struct mp_replay_run *run, uint32_t for_id,
                                        uint32_t scope_layer)
{
    return (struct mp_evict_query){
        .for_id = for_id,
        .scope_layer = scope_layer,
        .experts = run->trace->experts,
        .evictable = run->evictable,
    };
}

/* A valid victim, or MP_EXPERT_NONE if nothing may go. */
static uint32_t pick(struct mp_replay_run *run, uint32_t for_id, uint32_t scope)
{
    const struct mp_evict_query query =
        make_query(run, for_id, run->set.per_layer ? scope : MP_LAYER_ANY);
    const uint32_t id = run->policies.evict_ops->pick(run->policies.evict, &query);
    const uint32_t *held = run->set.id + (size_t)scope * run->trace->experts;

    if (id < run->trace->layers * run->trace->experts && mp_evict_allows(&query, id))
        return id;
    if (id == MP_EXPERT_NONE && run->policies.evict_ops->waits)
        return MP_EXPERT_NONE;
    for (uint32_t i = 0; i < run->set.count[scope]; i++) {
        if (mp_evict_allows(&query, held[i]))
            return held[i];
    }
    return MP_EXPERT_NONE;
}

/* Take the place of somebody in the scope. What the batch has used already goes only if nothing
 * else can. */
static bool make_room(struct mp_replay_run *run, uint32_t id, uint32_t scope,
                      const struct mp_replay_group *group)
{
    uint32_t victim = pick(run, id, scope);

    mp_assert(scope < run->trace->layers);
    if (victim == MP_EXPERT_NONE) {
        for (uint32_t i = 0; i < group->count; i++)
            run->evictable[run->needs[i].id] = mp_replay_holds(&run->set, run->needs[i].id);
        run->evictable[id] = 0;
        victim = pick(run, id, scope);
    }
    if (victim == MP_EXPERT_NONE)
        return false; /* the policy keeps its residents: used, and gone again */
    mp_replay_peel(run, victim);
    return true;
}

/* Room first, then slice after slice of the expert; what came leaves again if it is not admitted.
 */
static void load(struct mp_replay_run *run, const struct mp_replay_use *use,
                 const struct mp_replay_group *group)
{
    const struct mp_policies *set = &run->policies;
    const uint32_t scope = mp_replay_scope(&run->set, use->id);
    const uint8_t before = run->part[use->id];

    if (run->slots[scope] == 0)
        return;
    run->evictable[use->id] = 0; /* not for itself, whatever room was made before */
    while (run->part[use->id] < run->slices) {
        const bool surplus = mp_replay_next_is_surplus(run, use->id);

        if (surplus ? !mp_replay_free_surplus(run, use->id)
                    : mp_replay_is_full(run, scope) && !make_room(run, use->id, scope, group))
            break;
        mp_replay_grow(run, use->id);
    }
    if (run->part[use->id] == before ||
        set->admit_ops->admit(set->admit, use->id, use->tokens, run->now))
        return;
    while (run->part[use->id] > before)
        mp_replay_shrink(run, use->id);
}

/* As much of an expert that nobody asked for as is kept and has room. It is in the way of other
 * loads, one at a time. */
static void load_kept(struct mp_replay_run *run, uint32_t id, struct mp_replay_result *result)
{
    const uint32_t layer = id / run->trace->experts;
    const uint32_t scope = mp_replay_scope(&run->set, id);
    const uint8_t before = run->part[id];

    mp_assert(id < run->trace->layers * run->trace->experts);
    while (run->part[id] < run->retained[layer] && !mp_replay_is_full(run, scope))
        mp_replay_grow(run, id);
    run->evictable[id] = run->part[id] > 0;
    if (run->timed)
        run->debt_ns +=
            run->facts.costs->load_ns * (uint64_t)(run->part[id] - before) / run->slices;
    result->bytes_read += run->trace->layer_bytes[layer] * (run->part[id] - before) / run->slices;
}

/* What is to be read of an expert that is not wholly there. */
static uint64_t missing_bytes(const struct mp_replay_run *run, uint32_t id)
{
    const uint64_t bytes = run->trace->layer_bytes[id / run->trace->experts];

    return bytes - bytes * run->part[id] / run->slices;
}

/* A hit needs all of it; of a part only the rest is read. */
static bool count_use(struct mp_replay_run *run, const struct mp_replay_group *group, uint32_t id,
                      struct mp_replay_result *result)
{
    const bool hit = run->part[id] == run->slices;

    mp_replay_count(result, run->trace, group, hit);
    if (!hit && run->part[id] > 0) {
        result->partial_hits++;
        result->bytes_read -= run->trace->layer_bytes[group->layer] * run->part[id] / run->slices;
    }
    return hit;
}

/* Who computes what, and how long the layer takes. */
static void assign(struct mp_replay_run *run, const struct mp_replay_group *group,
                   struct mp_replay_result *result)
{
    const struct mp_policies *set = &run->policies;
    const struct mp_costs *costs = run->facts.costs;
    uint64_t ns;

    run->facts.layer = group->layer;
    run->facts.count = group->count;
    run->facts.link_busy_ns = run->debt_ns < costs->load_ns ? run->debt_ns : costs->load_ns;
    for (uint32_t i = 0; i < group->count; i++) {
        run->need_experts[i] = run->needs[i].id % run->trace->experts;
        run->need_tokens[i] = run->needs[i].tokens;
        run->need_scores[i] = (float)run->needs[i].tokens;
        run->need_resident[i] = run->part[run->needs[i].id] == run->slices;
    }
    set->assign_ops->assign(set->assign, &run->facts, run->executors);
    for (uint32_t i = 0; i < group->count; i++) {
        if (run->executors[i] >= costs->executor_count)
            run->executors[i] = MP_EXECUTOR_HOME;
    }
    ns = mp_assign_span_ns(&run->facts, run->executors) + costs->layer_ns;
    run->debt_ns -= run->debt_ns < ns ? run->debt_ns : ns;
    result->time_ns += ns;
    result->decode_time_ns += group->decode ? ns : 0;
}

/* Hits and misses of the batch; loads what is missing. Returns the hits. */
static uint32_t replay_needs(struct mp_replay_run *run, const struct mp_replay_group *group,
                             struct mp_replay_result *result)
{
    const struct mp_evict_ops *ops = run->policies.evict_ops;
    uint32_t misses = 0;

    for (uint32_t i = 0; i < group->count; i++) {
        const struct mp_replay_use *use = &run->needs[i];

        if (ops->on_access != NULL)
            ops->on_access(run->policies.evict, use->id, use->tokens, run->now);
    }
    for (uint32_t i = 0; i < group->count; i++) {
        const struct mp_replay_use *use = &run->needs[i];
        const bool hit = count_use(run, group, use->id, result);

        run->evictable[use->id] = 0;
        run->set.touched[use->id] = hit ? 0 : ++misses;
    }
    if (run->timed)
        assign(run, group, result);
    for (uint32_t i = 0; i < group->count; i++) {
        if (run->set.touched[run->needs[i].id] == 0)
            continue;
        if (run->timed && !mp_executor_loads(&run->facts.costs->executors[run->executors[i]]))
            result->bytes_read -= missing_bytes(run, run->needs[i].id); /* not loaded */
        else
            load(run, &run->needs[i], group);
    }
    for (uint32_t i = 0; i < group->count; i++)
        run->evictable[run->needs[i].id] = mp_replay_holds(&run->set, run->needs[i].id);
    return group->count - misses;
}

/* What the evict policy wants in and out after the layer; swaps that do not hold are dropped. */
static void replace(struct mp_replay_run *run, uint32_t layer, struct mp_replay_result *result)
{
    struct mp_evict_query query = make_query(run, MP_EXPERT_NONE, layer);
    const uint32_t experts = run->trace->experts;
    uint32_t count;

    query.shared = !run->set.per_layer;
    count = run->policies.evict_ops->replace(run->policies.evict, &query, run->now, run->swaps,
                                             experts);
    if (count > experts)
        return;
    for (uint32_t i = 0; i < count; i++) {
        const struct mp_swap *swap = &run->swaps[i];

        if (swap->in / experts != layer || mp_replay_holds(&run->set, swap->in) ||
            (swap->out != MP_EXPERT_NONE &&
             (swap->out >= run->trace->layers * experts || !run->evictable[swap->out] ||
              (run->set.per_layer && swap->out / experts != layer))))
            continue;
        if (swap->out != MP_EXPERT_NONE)
            mp_replay_drop(run, swap->out);
        load_kept(run, swap->in, result);
    }
}

/* New shares; a layer that holds more gives back at once. */
static void revise(struct mp_replay_run *run)
{
    const struct mp_partition_ops *ops = run->policies.partition_ops;
    const uint32_t layers = run->trace->layers;
    uint64_t sum = 0;

    memcpy(run->scratch, run->slots, layers * sizeof(run->slots[0]));
    if (!ops->revise(run->policies.partition, &run->shape, true, run->scratch))
        return;
    for (uint32_t l = 0; l < layers; l++)
        sum += run->scratch[l];
    if (sum > run->shape.slots)
        return;
    memcpy(run->slots, run->scratch, layers * sizeof(run->slots[0]));
    mp_replay_ask_retained(run);
    for (uint32_t l = 0; l < layers; l++) {
        while (run->used[l] > run->slots[l] * run->slices) {
            const uint32_t victim = pick(run, l * run->trace->experts, l);

            if (victim == MP_EXPERT_NONE)
                break;
            mp_replay_peel(run, victim);
        }
    }
}

static void load_first(struct mp_replay_run *run, struct mp_replay_result *result)
{
    const struct mp_partition_ops *ops = run->policies.partition_ops;
    const uint32_t ids = run->trace->layers * run->trace->experts;
    uint32_t count = ops->first(run->policies.partition, &run->shape, run->scratch);

    if (count > mp_partition_first_max(&run->shape))
        return;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t id = run->scratch[i];

        if (id < ids && !mp_replay_holds(&run->set, id))
            load_kept(run, id, result);
    }
}

static int compare_id(const void *a, const void *b)
{
    const uint32_t x = ((const struct mp_replay_use *)a)->id;
    const uint32_t y = ((const struct mp_replay_use *)b)->id;

    return (x > y) - (x < y);
}

/* The next layer, for a partition that looks at predictions; nothing is loaded ahead. */
static void predict(struct mp_replay_run *run, const struct mp_replay_group *group)
{
    const struct mp_replay_trace *trace = run->trace;
    const struct mp_policies *set = &run->policies;
    const uint32_t next = group->layer + 1;
    const struct mp_predict_facts facts = {
        .layer = group->layer,
        .target_layer = next % trace->layers,
        .tokens = group->tokens,
        .experts = trace->experts,
        .k = trace->top_k,
        .chosen = trace->chosen + (size_t)group->first_row * trace->top_k,
    };

    if (set->predict_ops->predict == NULL || set->partition_ops->predicted == NULL ||
        trace->layers == 1 || (next == trace->layers && !set->predict_ops->wraps) ||
        !set->predict_ops->predict(set->predict, &facts, run->predicted))
        return;
    set->partition_ops->predicted(set->partition, facts.target_layer, group->tokens,
                                  run->predicted);
}

static void observe(struct mp_replay_run *run, const struct mp_replay_group *group)
{
    const struct mp_policies *set = &run->policies;
    const uint32_t k = run->trace->top_k;
    const uint32_t *chosen = run->trace->chosen + (size_t)group->first_row * k;

    if (set->predict_ops->observe != NULL)
        set->predict_ops->observe(set->predict, group->layer, group->tokens, k, chosen);
    if (set->partition_ops->routed != NULL)
        set->partition_ops->routed(set->partition, group->layer, group->tokens, k, chosen);
}

static void replay_group(struct mp_replay_run *run, const struct mp_replay_group *group,
                         struct mp_replay_result *result)
{
    const struct mp_replay_trace *trace = run->trace;
    const struct mp_policies *set = &run->policies;
    const size_t row = group->first_row;
    uint32_t hits;

    memcpy(run->needs, &trace->uses[group->first], group->count * sizeof(run->needs[0]));
    qsort(run->needs, group->count, sizeof(run->needs[0]), compare_id);
    run->now++;
    if (set->evict_ops->on_scores != NULL && trace->scores != NULL)
        set->evict_ops->on_scores(set->evict, group->layer, group->tokens, trace->top_k,
                                  trace->scores + row * trace->experts,
                                  trace->chosen + row * trace->top_k, run->now);
    hits = replay_needs(run, group, result);
    if (set->partition_ops->observe != NULL)
        set->partition_ops->observe(set->partition, group->layer, group->count, hits, run->now);
    predict(run, group);
    if (set->evict_ops->replace != NULL)
        replace(run, group->layer, result);
    if (group->layer + 1 == trace->layers && run->set.per_layer && run->per_layer &&
        set->partition_ops->revise != NULL)
        revise(run);
    observe(run, group);
}

void mp_replay_pager(struct mp_replay_run *run, struct mp_replay_result *result)
{
    mp_replay_ask_retained(run);
    if (run->policies.partition_ops->first != NULL)
        load_first(run, result);
    for (size_t g = 0; g < run->trace->group_count; g++)
        replay_group(run, &run->trace->groups[g], result);
}
