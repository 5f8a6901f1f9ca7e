/*
 * A trace in memory: batches in the order of execution, each with the experts it needs.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/replay/replay.h"
#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define COUNT_MAX (UINT32_C(1) << 31)

static void take_tables(struct mp_replay_trace *trace, struct mp_arena *arena)
{
    const uint64_t ids = (uint64_t)trace->layers * trace->experts;

    trace->layer_bytes = mp_arena_take(arena, trace->layers, sizeof(uint64_t));
    trace->place = mp_arena_take(arena, ids, sizeof(uint32_t));
}

enum mp_status mp_replay_trace_init(struct mp_replay_trace *trace, uint32_t layers,
                                    uint32_t experts, uint32_t top_k)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    mp_assert(layers > 0 && experts > 0 && top_k > 0);
    *trace = (struct mp_replay_trace){ .layers = layers, .experts = experts, .top_k = top_k };
    take_tables(trace, &arena);
    status = mp_arena_open(&arena, "a trace");
    if (status != MP_OK)
        return status;
    trace->block = arena.block;
    take_tables(trace, &arena);
    return MP_OK;
}

void mp_replay_trace_fini(struct mp_replay_trace *trace)
{
    free(trace->block);
    free(trace->groups);
    free(trace->uses);
    free(trace->scores);
    free(trace->chosen);
    *trace = (struct mp_replay_trace){ 0 };
}

/* Room for one more of `bytes` each. */
static enum mp_status grow(void *array_p, size_t count, size_t *room, size_t bytes)
{
    const size_t wanted = *room == 0 ? 1024 : 2 * *room;
    void *old, *grown;

    if (count < *room)
        return MP_OK;
    memcpy(&old, array_p, sizeof(old));
    grown = realloc(old, wanted * bytes);
    if (grown == NULL)
        return mp_fail_no_memory("a trace", wanted * bytes);
    memcpy(array_p, &grown, sizeof(grown));
    *room = wanted;
    return MP_OK;
}

static int compare_last(const void *a, const void *b)
{
    const uint32_t x = ((const struct mp_replay_use *)a)->next;
    const uint32_t y = ((const struct mp_replay_use *)b)->next;

    return (x > y) - (x < y);
}

/* The uses of the group in the order of the last token that chose them. */
static void close_group(struct mp_replay_trace *trace)
{
    struct mp_replay_group *group;

    if (trace->group_count == 0)
        return;
    group = &trace->groups[trace->group_count - 1];
    for (uint32_t i = 0; i < group->count; i++)
        group->tokens += trace->uses[group->first + i].tokens;
    mp_assert(group->tokens % trace->top_k == 0);
    group->tokens /= trace->top_k;
    if (group->tokens > trace->tokens_max)
        trace->tokens_max = group->tokens;
    if (group->count > 1)
        qsort(&trace->uses[group->first], group->count, sizeof(trace->uses[0]), compare_last);
}

enum mp_status mp_replay_trace_begin(struct mp_replay_trace *trace, uint32_t layer, bool decode)
{
    enum mp_status status;

    mp_assert(layer < trace->layers);
    close_group(trace);
    status = grow(&trace->groups, trace->group_count, &trace->group_room, sizeof(trace->groups[0]));
    if (status != MP_OK)
        return status;
    trace->groups[trace->group_count++] = (struct mp_replay_group){
        .layer = layer,
        .first = (uint32_t)trace->use_count,
        .first_row = trace->choices / trace->top_k,
        .decode = decode,
    };
    return MP_OK;
}

enum mp_status mp_replay_trace_choose(struct mp_replay_trace *trace, uint32_t expert)
{
    struct mp_replay_group *group = &trace->groups[trace->group_count - 1];
    const uint32_t id = group->layer * trace->experts + expert;
    struct mp_replay_use *use;
    enum mp_status status;

    mp_assert(expert < trace->experts);
    if (trace->choices == COUNT_MAX)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_REPLAY", "the trace has more than %u choices",
                       COUNT_MAX);
    status = grow(&trace->chosen, trace->choices, &trace->chosen_room, sizeof(trace->chosen[0]));
    if (status != MP_OK)
        return status;
    trace->chosen[trace->choices++] = expert;
    if (trace->place[id] > group->first) {
        use = &trace->uses[trace->place[id] - 1];
        use->tokens++;
        use->next = trace->choices;
        return MP_OK;
    }
    status = grow(&trace->uses, trace->use_count, &trace->use_room, sizeof(trace->uses[0]));
    if (status != MP_OK)
        return status;
    trace->uses[trace->use_count++] =
        (struct mp_replay_use){ .id = id, .tokens = 1, .next = trace->choices };
    trace->place[id] = (uint32_t)trace->use_count;
    group->count++;
    return MP_OK;
}

enum mp_status mp_replay_trace_score(struct mp_replay_trace *trace, const float *scores)
{
    const size_t experts = trace->experts;
    const enum mp_status status =
        grow(&trace->scores, trace->scored, &trace->score_room, experts * sizeof(trace->scores[0]));

    if (status != MP_OK)
        return status;
    memcpy(trace->scores + trace->scored * experts, scores, experts * sizeof(scores[0]));
    trace->scored++;
    return MP_OK;
}

enum mp_status mp_replay_trace_end(struct mp_replay_trace *trace)
{
    const size_t ids = (size_t)trace->layers * trace->experts;

    close_group(trace);
    for (uint32_t l = 0; l < trace->layers; l++) {
        const uint64_t bytes = trace->layer_bytes[l];

        if (bytes == 0 || bytes > MP_REPLAY_EXPERT_BYTES_MAX)
            return mp_fail(MP_ERR_UNSUPPORTED, "E_REPLAY",
                           "an expert of layer %u has %llu bytes, need 1 to 4 GiB", l,
                           (unsigned long long)bytes);
        trace->total_bytes += bytes * trace->experts;
        trace->cycle_bytes += bytes * trace->top_k;
        if (bytes > trace->expert_bytes)
            trace->expert_bytes = bytes;
    }
    memset(trace->place, 0xff, ids * sizeof(trace->place[0]));
    for (size_t g = trace->group_count; g-- > 0;) {
        const struct mp_replay_group *group = &trace->groups[g];

        for (uint32_t i = 0; i < group->count; i++) {
            struct mp_replay_use *use = &trace->uses[group->first + i];

            use->next = trace->place[use->id];
            trace->place[use->id] = (uint32_t)g;
        }
    }
    return MP_OK;
}
