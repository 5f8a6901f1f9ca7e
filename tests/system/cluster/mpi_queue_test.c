/*
 * mpirun -n 2 PROGRAM: a queue to a rank that does not receive fills and says so; when that rank
 * receives again all that was accepted comes, in order and whole, and the queue takes more. Both
 * end, also with long messages under way that nobody asks for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/cluster/mpi_module.h"
#include "tests/support/test.h"

extern const struct mp_mpi_module mp_mpi_module_2;

#define BYTES (128u << 10) /* more than MPI sends unasked */
#define MORE 3             /* sent after the queue was full */
#define PATIENCE 20000     /* naps */

static void nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static enum mp_mpi_result send_number(struct mp_mpi *mpi, int to, uint32_t number, uint32_t *data)
{
    for (uint32_t i = 0; i < BYTES / sizeof(*data); i++)
        data[i] = number;
    return mp_mpi_module_2.send(mpi, to, data, BYTES);
}

/* The number that the next message is full of. */
static uint32_t receive_number(struct mp_mpi *mpi)
{
    enum mp_mpi_result result = MP_MPI_NONE;
    const uint32_t *data;
    void *got = NULL;
    size_t bytes = 0;
    int from = -1;

    for (uint32_t i = 0; i < PATIENCE && result == MP_MPI_NONE; i++) {
        result = mp_mpi_module_2.poll(mpi, BYTES, &from, &got, &bytes);
        if (result == MP_MPI_NONE)
            nap();
    }
    CHECK_EQ(result, MP_MPI_MESSAGE);
    CHECK_EQ(from, 1 - mp_mpi_module_2.rank(mpi));
    CHECK_EQ(bytes, BYTES);
    data = got;
    for (uint32_t i = 1; i < BYTES / sizeof(*data); i++)
        CHECK_EQ(data[i], data[0]);
    return data[0];
}

static void fill(struct mp_mpi *mpi, uint32_t *data)
{
    enum mp_mpi_result result = MP_MPI_SENT;
    uint32_t sent = 0, naps = 0;

    while (result == MP_MPI_SENT && sent < 1u << 16) {
        result = send_number(mpi, 1, sent, data);
        sent += result == MP_MPI_SENT;
    }
    CHECK_EQ(result, MP_MPI_FULL);
    CHECK(sent > 1);
    fprintf(stderr, "  full after %u messages\n", sent);
    for (uint32_t i = 0; i < MORE; i++) {
        while ((result = send_number(mpi, 1, sent + i, data)) == MP_MPI_FULL) {
            CHECK(naps++ < PATIENCE);
            nap();
        }
        CHECK_EQ(result, MP_MPI_SENT);
    }
    while (send_number(mpi, 1, UINT32_MAX, data) == MP_MPI_FULL)
        nap();
    CHECK_EQ(receive_number(mpi), sent + MORE);
}

/* Rank 1 stands still for a second; then it takes all until the last one and says how many. */
static void drain(struct mp_mpi *mpi, uint32_t *data)
{
    uint32_t number = 0, last;

    for (uint32_t i = 0; i < 1000; i++)
        nap();
    while ((last = receive_number(mpi)) != UINT32_MAX)
        CHECK_EQ(last, number++);
    CHECK_EQ(send_number(mpi, 0, number, data), MP_MPI_SENT);
}

int main(void)
{
    char error[256] = "";
    struct mp_mpi *mpi = mp_mpi_module_2.open(error, sizeof(error));
    uint32_t *data = malloc(BYTES);

    CHECK(mpi != NULL && data != NULL);
    CHECK_EQ(mp_mpi_module_2.ranks(mpi), 2);
    if (mp_mpi_module_2.rank(mpi) == 0)
        fill(mpi, data);
    else
        drain(mpi, data);
    for (uint32_t i = 0; i < MORE; i++)
        CHECK_EQ(mp_mpi_module_2.send(mpi, 1 - mp_mpi_module_2.rank(mpi), data, BYTES),
                 MP_MPI_SENT);
    free(data);
    mp_mpi_module_2.close(mpi);
    return 0;
}
