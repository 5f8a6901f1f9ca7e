#ifndef MP_SERVE_HTTP_INT_H
#define MP_SERVE_HTTP_INT_H

#include <netinet/in.h>
#include <stdatomic.h>

#include "engine/serve/http.h"
#include "engine/serve/http_library.h"
#include "vmm/base/lock.h"

/*
 * Private to http.c (the server and its connections), http_daemon.c (libmicrohttpd's threads),
 * http_call.c (one request) and http_access.c (who may ask).
 */
struct mp_http_call;

/*
 * A certificate is a daemon's for life. One that is renewed gets a daemon of its own on the same
 * socket; the one before is retired: it accepts nothing more and is stopped when its connections
 * have ended. So there are soon no more daemons than connections, and one.
 */
struct mp_http_daemon {
    struct mp_http_daemon *next; /* MP_GUARDED_BY(http->lock): of those that are retired */
    struct mp_http *http;
    struct MHD_Daemon *mhd;
    _Atomic int waker; /* the connection that makes its thread quiesce it; -1: none */
    int listening; /* once it is quiesced, for its end; of the thread that quiesces it, then stops
                    */
    uint32_t open; /* MP_GUARDED_BY(http->lock): connections */
    bool retired;  /* MP_GUARDED_BY(http->lock) */
    bool quiesced; /* MP_GUARDED_BY(http->lock): accepts nothing more */
};

/* One connection, as long as it is open. */
struct mp_http_connection {
    struct mp_http_connection *next;
    struct mp_http_daemon *daemon;
    int fd;
    uint64_t since_ns;         /* opened, or the last call ended */
    struct mp_http_call *call; /* complete and not answered yet; or NULL */
};

struct mp_http {
    struct mp_http_config config;
    bool has_keys, is_v6;
    bool refusing; /* of the thread that renews and refuses */
    uint16_t port;
    pthread_t watcher;
    struct mp_mutex lock;
    struct mp_cond wake;
    struct mp_http_daemon *daemon;          /* of the thread that renews: accepts connections */
    struct mp_http_daemon *retired;         /* MP_GUARDED_BY(lock) */
    struct mp_http_connection *connections; /* MP_GUARDED_BY(lock) */
    uint32_t connection_count;              /* MP_GUARDED_BY(lock) */
    struct mp_keys *keys;                   /* MP_GUARDED_BY(lock) */
    bool stopping;                          /* MP_GUARDED_BY(lock) */
};

/* A request from its first line to the end of its reply. */
struct mp_http_call {
    struct mp_http *http;
    struct MHD_Connection *connection;
    struct mp_http_connection *owner;
    const struct mp_http_route *route;
    char *body; // (bytes)
    size_t bytes, capacity;
    bool too_large, no_memory;
    struct mp_exchange *exchange;
};

/* Where a daemon listens: at an address, or with a socket, which is its own from then on. */
struct mp_http_listen {
    int fd; /* or MHD_INVALID_SOCKET */
    const struct sockaddr *address;
};

struct mp_http_tls {
    const char *cert, *key; /* read at the start only; NULL: without TLS */
};

/* The first one. */
enum mp_status mp_http_daemon_start(struct mp_http *http, const struct mp_http_listen *listen,
                                    struct mp_http_daemon **daemon_p) MP_MUST_CHECK;

/* Another one, on the socket of `other`: both accept then. */
enum mp_status mp_http_daemon_start_beside(const struct mp_http_daemon *other,
                                           const struct mp_http_tls *tls,
                                           struct mp_http_daemon **daemon_p) MP_MUST_CHECK;

/* Where it listens; MHD_INVALID_SOCKET: it does not say. */
int mp_http_daemon_socket(const struct mp_http_daemon *daemon);

/* It is retired: it accepts nothing more, as soon as its thread has been there; its connections go
 * on. The lock must not be held. */
void mp_http_daemon_quiesce(struct mp_http_daemon *daemon);

/* In its thread, when a connection is added. True: that was the one which quiesces it. */
bool mp_http_daemon_quiesces(struct mp_http_daemon *daemon, int fd);

/* Connections that are left are closed. The lock must not be held. */
void mp_http_daemon_stop(struct mp_http_daemon *daemon);

/* The callbacks of a daemon. */
void mp_http_connected(void *daemon, struct MHD_Connection *connection, void **socket_context,
                       enum MHD_ConnectionNotificationCode code);
enum MHD_Result mp_http_answer(void *http, struct MHD_Connection *connection, const char *url,
                               const char *method, const char *version, const char *upload,
                               size_t *upload_bytes, void **call_p);
void mp_http_completed(void *http, struct MHD_Connection *connection, void **call_p,
                       enum MHD_RequestTerminationCode why);

/* 0: the request may go on; else the status of a refusal, whose text is the error record's. */
unsigned mp_http_check_access(struct mp_http *http, struct MHD_Connection *connection,
                              bool is_open);

#endif
