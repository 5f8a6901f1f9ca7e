/*
 * Messages over MPI: non-blocking sends and receives on a communicator of their own. With ULFM
 * (Open MPI 5 and later, mpirun --with-ft ulfm) an error is returned and names the rank that has
 * died; without, MPI ends the job. Collective calls after the start are the end, and the restart of
 * ranks that have died, for which the others meet (rank_restart.c). Then a new communicator has
 * the old ranks first and the new ones last, and `number` says who is who.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/cluster/mpi_listen.h"
#include "engine/cluster/mpi_module_int.h"

#define TAG 77
#define SENDS_MAX 256   /* under way to one rank */
#define CLOSE_NAPS 2000 /* of 1 ms */
#define LAST_NAPS 1000  /* of one that was started again: mpirun may end the others with it */

enum mp_mpi_result mp_mpi_fail(struct mp_mpi *mpi, const char *call, int code)
{
    char reason[MPI_MAX_ERROR_STRING] = "";
    int bytes = 0;

    MPI_Error_string(code, reason, &bytes);
    snprintf(mpi->text, sizeof(mpi->text), "%s: %.200s", call, reason);
    return MP_MPI_FAILED;
}

static void note_lost(struct mp_mpi *mpi, int rank)
{
    if (rank < 0 || rank >= mpi->ranks || rank == mpi->rank || mpi->lost[rank] != 0)
        return;
    mpi->lost[rank] = 1;
    mpi->any_died = 1;
}

/* Each of the two functions is there once, so that coverage finds one line for each. */
static int is_death(int code)
{
#if HAS_ULFM
    int class = MPI_SUCCESS;

    MPI_Error_class(code, &class);
    return class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_PROC_FAILED_PENDING ||
           class == MPIX_ERR_REVOKED;
#else
    (void)code;
    return 0;
#endif
}

/* Who has died? Acknowledging lets receives from any rank go on. */
static void find_deaths(struct mp_mpi *mpi)
{
#if HAS_ULFM
    MPI_Group group, all;
    int count = 0;

    if (MPIX_Comm_failure_ack(mpi->comm) != MPI_SUCCESS ||
        MPIX_Comm_failure_get_acked(mpi->comm, &group) != MPI_SUCCESS)
        return;
    if (MPI_Comm_group(mpi->comm, &all) != MPI_SUCCESS) {
        MPI_Group_free(&group);
        return;
    }
    if (MPI_Group_size(group, &count) != MPI_SUCCESS)
        count = 0;
    for (int i = 0; i < count; i++) {
        int rank = MPI_UNDEFINED;

        if (MPI_Group_translate_ranks(group, 1, &i, all, &rank) == MPI_SUCCESS && rank >= 0 &&
            rank < mpi->ranks)
            note_lost(mpi, mpi->number[rank]);
    }
    MPI_Group_free(&all);
    MPI_Group_free(&group);
#else
    (void)mpi;
#endif
}

/* Sends that have ended give their memory back. The receiver of one that fails is lost: what comes
 * later would not be whole. */
void mp_mpi_sweep(struct mp_mpi *mpi)
{
    struct sent **at = &mpi->sends;

    while (*at != NULL) {
        struct sent *sent = *at;
        int done = 0;
        const int code = MPI_Test(&sent->request, &done, MPI_STATUS_IGNORE);

        if (code == MPI_SUCCESS && !done) {
            at = &sent->next;
            continue;
        }
        if (code != MPI_SUCCESS) {
            find_deaths(mpi);
            note_lost(mpi, sent->to);
        }
        *at = sent->next;
        mpi->under_way[sent->to]--;
        free(sent);
    }
}

/* Is something on its way to a rank that may still read it? */
static int is_sending(const struct mp_mpi *mpi)
{
    const struct sent *sent = mpi->sends;

    while (sent != NULL && mpi->lost[sent->to] != 0)
        sent = sent->next;
    return sent != NULL;
}

/* All ranks' communicator: of those that were started together, or of those who started this one
 * and it. */
static int find_comm(struct mp_mpi *mpi)
{
    MPI_Comm parent = MPI_COMM_NULL;
    int code = MPI_Comm_get_parent(&parent);

    if (code != MPI_SUCCESS)
        return code;
    if (parent == MPI_COMM_NULL)
        return MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm);
    mpi->returned = mpi->any_died = 1;
    code = MPI_Comm_set_errhandler(parent, MPI_ERRORS_RETURN);
    return code == MPI_SUCCESS ? MPI_Intercomm_merge(parent, 1, &mpi->comm) : code;
}

static int start(struct mp_mpi *mpi)
{
    int given = MPI_THREAD_SINGLE, code;
    struct mp_mpi_listeners before;

    mp_mpi_listen_before(&before);
    code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given);
    if (code != MPI_SUCCESS)
        return code;
    if (!mp_mpi_listen_only(&before)) {
        snprintf(mpi->text, sizeof(mpi->text),
                 "its sockets would let in everybody: the kernel takes no filter for them, and "
                 "btl_tcp_if_include does not name a single interface");
        return MPI_ERR_OTHER;
    }
    code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = find_comm(mpi);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(mpi->comm, &mpi->rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(mpi->comm, &mpi->ranks);
    return code;
}

void mp_mpi_put_places(struct mp_mpi *mpi)
{
    for (int at = 0; at < mpi->ranks; at++)
        mpi->place[mpi->number[at]] = at;
}

/* Numbers are the places in comm; of a rank that was started again, what the others say. */
static int take_numbers(struct mp_mpi *mpi)
{
    const int place = mpi->rank;
    int code = MPI_SUCCESS, seen = 0;

    for (int at = 0; at < mpi->ranks; at++)
        mpi->number[at] = at;
    if (mpi->returned)
        code = MPI_Bcast(mpi->number, mpi->ranks, MPI_INT, 0, mpi->comm);
    for (int at = 0; at < mpi->ranks && code == MPI_SUCCESS; at++)
        seen += mpi->number[at] >= 0 && mpi->number[at] < mpi->ranks;
    if (code != MPI_SUCCESS || seen != mpi->ranks)
        return code != MPI_SUCCESS ? code : MPI_ERR_OTHER;
    mpi->rank = mpi->number[place];
    mp_mpi_put_places(mpi);
    return code;
}

/* Does the job go on when a rank dies? Open MPI with ULFM says whether it was started so; what it
 * does not say is as the module was built. */
static int find_survives(void)
{
    char value[64] = { HAS_ULFM }; /* a bool */
    MPI_T_cvar_handle handle;
    int given, at = 0, count = 0;

    if (!HAS_ULFM || MPI_T_init_thread(MPI_THREAD_FUNNELED, &given) != MPI_SUCCESS)
        return HAS_ULFM;
    if (MPI_T_cvar_get_index("mpi_ft_enable", &at) == MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(at, NULL, &handle, &count) == MPI_SUCCESS) {
        if (count != 1 || MPI_T_cvar_read(handle, value) != MPI_SUCCESS)
            value[0] = HAS_ULFM;
        (void)MPI_T_cvar_handle_free(&handle);
    }
    (void)MPI_T_finalize();
    return value[0] != 0;
}

static void release(struct mp_mpi *mpi)
{
    free(mpi->number);
    free(mpi->place);
    free(mpi->next);
    free(mpi->under_way);
    free(mpi->lost);
    free(mpi->last);
    free(mpi);
}

static struct mp_mpi *module_open(char *error, size_t error_bytes)
{
    struct mp_mpi *mpi = calloc(1, sizeof(*mpi));
    int code;

    if (mpi == NULL) {
        snprintf(error, error_bytes, "no memory");
        return NULL;
    }
    code = start(mpi);
    if (code != MPI_SUCCESS) {
        if (mpi->text[0] == '\0')
            mp_mpi_fail(mpi, "MPI cannot start", code);
        snprintf(error, error_bytes, "%s", mpi->text);
        free(mpi);
        return NULL;
    }
    mpi->survives = find_survives();
    mpi->under_way = calloc((size_t)mpi->ranks, sizeof(int));
    mpi->lost = calloc((size_t)mpi->ranks, 1);
    mpi->number = calloc((size_t)mpi->ranks, sizeof(int));
    mpi->place = calloc((size_t)mpi->ranks, sizeof(int));
    mpi->next = calloc((size_t)mpi->ranks, sizeof(int));
    if (mpi->under_way == NULL || mpi->lost == NULL || mpi->number == NULL || mpi->place == NULL ||
        mpi->next == NULL) {
        snprintf(error, error_bytes, "no memory");
    } else {
        code = take_numbers(mpi);
        if (code == MPI_SUCCESS)
            return mpi;
        mp_mpi_fail(mpi, "the other ranks", code);
        snprintf(error, error_bytes, "%s", mpi->text);
    }
    release(mpi);
    return NULL;
}

static enum mp_mpi_result module_send(struct mp_mpi *mpi, int to, const void *data, size_t bytes)
{
    struct sent *sent;
    int code;

    mp_mpi_sweep(mpi);
    if (mpi->lost[to] != 0)
        return MP_MPI_LOST;
    if (mpi->under_way[to] >= SENDS_MAX)
        return MP_MPI_FULL;
    sent = malloc(sizeof(*sent) + bytes);
    if (sent == NULL) {
        snprintf(mpi->text, sizeof(mpi->text), "no memory for a message of %zu bytes", bytes);
        return MP_MPI_FAILED;
    }
    memcpy(sent->data, data, bytes);
    sent->to = to;
    code =
        MPI_Isend(sent->data, (int)bytes, MPI_BYTE, mpi->place[to], TAG, mpi->comm, &sent->request);
    if (code != MPI_SUCCESS) {
        free(sent);
        if (!is_death(code))
            return mp_mpi_fail(mpi, "MPI_Isend", code);
        note_lost(mpi, to);
        return MP_MPI_LOST;
    }
    sent->next = mpi->sends;
    mpi->sends = sent;
    mpi->under_way[to]++;
    return MP_MPI_SENT;
}

static enum mp_mpi_result say_lost(struct mp_mpi *mpi, int *from_p)
{
    for (int r = 0; r < mpi->ranks; r++) {
        if (mpi->lost[r] != 1)
            continue;
        mpi->lost[r] = 2;
        *from_p = r;
        return MP_MPI_LOST;
    }
    return MP_MPI_NONE;
}

/* Begin to take a message that was found: a long one comes in parts, and the sender may compute
 * between two of them. MP_MPI_MESSAGE: it is on its way. */
static enum mp_mpi_result begin_receive(struct mp_mpi *mpi, size_t bytes_max, MPI_Message *message,
                                        const MPI_Status *status)
{
    struct arriving *arriving, **end = &mpi->arriving;
    int bytes = 0, code = MPI_Get_count(status, MPI_BYTE, &bytes);

    if (code != MPI_SUCCESS)
        return mp_mpi_fail(mpi, "MPI_Get_count", code);
    if (bytes < 0 || (size_t)bytes > bytes_max) {
        note_lost(mpi, mpi->number[status->MPI_SOURCE]); /* the message is left where it is */
        return MP_MPI_NONE;
    }
    arriving = malloc(sizeof(*arriving) + (size_t)bytes + 1);
    if (arriving == NULL) {
        snprintf(mpi->text, sizeof(mpi->text), "no memory for a message of %d bytes", bytes);
        return MP_MPI_FAILED;
    }
    *arriving =
        (struct arriving){ .from = mpi->number[status->MPI_SOURCE], .bytes = (size_t)bytes };
    code = MPI_Imrecv(arriving->data, bytes, MPI_BYTE, message, &arriving->request);
    if (code != MPI_SUCCESS) {
        free(arriving);
        if (!is_death(code))
            return mp_mpi_fail(mpi, "MPI_Imrecv", code);
        find_deaths(mpi);
        return MP_MPI_NONE;
    }
    while (*end != NULL)
        end = &(*end)->next;
    *end = arriving;
    return MP_MPI_MESSAGE;
}

/* Is there a message? Then begin to take it. */
static enum mp_mpi_result find_message(struct mp_mpi *mpi, size_t bytes_max)
{
    MPI_Message message;
    MPI_Status status;
    int found = 0, code;

    code = MPI_Improbe(MPI_ANY_SOURCE, TAG, mpi->comm, &found, &message, &status);
    if (code != MPI_SUCCESS && is_death(code)) { /* what the dead one sent before comes first */
        find_deaths(mpi);
        found = 0;
        code = MPI_Improbe(MPI_ANY_SOURCE, TAG, mpi->comm, &found, &message, &status);
    }
    if (code != MPI_SUCCESS)
        return is_death(code) ? MP_MPI_NONE : mp_mpi_fail(mpi, "MPI_Improbe", code);
    return found ? begin_receive(mpi, bytes_max, &message, &status) : MP_MPI_NONE;
}

/* Does an earlier message of the same rank come first? */
static int comes_later(const struct mp_mpi *mpi, const struct arriving *one)
{
    const struct arriving *at = mpi->arriving;

    while (at != one && at->from != one->from)
        at = at->next;
    return at != one;
}

/* Hand over a message that is all there. */
static enum mp_mpi_result take_arrived(struct mp_mpi *mpi, int *from_p, void **data_p,
                                       size_t *bytes_p)
{
    struct arriving **at = &mpi->arriving;

    while (*at != NULL) {
        struct arriving *one = *at;
        int done = 0, code = MPI_SUCCESS;

        if (!comes_later(mpi, one))
            code = MPI_Test(&one->request, &done, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS && !done) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        if (code == MPI_SUCCESS) {
            mpi->last = one;
            *from_p = one->from;
            *data_p = one->data;
            *bytes_p = one->bytes;
            return MP_MPI_MESSAGE;
        }
        find_deaths(mpi);
        note_lost(mpi, one->from);
        free(one);
    }
    return MP_MPI_NONE;
}

static enum mp_mpi_result module_poll(struct mp_mpi *mpi, size_t bytes_max, int *from_p,
                                      void **data_p, size_t *bytes_p)
{
    enum mp_mpi_result result, begun = MP_MPI_NONE;

    free(mpi->last);
    mpi->last = NULL;
    mp_mpi_sweep(mpi);
    for (;;) {
        result = take_arrived(mpi, from_p, data_p, bytes_p);
        if (result == MP_MPI_NONE)
            begun = find_message(mpi, bytes_max);
        if (result != MP_MPI_NONE || begun != MP_MPI_MESSAGE)
            break;
    }
    if (result == MP_MPI_NONE)
        result = begun;
    return result != MP_MPI_NONE ? result : say_lost(mpi, from_p);
}

/* Does everybody close? Whoever waits here has nothing more to send. */
static int all_close(struct mp_mpi *mpi, MPI_Request *meeting)
{
    int code = MPI_SUCCESS, met = 0;

    if (*meeting == MPI_REQUEST_NULL)
        code = MPI_Ibarrier(mpi->comm, meeting);
    if (code == MPI_SUCCESS)
        code = MPI_Test(meeting, &met, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
        mpi->any_died = 1;
    return code == MPI_SUCCESS && met;
}

/* What others still send is taken, and dropped: a long message ends only when it is. */
static void drop_arrivals(struct mp_mpi *mpi)
{
    enum mp_mpi_result result = MP_MPI_MESSAGE;
    void *data = NULL;
    size_t bytes = 0;
    int from = 0;

    while (result == MP_MPI_MESSAGE || result == MP_MPI_LOST)
        result = module_poll(mpi, INT_MAX, &from, &data, &bytes);
}

/*
 * With all ranks alive they meet when each has sent all it had, and MPI_Finalize() follows. After a
 * death both may wait for the dead one for ever (Open MPI 5.0), so the process ends without; what
 * was sent gets CLOSE_NAPS to leave, and memory of which MPI may still read stays.
 */
static void module_close(struct mp_mpi *mpi)
{
    const struct timespec nap = { .tv_nsec = 1000000 };
    int naps = mpi != NULL && mpi->returned ? -LAST_NAPS : 0, met = 0;
    MPI_Request meeting = MPI_REQUEST_NULL;

    if (mpi == NULL)
        return;
    for (;;) {
        drop_arrivals(mpi);
        if (mpi->any_died && ((!is_sending(mpi) && naps >= 0) || naps++ >= CLOSE_NAPS))
            break;
        met = !mpi->any_died && !is_sending(mpi) && all_close(mpi, &meeting);
        if (met)
            break;
        nanosleep(&nap, NULL);
    }
    if (met || !mpi->survives)
        MPI_Finalize();
    release(mpi);
}

static int module_rank(const struct mp_mpi *mpi)
{
    return mpi->rank;
}

static int module_ranks(const struct mp_mpi *mpi)
{
    return mpi->ranks;
}

static int module_survives(const struct mp_mpi *mpi)
{
    return mpi->survives;
}

static int module_returned(const struct mp_mpi *mpi)
{
    return mpi->returned;
}

static const char *module_text(const struct mp_mpi *mpi)
{
    return mpi->text;
}

__attribute__((visibility("default"))) extern const struct mp_mpi_module mp_mpi_module_2;
const struct mp_mpi_module mp_mpi_module_2 = {
    .open = module_open,
    .close = module_close,
    .rank = module_rank,
    .ranks = module_ranks,
    .survives = module_survives,
    .returned = module_returned,
    .text = module_text,
    .send = module_send,
    .poll = module_poll,
    .restart = mp_mpi_restart,
};
