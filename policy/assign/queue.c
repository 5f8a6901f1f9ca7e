/*
 * HybriMoE ("Hybrid CPU-GPU Scheduling and Cache Management for Efficient MoE Inference", DAC
 * 2025), dynamic scheduling inside a layer: the device computes resident experts, those with most
 * tokens first, then what was loaded; the link loads cold experts, most tokens first; the CPU
 * computes cold experts, fewest tokens first, and when there are none left, resident ones with the
 * fewest tokens. The schedule is simulated and then carried out.
 *
 * Written from public descriptions and the published code's README. Ours: of the two ends of the
 * cold queue the one moves whose expert would be done first, the link on a tie; the CPU takes a
 * resident expert only if the layer ends sooner. Ties in tokens go to the lower expert.
 */
#include "policy/assign/queue.h"

#include "policy/builtins.h"
#include "vmm/base/assert.h"

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* When is the device done: `resident_ns` of residents, then the loaded ones as they arrive? */
static uint64_t device_end_ns(const struct mp_sorter *sorter, const struct mp_costs *costs,
                              const uint32_t *tokens, uint32_t loaded, uint64_t resident_ns)
{
    uint64_t end_ns = resident_ns;

    mp_assert(costs->load_ns > 0);
    for (uint32_t n = 0; n < loaded; n++)
        end_ns = larger(end_ns, costs->load_ns * (n + 1)) +
                 mp_assign_compute_ns(costs, tokens[sorter->order[n]]);
    return end_ns;
}

uint64_t mp_queue_plan(struct mp_sorter *sorter, const struct mp_costs *costs,
                       const uint32_t *tokens, const uint8_t *resident, uint32_t count,
                       uint32_t *executors)
{
    const uint32_t helper = mp_costs_helper(costs);
    uint64_t cpu_ns = 0, link_ns = 0, device_ns, resident_ns = 0;
    uint32_t cold = 0, left = 0, right, warm;

    mp_assert(helper != MP_EXECUTOR_HOME);
    /* Cold ones first, by descending tokens, then the residents. */
    for (uint32_t i = 0; i < count; i++) {
        sorter->key[i] = tokens[i] + (resident[i] ? 0 : UINT64_C(1) << 32);
        cold += !resident[i];
        resident_ns += resident[i] ? mp_assign_compute_ns(costs, tokens[i]) : 0;
        if (executors != NULL)
            executors[i] = MP_EXECUTOR_HOME;
    }
    mp_sorter_sort(sorter->order, count, sorter->key);
    device_ns = resident_ns;
    for (right = cold; left < right;) {
        const uint64_t link_end_ns = link_ns + costs->load_ns;
        const uint64_t loaded_ns = larger(link_end_ns, device_ns) +
                                   mp_assign_compute_ns(costs, tokens[sorter->order[left]]);
        const uint64_t cpu_end_ns =
            cpu_ns + mp_assign_helper_ns(costs, tokens[sorter->order[right - 1]]);

        if (loaded_ns <= cpu_end_ns) {
            link_ns = link_end_ns;
            device_ns = loaded_ns;
            left++;
            continue;
        }
        cpu_ns = cpu_end_ns;
        right--;
        if (executors != NULL)
            executors[sorter->order[right]] = helper;
    }
    for (warm = count; warm > cold; warm--) {
        const uint32_t i = sorter->order[warm - 1];
        const uint64_t cpu_end_ns = cpu_ns + mp_assign_helper_ns(costs, tokens[i]);
        const uint64_t rest_ns = resident_ns - mp_assign_compute_ns(costs, tokens[i]);
        const uint64_t end_ns = device_end_ns(sorter, costs, tokens, left, rest_ns);

        if (larger(cpu_end_ns, end_ns) >= larger(cpu_ns, device_ns))
            break;
        cpu_ns = cpu_end_ns;
        device_ns = end_ns;
        resident_ns = rest_ns;
        if (executors != NULL)
            executors[i] = helper;
    }
    return larger(cpu_ns, device_ns);
}

static enum mp_status queue_create(const void *config, const struct mp_shape *shape,
                                   struct mp_policy **policy_p)
{
    (void)config;
    return mp_sorter_create(&mp_assign_queue.info, shape, policy_p);
}

static void queue_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                         uint32_t *executors)
{
    if (mp_assign_can_weigh(facts))
        (void)mp_queue_plan((struct mp_sorter *)policy, facts->costs, facts->tokens,
                            facts->resident, facts->count, executors);
    else
        mp_assign_all_home(facts, executors);
}

const struct mp_assign_ops mp_assign_queue = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "queue",
              .summary = "three queues filled from both ends (HybriMoE)",
              .costs = true },
    .create = queue_create,
    .destroy = mp_policy_free,
    .assign = queue_assign,
};
