/*
 * `moepager simulate --cluster FILE`: compares placements on several servers.
 */
#include "engine/cli/simulate_cluster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/commands.h"
#include "engine/cli/requests.h"
#include "policy/sim/cluster/cluster.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"

struct compared {
    const struct mp_args *args;
    struct mp_cluster cluster;
    double *arrivals;                  // (servers, requests); NULL: drawn
    uint32_t *number;                  // (servers, requests): of each among all
    struct mp_cluster_routing routing; /* of --from-trace */
    uint64_t seed;
    struct mp_json_out json;
    bool begun;
};

static uint32_t devices(const struct mp_cluster *cluster)
{
    uint32_t sum = 0;

    for (uint32_t n = 0; n < cluster->server_count; n++)
        sum += cluster->servers[n].devices;
    return sum;
}

static void put_begin(struct compared *c)
{
    const char *changes = c->args->changes != NULL ? c->args->changes : "";

    c->begun = true;
    if (!c->args->json) {
        printf("simulated: %s on %" PRIu32 " servers with %" PRIu32
               " devices, workload %s, seed %" PRIu64 "%s%s\n",
               c->cluster.model.name, c->cluster.server_count, devices(&c->cluster),
               c->args->from_trace != NULL ? "recorded" : "synthetic", c->seed,
               changes[0] != '\0' ? ", changed: " : "", changes);
        printf("%-11s %9s %9s %7s %9s %6s %9s %9s %8s %6s\n", "place", "mean s", "p95 s", "local %",
               "2nd half%", "busy %", "sent MB", "reads", "copies", "moves");
        return;
    }
    mp_json_begin(&c->json, stdout, true);
    mp_json_object_begin(&c->json, NULL);
    mp_json_put_string(&c->json, "cluster", c->args->cluster);
    mp_json_put_string(&c->json, "model", c->cluster.model.name);
    mp_json_put_string(&c->json, "changes", changes);
    mp_json_put_u64(&c->json, "servers", c->cluster.server_count);
    mp_json_put_u64(&c->json, "devices", devices(&c->cluster));
    mp_json_put_u64(&c->json, "seed", c->seed);
    mp_json_array_begin(&c->json, "rows");
}

static void put_json(struct compared *c, const char *name, const struct mp_cluster_result *r)
{
    struct mp_json_out *json = &c->json;

    mp_json_object_begin(json, NULL);
    mp_json_put_string(json, "place", name);
    mp_json_put_f64(json, "mean_s", r->mean_s);
    mp_json_put_f64(json, "p95_s", r->p95_s);
    mp_json_put_f64(json, "end_s", r->end_s);
    mp_json_put_u64(json, "requests", r->requests);
    mp_json_put_u64(json, "chosen", r->chosen);
    mp_json_put_f64(json, "local_share", r->local_share);
    mp_json_put_f64(json, "local_share_second_half", r->local_share_2);
    mp_json_put_f64(json, "busy_share", r->busy_share);
    mp_json_put_u64(json, "sent_bytes", r->sent_bytes);
    mp_json_put_u64(json, "reads", r->reads);
    mp_json_put_u64(json, "reading_layers", r->reading_layers);
    mp_json_put_u64(json, "messages", r->messages);
    mp_json_put_u64(json, "fetched", r->fetched);
    mp_json_put_f64(json, "work_s", r->work_s);
    mp_json_put_u64(json, "filled", r->filled);
    mp_json_put_u64(json, "redirected", r->moved);
    mp_json_put_u64(json, "migrations", r->migrations);
    mp_json_put_f64(json, "experts_copied", r->copied);
    mp_json_put_f64(json, "experts_kept", r->kept);
    mp_json_array_begin(json, "server_mean_s");
    for (uint32_t n = 0; n < c->cluster.server_count; n++)
        mp_json_put_f64(json, NULL, r->server_mean_s[n]);
    mp_json_array_end(json);
    mp_json_object_end(json);
}

static enum mp_status run_one(struct compared *c, const struct mp_place_ops *ops)
{
    const struct mp_cluster_config config = { .cluster = &c->cluster,
                                              .place = ops,
                                              .seed = c->seed,
                                              .cancel = &mp_interrupted,
                                              .arrivals = c->arrivals,
                                              .routing =
                                                  c->args->from_trace != NULL ? &c->routing : NULL,
                                              .recorded = c->number };
    struct mp_cluster_result r;
    enum mp_status status = mp_cluster_run(&config, &r);

    if (status != MP_OK)
        return status;
    if (!c->begun)
        put_begin(c);
    if (c->args->json)
        put_json(c, ops->name, &r);
    else
        printf("%-11s %9.3f %9.3f %7.1f %9.1f %6.1f %9.1f %9" PRIu64 " %8.0f %6" PRIu32 "\n",
               ops->name, r.mean_s, r.p95_s, 100 * r.local_share, 100 * r.local_share_2,
               100 * r.busy_share, (double)r.sent_bytes / 1e6, r.reads, r.kept, r.migrations);
    mp_cluster_result_fini(&r);
    return MP_OK;
}

static enum mp_status unknown(const char *name)
{
    char quoted[MP_QUOTE_BYTES], known[256] = "";
    const struct mp_place_ops *ops;
    size_t used = 0;

    for (size_t i = 0; (ops = mp_place_builtin(i)) != NULL && used < sizeof(known); i++)
        used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "",
                                 ops->name);
    return mp_fail(MP_ERR_CONFIG, "E_PLACE", "unknown placement '%s'; known: %s",
                   mp_quote(quoted, name, strlen(name)), known);
}

/* With `run` false the list is only checked, so that a mistake at its end comes first. */
static enum mp_status run_all(struct compared *c, bool run)
{
    const char *list = c->args->places;
    const struct mp_place_ops *ops;
    char name[MP_PART_BYTES];
    enum mp_status status = MP_OK;

    if (list == NULL) {
        for (size_t i = 0; run && status == MP_OK && (ops = mp_place_builtin(i)) != NULL; i++)
            status = run_one(c, ops);
        return status;
    }
    while (status == MP_OK && mp_next_part(&list, name)) {
        ops = mp_place_find(name);
        if (ops == NULL)
            status = unknown(name);
        else if (run)
            status = run_one(c, ops);
    }
    return status;
}

/* When the requests of the file arrive; how long they are is the cluster file's. */
static enum mp_status take_arrivals(struct compared *c, const struct mp_requests *requests)
{
    const size_t each = (size_t)c->cluster.requests, servers = c->cluster.server_count;
    size_t *count = calloc(servers, sizeof(*count));
    enum mp_status status = MP_OK;

    c->arrivals = calloc(servers * each, sizeof(*c->arrivals));
    c->number = calloc(servers * each, sizeof(*c->number));
    if (count == NULL || c->arrivals == NULL || c->number == NULL)
        status = mp_fail_no_memory("arrivals", servers * each * sizeof(*c->arrivals));
    for (uint32_t i = 0; i < requests->count && status == MP_OK; i++) {
        const uint32_t server = requests->list[i].server;

        if (count[server] < each) {
            c->arrivals[server * each + count[server]] = requests->list[i].arrival_s;
            c->number[server * each + count[server]] = i;
        }
        count[server]++;
    }
    for (size_t n = 0; n < servers && status == MP_OK; n++) {
        if (count[n] != each)
            status = mp_fail(MP_ERR_CONFIG, "E_REQUESTS",
                             "'%s' has %zu requests for server %zu, '%s' says %zu",
                             c->args->requests, count[n], n, c->args->cluster, each);
    }
    free(count);
    return status;
}

/* What the tokens of these requests chose, the first request's first. */
static enum mp_status read_routing(struct compared *c, uint32_t requests)
{
    enum mp_status status = mp_cluster_routing_read(c->args->from_trace, &c->routing);

    if (status == MP_OK && c->routing.requests != requests)
        status = mp_fail(MP_ERR_CONFIG, "E_REQUESTS", "'%s' has %u requests, '%s' has %u",
                         c->args->from_trace, c->routing.requests, c->args->requests, requests);
    return status;
}

static enum mp_status read_requests(struct compared *c)
{
    struct mp_requests requests = { 0 };
    char *text = NULL;
    size_t bytes;
    enum mp_status status = mp_read_text(c->args->requests, &text, &bytes);

    if (status == MP_OK)
        status = mp_requests_parse(c->args->requests, text, c->cluster.server_count, &requests);
    free(text);
    if (status == MP_OK)
        status = take_arrivals(c, &requests);
    if (status == MP_OK && c->args->from_trace != NULL)
        status = read_routing(c, requests.count);
    mp_requests_free(&requests);
    return status;
}

static enum mp_status check_args(const struct mp_args *args)
{
    const char *other = args->machine != NULL    ? "machine"
                        : args->model != NULL    ? "model"
                        : args->profiles != NULL ? "profile"
                        : args->batches != NULL  ? "batches"
                        : args->timeline != NULL ? "timeline"
                                                 : NULL;

    if (other != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--%s and --cluster exclude each other: the cluster's file has all that a "
                       "run needs",
                       other);
    if (args->from_trace != NULL && args->requests == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--from-trace with --cluster needs --requests, which says whose they are");
    return MP_OK;
}

enum mp_status mp_simulate_cluster(const struct mp_args *args, const struct mp_settings *settings)
{
    struct compared c = { .args = args, .seed = settings->run.seed };
    enum mp_status status = check_args(args);

    if (status == MP_OK)
        status = run_all(&c, false);
    if (status == MP_OK)
        status = mp_cluster_read(args->cluster, args->changes, &c.cluster);
    if (status != MP_OK)
        return status;
    if (args->requests != NULL)
        status = read_requests(&c);
    if (status == MP_OK)
        status = run_all(&c, true);
    mp_cluster_routing_fini(&c.routing);
    free(c.number);
    free(c.arrivals);
    mp_cluster_fini(&c.cluster);
    if (c.begun && args->json) { /* also after an interruption: with the rows that are complete */
        mp_json_array_end(&c.json);
        mp_json_object_end(&c.json);
        mp_json_end(&c.json);
    }
    return mp_printed(status);
}
