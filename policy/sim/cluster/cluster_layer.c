/*
 * One MoE layer across servers. Attention and router run on the server's own first device. Then the
 * tokens of each expert are a group, and each group goes one of three ways: to a device of the
 * server that keeps the expert; to a peer that keeps it, with all groups for that peer in one
 * message each way; or to the server's first device after the expert was read. The layer ends with
 * the last group.
 */
#include <string.h>

#include "policy/place/learn.h"
#include "policy/sim/cluster/cluster_int.h"

#include "vmm/base/assert.h"

#define AGAIN_NS 1000 /* at least, before a call looks again whether it is answered */

uint32_t mp_cluster_step_tokens(const struct mp_cluster_sim *sim, uint32_t server)
{
    const struct mp_cluster_node *node = &sim->nodes[server];

    if (node->batch != NULL)
        return node->batch->tokens;
    return node->step == 0 ? (uint32_t)sim->cluster->prompt : 1;
}

static uint32_t first_device(const struct mp_cluster_sim *sim, uint32_t server)
{
    return sim->first_device[server];
}

static double message_bytes(const struct mp_cluster_sim *sim, uint32_t rows)
{
    const struct mp_cluster *cluster = sim->cluster;

    return cluster->head_bytes + rows * cluster->model.hidden * cluster->value_bytes;
}

/* A message of rows through a link in one direction. */
static uint64_t rows_ns(const struct mp_cluster_sim *sim, uint32_t server, uint32_t rows)
{
    return mp_cluster_link_ns(sim, server, message_bytes(sim, rows));
}

static uint64_t expert_ns(const struct mp_cluster_sim *sim, uint32_t server, uint32_t tokens)
{
    return mp_sim_device_ns(&sim->cluster->servers[server].machine, &sim->cluster->model, tokens);
}

/* What a device does for a message beside the experts. */
static uint64_t message_ns(const struct mp_cluster_sim *sim, double fixed_us, uint32_t rows)
{
    return (uint64_t)((fixed_us + sim->cluster->row_us * rows) * 1e3);
}

/* What calls take of a device, beside experts; 0 is not even a place in its queue. */
static uint64_t message_work(struct mp_cluster_sim *sim, uint32_t server, double fixed_us,
                             uint32_t rows)
{
    const uint64_t ns = message_ns(sim, fixed_us, rows);

    return ns > 0 ? mp_cluster_work(sim, first_device(sim, server), ns) : sim->now_ns;
}

static uint64_t way_ns(const struct mp_cluster_sim *sim)
{
    return (uint64_t)((sim->cluster->latency_us + sim->cluster->call_us / 2) * 1e3);
}

/* Part of the way is work of a processor, which may have to wait for one. */
uint64_t mp_cluster_there(struct mp_cluster_sim *sim)
{
    const uint64_t way = way_ns(sim);
    const uint64_t work = sim->cluster->processors > 0 ? (uint64_t)(sim->cluster->way_us * 1e3) : 0;

    if (work == 0)
        return sim->now_ns + way;
    return mp_cluster_processor(sim, sim->now_ns, work) + (way > work ? way - work : 0);
}

uint64_t mp_cluster_copy_work(struct mp_cluster_sim *sim, uint32_t server, double bytes)
{
    const double row = sim->cluster->model.hidden * sim->cluster->value_bytes;

    return message_work(sim, server, sim->cluster->serve_us, (uint32_t)(bytes / row));
}

void mp_cluster_begin_layer(struct mp_cluster_sim *sim, uint32_t server)
{
    const struct mp_sim_machine *machine = &sim->cluster->servers[server].machine;
    const struct mp_sim_model *model = &sim->cluster->model;
    struct mp_cluster_node *node = &sim->nodes[server];
    const uint32_t tokens = mp_cluster_step_tokens(sim, server);
    const uint32_t context = (uint32_t)sim->cluster->prompt + node->step;
    uint64_t ns;

    node->has_fetched = false;
    if (mp_cluster_as_ranks(sim))
        mp_cluster_fill(sim, server);
    ns = mp_sim_layer_ns(machine, model, tokens, 1, context) +
         mp_sim_ffn_ns(machine, model, model->shared_ffn, tokens);
    if (node->layer == 0)
        ns += mp_sim_head_ns(machine, model, tokens, 1) +
              (uint64_t)model->dense_layers *
                  (mp_sim_layer_ns(machine, model, tokens, 1, context) +
                   mp_sim_ffn_ns(machine, model, model->dense_ffn, tokens));
    node->route_ns = mp_cluster_work(sim, first_device(sim, server), ns);
    mp_cluster_push(sim, node->route_ns, MP_CLUSTER_ROUTED, server, 0);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* When a peer would have sent back the group's results, beside what it was already asked in this
 * layer: an estimate from the queues as they are. */
static uint64_t peer_end_ns(const struct mp_cluster_sim *sim, uint32_t server, uint32_t peer,
                            uint32_t device, uint32_t tokens)
{
    const struct mp_cluster_node *node = &sim->nodes[server], *to = &sim->nodes[peer];
    const uint32_t rows = node->asked[peer] + tokens;
    const uint64_t out = later(later(node->up_free_ns, sim->now_ns) + rows_ns(sim, server, rows),
                               later(to->down_free_ns, sim->now_ns) + rows_ns(sim, peer, rows));
    const uint64_t start = later(later(out + way_ns(sim), sim->device_free_ns[device]),
                                 node->asked[peer] > 0 ? node->asked_ns[peer] : 0);

    return start + expert_ns(sim, peer, tokens) + message_ns(sim, sim->cluster->serve_us, 0) +
           way_ns(sim) + later(rows_ns(sim, server, rows), rows_ns(sim, peer, rows));
}

static uint32_t device_of(const struct mp_cluster_sim *sim, uint32_t server, uint32_t id)
{
    const uint16_t *device = sim->placements[sim->current].device;

    return first_device(sim, server) + device[(size_t)server * sim->ids + id] - 1;
}

/* `planned`: as a rank, how long it expects the message to take with these rows, too. */
static void ask(struct mp_cluster_sim *sim, uint32_t server, struct mp_cluster_group *group,
                double planned)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    const uint32_t peer = group->where;

    if (node->asked[peer] == 0) {
        node->peers[node->peer_count++] = peer;
        node->asked_ns[peer] = later(sim->device_free_ns[group->device], sim->now_ns);
    }
    node->asked[peer] += group->tokens;
    node->asked_ns[peer] = mp_cluster_as_ranks(sim)
                               ? (uint64_t)planned
                               : node->asked_ns[peer] + expert_ns(sim, peer, group->tokens);
}

static void compute_here(struct mp_cluster_sim *sim, uint32_t server, uint32_t device,
                         uint32_t tokens)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    const uint64_t ns = expert_ns(sim, server, tokens), end = mp_cluster_work(sim, device, ns);

    node->own_ns += ns;
    node->layer_end_ns = later(node->layer_end_ns, end);
}

/* When the way to stored experts is free; servers of one host have one. */
static uint64_t *read_free(struct mp_cluster_sim *sim, uint32_t server)
{
    return &sim->nodes[sim->cluster->processors > 0 ? 0 : server].read_free_ns;
}

uint64_t mp_cluster_read_one(struct mp_cluster_sim *sim, uint32_t server)
{
    const uint64_t start = later(sim->nodes[server].asked_until_ns, sim->now_ns);
    const uint64_t end = mp_cluster_queue(
        read_free(sim, server), start,
        mp_sim_load_ns(&sim->cluster->servers[server].machine, &sim->cluster->model));
    const uint64_t work = (uint64_t)(sim->cluster->load_work_us * 1e3);

    return sim->cluster->processors > 0 && work > 0
               ? later(end, mp_cluster_processor(sim, start, work))
               : end;
}

/* When the expert of a layer that waits for it is there. A rank that waits for a read answers
 * nobody. */
static uint64_t read_for_layer(struct mp_cluster_sim *sim, uint32_t server, uint32_t id,
                               bool *read_p)
{
    uint64_t *device_free_ns = &sim->device_free_ns[first_device(sim, server)];
    uint64_t end;

    *read_p = true;
    end = mp_cluster_as_ranks(sim) ? mp_cluster_demand(sim, server, id, read_p)
                                   : mp_cluster_read_one(sim, server);
    end = later(end, sim->now_ns) + (uint64_t)(sim->cluster->read_us * 1e3);
    if (mp_cluster_as_ranks(sim))
        *device_free_ns = later(*device_free_ns, end);
    sim->result->reads += *read_p;
    return end;
}

/* Reads begin when messages have left. */
static void read_expert(struct mp_cluster_sim *sim, uint32_t server, uint32_t number)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    struct mp_cluster_group *group = &node->groups[number];
    bool read;
    const uint64_t end =
        read_for_layer(sim, server, node->layer * sim->load->experts + group->expert, &read);

    group->read = true;
    group->where = server;
    group->device = first_device(sim, server);
    node->pending++;
    node->own_reads = ++node->reading;
    sim->result->reading_layers += node->own_reads == 1;
    mp_cluster_push(sim, end, MP_CLUSTER_READ, server, number);
}

/* As engine/cluster/rank_choose.c: how long the layer is expected to take if the peer gets these
 * rows, too. */
static double planned_ns(const struct mp_cluster_node *node, uint32_t peer, uint32_t tokens)
{
    const double before =
        node->asked[peer] > 0 ? (double)node->asked_ns[peer] : node->fixed_ns[peer];

    return before + node->row_ns[peer] * tokens;
}

/* A group whose expert the rank does not have: to be read if it is kept here or nobody is asked,
 * else to the one that keeps it and is expected to be done first, the lowest if several are. */
static void send_away_as_rank(struct mp_cluster_sim *sim, uint32_t server, uint32_t number)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    struct mp_cluster_group *group = &node->groups[number];
    const uint32_t id = node->layer * sim->load->experts + group->expert;
    double best = 0;

    for (uint32_t peer = 0; sim->config->place->calls && peer < sim->servers; peer++) {
        const double ns = planned_ns(node, peer, group->tokens);

        if (!mp_cluster_may_have(sim, peer, id))
            continue;
        if (peer == server) {
            group->where = server;
            break;
        }
        if (group->where == server || ns < best) {
            best = ns;
            group->where = peer;
            group->device = first_device(sim, peer);
        }
    }
    group->read = group->where == server;
    if (!group->read)
        ask(sim, server, group, best);
}

/* A group whose expert the server does not keep: to the holder that is expected to be done first,
 * the lowest if several are, or read, if that is done earlier. */
static void send_away(struct mp_cluster_sim *sim, uint32_t server, uint32_t number)
{
    const struct mp_place_ops *ops = sim->config->place;
    struct mp_cluster_node *node = &sim->nodes[server];
    struct mp_cluster_group *group = &node->groups[number];
    const uint32_t id = node->layer * sim->load->experts + group->expert;
    uint64_t best = UINT64_MAX;

    for (uint32_t i = sim->first_holder[id]; ops->calls && i < sim->first_holder[id + 1]; i++) {
        const uint32_t peer = sim->holders[i], device = device_of(sim, peer, id);
        const uint64_t end = peer_end_ns(sim, server, peer, device, group->tokens);

        if (end < best) {
            best = end;
            group->where = peer;
            group->device = device;
        }
    }
    if (ops->pages && sim->page_s[server] >= 0) {
        const uint64_t loaded =
            later(*read_free(sim, server), sim->now_ns) +
            mp_sim_load_ns(&sim->cluster->servers[server].machine, &sim->cluster->model);
        const uint64_t end = later(loaded, sim->device_free_ns[first_device(sim, server)]) +
                             expert_ns(sim, server, group->tokens);

        if (end < best) {
            read_expert(sim, server, number);
            return;
        }
    }
    mp_assert(best != UINT64_MAX);
    ask(sim, server, group, 0);
}

/* A reply was taken: as engine/cluster/rank_layer.c. Where own work ends later, nobody looked when
 * it came. */
static void learn_call(struct mp_cluster_sim *sim, uint32_t server, uint32_t peer, bool waited)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    const double ns = (double)(later(node->layer_end_ns, sim->now_ns) - node->sent_ns[peer]);

    if (!waited && ns > node->fixed_ns[peer] + node->row_ns[peer] * node->asked[peer])
        return;
    node->samples[peer]++;
    mp_learn_call(&node->fixed_ns[peer], &node->row_ns[peer], ns, node->asked[peer]);
}

/* As mp_rank_reads(): before a layer has waited for a read, what one took in the background. */
struct mp_learn_reads mp_cluster_reads(const struct mp_cluster_sim *sim, uint32_t server)
{
    const struct mp_cluster_node *node = &sim->nodes[server];
    double guess;

    if (node->reads.first_ns > 0)
        return node->reads;
    guess = (1 - node->forgotten) *
            (node->fill_ns > 0 ? node->fill_ns
                               : (double)mp_sim_load_ns(&sim->cluster->servers[server].machine,
                                                        &sim->cluster->model));
    return (struct mp_learn_reads){ guess, guess };
}

/* All that was read is there and computed. */
static void learn_reads(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    const double ns =
        (double)node->layer_end_ns - (double)node->asked_until_ns - (double)node->own_ns;

    node->has_read = true;
    if (ns <= 0)
        return;
    node->reads = mp_cluster_reads(sim, server);
    mp_learn_reads(&node->reads, ns, node->own_reads);
}

/* What the layer could have used and did not. */
static void forget(struct mp_cluster_sim *sim, uint32_t server, bool could_read)
{
    struct mp_cluster_node *node = &sim->nodes[server];

    if (could_read) {
        mp_learn_forget(&node->reads.first_ns);
        mp_learn_forget(&node->reads.more_ns);
        node->forgotten += (1 - node->forgotten) / MP_LEARN_FORGET;
    }
    for (uint32_t p = 0; p < sim->servers; p++) {
        if (node->asked[p] > 0)
            continue;
        mp_learn_forget(&node->fixed_ns[p]);
        mp_learn_forget(&node->row_ns[p]);
    }
}

/* Some of what the peer is asked for is read here instead. *own_p: when what is computed here is
 * done. True: at least one group. */
static bool take_back(struct mp_cluster_sim *sim, uint32_t server, uint32_t peer, uint32_t *reads_p,
                      double *own_p)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    const struct mp_learn_reads reads = mp_cluster_reads(sim, server);
    double left = (double)node->asked_ns[peer];
    uint32_t count = 0, taken;

    for (uint32_t i = 0; i < node->group_count; i++) {
        const uint32_t tokens = node->groups[i].tokens;

        if (node->groups[i].where == peer)
            sim->take[count++] = (struct mp_take_group){
                .number = i,
                .tokens = tokens,
                .compute_ns = (double)expert_ns(sim, server, tokens),
            };
    }
    taken = mp_place_take_back(sim->take, count, &reads, node->row_ns[peer], reads_p, own_p, &left);
    node->asked_ns[peer] = (uint64_t)left;
    for (uint32_t i = 0; i < taken; i++) {
        struct mp_cluster_group *group = &node->groups[sim->take[i].number];

        group->where = server;
        group->read = true;
        node->asked[peer] -= group->tokens;
    }
    return taken > 0;
}

/* The peer that is expected to be done last, of those that are known. */
static uint32_t latest_peer(const struct mp_cluster_node *node)
{
    uint32_t latest = MP_CLUSTER_NONE;

    for (uint32_t i = 0; i < node->peer_count; i++) {
        const uint32_t peer = node->peers[i];

        if (node->asked_ns[peer] > 0 && node->asked[peer] > 0 &&
            node->samples[peer] >= MP_LEARN_SAMPLES_MIN &&
            (latest == MP_CLUSTER_NONE || node->asked_ns[peer] > node->asked_ns[latest]))
            latest = peer;
    }
    return latest;
}

/* As engine/cluster/rank_choose.c: the message that is expected back last is compared with reading
 * all that it asks for, or what has most tokens. */
static void read_instead(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    const bool may = sim->config->place->pages && sim->config->place->calls &&
                     sim->cluster->servers[server].reads;
    const struct mp_learn_reads known = mp_cluster_reads(sim, server);
    double own = (double)node->own_ns;
    uint32_t latest, left = 0, reads = 0;

    for (uint32_t i = 0; i < node->group_count; i++) {
        if (!node->groups[i].read)
            continue;
        own += (double)expert_ns(sim, server, node->groups[i].tokens);
        reads++;
    }
    own += mp_learn_reads_ns(&known, reads);
    do
        latest = may ? latest_peer(node) : MP_CLUSTER_NONE;
    while (latest != MP_CLUSTER_NONE && take_back(sim, server, latest, &reads, &own));
    forget(sim, server, latest != MP_CLUSTER_NONE);
    for (uint32_t i = 0; i < node->peer_count; i++) {
        if (node->asked[node->peers[i]] > 0)
            node->peers[left++] = node->peers[i];
    }
    node->peer_count = left;
}

static void count(struct mp_cluster_sim *sim, uint32_t server, const struct mp_cluster_group *group,
                  bool local)
{
    const struct mp_cluster_node *node = &sim->nodes[server];
    const size_t at = (size_t)server * sim->ids + node->layer * sim->load->experts + group->expert;

    *(mp_cluster_as_ranks(sim) ? &sim->new_tokens[at] : &sim->tokens[at]) += group->tokens;
    *(mp_cluster_as_ranks(sim) ? &sim->new_calls[at] : &sim->calls[at]) += 1;
    sim->all += group->tokens;
    sim->local += local ? group->tokens : 0;
    if (2 * node->finished >= (uint32_t)sim->cluster->requests) {
        sim->all_2 += group->tokens;
        sim->local_2 += local ? group->tokens : 0;
    }
}

/* Rows that peers get: each token's once, whatever number of experts of the same peer it needs. */
static void send_rows_once(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    const uint32_t tokens = mp_cluster_step_tokens(sim, server), k = sim->load->top_k;
    const uint32_t drawn = node->batch != NULL ? tokens : mp_cluster_drawn(tokens);

    for (uint32_t i = 0; i < node->peer_count; i++)
        node->sent[node->peers[i]] = 0;
    for (uint32_t t = 0; t < drawn; t++) {
        const uint32_t *chosen = sim->chosen + (size_t)t * k;

        for (uint32_t r = 0; r < k; r++) {
            const uint32_t peer = node->groups[sim->group_of[chosen[r]]].where;
            uint32_t before = 0;

            while (before < r && node->groups[sim->group_of[chosen[before]]].where != peer)
                before++;
            if (before == r && peer != server)
                node->sent[peer] += node->batch != NULL ? 1 : mp_cluster_stands_for(tokens, t);
        }
    }
}

/* The messages to peers go out in the order in which peers were first needed. */
static void send_messages(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    uint64_t leave = sim->now_ns;

    for (uint32_t i = 0; i < node->peer_count; i++)
        node->sent[node->peers[i]] = node->asked[node->peers[i]];
    if (sim->cluster->rows_once > 0)
        send_rows_once(sim, server);
    for (uint32_t i = 0; i < node->peer_count; i++) {
        const uint32_t peer = node->peers[i];
        const double bytes = message_bytes(sim, node->sent[peer]);

        /* The device does this before its own experts. */
        node->sent_ns[peer] = leave;
        leave += message_ns(sim, sim->cluster->send_us, node->sent[peer]);
        node->layer_end_ns = later(
            node->layer_end_ns, message_work(sim, server, sim->cluster->send_us, node->sent[peer]));
        node->pending++;
        sim->result->messages += 2;
        sim->result->sent_bytes +=
            (uint64_t)bytes + (uint64_t)message_bytes(sim, node->asked[peer]);
        mp_cluster_push(sim, mp_cluster_send(sim, server, leave, bytes), MP_CLUSTER_SENT, server,
                        peer);
    }
    node->asked_until_ns = leave;
}

static void drop_calls(struct mp_cluster_node *node)
{
    for (uint32_t i = 0; i < node->peer_count; i++)
        node->asked[node->peers[i]] = 0;
    node->peer_count = 0;
}

/* What is there. */
static void compute_kept(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];

    node->own_ns = 0; /* was an estimate */
    for (uint32_t i = 0; i < node->group_count; i++) {
        if (node->groups[i].where == server && !node->groups[i].read)
            compute_here(sim, server, node->groups[i].device, node->groups[i].tokens);
    }
}

static void end_if_done(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];

    if (node->pending > 0)
        return;
    drop_calls(node);
    mp_cluster_push(sim, later(node->layer_end_ns, sim->now_ns), MP_CLUSTER_LAYER, server, 0);
}

/* counts[] and chosen[] of the node's layer. */
static void choose(struct mp_cluster_sim *sim, struct mp_cluster_node *node, uint32_t tokens)
{
    const uint32_t k = sim->load->top_k;

    if (node->batch == NULL) {
        mp_cluster_choose(sim->load, node->domain, node->layer, tokens, &node->random, sim->counts,
                          sim->drawn);
        sim->chosen = sim->drawn;
        return;
    }
    sim->chosen = sim->config->routing->chosen +
                  (node->batch->first_row + (uint64_t)node->layer * tokens) * k;
    memset(sim->counts, 0, sim->load->experts * sizeof(*sim->counts));
    for (uint64_t i = 0; i < (uint64_t)tokens * k; i++)
        sim->counts[sim->chosen[i]]++;
}

/* What the layer needs is in use, so that it does not leave for what the layer reads. */
static void open_layer(struct mp_cluster_sim *sim, uint32_t server)
{
    const uint32_t first = sim->nodes[server].layer * sim->load->experts;

    mp_cluster_open_layer(sim, server);
    for (uint32_t e = 0; e < sim->load->experts; e++) {
        if (sim->counts[e] > 0)
            mp_cluster_use(sim, server, first + e);
    }
}

static void routed(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    const bool as_rank = mp_cluster_as_ranks(sim);
    const uint64_t free_ns = sim->device_free_ns[first_device(sim, server)];

    if (as_rank && free_ns > sim->now_ns) { /* it answers others first */
        node->route_ns = free_ns;
        mp_cluster_push(sim, free_ns, MP_CLUSTER_ROUTED, server, 0);
        return;
    }
    choose(sim, node, mp_cluster_step_tokens(sim, server));
    node->group_count = 0;
    node->layer_end_ns = sim->now_ns;
    node->asked_until_ns = 0;
    node->own_ns = node->own_reads = 0;
    node->woken = false;
    if (as_rank)
        open_layer(sim, server);
    for (uint32_t e = 0; e < sim->load->experts; e++) {
        const uint32_t id = node->layer * sim->load->experts + e;
        struct mp_cluster_group *group = &node->groups[node->group_count];

        if (sim->counts[e] == 0)
            continue;
        *group =
            (struct mp_cluster_group){ .expert = e, .tokens = sim->counts[e], .where = server };
        if (as_rank ? mp_cluster_has(sim, server, id) : mp_cluster_keeps(sim, server, id)) {
            group->device = as_rank ? first_device(sim, server) : device_of(sim, server, id);
            if (as_rank)
                node->own_ns += expert_ns(sim, server, group->tokens);
            else
                compute_here(sim, server, group->device, group->tokens);
        } else if (as_rank) {
            send_away_as_rank(sim, server, node->group_count);
        } else {
            send_away(sim, server, node->group_count);
        }
        node->group_count++;
    }
    if (as_rank)
        read_instead(sim, server);
    if (as_rank && mp_cluster_fetch_missing(sim, server)) {
        drop_calls(node);
        return;
    }
    if (as_rank)
        compute_kept(sim, server);
    *(as_rank ? &sim->new_steps[server] : &sim->steps[server]) += node->layer == 0;
    for (uint32_t i = 0; i < node->group_count; i++) {
        sim->group_of[node->groups[i].expert] = i;
        count(sim, server, &node->groups[i], node->groups[i].where == server);
    }
    send_messages(sim, server);
    for (uint32_t i = 0; as_rank && i < node->group_count; i++) {
        if (node->groups[i].read)
            read_expert(sim, server, i);
    }
    end_if_done(sim, server);
}

static void receive(struct mp_cluster_sim *sim, uint32_t server, uint32_t peer, bool back)
{
    const uint32_t from = back ? peer : server, to = back ? server : peer;
    const uint32_t rows = back ? sim->nodes[server].asked[peer] : sim->nodes[server].sent[peer];

    mp_cluster_push(sim, mp_cluster_get(sim, from, to, sim->now_ns, message_bytes(sim, rows)),
                    back ? MP_CLUSTER_BACK : MP_CLUSTER_WORK, server, peer);
}

/* As a rank the peer may lack for now what it keeps; it reads that before it computes. */
static void read_for_peer(struct mp_cluster_sim *sim, uint32_t server, uint32_t peer)
{
    const struct mp_cluster_node *node = &sim->nodes[server];
    const uint32_t first = node->layer * sim->load->experts;
    bool read;

    mp_cluster_open_layer(sim, peer);
    for (uint32_t i = 0; i < node->group_count; i++) {
        if (node->groups[i].where == peer)
            mp_cluster_use(sim, peer, first + node->groups[i].expert);
    }
    for (uint32_t i = 0; i < node->group_count; i++) {
        if (node->groups[i].where == peer &&
            !mp_cluster_has(sim, peer, first + node->groups[i].expert))
            (void)read_for_layer(sim, peer, first + node->groups[i].expert, &read);
    }
}

/* A rank answers between attention and router, while it waits for replies or for an expert out of
 * another one's memory, and when it has nothing to do. */
bool mp_cluster_answers(const struct mp_cluster_sim *sim, uint32_t server, uint64_t *again_p)
{
    const struct mp_cluster_node *node = &sim->nodes[server];
    const uint64_t soon = sim->now_ns + AGAIN_NS;

    *again_p =
        later(soon, later(node->layer_end_ns, sim->device_free_ns[first_device(sim, server)]));
    return node->request == MP_CLUSTER_NONE || sim->now_ns < node->route_ns || node->fetching ||
           node->pending > node->reading;
}

static void work(struct mp_cluster_sim *sim, uint32_t server, uint32_t peer)
{
    const struct mp_cluster_node *node = &sim->nodes[server];
    uint64_t end;

    if (mp_cluster_as_ranks(sim) && !mp_cluster_answers(sim, peer, &end)) {
        mp_cluster_push(sim, end, MP_CLUSTER_WORK, server, peer);
        return;
    }
    end = message_work(sim, peer, sim->cluster->serve_us, node->sent[peer] + node->asked[peer]);
    if (mp_cluster_as_ranks(sim))
        read_for_peer(sim, server, peer);
    for (uint32_t i = 0; i < node->group_count; i++) {
        const struct mp_cluster_group *group = &node->groups[i];

        if (group->where == peer && !group->read)
            end = later(end,
                        mp_cluster_work(sim, group->device, expert_ns(sim, peer, group->tokens)));
    }
    sim->nodes[peer].wait_s += (double)(end - sim->now_ns) / 1e9;
    sim->nodes[peer].waits++;
    mp_cluster_push(sim, end, MP_CLUSTER_WORKED, server, peer);
}

/* A rank that has waited for the last of its reads gets a processor later, the more of the others
 * compute. */
static uint64_t wake_ns(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    uint32_t others = 0;

    if (node->reading > 1 || node->woken || sim->cluster->processors == 0)
        return 0;
    node->woken = true;
    for (uint32_t n = 0; n < sim->servers; n++)
        others += n != server && sim->nodes[n].request != MP_CLUSTER_NONE;
    return (uint64_t)(sim->cluster->wake_us * 1e3 * others);
}

static void take_read(struct mp_cluster_sim *sim, uint32_t server, uint32_t number)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    const struct mp_cluster_group *group = &node->groups[number];
    const uint64_t wake = wake_ns(sim, server);

    if (wake > 0) {
        sim->device_free_ns[group->device] =
            later(sim->device_free_ns[group->device], sim->now_ns) + wake;
        mp_cluster_push(sim, sim->now_ns + wake, MP_CLUSTER_READ, server, number);
        return;
    }
    node->pending--;
    compute_here(sim, server, group->device, group->tokens);
    if (--node->reading == 0)
        learn_reads(sim, server);
    end_if_done(sim, server);
}

void mp_cluster_layer_event(struct mp_cluster_sim *sim, const struct mp_cluster_event *event)
{
    struct mp_cluster_node *node = &sim->nodes[event->server];
    const uint32_t server = event->server, peer = event->peer;

    switch (event->kind) {
    case MP_CLUSTER_ROUTED: routed(sim, server); break;
    case MP_CLUSTER_ASKED: receive(sim, server, peer, false); break;
    case MP_CLUSTER_WORK: work(sim, server, peer); break;
    case MP_CLUSTER_SENT:
        mp_cluster_push(sim, mp_cluster_there(sim), MP_CLUSTER_ASKED, server, peer);
        break;
    case MP_CLUSTER_WORKED:
        mp_cluster_push(
            sim, mp_cluster_send(sim, peer, sim->now_ns, message_bytes(sim, node->asked[peer])),
            MP_CLUSTER_SENT_BACK, server, peer);
        break;
    case MP_CLUSTER_SENT_BACK:
        mp_cluster_push(sim, mp_cluster_there(sim), MP_CLUSTER_RETURNED, server, peer);
        break;
    case MP_CLUSTER_RETURNED: receive(sim, server, peer, true); break;
    case MP_CLUSTER_BACK: {
        const bool waited = node->reading == 0 && node->layer_end_ns <= sim->now_ns;

        node->layer_end_ns =
            later(node->layer_end_ns,
                  message_work(sim, server, sim->cluster->take_us, node->asked[peer]));
        learn_call(sim, server, peer, waited);
        node->pending--;
        end_if_done(sim, server);
        break;
    }
    case MP_CLUSTER_READ: take_read(sim, server, peer); break;
    default: mp_unreachable();
    }
}
