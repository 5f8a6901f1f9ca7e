#ifndef MP_SERVE_HTTP_H
#define MP_SERVE_HTTP_H

#include "engine/serve/keys.h"
#include "engine/serve/server.h"

/*
 * HTTP for a server, by libmicrohttpd: who may connect, how much may be sent, which path is what.
 * Threads of its own; the server's loop is not its business. Built without that library
 * (http_none.c), starting fails.
 */
struct mp_http;

struct mp_http_config {
    struct mp_server *server;       /* outlives this */
    const char *host;               /* an address, or "localhost" */
    uint16_t port;                  /* 0: any that is free */
    struct mp_keys *keys;           /* owned from then on; NULL: none is asked for */
    const char *tls_cert, *tls_key; /* texts in PEM, read at the start; NULL: without TLS */
    uint64_t request_bytes_max;
    uint32_t connections_max;
    uint32_t idle_s; /* for a connection to send a whole request, and between requests */
};

/* Before long work: MP_ERR_CONFIG for an address that is none, MP_ERR_UNSUPPORTED E_NO_HTTP. */
enum mp_status mp_http_check(const struct mp_http_config *config) MP_MUST_CHECK;

/* On failure the keys are still the caller's. */
enum mp_status mp_http_start(const struct mp_http_config *config,
                             struct mp_http **http_p) MP_MUST_CHECK;
uint16_t mp_http_port(const struct mp_http *http);
void mp_http_set_keys(struct mp_http *http, struct mp_keys *keys);

/*
 * Connections that are accepted from now on have this certificate and key (texts in PEM, read here
 * only; NULL where the server began without TLS). Those that are open keep theirs: what is under
 * way ends, and each ends after its next reply. On failure, as of texts that are no certificate, or
 * of a key that is another's, nothing has changed. MP_ERR_BUSY after mp_http_refuse().
 * Locking: by the thread that calls mp_http_refuse().
 */
enum mp_status mp_http_renew(struct mp_http *http, const char *cert, const char *key) MP_MUST_CHECK;

/* Accept no more connections; those that are there go on. */
void mp_http_refuse(struct mp_http *http);

/* All exchanges must have ended. What they still have to send is sent for `wait_s` seconds. NULL is
 * allowed. */
void mp_http_stop(struct mp_http *http, unsigned wait_s);

#endif
