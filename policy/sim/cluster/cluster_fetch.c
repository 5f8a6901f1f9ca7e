/*
 * Experts out of other servers' memory, as engine/cluster/rank_fetch.c gets them: where that took
 * less time lately than a read. A layer that waits for one begins when it is there. A message that
 * is too long for MPI to send at once goes in two parts: the rest, in pieces of that size, when the
 * receiver has found the first one, and the sender has heard of that. Ranks hear of anything only
 * where they answer.
 */
#include "policy/sim/cluster/cluster_int.h"

#define FORGET 32 /* engine/cluster/rank_fetch.c */

static struct mp_cluster_fetch *find(struct mp_cluster_node *node, uint32_t id)
{
    for (uint32_t i = 0; i < MP_CLUSTER_FETCHES_MAX; i++) {
        if (node->fetch[i].open && node->fetch[i].id == id)
            return &node->fetch[i];
    }
    return NULL;
}

static struct mp_cluster_fetch *find_free(struct mp_cluster_node *node)
{
    for (uint32_t i = 0; i < MP_CLUSTER_FETCHES_MAX; i++) {
        if (!node->fetch[i].open)
            return &node->fetch[i];
    }
    return NULL;
}

/* The lowest other server that is asked for it and has it. */
static uint32_t find_source(const struct mp_cluster_sim *sim, uint32_t server, uint32_t id)
{
    for (uint32_t n = 0; n < sim->servers; n++) {
        if (n != server && mp_cluster_may_have(sim, n, id) && mp_cluster_has(sim, n, id))
            return n;
    }
    return MP_CLUSTER_NONE;
}

static bool is_faster(const struct mp_cluster_node *node, double read_ns)
{
    return read_ns > 0 && node->fetch_ns < read_ns;
}

static double bytes_of(const struct mp_cluster_sim *sim)
{
    return (double)mp_sim_expert_bytes(&sim->cluster->model);
}

static void push(struct mp_cluster_sim *sim, uint32_t server, const struct mp_cluster_fetch *fetch,
                 uint64_t at_ns)
{
    mp_cluster_push(sim, at_ns, MP_CLUSTER_FETCH, server,
                    (uint32_t)(fetch - sim->nodes[server].fetch));
}

/* A message of the fetch leaves `from` for `to`. Of a long one a piece does, and the rest behind
 * what others have sent meanwhile: links are shared by connections. */
static void send(struct mp_cluster_sim *sim, uint32_t server, struct mp_cluster_fetch *fetch,
                 uint32_t from, uint32_t to, double bytes)
{
    const double once = sim->cluster->once_bytes;
    const double piece = once > 0 && once < bytes ? once : bytes;
    const double all = piece + sim->cluster->head_bytes;
    const uint64_t left_ns = mp_cluster_send(sim, from, sim->now_ns, all);

    fetch->leaves = true;
    fetch->rest = bytes - piece;
    push(sim, server, fetch, mp_cluster_get(sim, from, to, left_ns, all));
}

static void ask_for(struct mp_cluster_sim *sim, uint32_t server, struct mp_cluster_fetch *fetch,
                    uint32_t id, uint32_t from, double *read_ns)
{
    *read_ns -= *read_ns / FORGET;
    *fetch = (struct mp_cluster_fetch){
        .open = true, .id = id, .from = from, .sent_ns = sim->now_ns, .stage = MP_CLUSTER_ASKS
    };
    send(sim, server, fetch, server, from, 0);
}

bool mp_cluster_comes_elsewhere(struct mp_cluster_sim *sim, uint32_t server, uint32_t id)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    struct mp_cluster_fetch *fetch = find_free(node);
    const uint32_t from = find_source(sim, server, id);
    const bool may = sim->config->place->calls && from != MP_CLUSTER_NONE;
    const bool room = mp_cluster_has_room(sim, server);

    if (find(node, id) != NULL)
        return true;
    if (may && is_faster(node, node->fill_ns)) {
        if (fetch != NULL && room)
            ask_for(sim, server, fetch, id, from, &node->fill_ns);
        return true;
    }
    if (node->probe_ns == 0 && room) {
        node->probe = id;
        node->probe_ns = sim->now_ns;
        if (may)
            node->fetch_ns -= node->fetch_ns / FORGET;
    }
    return false;
}

static void learn(double *ns, double sample)
{
    *ns = *ns == 0 ? sample : (*ns + sample) / 2;
}

void mp_cluster_follow_probe(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];

    if (node->probe_ns == 0 || !mp_cluster_has(sim, server, node->probe))
        return;
    learn(&node->fill_ns, (double)(sim->now_ns - node->probe_ns));
    node->probe_ns = 0;
}

bool mp_cluster_fetch_missing(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    const uint32_t first = node->layer * sim->load->experts;

    if (!sim->config->place->calls || node->has_fetched)
        return false;
    node->has_fetched = true;
    for (uint32_t i = 0; i < node->group_count; i++) {
        const uint32_t id = first + node->groups[i].expert;
        const uint32_t from = find_source(sim, server, id);
        struct mp_cluster_fetch *fetch = find(node, id), *unused = find_free(node);

        if (!node->groups[i].read || node->groups[i].where != server)
            continue;
        if (fetch == NULL && unused != NULL && from != MP_CLUSTER_NONE &&
            node->here_ns[id] == MP_CLUSTER_ABSENT && node->has_read &&
            mp_cluster_has_room(sim, server) && is_faster(node, node->reads.first_ns)) {
            ask_for(sim, server, unused, id, from, &node->reads.first_ns);
            fetch = unused;
        }
        if (fetch != NULL)
            node->fetching = fetch->needed = true;
    }
    return node->fetching;
}

/* It is there; the layer that waited for it begins. */
static void take(struct mp_cluster_sim *sim, uint32_t server, struct mp_cluster_fetch *fetch)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    bool waits = false;

    learn(&node->fetch_ns, (double)(sim->now_ns - fetch->sent_ns));
    fetch->open = false;
    sim->result->fetched += mp_cluster_put(sim, server, fetch->id);
    for (uint32_t i = 0; i < MP_CLUSTER_FETCHES_MAX; i++)
        waits |= node->fetch[i].open && node->fetch[i].needed;
    if (!node->fetching || waits)
        return;
    node->fetching = false;
    node->route_ns = sim->now_ns;
    mp_cluster_push(sim, sim->now_ns, MP_CLUSTER_ROUTED, server, 0);
}

void mp_cluster_follow_fetch(struct mp_cluster_sim *sim, uint32_t server, uint32_t number)
{
    struct mp_cluster_fetch *fetch = &sim->nodes[server].fetch[number];
    const bool at_source = fetch->stage == MP_CLUSTER_ASKS || fetch->stage == MP_CLUSTER_GOES_ON;
    const bool computed = fetch->stage == MP_CLUSTER_COPIED || fetch->stage == MP_CLUSTER_TAKEN;
    const uint32_t at = at_source ? fetch->from : server;
    const double bytes = bytes_of(sim), once = sim->cluster->once_bytes;
    const double first = once > 0 && once < bytes ? once : bytes;
    uint64_t again;

    if (fetch->leaves && fetch->rest > 0) {
        send(sim, server, fetch, fetch->from, server, fetch->rest);
        return;
    }
    if (fetch->leaves) {
        fetch->leaves = false;
        push(sim, server, fetch, mp_cluster_there(sim));
        return;
    }
    if (!computed && !mp_cluster_answers(sim, at, &again)) {
        push(sim, server, fetch, again);
        return;
    }
    switch (fetch->stage) {
    case MP_CLUSTER_ASKS: /* it is copied, and its hash goes with it */
        fetch->stage = MP_CLUSTER_COPIED;
        push(sim, server, fetch, mp_cluster_copy_work(sim, at, bytes));
        break;
    case MP_CLUSTER_COPIED:
        fetch->stage = first < bytes ? MP_CLUSTER_BEGUN : MP_CLUSTER_COMES;
        send(sim, server, fetch, fetch->from, server, first);
        break;
    case MP_CLUSTER_BEGUN:
        fetch->stage = MP_CLUSTER_GOES_ON;
        send(sim, server, fetch, server, fetch->from, 0);
        break;
    case MP_CLUSTER_GOES_ON:
        fetch->stage = MP_CLUSTER_COMES;
        send(sim, server, fetch, fetch->from, server, bytes - first);
        break;
    case MP_CLUSTER_COMES:
        fetch->stage = MP_CLUSTER_TAKEN;
        push(sim, server, fetch, mp_cluster_copy_work(sim, at, bytes));
        break;
    case MP_CLUSTER_TAKEN: take(sim, server, fetch); break;
    }
}
