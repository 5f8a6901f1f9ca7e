/*
 * The daemon: its address, its threads, and a watcher that ends connections whose client is gone or
 * takes too long. Requests are http_call.c's.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/serve/http_int.h"
#include "vmm/base/clock.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/base/thread.h"

#define WATCH_NS 200000000u
#define CONNECTION_BYTES 32768u /* for the head of a request */

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

static void on_connection(void *ctx, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct mp_http *http = ctx;
    struct mp_http_connection *c = *socket_context, **at = &http->connections;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            mp_mhd.get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

        *socket_context = c = info != NULL ? calloc(1, sizeof(*c)) : NULL;
        if (c == NULL)
            return; /* its requests are refused */
        c->fd = info->connect_fd;
        c->since_ns = mp_clock_now_ns(mp_clock_monotonic());
        mp_lock(&http->lock);
        c->next = http->connections;
        http->connections = c;
        mp_unlock(&http->lock);
        return;
    }
    if (c == NULL)
        return;
    mp_lock(&http->lock);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    mp_unlock(&http->lock);
    free(c);
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

static void *watch(void *ctx)
{
    struct mp_http *http = ctx;

    mp_lock(&http->lock);
    while (!http->stopping) {
        const uint64_t now_ns = mp_clock_now_ns(mp_clock_monotonic());

        for (struct mp_http_connection *c = http->connections; c != NULL; c = c->next)
            look_at(http, c, now_ns);
        (void)mp_cond_wait_for(&http->wake, &http->lock, WATCH_NS);
    }
    mp_unlock(&http->lock);
    return NULL;
}

/* ---- the daemon */

static void on_log(void *ctx, const char *format, va_list arguments)
{
    char line[512];

    (void)ctx;
    vsnprintf(line, sizeof(line), format, arguments);
    line[strcspn(line, "\n")] = '\0';
    mp_log_debug("serve", "%s", line);
}

static struct MHD_Daemon *start_daemon(struct mp_http *http, struct address *address)
{
    const struct mp_http_config *c = &http->config;
    const bool tls = c->tls_cert != NULL;
    const struct MHD_OptionItem tls_options[] = {
        { MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)c->tls_cert },
        { MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)c->tls_key },
        { MHD_OPTION_END, 0, NULL },
    };
    const struct MHD_OptionItem none[] = { { MHD_OPTION_END, 0, NULL } };
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
                           MHD_USE_ERROR_LOG | (tls ? MHD_USE_TLS : 0) |
                           (address->is_v6 ? MHD_USE_IPv6 : 0);

    return mp_mhd.start_daemon(
        flags, c->port, NULL, NULL, mp_http_answer, http, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
        MHD_OPTION_SOCK_ADDR, &address->any, MHD_OPTION_NOTIFY_COMPLETED, mp_http_completed, http,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, http, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)c->connections_max, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)c->idle_s,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
        MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_ARRAY, tls ? tls_options : none,
        MHD_OPTION_END);
}

/* Signals are the program's own threads'. */
static struct MHD_Daemon *start_without_signals(struct mp_http *http, struct address *address)
{
    struct MHD_Daemon *daemon;
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    daemon = start_daemon(http, address);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return daemon;
}

static enum mp_status start(struct mp_http *http)
{
    const struct mp_http_config *c = &http->config;
    const union MHD_DaemonInfo *info;
    struct address address;
    int error;

    if (!read_address(c->host, c->port, &address))
        return mp_fail(MP_ERR_CONFIG, "E_ADDRESS", "no address");
    errno = 0;
    http->daemon = start_without_signals(http, &address);
    if (http->daemon == NULL)
        return mp_fail(MP_ERR_IO, "E_LISTEN", "cannot listen on %s, port %u%s: %s", c->host,
                       c->port, c->tls_cert != NULL ? ", with this certificate and key" : "",
                       errno != 0 ? strerror(errno) : "libmicrohttpd gives no reason");
    info = mp_mhd.get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
    http->port = info != NULL ? info->port : c->port;
    error = mp_thread_start(&http->watcher, "mp-watch", watch, http);
    if (error == 0)
        return MP_OK;
    mp_mhd.stop_daemon(http->daemon);
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

void mp_http_refuse(struct mp_http *http)
{
    const MHD_socket listening = mp_mhd.quiesce_daemon(http->daemon);

    if (listening != MHD_INVALID_SOCKET)
        close(listening);
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
    mp_mhd.stop_daemon(http->daemon);
    mp_cond_fini(&http->wake);
    mp_mutex_fini(&http->lock);
    mp_keys_destroy(http->keys);
    free(http);
}
