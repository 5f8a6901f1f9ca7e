/*
 * What placements are told: counts since the last change, link and device times, waiting at peers.
 */
#include <math.h>
#include <string.h>

#include "policy/builtins.h"
#include "policy/sim/cluster/cluster_int.h"

#define UNKNOWN_CALL_S 1e-3 /* before a rank has measured one: engine/cluster/rank_epoch.c */

/* A call takes the way there and back and what calls to that peer have waited for and computed so
 * far, a token its row both ways through the slower of the two links. */
static void put_costs(struct mp_cluster_sim *sim)
{
    const struct mp_cluster *cluster = sim->cluster;
    const double way_s =
        (2 * cluster->latency_us + cluster->call_us + cluster->send_us + cluster->take_us) / 1e6;
    const double bits = 2 * cluster->model.hidden * cluster->value_bytes * 8;

    for (uint32_t n = 0; n < sim->servers; n++) {
        for (uint32_t m = 0; m < sim->servers; m++) {
            const size_t pair = (size_t)n * sim->servers + m;
            const struct mp_cluster_node *peer = &sim->nodes[m];

            sim->call_s[pair] = way_s + (peer->waits > 0 ? peer->wait_s / peer->waits : 0);
            sim->token_s[pair] =
                bits / (fmin(cluster->servers[n].mbit, cluster->servers[m].mbit) * 1e6);
        }
    }
}

/* What ranks have measured, as engine/cluster/rank_epoch.c: the mean stands for pairs that nobody
 * has. */
static void put_measured(struct mp_cluster_sim *sim)
{
    const uint32_t servers = sim->servers;
    double sum = 0, mean;
    uint32_t count = 0;

    for (uint32_t n = 0; n < servers; n++) {
        for (uint32_t m = 0; m < servers; m++) {
            sum += sim->nodes[n].fixed_ns[m];
            count += sim->nodes[n].fixed_ns[m] > 0;
        }
    }
    mean = count > 0 ? sum / count / 1e9 : UNKNOWN_CALL_S;
    for (uint32_t n = 0; n < servers; n++) {
        const struct mp_cluster_node *node = &sim->nodes[n];

        for (uint32_t m = 0; m < servers; m++) {
            sim->call_s[n * servers + m] = node->fixed_ns[m] > 0 ? node->fixed_ns[m] / 1e9 : mean;
            sim->token_s[n * servers + m] = node->row_ns[m] / 1e9;
        }
        if (sim->cluster->servers[n].reads)
            sim->page_s[n] = sim->copy_s[n] = mp_cluster_reads(sim, n).first_ns / 1e9;
    }
}

/* What a server expects of a layer's expert in a second: tokens, and groups of them. A prompt has a
 * group if one of its tokens chooses the expert. */
static void put_expected(struct mp_cluster_sim *sim, uint32_t n, uint32_t layer, uint32_t expert)
{
    const struct mp_cluster *cluster = sim->cluster;
    const struct mp_cluster_server *server = &cluster->servers[n];
    const size_t at = (size_t)n * sim->ids + layer * sim->load->experts + expert;
    double share = 0, chosen;

    if (cluster->known < 0) {
        sim->tokens[at] = sim->calls[at] = 0;
        return;
    }
    for (uint32_t d = 0; d < sim->load->domains; d++)
        share += mp_cluster_share(sim->load, d, layer, expert) / sim->load->domains;
    share = cluster->known * mp_cluster_share(sim->load, server->domain, layer, expert) +
            (1 - cluster->known) * share;
    chosen = fmin(1, share * sim->load->top_k);
    sim->tokens[at] = (cluster->prompt + cluster->gen - 1) * chosen / server->arrival_s;
    sim->calls[at] =
        (1 - pow(1 - chosen, cluster->prompt) + (cluster->gen - 1) * chosen) / server->arrival_s;
}

void mp_cluster_facts_begin(struct mp_cluster_sim *sim)
{
    const double bytes = (double)mp_sim_expert_bytes(&sim->cluster->model);

    for (uint32_t n = 0; n < sim->servers; n++) {
        const struct mp_cluster_server *server = &sim->cluster->servers[n];
        const double load_s = (double)mp_sim_load_ns(&server->machine, &sim->cluster->model) / 1e9;

        sim->page_s[n] = server->reads ? load_s : -1;
        sim->copy_s[n] = server->reads ? load_s : bytes * 8 / (server->mbit * 1e6);
        sim->steps[n] = sim->cluster->gen / server->arrival_s;
        for (uint32_t l = 0; l < sim->load->layers; l++) {
            for (uint32_t e = 0; e < sim->load->experts; e++)
                put_expected(sim, n, l, e);
        }
    }
    sim->facts.seconds = 1;
}

void mp_cluster_facts_clear(struct mp_cluster_sim *sim)
{
    const size_t all = (size_t)sim->servers * sim->ids;

    memset(sim->tokens, 0, all * sizeof(*sim->tokens));
    memset(sim->calls, 0, all * sizeof(*sim->calls));
    memset(sim->steps, 0, sim->servers * sizeof(*sim->steps));
    sim->since_ns = sim->now_ns;
}

void mp_cluster_facts_tell(struct mp_cluster_sim *sim)
{
    const double seconds = (double)(sim->now_ns - sim->since_ns) / 1e9;
    double most = 0;

    sim->since_ns = sim->now_ns;
    for (uint32_t n = 0; n < sim->servers; n++) {
        const size_t first = (size_t)n * sim->ids;

        if (!mp_cluster_is_leaving(sim, n)) {
            sim->seconds[n] = sim->seconds[n] / 2 + seconds;
            sim->steps[n] = sim->steps[n] / 2 + sim->new_steps[n];
            sim->new_steps[n] = 0;
            for (size_t at = first; at < first + sim->ids; at++) {
                sim->tokens[at] = sim->tokens[at] / 2 + sim->new_tokens[at];
                sim->calls[at] = sim->calls[at] / 2 + sim->new_calls[at];
                sim->new_tokens[at] = sim->new_calls[at] = 0;
            }
        }
        most = fmax(most, sim->seconds[n]);
    }
    sim->facts.seconds = most > 0 ? most : 1;
}

enum mp_status mp_cluster_place(struct mp_cluster_sim *sim, uint32_t which)
{
    const struct mp_place_ops *ops = sim->config->place;
    enum mp_status status;

    if (mp_cluster_as_ranks(sim)) {
        sim->facts.seed = sim->config->seed + sim->epochs;
        put_measured(sim);
    } else {
        if (sim->now_ns > sim->since_ns)
            sim->facts.seconds = (double)(sim->now_ns - sim->since_ns) / 1e9;
        sim->facts.seed = mp_policy_mix(sim->config->seed ^ sim->now_ns);
        put_costs(sim);
    }
    status = mp_place(ops, &sim->facts, &sim->placements[which]);
    if (status == MP_OK && sim->config->check)
        status =
            mp_place_check(&sim->facts, &sim->placements[which], mp_place_covers(ops, &sim->facts));
    return status;
}

void mp_cluster_list_holders(struct mp_cluster_sim *sim)
{
    const struct mp_placement *placement = &sim->placements[sim->current];
    uint32_t at = 0;

    for (uint32_t u = 0; u < sim->ids; u++) {
        sim->first_holder[u] = at;
        for (uint32_t n = 0; n < sim->servers; n++) {
            if (placement->device[(size_t)n * sim->ids + u] != 0)
                sim->holders[at++] = n;
        }
    }
    sim->first_holder[sim->ids] = at;
}

uint64_t mp_cluster_copy_ns(struct mp_cluster_sim *sim, uint32_t from, uint32_t to,
                            double *arrive_p)
{
    double longest = 0;

    *arrive_p = 0;
    for (uint32_t n = 0; n < sim->servers; n++) {
        const uint16_t *before = sim->placements[from].device + (size_t)n * sim->ids;
        const uint16_t *after = sim->placements[to].device + (size_t)n * sim->ids;
        double arrive = 0;

        for (uint32_t u = 0; u < sim->ids; u++)
            arrive += after[u] != 0 && before[u] == 0;
        *arrive_p += arrive;
        longest = fmax(longest, arrive * sim->copy_s[n]);
        sim->nodes[n].copying = arrive > 0 && !sim->cluster->servers[n].reads;
    }
    return (uint64_t)(longest * 1e9);
}
