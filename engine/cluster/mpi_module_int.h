#ifndef MP_MPI_MODULE_INT_H
#define MP_MPI_MODULE_INT_H

#include "engine/cluster/mpi_module.h"

#include <mpi.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif

/*
 * Parts of the module: its life and messages (mpi_module.c), ranks that come back (mpi_restart.c).
 * The program does not see this.
 */
#ifdef MPIX_ERR_PROC_FAILED
#define HAS_ULFM 1
#else
#define HAS_ULFM 0
#endif

struct sent {
    struct sent *next;
    MPI_Request request;
    int to;
    char data[];
};

/* A message that was found and is on its way into memory. */
struct arriving {
    struct arriving *next;
    MPI_Request request;
    int from;
    size_t bytes;
    char data[];
};

struct mp_mpi {
    MPI_Comm comm;
    int rank, ranks, survives, returned;
    int any_died; /* since the start */
    int *number;  /* (ranks): of the rank that has a place in comm */
    int *place;   /* (ranks): in comm */
    struct sent *sends;
    int *under_way;            /* (ranks) */
    char *lost;                /* (ranks): 1: to be said, 2: said */
    int *next;                 /* (ranks): scratch of a restart */
    struct arriving *arriving; /* in the order in which they were found */
    struct arriving *last;     /* the last message that was handed over */
    char text[256];
};

/* Keep what MPI says of a failed call; returns MP_MPI_FAILED. */
enum mp_mpi_result mp_mpi_fail(struct mp_mpi *mpi, const char *call, int code);
/* Sends that have ended give their memory back. */
void mp_mpi_sweep(struct mp_mpi *mpi);
/* place[] := the inverse of number[]. */
void mp_mpi_put_places(struct mp_mpi *mpi);
enum mp_mpi_result mp_mpi_restart(struct mp_mpi *mpi, char **argv);

#endif
