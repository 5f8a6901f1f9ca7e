#ifndef MP_SERVE_HTTP_INT_H
#define MP_SERVE_HTTP_INT_H

#include <netinet/in.h>

#include "engine/serve/http.h"
#include "engine/serve/http_library.h"
#include "vmm/base/lock.h"

/*
 * Private to http.c (the daemon and its connections), http_call.c (one request) and http_access.c
 * (who may ask).
 */
struct mp_http_call;

/* One connection, as long as it is open. */
struct mp_http_connection {
    struct mp_http_connection *next;
    int fd;
    uint64_t since_ns;         /* opened, or the last call ended */
    struct mp_http_call *call; /* complete and not answered yet; or NULL */
};

struct mp_http {
    struct mp_http_config config;
    bool has_keys;
    struct MHD_Daemon *daemon;
    uint16_t port;
    pthread_t watcher;
    struct mp_mutex lock;
    struct mp_cond wake;
    struct mp_http_connection *connections; /* MP_GUARDED_BY(lock) */
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

/* The callbacks of the daemon. */
enum MHD_Result mp_http_answer(void *http, struct MHD_Connection *connection, const char *url,
                               const char *method, const char *version, const char *upload,
                               size_t *upload_bytes, void **call_p);
void mp_http_completed(void *http, struct MHD_Connection *connection, void **call_p,
                       enum MHD_RequestTerminationCode why);

/* 0: the request may go on; else the status of a refusal, whose text is the error record's. */
unsigned mp_http_check_access(struct mp_http *http, struct MHD_Connection *connection,
                              bool is_open);

#endif
