/*
 * Ranks that have died are started again, by MPI, where it wants to: those who are left make a
 * communicator of their own (ULFM's shrink), start the others from it, and merge with them.
 */
#include "engine/cluster/mpi_module_int.h"

#if HAS_ULFM
/* number[] := of all places in the new communicator: those who are left, then those who come, both
 * ascending. */
static int number_all(struct mp_mpi *mpi, MPI_Comm left, int *number, int *left_count_p)
{
    MPI_Group before, now;
    int count = 0, at = 0, code = MPI_Comm_group(mpi->comm, &before);

    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Comm_group(left, &now);
    if (code != MPI_SUCCESS) {
        MPI_Group_free(&before);
        return code;
    }
    code = MPI_Group_size(now, &count);
    for (int i = 0; i < count && code == MPI_SUCCESS; i++) {
        int place = MPI_UNDEFINED;

        code = MPI_Group_translate_ranks(now, 1, &i, before, &place);
        if (code == MPI_SUCCESS)
            number[at++] = mpi->number[place];
    }
    *left_count_p = count;
    for (int r = 0; r < mpi->ranks && code == MPI_SUCCESS; r++) {
        int i = 0;

        while (i < count && number[i] != r)
            i++;
        if (i == count && at < mpi->ranks)
            number[at++] = r;
    }
    MPI_Group_free(&now);
    MPI_Group_free(&before);
    return code;
}

/* argv counts on the first rank only, where it is not NULL. */
static int spawn(MPI_Comm left, int count, char **argv, MPI_Comm *all)
{
    MPI_Comm between = MPI_COMM_NULL;
    int code = MPI_Comm_spawn(argv != NULL ? argv[0] : "", argv != NULL ? argv + 1 : MPI_ARGV_NULL,
                              count, MPI_INFO_NULL, 0, left, &between, MPI_ERRCODES_IGNORE);

    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(between, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Intercomm_merge(between, 0, all);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(*all, MPI_ERRORS_RETURN);
    return code;
}

/* What is still under way to a dead one or from it is nobody's: MPI may use it, so its memory
 * stays.
 */
static void forget_messages(struct mp_mpi *mpi)
{
    struct arriving **from = &mpi->arriving;
    struct sent **at = &mpi->sends;

    while (*from != NULL) {
        struct arriving *arriving = *from;

        if (mpi->lost[arriving->from] == 0)
            from = &arriving->next;
        else
            *from = arriving->next;
    }
    while (*at != NULL) {
        struct sent *sent = *at;

        if (mpi->lost[sent->to] == 0)
            at = &sent->next;
        else
            *at = sent->next;
    }
}

/* Start those who are missing in `left` as new processes, and let them meet the others. */
static int bring_back(struct mp_mpi *mpi, MPI_Comm left, int code, char **argv, MPI_Comm *all)
{
    int count = 0, place = 0, ok;

    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(left, &place);
    if (code == MPI_SUCCESS)
        code = number_all(mpi, left, mpi->next, &count);
    ok = code == MPI_SUCCESS && (place != 0 || argv != NULL) && count < mpi->ranks;
    if (MPIX_Comm_agree(left, &ok) != MPI_SUCCESS || !ok)
        return code != MPI_SUCCESS ? code : MPI_ERR_OTHER;
    code = spawn(left, mpi->ranks - count, argv, all);
    ok = code == MPI_SUCCESS;
    if (MPIX_Comm_agree(left, &ok) != MPI_SUCCESS || !ok)
        return code != MPI_SUCCESS ? code : MPI_ERR_OTHER;
    return MPI_Bcast(mpi->next, mpi->ranks, MPI_INT, 0, *all);
}

/* All agree before somebody is started and after, so that nobody waits for one who has given up.
 * Communicators with a dead rank are not freed: that could wait for it. */
static int restart_all(struct mp_mpi *mpi, char **argv)
{
    MPI_Comm left = MPI_COMM_NULL, all = MPI_COMM_NULL;
    int code;

    mp_mpi_sweep(mpi);
    code = MPIX_Comm_shrink(mpi->comm, &left);
    if (code == MPI_SUCCESS)
        code = bring_back(mpi, left, MPI_Comm_set_errhandler(left, MPI_ERRORS_RETURN), argv, &all);
    if (code != MPI_SUCCESS) {
        if (all != MPI_COMM_NULL)
            MPIX_Comm_revoke(all); /* who has come does not wait for the others */
        return code;
    }
    forget_messages(mpi);
    mpi->comm = all;
    for (int r = 0; r < mpi->ranks; r++) {
        mpi->number[r] = mpi->next[r];
        mpi->under_way[r] = mpi->lost[r] != 0 ? 0 : mpi->under_way[r];
        mpi->lost[r] = 0;
    }
    mp_mpi_put_places(mpi);
    return MPI_SUCCESS;
}
#endif

enum mp_mpi_result mp_mpi_restart(struct mp_mpi *mpi, char **argv)
{
#if HAS_ULFM
    const int code = restart_all(mpi, argv);
#else
    const int code = MPI_ERR_OTHER;

    (void)argv;
#endif
    return code == MPI_SUCCESS ? MP_MPI_SENT
                               : mp_mpi_fail(mpi, "ranks cannot be started again", code);
}
