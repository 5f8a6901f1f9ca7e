/*
 * Exchanges: requests on their way in, replies on their way out, and who holds them. What a reply
 * says is choice.c's and state.c's.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/serve/server_int.h"
#include "vmm/base/clock.h"
#include "vmm/base/error.h"
#include "vmm/base/text.h"

/* A stream whose reader is this far behind is given up. */
#define UNREAD_BYTES_MAX (1u << 20)

static void free_choice(struct mp_choice *choice)
{
    free(choice->text);
    mp_reply_free(&choice->reply);
    free(choice->logprobs.list);
}

static void exchange_free(struct mp_exchange *exchange)
{
    for (uint32_t i = 0; exchange->prompts != NULL && i < exchange->prompt_count; i++)
        mp_ids_free(&exchange->prompts[i]);
    for (uint32_t i = 0; exchange->choices != NULL && i < exchange->choice_count; i++)
        free_choice(&exchange->choices[i]);
    mp_format_close(exchange);
    free(exchange->prompts);
    free(exchange->choices);
    free(exchange->out);
    mp_request_free(&exchange->request);
    free(exchange);
}

void mp_exchange_put(struct mp_exchange *exchange)
{
    struct mp_server *server = exchange->server;
    bool last;

    mp_lock(&server->lock);
    last = --exchange->refs == 0;
    mp_unlock(&server->lock);
    if (last)
        exchange_free(exchange);
}

/* ---- replies */

static void wake_locked(struct mp_exchange *exchange)
{
    mp_assert_held(&exchange->server->lock);
    if (exchange->asleep) {
        exchange->asleep = false;
        exchange->config.wake(exchange->config.ctx);
    }
}

static bool append_locked(struct mp_exchange *exchange, const char *text, size_t bytes)
{
    mp_assert_held(&exchange->server->lock);
    if (exchange->sent > 0) {
        exchange->out_bytes -= exchange->sent;
        memmove(exchange->out, exchange->out + exchange->sent, exchange->out_bytes);
        exchange->sent = 0;
    }
    if (exchange->request.stream && exchange->out_bytes > UNREAD_BYTES_MAX)
        return false;
    if (!mp_text_reserve(&exchange->out, &exchange->out_capacity, exchange->out_bytes + bytes))
        return false;
    memcpy(exchange->out + exchange->out_bytes, text, bytes);
    exchange->out_bytes += bytes;
    return true;
}

bool mp_exchange_write(struct mp_exchange *exchange, const char *text, size_t bytes)
{
    bool written;

    mp_lock(&exchange->server->lock);
    written = !exchange->canceled && append_locked(exchange, text, bytes);
    if (!written)
        exchange->canceled = true;
    wake_locked(exchange);
    mp_unlock(&exchange->server->lock);
    return written;
}

void mp_exchange_finish(struct mp_exchange *exchange, unsigned status)
{
    mp_lock(&exchange->server->lock);
    exchange->status = status;
    exchange->ended = true;
    wake_locked(exchange);
    mp_unlock(&exchange->server->lock);
}

void mp_exchange_fail(struct mp_exchange *exchange, const struct mp_error *error)
{
    const unsigned status = mp_reply_status(error);
    size_t bytes = 0;
    char *text = mp_reply_error(error, status, &bytes);

    if (text != NULL) {
        if (exchange->request.stream)
            (void)(mp_exchange_write(exchange, "data: ", 6) &&
                   mp_exchange_write(exchange, text, bytes) &&
                   mp_exchange_write(exchange, "\n", 1));
        else
            (void)mp_exchange_write(exchange, text, bytes);
        free(text);
    }
    mp_exchange_finish(exchange, status);
}

bool mp_exchange_streams(const struct mp_exchange *exchange)
{
    return exchange->request.stream;
}

unsigned mp_exchange_status(struct mp_exchange *exchange)
{
    unsigned status;

    mp_lock(&exchange->server->lock);
    status = exchange->canceled && !exchange->ended ? 503 : exchange->status;
    if (status == 0) {
        exchange->asleep = true;
        exchange->config.sleep(exchange->config.ctx);
    }
    mp_unlock(&exchange->server->lock);
    return status;
}

char *mp_exchange_take(struct mp_exchange *exchange, size_t *bytes_p)
{
    static const struct mp_error lost = { MP_ERR_NO_MEMORY, "E_NO_MEMORY",
                                          "no memory for the reply" };
    char *text;

    mp_lock(&exchange->server->lock);
    text = exchange->out;
    *bytes_p = exchange->out_bytes;
    exchange->out = NULL;
    exchange->out_bytes = exchange->out_capacity = 0;
    mp_unlock(&exchange->server->lock);
    return text != NULL ? text : mp_reply_error(&lost, 503, bytes_p);
}

enum mp_read mp_exchange_read(struct mp_exchange *exchange, char *out, size_t max, size_t *bytes_p)
{
    enum mp_read read = MP_READ_BYTES;
    size_t bytes;

    mp_lock(&exchange->server->lock);
    bytes = exchange->out_bytes - exchange->sent;
    bytes = bytes < max ? bytes : max;
    if (bytes > 0) {
        memcpy(out, exchange->out + exchange->sent, bytes);
        exchange->sent += bytes;
    } else if (exchange->ended) {
        read = MP_READ_END;
    } else if (exchange->canceled) {
        read = MP_READ_BROKEN;
    } else {
        read = MP_READ_LATER;
        exchange->asleep = true;
        exchange->config.sleep(exchange->config.ctx);
    }
    mp_unlock(&exchange->server->lock);
    *bytes_p = bytes;
    return read;
}

void mp_exchange_cancel(struct mp_exchange *exchange)
{
    mp_lock(&exchange->server->lock);
    if (!exchange->ended)
        exchange->canceled = true;
    wake_locked(exchange);
    mp_cond_signal(&exchange->server->work);
    mp_unlock(&exchange->server->lock);
}

void mp_exchange_end(struct mp_exchange *exchange)
{
    mp_lock(&exchange->server->lock);
    exchange->asleep = false; /* nobody is there to be woken */
    mp_unlock(&exchange->server->lock);
    mp_exchange_cancel(exchange);
    mp_exchange_put(exchange);
}

/* ---- requests */

/* An answer that must be JSON is all content. */
static void choose_style(struct mp_exchange *exchange, const struct mp_spans *spans)
{
    const struct mp_span *last = spans->count > 0 ? &spans->spans[spans->count - 1] : NULL;

    if (exchange->request.format != MP_FORMAT_TEXT)
        return;
    exchange->style = mp_chat_calls(exchange->server->config.chat);
    exchange->thinking = last != NULL && last->special &&
                         mp_calls_begins_thoughts(exchange->style, last->text, last->bytes);
}

static enum mp_status encode_chat(struct mp_exchange *exchange)
{
    const struct mp_server_config *c = &exchange->server->config;
    const struct mp_request *request = &exchange->request;
    const struct mp_chat_input input = { request->messages, request->tools, request->options,
                                         .answer = true };
    const struct mp_calls_style *style;
    struct mp_spans spans = { 0 };
    enum mp_status status;

    if (c->chat == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_CHAT_NONE", "%s", c->chat_error);
    style = mp_chat_calls(c->chat);
    if (request->tools != NULL && (style == NULL || style->kind == MP_CALLS_NONE))
        return mp_fail(MP_ERR_CONFIG, "E_CHAT_TOOLS",
                       "the model's chat format has no calls of tools that are known");
    status = mp_chat_render_json(c->chat, &input, &spans);
    if (status == MP_OK)
        status = mp_tokenizer_encode_spans(c->session->tokenizer, spans.spans, spans.count, 0,
                                           &exchange->prompts[0]);
    if (status == MP_OK)
        choose_style(exchange, &spans);
    mp_spans_free(&spans);
    return status;
}

static enum mp_status copy_ids(const struct mp_request_prompt *prompt, uint32_t vocab,
                               struct mp_ids *ids)
{
    for (size_t i = 0; i < prompt->count; i++) {
        if (prompt->ids[i] >= vocab)
            return mp_fail(MP_ERR_CONFIG, "E_REQUEST",
                           "token %u of the request is not one of the model's %u", prompt->ids[i],
                           vocab);
    }
    ids->ids = malloc(prompt->count * sizeof(uint32_t) + 1);
    if (ids->ids == NULL)
        return mp_fail_no_memory("a prompt", prompt->count * sizeof(uint32_t));
    if (prompt->count > 0)
        memcpy(ids->ids, prompt->ids, prompt->count * sizeof(uint32_t));
    ids->count = ids->capacity = prompt->count;
    return MP_OK;
}

static enum mp_status encode_prompts(struct mp_exchange *exchange)
{
    const struct mp_session *session = exchange->server->config.session;
    const struct mp_request *request = &exchange->request;
    const unsigned flags =
        request->kind == MP_REQUEST_COMPLETION || request->add_special ? MP_ENCODE_ADD_SPECIAL : 0;
    enum mp_status status = MP_OK;

    if (request->kind == MP_REQUEST_CHAT)
        return encode_chat(exchange);
    for (uint32_t i = 0; i < request->prompt_count && status == MP_OK; i++) {
        const struct mp_request_prompt *prompt = &request->prompts[i];

        status = prompt->text == NULL
                     ? copy_ids(prompt, session->model.vocab, &exchange->prompts[i])
                     : mp_tokenizer_encode(session->tokenizer, prompt->text, prompt->bytes, flags,
                                           &exchange->prompts[i]);
    }
    return status;
}

/* What the batcher would refuse later, when a stream has begun. */
static enum mp_status check_prompts(const struct mp_exchange *exchange)
{
    const struct mp_engine_config *engine = &exchange->server->config.session->engine_config;
    const struct mp_request *request = &exchange->request;

    for (uint32_t i = 0; i < exchange->prompt_count; i++) {
        if (exchange->prompts[i].count == 0)
            return mp_fail(MP_ERR_CONFIG, "E_PROMPT_EMPTY",
                           "the prompt is empty; give at least one token");
        if (exchange->prompts[i].count >= engine->ctx)
            return mp_fail(MP_ERR_CONFIG, "E_PROMPT_LONG",
                           "the prompt has %zu tokens, the context holds %u; shorten the prompt, "
                           "or start the server with a larger --ctx",
                           exchange->prompts[i].count, engine->ctx);
    }
    return mp_stops_check(request->stops, request->stop_count);
}

/* The ids of a text, or the text of ids: needs no engine. */
static enum mp_status reply_tokens(struct mp_exchange *exchange)
{
    const struct mp_tokenizer *tok = exchange->server->config.session->tokenizer;
    const struct mp_ids none = { 0 };
    const struct mp_ids *ids = exchange->prompt_count > 0 ? &exchange->prompts[0] : &none;
    struct mp_writing w;
    size_t bytes = 0;
    char *text = NULL;
    enum mp_status status = MP_OK;

    if (exchange->request.kind == MP_REQUEST_DETOKENIZE) {
        status = mp_tokenizer_decode(tok, ids->ids, ids->count, 0, &text, &bytes);
        if (status == MP_ERR_INVALID) /* an id that is none: the client's fault, not ours */
            status = mp_fail(MP_ERR_CONFIG, "E_REQUEST", "the request has a number of no token");
    }
    if (status == MP_OK)
        status = mp_writing_begin(&w, false);
    if (status == MP_OK) {
        mp_json_object_begin(&w.json, NULL);
        if (exchange->request.kind == MP_REQUEST_DETOKENIZE) {
            mp_json_put_string_n(&w.json, "content", text, bytes);
        } else {
            mp_json_array_begin(&w.json, "tokens");
            for (size_t i = 0; i < ids->count; i++)
                mp_json_put_u64(&w.json, NULL, ids->ids[i]);
            mp_json_array_end(&w.json);
        }
        mp_json_object_end(&w.json);
        status = mp_writing_end(&w);
    }
    free(text);
    if (status != MP_OK)
        return status;
    (void)mp_exchange_write(exchange, w.text, w.bytes);
    free(w.text);
    mp_exchange_finish(exchange, 200);
    return MP_OK;
}

static enum mp_status make_choices(struct mp_exchange *exchange)
{
    const bool generates = exchange->request.kind == MP_REQUEST_CHAT ||
                           exchange->request.kind == MP_REQUEST_COMPLETION;

    exchange->prompt_count =
        exchange->request.kind == MP_REQUEST_CHAT ? 1 : exchange->request.prompt_count;
    exchange->choice_count = generates ? exchange->prompt_count * exchange->request.n : 0;
    exchange->prompts = calloc(exchange->prompt_count + 1, sizeof(*exchange->prompts));
    exchange->choices = calloc(exchange->choice_count + 1, sizeof(*exchange->choices));
    if (exchange->prompts == NULL || exchange->choices == NULL)
        return mp_fail_no_memory("a request", exchange->choice_count * sizeof(struct mp_choice));
    for (uint32_t i = 0; i < exchange->choice_count; i++)
        exchange->choices[i] = (struct mp_choice){ .exchange = exchange, .index = i };
    exchange->open_choices = exchange->choice_count;
    return MP_OK;
}

static enum mp_status prepare(struct mp_exchange *exchange)
{
    const struct mp_exchange_config *c = &exchange->config;
    enum mp_status status = MP_OK;

    if (c->kind == MP_REQUEST_STATE)
        exchange->request.kind = c->kind;
    else
        status = mp_request_parse(c->kind, c->body, c->bytes, &exchange->server->config.sampling,
                                  &exchange->request);
    if (status == MP_OK)
        status = make_choices(exchange);
    if (status == MP_OK)
        status = encode_prompts(exchange);
    if (status == MP_OK)
        status = mp_format_open(exchange);
    if (status == MP_OK && exchange->choice_count > 0)
        status = check_prompts(exchange);
    return status;
}

/* In line for the loop. */
static enum mp_status enqueue(struct mp_exchange *exchange)
{
    struct mp_server *server = exchange->server;
    enum mp_status status = MP_OK;
    const uint32_t sequences = server->config.session->engine_config.sequences;
    uint64_t there;

    mp_lock(&server->lock);
    there = server->waiting + server->batcher_stats.waiting + server->batcher_stats.running;
    if (server->stopping) {
        status = mp_fail(MP_ERR_BUSY, "E_SERVER_STOPPING", "the server is about to end");
    } else if (there + exchange->choice_count > (uint64_t)server->config.waiting_max + sequences) {
        status = mp_fail(MP_ERR_BUSY, "E_SERVER_BUSY",
                         "%llu answers are under way or wait, at most %u may wait for %u "
                         "sequences; try again later",
                         (unsigned long long)there, server->config.waiting_max, sequences);
    } else {
        exchange->id = server->next_id++;
        exchange->refs++;
        exchange->next = server->exchanges;
        server->exchanges = exchange;
        server->waiting += exchange->choice_count;
        mp_cond_signal(&server->work);
    }
    mp_unlock(&server->lock);
    return status;
}

enum mp_status mp_exchange_begin(struct mp_server *server, const struct mp_exchange_config *config,
                                 struct mp_exchange **exchange_p)
{
    struct mp_exchange *exchange = calloc(1, sizeof(*exchange));
    enum mp_status status;

    if (exchange == NULL)
        return mp_fail_no_memory("a request", sizeof(*exchange));
    exchange->server = server;
    exchange->config = *config;
    exchange->refs = 1;
    exchange->begun_ns = mp_clock_now_ns(server->config.clock);
    exchange->created_s = mp_clock_wall_s();
    status = prepare(exchange);
    if (status == MP_OK)
        status = config->kind == MP_REQUEST_TOKENIZE || config->kind == MP_REQUEST_DETOKENIZE
                     ? reply_tokens(exchange)
                     : enqueue(exchange);
    if (status != MP_OK) {
        exchange_free(exchange);
        return status;
    }
    *exchange_p = exchange;
    return MP_OK;
}
