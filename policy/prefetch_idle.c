/*
 * Load ahead only what the link has time for: the current layer's loads, and those that run, are
 * subtracted from what the layer takes, and what is left is filled with the predicted experts that
 * most tokens want. While the layer's own loads keep the link busy nothing is named.
 *
 * Ours. Where times are not known: nothing while the layer loads anything, else as many as a token
 * chooses. O(tokens * experts * k).
 */
#include "policy/builtins.h"

#include <stdlib.h>

#include "policy/assign_times.h"
#include "policy/candidates.h"
#include "policy/presched.h"
#include "vmm/base/error.h"

struct idle {
    struct mp_policy super;
    struct mp_candidates candidates;
};

static void idle_destroy(struct mp_policy *policy)
{
    mp_candidates_fini(&((struct idle *)policy)->candidates);
    free(policy);
}

static enum mp_status idle_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    struct idle *idle = calloc(1, sizeof(*idle));
    enum mp_status status;

    (void)config;
    if (idle == NULL)
        return mp_fail_no_memory("prefetch policy 'idle'", sizeof(*idle));
    idle->super.info = &mp_prefetch_idle.info;
    status = mp_candidates_init(&idle->candidates, shape);
    if (status != MP_OK) {
        free(idle);
        return status;
    }
    *policy_p = &idle->super;
    return MP_OK;
}

/* How many loads the link has time for beside those of the layer. */
static uint32_t free_loads(const struct mp_prefetch_facts *facts)
{
    const struct mp_assign_facts *current = facts->current;
    const struct mp_costs *costs = current->costs;
    struct mp_presched_times times = { .load_ns = costs->load_ns,
                                       .layer_ns = costs->layer_ns,
                                       .busy_ns = current->link_busy_ns };
    uint64_t device_ns = 0, cpu_ns = 0;
    uint32_t loads = 0;

    for (uint32_t i = 0; i < current->count; i++) {
        if (facts->executors[i] == MP_EXECUTOR_CPU)
            cpu_ns += mp_assign_cpu_ns(costs, current->tokens[i]);
        else
            device_ns += mp_assign_compute_ns(costs, current->tokens[i]);
        loads += !current->resident[i] && facts->executors[i] != MP_EXECUTOR_CPU;
    }
    if (costs->load_ns == 0)
        return loads > 0 || current->link_busy_ns > 0 ? 0 : facts->k;
    return mp_presched_fit(
        &times, mp_presched_gap_ns(&times, device_ns > cpu_ns ? device_ns : cpu_ns, loads),
        facts->experts);
}

static uint32_t idle_choose(struct mp_policy *policy, const struct mp_prefetch_facts *facts,
                            uint32_t *experts)
{
    struct idle *idle = (struct idle *)policy;
    uint32_t left = free_loads(facts), count = 0, named;

    if (left == 0)
        return 0;
    named = mp_candidates_gather(&idle->candidates, facts, facts->k, MP_MARGIN_NONE);
    for (uint32_t r = 0; r < named; r++) {
        const uint32_t expert = idle->candidates.list[r].expert;

        if (!facts->resident[expert] && left-- == 0)
            break;
        experts[count++] = expert; /* resident ones are kept */
    }
    return count;
}

const struct mp_prefetch_ops mp_prefetch_idle = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "idle",
              .summary = "the best predicted experts that an idle link has time for" },
    .create = idle_create,
    .destroy = idle_destroy,
    .choose = idle_choose,
};
