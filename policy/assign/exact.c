/*
 * The 0-1 optimum of DALI eq. 3-9: min max(T_gpu, T_cpu), with times and memory bound as in
 * greedy.c.
 *
 * Branch and bound, depth first. Experts in ascending order of t_gpu / t_cpu: in the relaxed
 * problem, where experts can be divided, a first part of them goes to the device and the rest to
 * the CPU with one in between divided, so a lower bound for any beginning of a plan is one binary
 * search. Experts with equal times are not tried in both orders. The search starts with the best
 * undivided plan of that shape and ends when the bound is met, everything was tried, or NODES
 * beginnings were looked at; then the best plan so far is the result. The problem is NP-hard: meant
 * for some dozens of experts, where the default of NODES nearly always suffices; for one token,
 * whose experts are all alike but for residency, it always does.
 */
#include "policy/builtins.h"

#include <string.h>

#include "policy/assign/times.h"
#include "vmm/base/assert.h"

struct exact_config {
    uint64_t nodes;
};

static const struct mp_opt exact_opts[] = {
    MP_OPT(MP_OPT_U64, "NODES", struct exact_config, nodes, "5000", 1, UINT64_C(1000000000),
           "Beginnings of plans that assign policy exact looks at before it takes the best so "
           "far."),
    MP_OPT_END,
};

struct exact {
    struct mp_sorter sorter;
    uint64_t nodes_max;
    uint64_t *device_ns, *cpu_ns;   // (experts), in the order of the search
    uint64_t *device_sum, *cpu_sum; // (experts + 1): of those before
    uint8_t *cold;                  // (experts), in that order
    uint8_t *tried;                 // (experts): sides tried of the expert
    uint8_t *plan, *best;           // (experts): 1 on the device

    uint32_t count, loads_max;
    uint64_t best_ns, bound_ns;
};

static void exact_take(struct mp_policy *policy, const struct mp_shape *shape,
                       struct mp_arena *arena)
{
    struct exact *self = (struct exact *)policy;
    const size_t experts = shape->experts;

    mp_sorter_take(policy, shape, arena);
    self->device_ns = mp_arena_take(arena, experts, sizeof(uint64_t));
    self->cpu_ns = mp_arena_take(arena, experts, sizeof(uint64_t));
    self->device_sum = mp_arena_take(arena, experts + 1, sizeof(uint64_t));
    self->cpu_sum = mp_arena_take(arena, experts + 1, sizeof(uint64_t));
    self->cold = mp_arena_take(arena, experts, 1);
    self->tried = mp_arena_take(arena, experts, 1);
    self->plan = mp_arena_take(arena, experts, 1);
    self->best = mp_arena_take(arena, experts, 1);
}

static enum mp_status exact_create(const void *config, const struct mp_shape *shape,
                                   struct mp_policy **policy_p)
{
    struct exact draft = {
        .sorter.super.info = &mp_assign_exact.info,
        .nodes_max = ((const struct exact_config *)config)->nodes,
    };

    return mp_policy_make(&draft.sorter.super, sizeof(draft), exact_take, shape, policy_p);
}

/* Ascending t_gpu / t_cpu as a descending key: the bits of positive numbers are in their order. */
static uint64_t key_of(uint64_t device_ns, uint64_t cpu_ns)
{
    const double ratio = (double)device_ns / ((double)cpu_ns + 1e-3);
    uint64_t bits;

    memcpy(&bits, &ratio, sizeof(bits));
    return UINT64_MAX - bits;
}

static void set_up(struct exact *self, const struct mp_assign_facts *facts)
{
    const struct mp_costs *costs = facts->costs;

    self->count = facts->count;
    self->loads_max = costs->transient > 0 ? costs->transient : UINT32_MAX;
    for (uint32_t i = 0; i < facts->count; i++)
        self->sorter.key[i] =
            key_of(mp_assign_home_ns(facts, i), mp_assign_helper_ns(costs, facts->tokens[i]));
    mp_sorter_sort(self->sorter.order, facts->count, self->sorter.key);
    for (uint32_t n = 0; n < facts->count; n++) {
        const uint32_t i = self->sorter.order[n];

        self->cold[n] = mp_assign_is_cold(facts, i);
        self->device_ns[n] = mp_assign_home_ns(facts, i);
        self->cpu_ns[n] = mp_assign_helper_ns(costs, facts->tokens[i]);
        self->device_sum[n + 1] = self->device_sum[n] + self->device_ns[n];
        self->cpu_sum[n + 1] = self->cpu_sum[n] + self->cpu_ns[n];
    }
}

/*
 * A lower bound for all plans that begin with these sums for the first n experts: the rest may be
 * divided and the memory bound is ignored. With the experts up to j on the device one side's time
 * rises and the other's falls; the crossing lies inside of one expert.
 */
static uint64_t bound(const struct exact *self, uint32_t n, uint64_t device_ns, uint64_t cpu_ns)
{
    const uint64_t cpu_all_ns = cpu_ns + self->cpu_sum[self->count];
    uint32_t low = n, high = self->count; /* the crossing is at or after low */
    uint64_t below_ns, above_ns;

    mp_assert(n <= self->count);
    if (device_ns >= cpu_all_ns - self->cpu_sum[n])
        return device_ns;
    if (device_ns + self->device_sum[self->count] - self->device_sum[n] <= cpu_ns)
        return cpu_ns;
    /* Invariant: with [n, low) on the device it is the sooner side, with [n, high) it is not. */
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;

        if (device_ns + self->device_sum[middle] - self->device_sum[n] <
            cpu_all_ns - self->cpu_sum[middle])
            low = middle;
        else
            high = middle;
    }
    below_ns = device_ns + self->device_sum[low] - self->device_sum[n];
    above_ns = cpu_all_ns - self->cpu_sum[low];
    /* Rounded down, by more than the rounding of the order. */
    return (
        uint64_t)(((double)below_ns + (double)(above_ns - below_ns) * (double)self->device_ns[low] /
                                          (double)(self->device_ns[low] + self->cpu_ns[low])) *
                  (1 - 1e-9));
}

static void keep_if_better(struct exact *self, uint64_t device_ns, uint64_t cpu_ns)
{
    const uint64_t time_ns = device_ns > cpu_ns ? device_ns : cpu_ns;

    if (time_ns >= self->best_ns)
        return;
    self->best_ns = time_ns;
    memcpy(self->best, self->plan, self->count);
}

/* The best plan with a first part on the device, as far as memory allows, and the rest on the CPU.
 */
static void start(struct exact *self)
{
    uint64_t device_ns = 0, cpu_ns = self->cpu_sum[self->count];
    uint32_t loads = 0;

    self->best_ns = UINT64_MAX;
    self->bound_ns = bound(self, 0, 0, 0);
    memset(self->plan, 0, self->count);
    keep_if_better(self, device_ns, cpu_ns);
    for (uint32_t n = 0; n < self->count; n++) {
        if (self->cold[n] && loads == self->loads_max)
            continue;
        loads += self->cold[n];
        self->plan[n] = 1;
        device_ns += self->device_ns[n];
        cpu_ns -= self->cpu_ns[n];
        keep_if_better(self, device_ns, cpu_ns);
    }
}

/* May expert n be on the device, after what is planned for those before it? */
static bool device_allowed(const struct exact *self, uint32_t n, uint32_t loads)
{
    mp_assert(n < self->count);
    if (self->cold[n] && loads >= self->loads_max)
        return false;
    /* Equal ones change places freely: those on the device come first. */
    return n == 0 || self->plan[n - 1] || self->cold[n] != self->cold[n - 1] ||
           self->device_ns[n] != self->device_ns[n - 1] || self->cpu_ns[n] != self->cpu_ns[n - 1];
}

static void search(struct exact *self)
{
    uint64_t device_ns = 0, cpu_ns = 0, nodes = 0;
    uint32_t n = 0, loads = 0;

    self->tried[0] = 0;
    while (self->best_ns > self->bound_ns) {
        bool leave = n == self->count || self->tried[n] == 2;

        if (n == self->count) {
            keep_if_better(self, device_ns, cpu_ns);
        } else if (self->tried[n] == 0) {
            if (nodes++ >= self->nodes_max)
                return;
            leave = bound(self, n, device_ns, cpu_ns) >= self->best_ns;
        }
        if (leave) {
            if (n-- == 0)
                return;
            *(self->plan[n] ? &device_ns : &cpu_ns) -=
                self->plan[n] ? self->device_ns[n] : self->cpu_ns[n];
            loads -= self->plan[n] & self->cold[n];
            continue;
        }
        /* The device first: the order puts those before that it suits best. */
        self->plan[n] = self->tried[n]++ == 0;
        if (self->plan[n] && !device_allowed(self, n, loads)) {
            self->plan[n] = 0;
            self->tried[n] = 2;
        }
        *(self->plan[n] ? &device_ns : &cpu_ns) +=
            self->plan[n] ? self->device_ns[n] : self->cpu_ns[n];
        loads += self->plan[n] & self->cold[n];
        if (++n < self->count)
            self->tried[n] = 0;
    }
}

static void exact_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                         uint32_t *executors)
{
    const uint32_t helper = mp_costs_helper(facts->costs);
    struct exact *self = (struct exact *)policy;

    mp_assign_all_home(facts, executors);
    if (!mp_assign_can_weigh(facts) || facts->count == 0)
        return;
    set_up(self, facts);
    start(self);
    search(self);
    for (uint32_t n = 0; n < facts->count; n++) {
        if (!self->best[n])
            executors[self->sorter.order[n]] = helper;
    }
}

const struct mp_assign_ops mp_assign_exact = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "exact",
              .summary = "the optimum of DALI's model, by a bounded search",
              .opts = exact_opts,
              .config_size = sizeof(struct exact_config),
              .costs = true },
    .create = exact_create,
    .destroy = mp_policy_free,
    .assign = exact_assign,
};
