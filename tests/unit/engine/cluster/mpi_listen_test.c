/*
 * Sockets that listen on all addresses let in who comes to those that were given, and nobody else.
 */
#include "engine/cluster/mpi_listen.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/test.h"

static int listen_anywhere(uint16_t *port_p)
{
    struct sockaddr_in at = { .sin_family = AF_INET };
    socklen_t bytes = sizeof(at);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    CHECK_EQ(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    CHECK_EQ(listen(fd, 4), 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    *port_p = at.sin_port;
    return fd;
}

/* All of 127.0.0.0/8 is this machine. */
static bool comes_in(const char *address, uint16_t port)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = port };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct pollfd wait = { .fd = fd, .events = POLLOUT };
    bool in;

    CHECK(fd >= 0);
    CHECK_EQ(inet_pton(AF_INET, address, &to.sin_addr), 1);
    in = connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 || poll(&wait, 1, 100) == 1;
    close(fd);
    return in;
}

static int restricted(const char *list, uint16_t *port_p)
{
    struct mp_mpi_listeners before;
    int fd;

    if (list != NULL)
        setenv(MP_MPI_LISTEN_ENV, list, 1);
    else
        unsetenv(MP_MPI_LISTEN_ENV);
    mp_mpi_listen_before(&before);
    fd = listen_anywhere(port_p);
    CHECK(mp_mpi_listen_only(&before));
    return fd;
}

static void only_networks_that_are_given(void)
{
    uint16_t port;
    int fd = restricted("127.0.1.0/24,127.0.3.7/32", &port);

    CHECK(comes_in("127.0.1.1", port) && comes_in("127.0.1.200", port));
    CHECK(comes_in("127.0.3.7", port));
    CHECK(!comes_in("127.0.0.1", port) && !comes_in("127.0.3.8", port));
    close(fd);
}

/* Where there is IPv6 at all. */
static void nobody_over_ipv6_if_networks_are_given(void)
{
    static const char *const lists[] = { "127.0.1.0/24", "lo", NULL };

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        struct sockaddr_in6 at = { .sin6_family = AF_INET6 };
        socklen_t bytes = sizeof(at);
        struct mp_mpi_listeners before;
        const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const int from = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct pollfd wait = { .fd = from, .events = POLLOUT };

        if (lists[i] != NULL)
            setenv(MP_MPI_LISTEN_ENV, lists[i], 1);
        else
            unsetenv(MP_MPI_LISTEN_ENV);
        mp_mpi_listen_before(&before);
        if (bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 1) == 0 &&
            getsockname(fd, (struct sockaddr *)&at, &bytes) == 0) {
            CHECK(mp_mpi_listen_only(&before));
            at.sin6_addr = in6addr_loopback;
            CHECK_EQ(connect(from, (struct sockaddr *)&at, sizeof(at)) == 0 ||
                         poll(&wait, 1, 100) == 1,
                     i > 0);
        }
        close(from);
        close(fd);
    }
}

static void only_addresses_of_an_interface(void)
{
    uint16_t port;
    int fd = restricted("lo", &port);

    CHECK(comes_in("127.0.0.1", port));
    CHECK(!comes_in("127.0.1.1", port));
    close(fd);
}

static void nothing_is_given_or_nothing_that_is_known(void)
{
    static const char *const lists[] = { NULL,          "",         "no-such-device",
                                         "10.0.0.0/33", "10.0.0/8", "fe80::/10" };
    uint16_t port;

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        int fd = restricted(lists[i], &port);

        CHECK(comes_in("127.0.0.1", port) && comes_in("127.0.1.1", port));
        close(fd);
    }
}

/* A socket whose filter is locked stands for a kernel that takes none. */
static void one_interface_where_the_kernel_takes_no_filter(void)
{
    static const struct {
        const char *list, *device;
    } cases[] = { { "lo", "lo" },
                  { "127.0.0.0/8", "lo" },
                  { "lo,127.0.0.0/8", "lo" },
                  { "127.0.1.0/24", NULL }, /* no interface has an address of it */
                  { "lo,no-such-device", NULL } };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mp_mpi_listeners before;
        char device[16] = "";
        socklen_t bytes = sizeof(device);
        uint16_t port;
        int fd;

        setenv(MP_MPI_LISTEN_ENV, cases[i].list, 1);
        mp_mpi_listen_before(&before);
        fd = listen_anywhere(&port);
        CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &(int){ 1 }, sizeof(int)), 0);
        CHECK_EQ(mp_mpi_listen_only(&before), cases[i].device != NULL);
        CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, &bytes), 0);
        CHECK_STR(device, cases[i].device != NULL ? cases[i].device : "");
        CHECK(comes_in("127.0.0.1", port));
        close(fd);
    }
}

/* The program's own sockets are none of MPI's. */
static void what_listened_before_is_left_alone(void)
{
    struct mp_mpi_listeners before;
    uint16_t own, mpis;
    int fd, fd2;

    setenv(MP_MPI_LISTEN_ENV, "127.0.1.0/24", 1);
    fd = listen_anywhere(&own);
    mp_mpi_listen_before(&before);
    fd2 = listen_anywhere(&mpis);
    CHECK(mp_mpi_listen_only(&before));
    CHECK(comes_in("127.0.0.1", own));
    CHECK(!comes_in("127.0.0.1", mpis));
    close(fd);
    close(fd2);
}

int main(void)
{
    RUN(only_networks_that_are_given);
    RUN(nobody_over_ipv6_if_networks_are_given);
    RUN(only_addresses_of_an_interface);
    RUN(nothing_is_given_or_nothing_that_is_known);
    RUN(one_interface_where_the_kernel_takes_no_filter);
    RUN(what_listened_before_is_left_alone);
    return 0;
}
