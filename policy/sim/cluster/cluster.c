/*
 * Requests, epochs and the queue of events of several servers on a virtual clock.
 */
#include "policy/sim/cluster/cluster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/builtins.h"
#include "policy/sim/cluster/cluster_int.h"
#include "vmm/base/arena.h"
#include "vmm/base/error.h"

/* ---- the queue of events: a heap ---- */

static bool earlier(const struct mp_cluster_event *a, const struct mp_cluster_event *b)
{
    return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->order < b->order);
}

void mp_cluster_push(struct mp_cluster_sim *sim, uint64_t at_ns, enum mp_cluster_event_kind kind,
                     uint32_t server, uint32_t peer)
{
    const struct mp_cluster_event event = {
        .at_ns = at_ns, .order = sim->order++, .kind = kind, .server = server, .peer = peer
    };
    uint32_t at = sim->events++;

    for (; at > 0 && earlier(&event, &sim->heap[(at - 1) / 2]); at = (at - 1) / 2)
        sim->heap[at] = sim->heap[(at - 1) / 2];
    sim->heap[at] = event;
}

bool mp_cluster_pop(struct mp_cluster_sim *sim, struct mp_cluster_event *event)
{
    struct mp_cluster_event last;
    uint32_t at = 0;

    if (sim->events == 0)
        return false;
    *event = sim->heap[0];
    last = sim->heap[--sim->events];
    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child >= sim->events)
            break;
        if (child + 1 < sim->events && earlier(&sim->heap[child + 1], &sim->heap[child]))
            child++;
        if (!earlier(&sim->heap[child], &last))
            break;
        sim->heap[at] = sim->heap[child];
        at = child;
    }
    sim->heap[at] = last;
    return true;
}

/* ---- memory ---- */

static void take(struct mp_cluster_sim *sim, uint32_t devices, struct mp_arena *arena)
{
    const uint64_t servers = sim->servers, all = servers * sim->ids, experts = sim->load->experts;
    const uint64_t requests = servers * (uint64_t)sim->cluster->requests;

    sim->first_device = mp_arena_take(arena, servers + 1, sizeof(*sim->first_device));
    sim->slots = mp_arena_take(arena, devices, sizeof(*sim->slots));
    sim->device_free_ns = mp_arena_take(arena, devices, sizeof(*sim->device_free_ns));
    sim->tokens = mp_arena_take(arena, all, sizeof(*sim->tokens));
    sim->calls = mp_arena_take(arena, all, sizeof(*sim->calls));
    sim->steps = mp_arena_take(arena, servers, sizeof(*sim->steps));
    sim->call_s = mp_arena_take(arena, servers * servers, sizeof(*sim->call_s));
    sim->token_s = mp_arena_take(arena, servers * servers, sizeof(*sim->token_s));
    sim->page_s = mp_arena_take(arena, servers, sizeof(*sim->page_s));
    sim->copy_s = mp_arena_take(arena, servers, sizeof(*sim->copy_s));
    sim->new_tokens = mp_arena_take(arena, all, sizeof(*sim->new_tokens));
    sim->new_calls = mp_arena_take(arena, all, sizeof(*sim->new_calls));
    sim->new_steps = mp_arena_take(arena, servers, sizeof(*sim->new_steps));
    sim->seconds = mp_arena_take(arena, servers, sizeof(*sim->seconds));
    sim->holders = mp_arena_take(arena, all, sizeof(*sim->holders));
    sim->first_holder = mp_arena_take(arena, sim->ids + 1u, sizeof(*sim->first_holder));
    sim->counts = mp_arena_take(arena, experts, sizeof(*sim->counts));
    sim->group_of = mp_arena_take(arena, experts, sizeof(*sim->group_of));
    sim->take = mp_arena_take(arena, experts, sizeof(*sim->take));
    sim->drawn = mp_arena_take(arena, MP_CLUSTER_SAMPLE, sim->load->top_k * sizeof(*sim->drawn));
    sim->arrived_ns = mp_arena_take(arena, requests, sizeof(*sim->arrived_ns));
    sim->done_ns = mp_arena_take(arena, requests, sizeof(*sim->done_ns));
    sim->next = mp_arena_take(arena, requests, sizeof(*sim->next));
    /* Of a server at once: its next request, its layer, what it fills and fetches, and one event
     * for each group. */
    sim->events_max = (uint32_t)(servers * (experts + 3 + MP_CLUSTER_FETCHES_MAX) + 2);
    sim->heap = mp_arena_take(arena, sim->events_max, sizeof(*sim->heap));
    sim->spans = mp_arena_take(arena, mp_cluster_spans_max(sim, devices), sizeof(*sim->spans));
    sim->nodes = mp_arena_take(arena, servers, sizeof(*sim->nodes));
    for (uint64_t n = 0; n < servers; n++) {
        struct mp_cluster_node scratch, *node = arena->block != NULL ? &sim->nodes[n] : &scratch;

        node->groups = mp_arena_take(arena, experts, sizeof(*node->groups));
        node->asked = mp_arena_take(arena, servers, sizeof(*node->asked));
        node->sent = mp_arena_take(arena, servers, sizeof(*node->sent));
        node->asked_ns = mp_arena_take(arena, servers, sizeof(*node->asked_ns));
        node->peers = mp_arena_take(arena, servers, sizeof(*node->peers));
        node->fixed_ns = mp_arena_take(arena, servers, sizeof(*node->fixed_ns));
        node->row_ns = mp_arena_take(arena, servers, sizeof(*node->row_ns));
        node->samples = mp_arena_take(arena, servers, sizeof(*node->samples));
        node->sent_ns = mp_arena_take(arena, servers, sizeof(*node->sent_ns));
        if (!mp_cluster_as_ranks(sim))
            continue;
        node->here_ns = mp_arena_take(arena, sim->ids, sizeof(*node->here_ns));
        node->used = mp_arena_take(arena, sim->ids, sizeof(*node->used));
        node->ahead = mp_arena_take(arena, sim->ids, sizeof(*node->ahead));
        node->seen = mp_arena_take(arena, sim->ids, sizeof(*node->seen));
    }
}

static void put_facts(struct mp_cluster_sim *sim)
{
    const struct mp_cluster *cluster = sim->cluster;

    for (uint32_t n = 0; n < sim->servers; n++) {
        sim->first_device[n + 1] = sim->first_device[n] + cluster->servers[n].devices;
        for (uint32_t d = sim->first_device[n]; d < sim->first_device[n + 1]; d++)
            sim->slots[d] = mp_cluster_slots(cluster, n);
        sim->nodes[n].request = MP_CLUSTER_NONE;
        sim->nodes[n].arrive_random = mp_policy_mix(sim->config->seed ^ mp_policy_mix(n + 77));
    }
    sim->facts = (struct mp_place_facts){ .layers = sim->load->layers,
                                          .experts = sim->load->experts,
                                          .servers = sim->servers,
                                          .first_device = sim->first_device,
                                          .slots = sim->slots,
                                          .tokens = sim->tokens,
                                          .calls = sim->calls,
                                          .seconds = 1,
                                          .steps = sim->steps,
                                          .call_s = sim->call_s,
                                          .token_s = sim->token_s,
                                          .page_s = sim->page_s,
                                          .copy_s = sim->copy_s };
}

/* ---- requests; number n * requests + r is the r-th of the users of server n ---- */

static uint32_t of_each(const struct mp_cluster_sim *sim)
{
    return (uint32_t)sim->cluster->requests;
}

static void arrive_next(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];

    const double *arrivals = sim->config->arrivals;
    uint64_t at_ns = sim->now_ns;

    if (node->arrived == of_each(sim))
        return;
    if (arrivals != NULL)
        at_ns = (uint64_t)(arrivals[(size_t)server * of_each(sim) + node->arrived] * 1e9);
    else
        at_ns += (uint64_t)(-log(mp_cluster_uniform(&node->arrive_random)) *
                            sim->cluster->servers[server].arrival_s * 1e9);
    mp_cluster_push(sim, at_ns > sim->now_ns ? at_ns : sim->now_ns, MP_CLUSTER_ARRIVE, server, 0);
}

/* The step's tokens, if they were recorded. */
static void find_batch(const struct mp_cluster_sim *sim, struct mp_cluster_node *node)
{
    const struct mp_cluster_routing *routing = sim->config->routing;

    if (routing != NULL)
        node->batch =
            &routing
                 ->batch[routing->first_batch[sim->config->recorded[node->request]] + node->step];
}

static uint32_t steps_of(const struct mp_cluster_sim *sim, uint32_t request)
{
    const struct mp_cluster_routing *routing = sim->config->routing;
    const uint32_t *first;

    if (routing == NULL)
        return (uint32_t)sim->cluster->gen;
    first = routing->first_batch + sim->config->recorded[request];
    return first[1] - first[0];
}

static void begin_request(struct mp_cluster_sim *sim, uint32_t server, uint32_t request)
{
    struct mp_cluster_node *node = &sim->nodes[server];
    const uint32_t from = request / of_each(sim), number = request % of_each(sim);
    const bool shifted =
        sim->cluster->shift_after > 0 && number >= (uint32_t)sim->cluster->shift_after;

    node->request = request;
    node->domain = sim->cluster->servers[from].domain + (shifted ? sim->load->domains : 0);
    node->random = mp_policy_mix(sim->config->seed ^ mp_policy_mix(request + 1000000007u));
    node->step = node->layer = 0;
    node->steps = steps_of(sim, request);
    find_batch(sim, node);
    node->busy_ns -= sim->now_ns; /* the end is added */
    mp_cluster_begin_layer(sim, server);
}

static bool is_idle(const struct mp_cluster_node *node)
{
    return node->request == MP_CLUSTER_NONE && node->waiting == 0;
}

/* Where the request waits least: as many before it as possible are few; its own server if equal. A
 * rank keeps it until another one has nothing to do. */
static uint32_t place_to_wait(const struct mp_cluster_sim *sim, uint32_t server)
{
    uint32_t best = server;

    for (uint32_t i = 0; sim->config->place->redirects && mp_cluster_as_ranks(sim); i++) {
        const uint32_t n = (server + i) % sim->servers; /* as engine/cluster/rank_requests.c */

        if (i == sim->servers || is_idle(&sim->nodes[n]))
            return n;
    }
    for (uint32_t n = 0; sim->config->place->redirects && n < sim->servers; n++) {
        const struct mp_cluster_node *node = &sim->nodes[n], *to = &sim->nodes[best];

        if (node->waiting + (node->request != MP_CLUSTER_NONE) <
            to->waiting + (to->request != MP_CLUSTER_NONE))
            best = n;
    }
    return best;
}

static void arrive(struct mp_cluster_sim *sim, uint32_t server)
{
    const uint32_t request = server * of_each(sim) + sim->nodes[server].arrived++;
    const uint32_t at = place_to_wait(sim, server);
    struct mp_cluster_node *node = &sim->nodes[at];

    sim->arrived_ns[request] = sim->now_ns;
    sim->result->moved += at != server;
    arrive_next(sim, server);
    if (node->request == MP_CLUSTER_NONE) {
        begin_request(sim, at, request);
        return;
    }
    sim->next[request] = MP_CLUSTER_NONE;
    if (node->waiting++ > 0)
        sim->next[node->last_waiting] = request;
    else
        node->first_waiting = request;
    node->last_waiting = request;
}

static uint32_t take_waiting(struct mp_cluster_sim *sim, struct mp_cluster_node *node)
{
    const uint32_t request = node->first_waiting;

    node->first_waiting = sim->next[request];
    node->waiting--;
    return request;
}

/* The server has nothing to do: as a rank it asks the others for a request that waits. */
static void ask_for_request(struct mp_cluster_sim *sim, uint32_t server)
{
    for (uint32_t i = 1; sim->config->place->redirects && i < sim->servers; i++) {
        struct mp_cluster_node *other = &sim->nodes[(server + i) % sim->servers];

        if (other->waiting == 0)
            continue;
        sim->result->moved++;
        begin_request(sim, server, take_waiting(sim, other));
        return;
    }
    mp_cluster_fill(sim, server);
}

bool mp_cluster_is_leaving(const struct mp_cluster_sim *sim, uint32_t server)
{
    return is_idle(&sim->nodes[server]) && sim->nodes[server].arrived == of_each(sim);
}

static void end_request(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];

    sim->done_ns[node->request] = sim->now_ns;
    sim->done++;
    node->busy_ns += sim->now_ns;
    node->finished++;
    node->request = MP_CLUSTER_NONE;
    if (node->waiting > 0)
        begin_request(sim, server, take_waiting(sim, node));
    else if (mp_cluster_as_ranks(sim))
        ask_for_request(sim, server);
}

static void layer_done(struct mp_cluster_sim *sim, uint32_t server)
{
    struct mp_cluster_node *node = &sim->nodes[server];

    if (++node->layer < sim->load->layers) {
        mp_cluster_begin_layer(sim, server);
        return;
    }
    node->layer = 0;
    if (++node->step == node->steps) {
        end_request(sim, server);
        return;
    }
    find_batch(sim, node);
    mp_cluster_begin_layer(sim, server);
}

/* ---- epochs ---- */

static enum mp_status epoch(struct mp_cluster_sim *sim)
{
    const uint32_t other = 1 - sim->current;
    double arrive;
    enum mp_status status;

    if (sim->done == (uint64_t)sim->servers * of_each(sim))
        return MP_OK;
    mp_cluster_push(sim, sim->now_ns + (uint64_t)(sim->cluster->epoch_s * 1e9), MP_CLUSTER_EPOCH, 0,
                    0);
    if (mp_cluster_as_ranks(sim))
        mp_cluster_facts_tell(sim);
    if (sim->switching || (mp_cluster_as_ranks(sim) && mp_cluster_is_leaving(sim, 0)))
        return MP_OK;
    status = mp_cluster_place(sim, other);
    if (status == MP_OK &&
        mp_place_adopts(sim->config->place, &sim->facts, &sim->placements[sim->current],
                        &sim->placements[other], sim->cluster->horizon_s)) {
        const uint64_t ns = mp_cluster_copy_ns(sim, sim->current, other, &arrive);

        sim->switching = true;
        sim->epochs++;
        sim->result->migrations++;
        sim->result->copied += arrive;
        if (mp_cluster_as_ranks(sim))
            mp_cluster_memory_move(sim);
        else
            mp_cluster_push(sim, sim->now_ns + ns, MP_CLUSTER_SWITCH, 0, 0);
    }
    return status;
}

static void switch_over(struct mp_cluster_sim *sim)
{
    sim->current = 1 - sim->current;
    sim->switching = false;
    for (uint32_t n = 0; n < sim->servers; n++)
        sim->nodes[n].copying = false;
    mp_cluster_list_holders(sim);
    if (!mp_cluster_as_ranks(sim))
        mp_cluster_facts_clear(sim);
}

static void filled(struct mp_cluster_sim *sim, uint32_t server)
{
    sim->nodes[server].filling = false;
    if (sim->nodes[server].request == MP_CLUSTER_NONE)
        mp_cluster_fill(sim, server);
}

/* ---- the run ---- */

static enum mp_status handle(struct mp_cluster_sim *sim, const struct mp_cluster_event *event)
{
    switch (event->kind) {
    case MP_CLUSTER_ARRIVE: arrive(sim, event->server); return MP_OK;
    case MP_CLUSTER_LAYER: layer_done(sim, event->server); return MP_OK;
    case MP_CLUSTER_FILL: filled(sim, event->server); return MP_OK;
    case MP_CLUSTER_EPOCH: return epoch(sim);
    case MP_CLUSTER_SWITCH: switch_over(sim); return MP_OK;
    case MP_CLUSTER_FETCH: mp_cluster_follow_fetch(sim, event->server, event->peer); return MP_OK;
    default: mp_cluster_layer_event(sim, event); return MP_OK;
    }
}

static enum mp_status run(struct mp_cluster_sim *sim)
{
    struct mp_cluster_event event;
    enum mp_status status;

    mp_cluster_facts_begin(sim);
    status = mp_cluster_place(sim, 0);
    if (status != MP_OK)
        return status;
    mp_cluster_list_holders(sim);
    mp_cluster_facts_clear(sim);
    if (mp_cluster_as_ranks(sim))
        mp_cluster_memory_begin(sim);
    for (uint32_t n = 0; n < sim->servers; n++)
        arrive_next(sim, n);
    if (sim->config->place->migrates && sim->cluster->epoch_s > 0)
        mp_cluster_push(sim, (uint64_t)(sim->cluster->epoch_s * 1e9), MP_CLUSTER_EPOCH, 0, 0);
    while (status == MP_OK && mp_cluster_pop(sim, &event)) {
        sim->now_ns = event.at_ns;
        status = handle(sim, &event);
        if (sim->config->cancel != NULL && *sim->config->cancel != 0)
            return mp_fail(MP_ERR_CANCELED, "E_CANCELED", "interrupted");
    }
    return status;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static enum mp_status sum_up(const struct mp_cluster_sim *sim)
{
    struct mp_cluster_result *r = sim->result;
    const uint32_t each = of_each(sim);
    const size_t count = (size_t)sim->servers * each;
    double *latency = calloc(count, sizeof(*latency)), busy = 0;

    r->server_mean_s = calloc(sim->servers, sizeof(*r->server_mean_s));
    if (latency == NULL || r->server_mean_s == NULL) {
        free(latency);
        return mp_fail_no_memory("a result", count * sizeof(*latency));
    }
    for (size_t i = 0; i < count; i++) {
        latency[i] = (double)(sim->done_ns[i] - sim->arrived_ns[i]) / 1e9;
        r->server_mean_s[i / each] += latency[i] / each;
        r->mean_s += latency[i] / (double)count;
        r->end_s = fmax(r->end_s, (double)sim->done_ns[i] / 1e9);
    }
    qsort(latency, count, sizeof(*latency), by_value);
    r->p95_s = latency[(count * 95 + 99) / 100 - 1];
    free(latency);
    r->requests = count;
    for (uint32_t n = 0; n < sim->servers; n++)
        busy += (double)sim->nodes[n].busy_ns / 1e9;
    r->busy_share = r->end_s > 0 ? busy / (r->end_s * sim->servers) : 0;
    r->chosen = sim->all;
    r->local_share = sim->all > 0 ? (double)sim->local / (double)sim->all : 0;
    r->local_share_2 = sim->all_2 > 0 ? (double)sim->local_2 / (double)sim->all_2 : 0;
    for (uint32_t u = 0; u < sim->ids; u++)
        r->kept += sim->placements[sim->current].copies[u];
    return MP_OK;
}

/* All memory is in one block and two placements. */
static enum mp_status run_with(struct mp_cluster_sim *sim)
{
    struct mp_arena arena = { 0 };
    uint32_t devices = 0;
    enum mp_status status;

    for (uint32_t n = 0; n < sim->servers; n++)
        devices += sim->cluster->servers[n].devices;
    take(sim, devices, &arena);
    status = mp_arena_open(&arena, "a simulation of servers");
    if (status != MP_OK)
        return status;
    take(sim, devices, &arena);
    put_facts(sim);
    status = mp_placement_init(&sim->placements[0], &sim->facts);
    if (status == MP_OK)
        status = mp_placement_init(&sim->placements[1], &sim->facts);
    if (status == MP_OK)
        status = run(sim);
    if (status == MP_OK)
        status = sum_up(sim);
    mp_placement_fini(&sim->placements[1]);
    mp_placement_fini(&sim->placements[0]);
    free(arena.block);
    return status;
}

static enum mp_status check_routing(const struct mp_cluster_config *config)
{
    const struct mp_cluster_routing *r = config->routing;
    const struct mp_sim_model *m = &config->cluster->model;

    if (r != NULL && (r->layers != (uint32_t)m->layers || r->experts != (uint32_t)m->experts ||
                      r->top_k != (uint32_t)m->top_k))
        return mp_fail(
            MP_ERR_CONFIG, "E_CLUSTER",
            "the trace is of %u MoE layers with %u experts, %u of a token, the model has "
            "%.0f, %.0f and %.0f",
            r->layers, r->experts, r->top_k, m->layers, m->experts, m->top_k);
    return MP_OK;
}

static enum mp_status check_servers(const struct mp_cluster_config *config)
{
    const struct mp_cluster *cluster = config->cluster;
    const double needed_gib = (double)mp_sim_other_bytes(&cluster->model) / 1073741824.0;

    for (uint32_t n = 0; n < cluster->server_count; n++) {
        if (cluster->servers[n].device_gib < needed_gib)
            return mp_fail(MP_ERR_CONFIG, "E_CLUSTER",
                           "a device of server %u has no room for the %.2f GiB of weights that "
                           "every device needs: device_gib is %g",
                           n, needed_gib, cluster->servers[n].device_gib);
        if (!cluster->servers[n].reads && !config->place->calls)
            return mp_fail(MP_ERR_CONFIG, "E_CLUSTER",
                           "server %u does not read experts, which placement '%s' needs", n,
                           config->place->name);
    }
    return MP_OK;
}

enum mp_status mp_cluster_run(const struct mp_cluster_config *config,
                              struct mp_cluster_result *result)
{
    const struct mp_cluster *cluster = config->cluster;
    struct mp_cluster_load load;
    struct mp_cluster_sim sim = { .config = config,
                                  .cluster = cluster,
                                  .load = &load,
                                  .servers = cluster->server_count,
                                  .result = result };
    enum mp_status status;

    memset(result, 0, sizeof(*result));
    status = check_routing(config);
    if (status == MP_OK)
        status = check_servers(config);
    if (status != MP_OK)
        return status;
    status = mp_cluster_load_init(&load, cluster, config->seed);
    if (status != MP_OK)
        return status;
    sim.ids = load.layers * load.experts;
    status = run_with(&sim);
    mp_cluster_load_fini(&load);
    if (status != MP_OK)
        mp_cluster_result_fini(result);
    return status;
}

void mp_cluster_result_fini(struct mp_cluster_result *result)
{
    free(result->server_mean_s);
    result->server_mean_s = NULL;
}
