/*
 * A daemon of libmicrohttpd: started on an address, or beside another one on its socket, and ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/serve/http_int.h"
#include "vmm/base/clock.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define CONNECTION_BYTES 32768u /* for the head of a request */

static void on_log(void *ctx, const char *format, va_list arguments)
{
    char line[512];

    (void)ctx;
    vsnprintf(line, sizeof(line), format, arguments);
    line[strcspn(line, "\n")] = '\0';
    mp_log_debug("serve", "%s", line);
}

/* The library's own limit is for each daemon: what is more waits. This one is for all. */
static enum MHD_Result admit(void *ctx, const struct sockaddr *address, socklen_t bytes)
{
    struct mp_http *http = ctx;
    bool room;

    (void)bytes;
    if (address->sa_family == AF_UNIX)
        return MHD_YES; /* mp_http_daemon_quiesce()'s */
    mp_lock(&http->lock);
    room = http->connection_count < http->config.connections_max;
    mp_unlock(&http->lock);
    return room ? MHD_YES : MHD_NO;
}

static struct MHD_Daemon *start(struct mp_http_daemon *daemon, const struct mp_http_listen *listen,
                                const struct mp_http_tls *tls)
{
    struct mp_http *http = daemon->http;
    const struct mp_http_config *c = &http->config;
    const struct MHD_OptionItem at_address[] = {
        { MHD_OPTION_SOCK_ADDR, 0, (void *)listen->address },
        { MHD_OPTION_END, 0, NULL },
    };
    const struct MHD_OptionItem on_socket[] = {
        { MHD_OPTION_LISTEN_SOCKET, listen->fd, NULL },
        { MHD_OPTION_END, 0, NULL },
    };
    const struct MHD_OptionItem with_tls[] = {
        { MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)tls->cert },
        { MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)tls->key },
        { MHD_OPTION_END, 0, NULL },
    };
    const struct MHD_OptionItem none[] = { { MHD_OPTION_END, 0, NULL } };
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
                           MHD_USE_ERROR_LOG | (tls->cert != NULL ? MHD_USE_TLS : 0) |
                           (http->is_v6 ? MHD_USE_IPv6 : 0);

    return mp_mhd.start_daemon(
        flags, c->port, admit, http, mp_http_answer, http, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
        MHD_OPTION_ARRAY, listen->fd == MHD_INVALID_SOCKET ? at_address : on_socket,
        MHD_OPTION_NOTIFY_COMPLETED, mp_http_completed, http, MHD_OPTION_NOTIFY_CONNECTION,
        mp_http_connected, daemon, MHD_OPTION_CONNECTION_LIMIT, (unsigned)c->connections_max,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)c->idle_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_BYTES, MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_ARRAY,
        tls->cert != NULL ? with_tls : none, MHD_OPTION_END);
}

/* Signals are the program's own threads'. errno is of the library, or 0. */
static struct MHD_Daemon *start_without_signals(struct mp_http_daemon *daemon,
                                                const struct mp_http_listen *listen,
                                                const struct mp_http_tls *tls)
{
    struct MHD_Daemon *mhd;
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = 0;
    mhd = start(daemon, listen, tls);
    error = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return mhd;
}

static struct mp_http_daemon *create(struct mp_http *http)
{
    struct mp_http_daemon *daemon = calloc(1, sizeof(*daemon));

    if (daemon == NULL) {
        (void)mp_fail_no_memory("the server", sizeof(*daemon));
        return NULL;
    }
    daemon->http = http;
    daemon->listening = MHD_INVALID_SOCKET;
    daemon->waker = -1;
    return daemon;
}

enum mp_status mp_http_daemon_start(struct mp_http *http, const struct mp_http_listen *listen,
                                    struct mp_http_daemon **daemon_p)
{
    const struct mp_http_config *c = &http->config;
    const struct mp_http_tls tls = { c->tls_cert, c->tls_key };
    struct mp_http_daemon *daemon = create(http);

    if (daemon == NULL)
        return MP_ERR_NO_MEMORY;
    daemon->mhd = start_without_signals(daemon, listen, &tls);
    if (daemon->mhd == NULL) {
        const int error = errno;

        free(daemon);
        return mp_fail(MP_ERR_IO, "E_LISTEN", "cannot listen on %s, port %u%s: %s", c->host,
                       c->port, c->tls_cert != NULL ? ", with this certificate and key" : "",
                       error != 0 ? strerror(error) : "libmicrohttpd gives no reason");
    }
    *daemon_p = daemon;
    return MP_OK;
}

/* Whether the library closes a socket that it was given when it does not start depends on where it
 * fails. By now the number may be another file's. */
static void close_if_left(int fd, const struct stat *socket)
{
    struct stat found;

    if (fstat(fd, &found) == 0 && found.st_dev == socket->st_dev && found.st_ino == socket->st_ino)
        close(fd);
}

static enum mp_status start_on_socket(struct mp_http_daemon *daemon, int socket,
                                      const struct mp_http_tls *tls)
{
    struct mp_http_listen listen = { .address = NULL };
    struct stat stat;

    if (fstat(socket, &stat) != 0)
        return mp_fail(MP_ERR_IO, "E_LISTEN", "cannot look at the socket: %s", strerror(errno));
    listen.fd = fcntl(socket, F_DUPFD_CLOEXEC, 0);
    if (listen.fd < 0)
        return mp_fail(MP_ERR_IO, "E_LISTEN", "cannot share the socket: %s", strerror(errno));
    daemon->mhd = start_without_signals(daemon, &listen, tls);
    if (daemon->mhd != NULL)
        return MP_OK;
    close_if_left(listen.fd, &stat);
    return mp_fail(MP_ERR_CONFIG, "E_TLS",
                   "libmicrohttpd does not start with this certificate and key: are both PEM, and "
                   "of each other?");
}

enum mp_status mp_http_daemon_start_beside(const struct mp_http_daemon *other,
                                           const struct mp_http_tls *tls,
                                           struct mp_http_daemon **daemon_p)
{
    const int socket = mp_http_daemon_socket(other);
    struct mp_http_daemon *daemon;
    enum mp_status status;

    if (socket == MHD_INVALID_SOCKET)
        return mp_fail(MP_ERR_IO, "E_LISTEN",
                       "this libmicrohttpd does not say on which socket it listens");
    daemon = create(other->http);
    if (daemon == NULL)
        return MP_ERR_NO_MEMORY;
    status = start_on_socket(daemon, socket, tls);
    if (status != MP_OK) {
        free(daemon);
        return status;
    }
    *daemon_p = daemon;
    return MP_OK;
}

int mp_http_daemon_socket(const struct mp_http_daemon *daemon)
{
    const union MHD_DaemonInfo *info =
        mp_mhd.get_daemon_info(daemon->mhd, MHD_DAEMON_INFO_LISTEN_FD);

    return info != NULL ? info->listen_fd : MHD_INVALID_SOCKET;
}

static void quiesce(struct mp_http_daemon *daemon)
{
    daemon->listening = mp_mhd.quiesce_daemon(daemon->mhd);
    mp_lock(&daemon->http->lock);
    daemon->quiesced = true;
    mp_unlock(&daemon->http->lock);
}

/*
 * The library aborts the process when a daemon's thread takes the socket from its list, as it does
 * at a limit, at the moment when another thread quiesces the daemon. So its own thread does, when
 * it is told of a connection that nobody uses. That cannot be added at the limit: but then the
 * socket is not in the list.
 */
void mp_http_daemon_quiesce(struct mp_http_daemon *daemon)
{
    const struct sockaddr nobody = { .sa_family = AF_UNIX };
    int pair[2];

    mp_lock(&daemon->http->lock);
    daemon->retired = true;
    mp_unlock(&daemon->http->lock);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        quiesce(daemon);
        return;
    }
    daemon->waker = pair[0];
    if (mp_mhd.add_connection(daemon->mhd, pair[0], &nobody, sizeof(nobody)) != MHD_YES) {
        daemon->waker = -1; /* the library has closed it */
        quiesce(daemon);
    }
    close(pair[1]);
}

bool mp_http_daemon_quiesces(struct mp_http_daemon *daemon, int fd)
{
    if (fd != daemon->waker)
        return false;
    daemon->waker = -1;
    quiesce(daemon);
    return true;
}

void mp_http_daemon_stop(struct mp_http_daemon *daemon)
{
    mp_mhd.stop_daemon(daemon->mhd);
    if (daemon->listening != MHD_INVALID_SOCKET)
        close(daemon->listening);
    free(daemon);
}
