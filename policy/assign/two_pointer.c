/*
 * SMoE ("Enabling MoE on the Edge via Importance-Driven Expert Scheduling") Alg. 2: of the cold
 * experts, sorted by score, one pointer loads from the high end and one computes on the CPU from
 * the low end; whichever of the two has spent less time moves next, the loads on a tie. High scores
 * are loaded because they are likelier to be wanted again. Resident experts are computed by the
 * device.
 *
 *     max(T_load, T_CPU) <= optimum + max(C_load, C_CPU)        eq. 4
 *
 * As printed the first expert is always loaded, also where the CPU is faster.
 *
 * Departures: C_CPU, a constant in the paper for small batches, is the time of an expert with the
 * mean number of tokens of the cold ones; a batch scores an expert by the sum over its tokens. The
 * paper takes both times from the past p runs; here the measured costs are smoothed by whoever
 * measures them.
 */
#include "policy/builtins.h"

#include "policy/assign/times.h"

static enum mp_status two_pointer_create(const void *config, const struct mp_shape *shape,
                                         struct mp_policy **policy_p)
{
    (void)config;
    return mp_sorter_create(&mp_assign_two_pointer.info, shape, policy_p);
}

/* Scores as integers, so that sorting is exact; cold experts come before resident ones, and before
 * them those on their way, soonest first. */
static uint64_t key_of(const struct mp_assign_facts *facts, uint32_t i)
{
    const float score = facts->scores[i];

    if (facts->resident[i])
        return 0;
    if (mp_assign_is_coming(facts, i))
        return UINT64_MAX - facts->arrival_ns[i];
    return 1 + (score > 0 ? (uint64_t)((score < 4096 ? score : 4096) * 0x1p40f) : 0);
}

/* What the link still has to do for the expert: of one on its way only what is left. */
static uint64_t loading_ns(const struct mp_assign_facts *facts, uint32_t i, uint64_t spent_ns)
{
    if (!mp_assign_is_coming(facts, i))
        return facts->costs->load_ns;
    return facts->arrival_ns[i] > spent_ns ? facts->arrival_ns[i] - spent_ns : 0;
}

static void two_pointer_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                               uint32_t *executors)
{
    const uint32_t helper = mp_costs_helper(facts->costs);
    struct mp_sorter *self = (struct mp_sorter *)policy;
    uint64_t tokens = 0, cpu_ns, load_spent_ns = 0, cpu_spent_ns = 0;
    uint32_t cold = 0, left = 0, right;

    mp_assign_all_home(facts, executors);
    if (!mp_assign_can_weigh(facts))
        return;
    for (uint32_t i = 0; i < facts->count; i++) {
        self->key[i] = key_of(facts, i);
        cold += !facts->resident[i];
        tokens += facts->resident[i] ? 0 : facts->tokens[i];
    }
    if (cold == 0)
        return;
    mp_sorter_sort(self->order, facts->count, self->key);
    cpu_ns = mp_assign_helper_ns(facts->costs, (uint32_t)((tokens + cold / 2) / cold));
    right = cold;
    while (left < right) {
        if (load_spent_ns <= cpu_spent_ns) {
            load_spent_ns += loading_ns(facts, self->order[left++], load_spent_ns);
        } else {
            cpu_spent_ns += cpu_ns;
            executors[self->order[--right]] = helper;
        }
    }
}

const struct mp_assign_ops mp_assign_two_pointer = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "two-pointer",
              .summary = "high scores are loaded while the CPU computes low ones (SMoE Alg. 2)",
              .costs = true },
    .create = two_pointer_create,
    .destroy = mp_policy_free,
    .assign = two_pointer_assign,
};
