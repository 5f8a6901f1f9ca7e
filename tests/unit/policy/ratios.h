#ifndef MP_TESTS_POLICY_RATIOS_H
#define MP_TESTS_POLICY_RATIOS_H

#include "tests/unit/policy/replay/workload.h"

/*
 * The books of those who compare `auto` with static placement: times of `auto` divided by those of
 * the best placement, for each kind of workload.
 */
struct ratios {
    double known, hindsight, sum; /* the worst against each, and of the latter all */
};

/* How often each unit was used during the warm-up, or after it: hot(units) is added to. */
static inline void ratios_count_uses(const struct mp_replay_trace *trace, bool after, float *hot)
{
    for (size_t g = 0; g < trace->group_count; g++) {
        const struct mp_replay_group *group = &trace->groups[g];

        for (uint32_t i = 0; group->decode == after && i < group->count; i++)
            hot[trace->uses[group->first + i].id] += 1;
    }
}

/* `ours` against placement by the warm-up and by what comes; more than 2 % above the first is
 * reported. */
static inline void ratios_note(struct ratios *all, unsigned round, enum workload_kind kind,
                               uint64_t ours, uint64_t known, uint64_t hindsight)
{
    const double against[2] = { (double)ours / (double)known, (double)ours / (double)hindsight };
    struct ratios *ratios = &all[kind];

    if (against[0] > 1.02)
        fprintf(stderr, "    round %u, %s: %.4f and %.4f\n", round, workload_names[kind],
                against[0], against[1]);
    ratios->known = fmax(ratios->known, against[0]);
    ratios->hindsight = fmax(ratios->hindsight, against[1]);
    ratios->sum += against[1];
}

/* Never more than 2 % above what could be known, nor `hindsight` times what could not. */
static inline void ratios_judge(const struct ratios *all, unsigned rounds, double hindsight)
{
    for (unsigned kind = 0; kind < WORKLOADS; kind++) {
        fprintf(stderr,
                "    %-9s at worst %.4f of what could be known, %.4f in hindsight (mean %.4f)\n",
                workload_names[kind], all[kind].known, all[kind].hindsight, all[kind].sum / rounds);
        CHECK(all[kind].known <= 1.02);
        CHECK(all[kind].hindsight <= hindsight);
    }
}

#endif
