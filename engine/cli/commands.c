/*
 * Helpers shared by the commands, and `env`.
 */
#include "engine/cli/commands.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "policy/record/trace.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/output/json_out.h"
#include "vmm/output/out.h"

#define TEXT_FILE_BYTES_MAX (64u << 20)

/* The shortest template of ChatML, for models that come without one. */
static const char chatml[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

volatile sig_atomic_t mp_interrupted;

enum mp_status mp_require_model(const struct mp_args *args)
{
    if (args->model == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "no model: give --model DIR, with config.json, *.safetensors and "
                       "tokenizer.json, or --model FILE.gguf");
    return MP_OK;
}

enum mp_status mp_check_outputs(const struct mp_args *args)
{
    const char *const paths[] = { args->trace, args->logits_out, args->timeline,
                                  args->decision_log };
    enum mp_status status = MP_OK;

    for (size_t i = 0; i < MP_ARRAY_LEN(paths) && status == MP_OK; i++) {
        if (paths[i] != NULL)
            status = mp_out_check(paths[i], paths[i] == args->logits_out);
    }
    if (status == MP_OK && args->trace_scores && args->trace == NULL)
        status = mp_fail(MP_ERR_CONFIG, "E_USAGE", "--trace-scores needs --trace");
    return status;
}

enum mp_status mp_open_chat(const struct mp_args *args, struct mp_chat **chat_p)
{
    enum mp_status status;
    size_t bytes = 0;
    char *text = NULL;

    if (args->chat_template == NULL)
        return mp_chat_load(args->model, chat_p);
    if (strcmp(args->chat_template, "chatml") == 0)
        return mp_chat_load_as(args->model, "--chat-template", chatml, strlen(chatml), chat_p);
    status = mp_read_text(args->chat_template, &text, &bytes);
    if (status == MP_OK)
        status = mp_chat_load_as(args->model, args->chat_template, text, bytes, chat_p);
    free(text);
    return status;
}

enum mp_status mp_require_text(const struct mp_args *args, char **text_p, size_t *bytes_p)
{
    if (args->text == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "no text: give --text FILE");
    return mp_read_text(args->text, text_p, bytes_p);
}

bool mp_next_part(const char **list, char part[MP_PART_BYTES])
{
    const size_t bytes = *list != NULL ? strcspn(*list, ",") : 0;

    if (*list == NULL)
        return false;
    snprintf(part, MP_PART_BYTES, "%.*s", bytes < MP_PART_BYTES ? (int)bytes : MP_PART_BYTES - 1,
             *list);
    *list = (*list)[bytes] == ',' ? *list + bytes + 1 : NULL;
    return true;
}

bool mp_stdout_unread(void)
{
    struct pollfd out = { .fd = STDOUT_FILENO };

    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

enum mp_status mp_check_stdout(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return MP_OK;
    if (mp_stdout_unread()) /* a shorter output would have been in the pipe before that */
        return MP_OK;
    return mp_fail(MP_ERR_IO, "E_OUTPUT", "cannot write to standard output: %s", strerror(errno));
}

enum mp_status mp_printed(enum mp_status ended)
{
    const enum mp_status status = mp_check_stdout();

    return status == MP_OK ? ended : status;
}

enum mp_status mp_read_text(const char *path, char **text_p, size_t *bytes_p)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    size_t bytes = 0, capacity = 0;
    char quoted[MP_QUOTE_BYTES];
    char *text = NULL;
    enum mp_status status = MP_OK;

    mp_quote(quoted, path, strlen(path));
    if (file == NULL)
        return mp_fail(MP_ERR_IO, "E_PROMPT_FILE", "cannot open '%s': %s", quoted, strerror(errno));
    while (status == MP_OK) {
        if (capacity - bytes < 65536) {
            char *grown = realloc(text, capacity + (1u << 20));

            if (grown == NULL) {
                status = mp_fail_no_memory("the prompt", capacity + (1u << 20));
                break;
            }
            text = grown;
            capacity += 1u << 20;
        }
        const size_t got = fread(text + bytes, 1, capacity - bytes - 1, file);

        bytes += got;
        if (got == 0)
            break;
        if (bytes > TEXT_FILE_BYTES_MAX)
            status = mp_fail(MP_ERR_CONFIG, "E_PROMPT_LONG", "'%s' is larger than %u bytes", quoted,
                             TEXT_FILE_BYTES_MAX);
    }
    if (status == MP_OK && mp_interrupted)
        status = mp_fail(MP_ERR_CANCELED, "E_CANCELED", "interrupted while reading the prompt");
    else if (status == MP_OK && ferror(file) && file == stdin && errno == EBADF)
        status = mp_fail(MP_ERR_CONFIG, "E_PROMPT_FILE",
                         "the prompt is to come from standard input, which is closed");
    else if (status == MP_OK && ferror(file))
        status =
            mp_fail(MP_ERR_IO, "E_PROMPT_FILE", "cannot read '%s': %s", quoted, strerror(errno));
    if (file != stdin)
        fclose(file);
    if (status != MP_OK) {
        free(text);
        return status;
    }
    if (file == stdin && bytes > 0 && text[bytes - 1] == '\n') /* echo's, not the text's */
        bytes -= bytes > 1 && text[bytes - 2] == '\r' ? 2 : 1;
    text[bytes] = '\0';
    *text_p = text;
    *bytes_p = bytes;
    return MP_OK;
}

void mp_warn_unless_utf8(const char *name, const char *text, size_t bytes)
{
    const size_t valid_bytes = mp_utf8_bytes(text, bytes);

    if (valid_bytes < bytes)
        mp_log_warn("prompt",
                    "byte %zu of %s (0x%02x) is not UTF-8; U+FFFD is read there and wherever else "
                    "it is not; convert it, such as with iconv",
                    valid_bytes, name, (unsigned char)text[valid_bytes]);
}

enum mp_status mp_encode_text(const struct mp_args *args, const struct mp_session *session,
                              const char *text, size_t bytes, struct mp_ids *ids, uint64_t *bytes_p)
{
    enum mp_status status;

    if (args->window > session->engine_config.ctx)
        return mp_fail(MP_ERR_CONFIG, "E_CTX",
                       "windows of %llu tokens do not fit into the context of %u; lower --window",
                       (unsigned long long)args->window, session->engine_config.ctx);
    mp_warn_unless_utf8("the text", text, bytes);
    status = mp_tokenizer_encode(session->tokenizer, text, bytes, 0, ids);
    if (status != MP_OK)
        return status;
    *bytes_p = bytes;
    if (ids->count > args->tokens) {
        *bytes_p = (uint64_t)((double)bytes / (double)ids->count * (double)args->tokens);
        ids->count = args->tokens;
    }
    if (ids->count < 2)
        return mp_fail(MP_ERR_CONFIG, "E_PROMPT_EMPTY", "the text has %zu tokens, need at least 2",
                       ids->count);
    return MP_OK;
}

static bool show_loading(void *bar, uint64_t done_bytes, uint64_t total_bytes)
{
    mp_progress_bar_show(bar, done_bytes, total_bytes);
    return !mp_interrupted;
}

struct mp_progress mp_loading_progress(struct mp_progress_bar *bar)
{
    return (struct mp_progress){ .report = show_loading, .context = bar };
}

/* A name for the trace: the last part of the path, made printable. */
static void copy_model_name(const char *path, char out[128])
{
    size_t end = strlen(path), used = 0, start;

    while (end > 0 && path[end - 1] == '/')
        end--;
    for (start = end; start > 0 && path[start - 1] != '/';)
        start--;
    for (; start < end && used < 127; start++)
        out[used++] = path[start] > ' ' && path[start] < 0x7f ? path[start] : '_';
    out[used] = '\0';
}

enum mp_status mp_trace_sink_open(struct mp_trace_sink *sink, const struct mp_args *args,
                                  const struct mp_session *session)
{
    const struct mp_shape *shape = mp_engine_shape(session->engine);
    struct mp_trace_shape trace = {
        .layers = shape->layers,
        .experts = shape->experts,
        .top_k = shape->top_k,
        .scores = args->trace_scores,
    };

    if (args->trace == NULL)
        return MP_OK;
    sink->engine = args->trace_scores ? session->engine : NULL;
    copy_model_name(args->model, trace.model);
    trace.expert_bytes = session->memory.expert_bytes / ((uint64_t)shape->layers * shape->experts);
    return mp_trace_create(args->trace, &trace, &sink->writer);
}

void mp_trace_sink_routed(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k,
                          const uint32_t *experts, const float *weights)
{
    struct mp_trace_sink *sink = ctx;
    const float *scores = sink->engine != NULL ? mp_engine_scores(sink->engine) : NULL;
    const uint32_t row = sink->engine != NULL ? mp_engine_shape(sink->engine)->experts : 0;

    if (sink->writer != NULL && sink->batch != NULL) {
        for (uint32_t t = 0; t < tokens; t++) {
            const struct mp_trace_row at = {
                .step = sink->step,
                .layer = layer,
                .sequence = sink->batch->sequence[t],
                .position = sink->batch->position[t],
                .experts = experts + (size_t)t * k,
                .weights = weights + (size_t)t * k,
                .scores = scores != NULL ? scores + (size_t)t * row : NULL,
            };

            mp_trace_write(sink->writer, &at);
        }
    }
}

enum mp_status mp_trace_sink_close(struct mp_trace_sink *sink)
{
    struct mp_trace_writer *writer = sink->writer;

    sink->writer = NULL;
    return writer != NULL ? mp_trace_close(writer) : MP_OK;
}

static void print_options_page(const struct mp_settings *settings)
{
    fputs("# Options\n\n"
          "All settings and all flags. This page is the output of `moepager env --markdown`; "
          "`moepager COMMAND --help-all`\nhas the same for one command.\n\n",
          stdout);
    mp_args_print_options(settings, stdout);
}

enum mp_status mp_cmd_env(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_profile chosen;
    const enum mp_status status = mp_settings_policies(settings, &chosen);

    if (args->json + args->markdown + (args->page != NULL) > 1)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--json, --markdown and --page exclude each other");
    if (args->page != NULL)
        return mp_printed(mp_args_print_page(args->page, settings, stdout));
    if (status != MP_OK && !args->markdown)
        return status;
    if (args->json)
        mp_opt_print_json(settings->groups, stdout);
    else if (args->markdown)
        print_options_page(settings);
    else
        mp_opt_print(settings->groups, stdout);
    return mp_check_stdout();
}
