#ifndef MP_MPI_MODULE_H
#define MP_MPI_MODULE_H

#include <stddef.h>
#include <stdint.h>

/*
 * What the program asks of MPI. The module (mpi_module.c, libmoepager-mpi.so) is the only part that
 * knows MPI's headers; the program loads it when a cluster is to run, so that it is built and runs
 * without MPI. The module knows nothing of the program.
 *
 * Thread safety: one thread, the one that opened it.
 */
struct mp_mpi;

enum mp_mpi_result {
    MP_MPI_NONE, /* nothing has come */
    MP_MPI_MESSAGE,
    MP_MPI_LOST, /* rank *from has died, or sent more than bytes_max; said once */
    MP_MPI_SENT,
    MP_MPI_FULL,  /* too many messages to this rank are under way */
    MP_MPI_FAILED /* text() says why */
};

struct mp_mpi_module {
    /* NULL: MPI cannot be started; `error` says why. */
    struct mp_mpi *(*open)(char *error, size_t error_bytes);
    void (*close)(struct mp_mpi *mpi);
    int (*rank)(const struct mp_mpi *mpi);
    int (*ranks)(const struct mp_mpi *mpi);
    int (*survives)(const struct mp_mpi *mpi); /* 1: with ULFM, and started so */
    int (*returned)(const struct mp_mpi *mpi); /* 1: started by restart() */
    const char *(*text)(const struct mp_mpi *mpi);
    enum mp_mpi_result (*send)(struct mp_mpi *mpi, int to, const void *data, size_t bytes);
    /* *data_p is valid until the next call. */
    enum mp_mpi_result (*poll)(struct mp_mpi *mpi, size_t bytes_max, int *from_p, void **data_p,
                               size_t *bytes_p);
    /* Start this program again, argv ends with NULL, for each rank that has died. Called by all
     * live ranks, without a message under way. SENT: they have been started, on all ranks or on
     * none. */
    enum mp_mpi_result (*restart)(struct mp_mpi *mpi, char **argv);
};

#define MP_MPI_LIBRARY "libmoepager-mpi.so"
#define MP_MPI_SYMBOL "mp_mpi_module_2" /* the number changes with this header */

#endif
