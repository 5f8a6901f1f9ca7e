/*
 * `moepager bench --cluster FILE --requests FILE`: one rank of a cluster.
 */
#include "engine/cli/bench_cluster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/bench_cluster_int.h"
#include "engine/cli/commands.h"
#include "policy/record/trace.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define AWAY_NS UINT64_C(1000000) /* between two looks at a request that is away */
#define TIMELINE_EVENTS (1u << 20)

static uint64_t arrival_ns(const struct mp_bench_cluster *bench, uint64_t request)
{
    return bench->start_ns + (uint64_t)(bench->requests.list[request].arrival_s * 1e9);
}

/* The next of this rank's requests that nobody runs; the number of all: none. */
static uint32_t next_waiting(struct mp_bench_cluster *bench)
{
    uint32_t i = bench->first;

    while (i < bench->requests.count && (!mp_bench_is_own(bench, i) || bench->runs[i] != 0))
        i++;
    bench->first = i;
    return i;
}

static bool give_request(void *ctx, uint32_t to, uint64_t *request_p)
{
    struct mp_bench_cluster *bench = ctx;
    const uint32_t i = bench->start_ns > 0 ? next_waiting(bench) : bench->requests.count;

    if (i == bench->requests.count || arrival_ns(bench, i) > mp_clock_now_ns(bench->clock))
        return false;
    bench->runs[i] = 1 + to;
    *request_p = i;
    return true;
}

static enum mp_status make_rank(void *ctx, struct mp_engine_config *config)
{
    struct mp_bench_cluster *bench = ctx;

    return mp_cluster_rank_make(&bench->c, config, give_request, bench);
}

static enum mp_status on_logits(void *ctx, uint32_t sequence, uint32_t step, const float *logits)
{
    struct mp_bench_cluster *bench = ctx;

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

static void on_step(void *ctx, uint32_t step, const struct mp_batch *batch)
{
    struct mp_bench_cluster *bench = ctx;

    bench->trace.step = step;
    bench->trace.batch = batch;
}

static enum mp_status run_request(struct mp_bench_cluster *bench, uint32_t number)
{
    const struct mp_request *request = &bench->requests.list[number];
    const struct mp_ids prompt = { .ids = request->prompt, .count = request->prompt_tokens };
    const struct mp_generate_config config = {
        .engine = bench->session.engine,
        .engine_config = &bench->session.engine_config,
        .sampling = { .temperature = 0, .top_p = 1, .seed = bench->settings->run.seed },
        .max_tokens = request->generated,
        .ignore_eos = true,
        .clock = bench->clock,
        .on_logits = on_logits,
        .on_step = on_step,
        .ctx = bench,
    };
    struct mp_output output = { 0 };
    struct mp_generate_stats stats;
    const uint64_t cpu_ns = mp_clock_cpu_ns();
    enum mp_status status;

    bench->runs[number] = 1 + bench->c.transport->rank;
    bench->digest = UINT64_C(14695981039346656037);
    bench->first_ns = arrival_ns(bench, number);
    status = mp_generate(&config, &prompt, 1, &output, &stats);
    bench->cpu_ns += mp_clock_cpu_ns() - cpu_ns;
    if (status == MP_ERR_CLUSTER)
        mp_log_warn("cluster", "request %u failed: %s", number, mp_error_last()->text);
    if (status == MP_OK || status == MP_ERR_CLUSTER) {
        const struct mp_message_result result = {
            .request = number,
            .digest = bench->digest,
            .arrival_s = request->arrival_s,
            .first_s = (double)(bench->first_ns - bench->start_ns) / 1e9,
            .end_s = (double)(mp_clock_now_ns(bench->clock) - bench->start_ns) / 1e9,
            .tokens = (uint32_t)output.ids.count,
            .failed = status != MP_OK,
        };

        bench->done++;
        status = mp_rank_add_result(bench->c.rank, &result);
    }
    mp_outputs_free(&output, 1);
    return status;
}

static bool has_ended(const struct mp_bench_cluster *bench, uint64_t request)
{
    uint32_t count, i = 0;
    const struct mp_message_result *all = mp_rank_results(bench->c.rank, &count);

    while (i < count && all[i].request != request)
        i++;
    return i < count;
}

/* A request of this rank that another one runs. True: there is one, and it has not ended. If that
 * rank is not there it waits here again. */
static bool is_away(struct mp_bench_cluster *bench)
{
    bool any = false;

    for (uint32_t i = 0; i < bench->requests.count; i++) {
        if (!mp_bench_is_own(bench, i) || bench->runs[i] == 0 ||
            bench->runs[i] == 1 + bench->c.transport->rank)
            continue;
        if (has_ended(bench, i)) {
            bench->runs[i] = 1 + bench->c.transport->rank; /* not looked at again */
        } else if (mp_rank_is_there(bench->c.rank, bench->runs[i] - 1)) {
            any = true;
        } else {
            bench->runs[i] = 0;
            bench->first = i < bench->first ? i : bench->first;
        }
    }
    return any;
}

/* Until when there is nothing to run: an arrival, the end of a request that is away, of all. */
static uint64_t idle_until(struct mp_bench_cluster *bench)
{
    const bool away = bench->c.place->redirects && is_away(bench);
    const uint32_t next = next_waiting(bench);
    const uint64_t soon = mp_clock_now_ns(bench->clock) + AWAY_NS;
    uint64_t until = next < bench->requests.count ? arrival_ns(bench, next) : UINT64_MAX;

    return away && soon < until ? soon : until;
}

static enum mp_status run_next(struct mp_bench_cluster *bench, bool *all_p)
{
    const uint64_t until = idle_until(bench);
    enum mp_status status = mp_rank_idle(bench->c.rank, until);
    uint64_t request;

    *all_p = false;
    if (status != MP_OK)
        return status;
    if (mp_rank_take_request(bench->c.rank, &request))
        return request < bench->requests.count ? run_request(bench, (uint32_t)request) : MP_OK;
    *all_p = until == UINT64_MAX;
    request = next_waiting(bench);
    if (*all_p || request == bench->requests.count ||
        arrival_ns(bench, request) > mp_clock_now_ns(bench->clock))
        return MP_OK;
    return run_request(bench, (uint32_t)request);
}

static enum mp_status run_requests(struct mp_bench_cluster *bench)
{
    enum mp_status status = MP_OK;
    bool all = false;

    bench->start_ns = mp_clock_now_ns(bench->clock);
    for (uint32_t i = 0; i < bench->requests.count && bench->c.transport->returned; i++) {
        if (mp_bench_is_own(bench, i) &&
            has_ended(bench, i)) /* before this process took the place */
            bench->runs[i] = 1 + bench->c.transport->rank;
    }
    while (status == MP_OK && !all)
        status = run_next(bench, &all);
    return status;
}

/* ---- life cycle */

static enum mp_status read_files(struct mp_bench_cluster *bench)
{
    char *text = NULL;
    size_t bytes;
    enum mp_status status = mp_read_text(bench->args->requests, &text, &bytes);

    if (status == MP_OK)
        status = mp_requests_parse(bench->args->requests, text, bench->c.cluster.server_count,
                                   &bench->requests);
    free(text);
    if (status != MP_OK)
        return status;
    bench->runs = calloc(bench->requests.count, sizeof(*bench->runs));
    return bench->runs != NULL ? MP_OK : mp_fail_no_memory("requests", bench->requests.count);
}

/* Of this rank's requests, when the model is known and not loaded. */
static enum mp_status check_requests(void *ctx)
{
    const struct mp_bench_cluster *bench = ctx;
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

static enum mp_status run(struct mp_bench_cluster *bench)
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
        .routed = bench->args->trace != NULL ? mp_trace_sink_routed : NULL,
        .routed_ctx = &bench->trace,
    };
    struct mp_rank_report report;
    enum mp_status status = mp_session_open(bench->settings, &config, &bench->session);

    if (status == MP_OK)
        status = mp_rank_join(bench->c.rank, bench->session.engine);
    if (status == MP_OK)
        status = mp_trace_sink_open(&bench->trace, bench->args, &bench->session);
    if (status == MP_OK)
        status = run_requests(bench);
    if (status == MP_OK)
        status = mp_trace_sink_close(&bench->trace);
    if (status == MP_OK && bench->args->timeline != NULL)
        status = mp_timeline_write(bench->timeline, bench->args->timeline);
    if (status != MP_OK)
        return status;
    mp_rank_report(bench->c.rank, &report);
    if (bench->args->json)
        mp_bench_print_json(bench, &report);
    else
        mp_bench_print_text(bench, &report);
    return mp_check_stdout();
}

static enum mp_status check_flags(struct mp_bench_cluster *bench)
{
    const struct mp_args *args = bench->args;

    if (args->requests == NULL || args->cluster == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--cluster and --requests need each other");
    if (args->decision_log != NULL || args->logits_out != NULL || args->tokens_file != NULL ||
        args->from_trace != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--cluster does not go with --decision-log, --logits-out, --tokens-file and "
                       "--from-trace");
    return mp_require_model(args);
}

/* One rank runs all requests in the order of the file, so that a reader knows whose each is. */
static enum mp_status check_trace(const struct mp_bench_cluster *bench)
{
    if (bench->args->trace != NULL && bench->c.transport->ranks != 1)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--trace with --cluster needs a single rank, which runs all requests; there "
                       "are %u",
                       bench->c.transport->ranks);
    return MP_OK;
}

enum mp_status mp_bench_cluster(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_bench_cluster bench = { .args = args,
                                      .settings = settings,
                                      .clock = mp_clock_monotonic() };
    enum mp_status status = check_flags(&bench);

    if (status == MP_OK)
        status = mp_check_outputs(args);
    if (status == MP_OK && args->timeline != NULL)
        status = mp_timeline_create(bench.clock, TIMELINE_EVENTS, &bench.timeline);
    if (status == MP_OK)
        status = mp_cluster_rank_open(args, settings, &bench.c);
    if (status == MP_OK)
        status = check_trace(&bench);
    if (status == MP_OK)
        status = read_files(&bench);
    if (status == MP_OK)
        status = run(&bench);
    mp_trace_abandon(bench.trace.writer);
    mp_session_close(&bench.session);
    mp_timeline_destroy(bench.timeline);
    free(bench.runs);
    mp_requests_free(&bench.requests);
    mp_cluster_rank_close(&bench.c);
    return status;
}
