/*
 * Devices that are processes of one host: more of them may have work than the host has processors.
 * Work begins when its device has done what it was given before and a processor is free for all of
 * it, and is not interrupted.
 */
#include "policy/sim/cluster/cluster_int.h"

static void drop_past(struct mp_cluster_sim *sim)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < sim->span_count; i++) {
        if (sim->spans[i].end_ns > sim->now_ns)
            sim->spans[kept++] = sim->spans[i];
    }
    sim->span_count = kept;
}

static uint32_t taken_at(const struct mp_cluster_sim *sim, uint64_t at_ns)
{
    uint32_t taken = 0;

    for (uint32_t i = 0; i < sim->span_count; i++)
        taken += sim->spans[i].start_ns <= at_ns && at_ns < sim->spans[i].end_ns;
    return taken;
}

/* Is a processor free all that time? If not, *next_p: the earliest moment that may be better. */
static bool is_free(const struct mp_cluster_sim *sim, uint64_t start_ns, uint64_t end_ns,
                    uint64_t *next_p)
{
    const uint32_t all = (uint32_t)sim->cluster->processors;
    bool is = taken_at(sim, start_ns) < all;

    *next_p = UINT64_MAX;
    for (uint32_t i = 0; i < sim->span_count; i++) {
        const struct mp_cluster_span *span = &sim->spans[i];

        if (span->start_ns >= end_ns || span->end_ns <= start_ns)
            continue;
        is &= span->start_ns <= start_ns || taken_at(sim, span->start_ns) < all;
        *next_p = span->end_ns < *next_p ? span->end_ns : *next_p;
    }
    return is;
}

uint64_t mp_cluster_processor(struct mp_cluster_sim *sim, uint64_t start_ns, uint64_t ns)
{
    uint64_t next;

    sim->result->work_s += (double)ns / 1e9;
    if (sim->cluster->processors > 0 && ns > 0) {
        drop_past(sim);
        while (!is_free(sim, start_ns, start_ns + ns, &next))
            start_ns = next;
        sim->spans[sim->span_count++] = (struct mp_cluster_span){ start_ns, start_ns + ns };
    }
    return start_ns + ns;
}

uint64_t mp_cluster_work(struct mp_cluster_sim *sim, uint32_t device, uint64_t ns)
{
    uint64_t *free_ns = &sim->device_free_ns[device];

    *free_ns = mp_cluster_processor(sim, *free_ns > sim->now_ns ? *free_ns : sim->now_ns, ns);
    return *free_ns;
}

/* Of a device at once: its layer and that one's groups, a reply from each server, and the groups of
 * a call of each. Of a server: messages to and from each, and what it reads for its own layer, for
 * each other one's, and in the background. */
uint64_t mp_cluster_spans_max(const struct mp_cluster_sim *sim, uint32_t devices)
{
    const uint64_t experts = sim->load->experts, servers = sim->servers;

    return sim->cluster->processors > 0
               ? devices * (1 + experts + servers + servers * (experts + 1)) +
                     servers * (2 * servers + (servers + 1) * experts + MP_CLUSTER_FILLING_MAX)
               : 0;
}
