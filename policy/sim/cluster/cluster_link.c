/*
 * Links of servers: one for each direction. Bytes go at the link's speed, those of a burst at once
 * if it was idle for long enough, as through a token bucket that is as large.
 */
#include "policy/sim/cluster/cluster_int.h"

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t mp_cluster_link_ns(const struct mp_cluster_sim *sim, uint32_t server, double bytes)
{
    const double ns = bytes * 8e3 / sim->cluster->servers[server].mbit;

    return (uint64_t)(sim->nodes[server].copying ? 2 * ns : ns);
}

static uint64_t burst_ns(const struct mp_cluster_sim *sim, uint32_t server)
{
    return mp_cluster_link_ns(sim, server, sim->cluster->burst_bytes);
}

/* *free_ns falls behind while nothing is sent, by a burst at most, and what is sent catches up. */
static uint64_t through(const struct mp_cluster_sim *sim, uint32_t server, uint64_t *free_ns,
                        uint64_t at_ns, double bytes)
{
    const uint64_t burst = burst_ns(sim, server);
    const uint64_t ns = mp_cluster_link_ns(sim, server, bytes);

    return later(at_ns, mp_cluster_queue(free_ns, later(at_ns, burst) - burst, ns));
}

uint64_t mp_cluster_send(struct mp_cluster_sim *sim, uint32_t server, uint64_t at_ns, double bytes)
{
    return through(sim, server, &sim->nodes[server].up_free_ns, at_ns, bytes);
}

uint64_t mp_cluster_get(struct mp_cluster_sim *sim, uint32_t from, uint32_t to, uint64_t left_ns,
                        double bytes)
{
    const uint64_t burst = burst_ns(sim, from);
    const uint64_t sent = later(mp_cluster_link_ns(sim, from, bytes), burst) - burst;
    const uint64_t first = later(left_ns, sent) - sent;

    return later(left_ns, through(sim, to, &sim->nodes[to].down_free_ns, first, bytes));
}
