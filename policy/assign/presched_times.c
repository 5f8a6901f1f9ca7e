/*
 * The merged list of PreSched and the equations on it; presched_times.h has the terms. Nothing is
 * decided here: assign and prefetch policy `presched` do that.
 */
#include "policy/assign/presched_times.h"

#include <string.h>

#include "policy/assign/times.h"
#include "policy/sorter.h"
#include "vmm/base/assert.h"

bool mp_presched_times(const struct mp_assign_facts *facts, uint32_t tokens,
                       struct mp_presched_times *times_p)
{
    const struct mp_costs *costs = facts->costs;
    const uint32_t helper = mp_costs_helper(costs);

    if (costs->load_ns == 0)
        return false;
    *times_p = (struct mp_presched_times){
        .cpu = helper != MP_EXECUTOR_HOME,
        .cpu_fixed_ns = costs->executors[helper].fixed_ns,
        .cpu_token_ns = costs->executors[helper].token_ns,
        .load_ns = costs->load_ns,
        .device_ns = mp_assign_compute_ns(costs, tokens),
        .layer_ns = costs->layer_ns,
        .busy_ns = facts->link_busy_ns,
    };
    return !times_p->cpu || mp_assign_can_weigh(facts);
}

uint64_t mp_presched_cpu_ns(const struct mp_presched_times *times, uint32_t tokens)
{
    return times->cpu_fixed_ns + times->cpu_token_ns * tokens;
}

static uint64_t total_cpu_ns(const struct mp_presched_times *times, const uint32_t *tokens,
                             uint32_t count)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < count; i++)
        sum += mp_presched_cpu_ns(times, tokens[i]);
    return sum;
}

/* G_j with `loads` = N - j + 1 */
static uint64_t device_side_ns(const struct mp_presched_times *times, uint32_t loads)
{
    return times->busy_ns + loads * times->load_ns + times->device_ns;
}

uint32_t mp_presched_queue(const struct mp_presched_times *times, const uint32_t *tokens,
                           uint32_t count)
{
    uint64_t cpu_ns = total_cpu_ns(times, tokens, count);
    uint32_t queued = 0;

    if (!times->cpu)
        return count;
    while (queued < count && device_side_ns(times, queued + 1) < cpu_ns)
        cpu_ns -= mp_presched_cpu_ns(times, tokens[queued++]);
    return queued;
}

uint32_t mp_presched_recheck(const struct mp_presched_times *times, const uint32_t *tokens,
                             uint32_t count, uint32_t queued)
{
    uint64_t cpu_ns =
        total_cpu_ns(times, tokens, count); /* sum up to and with the smallest queued */
    uint32_t loads = queued;

    mp_assert(queued <= count);
    if (!times->cpu)
        return count;
    for (uint32_t i = 0; i + 1 < queued; i++)
        cpu_ns -= mp_presched_cpu_ns(times, tokens[i]);
    while (loads > 0 && device_side_ns(times, loads) >= cpu_ns) {
        loads--;
        if (loads > 0)
            cpu_ns += mp_presched_cpu_ns(times, tokens[loads - 1]);
    }
    return loads;
}

uint64_t mp_presched_gap_ns(const struct mp_presched_times *times, uint64_t compute_ns,
                            uint32_t loads)
{
    const uint64_t window_ns = compute_ns + times->layer_ns;
    const uint64_t taken_ns = times->busy_ns + loads * times->load_ns;

    return window_ns > taken_ns ? window_ns - taken_ns : 0;
}

uint32_t mp_presched_fit(const struct mp_presched_times *times, uint64_t gap_ns, uint32_t members)
{
    const uint64_t count = (gap_ns + times->load_ns / 2) / times->load_ns;

    mp_assert(times->load_ns > 0);
    return count < members ? (uint32_t)count : members;
}

bool mp_presched_pays(const struct mp_presched_times *times, uint64_t gap_ns, uint32_t count,
                      double hit)
{
    const uint64_t all_ns = count * times->load_ns;
    const double late = all_ns > gap_ns ? (double)(all_ns - gap_ns) : 0;

    mp_assert(count > 0);
    mp_assert(hit >= 0 && hit <= 1);
    return hit * ((double)times->load_ns - late) - (1 - hit) * late > 0;
}

void mp_presched_list_take(struct mp_presched_list *list, const struct mp_shape *shape,
                           struct mp_arena *arena)
{
    const size_t most = 2 * (size_t)shape->experts;

    list->key = mp_arena_take(arena, most, sizeof(uint64_t));
    list->order = mp_arena_take(arena, most, sizeof(uint32_t));
    list->tokens = mp_arena_take(arena, most, sizeof(uint32_t));
    list->is_next = mp_arena_take(arena, most, 1);
    list->index = mp_arena_take(arena, most, sizeof(uint32_t));
}

void mp_presched_merge(struct mp_presched_list *list, const struct mp_assign_facts *facts,
                       const uint32_t *next_tokens, uint32_t next_count)
{
    uint32_t current = 0;

    mp_assert(list->key != NULL);
    /* In the order in which ties shall stand; the sort keeps to it. */
    for (uint32_t i = 0; i < facts->count; i++) {
        if (mp_assign_is_cold(facts, i)) { /* neither resident nor in flight */
            list->key[current] = facts->tokens[i];
            list->index[current++] = i;
        }
    }
    for (uint32_t i = 0; i < next_count; i++)
        list->key[current + i] = next_tokens[i];
    list->count = current + next_count;
    mp_sorter_sort(list->order, list->count, list->key);
    for (uint32_t p = 0; p < list->count; p++) {
        const uint32_t at = list->order[p];

        list->tokens[p] = (uint32_t)list->key[at];
        list->is_next[p] = at >= current;
        /* order[] becomes the index; index[] is still needed by later places. */
        list->order[p] = at >= current ? at - current : list->index[at];
    }
    memcpy(list->index, list->order, list->count * sizeof(list->index[0]));
}
