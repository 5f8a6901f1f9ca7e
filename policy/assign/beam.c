/*
 * DALI appendix A.2: beam search over the assignments. Experts in the order of Alg. 1, those whose
 * times differ most first; each plan kept so far is continued with the expert on the device and on
 * the CPU, and the WIDTH (2 in the paper) best by execution time max(T_gpu, T_cpu) are kept.
 *
 * Times and the memory bound are as in greedy.c. Ties in execution time go to the smaller
 * sum of both times, then to the plan found first.
 */
#include "policy/builtins.h"

#include "policy/assign/times.h"
#include "vmm/base/assert.h"

#define WIDTH_MAX 64

struct beam_config {
    uint64_t width;
};

static const struct mp_opt beam_opts[] = {
    MP_OPT(MP_OPT_U64, "WIDTH", struct beam_config, width, "2", 1, WIDTH_MAX,
           "Plans that assign policy beam keeps while it searches."),
    MP_OPT_END,
};

struct plan {
    uint64_t device_ns, cpu_ns;
    uint32_t loads;
    uint32_t from; /* plan of the expert before */
    bool on_device;
};

struct beam {
    struct mp_sorter sorter;
    uint32_t width;
    uint8_t *step; // (experts, width): from * 2 + on_device
    struct plan kept[WIDTH_MAX], next[2 * WIDTH_MAX];
};

static void beam_take(struct mp_policy *policy, const struct mp_shape *shape,
                      struct mp_arena *arena)
{
    struct beam *self = (struct beam *)policy;

    mp_sorter_take(policy, shape, arena);
    self->step = mp_arena_take(arena, shape->experts, self->width * sizeof(self->step[0]));
}

static enum mp_status beam_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    struct beam draft = {
        .sorter.super.info = &mp_assign_beam.info,
        .width = (uint32_t)((const struct beam_config *)config)->width,
    };

    return mp_policy_make(&draft.sorter.super, sizeof(draft), beam_take, shape, policy_p);
}

static uint64_t time_of(const struct plan *plan)
{
    return plan->device_ns > plan->cpu_ns ? plan->device_ns : plan->cpu_ns;
}

static bool better(const struct plan *a, const struct plan *b)
{
    if (time_of(a) != time_of(b))
        return time_of(a) < time_of(b);
    return a->device_ns + a->cpu_ns < b->device_ns + b->cpu_ns;
}

/* Insert into self->next[count], sorted; what is equal stays in order. */
static void add_plan(struct beam *self, uint32_t count, const struct plan *plan)
{
    uint32_t at = count;

    mp_assert(count < 2 * self->width);
    while (at > 0 && better(plan, &self->next[at - 1])) {
        self->next[at] = self->next[at - 1];
        at--;
    }
    self->next[at] = *plan;
}

/* Continue `count` plans with the expert of place n; returns how many are kept. */
static uint32_t extend(struct beam *self, const struct mp_assign_facts *facts, uint32_t n,
                       uint32_t count)
{
    const struct mp_costs *costs = facts->costs;
    const uint32_t i = self->sorter.order[n];
    const bool cold = mp_assign_is_cold(facts, i);
    uint32_t made = 0;

    mp_assert(count > 0 && count <= self->width);
    for (uint32_t p = 0; p < count; p++) {
        struct plan plan = self->kept[p];

        plan.from = p;
        plan.on_device = false;
        plan.cpu_ns += mp_assign_helper_ns(costs, facts->tokens[i]);
        add_plan(self, made++, &plan);
        plan = self->kept[p];
        if (cold && costs->transient > 0 && plan.loads >= costs->transient)
            continue;
        plan.from = p;
        plan.on_device = true;
        plan.loads += cold;
        plan.device_ns += mp_assign_home_ns(facts, i);
        add_plan(self, made++, &plan);
    }
    if (made > self->width)
        made = self->width;
    for (uint32_t p = 0; p < made; p++) {
        self->kept[p] = self->next[p];
        self->step[(size_t)n * self->width + p] =
            (uint8_t)(self->next[p].from * 2 + self->next[p].on_device);
    }
    return made;
}

static void beam_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                        uint32_t *executors)
{
    const uint32_t helper = mp_costs_helper(facts->costs);
    struct beam *self = (struct beam *)policy;
    uint32_t count = 1, plan = 0;

    mp_assign_all_home(facts, executors);
    if (!mp_assign_can_weigh(facts))
        return;
    mp_assign_sort_by_difference(&self->sorter, facts);
    self->kept[0] = (struct plan){ .device_ns = 0 };
    for (uint32_t n = 0; n < facts->count; n++)
        count = extend(self, facts, n, count);
    /* The best plan is the first; walk back along its steps. */
    for (uint32_t n = facts->count; n-- > 0;) {
        const uint8_t step = self->step[(size_t)n * self->width + plan];

        if (!(step & 1))
            executors[self->sorter.order[n]] = helper;
        plan = step / 2;
    }
}

const struct mp_assign_ops mp_assign_beam = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "beam",
              .summary = "beam search over the assignments (DALI A.2)",
              .opts = beam_opts,
              .config_size = sizeof(struct beam_config),
              .costs = true },
    .create = beam_create,
    .destroy = mp_policy_free,
    .assign = beam_assign,
};
