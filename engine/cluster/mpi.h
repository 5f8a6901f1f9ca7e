#ifndef MP_MPI_H
#define MP_MPI_H

#include "engine/cluster/transport.h"

/*
 * The transport over MPI: loads libmoepager-mpi.so (mpi_module.h) from beside the program or from
 * where it was installed, and starts MPI. Once in a process: MPI cannot be started again.
 *
 * MP_ERR_CONFIG E_CLUSTER_MPI: there is no such library, or MPI cannot start; says what to do.
 */
enum mp_status mp_mpi_open(struct mp_transport **transport_p) MP_MUST_CHECK;

#endif
