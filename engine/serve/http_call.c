/*
 * One request of HTTP: its path, its body, and its reply as one piece or as a stream.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/serve/http_int.h"
#include "engine/serve/page.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/base/text.h"

#define STREAM_BLOCK_BYTES 16384

enum answer {
    ANSWER_EXCHANGE,
    ANSWER_PAGE,
    ANSWER_HEALTH,
    ANSWER_METRICS,
    ANSWER_MODELS,
    ANSWER_MODEL
};

struct mp_http_route {
    const char *method, *path; /* with / at its end: before the model's name */
    enum answer answer;
    enum mp_request_kind kind; /* of an exchange */
    bool is_open;              /* without a key */
};

/* A path has one method. */
static const struct mp_http_route routes[] = {
    { "POST", "/v1/chat/completions", ANSWER_EXCHANGE, MP_REQUEST_CHAT, false },
    { "POST", "/v1/completions", ANSWER_EXCHANGE, MP_REQUEST_COMPLETION, false },
    { "GET", "/v1/models", ANSWER_MODELS, 0, false },
    { "GET", "/v1/models/", ANSWER_MODEL, 0, false },
    { "POST", "/tokenize", ANSWER_EXCHANGE, MP_REQUEST_TOKENIZE, false },
    { "POST", "/detokenize", ANSWER_EXCHANGE, MP_REQUEST_DETOKENIZE, false },
    { "GET", "/health", ANSWER_HEALTH, 0, true },
    { "GET", "/metrics", ANSWER_METRICS, 0, false },
    { "GET", "/moepager/state", ANSWER_EXCHANGE, MP_REQUEST_STATE, false },
    { "POST", "/moepager/budget", ANSWER_EXCHANGE, MP_REQUEST_BUDGET, false },
    { "GET", "/", ANSWER_PAGE, 0, true },
};

static bool leads(const struct mp_http_route *route, const char *path, const char *model)
{
    const size_t bytes = strlen(route->path);

    if (route->answer == ANSWER_MODEL)
        return strncmp(route->path, path, bytes) == 0 && strcmp(path + bytes, model) == 0;
    return strcmp(route->path, path) == 0;
}

static const struct mp_http_route *find_route(const char *path, const char *model)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(routes); i++) {
        if (leads(&routes[i], path, model))
            return &routes[i];
    }
    return NULL;
}

/* HEAD is GET, without the body, which the library leaves out. */
static bool allows(const struct mp_http_route *route, const char *method)
{
    return strcmp(route->method, strcmp(method, "HEAD") == 0 ? "GET" : method) == 0;
}

static const char *allowed_methods(const struct mp_http_route *route)
{
    return allows(route, "HEAD") ? "GET, HEAD" : route->method;
}

/* ---- replies */

/* Connections of a daemon that is retired end with their reply, so that it can end. */
static void end_if_retired(struct mp_http_call *call, struct MHD_Response *response)
{
    bool retired;

    mp_lock(&call->http->lock);
    retired = call->owner->daemon->retired;
    mp_unlock(&call->http->lock);
    if (retired)
        mp_mhd.add_response_header(response, "Connection", "close");
}

/* Queue a reply with this body, which is freed later if it is `ours`. */
static enum MHD_Result reply(struct mp_http_call *call, unsigned status, const char *type,
                             char *body, size_t bytes, bool ours)
{
    struct MHD_Response *response = mp_mhd.create_response_from_buffer(
        bytes, body, ours ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    enum MHD_Result result;

    if (response == NULL) {
        if (ours)
            free(body);
        return MHD_NO;
    }
    mp_mhd.add_response_header(response, "Content-Type", type);
    mp_mhd.add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (strncmp(type, "text/html", 9) == 0)
        mp_mhd.add_response_header(response, "Content-Security-Policy", MP_PAGE_POLICY);
    if (status == 401)
        mp_mhd.add_response_header(response, "WWW-Authenticate", "Bearer");
    if (status == 405)
        mp_mhd.add_response_header(response, "Allow", allowed_methods(call->route));
    if (status == 503)
        mp_mhd.add_response_header(response, "Retry-After", "1");
    end_if_retired(call, response);
    result = mp_mhd.queue_response(call->connection, status, response);
    mp_mhd.destroy_response(response);
    return result;
}

/* The thread's error as a reply. */
static enum MHD_Result refuse(struct mp_http_call *call, unsigned status)
{
    size_t bytes = 0;
    char *text = mp_reply_error(mp_error_last(), status, &bytes);

    mp_server_count(call->http->config.server, MP_SERVER_REFUSED);
    return text != NULL ? reply(call, status, "application/json", text, bytes, true) : MHD_NO;
}

static ssize_t read_stream(void *ctx, uint64_t position, char *out, size_t max)
{
    struct mp_http_call *call = ctx;
    size_t bytes = 0;

    (void)position;
    switch (mp_exchange_read(call->exchange, out, max, &bytes)) {
    case MP_READ_BYTES: return (ssize_t)bytes;
    case MP_READ_LATER: return 0; /* suspended */
    case MP_READ_END: return MHD_CONTENT_READER_END_OF_STREAM;
    default: return MHD_CONTENT_READER_END_WITH_ERROR;
    }
}

static enum MHD_Result reply_stream(struct mp_http_call *call)
{
    struct MHD_Response *response = mp_mhd.create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, call, NULL);
    enum MHD_Result result;

    if (response == NULL)
        return MHD_NO;
    mp_mhd.add_response_header(response, "Content-Type", "text/event-stream");
    mp_mhd.add_response_header(response, "Cache-Control", "no-cache");
    end_if_retired(call, response);
    result = mp_mhd.queue_response(call->connection, 200, response);
    mp_mhd.destroy_response(response);
    return result;
}

/* The whole reply, or nothing yet: then the connection sleeps, and this is called again. */
static enum MHD_Result reply_whole(struct mp_http_call *call)
{
    const unsigned status = mp_exchange_status(call->exchange);
    size_t bytes = 0;
    char *text;

    if (status == 0)
        return MHD_YES;
    text = mp_exchange_take(call->exchange, &bytes);
    if (text == NULL)
        return MHD_NO;
    return reply(call, status, "application/json", text, bytes, true);
}

static enum MHD_Result reply_text(struct mp_http_call *call, const char *type,
                                  enum mp_status (*make)(struct mp_server *server, char **text_p,
                                                         size_t *bytes_p))
{
    size_t bytes = 0;
    char *text = NULL;

    if (make(call->http->config.server, &text, &bytes) != MP_OK)
        return refuse(call, 503);
    return reply(call, 200, type, text, bytes, true);
}

static enum MHD_Result reply_health(struct mp_http_call *call)
{
    static char ok[] = "{\"status\":\"ok\"}\n", stopping[] = "{\"status\":\"stopping\"}\n";

    if (mp_server_stopping(call->http->config.server))
        return reply(call, 503, "application/json", stopping, sizeof(stopping) - 1, false);
    return reply(call, 200, "application/json", ok, sizeof(ok) - 1, false);
}

/* ---- exchanges */

static void wake(void *ctx)
{
    mp_mhd.resume_connection(((struct mp_http_call *)ctx)->connection);
}

static void put_to_sleep(void *ctx)
{
    mp_mhd.suspend_connection(((struct mp_http_call *)ctx)->connection);
}

static void set_busy(struct mp_http_call *call)
{
    mp_lock(&call->http->lock);
    call->owner->call = call;
    mp_unlock(&call->http->lock);
}

static enum MHD_Result begin_exchange(struct mp_http_call *call)
{
    const struct mp_exchange_config config = {
        .kind = call->route->kind,
        .body = call->body != NULL ? call->body : "",
        .bytes = call->bytes,
        .wake = wake,
        .sleep = put_to_sleep,
        .ctx = call,
    };
    const enum mp_status status =
        mp_exchange_begin(call->http->config.server, &config, &call->exchange);

    if (status != MP_OK)
        return refuse(call, mp_reply_status(mp_error_last()));
    free(call->body);
    call->body = NULL;
    set_busy(call);
    return mp_exchange_streams(call->exchange) ? reply_stream(call) : reply_whole(call);
}

/* All of the request is there. */
static enum MHD_Result answer_call(struct mp_http_call *call)
{
    if (call->too_large) {
        (void)mp_fail(MP_ERR_CONFIG, "E_REQUEST_LARGE",
                      "the request has more than %llu bytes; the server allows no more",
                      (unsigned long long)call->http->config.request_bytes_max);
        return refuse(call, 413);
    }
    if (call->no_memory) {
        (void)mp_fail_no_memory("a request", call->bytes);
        return refuse(call, 503);
    }
    switch (call->route->answer) {
    case ANSWER_EXCHANGE: return call->exchange != NULL ? reply_whole(call) : begin_exchange(call);
    case ANSWER_PAGE:
        return reply(call, 200, "text/html; charset=utf-8", (char *)mp_page, mp_page_bytes, false);
    case ANSWER_HEALTH: return reply_health(call);
    case ANSWER_METRICS: return reply_text(call, "text/plain; version=0.0.4", mp_server_metrics);
    case ANSWER_MODELS: return reply_text(call, "application/json", mp_server_models);
    case ANSWER_MODEL: return reply_text(call, "application/json", mp_server_model);
    }
    return MHD_NO;
}

/* More of the body. What is too much is read and dropped. */
static void take_body(struct mp_http_call *call, const char *text, size_t bytes)
{
    if (call->too_large || call->no_memory)
        return;
    if (bytes > call->http->config.request_bytes_max - call->bytes) {
        call->too_large = true;
        return;
    }
    if (!mp_text_reserve(&call->body, &call->capacity, call->bytes + bytes)) {
        call->no_memory = true;
        return;
    }
    memcpy(call->body + call->bytes, text, bytes);
    call->bytes += bytes;
}

static bool says_too_large(const struct mp_http_call *call)
{
    const char *length =
        mp_mhd.lookup_connection_value(call->connection, MHD_HEADER_KIND, "Content-Length");

    return length != NULL && strtoull(length, NULL, 10) > call->http->config.request_bytes_max;
}

static struct mp_http_call *new_call(struct mp_http *http, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *owner =
        mp_mhd.get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct mp_http_call *call =
        owner != NULL && owner->socket_context != NULL ? calloc(1, sizeof(*call)) : NULL;

    if (call == NULL)
        return NULL;
    call->http = http;
    call->connection = connection;
    call->owner = owner->socket_context;
    return call;
}

static unsigned refuse_path(const char *path)
{
    char quoted[MP_QUOTE_BYTES], known[256] = "";

    for (size_t i = 0; i < MP_ARRAY_LEN(routes); i++) {
        const size_t used = strlen(known);

        snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "", routes[i].path);
    }
    (void)mp_fail(MP_ERR_CONFIG, "E_NO_PATH", "there is no path '%s'; known are %s",
                  mp_quote(quoted, path, strlen(path)), known);
    return 404;
}

/* The request's head: what can be refused is, before a body is read. */
static enum MHD_Result begin_call(struct mp_http_call *call, const char *method, const char *path)
{
    unsigned refused;

    mp_server_count(call->http->config.server, MP_SERVER_REQUEST);
    call->route = find_route(path, mp_server_model_name(call->http->config.server));
    refused = mp_http_check_access(call->http, call->connection,
                                   call->route != NULL && call->route->is_open);
    if (refused == 0 && call->route == NULL) {
        refused = refuse_path(path);
    } else if (refused == 0 && !allows(call->route, method)) {
        refused = 405;
        (void)mp_fail(MP_ERR_CONFIG, "E_METHOD", "this path takes %s",
                      allowed_methods(call->route));
    }
    if (refused != 0)
        return refuse(call, refused);
    if (says_too_large(call)) {
        call->too_large = true;
        return answer_call(call);
    }
    return MHD_YES;
}

enum MHD_Result mp_http_answer(void *http, struct MHD_Connection *connection, const char *url,
                               const char *method, const char *version, const char *upload,
                               size_t *upload_bytes, void **call_p)
{
    struct mp_http_call *call = *call_p;

    (void)version;
    if (call == NULL) {
        *call_p = call = new_call(http, connection);
        return call != NULL ? begin_call(call, method, url) : MHD_NO;
    }
    if (*upload_bytes > 0) {
        take_body(call, upload, *upload_bytes);
        *upload_bytes = 0;
        return MHD_YES;
    }
    return answer_call(call);
}

void mp_http_completed(void *ctx, struct MHD_Connection *connection, void **call_p,
                       enum MHD_RequestTerminationCode why)
{
    struct mp_http *http = ctx;
    struct mp_http_call *call = *call_p;

    (void)connection;
    if (call == NULL)
        return;
    mp_lock(&http->lock);
    call->owner->call = NULL;
    call->owner->since_ns = mp_clock_now_ns(mp_clock_monotonic());
    mp_unlock(&http->lock);
    if (call->exchange != NULL) {
        if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK)
            mp_server_count(http->config.server, MP_SERVER_GONE);
        mp_exchange_end(call->exchange);
    }
    free(call->body);
    free(call);
    *call_p = NULL;
}
