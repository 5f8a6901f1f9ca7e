/*
 * The sockets of `moepager top`: one in each directory of the user, under the first of a few names
 * that no other top has. Whoever holds the lock beside a name owns it; a socket that is left from a
 * top that was killed is replaced.
 */
#include "engine/top/top_int.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "vmm/base/error.h"

#define STEP_MS 100

/* An open lock file that is ours, or -1: another top has the name, or there can be no file. */
static int take_name(const char *path)
{
    char lock[sizeof(((struct mp_top_socket *)0)->path) + 8];
    int fd;

    snprintf(lock, sizeof(lock), "%s.lock", path);
    fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* -1 with errno. */
static int listen_at(const char *path)
{
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    const int on = 1;
    int error;

    if (fd < 0)
        return -1;
    snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
    (void)unlink(path);
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 &&
        bind(fd, (const struct sockaddr *)&at, sizeof(at)) == 0)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

static enum mp_status open_socket(const char *dir, struct mp_top_socket *socket)
{
    char quoted[MP_QUOTE_BYTES], name[32];

    for (unsigned i = 0; i < MP_LIVE_TOPS; i++) {
        snprintf(socket->path, sizeof(socket->path), "%s/top.%u", dir, i);
        socket->lock_fd = take_name(socket->path);
        if (socket->lock_fd < 0)
            continue;
        socket->fd = listen_at(socket->path);
        if (socket->fd >= 0)
            return MP_OK;
        mp_errno_name(name, errno);
        close(socket->lock_fd);
        return mp_fail(MP_ERR_IO, "E_TOP", "cannot listen at '%s': %s",
                       mp_quote(quoted, socket->path, strlen(socket->path)), name);
    }
    return mp_fail(MP_ERR_IO, "E_TOP",
                   "%d times moepager top run already, or '%s' cannot be written to; end one",
                   MP_LIVE_TOPS, mp_quote(quoted, dir, strlen(dir)));
}

/* Made if it is not there; whatever is there must be the user's alone. */
static enum mp_status make_dir(const char *dir)
{
    char quoted[MP_QUOTE_BYTES], name[32];

    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return mp_fail(MP_ERR_IO, "E_TOP", "cannot make directory '%s': %s",
                       mp_quote(quoted, dir, strlen(dir)), mp_errno_name(name, errno));
    if (!mp_live_dir_is_private(dir))
        return mp_fail(MP_ERR_IO, "E_TOP",
                       "'%s' is not a directory of this user that nobody else may enter; remove "
                       "it, or set XDG_RUNTIME_DIR",
                       mp_quote(quoted, dir, strlen(dir)));
    return MP_OK;
}

enum mp_status mp_top_sockets_open(const struct mp_live_dirs *dirs, struct mp_top *top)
{
    enum mp_status status = MP_OK;

    if (dirs->count == 0)
        return mp_fail(MP_ERR_IO, "E_TOP", "a privileged program watches no processes");
    for (uint32_t d = 0; d < dirs->count; d++) {
        status = make_dir(dirs->path[d]);
        if (status == MP_OK)
            status = open_socket(dirs->path[d], &top->sockets[top->socket_count]);
        top->socket_count += status == MP_OK;
    }
    if (top->socket_count == 0)
        return status;
    mp_error_clear();
    return MP_OK;
}

void mp_top_sockets_close(struct mp_top *top)
{
    for (size_t i = 0; i < top->socket_count; i++) {
        (void)unlink(top->sockets[i].path);
        close(top->sockets[i].fd);
        close(top->sockets[i].lock_fd); /* the file stays: another top may be about to lock it */
    }
    top->socket_count = 0;
}

/* False: nothing waits there. */
static bool receive(struct mp_top *top, int fd)
{
    char message[MP_LIVE_MESSAGE_BYTES];
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct ucred))];
    struct iovec part = { .iov_base = message, .iov_len = sizeof(message) };
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
    };
    const ssize_t bytes = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *part_of_control;
    struct ucred sender = { .uid = (uid_t)-1 };

    if (bytes < 0)
        return false;
    part_of_control = CMSG_FIRSTHDR(&header);
    if (part_of_control != NULL && part_of_control->cmsg_level == SOL_SOCKET &&
        part_of_control->cmsg_type == SCM_CREDENTIALS)
        memcpy(&sender, CMSG_DATA(part_of_control), sizeof(sender));
    if ((header.msg_flags & MSG_TRUNC) != 0 || (sender.uid != geteuid() && sender.uid != 0))
        top->refused++;
    else
        (void)mp_top_take(top, (uint64_t)sender.pid, message, (size_t)bytes);
    return true;
}

void mp_top_listen(struct mp_top *top, uint64_t ns, const volatile sig_atomic_t *stop)
{
    const uint64_t end_ns = mp_clock_now_ns(top->clock) + ns;
    struct pollfd fds[MP_LIVE_DIRS];

    for (size_t i = 0; i < top->socket_count; i++)
        fds[i] = (struct pollfd){ .fd = top->sockets[i].fd, .events = POLLIN };
    while (!*stop && mp_clock_now_ns(top->clock) < end_ns) {
        if (poll(fds, (nfds_t)top->socket_count, STEP_MS) <= 0)
            continue;
        for (size_t i = 0; i < top->socket_count; i++) {
            if ((fds[i].revents & POLLIN) != 0)
                (void)receive(top, fds[i].fd);
        }
    }
    mp_top_forget(top);
}
