/*
 * What a server's memory has that is a rank: its pager (policy/pager) keeps what the placement
 * gives it and two slots more. A layer that has to read more than that takes the place of what is
 * kept, which comes back between layers, a few at a time. As with `--profile lru`: of what may go,
 * the least recently used goes; first what is not kept, then what is, and last what was read in the
 * background and not used since. While a placement comes, what that one keeps is kept, and nothing
 * leaves that another server is yet to get (engine/cluster/rank_move.c).
 */
#include <string.h>

#include "policy/sim/cluster/cluster_int.h"

#define SPARE 2u /* slots beside what is kept: engine/cluster/hello.c */

void mp_cluster_memory_begin(struct mp_cluster_sim *sim)
{
    for (uint32_t n = 0; n < sim->servers; n++) {
        struct mp_cluster_node *node = &sim->nodes[n];

        for (uint32_t id = 0; id < sim->ids; id++)
            node->here_ns[id] = MP_CLUSTER_ABSENT;
        node->room = SPARE;
        for (uint32_t d = sim->first_device[n]; d < sim->first_device[n + 1]; d++)
            node->room += sim->slots[d];
        mp_cluster_fill(sim, n);
    }
}

bool mp_cluster_has(const struct mp_cluster_sim *sim, uint32_t server, uint32_t id)
{
    return sim->nodes[server].here_ns[id] <= sim->now_ns;
}

static bool keeps_in(const struct mp_cluster_sim *sim, uint32_t which, uint32_t server, uint32_t id)
{
    return sim->placements[which].device[(size_t)server * sim->ids + id] != 0;
}

bool mp_cluster_keeps(const struct mp_cluster_sim *sim, uint32_t server, uint32_t id)
{
    return keeps_in(sim, sim->current, server, id);
}

/* In the placement that comes, if one does. */
static bool is_to_keep(const struct mp_cluster_sim *sim, uint32_t server, uint32_t id)
{
    return keeps_in(sim, sim->switching ? 1 - sim->current : sim->current, server, id);
}

/* Has another server said that it has what comes? */
static bool is_elsewhere(const struct mp_cluster_sim *sim, uint32_t server, uint32_t id)
{
    uint32_t n = 0;

    while (n < sim->servers && (n == server || !sim->nodes[n].seen[id]))
        n++;
    return n < sim->servers;
}

/* Does another server need it here until it has it, too? */
static bool is_needed(const struct mp_cluster_sim *sim, uint32_t server, uint32_t id)
{
    bool wanted = false;

    if (!sim->switching || is_to_keep(sim, server, id) || !mp_cluster_keeps(sim, server, id))
        return false;
    for (uint32_t n = 0; n < sim->servers && !wanted; n++)
        wanted = is_to_keep(sim, n, id);
    return wanted && !is_elsewhere(sim, server, id);
}

bool mp_cluster_may_have(const struct mp_cluster_sim *sim, uint32_t server, uint32_t id)
{
    const bool said = sim->switching && sim->nodes[server].seen[id];

    return (said || mp_cluster_keeps(sim, server, id)) &&
           (is_to_keep(sim, server, id) || !is_elsewhere(sim, server, id));
}

void mp_cluster_open_layer(struct mp_cluster_sim *sim, uint32_t server)
{
    sim->nodes[server].uses++;
}

void mp_cluster_use(struct mp_cluster_sim *sim, uint32_t server, uint32_t id)
{
    sim->nodes[server].used[id] = sim->nodes[server].uses;
    sim->nodes[server].ahead[id] = false;
}

/* The least recently used that is there; if a layer is open, not what that needs. */
static uint32_t oldest(const struct mp_cluster_sim *sim, uint32_t server, bool open, bool kept,
                       bool ahead)
{
    const struct mp_cluster_node *node = &sim->nodes[server];
    uint32_t best = MP_CLUSTER_NONE;

    for (uint32_t id = 0; id < sim->ids; id++) {
        if (mp_cluster_has(sim, server, id) && node->used[id] < node->uses + !open &&
            node->ahead[id] == ahead && is_to_keep(sim, server, id) == kept &&
            !is_needed(sim, server, id) &&
            (best == MP_CLUSTER_NONE || node->used[id] < node->used[best]))
            best = id;
    }
    return best;
}

/* False: nothing may go. */
static bool make_room(struct mp_cluster_sim *sim, uint32_t server, bool demand)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    uint32_t victim;

    if (node->held < node->room)
        return true;
    victim = oldest(sim, server, demand, false, false);
    if (victim == MP_CLUSTER_NONE && demand)
        victim = oldest(sim, server, true, true, false);
    if (victim == MP_CLUSTER_NONE && demand)
        victim = oldest(sim, server, true, false, true);
    if (victim == MP_CLUSTER_NONE && demand)
        victim = oldest(sim, server, true, true, true);
    if (victim == MP_CLUSTER_NONE)
        return false;
    node->here_ns[victim] = MP_CLUSTER_ABSENT;
    node->held--;
    return true;
}

bool mp_cluster_has_room(const struct mp_cluster_sim *sim, uint32_t server)
{
    return sim->nodes[server].held < sim->nodes[server].room ||
           oldest(sim, server, false, false, false) != MP_CLUSTER_NONE;
}

bool mp_cluster_put(struct mp_cluster_sim *sim, uint32_t server, uint32_t id)
{
    struct mp_cluster_node *node = &sim->nodes[server];

    if (node->here_ns[id] != MP_CLUSTER_ABSENT || !make_room(sim, server, false))
        return false;
    node->held++;
    node->here_ns[id] = sim->now_ns;
    node->ahead[id] = true;
    return true;
}

/* Of what the server is to keep in the placement that comes. */
static void note_arrivals(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    bool all = true;

    if (!sim->switching || node->ready)
        return;
    for (uint32_t id = 0; id < sim->ids; id++) {
        node->seen[id] |= is_to_keep(sim, server, id) && mp_cluster_has(sim, server, id);
        all &= node->seen[id] || !is_to_keep(sim, server, id);
    }
    node->ready = all;
    for (uint32_t n = 0; n < sim->servers; n++)
        all &= sim->nodes[n].ready;
    if (all)
        mp_cluster_push(sim, sim->now_ns, MP_CLUSTER_SWITCH, 0, 0);
}

uint64_t mp_cluster_demand(struct mp_cluster_sim *sim, uint32_t server, uint32_t id, bool *read_p)
{
    struct mp_cluster_node *node = &sim->nodes[server];

    *read_p = node->here_ns[id] == MP_CLUSTER_ABSENT;
    if (*read_p) {
        /* Without room it would wait for what the layer itself uses, which is short. */
        (void)make_room(sim, server, true);
        node->held++;
        node->here_ns[id] = mp_cluster_read_one(sim, server);
    }
    return node->here_ns[id];
}

void mp_cluster_fill(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    uint32_t coming = 0;
    uint64_t end = sim->now_ns;

    mp_cluster_follow_probe(sim, server);
    note_arrivals(sim, server);
    for (uint32_t id = 0; id < sim->ids; id++)
        coming += node->here_ns[id] != MP_CLUSTER_ABSENT && node->here_ns[id] > sim->now_ns;
    for (uint32_t id = 0; id < sim->ids && coming < MP_CLUSTER_FILLING_MAX; id++) {
        if (node->here_ns[id] != MP_CLUSTER_ABSENT || !is_to_keep(sim, server, id) ||
            mp_cluster_comes_elsewhere(sim, server, id))
            continue;
        if (!make_room(sim, server, false))
            break;
        node->held++;
        end = node->here_ns[id] = mp_cluster_read_one(sim, server);
        node->ahead[id] = true;
        sim->result->filled++;
        coming++;
    }
    /* A rank that computes looks again before its next layer. */
    if (end > sim->now_ns && node->request == MP_CLUSTER_NONE && !node->filling) {
        node->filling = true;
        mp_cluster_push(sim, end, MP_CLUSTER_FILL, server, 0);
    }
}

void mp_cluster_memory_move(struct mp_cluster_sim *sim)
{
    for (uint32_t n = 0; n < sim->servers; n++) {
        sim->nodes[n].ready = false;
        memset(sim->nodes[n].seen, 0, sim->ids * sizeof(*sim->nodes[n].seen));
    }
    for (uint32_t n = 0; n < sim->servers; n++) {
        if (sim->nodes[n].request == MP_CLUSTER_NONE)
            mp_cluster_fill(sim, n);
    }
}
