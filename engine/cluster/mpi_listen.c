/*
 * Open MPI listens on all addresses of a machine, and uses those of its parameter
 * btl_tcp_if_include. Here whoever comes to another address than those is not let in either: its
 * first packet is dropped by a filter of the socket (SO_ATTACH_FILTER, socket(7)). Where the kernel
 * takes no filter, as of ordinary users in some sandboxes, the socket hears one interface only, if
 * that is what was given (SO_BINDTODEVICE).
 */
#include "engine/cluster/mpi_listen.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define NETS_MAX 16u
#define IPV4_TO 16 /* offset of the destination in an IPv4 header */

struct net {
    uint32_t address, mask; /* in host order */
};

struct allowed {
    struct net nets[NETS_MAX];
    uint32_t count;
    bool networks_only;       /* so nobody comes over IPv6 */
    char device[IF_NAMESIZE]; /* the interface of all that was given; "": there is no single one */
};

static uint32_t mask_of(unsigned long bits)
{
    return bits == 0 ? 0 : UINT32_MAX << (32 - bits);
}

/* "10.0.0.0/24" */
static bool read_net(const char *word, struct net *net)
{
    char address[INET_ADDRSTRLEN], *end;
    const char *slash = strchr(word, '/');
    struct in_addr in;
    unsigned long bits;

    if (slash == NULL || (size_t)(slash - word) >= sizeof(address))
        return false;
    memcpy(address, word, (size_t)(slash - word));
    address[slash - word] = '\0';
    bits = strtoul(slash + 1, &end, 10);
    if (inet_pton(AF_INET, address, &in) != 1 || end == slash + 1 || *end != '\0' || bits > 32)
        return false;
    net->mask = mask_of(bits);
    net->address = ntohl(in.s_addr) & net->mask;
    return true;
}

/* The addresses of an interface. */
static uint32_t read_interface(const char *name, const struct ifaddrs *all, struct net *nets,
                               uint32_t room)
{
    uint32_t count = 0;

    for (; all != NULL && count < room; all = all->ifa_next) {
        if (all->ifa_addr == NULL || all->ifa_addr->sa_family != AF_INET ||
            strcmp(all->ifa_name, name) != 0)
            continue;
        nets[count++] = (struct net){
            ntohl(((const struct sockaddr_in *)(const void *)all->ifa_addr)->sin_addr.s_addr),
            UINT32_MAX
        };
    }
    return count;
}

/* The interface with an address of the network; NULL: none. */
static const char *interface_of(const struct net *net, const struct ifaddrs *all)
{
    struct net own;

    for (; all != NULL; all = all->ifa_next) {
        if (all->ifa_addr != NULL && read_interface(all->ifa_name, all, &own, 1) == 1 &&
            (own.address & net->mask) == net->address)
            return all->ifa_name;
    }
    return NULL;
}

/* All words have to be of one interface; `device` is "" before the first one. */
static bool note_device(char device[IF_NAMESIZE], const char *name)
{
    if (name == NULL || strlen(name) >= IF_NAMESIZE)
        return false;
    if (device[0] == '\0')
        strcpy(device, name);
    return strcmp(device, name) == 0;
}

static void read_allowed(const char *list, struct allowed *allowed)
{
    char *words = strdup(list), *rest = words, *word;
    struct ifaddrs *all = NULL;
    bool one = true;

    allowed->networks_only = true;
    if (words != NULL && getifaddrs(&all) == 0) {
        while ((word = strsep(&rest, ",")) != NULL && allowed->count < NETS_MAX) {
            struct net *net = &allowed->nets[allowed->count];

            if (read_net(word, net)) {
                allowed->count++;
                one &= note_device(allowed->device, interface_of(net, all));
                continue;
            }
            allowed->networks_only = false;
            allowed->count += read_interface(word, all, net, NETS_MAX - allowed->count);
            one &= note_device(allowed->device, word);
        }
        freeifaddrs(all);
    }
    if (!one)
        allowed->device[0] = '\0';
    free(words);
}

/* Does the socket wait for connections to any address of its family? */
static bool listens_anywhere(int fd, int family)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at = { { 0 } };
    socklen_t bytes = sizeof(at), flag_bytes = sizeof(int);
    int listens = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &flag_bytes) != 0 || !listens ||
        getsockname(fd, &at.any, &bytes) != 0 || at.any.sa_family != family)
        return false;
    return family == AF_INET ? at.v4.sin_addr.s_addr == htonl(INADDR_ANY)
                             : IN6_IS_ADDR_UNSPECIFIED(&at.v6.sin6_addr);
}

/* To one of the addresses: all of the packet; else none. */
static bool attach(int fd, const struct net *nets, uint32_t count)
{
    struct sock_filter code[3 * NETS_MAX + 2];
    struct sock_fprog program = { .filter = code };
    uint16_t at = 0;

    for (uint32_t i = 0; i < count; i++) {
        const uint8_t to_end = (uint8_t)(3 * (count - i) - 2);

        code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                                  (uint32_t)(SKF_NET_OFF + IPV4_TO));
        code[at++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, nets[i].mask);
        code[at++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nets[i].address, to_end, 0);
    }
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
    program.len = at;
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0;
}

/* Nothing comes in by another interface; an ordinary user may say that, too (Linux 5.7). */
static bool bind_to(int fd, const char *device)
{
    return device[0] != '\0' &&
           setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, (socklen_t)strlen(device) + 1) == 0;
}

void mp_mpi_listen_before(struct mp_mpi_listeners *before)
{
    for (int fd = 0; fd < MP_MPI_FDS; fd++)
        before->had[fd] = listens_anywhere(fd, AF_INET) || listens_anywhere(fd, AF_INET6);
}

bool mp_mpi_listen_only(const struct mp_mpi_listeners *before)
{
    const char *list = secure_getenv(MP_MPI_LISTEN_ENV);
    struct allowed allowed = { .count = 0 };
    bool all = true;

    if (list != NULL)
        read_allowed(list, &allowed);
    for (int fd = 0; fd < MP_MPI_FDS && allowed.count > 0; fd++) {
        if (before->had[fd])
            continue;
        if (listens_anywhere(fd, AF_INET))
            all &= attach(fd, allowed.nets, allowed.count) || bind_to(fd, allowed.device);
        else if (allowed.networks_only && listens_anywhere(fd, AF_INET6))
            all &= attach(fd, allowed.nets, 0) || bind_to(fd, "lo");
    }
    return all;
}
