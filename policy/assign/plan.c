/*
 * What a layer takes on all executors, and a plan that makes it short; plan.h has the rules.
 */
#include "policy/assign/plan.h"

#include "vmm/base/assert.h"

/* When each is free again. */
struct schedule {
    uint64_t processor[MP_EXECUTORS_MAX], link;
};

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* When the executor is done with expert i, if it gets it next; *link_p: when the link is then. */
static uint64_t end_of(const struct schedule *schedule, const struct mp_assign_facts *facts,
                       uint32_t i, uint32_t x, uint64_t *link_p)
{
    const struct mp_executor *executor = &facts->costs->executors[x];
    const bool loads = mp_executor_loads(executor);
    const bool load = loads && mp_assign_is_cold(facts, i);
    uint64_t end = schedule->processor[executor->processor];

    mp_assert(x < facts->costs->executor_count);
    *link_p = schedule->link + (load ? facts->costs->load_ns : 0);
    if (end == 0)
        end = executor->handoff_ns;
    if (load || executor->reads == MP_READS_LINK)
        end = later(end, *link_p);
    else if (loads)
        end = later(end, mp_assign_fetch_ns(facts, i));
    end += mp_executor_ns(executor, facts->tokens[i]);
    if (executor->reads == MP_READS_LINK)
        *link_p = end;
    return end;
}

/* Give it expert i. */
static void give(struct schedule *schedule, const struct mp_assign_facts *facts, uint32_t i,
                 uint32_t x)
{
    uint64_t link;

    schedule->processor[facts->costs->executors[x].processor] =
        end_of(schedule, facts, i, x, &link);
    schedule->link = link;
}

/* When the link begins with what is assigned now: after what is on its way for the layer. */
static uint64_t link_free_ns(const struct mp_assign_facts *facts)
{
    uint64_t free_ns = facts->link_busy_ns;

    for (uint32_t i = 0; i < facts->count && facts->arrival_ns != NULL; i++) {
        if (mp_assign_is_coming(facts, i))
            free_ns = later(free_ns, facts->arrival_ns[i]);
    }
    return free_ns;
}

static uint64_t key_of(const struct mp_assign_facts *facts, uint32_t i)
{
    if (mp_assign_is_coming(facts, i))
        return UINT64_MAX - facts->arrival_ns[i];
    return facts->tokens[i] + (facts->resident[i] ? 0 : UINT64_C(1) << 32);
}

static uint64_t *home_free_ns(struct schedule *schedule, const struct mp_assign_facts *facts)
{
    return &schedule->processor[facts->costs->executors[MP_EXECUTOR_HOME].processor];
}

static uint64_t span_of(const struct schedule *schedule)
{
    uint64_t span = 0;

    for (uint32_t p = 0; p < MP_EXECUTORS_MAX; p++)
        span = later(span, schedule->processor[p]);
    return span;
}

uint64_t mp_assign_span_ns(const struct mp_assign_facts *facts, const uint32_t *executors)
{
    struct schedule schedule = { .link = link_free_ns(facts) };

    mp_assert(facts->costs->load_ns > 0);
    for (uint32_t i = 0; i < facts->count; i++) {
        if (facts->resident[i] && executors[i] == MP_EXECUTOR_HOME)
            give(&schedule, facts, i, MP_EXECUTOR_HOME);
    }
    for (uint32_t i = 0; i < facts->count; i++) {
        if (!facts->resident[i] || executors[i] != MP_EXECUTOR_HOME)
            give(&schedule, facts, i, executors[i]);
    }
    return span_of(&schedule);
}

/* Who is done first with an absent expert, the helper left out? */
static uint32_t quickest(const struct schedule *schedule, const struct mp_assign_facts *facts,
                         uint32_t i, uint64_t *end_p)
{
    const uint32_t helper = mp_costs_helper(facts->costs);
    uint32_t best = MP_EXECUTOR_HOME;
    uint64_t link;

    *end_p = end_of(schedule, facts, i, best, &link);
    for (uint32_t x = 1; x < facts->costs->executor_count; x++) {
        const uint64_t end = end_of(schedule, facts, i, x, &link);

        if (x != helper && mp_executor_is_known(&facts->costs->executors[x]) && end < *end_p) {
            best = x;
            *end_p = end;
        }
    }
    return best;
}

/* Absent experts from both ends: a load takes as long for many tokens as for few, so the link gets
 * those with most tokens and the helper those with fewest. The end moves whose expert is done
 * first. */
static void share_cold(const struct mp_assign_facts *facts, const uint32_t *order, uint32_t cold,
                       struct schedule *schedule, uint32_t *executors)
{
    const uint32_t helper = mp_costs_helper(facts->costs);
    const bool helps = mp_assign_can_weigh(facts);
    uint32_t left = 0, right = cold;

    while (left < right) {
        const uint32_t many = order[left], few = order[right - 1];
        uint64_t end, link;
        const uint32_t x = quickest(schedule, facts, many, &end);

        if (helps && end_of(schedule, facts, few, helper, &link) < end) {
            executors[few] = helper;
            give(schedule, facts, few, helper);
            right--;
        } else {
            executors[many] = x;
            give(schedule, facts, many, x);
            left++;
        }
    }
}

/* When the home executor is done: residents for resident_ns, then what order[] has loaded. */
static uint64_t home_end_ns(const struct mp_assign_facts *facts, const uint32_t *order,
                            uint32_t cold, const uint32_t *executors, uint32_t helper,
                            uint64_t resident_ns)
{
    struct schedule schedule = { .link = link_free_ns(facts) };

    mp_assert(cold <= facts->count);
    *home_free_ns(&schedule, facts) = resident_ns;
    for (uint32_t n = 0; n < cold; n++) {
        if (executors[order[n]] != helper)
            give(&schedule, facts, order[n], executors[order[n]]);
    }
    return *home_free_ns(&schedule, facts);
}

/* The helper takes residents, fewest tokens first, while the layer gets shorter. */
static void relieve_home(const struct mp_assign_facts *facts, const uint32_t *order, uint32_t cold,
                         struct schedule *schedule, uint64_t resident_ns, uint32_t *executors)
{
    const uint32_t helper = mp_costs_helper(facts->costs);

    mp_assert(cold <= facts->count);
    for (uint32_t n = facts->count; n > cold; n--) {
        const uint32_t i = order[n - 1];
        struct schedule then = *schedule;

        give(&then, facts, i, helper);
        if (then.processor[facts->costs->executors[helper].processor] >=
            *home_free_ns(schedule, facts))
            break;
        resident_ns -= mp_assign_compute_ns(facts->costs, facts->tokens[i]);
        *home_free_ns(&then, facts) =
            home_end_ns(facts, order, cold, executors, helper, resident_ns);
        if (span_of(&then) >= span_of(schedule))
            break;
        *schedule = then;
        executors[i] = helper;
    }
}

/* All that is absent to the helper, all else to the home executor, if that is shorter. */
static uint64_t try_static(const struct mp_assign_facts *facts, uint64_t span_ns,
                           uint32_t *executors)
{
    const uint32_t helper = mp_costs_helper(facts->costs);
    struct schedule schedule = { 0 };

    for (uint32_t i = 0; i < facts->count; i++)
        give(&schedule, facts, i, facts->resident[i] ? MP_EXECUTOR_HOME : helper);
    if (span_of(&schedule) >= span_ns)
        return span_ns;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = facts->resident[i] ? MP_EXECUTOR_HOME : helper;
    return span_of(&schedule);
}

uint64_t mp_assign_plan(const struct mp_assign_facts *facts, struct mp_sorter *scratch,
                        uint32_t *executors)
{
    const struct mp_costs *costs = facts->costs;
    struct schedule schedule = { .link = link_free_ns(facts) };
    uint64_t resident_ns = 0;
    uint32_t cold = 0;

    mp_assert(costs->load_ns > 0);
    /* Those on their way first, then the other absent ones by descending tokens, then residents. */
    for (uint32_t i = 0; i < facts->count; i++) {
        scratch->key[i] = key_of(facts, i);
        cold += !facts->resident[i];
        if (facts->resident[i])
            resident_ns += mp_assign_compute_ns(costs, facts->tokens[i]);
        executors[i] = MP_EXECUTOR_HOME;
    }
    mp_sorter_sort(scratch->order, facts->count, scratch->key);
    *home_free_ns(&schedule, facts) = resident_ns;
    share_cold(facts, scratch->order, cold, &schedule, executors);
    if (!mp_assign_can_weigh(facts))
        return span_of(&schedule);
    relieve_home(facts, scratch->order, cold, &schedule, resident_ns, executors);
    return try_static(facts, span_of(&schedule), executors);
}
