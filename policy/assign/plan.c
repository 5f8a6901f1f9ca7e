#include "policy/assign/plan.h"

/* When each is free again. */
struct lanes {
    uint64_t device, link, cpu;
};

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The lanes after `executor` has done expert i; *end_p is when. */
static struct lanes after(struct lanes lanes, const struct mp_assign_facts *facts, uint32_t i,
                          enum mp_executor executor, uint64_t *end_p)
{
    const struct mp_costs *costs = facts->costs;
    const uint32_t tokens = facts->tokens[i];

    switch (executor) {
    case MP_EXECUTOR_CPU:
        lanes.cpu += (lanes.cpu == 0 ? costs->handoff_ns : 0) + mp_assign_cpu_ns(costs, tokens);
        *end_p = lanes.cpu;
        break;
    case MP_EXECUTOR_IN_PLACE:
        *end_p = later(lanes.device, lanes.link) + costs->in_place_fixed_ns +
                 costs->in_place_token_ns * tokens;
        lanes.device = lanes.link = *end_p;
        break;
    default:
        if (!facts->resident[i])
            lanes.device = later(lanes.device, lanes.link += costs->load_ns);
        *end_p = lanes.device += mp_assign_compute_ns(costs, tokens);
        break;
    }
    return lanes;
}

static uint64_t span_of(struct lanes lanes)
{
    return later(lanes.device, lanes.cpu);
}

uint64_t mp_assign_span_ns(const struct mp_assign_facts *facts, const enum mp_executor *executors)
{
    struct lanes lanes = { .link = facts->link_busy_ns };
    uint64_t end;

    for (uint32_t i = 0; i < facts->count; i++) {
        if (facts->resident[i] && executors[i] == MP_EXECUTOR_DEVICE)
            lanes = after(lanes, facts, i, MP_EXECUTOR_DEVICE, &end);
    }
    for (uint32_t i = 0; i < facts->count; i++) {
        if (!facts->resident[i] || executors[i] != MP_EXECUTOR_DEVICE)
            lanes = after(lanes, facts, i, executors[i], &end);
    }
    return span_of(lanes);
}

/* Who is done first with an absent expert? */
static enum mp_executor quickest(struct lanes *lanes, const struct mp_assign_facts *facts,
                                 uint32_t i, bool cpu, bool in_place)
{
    enum mp_executor best = MP_EXECUTOR_DEVICE;
    uint64_t best_end, end;
    struct lanes chosen = after(*lanes, facts, i, MP_EXECUTOR_DEVICE, &best_end), other;

    if (in_place) {
        other = after(*lanes, facts, i, MP_EXECUTOR_IN_PLACE, &end);
        if (end < best_end) {
            best = MP_EXECUTOR_IN_PLACE;
            chosen = other;
            best_end = end;
        }
    }
    if (cpu) {
        other = after(*lanes, facts, i, MP_EXECUTOR_CPU, &end);
        if (end < best_end) {
            best = MP_EXECUTOR_CPU;
            chosen = other;
        }
    }
    *lanes = chosen;
    return best;
}

/* When the device is done: residents for resident_ns, then what order[] has loaded. */
static uint64_t device_end_ns(const struct mp_assign_facts *facts, const uint32_t *order,
                              uint32_t cold, const enum mp_executor *executors,
                              uint64_t resident_ns)
{
    struct lanes lanes = { .device = resident_ns, .link = facts->link_busy_ns };
    uint64_t end;

    for (uint32_t n = 0; n < cold; n++) {
        if (executors[order[n]] != MP_EXECUTOR_CPU)
            lanes = after(lanes, facts, order[n], executors[order[n]], &end);
    }
    return lanes.device;
}

/* The CPU takes residents, fewest tokens first, while the layer gets shorter. */
static void relieve_device(const struct mp_assign_facts *facts, const uint32_t *order,
                           uint32_t cold, struct lanes *lanes, uint64_t resident_ns,
                           enum mp_executor *executors)
{
    for (uint32_t n = facts->count; n > cold; n--) {
        const uint32_t i = order[n - 1];
        uint64_t end;
        struct lanes then = after(*lanes, facts, i, MP_EXECUTOR_CPU, &end);

        if (end >= lanes->device)
            break;
        resident_ns -= mp_assign_compute_ns(facts->costs, facts->tokens[i]);
        then.device = device_end_ns(facts, order, cold, executors, resident_ns);
        if (span_of(then) >= span_of(*lanes))
            break;
        *lanes = then;
        executors[i] = MP_EXECUTOR_CPU;
    }
}

/* All that is absent to the CPU, all else to the device, if that is shorter. */
static uint64_t try_static(const struct mp_assign_facts *facts, uint64_t span_ns,
                           enum mp_executor *executors)
{
    struct lanes lanes = { 0 };
    uint64_t end;

    for (uint32_t i = 0; i < facts->count; i++)
        lanes =
            after(lanes, facts, i, facts->resident[i] ? MP_EXECUTOR_DEVICE : MP_EXECUTOR_CPU, &end);
    if (span_of(lanes) >= span_ns)
        return span_ns;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = facts->resident[i] ? MP_EXECUTOR_DEVICE : MP_EXECUTOR_CPU;
    return span_of(lanes);
}

uint64_t mp_assign_plan(const struct mp_assign_facts *facts, struct mp_sorter *scratch,
                        enum mp_executor *executors)
{
    const struct mp_costs *costs = facts->costs;
    const bool in_place = (facts->executors & 1u << MP_EXECUTOR_IN_PLACE) &&
                          (costs->in_place_fixed_ns > 0 || costs->in_place_token_ns > 0);
    const bool cpu = mp_assign_can_weigh(facts);
    struct lanes lanes = { .link = facts->link_busy_ns };
    uint64_t resident_ns = 0;
    uint32_t cold = 0;

    /* Absent ones first, by descending tokens, then the residents. */
    for (uint32_t i = 0; i < facts->count; i++) {
        scratch->key[i] = facts->tokens[i] + (facts->resident[i] ? 0 : UINT64_C(1) << 32);
        cold += !facts->resident[i];
        if (facts->resident[i])
            resident_ns += mp_assign_compute_ns(costs, facts->tokens[i]);
        executors[i] = MP_EXECUTOR_DEVICE;
    }
    mp_sorter_sort(scratch->order, facts->count, scratch->key);
    lanes.device = resident_ns;
    for (uint32_t n = 0; n < cold; n++) {
        const uint32_t i = scratch->order[n];

        executors[i] = quickest(&lanes, facts, i, cpu, in_place);
    }
    if (!cpu)
        return span_of(lanes);
    relieve_device(facts, scratch->order, cold, &lanes, resident_ns, executors);
    return try_static(facts, span_of(lanes), executors);
}
