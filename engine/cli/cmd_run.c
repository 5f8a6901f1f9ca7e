/*
 * `moepager run`: generates text for prompts and reports the run.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/cli/commands.h"
#include "engine/cli/terminal.h"
#include "engine/session/npy_out.h"
#include "engine/session/progress.h"
#include "engine/session/report.h"
#include "engine/text/chat.h"
#include "policy/record/trace.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"

#define PROMPTS_MAX 64
#define TIMELINE_EVENTS (1u << 20)

struct run {
    const struct mp_args *args;
    const struct mp_settings *settings;
    struct mp_clock *clock;
    struct mp_timeline *timeline;
    struct mp_session session;
    struct mp_chat *chat; /* NULL: plain text */
    struct mp_progress_bar bar;
    struct mp_trace_sink trace;
    struct mp_npy_out logits;

    char *file_text; /* owned; prompts may point into it */
    struct {
        const char *text;
        size_t bytes;
    } prompts[PROMPTS_MAX];
    struct mp_ids ids[PROMPTS_MAX];
    struct mp_output outputs[PROMPTS_MAX];
    uint32_t count;
    bool terminal; /* standard output is one */
    bool unread;   /* nobody reads the text any more, and nothing else was asked for */
};

/* One prompt per line; empty lines do not count. */
static enum mp_status split_lines(struct run *run, size_t bytes)
{
    char *at = run->file_text, *end = run->file_text + bytes;

    while (at < end) {
        char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length;

        stop = stop != NULL ? stop : end;
        length = (size_t)(stop - at);
        if (length > 0 && at[length - 1] == '\r')
            length--;
        if (length > 0) {
            if (run->count == PROMPTS_MAX)
                return mp_fail(MP_ERR_CONFIG, "E_BATCH",
                               "--batch-file has more than %d prompts; split it", PROMPTS_MAX);
            run->prompts[run->count].text = at;
            run->prompts[run->count++].bytes = length;
        }
        at = stop + 1;
    }
    return MP_OK;
}

static enum mp_status read_prompts(struct run *run)
{
    const struct mp_args *args = run->args;
    const int given =
        (args->prompt != NULL) + (args->prompt_file != NULL) + (args->batch_file != NULL);
    enum mp_status status = MP_OK;
    size_t bytes = 0;

    if (given != 1)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "got %d prompts, need exactly one of --prompt, --prompt-file, --batch-file",
                       given);
    if (args->prompt != NULL) {
        run->prompts[0].text = args->prompt;
        run->prompts[0].bytes = strlen(args->prompt);
        run->count = 1;
    } else {
        status = mp_read_text(args->prompt_file != NULL ? args->prompt_file : args->batch_file,
                              &run->file_text, &bytes);
    }
    if (status == MP_OK && args->prompt_file != NULL) {
        run->prompts[0].text = run->file_text;
        run->prompts[0].bytes = bytes;
        run->count = 1;
    }
    if (status == MP_OK && args->batch_file != NULL)
        status = split_lines(run, bytes);
    if (status == MP_OK && (run->count == 0 || run->prompts[0].bytes == 0))
        status = mp_fail(MP_ERR_CONFIG, "E_PROMPT_EMPTY", "the prompt is empty; give some text");
    return status;
}

static enum mp_status encode_chat(struct run *run, const struct mp_chat *chat, uint32_t i)
{
    const char *system = run->args->system;
    const struct mp_chat_message messages[2] = {
        { MP_CHAT_SYSTEM, system, system != NULL ? strlen(system) : 0 },
        { MP_CHAT_USER, run->prompts[i].text, run->prompts[i].bytes },
    };
    const size_t skip = system != NULL ? 0 : 1;
    struct mp_spans spans = { 0 };
    enum mp_status status = mp_chat_render(chat, messages + skip, 2 - skip, true, &spans);

    if (status == MP_OK)
        status = mp_tokenizer_encode_spans(run->session.tokenizer, spans.spans, spans.count, 0,
                                           &run->ids[i]);
    mp_spans_free(&spans);
    return status;
}

/* Before gigabytes of weights are read. */
static enum mp_status open_chat(struct run *run)
{
    if (run->args->system != NULL && !run->args->chat)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--system needs --chat");
    if (run->args->special && run->args->chat)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--special and --chat exclude each other: the format brings its own tokens");
    if (run->args->chat_template != NULL && !run->args->chat)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--chat-template needs --chat");
    return run->args->chat ? mp_open_chat(run->args, &run->chat) : MP_OK;
}

static enum mp_status encode_prompts(struct run *run)
{
    const char *system = run->args->system;
    const unsigned flags =
        MP_ENCODE_ADD_SPECIAL | (run->args->special ? MP_ENCODE_PARSE_SPECIAL : 0);
    enum mp_status status = MP_OK;

    if (system != NULL)
        mp_warn_unless_utf8("the system message", system, strlen(system));
    for (uint32_t i = 0; i < run->count && status == MP_OK; i++) {
        char name[32];

        snprintf(name, sizeof(name), "prompt %u", i);
        mp_warn_unless_utf8(name, run->prompts[i].text, run->prompts[i].bytes);
        status = run->chat != NULL
                     ? encode_chat(run, run->chat, i)
                     : mp_tokenizer_encode(run->session.tokenizer, run->prompts[i].text,
                                           run->prompts[i].bytes, flags, &run->ids[i]);
    }
    return status;
}

static int on_text(void *ctx, uint32_t sequence, const char *text, size_t bytes)
{
    struct run *run = ctx;
    const struct mp_args *args = run->args;

    (void)sequence;
    /* Several prompts, and JSON, are printed at the end. */
    if (args->json || run->count > 1)
        return 0;
    if (mp_terminal_write(stdout, run->terminal, text, bytes) && fflush(stdout) == 0)
        return 0;
    if (!mp_stdout_unread())
        return 1;
    run->unread = args->trace == NULL && args->decision_log == NULL && args->timeline == NULL &&
                  args->logits_out == NULL;
    return run->unread;
}

static void on_prefill(void *ctx, uint64_t done_tokens, uint64_t total_tokens)
{
    struct run *run = ctx;

    mp_progress_bar_show(&run->bar, done_tokens, total_tokens);
    if (done_tokens == total_tokens)
        mp_progress_bar_end(&run->bar);
}

static enum mp_status on_logits(void *ctx, uint32_t sequence, uint32_t step, const float *logits)
{
    struct run *run = ctx;

    (void)step;
    if (sequence == 0)
        mp_npy_out_row(&run->logits, logits);
    return MP_OK;
}

static void on_step(void *ctx, uint32_t step, const struct mp_batch *batch)
{
    struct run *run = ctx;

    run->trace.step = step;
    run->trace.batch = batch;
}

/* Greedy unless the user asks for something else, whatever generation_config.json suggests: the
 * same command then gives the same text everywhere. */
static struct mp_sampling choose_sampling(const struct run *run)
{
    const struct mp_args *args = run->args;

    return (struct mp_sampling){
        .temperature = args->temperature >= 0 ? args->temperature : 0,
        .top_k = args->top_k != UINT64_MAX ? (uint32_t)args->top_k : 0,
        .top_p = args->top_p >= 0 ? args->top_p : 1,
        .seed = run->settings->run.seed,
    };
}

static void print_json(const struct run *run, const struct mp_report *report)
{
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_string_n(&json, "text", run->outputs[0].text, run->outputs[0].text_bytes);
    mp_json_array_begin(&json, "tokens");
    for (size_t i = 0; i < run->outputs[0].ids.count; i++)
        mp_json_put_u64(&json, NULL, run->outputs[0].ids.ids[i]);
    mp_json_array_end(&json);
    mp_json_put_string(&json, "finish", mp_finish_name(run->outputs[0].finish));
    mp_report_json(report, &json);
    mp_json_array_begin(&json, "sequences");
    for (uint32_t s = 0; s < run->count; s++) {
        mp_json_object_begin(&json, NULL);
        mp_json_put_u64(&json, "prompt_tokens", run->ids[s].count);
        mp_json_put_string_n(&json, "text", run->outputs[s].text, run->outputs[s].text_bytes);
        mp_json_array_begin(&json, "tokens");
        for (size_t i = 0; i < run->outputs[s].ids.count; i++)
            mp_json_put_u64(&json, NULL, run->outputs[s].ids.ids[i]);
        mp_json_array_end(&json);
        mp_json_put_string(&json, "finish", mp_finish_name(run->outputs[s].finish));
        mp_json_object_end(&json);
    }
    mp_json_array_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

static enum mp_status print_result(const struct run *run, const struct mp_report *report)
{
    enum mp_status status;

    if (run->args->json) {
        print_json(run, report);
        return mp_check_stdout();
    }
    if (run->count > 1) {
        for (uint32_t s = 0; s < run->count; s++) {
            printf("[%u] ", s);
            /* Both may hold NUL; what has failed is seen below. */
            (void)mp_terminal_write(stdout, run->terminal, run->prompts[s].text,
                                    run->prompts[s].bytes);
            (void)mp_terminal_write(stdout, run->terminal, run->outputs[s].text,
                                    run->outputs[s].text_bytes);
            fputs("\n\n", stdout);
        }
    }
    if (run->count == 1)
        putchar('\n');
    status = mp_check_stdout();
    fputc('\n', stderr);
    for (uint32_t f = 0; f < MP_FINISH_COUNT; f++) {
        uint32_t ended = 0;

        for (uint32_t s = 0; s < run->count; s++)
            ended += run->outputs[s].finish == f;
        if (ended > 0)
            fprintf(stderr, "ended by      %s%s", mp_finish_name((enum mp_finish)f),
                    ended < run->count ? "" : "\n");
        if (ended > 0 && ended < run->count)
            fprintf(stderr, " (%u of %u prompts)\n", ended, run->count);
    }
    mp_report_print(report, stderr);
    return status;
}

static struct mp_generate_config generate_config(struct run *run)
{
    struct mp_generate_config config = {
        .engine = run->session.engine,
        .engine_config = &run->session.engine_config,
        .tokenizer = run->session.tokenizer,
        .new_text = run->chat != NULL,
        .sampling = choose_sampling(run),
        .max_tokens = (uint32_t)run->args->max_tokens,
        .ignore_eos = run->args->ignore_eos,
        .stop_count = (uint32_t)run->args->stop_count,
        .clock = run->clock,
        .on_text = on_text,
        .on_prefill = on_prefill,
        .on_logits = run->args->logits_out != NULL ? on_logits : NULL,
        .on_step = on_step,
        .drafts = run->session.drafts,
        .ctx = run,
    };

    memcpy(config.stops, run->args->stops, sizeof(config.stops));
    return config;
}

static enum mp_status encode_and_check(void *ctx)
{
    struct run *run = ctx;
    const struct mp_generate_config config = generate_config(run);
    const enum mp_status status = encode_prompts(run);

    return status == MP_OK ? mp_generate_check(&config, run->ids, run->count) : status;
}

static enum mp_status open_session(struct run *run)
{
    const struct mp_progress progress = mp_loading_progress(&run->bar);
    const struct mp_session_config config = {
        .model = run->args->model,
        .sequences = run->count,
        .tokenizer = true,
        .before_load = encode_and_check,
        .before_load_ctx = run,
        .progress = &progress,
        .timeline = run->timeline,
        .clock = run->clock,
        .cancel = &mp_interrupted,
        .probe = true,
        .command = "run",
        .drafts = true,
        .routed = run->args->trace != NULL ? mp_trace_sink_routed : NULL,
        .routed_ctx = &run->trace,
        .decision_log = run->args->decision_log,
    };
    enum mp_status status;

    mp_progress_bar_begin(&run->bar, "loading", NULL, run->clock);
    status = mp_session_open(run->settings, &config, &run->session);
    mp_progress_bar_end(&run->bar);
    return status;
}

static enum mp_status generate(struct run *run, struct mp_generate_stats *stats)
{
    const struct mp_generate_config config = generate_config(run);
    enum mp_status status;

    mp_progress_bar_begin(&run->bar, "prompt", "tokens", run->clock);
    status = mp_generate(&config, run->ids, run->count, run->outputs, stats);
    mp_progress_bar_end(&run->bar);
    return status;
}

static void abandon_files(struct run *run)
{
    mp_trace_abandon(run->trace.writer);
    run->trace.writer = NULL;
    mp_npy_out_abandon(&run->logits);
}

/* Files appear after a run that ended well or was interrupted: with what there was until then. */
static enum mp_status close_files(struct run *run)
{
    enum mp_status status = mp_trace_sink_close(&run->trace);

    if (status == MP_OK)
        status = mp_npy_out_commit(&run->logits);
    if (status == MP_OK)
        status = mp_engine_close_log(run->session.engine);
    if (status == MP_OK && run->args->timeline != NULL)
        status = mp_timeline_write(run->timeline, run->args->timeline);
    if (status != MP_OK)
        abandon_files(run); /* those that are not closed yet */
    return status;
}

/* All that can be refused is, before gigabytes are read; then the session and the files. */
static enum mp_status open_all(struct run *run)
{
    const struct mp_sampling sampling = choose_sampling(run);
    enum mp_status status = mp_sampling_check(&sampling);

    if (status == MP_OK)
        status = mp_check_outputs(run->args);
    if (status == MP_OK)
        status = read_prompts(run);
    if (status == MP_OK && run->args->timeline != NULL)
        status = mp_timeline_create(run->clock, TIMELINE_EVENTS, &run->timeline);
    if (status == MP_OK)
        status = open_chat(run);
    if (status == MP_OK)
        status = open_session(run);
    if (status == MP_OK)
        status = mp_trace_sink_open(&run->trace, run->args, &run->session);
    if (status == MP_OK && run->args->logits_out != NULL)
        status = mp_npy_out_open(&run->logits, run->args->logits_out, run->session.model.vocab);
    if (status != MP_OK)
        abandon_files(run);
    return status;
}

static enum mp_status run_all(struct run *run)
{
    const uint64_t start_ns = mp_clock_now_ns(run->clock);
    struct mp_counters before;
    struct mp_generate_stats stats;
    struct mp_report report;
    struct mp_error interrupted;
    double load_ms;
    enum mp_status ended, status = open_all(run);

    if (status != MP_OK)
        return status;
    load_ms = (double)(mp_clock_now_ns(run->clock) - start_ns) * 1e-6;
    before = mp_report_counters(&run->session);

    ended = status = generate(run, &stats);
    interrupted = *mp_error_last();
    if (status == MP_OK || status == MP_ERR_CANCELED)
        status = close_files(run);
    else
        abandon_files(run);
    if (run->unread)
        return MP_OK;
    if (status != MP_OK) {
        /* The message begins a line of its own after text that was streamed. */
        if (!run->args->json && run->count == 1 && run->outputs[0].text_bytes > 0)
            putchar('\n');
        return status;
    }
    mp_report_make(&run->session, &stats, &before, load_ms, &report);
    status = print_result(run, &report);
    if (status == MP_OK && ended != MP_OK)
        mp_error_set(&interrupted);
    return status == MP_OK ? ended : status;
}

enum mp_status mp_cmd_run(const struct mp_args *args, const struct mp_settings *settings)
{
    struct run *run;
    enum mp_status status = mp_require_model(args);

    if (status != MP_OK)
        return status;
    run = calloc(1, sizeof(*run));
    if (run == NULL)
        return mp_fail_no_memory("the run", sizeof(*run));
    run->args = args;
    run->settings = settings;
    run->clock = mp_clock_monotonic();
    run->terminal = isatty(STDOUT_FILENO) == 1;
    status = run_all(run);

    mp_outputs_free(run->outputs, run->count);
    for (uint32_t i = 0; i < run->count; i++)
        mp_ids_free(&run->ids[i]);
    mp_chat_destroy(run->chat);
    mp_session_close(&run->session);
    mp_timeline_destroy(run->timeline);
    free(run->file_text);
    free(run);
    return status;
}
