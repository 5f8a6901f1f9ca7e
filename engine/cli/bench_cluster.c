/*
 * `moepager bench --cluster FILE --requests FILE`: one rank of a cluster.
 */
#include "engine/cli/bench_cluster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/commands.h"
#include "engine/cli/requests.h"
#include "engine/cluster/mpi.h"
#include "engine/cluster/rank.h"
#include "policy/sim/cluster/cluster.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/output/json_out.h"

#define DEADLINE_NS UINT64_C(5000000000)
#define TIMELINE_EVENTS (1u << 20)

struct bench {
    const struct mp_args *args;
    const struct mp_settings *settings;
    struct mp_clock *clock;
    struct mp_timeline *timeline;
    const struct mp_place_ops *place;
    struct mp_transport *transport;
    struct mp_cluster cluster;
    struct mp_requests requests;
    struct mp_rank *rank;
    struct mp_session session;
    uint32_t done;             /* requests of this rank */
    uint64_t digest, first_ns; /* of the request that runs */
};

static uint64_t rank_number(const struct bench *bench)
{
    return bench->transport->rank;
}

/* Does this rank run it? One rank alone runs those of all servers. */
static bool is_own(const struct bench *bench, uint64_t request)
{
    return bench->transport->ranks == 1 ||
           (request < bench->requests.count &&
            bench->requests.list[request].server == bench->transport->rank);
}

/* What the devices of this rank's server have for experts; of all servers, if it is alone. */
static uint64_t budget_of(const struct bench *bench, const struct mp_engine_config *config)
{
    const uint64_t others = config->weights->resident_bytes;
    double bytes = 0;

    for (uint32_t n = 0; n < bench->cluster.server_count; n++) {
        const struct mp_cluster_server *server = &bench->cluster.servers[n];
        const double each = server->device_gib * 1073741824.0 - (double)others;

        if ((bench->transport->ranks == 1 || n == bench->transport->rank) && each > 0)
            bytes += each * server->devices;
    }
    return bytes < (double)config->weights->expert_bytes ? (uint64_t)bytes : UINT64_MAX;
}

static enum mp_status make_rank(void *ctx, struct mp_engine_config *config)
{
    struct bench *bench = ctx;
    const bool alone = bench->transport->ranks == 1;
    const struct mp_rank_config rank = {
        .transport = bench->transport,
        .engine = config,
        .place = alone ? mp_place_find("local") : bench->place,
        .slots = UINT32_MAX,
        .reads = alone || bench->cluster.servers[bench->transport->rank].reads != 0,
        .seed = bench->settings->run.seed,
        .epoch_ns = alone ? 0 : (uint64_t)(bench->cluster.epoch_s * 1e9),
        .horizon_ns = (uint64_t)(bench->cluster.horizon_s * 1e9),
        .deadline_ns = DEADLINE_NS,
        .restarts = (uint32_t)bench->cluster.restarts,
    };
    const enum mp_status status = mp_rank_create(&rank, &bench->rank);

    if (status != MP_OK)
        return status;
    config->budget_bytes = budget_of(bench, config);
    config->peers = mp_rank_peers(bench->rank);
    return MP_OK;
}

static enum mp_status on_logits(void *ctx, uint32_t sequence, uint32_t step, const float *logits)
{
    struct bench *bench = ctx;

    (void)sequence;
    if (step == 0)
        bench->first_ns = mp_clock_now_ns(bench->clock);
    for (uint32_t i = 0; i < bench->session.model.vocab; i++) {
        uint32_t bits;

        memcpy(&bits, &logits[i], sizeof(bits));
        bench->digest = (bench->digest ^ bits) * UINT64_C(1099511628211); /* FNV-1a */
    }
    return MP_OK;
}

static enum mp_status run_request(struct bench *bench, uint32_t number, uint64_t start_ns)
{
    const struct mp_request *request = &bench->requests.list[number];
    const uint64_t arrival_ns = start_ns + (uint64_t)(request->arrival_s * 1e9);
    const struct mp_ids prompt = { .ids = request->prompt, .count = request->prompt_tokens };
    const struct mp_generate_config config = {
        .engine = bench->session.engine,
        .engine_config = &bench->session.engine_config,
        .sampling = { .temperature = 0, .top_p = 1, .seed = bench->settings->run.seed },
        .max_tokens = request->generated,
        .ignore_eos = true,
        .clock = bench->clock,
        .on_logits = on_logits,
        .ctx = bench,
    };
    struct mp_output output = { 0 };
    struct mp_generate_stats stats;
    enum mp_status status = mp_rank_idle(bench->rank, arrival_ns);

    bench->digest = UINT64_C(14695981039346656037);
    bench->first_ns = arrival_ns;
    if (status == MP_OK)
        status = mp_generate(&config, &prompt, 1, &output, &stats);
    if (status == MP_ERR_CLUSTER)
        mp_log_warn("cluster", "request %u failed: %s", number, mp_error_last()->text);
    if (status == MP_OK || status == MP_ERR_CLUSTER) {
        const struct mp_message_result result = {
            .request = number,
            .digest = bench->digest,
            .arrival_s = request->arrival_s,
            .first_s = (double)(bench->first_ns - start_ns) / 1e9,
            .end_s = (double)(mp_clock_now_ns(bench->clock) - start_ns) / 1e9,
            .tokens = (uint32_t)output.ids.count,
            .failed = status != MP_OK,
        };

        bench->done++;
        status = mp_rank_add_result(bench->rank, &result);
    }
    mp_outputs_free(&output, 1);
    return status;
}

/* Before this process took the place of another one. */
static bool has_ended(const struct bench *bench, uint64_t request)
{
    uint32_t count;
    const struct mp_message_result *all = mp_rank_results(bench->rank, &count);
    uint32_t i = bench->transport->returned ? 0 : count;

    while (i < count && all[i].request != request)
        i++;
    return i < count;
}

static enum mp_status run_requests(struct bench *bench)
{
    const uint64_t start_ns = mp_clock_now_ns(bench->clock);
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; i < bench->requests.count && status == MP_OK; i++) {
        if (is_own(bench, i) && !has_ended(bench, i))
            status = run_request(bench, i, start_ns);
    }
    return status == MP_OK ? mp_rank_idle(bench->rank, UINT64_MAX) : status;
}

/* ---- output */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void put_latency(struct mp_json_out *json, const struct mp_message_result *all,
                        uint32_t count)
{
    double *s = calloc(count + 1, sizeof(*s)), sum = 0;
    uint32_t failed = 0, ok = 0;

    for (uint32_t i = 0; i < count && s != NULL; i++) {
        failed += all[i].failed;
        if (!all[i].failed) {
            s[ok] = all[i].end_s - all[i].arrival_s;
            sum += s[ok++];
        }
    }
    if (s != NULL)
        qsort(s, ok, sizeof(*s), compare);
    mp_json_put_u64(json, "all_requests", count);
    mp_json_put_u64(json, "failed_requests", failed);
    mp_json_put_f64(json, "mean_s", ok > 0 ? sum / ok : 0);
    mp_json_put_f64(json, "p95_s", ok > 0 ? s[(size_t)(ok - 1) * 95 / 100] : 0);
    free(s);
}

/* Of all ranks by the lowest one, its own by another: should rank 0 die while it prints, each
 * request is still printed by one. */
static void put_requests(const struct bench *bench, struct mp_json_out *json,
                         const struct mp_message_result *all, uint32_t count)
{
    const bool reports = mp_rank_reports(bench->rank);

    mp_json_array_begin(json, "requests");
    for (uint32_t i = 0; i < count; i++) {
        char digest[24];

        if (!reports && !is_own(bench, all[i].request))
            continue;

        snprintf(digest, sizeof(digest), "%016" PRIx64, all[i].digest);
        mp_json_object_begin(json, NULL);
        mp_json_put_u64(json, "request", all[i].request);
        mp_json_put_string(json, "digest", digest);
        mp_json_put_f64(json, "arrival_s", all[i].arrival_s);
        mp_json_put_f64(json, "first_s", all[i].first_s);
        mp_json_put_f64(json, "end_s", all[i].end_s);
        mp_json_put_u64(json, "tokens", all[i].tokens);
        mp_json_put_u64(json, "failed", all[i].failed);
        mp_json_object_end(json);
    }
    mp_json_array_end(json);
}

static double share(const struct mp_rank_report *r)
{
    return r->all_tokens > 0 ? (double)r->local_tokens / (double)r->all_tokens : 1;
}

/* What placements were told, by rank. */
static void put_costs(const struct bench *bench, struct mp_json_out *json,
                      const struct mp_rank_report *r)
{
    double fixed, row;

    mp_json_put_f64(json, "read_us", r->read_ns / 1e3);
    mp_json_array_begin(json, "call_us");
    for (uint32_t p = 0; p < bench->transport->ranks; p++) {
        mp_rank_call_ns(bench->rank, p, &fixed, &row);
        mp_json_put_f64(json, NULL, fixed / 1e3);
    }
    mp_json_array_end(json);
    mp_json_array_begin(json, "row_us");
    for (uint32_t p = 0; p < bench->transport->ranks; p++) {
        mp_rank_call_ns(bench->rank, p, &fixed, &row);
        mp_json_put_f64(json, NULL, row / 1e3);
    }
    mp_json_array_end(json);
}

/* One line for each rank; the lowest one sums up. */
static void print_json(const struct bench *bench, const struct mp_rank_report *r)
{
    uint32_t count;
    const struct mp_message_result *all = mp_rank_results(bench->rank, &count);
    struct mp_json_out json;

    mp_json_begin(&json, stdout, false);
    mp_json_object_begin(&json, NULL);
    mp_json_put_u64(&json, "rank", rank_number(bench));
    mp_json_put_u64(&json, "ranks", bench->transport->ranks);
    mp_json_put_string(&json, "place", bench->place->name);
    mp_json_put_bool(&json, "survives", bench->transport->survives);
    mp_json_put_u64(&json, "own_requests", bench->done);
    mp_json_put_f64(&json, "local_share", share(r));
    mp_json_put_u64(&json, "calls", r->calls);
    mp_json_put_u64(&json, "served", r->served);
    mp_json_put_u64(&json, "sent_bytes", r->sent_bytes);
    mp_json_put_u64(&json, "redone", r->redone);
    mp_json_put_u64(&json, "late", r->late);
    mp_json_put_f64(&json, "wait_s", (double)r->wait_ns / 1e9);
    mp_json_put_u64(&json, "kept", r->kept);
    mp_json_put_u64(&json, "migrations", r->migrations);
    put_costs(bench, &json, r);
    mp_json_put_u64(&json, "lost", r->lost);
    mp_json_put_u64(&json, "returned", r->returned);
    mp_json_put_u64(&json, "silent", r->silent);
    if (mp_rank_reports(bench->rank))
        put_latency(&json, all, count);
    put_requests(bench, &json, all, count);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

static void print_text(const struct bench *bench, const struct mp_rank_report *r)
{
    uint32_t count;
    const struct mp_message_result *all = mp_rank_results(bench->rank, &count);
    double sum = 0;
    uint32_t ok = 0;

    printf("rank %" PRIu64 ": %u requests, %.1f %% of rows computed here, %" PRIu64
           " calls, %" PRIu64 " served, %.1f MB sent, %" PRIu64
           " computed again, %u migrations, %u "
           "experts kept%s\n",
           rank_number(bench), bench->done, 100 * share(r), r->calls, r->served,
           (double)r->sent_bytes / 1e6, r->redone, r->migrations, r->kept,
           bench->transport->survives ? "" : " (this MPI ends all ranks when one dies)");
    for (uint32_t i = 0; i < count; i++) {
        sum += all[i].failed ? 0 : all[i].end_s - all[i].arrival_s;
        ok += all[i].failed == 0;
    }
    if (mp_rank_reports(bench->rank))
        printf("%s: %u of %u requests, mean latency %.3f s\n", bench->place->name, ok, count,
               ok > 0 ? sum / ok : 0);
}

/* ---- life cycle */

static enum mp_status read_files(struct bench *bench)
{
    char *text = NULL;
    size_t bytes;
    enum mp_status status = mp_cluster_read(bench->args->cluster, NULL, &bench->cluster);

    if (status == MP_OK && bench->transport->ranks != 1 &&
        bench->transport->ranks != bench->cluster.server_count)
        status = mp_fail(MP_ERR_CONFIG, "E_CLUSTER",
                         "%u ranks for %u servers; start as many, or one that runs all requests",
                         bench->transport->ranks, bench->cluster.server_count);
    if (status == MP_OK)
        status = mp_read_text(bench->args->requests, &text, &bytes);
    if (status == MP_OK)
        status = mp_requests_parse(bench->args->requests, text, bench->cluster.server_count,
                                   &bench->requests);
    free(text);
    return status;
}

/* Of this rank's requests, when the model is known and not loaded. */
static enum mp_status check_requests(void *ctx)
{
    const struct bench *bench = ctx;
    const uint32_t vocab = bench->session.model.vocab, room = bench->session.engine_config.ctx;

    for (uint32_t i = 0; i < bench->requests.count; i++) {
        const struct mp_request *r = &bench->requests.list[i];

        if ((uint64_t)r->prompt_tokens + r->generated - 1 > room || r->prompt_tokens >= room)
            return mp_fail(MP_ERR_CONFIG, "E_PROMPT_LONG",
                           "request %u: %u tokens and %u to generate do not fit into the context "
                           "of %u; raise --ctx",
                           i, r->prompt_tokens, r->generated, room);
        for (uint32_t t = 0; t < r->prompt_tokens; t++) {
            if (r->prompt[t] >= vocab)
                return mp_fail(MP_ERR_CONFIG, "E_REQUESTS",
                               "request %u: token %u is beyond the model's vocabulary of %u", i,
                               r->prompt[t], vocab);
        }
    }
    return MP_OK;
}

static enum mp_status run(struct bench *bench)
{
    const struct mp_session_config config = {
        .model = bench->args->model,
        .sequences = 1,
        .before_load = check_requests,
        .before_load_ctx = bench,
        .before_engine = make_rank,
        .before_engine_ctx = bench,
        .timeline = bench->timeline,
        .clock = bench->clock,
        .cancel = &mp_interrupted,
    };
    struct mp_rank_report report;
    enum mp_status status = mp_session_open(bench->settings, &config, &bench->session);

    if (status == MP_OK)
        status = mp_rank_join(bench->rank, bench->session.engine);
    if (status == MP_OK)
        status = run_requests(bench);
    if (status == MP_OK && bench->args->timeline != NULL)
        status = mp_timeline_write(bench->timeline, bench->args->timeline);
    if (status != MP_OK)
        return status;
    mp_rank_report(bench->rank, &report);
    if (bench->args->json)
        print_json(bench, &report);
    else
        print_text(bench, &report);
    return mp_check_stdout();
}

static enum mp_status check_flags(struct bench *bench)
{
    const struct mp_args *args = bench->args;
    const char *name = args->places != NULL ? args->places : "prism";
    char quoted[MP_QUOTE_BYTES];

    if (args->requests == NULL || args->cluster == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--cluster and --requests need each other");
    if (args->trace != NULL || args->decision_log != NULL || args->logits_out != NULL ||
        args->tokens_file != NULL || args->from_trace != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--cluster does not go with --trace, --decision-log, --logits-out, "
                       "--tokens-file and --from-trace");
    bench->place = mp_place_find(name);
    if (bench->place == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_PLACE", "no placement is called '%s'",
                       mp_quote(quoted, name, strlen(name)));
    if (bench->place->redirects)
        return mp_fail(MP_ERR_CONFIG, "E_PLACE",
                       "placement '%s' moves requests, which only simulate --cluster does", name);
    return mp_require_model(args);
}

enum mp_status mp_bench_cluster(const struct mp_args *args, const struct mp_settings *settings)
{
    struct bench bench = { .args = args, .settings = settings, .clock = mp_clock_monotonic() };
    enum mp_status status = check_flags(&bench);

    if (status == MP_OK)
        status = mp_check_outputs(args);
    if (status == MP_OK && args->timeline != NULL)
        status = mp_timeline_create(bench.clock, TIMELINE_EVENTS, &bench.timeline);
    if (status == MP_OK)
        status = mp_mpi_open(&bench.transport);
    if (status == MP_OK)
        status = read_files(&bench);
    if (status == MP_OK)
        status = run(&bench);
    mp_session_close(&bench.session);
    mp_rank_destroy(bench.rank);
    mp_timeline_destroy(bench.timeline);
    mp_requests_free(&bench.requests);
    mp_cluster_fini(&bench.cluster);
    if (bench.transport != NULL)
        bench.transport->ops->close(bench.transport);
    return status;
}
