/*
 * Answers as JSON: events of a stream, or one object, in the form of OpenAI's API.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/serve/server_int.h"
#include "vmm/base/error.h"

/* ---- texts */

enum mp_status mp_writing_begin(struct mp_writing *w, bool event)
{
    *w = (struct mp_writing){ .text = NULL };
    w->file = open_memstream(&w->text, &w->bytes);
    if (w->file == NULL)
        return mp_fail_no_memory("a reply", 0);
    if (event)
        fputs("data: ", w->file);
    mp_json_begin(&w->json, w->file, false);
    return MP_OK;
}

/* The JSON ends with a newline; an event ends with another. */
enum mp_status mp_writing_end(struct mp_writing *w)
{
    mp_json_end(&w->json);
    if (fclose(w->file) == 0)
        return MP_OK;
    free(w->text);
    return mp_fail_no_memory("a reply", w->bytes);
}

unsigned mp_reply_status(const struct mp_error *error)
{
    switch (error->status) {
    case MP_ERR_CONFIG: return 400;
    case MP_ERR_MODEL: return strncmp(error->code, "E_JSON", 6) == 0 ? 400 : 500;
    case MP_ERR_BUSY:
    case MP_ERR_CANCELED:
    case MP_ERR_NO_MEMORY: return 503;
    default: return 500;
    }
}

char *mp_reply_error(const struct mp_error *error, unsigned status, size_t *bytes_p)
{
    const struct mp_error kept = *error;
    struct mp_writing w;

    if (mp_writing_begin(&w, false) != MP_OK)
        return NULL;
    mp_json_object_begin(&w.json, NULL);
    mp_json_object_begin(&w.json, "error");
    mp_json_put_string(&w.json, "message", kept.text);
    mp_json_put_string(&w.json, "type",
                       status == 401   ? "authentication_error"
                       : status < 500  ? "invalid_request_error"
                       : status == 503 ? "overloaded_error"
                                       : "server_error");
    mp_json_put_null(&w.json, "param");
    mp_json_put_string(&w.json, "code", kept.code);
    mp_json_object_end(&w.json);
    mp_json_object_end(&w.json);
    if (mp_writing_end(&w) != MP_OK)
        return NULL;
    *bytes_p = w.bytes;
    return w.text;
}

/* ---- objects */

static bool is_chat(const struct mp_exchange *exchange)
{
    return exchange->request.kind == MP_REQUEST_CHAT;
}

static void put_head(struct mp_json_out *json, const struct mp_exchange *exchange, bool event)
{
    const char *object = !is_chat(exchange) ? "text_completion"
                         : event            ? "chat.completion.chunk"
                                            : "chat.completion";
    char id[40];

    snprintf(id, sizeof(id), "%s-%" PRIx64 "-%" PRIu64, is_chat(exchange) ? "chatcmpl" : "cmpl",
             exchange->created_s, exchange->id);
    mp_json_put_string(json, "id", id);
    mp_json_put_string(json, "object", object);
    mp_json_put_u64(json, "created", exchange->created_s);
    mp_json_put_string(json, "model", exchange->server->config.model_name);
}

static void put_finish(struct mp_json_out *json, const struct mp_choice *choice,
                       const enum mp_finish *finish)
{
    const bool stopped = finish != NULL && (*finish == MP_FINISH_EOS || *finish == MP_FINISH_STOP);

    mp_json_put_string(json, "finish_reason",
                       finish == NULL                 ? NULL
                       : !stopped                     ? "length"
                       : choice->reply.call_count > 0 ? "tool_calls"
                                                      : "stop");
}

/* Nine letters and digits, as some formats want it; different for all calls of a conversation. */
static void put_call_id(struct mp_json_out *json, const struct mp_choice *choice, size_t index)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const struct mp_exchange *exchange = choice->exchange;
    uint64_t number = exchange->created_s * UINT64_C(0x9e3779b97f4a7c15) +
                      exchange->id * MP_REQUEST_CHOICES_MAX * MP_CALLS_MAX +
                      choice->index * MP_CALLS_MAX + index;
    char id[10] = "";

    for (size_t i = 0; i < 9; i++, number /= 62)
        id[i] = digits[number % 62];
    mp_json_put_string(json, "id", id);
}

/* `event`: with their numbers, for whoever puts events together. */
static void put_calls(struct mp_json_out *json, const struct mp_choice *choice, size_t from,
                      bool event)
{
    if (from == choice->reply.call_count)
        return;
    mp_json_array_begin(json, "tool_calls");
    for (size_t i = from; i < choice->reply.call_count; i++) {
        mp_json_object_begin(json, NULL);
        if (event)
            mp_json_put_u64(json, "index", i);
        put_call_id(json, choice, i);
        mp_json_put_string(json, "type", "function");
        mp_json_object_begin(json, "function");
        mp_json_put_string(json, "name", choice->reply.calls[i].name);
        mp_json_put_string(json, "arguments", choice->reply.calls[i].arguments);
        mp_json_object_end(json);
        mp_json_object_end(json);
    }
    mp_json_array_end(json);
}

static void put_usage(struct mp_json_out *json, const struct mp_exchange *exchange)
{
    mp_json_object_begin(json, "usage");
    mp_json_put_u64(json, "prompt_tokens", exchange->prompt_tokens);
    mp_json_put_u64(json, "completion_tokens", exchange->generated_tokens);
    mp_json_put_u64(json, "total_tokens", exchange->prompt_tokens + exchange->generated_tokens);
    mp_json_object_begin(json, "prompt_tokens_details");
    mp_json_put_u64(json, "cached_tokens", exchange->reused_tokens);
    mp_json_object_end(json);
    mp_json_object_end(json);
}

/* ---- streams */

/* What is new of a chat's answer. */
static void put_delta(struct mp_json_out *json, struct mp_choice *choice)
{
    const struct mp_reply *r = &choice->reply;

    mp_json_object_begin(json, "delta");
    if (!choice->begun)
        mp_json_put_string(json, "role", "assistant");
    if (r->thoughts.bytes > choice->thoughts_sent)
        mp_json_put_string_n(json, "reasoning_content", r->thoughts.data + choice->thoughts_sent,
                             r->thoughts.bytes - choice->thoughts_sent);
    if (r->content.bytes > choice->content_sent)
        mp_json_put_string_n(json, "content", r->content.data + choice->content_sent,
                             r->content.bytes - choice->content_sent);
    put_calls(json, choice, choice->calls_sent, true);
    mp_json_object_end(json);
    choice->thoughts_sent = r->thoughts.bytes;
    choice->content_sent = r->content.bytes;
    choice->calls_sent = r->call_count;
}

/* An event with this text of a completion, or what is new of a chat; and its end, if it ends. */
static void write_event(struct mp_choice *choice, const char *text, size_t bytes,
                        const enum mp_finish *finish)
{
    struct mp_exchange *exchange = choice->exchange;
    struct mp_writing w;

    if (mp_writing_begin(&w, true) != MP_OK) {
        mp_exchange_cancel(exchange);
        return;
    }
    mp_json_object_begin(&w.json, NULL);
    put_head(&w.json, exchange, true);
    mp_json_array_begin(&w.json, "choices");
    mp_json_object_begin(&w.json, NULL);
    mp_json_put_u64(&w.json, "index", choice->index);
    if (is_chat(exchange)) {
        put_delta(&w.json, choice);
    } else {
        mp_json_put_string_n(&w.json, "text", text != NULL ? text : "", bytes);
    }
    mp_logprobs_put(&w.json, choice);
    put_finish(&w.json, choice, finish);
    mp_json_object_end(&w.json);
    mp_json_array_end(&w.json);
    mp_json_object_end(&w.json);
    choice->begun = true;
    if (mp_writing_end(&w) != MP_OK) {
        mp_exchange_cancel(exchange);
        return;
    }
    (void)(mp_exchange_write(exchange, w.text, w.bytes) && mp_exchange_write(exchange, "\n", 1));
    free(w.text);
}

static void end_stream(struct mp_exchange *exchange)
{
    static const char done[] = "data: [DONE]\n\n";
    struct mp_writing w;

    if (exchange->request.stream_usage && mp_writing_begin(&w, true) == MP_OK) {
        mp_json_object_begin(&w.json, NULL);
        put_head(&w.json, exchange, true);
        mp_json_array_begin(&w.json, "choices");
        mp_json_array_end(&w.json);
        put_usage(&w.json, exchange);
        mp_json_object_end(&w.json);
        if (mp_writing_end(&w) == MP_OK) {
            (void)(mp_exchange_write(exchange, w.text, w.bytes) &&
                   mp_exchange_write(exchange, "\n", 1));
            free(w.text);
        }
    }
    (void)mp_exchange_write(exchange, done, sizeof(done) - 1);
    mp_exchange_finish(exchange, 200);
}

/* ---- one object */

static void put_message(struct mp_json_out *json, const struct mp_choice *choice)
{
    const struct mp_reply *r = &choice->reply;

    mp_json_object_begin(json, "message");
    mp_json_put_string(json, "role", "assistant");
    if (r->content.bytes > 0 || r->call_count == 0)
        mp_json_put_string_n(json, "content", r->content.bytes > 0 ? r->content.data : "",
                             r->content.bytes);
    else
        mp_json_put_null(json, "content");
    if (r->thoughts.bytes > 0)
        mp_json_put_string_n(json, "reasoning_content", r->thoughts.data, r->thoughts.bytes);
    put_calls(json, choice, 0, false);
    mp_json_put_null(json, "refusal");
    mp_json_object_end(json);
}

static void put_choice(struct mp_json_out *json, struct mp_choice *choice)
{
    mp_json_object_begin(json, NULL);
    mp_json_put_u64(json, "index", choice->index);
    if (is_chat(choice->exchange)) {
        put_message(json, choice);
    } else {
        mp_json_put_string_n(json, "text", choice->text, choice->bytes);
    }
    mp_logprobs_put(json, choice);
    put_finish(json, choice, &choice->finish);
    mp_json_object_end(json);
}

static void end_object(struct mp_exchange *exchange)
{
    struct mp_writing w;
    enum mp_status status = mp_writing_begin(&w, false);

    if (status == MP_OK) {
        mp_json_object_begin(&w.json, NULL);
        put_head(&w.json, exchange, false);
        mp_json_array_begin(&w.json, "choices");
        for (uint32_t i = 0; i < exchange->choice_count; i++)
            put_choice(&w.json, &exchange->choices[i]);
        mp_json_array_end(&w.json);
        put_usage(&w.json, exchange);
        mp_json_object_end(&w.json);
        status = mp_writing_end(&w);
    }
    if (status != MP_OK) {
        mp_exchange_fail(exchange, mp_error_last());
        return;
    }
    (void)mp_exchange_write(exchange, w.text, w.bytes);
    free(w.text);
    mp_exchange_finish(exchange, 200);
}

/* ---- jobs */

static bool has_news(const struct mp_choice *choice)
{
    const struct mp_reply *r = &choice->reply;

    return r->thoughts.bytes > choice->thoughts_sent || r->content.bytes > choice->content_sent ||
           r->call_count > choice->calls_sent;
}

static void on_text(void *ctx, const char *text, size_t bytes, uint64_t tokens)
{
    struct mp_choice *choice = ctx;

    (void)tokens;
    if (is_chat(choice->exchange)) {
        if (mp_reply_push(&choice->reply, text, bytes) != MP_OK)
            mp_exchange_cancel(choice->exchange);
        if (!has_news(choice))
            return;
    }
    if (choice->exchange->request.stream)
        write_event(choice, text, bytes, NULL);
}

static void fail_all(struct mp_exchange *exchange, const struct mp_error *error)
{
    const struct mp_error kept = *error;

    mp_choices_cancel(exchange);
    mp_exchange_fail(exchange, &kept);
}

static void note_times(struct mp_server *server, const struct mp_job_end *end)
{
    mp_lock(&server->lock);
    mp_histogram_add(&server->waited, end->waited_ns);
    if (end->first_ns > 0)
        mp_histogram_add(&server->first, end->first_ns);
    mp_histogram_add(&server->all, end->all_ns);
    mp_unlock(&server->lock);
}

static void on_end(void *ctx, const struct mp_job_end *end)
{
    static const struct mp_error stopping = { MP_ERR_BUSY, "E_SERVER_STOPPING",
                                              "the server has ended before the answer" };
    struct mp_choice *choice = ctx;
    struct mp_exchange *exchange = choice->exchange;
    const struct mp_output *output = end->output;

    choice->job = NULL;
    note_times(exchange->server, end);
    if (end->error != NULL || output->finish == MP_FINISH_INTERRUPTED) {
        fail_all(exchange, end->error != NULL ? end->error : &stopping);
        return;
    }
    choice->ended = true;
    choice->finish = output->finish;
    exchange->generated_tokens += output->ids.count;
    if (choice->index % exchange->request.n == 0) {
        exchange->prompt_tokens += end->prompt_tokens;
        exchange->reused_tokens += end->reused_tokens;
    }
    if (is_chat(exchange) && mp_reply_finish(&choice->reply) != MP_OK) {
        fail_all(exchange, mp_error_last());
        return;
    }
    if (exchange->request.stream) {
        write_event(choice, NULL, 0, &choice->finish);
    } else if (!is_chat(exchange)) {
        choice->text = malloc(output->text_bytes + 1);
        if (choice->text == NULL) {
            (void)mp_fail_no_memory("a reply", output->text_bytes);
            fail_all(exchange, mp_error_last());
            return;
        }
        memcpy(choice->text, output->text, output->text_bytes + 1);
        choice->bytes = output->text_bytes;
    }
    if (--exchange->open_choices > 0)
        return;
    if (exchange->request.stream)
        end_stream(exchange);
    else
        end_object(exchange);
}

/* Of an answer. Without a number in the request, as many as there ever is memory for. */
static uint32_t most_tokens(const struct mp_exchange *exchange, size_t prompt_tokens)
{
    const uint32_t asked = exchange->request.max_tokens;
    const uint32_t allowed = exchange->server->config.max_tokens;
    const uint32_t positions = mp_batcher_positions(exchange->server->batcher);
    const uint32_t ctx = exchange->server->config.session->engine_config.ctx;

    if (asked > 0)
        return asked < allowed ? asked : allowed;
    return positions < ctx && prompt_tokens < positions && positions - prompt_tokens < allowed
               ? (uint32_t)(positions - prompt_tokens)
               : allowed;
}

enum mp_status mp_choices_submit(struct mp_exchange *exchange)
{
    const struct mp_request *request = &exchange->request;
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; i < exchange->choice_count && status == MP_OK; i++) {
        const struct mp_ids *prompt = &exchange->prompts[i / request->n];
        const struct mp_job_config job = {
            .prompt = prompt->ids,
            .prompt_count = prompt->count,
            .sampling = request->sampling,
            .choice = i % request->n,
            .max_tokens = most_tokens(exchange, prompt->count),
            .new_text = is_chat(exchange),
            .ignore_eos = request->ignore_eos,
            .stops = request->stops,
            .stop_count = request->stop_count,
            .shown = exchange->server->words.ids,
            .shown_count = exchange->style != NULL ? exchange->server->words.count : 0,
            .on_text = on_text,
            .on_end = on_end,
            .restrict_logits = exchange->grammar != NULL ? mp_format_restrict : NULL,
            .chosen = exchange->grammar != NULL ? mp_format_chosen : NULL,
            .on_token = request->logprobs ? mp_logprobs_note : NULL,
            .ctx = &exchange->choices[i],
        };

        mp_reply_begin(&exchange->choices[i].reply, exchange->style, request->tools,
                       exchange->thinking);
        status = mp_batcher_submit(exchange->server->batcher, &job, &exchange->choices[i].job);
    }
    if (status != MP_OK)
        mp_choices_cancel(exchange);
    return status;
}

void mp_choices_cancel(struct mp_exchange *exchange)
{
    for (uint32_t i = 0; i < exchange->choice_count; i++) {
        if (exchange->choices[i].job != NULL)
            mp_batcher_cancel(exchange->server->batcher, exchange->choices[i].job);
        exchange->choices[i].job = NULL;
    }
}
