#include "policy/place/take_back.h"

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Put the one with most tokens before all others, which stay in their order. */
static void put_first(struct mp_take_group *groups, uint32_t count)
{
    struct mp_take_group most;
    uint32_t best = 0;

    for (uint32_t i = 1; i < count; i++) {
        if (groups[i].tokens > groups[best].tokens)
            best = i;
    }
    most = groups[best];
    for (; best > 0; best--)
        groups[best] = groups[best - 1];
    groups[0] = most;
}

uint32_t mp_place_take_back(struct mp_take_group *groups, uint32_t count,
                            const struct mp_learn_reads *reads, double row_ns, uint32_t *reads_p,
                            double *own_p, double *left_p)
{
    const uint32_t before = *reads_p;
    double own = *own_p, left = *left_p, best = MP_LEARN_CLEARLY * later(own, left);
    uint32_t keep = 0;

    for (uint32_t taken = 0; taken < count; taken++) {
        put_first(groups + taken, count - taken);
        own += (before + taken > 0 ? reads->more_ns : reads->first_ns) + groups[taken].compute_ns;
        left -= row_ns * groups[taken].tokens;
        if (taken + 1 == count || left < 0)
            left = 0;
        if (later(own, left) >= best)
            continue;
        best = later(own, left);
        keep = taken + 1;
        *reads_p = before + keep;
        *own_p = own;
        *left_p = left;
    }
    return keep;
}
