#ifndef MP_SERVE_SERVER_H
#define MP_SERVE_SERVER_H

#include <signal.h>

#include "engine/serve/request.h"
#include "engine/session/session.h"
#include "engine/text/chat.h"

/*
 * A server for one session: exchanges (a request and its reply) come from any thread, and one
 * thread, that of mp_server_run(), moves them through a batcher. How requests arrive and replies
 * leave is http.h's.
 *
 * Thread safety: as said per function.
 */
struct mp_server;

/* How often each expert was chosen: mp_heat_routed() is the engine's `routed`, with it as ctx. */
struct mp_heat {
    uint32_t experts;
    uint64_t *count; // (layers, experts), or NULL: not counted
};
void mp_heat_routed(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k, const uint32_t *experts,
                    const float *weights);

struct mp_server_config {
    struct mp_session *session; /* with tokenizer and engine; outlives the server */
    struct mp_heat *heat;       /* or NULL; has numbers as long as there is the server */
    const struct mp_chat *chat; /* NULL: the model has no chat format that is known */
    const char *chat_error;     /* why not */
    const char *model_name;
    struct mp_sampling sampling; /* for what a request does not say */
    uint32_t max_tokens;         /* of one answer */
    uint32_t waiting_max;        /* answers that wait for a sequence */
    uint32_t chunk_tokens;       /* see struct mp_batcher_config */
    uint32_t grace_s;            /* for answers in progress when the server is to stop */
    uint32_t answer_s;           /* the longest that an exchange may take */
    struct mp_clock *clock;
    /* Or NULL: what there is to do for `ns` while there is no answer to work on. */
    enum mp_status (*idle)(void *ctx, uint64_t ns);
    bool fixed_budget;                 /* requests do not change it */
    const volatile sig_atomic_t *stop; /* not 0: end in order */
    volatile sig_atomic_t *reload;     /* not 0: call on_reload and clear it */
    /* All from mp_server_run(). stopping: no new request is to be accepted. */
    void (*on_reload)(void *ctx);
    void (*on_stopping)(void *ctx);
    void *ctx;
};

enum mp_status mp_server_create(const struct mp_server_config *config,
                                struct mp_server **server_p) MP_MUST_CHECK;

/* No exchange may be left on the side that submitted it. NULL is allowed. */
void mp_server_destroy(struct mp_server *server);

/*
 * Work until config.stop is set and the answers in progress have ended, or the grace is over. An
 * error that ends the server: the device is lost.
 */
enum mp_status mp_server_run(struct mp_server *server) MP_MUST_CHECK;

/* ---- any thread, from here on */

const char *mp_server_model_name(const struct mp_server *server);

/* An answer in text/plain for /metrics, or JSON for /v1/models and the one model, as a new text. */
enum mp_status mp_server_metrics(struct mp_server *server, char **text_p,
                                 size_t *bytes_p) MP_MUST_CHECK;
enum mp_status mp_server_models(struct mp_server *server, char **text_p,
                                size_t *bytes_p) MP_MUST_CHECK;
enum mp_status mp_server_model(struct mp_server *server, char **text_p,
                               size_t *bytes_p) MP_MUST_CHECK;

/* With --memory: how it is divided now. False: it is not. */
struct mp_memory_share_stats;
bool mp_server_memory(struct mp_server *server, struct mp_memory_share_stats *stats_p);

bool mp_server_stopping(struct mp_server *server);

/* Numbers of the HTTP side, for /metrics. */
enum mp_server_event { MP_SERVER_REQUEST, MP_SERVER_REFUSED, MP_SERVER_GONE, MP_SERVER_EVENTS };
void mp_server_count(struct mp_server *server, enum mp_server_event event);

struct mp_exchange;

/*
 * Parse a request's body and queue it. `wake` is called, from any thread and with a lock of the
 * server held, when more of the reply is there after mp_exchange_read() had nothing: it must
 * not call back into the server. On failure there is no exchange; the status of the reply is
 * mp_reply_status() of the error.
 */
struct mp_exchange_config {
    enum mp_request_kind kind;
    const char *body; // (bytes)
    size_t bytes;
    void (*wake)(void *ctx);
    void (*sleep)(void *ctx); /* under the same lock: wake will be called */
    void *ctx;
};
enum mp_status mp_exchange_begin(struct mp_server *server, const struct mp_exchange_config *config,
                                 struct mp_exchange **exchange_p) MP_MUST_CHECK;

/* True for a stream of events, which begins at once. */
bool mp_exchange_streams(const struct mp_exchange *exchange);

/* The status of a reply that is complete; 0: it is not, and config.sleep was called. */
unsigned mp_exchange_status(struct mp_exchange *exchange);

enum mp_read { MP_READ_BYTES, MP_READ_LATER, MP_READ_END, MP_READ_BROKEN };

/* Take up to `max` bytes of the reply. LATER: config.sleep was called. BROKEN: it was cancelled. */
enum mp_read mp_exchange_read(struct mp_exchange *exchange, char *out, size_t max, size_t *bytes_p);

/* The reply that is complete, as a new text to be freed, or NULL: no memory. */
char *mp_exchange_take(struct mp_exchange *exchange, size_t *bytes_p);

/* The client is gone: what is left to do is not done. wake is called if it is owed. */
void mp_exchange_cancel(struct mp_exchange *exchange);

/* The other side has done with it. */
void mp_exchange_end(struct mp_exchange *exchange);

/* The status of HTTP for an error, and a new JSON text that says it. NULL: no memory. */
unsigned mp_reply_status(const struct mp_error *error);
char *mp_reply_error(const struct mp_error *error, unsigned status, size_t *bytes_p);

#endif
