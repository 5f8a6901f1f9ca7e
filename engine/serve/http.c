/*
 * The server: its address, its daemons, and a watcher that ends connections whose client is gone or
 * takes too long, and daemons that are retired. Requests are http_call.c's.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/serve/http_int.h"
#include "vmm/base/clock.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/base/thread.h"

#define WATCH_NS 200000000u
#define QUIESCE_MS 1000

/* ---- address */

struct address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    };
    bool is_v6, is_loopback;
};

static bool read_address(const char *host, uint16_t port, struct address *address)
{
    const char *name = strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;

    memset(address, 0, sizeof(*address));
    if (inet_pton(AF_INET, name, &address->v4.sin_addr) == 1) {
        address->v4.sin_family = AF_INET;
        address->v4.sin_port = htons(port);
        address->is_loopback = ntohl(address->v4.sin_addr.s_addr) >> 24 == 127;
        return true;
    }
    memset(address, 0, sizeof(*address));
    address->is_v6 = true;
    address->v6.sin6_family = AF_INET6;
    address->v6.sin6_port = htons(port);
    if (inet_pton(AF_INET6, name, &address->v6.sin6_addr) != 1)
        return false;
    address->is_loopback = IN6_IS_ADDR_LOOPBACK(&address->v6.sin6_addr);
    return true;
}

enum mp_status mp_http_check(const struct mp_http_config *config)
{
    char quoted[MP_QUOTE_BYTES];
    struct address address;
    enum mp_status status = mp_http_load();

    if (status != MP_OK)
        return status;
    if (!read_address(config->host, config->port, &address))
        return mp_fail(MP_ERR_CONFIG, "E_ADDRESS",
                       "--host: got '%s', need an address such as 127.0.0.1, ::1 or 0.0.0.0",
                       mp_quote(quoted, config->host, strlen(config->host)));
    if (!address.is_loopback && config->keys == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_ADDRESS",
                       "--host: other machines can reach '%s'; give --api-key-file FILE, so that "
                       "only those with a key are served",
                       mp_quote(quoted, config->host, strlen(config->host)));
    if ((config->tls_cert != NULL || config->tls_key != NULL) &&
        mp_mhd.is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_TLS", "this libmicrohttpd has no TLS");
    return MP_OK;
}

/* ---- connections */

static void add_connection(struct mp_http_daemon *daemon, struct mp_http_connection *c)
{
    struct mp_http *http = daemon->http;

    c->daemon = daemon;
    mp_lock(&http->lock);
    c->next = http->connections;
    http->connections = c;
    http->connection_count++;
    daemon->open++;
    mp_unlock(&http->lock);
}

static void remove_connection(struct mp_http_connection *c)
{
    struct mp_http *http = c->daemon->http;
    struct mp_http_connection **at = &http->connections;

    mp_lock(&http->lock);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    http->connection_count--;
    c->daemon->open--;
    mp_unlock(&http->lock);
    free(c);
}

void mp_http_connected(void *daemon, struct MHD_Connection *connection, void **socket_context,
                       enum MHD_ConnectionNotificationCode code)
{
    const union MHD_ConnectionInfo *info;
    struct mp_http_connection *c = *socket_context;

    if (code != MHD_CONNECTION_NOTIFY_STARTED) {
        if (c != NULL)
            remove_connection(c);
        return;
    }
    info = mp_mhd.get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info != NULL && mp_http_daemon_quiesces(daemon, info->connect_fd))
        return;
    *socket_context = c = info != NULL ? calloc(1, sizeof(*c)) : NULL;
    if (c == NULL)
        return; /* its requests are refused */
    c->fd = info->connect_fd;
    c->since_ns = mp_clock_now_ns(mp_clock_monotonic());
    add_connection(daemon, c);
}

static bool is_gone(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLRDHUP };

    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* A sleeping connection is not looked at by the daemon, so a client that has left is seen here. One
 * that has sent no whole request in time is cut off. */
static void look_at(const struct mp_http *http, const struct mp_http_connection *c, uint64_t now_ns)
{
    if (c->call != NULL) {
        if (is_gone(c->fd))
            mp_exchange_cancel(c->call->exchange);
    } else if (now_ns - c->since_ns > http->config.idle_s * UINT64_C(1000000000)) {
        shutdown(c->fd, SHUT_RDWR);
    }
}

/* A daemon that is retired and has no connection any more, out of the list; or NULL. */
static struct mp_http_daemon *take_empty_locked(struct mp_http *http)
{
    for (struct mp_http_daemon **at = &http->retired; *at != NULL; at = &(*at)->next) {
        struct mp_http_daemon *daemon = *at;

        if (daemon->open == 0 && daemon->quiesced) {
            *at = daemon->next;
            return daemon;
        }
    }
    return NULL;
}

static void *watch(void *ctx)
{
    struct mp_http *http = ctx;

    mp_lock(&http->lock);
    while (!http->stopping) {
        const uint64_t now_ns = mp_clock_now_ns(mp_clock_monotonic());
        struct mp_http_daemon *empty;

        for (struct mp_http_connection *c = http->connections; c != NULL; c = c->next)
            look_at(http, c, now_ns);
        while ((empty = take_empty_locked(http)) != NULL) {
            mp_unlock(&http->lock);
            mp_http_daemon_stop(empty);
            mp_lock(&http->lock);
        }
        (void)mp_cond_wait_for(&http->wake, &http->lock, WATCH_NS);
    }
    mp_unlock(&http->lock);
    return NULL;
}

/* ---- start and end */

static enum mp_status start(struct mp_http *http)
{
    const struct mp_http_config *c = &http->config;
    struct mp_http_listen listen = { .fd = MHD_INVALID_SOCKET };
    const union MHD_DaemonInfo *info;
    struct address address;
    enum mp_status status;
    int error;

    if (!read_address(c->host, c->port, &address))
        return mp_fail(MP_ERR_CONFIG, "E_ADDRESS", "no address");
    listen.address = &address.any;
    http->is_v6 = address.is_v6;
    status = mp_http_daemon_start(http, &listen, &http->daemon);
    if (status != MP_OK)
        return status;
    info = mp_mhd.get_daemon_info(http->daemon->mhd, MHD_DAEMON_INFO_BIND_PORT);
    http->port = info != NULL ? info->port : c->port;
    error = mp_thread_start(&http->watcher, "mp-watch", watch, http);
    if (error == 0)
        return MP_OK;
    mp_http_daemon_stop(http->daemon);
    return mp_fail(MP_ERR_NO_MEMORY, "E_THREADS",
                   "cannot start a thread: %s; raise the limit of %s", strerror(error),
                   mp_thread_limit());
}

enum mp_status mp_http_start(const struct mp_http_config *config, struct mp_http **http_p)
{
    struct mp_http *http;
    enum mp_status status = mp_http_load();

    if (status != MP_OK)
        return status;
    http = calloc(1, sizeof(*http));
    if (http == NULL)
        return mp_fail_no_memory("the server", sizeof(*http));
    http->config = *config;
    http->keys = config->keys;
    http->has_keys = config->keys != NULL;
    mp_mutex_init(&http->lock, MP_LOCK_CONTEXT, "http");
    mp_cond_init(&http->wake);
    status = start(http);
    if (status != MP_OK) {
        mp_cond_fini(&http->wake);
        mp_mutex_fini(&http->lock);
        free(http);
        return status;
    }
    *http_p = http;
    return MP_OK;
}

uint16_t mp_http_port(const struct mp_http *http)
{
    return http->port;
}

void mp_http_set_keys(struct mp_http *http, struct mp_keys *keys)
{
    struct mp_keys *before;

    mp_lock(&http->lock);
    before = http->keys;
    http->keys = keys;
    mp_unlock(&http->lock);
    mp_keys_destroy(before);
}

/* Its thread is at work elsewhere for moments only. */
static void wait_until_quiesced(struct mp_http_daemon *daemon)
{
    bool done = false;

    for (int i = 0; i < QUIESCE_MS && !done; i++) {
        mp_lock(&daemon->http->lock);
        done = daemon->quiesced;
        mp_unlock(&daemon->http->lock);
        if (!done)
            poll(NULL, 0, 1);
    }
}

/* Between the two steps both accept, so that nobody is refused. */
enum mp_status mp_http_renew(struct mp_http *http, const char *cert, const char *key)
{
    const struct mp_http_tls tls = { cert, key };
    struct mp_http_daemon *before = http->daemon;
    enum mp_status status;

    if (http->refusing)
        return mp_fail(MP_ERR_BUSY, "E_SERVER_STOPPING", "the server is about to end");
    status = mp_http_daemon_start_beside(before, &tls, &http->daemon);
    if (status != MP_OK)
        return status;
    mp_http_daemon_quiesce(before);
    wait_until_quiesced(before);
    mp_lock(&http->lock);
    before->next = http->retired;
    http->retired = before;
    mp_unlock(&http->lock);
    return MP_OK;
}

/* Daemons that are retired have the socket, too, so that closing it here would not be enough. */
void mp_http_refuse(struct mp_http *http)
{
    const int socket = mp_http_daemon_socket(http->daemon);

    http->refusing = true;
    mp_http_daemon_quiesce(http->daemon);
    if (socket != MHD_INVALID_SOCKET)
        shutdown(socket, SHUT_RDWR);
}

static bool is_idle(struct mp_http *http)
{
    bool idle = true;

    mp_lock(&http->lock);
    for (const struct mp_http_connection *c = http->connections; c != NULL; c = c->next)
        idle = idle && c->call == NULL;
    mp_unlock(&http->lock);
    return idle;
}

void mp_http_stop(struct mp_http *http, unsigned wait_s)
{
    if (http == NULL)
        return;
    for (unsigned i = 0; i < wait_s * 50 && !is_idle(http); i++)
        poll(NULL, 0, 20);
    mp_lock(&http->lock);
    http->stopping = true;
    mp_cond_signal(&http->wake);
    mp_unlock(&http->lock);
    pthread_join(http->watcher, NULL);
    while (http->retired != NULL) {
        struct mp_http_daemon *daemon = http->retired;

        http->retired = daemon->next;
        mp_http_daemon_stop(daemon);
    }
    mp_http_daemon_stop(http->daemon);
    mp_cond_fini(&http->wake);
    mp_mutex_fini(&http->lock);
    mp_keys_destroy(http->keys);
    free(http);
}
