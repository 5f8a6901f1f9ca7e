#ifndef MP_MPI_LISTEN_H
#define MP_MPI_LISTEN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * MPI's sockets let in only who comes to the addresses that it was told to use. For Open MPI over
 * TCP with btl_tcp_if_include: a list of IPv4 networks ("10.0.0.0/24") and interfaces; without, all
 * of the machine's. With networks only, nobody over IPv6; an interface's IPv6 addresses do not
 * narrow that.
 */
#define MP_MPI_LISTEN_ENV "OMPI_MCA_btl_tcp_if_include"
#define MP_MPI_FDS 1024

struct mp_mpi_listeners {
    bool had[MP_MPI_FDS]; /* sockets of the program's own */
};

/* Before MPI starts, and after. False: the kernel refused the filter of some socket, and what was
 * given is not of one interface. */
void mp_mpi_listen_before(struct mp_mpi_listeners *before);
bool mp_mpi_listen_only(const struct mp_mpi_listeners *before);

#endif
