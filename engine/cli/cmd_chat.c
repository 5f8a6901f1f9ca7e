/*
 * `moepager chat`: a conversation, message by message from standard input. The prompt of each turn
 * begins like the one before, so the batcher goes on behind what its sequence holds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cli/chat/lines.h"
#include "engine/cli/chat/live_line.h"
#include "engine/cli/commands.h"
#include "engine/cli/terminal.h"
#include "engine/batch/batcher.h"
#include "engine/text/chat.h"
#include "vmm/base/error.h"
#include "vmm/format/json.h"
#include "vmm/options/environment.h"
#include "vmm/output/json_out.h"
#include "vmm/output/out.h"

#define MESSAGES_MAX 1024
#define TEXT_BYTES_MAX (4u << 20)

struct talk {
    const struct mp_args *args;
    const struct mp_settings *settings;
    struct mp_session session;
    struct mp_progress_bar bar;
    struct mp_chat *chat;
    struct mp_batcher *batcher;
    struct mp_job *job;
    bool is_terminal, prompts, unwritten;
    bool moves; /* the terminal moves its cursor */
    struct mp_lines lines;
    struct mp_live_line live;
    uint64_t begun_ns; /* the answer's first token */

    struct mp_chat_message messages[MESSAGES_MAX + 1];
    size_t count;
    char text[TEXT_BYTES_MAX]; /* the first `used` bytes are those of the messages */
    size_t used;
    struct mp_error error;                                           /* of the last answer */
    uint64_t prompt_tokens, reused_tokens, tokens, first_ns, all_ns; /* of the last answer */
};

static volatile sig_atomic_t stop_answer;

static void on_interrupt(int number)
{
    (void)number;
    stop_answer = 1;
}

static enum mp_status too_long(void)
{
    return mp_fail(MP_ERR_CONFIG, "E_PROMPT_LONG",
                   "the conversation is too long; /reset begins anew");
}

static enum mp_status add_text(struct talk *talk, const char *text, size_t bytes)
{
    struct mp_chat_message *last = &talk->messages[talk->count - 1];

    if (bytes > TEXT_BYTES_MAX - talk->used)
        return too_long();
    memcpy(talk->text + talk->used, text, bytes);
    talk->used += bytes;
    last->bytes += bytes;
    return MP_OK;
}

static enum mp_status add_message(struct talk *talk, enum mp_chat_role role, const char *text,
                                  size_t bytes)
{
    if (talk->count == MESSAGES_MAX)
        return too_long();
    talk->messages[talk->count++] =
        (struct mp_chat_message){ .role = role, .text = talk->text + talk->used };
    return add_text(talk, text, bytes);
}

/* Begin anew, with the same system message. */
static void reset(struct talk *talk)
{
    const bool system = talk->count > 0 && talk->messages[0].role == MP_CHAT_SYSTEM;

    talk->count = system;
    talk->used = system ? talk->messages[0].bytes : 0;
}

static enum mp_status set_system(struct talk *talk, const char *text)
{
    talk->count = talk->used = 0;
    return *text != '\0' ? add_message(talk, MP_CHAT_SYSTEM, text, strlen(text)) : MP_OK;
}

/* ---- an answer */

static double hit_rate(const struct mp_counters *c)
{
    const uint64_t uses = c->hits + c->misses;

    return uses > 0 ? 100.0 * (double)c->hits / (double)uses : 0.0;
}

static void show_speed(struct talk *talk)
{
    const struct mp_counters *c = mp_engine_counters(talk->session.engine);
    const uint64_t now = mp_clock_now_ns(mp_clock_monotonic());
    const double seconds = (double)(now - talk->begun_ns) * 1e-9;
    char text[96];

    if (talk->tokens < 2 || !mp_live_line_due(&talk->live))
        return;
    snprintf(text, sizeof(text), "%llu tokens, %.1f tokens/s, hit rate %.1f %%, experts %.1f MiB",
             (unsigned long long)talk->tokens, (double)(talk->tokens - 1) / seconds, hit_rate(c),
             (double)c->resident_bytes / (1 << 20));
    mp_live_line_show(&talk->live, text);
}

static void on_text(void *ctx, const char *text, size_t bytes, uint64_t tokens)
{
    struct talk *talk = ctx;

    if (talk->tokens == 0)
        talk->begun_ns = mp_clock_now_ns(mp_clock_monotonic());
    talk->tokens = tokens;
    if (add_text(talk, text, bytes) != MP_OK)
        talk->error = *mp_error_last();
    if (!mp_terminal_write(stdout, talk->is_terminal, text, bytes) || fflush(stdout) != 0)
        talk->unwritten = true;
    show_speed(talk);
}

static void on_end(void *ctx, const struct mp_job_end *end)
{
    struct talk *talk = ctx;

    talk->job = NULL;
    if (end->error != NULL)
        talk->error = *end->error;
    talk->prompt_tokens = end->prompt_tokens;
    talk->reused_tokens = end->reused_tokens;
    talk->tokens = end->output->ids.count;
    talk->first_ns = end->first_ns;
    talk->all_ns = end->all_ns;
}

static enum mp_status submit(struct talk *talk, const struct mp_ids *ids)
{
    const struct mp_args *args = talk->args;
    const struct mp_job_config config = {
        .prompt = ids->ids,
        .prompt_count = ids->count,
        .sampling = { .temperature = args->temperature >= 0 ? args->temperature : 0,
                      .top_k = args->top_k != UINT64_MAX ? (uint32_t)args->top_k : 0,
                      .top_p = args->top_p >= 0 ? args->top_p : 1,
                      .seed = talk->settings->run.seed },
        .max_tokens = (uint32_t)args->max_tokens,
        .new_text = true,
        .stops = args->stops,
        .stop_count = (uint32_t)args->stop_count,
        .on_text = on_text,
        .on_end = on_end,
        .ctx = talk,
    };

    return mp_batcher_submit(talk->batcher, &config, &talk->job);
}

/* Until it ends, or is stopped: then what is there counts as the answer. */
static enum mp_status generate(struct talk *talk)
{
    enum mp_status status = MP_OK;

    while (status == MP_OK && talk->job != NULL) {
        if (stop_answer || mp_interrupted || talk->unwritten || talk->error.status != MP_OK) {
            mp_batcher_cancel(talk->batcher, talk->job);
            talk->job = NULL;
            break;
        }
        status = mp_batcher_step(talk->batcher);
    }
    if (status == MP_OK && talk->error.status != MP_OK) {
        mp_error_set(&talk->error);
        status = talk->error.status;
    }
    return status;
}

static enum mp_status answer(struct talk *talk)
{
    struct mp_spans spans = { 0 };
    struct mp_ids ids = { 0 };
    enum mp_status status = mp_chat_render(talk->chat, talk->messages, talk->count, true, &spans);

    if (status == MP_OK)
        status =
            mp_tokenizer_encode_spans(talk->session.tokenizer, spans.spans, spans.count, 0, &ids);
    mp_spans_free(&spans);
    talk->error = (struct mp_error){ .status = MP_OK };
    stop_answer = 0;
    if (status == MP_OK)
        status = submit(talk, &ids);
    mp_ids_free(&ids);
    if (status != MP_OK)
        return status;
    talk->tokens = 0;
    status = add_message(talk, MP_CHAT_ASSISTANT, "", 0);
    mp_live_line_open(&talk->live, talk->moves, mp_clock_monotonic());
    if (status == MP_OK)
        status = generate(talk);
    mp_live_line_close(&talk->live);
    putchar('\n');
    return status;
}

/* A turn that fails is as if it had not been. */
static enum mp_status take_turn(struct talk *talk, const char *text, size_t bytes)
{
    const size_t count = talk->count, used = talk->used;
    enum mp_status status = add_message(talk, MP_CHAT_USER, text, bytes);

    if (status == MP_OK)
        status = answer(talk);
    if (status != MP_OK) {
        if (talk->job != NULL)
            mp_batcher_cancel(talk->batcher, talk->job);
        talk->job = NULL;
        talk->count = count;
        talk->used = used;
    }
    return status;
}

/* ---- commands */

static enum mp_status save(const struct talk *talk, const char *path)
{
    static const char *const roles[] = { "system", "user", "assistant" };
    struct mp_json_out json;
    struct mp_out out;
    enum mp_status status = mp_out_open(&out, path);

    if (status != MP_OK)
        return status;
    mp_json_begin(&json, out.file, true);
    mp_json_object_begin(&json, NULL);
    mp_json_array_begin(&json, "messages");
    for (size_t i = 0; i < talk->count; i++) {
        mp_json_object_begin(&json, NULL);
        mp_json_put_string(&json, "role", roles[talk->messages[i].role]);
        mp_json_put_string_n(&json, "content", talk->messages[i].text, talk->messages[i].bytes);
        mp_json_object_end(&json);
    }
    mp_json_array_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
    return mp_out_commit(&out);
}

static enum mp_status load_message(struct talk *talk, const json_t *object)
{
    static const char *const roles[] = { "system", "user", "assistant" };
    const char *role = json_string_value(json_object_get(object, "role"));
    const json_t *content = json_object_get(object, "content");
    unsigned i = 0;

    while (i < 3 && (role == NULL || strcmp(role, roles[i]) != 0))
        i++;
    if (i == 3 || !json_is_string(content))
        return mp_fail(MP_ERR_CONFIG, "E_CHAT_FILE",
                       "a conversation needs text and the role system, user or assistant in every "
                       "message");
    return add_message(talk, (enum mp_chat_role)i, json_string_value(content),
                       json_string_length(content));
}

static void drop_first(struct talk *talk, size_t count, size_t bytes)
{
    talk->count -= count;
    talk->used -= bytes;
    memmove(talk->text, talk->text + bytes, talk->used);
    memmove(talk->messages, talk->messages + count, talk->count * sizeof(talk->messages[0]));
    for (size_t i = 0; i < talk->count; i++)
        talk->messages[i].text -= bytes;
}

/* What /save wrote, instead of the conversation. After a failure it is as it was. */
static enum mp_status load(struct talk *talk, const char *path)
{
    const struct mp_json_options options = { .allow_nul = true };
    const size_t count = talk->count, used = talk->used;
    const json_t *messages, *message;
    json_t *root = NULL;
    char *text = NULL;
    size_t bytes = 0, i;
    enum mp_status status = mp_read_text(path, &text, &bytes);

    if (status == MP_OK)
        status = mp_json_parse_with(text, bytes, path, &options, &root);
    free(text);
    if (status != MP_OK)
        return status;
    messages = json_object_get(root, "messages");
    if (!json_is_array(messages))
        status = mp_fail(MP_ERR_CONFIG, "E_CHAT_FILE", "a conversation needs an array 'messages'");
    json_array_foreach(messages, i, message)
    {
        if (status == MP_OK)
            status = load_message(talk, message);
    }
    json_decref(root);
    if (status == MP_OK) {
        drop_first(talk, count, used);
    } else {
        talk->count = count;
        talk->used = used;
    }
    return status;
}

static void print_stats(const struct talk *talk)
{
    const struct mp_counters *c = mp_engine_counters(talk->session.engine);
    const double decode_s = (double)(talk->all_ns - talk->first_ns) * 1e-9;

    fprintf(stderr,
            "messages %zu, prompt %llu tokens (%llu of them reused), answer %llu tokens, %.1f "
            "tokens/s, hit rate %.1f %%, experts in RAM %.1f MiB\n",
            talk->count, (unsigned long long)talk->prompt_tokens,
            (unsigned long long)talk->reused_tokens, (unsigned long long)talk->tokens,
            decode_s > 0 && talk->tokens > 1 ? (double)(talk->tokens - 1) / decode_s : 0.0,
            hit_rate(c), (double)c->resident_bytes / (1 << 20));
}

/* True if the line is a command that ends the chat; *done_p if it is a command at all. */
static bool run_command(struct talk *talk, const char *line, bool *done_p)
{
    const char *rest = line + strcspn(line, " \n");
    const size_t bytes = (size_t)(rest - line);
    enum mp_status status = MP_OK;

    rest += *rest == ' ';
    *done_p = true;
    if (bytes == 5 && strncmp(line, "/exit", 5) == 0)
        return true;
    if (bytes == 6 && strncmp(line, "/reset", 6) == 0)
        reset(talk);
    else if (bytes == 7 && strncmp(line, "/system", 7) == 0)
        status = set_system(talk, rest);
    else if (bytes == 5 && strncmp(line, "/save", 5) == 0)
        status = save(talk, rest);
    else if (bytes == 5 && strncmp(line, "/load", 5) == 0)
        status = load(talk, rest);
    else if (bytes == 6 && strncmp(line, "/stats", 6) == 0)
        print_stats(talk);
    else if (line[0] == '/' && line[1] != '/')
        fputs(
            "/reset, /system TEXT, /save FILE, /load FILE, /stats, /exit; // begins a message with "
            "/\n\\ at the end of a line goes on in the next one; \"\"\" before and behind encloses "
            "several\n",
            stderr);
    else
        *done_p = false;
    if (status != MP_OK)
        fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
    return false;
}

/* An answer that failed is said and forgotten, unless nobody is there to go on. */
static enum mp_status converse(struct talk *talk)
{
    enum mp_status status = MP_OK;

    while (status == MP_OK && !mp_interrupted && !talk->unwritten) {
        const enum mp_lines_result result = mp_lines_read(&talk->lines);
        const char *text = talk->lines.text;
        bool command;

        if (result == MP_LINES_INTERRUPTED && !mp_interrupted) { /* Ctrl-C without an answer */
            fputc('\n', stderr);
            continue;
        }
        if (result != MP_LINES_MESSAGE)
            break;
        if (*text == '\0')
            continue;
        if (run_command(talk, text, &command))
            break;
        if (command)
            continue;
        status = take_turn(talk, text + (text[0] == '/'), talk->lines.bytes - (text[0] == '/'));
        if (status != MP_OK && talk->prompts && status != MP_ERR_DEVICE) {
            fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
            status = MP_OK;
        }
    }
    return status == MP_OK ? mp_check_stdout() : status;
}

/* Whether the terminal moves its cursor, as far as its name says. */
static enum mp_status look_at_terminal(bool is_terminal, bool *moves_p)
{
    struct mp_environment environment;
    const char *term;
    enum mp_status status = mp_environment_copy(&environment);

    if (status != MP_OK)
        return status;
    term = mp_environment_get(&environment, "TERM");
    *moves_p = is_terminal && term != NULL && strcmp(term, "dumb") != 0;
    mp_environment_fini(&environment);
    return MP_OK;
}

static enum mp_status open_all(struct talk *talk)
{
    const struct mp_progress progress = mp_loading_progress(&talk->bar);
    const struct mp_session_config config = {
        .model = talk->args->model,
        .sequences = 1,
        .tokenizer = true,
        .progress = &progress,
        .clock = mp_clock_monotonic(),
        .probe = true,
        .command = "chat",
    };
    struct mp_batcher_config batcher = { .chunk_tokens = 1, .clock = config.clock };
    enum mp_status status = mp_open_chat(talk->args, &talk->chat);

    if (status != MP_OK)
        return status;
    mp_progress_bar_begin(&talk->bar, "loading", NULL, config.clock);
    status = mp_session_open(talk->settings, &config, &talk->session);
    mp_progress_bar_end(&talk->bar);
    if (status != MP_OK)
        return status;
    batcher.engine = talk->session.engine;
    batcher.engine_config = &talk->session.engine_config;
    batcher.tokenizer = talk->session.tokenizer;
    return mp_batcher_create(&batcher, &talk->batcher);
}

enum mp_status mp_cmd_chat(const struct mp_args *args, const struct mp_settings *settings)
{
    static struct talk talk;
    const struct sigaction interrupt = { .sa_handler = on_interrupt };
    enum mp_status status = mp_require_model(args);

    if (status != MP_OK)
        return status;
    memset(&talk, 0, sizeof(talk));
    talk.args = args;
    talk.settings = settings;
    talk.is_terminal = isatty(STDOUT_FILENO);
    talk.prompts = isatty(STDIN_FILENO);
    status = look_at_terminal(talk.is_terminal, &talk.moves);
    if (status == MP_OK)
        status = open_all(&talk);
    if (status == MP_OK && args->system != NULL)
        status = set_system(&talk, args->system);
    if (status == MP_OK) {
        sigaction(SIGINT, &interrupt, NULL);
        mp_lines_open(&talk.lines, talk.prompts);
        status = converse(&talk);
        mp_lines_close(&talk.lines);
    }
    mp_batcher_destroy(talk.batcher);
    mp_session_close(&talk.session);
    mp_chat_destroy(talk.chat);
    return status;
}
