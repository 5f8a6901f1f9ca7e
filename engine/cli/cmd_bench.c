/*
 * `moepager bench`: prefill and decode of random tokens, several times with the same engine; the
 * median run is reported.
 *
 * The first run starts with empty expert slots and is reported separately ("cold"); the median is
 * taken of the others, or is the first run if there is no other. All its figures are of one run,
 * the one with the median time per step, so they are consistent. With --tokens-file the tokens are
 * read from a file instead, so that another engine can use the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/bench_cluster.h"
#include "engine/cli/commands.h"
#include "engine/session/npy_out.h"
#include "engine/session/report.h"
#include "policy/record/trace.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"

#define BATCH_MAX 64
#define REPEAT_MAX 1000 /* of --repeat, see engine/cli/args/flags.c */
#define TIMELINE_EVENTS (1u << 20)

struct bench {
    const struct mp_args *args;
    const struct mp_settings *settings;
    struct mp_clock *clock;
    struct mp_timeline *timeline;
    struct mp_session session;
    struct mp_progress_bar bar;
    struct mp_trace_sink trace;
    struct mp_npy_out logits;
    struct mp_ids prompts[BATCH_MAX];
    uint32_t *tokens;             // (prompt_tokens + gen_tokens), or NULL: random and chosen
    struct mp_counters at_decode; /* when prefill of the run had ended */
    struct mp_counters at_step;   /* when the decode step now running began */
    uint64_t step_start_ns;
    struct bench_run *runs; // (repeat)
    size_t run_count;       /* of runs that ended */
    double load_ms;
    uint32_t batch; /* prompts at once */
};

struct bench_run {
    struct mp_report report;
    struct mp_counters decode; /* of the decode steps alone */
    /* Decode steps that missed no expert while nothing was read: how many, and what they took
     * together. They tell a start's other costs from those of its reads. */
    uint64_t hit_steps, hit_ns;
};

/* A decode step has ended. */
static void note_step(struct bench *bench, const struct mp_counters *now, uint64_t now_ns)
{
    struct bench_run *run = &bench->runs[bench->run_count];

    if (now->misses != bench->at_step.misses || now->read_bytes != bench->at_step.read_bytes)
        return;
    run->hit_steps++;
    run->hit_ns += now_ns - bench->step_start_ns;
}

static void on_step(void *ctx, uint32_t step, const struct mp_batch *batch)
{
    struct bench *bench = ctx;
    const struct mp_counters now = mp_report_counters(&bench->session);
    const uint64_t now_ns = mp_clock_now_ns(bench->clock);

    bench->trace.step = step;
    bench->trace.batch = batch;
    if (step == 1)
        bench->at_decode = now;
    if (step > 1)
        note_step(bench, &now, now_ns);
    bench->at_step = now;
    bench->step_start_ns = now_ns;
}

static enum mp_status on_logits(void *ctx, uint32_t sequence, uint32_t step, const float *logits)
{
    struct bench *bench = ctx;

    (void)step;
    if (sequence == 0)
        mp_npy_out_row(&bench->logits, logits);
    return MP_OK;
}

static enum mp_status bad_tokens(const struct bench *bench, size_t at, const char *why)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_TOKENS_FILE",
                   "'%s': token %zu %s; need %llu ids, separated by white space",
                   mp_quote(quoted, bench->args->tokens_file, strlen(bench->args->tokens_file)), at,
                   why, (unsigned long long)(bench->args->prompt_tokens + bench->args->gen_tokens));
}

static enum mp_status parse_tokens(struct bench *bench, const char *text, size_t count)
{
    const char *at = text;

    for (size_t i = 0; i < count; i++) {
        uint64_t id = 0;

        at += strspn(at, " \t\r\n");
        if (*at == '\0')
            return bad_tokens(bench, i, "is missing");
        for (; *at >= '0' && *at <= '9' && id <= UINT32_MAX; at++)
            id = 10 * id + (uint64_t)(*at - '0');
        if ((*at != '\0' && strchr(" \t\r\n", *at) == NULL) || id > UINT32_MAX)
            return bad_tokens(bench, i, "is no id");
        bench->tokens[i] = (uint32_t)id;
    }
    return MP_OK;
}

/* Before the model is opened; check_tokens() sees whether the ids fit it. */
static enum mp_status read_tokens(struct bench *bench)
{
    const size_t count = bench->args->prompt_tokens + bench->args->gen_tokens;
    size_t bytes;
    char *text;
    enum mp_status status;

    if (bench->args->tokens_file == NULL)
        return MP_OK;
    status = mp_read_text(bench->args->tokens_file, &text, &bytes);
    if (status != MP_OK)
        return status;
    bench->tokens = calloc(count, sizeof(uint32_t));
    status = bench->tokens != NULL ? parse_tokens(bench, text, count)
                                   : mp_fail_no_memory("the tokens", count * sizeof(uint32_t));
    free(text);
    return status;
}

static enum mp_status check_tokens(const struct bench *bench)
{
    const size_t count = bench->args->prompt_tokens + bench->args->gen_tokens;

    if (bench->tokens == NULL)
        return MP_OK;
    for (size_t i = 0; i < count; i++) {
        if (bench->tokens[i] >= bench->session.model.vocab)
            return bad_tokens(bench, i, "is beyond the model's vocabulary");
    }
    return MP_OK;
}

/* Those of the file, or tokens that depend on the seed only. */
static enum mp_status make_prompts(struct bench *bench)
{
    uint64_t state = bench->settings->run.seed;

    for (uint32_t b = 0; b < bench->batch; b++) {
        struct mp_ids *ids = &bench->prompts[b];

        ids->ids = calloc(bench->args->prompt_tokens, sizeof(uint32_t));
        if (ids->ids == NULL)
            return mp_fail_no_memory("the prompts", bench->args->prompt_tokens * 4);
        ids->capacity = ids->count = bench->args->prompt_tokens;
        for (size_t i = 0; i < ids->count; i++) {
            ids->ids[i] = bench->tokens != NULL ? bench->tokens[i]
                                                : mp_session_random_token(&bench->session, &state);
        }
    }
    return MP_OK;
}

/* A run that the context cuts short would be reported as one of full length. */
static enum mp_status check_length(const struct bench *bench)
{
    const struct mp_engine_config *config = &bench->session.engine_config;
    const struct mp_args *args = bench->args;
    const uint32_t ctx = config->ctx;

    /* The last token is chosen, not processed. */
    if (args->prompt_tokens + args->gen_tokens - 1 > ctx || args->prompt_tokens == ctx)
        return mp_fail(MP_ERR_CONFIG, "E_PROMPT_LONG",
                       "%llu tokens of prompt and %llu to generate do not fit into the context of "
                       "%u; %slower --prompt-tokens or --gen-tokens",
                       (unsigned long long)args->prompt_tokens,
                       (unsigned long long)args->gen_tokens, ctx,
                       mp_engine_ctx_can_grow(config) ? "raise --ctx or " : "");
    return MP_OK;
}

static enum mp_status check_args(void *ctx)
{
    const struct bench *bench = ctx;
    const enum mp_status status = check_length(bench);

    return status == MP_OK ? check_tokens(bench) : status;
}

static enum mp_status open_session(struct bench *bench)
{
    const struct mp_progress progress = mp_loading_progress(&bench->bar);
    const struct mp_session_config config = {
        .model = bench->args->model,
        .sequences = bench->batch,
        .before_load = check_args,
        .before_load_ctx = bench,
        .progress = &progress,
        .timeline = bench->timeline,
        .clock = bench->clock,
        .cancel = &mp_interrupted,
        .probe = true,
        .command = "bench",
        .drafts = true,
        .routed = bench->args->trace != NULL ? mp_trace_sink_routed : NULL,
        .routed_ctx = &bench->trace,
        .decision_log = bench->args->decision_log,
        .forced_routing = bench->args->from_trace,
    };
    const uint64_t start_ns = mp_clock_now_ns(bench->clock);
    enum mp_status status;

    mp_progress_bar_begin(&bench->bar, "loading", NULL, bench->clock);
    status = mp_session_open(bench->settings, &config, &bench->session);
    mp_progress_bar_end(&bench->bar);
    bench->load_ms = (double)(mp_clock_now_ns(bench->clock) - start_ns) * 1e-6;
    return status;
}

static enum mp_status run_once(struct bench *bench, struct bench_run *run)
{
    const struct mp_generate_config config = {
        .engine = bench->session.engine,
        .engine_config = &bench->session.engine_config,
        .sampling = { .temperature = 0, .top_p = 1, .seed = bench->settings->run.seed },
        .max_tokens = (uint32_t)bench->args->gen_tokens,
        .ignore_eos = true,
        .forced = bench->tokens != NULL ? bench->tokens + bench->args->prompt_tokens : NULL,
        .clock = bench->clock,
        .on_logits = run == bench->runs && bench->args->logits_out != NULL ? on_logits : NULL,
        .on_step = on_step,
        .drafts = bench->session.drafts,
        .ctx = bench,
    };
    const struct mp_counters before = mp_report_counters(&bench->session);
    struct mp_output outputs[BATCH_MAX] = { 0 };
    struct mp_generate_stats stats;
    enum mp_status status = mp_generate(&config, bench->prompts, bench->batch, outputs, &stats);
    const struct mp_counters now = mp_report_counters(&bench->session);
    const uint64_t now_ns = mp_clock_now_ns(bench->clock);

    mp_outputs_free(outputs, BATCH_MAX);
    if (status != MP_OK)
        return status;
    mp_report_make(&bench->session, &stats, &before, bench->load_ms, &run->report);
    if (stats.decode_steps > 0) {
        run->decode = mp_report_counters_since(&bench->session, &bench->at_decode);
        note_step(bench, &now, now_ns);
    }
    return MP_OK;
}

/* Time of a step, and of the prompt where there are none. */
static int compare(const void *a, const void *b)
{
    const struct mp_report *x = &(*(const struct bench_run *const *)a)->report;
    const struct mp_report *y = &(*(const struct bench_run *const *)b)->report;

    if (x->tpot_ms != y->tpot_ms)
        return x->tpot_ms < y->tpot_ms ? -1 : 1;
    return x->ttft_ms < y->ttft_ms ? -1 : x->ttft_ms > y->ttft_ms;
}

/* The index of the warm run with the median time of a step; of two in the middle the slower one. */
static size_t find_median(const struct bench *bench)
{
    const size_t first = bench->run_count > 1 ? 1 : 0, count = bench->run_count - first;
    const struct bench_run *sorted[REPEAT_MAX];

    for (size_t i = 0; i < count; i++)
        sorted[i] = &bench->runs[first + i];
    qsort(sorted, count, sizeof(sorted[0]), compare);
    return (size_t)(sorted[count / 2] - bench->runs);
}

static void print_row(const char *name, const struct mp_report *report)
{
    printf("%-8s %12.1f %12.1f %12.3f %9.1f%% %14.1f\n", name, report->prefill_per_s,
           report->tokens_per_s, report->tpot_ms, 100 * report->hit_rate, report->exposed_wait_ms);
}

static void print_text(const struct bench *bench)
{
    const size_t at = find_median(bench);

    printf("prompt %llu, generated %llu, batch %llu, %zu runs\n",
           (unsigned long long)bench->args->prompt_tokens,
           (unsigned long long)bench->args->gen_tokens, (unsigned long long)bench->batch,
           bench->run_count);
    printf("%-8s %12s %12s %12s %10s %14s\n", "", "prefill t/s", "decode t/s", "ms per step",
           "hit rate", "exposed wait ms");
    print_row("cold", &bench->runs[0].report);
    print_row("median", &bench->runs[at].report);
    printf("median is run %zu of %zu: the warm run with the median time of a step; its report\n",
           at + 1, bench->run_count);
    mp_report_print(&bench->runs[at].report, stdout);
}

static void print_json(const struct bench *bench)
{
    const size_t at = find_median(bench);
    const struct mp_report *median = &bench->runs[at].report;
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_u64(&json, "batch", bench->batch);
    mp_json_put_u64(&json, "repeat", bench->run_count);
    mp_json_object_begin(&json, "median");
    mp_json_put_u64(&json, "run", at);
    mp_json_put_f64(&json, "ttft_ms", median->ttft_ms);
    mp_json_put_f64(&json, "tpot_ms", median->tpot_ms);
    mp_json_put_f64(&json, "tokens_per_s", median->tokens_per_s);
    mp_json_put_f64(&json, "prefill_tokens_per_s", median->prefill_per_s);
    mp_json_put_f64(&json, "hit_rate", median->hit_rate);
    mp_json_put_f64(&json, "exposed_wait_ms", median->exposed_wait_ms);
    mp_json_object_end(&json);
    mp_json_array_begin(&json, "runs");
    for (size_t i = 0; i < bench->run_count; i++) {
        mp_json_object_begin(&json, NULL);
        mp_report_json(&bench->runs[i].report, &json);
        mp_counters_json(&bench->runs[i].decode, &json, "decode_counters");
        mp_json_put_u64(&json, "hit_steps", bench->runs[i].hit_steps);
        mp_json_put_f64(&json, "hit_steps_ms", (double)bench->runs[i].hit_ns * 1e-6);
        mp_json_object_end(&json);
    }
    mp_json_array_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

static enum mp_status open_all(struct bench *bench)
{
    enum mp_status status = mp_check_outputs(bench->args);

    if (status == MP_OK && bench->args->timeline != NULL)
        status = mp_timeline_create(bench->clock, TIMELINE_EVENTS, &bench->timeline);
    if (status == MP_OK)
        status = read_tokens(bench);
    if (status == MP_OK)
        status = open_session(bench);
    if (status == MP_OK)
        status = make_prompts(bench);
    if (status == MP_OK)
        status = mp_trace_sink_open(&bench->trace, bench->args, &bench->session);
    if (status == MP_OK && bench->args->logits_out != NULL)
        status =
            mp_npy_out_open(&bench->logits, bench->args->logits_out, bench->session.model.vocab);
    return status;
}

/* Files appear after runs that ended well or were interrupted: with what there was until then. */
static enum mp_status close_files(struct bench *bench)
{
    enum mp_status status = mp_trace_sink_close(&bench->trace);

    if (status == MP_OK)
        status = mp_npy_out_commit(&bench->logits);
    if (status == MP_OK)
        status = mp_engine_close_log(bench->session.engine);
    if (status == MP_OK && bench->args->timeline != NULL)
        status = mp_timeline_write(bench->timeline, bench->args->timeline);
    return status;
}

static enum mp_status run_repeats(struct bench *bench)
{
    enum mp_status status = MP_OK;

    mp_progress_bar_begin(&bench->bar, "bench", "runs", bench->clock);
    while (bench->run_count < bench->args->repeat && status == MP_OK) {
        status = run_once(bench, &bench->runs[bench->run_count]);
        bench->run_count += status == MP_OK;
        mp_progress_bar_show(&bench->bar, bench->run_count, bench->args->repeat);
    }
    mp_progress_bar_end(&bench->bar);
    return status;
}

/* An interrupted run is not among those that are reported. */
static enum mp_status run_all(struct bench *bench)
{
    enum mp_status ended, status = open_all(bench);
    struct mp_error interrupted;

    if (status == MP_OK) {
        ended = status = run_repeats(bench);
        interrupted = *mp_error_last();
        if (status == MP_ERR_CANCELED || status == MP_OK)
            status = close_files(bench);
    }
    if (status != MP_OK) {
        mp_trace_abandon(bench->trace.writer);
        mp_npy_out_abandon(&bench->logits);
        return status;
    }
    if (bench->run_count > 0 && bench->args->json)
        print_json(bench);
    else if (bench->run_count > 0)
        print_text(bench);
    status = mp_check_stdout();
    if (status == MP_OK && ended != MP_OK)
        mp_error_set(&interrupted);
    return status == MP_OK ? ended : status;
}

enum mp_status mp_cmd_bench(const struct mp_args *args, const struct mp_settings *settings)
{
    struct bench bench = {
        .args = args,
        .settings = settings,
        .clock = mp_clock_monotonic(),
        .batch = args->batch > 0 ? (uint32_t)args->batch : 1,
    };
    enum mp_status status;

    if (args->cluster != NULL || args->requests != NULL)
        return mp_bench_cluster(args, settings);
    status = args->places == NULL ? mp_require_model(args)
                                  : mp_fail(MP_ERR_CONFIG, "E_USAGE", "--place needs --cluster");
    if (status != MP_OK)
        return status;
    bench.runs = calloc(args->repeat, sizeof(*bench.runs));
    status = bench.runs != NULL ? run_all(&bench) : mp_fail_no_memory("the reports", args->repeat);
    for (size_t b = 0; b < bench.batch; b++)
        mp_ids_free(&bench.prompts[b]);
    mp_session_close(&bench.session);
    mp_timeline_destroy(bench.timeline);
    free(bench.tokens);
    free(bench.runs);
    return status;
}
