/*
 * A stand-in for MPI, seen from rank 0 of three: its calls take the names of MPI's after this
 * header, for the module's own source. What each call finds and whether it fails is in variables.
 */
#ifndef MP_TEST_FAKE_MPI_H
#define MP_TEST_FAKE_MPI_H

#include <mpi.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"

#ifndef MPIX_ERR_PROC_FAILED /* an MPI without ULFM: the module's part for it is tested, too */
#define MPIX_ERR_PROC_FAILED 1001
#define MPIX_ERR_PROC_FAILED_PENDING 1002
#define MPIX_ERR_REVOKED 1003
#endif
#define RANKS 3
#define DEATH MPIX_ERR_PROC_FAILED

static struct plan {
    const char *call;
    int skip, code;
} plans[2];
static struct {
    int from, bytes;
    char data[8];
} mail[8];
static int mails, failed, isends, sent_to, finalized, groups, stuck, slow, revoked, spawned,
    disagrees;
static bool shrunk, came_later;
static bool no_ft;      /* MPI was started without fault tolerance */
static const int *told; /* to one who came later: who is who */
static int dead = -1;

/* Calls that have failed in any test, by name. */
static const char *have_failed[64];
static size_t have_failed_count;

static bool has_failed(const char *call, size_t bytes)
{
    for (size_t i = 0; i < have_failed_count; i++) {
        if (strlen(have_failed[i]) == bytes && memcmp(have_failed[i], call, bytes) == 0)
            return true;
    }
    return false;
}

static int called(const char *call)
{
    for (size_t i = 0; i < 2; i++) {
        if (plans[i].call == NULL || strcmp(plans[i].call, call) != 0 || plans[i].skip-- != 0)
            continue;
        failed++;
        if (!has_failed(call, strlen(call))) {
            CHECK(have_failed_count < sizeof(have_failed) / sizeof(have_failed[0]));
            have_failed[have_failed_count++] = call;
        }
        return plans[i].code;
    }
    return MPI_SUCCESS;
}

static int fake_Init_thread(int *argc, char ***argv, int required, int *given)
{
    (void)argc, (void)argv;
    *given = required;
    return called("Init_thread");
}

static int fake_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler)
{
    (void)comm, (void)handler;
    return called("Comm_set_errhandler");
}

static int fake_Comm_dup(MPI_Comm comm, MPI_Comm *copy)
{
    *copy = comm;
    return called("Comm_dup");
}

static int fake_Comm_rank(MPI_Comm comm, int *rank)
{
    (void)comm;
    *rank = came_later ? RANKS - 1 : 0;
    return called("Comm_rank");
}

static int fake_Comm_size(MPI_Comm comm, int *size)
{
    (void)comm;
    *size = RANKS;
    return called("Comm_size");
}

static int fake_Isend(const void *data, int bytes, MPI_Datatype type, int to, int tag,
                      MPI_Comm comm, MPI_Request *request)
{
    const int code = called("Isend");

    (void)data, (void)bytes, (void)type, (void)tag, (void)comm;
    sent_to = to;
    *request = MPI_REQUEST_NULL;
    isends += code == MPI_SUCCESS;
    return code;
}

static int fake_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    (void)status;
    if (*request == (MPI_Request)(void *)&mail) { /* a receive */
        *done = slow == 0;
        slow -= slow > 0;
        return called("Test of a receive");
    }
    *done = stuck == 0;
    stuck -= stuck > 0;
    return called("Test");
}

static int fake_Improbe(int from, int tag, MPI_Comm comm, int *found, MPI_Message *message,
                        MPI_Status *status)
{
    const int code = called("Improbe");

    (void)from, (void)tag, (void)comm;
    *message = MPI_MESSAGE_NULL;
    *found = code == MPI_SUCCESS && mails > 0;
    if (*found)
        status->MPI_SOURCE = mail[0].from;
    return code;
}

static int fake_Get_count(const MPI_Status *status, MPI_Datatype type, int *count)
{
    (void)status, (void)type;
    *count = mail[0].bytes;
    return called("Get_count");
}

static int fake_Imrecv(void *data, int bytes, MPI_Datatype type, MPI_Message *message,
                       MPI_Request *request)
{
    const int code = called("Imrecv");

    (void)type, (void)message;
    *request = (MPI_Request)(void *)&mail;
    if (code == MPI_SUCCESS)
        memcpy(data, mail[0].data, (size_t)bytes);
    mails--;
    memmove(mail, mail + 1, sizeof(mail) - sizeof(mail[0]));
    return code;
}

static int fake_Comm_failure_ack(MPI_Comm comm)
{
    (void)comm;
    return called("Comm_failure_ack");
}

static int fake_group(const char *call, MPI_Group *group)
{
    const int code = called(call);

    *group = MPI_GROUP_EMPTY;
    groups += code == MPI_SUCCESS;
    return code;
}

static int fake_Comm_failure_get_acked(MPI_Comm comm, MPI_Group *group)
{
    (void)comm;
    return fake_group("Comm_failure_get_acked", group);
}

static int fake_Comm_group(MPI_Comm comm, MPI_Group *group)
{
    (void)comm;
    return fake_group("Comm_group", group);
}

static int fake_Group_size(MPI_Group group, int *size)
{
    (void)group;
    *size = shrunk ? RANKS - 1 : dead >= 0;
    return called("Group_size");
}

static int fake_Group_translate_ranks(MPI_Group from, int count, const int *ranks, MPI_Group to,
                                      int *translated)
{
    const int code = called("Group_translate_ranks");

    (void)from, (void)count, (void)to;
    *translated = code != MPI_SUCCESS ? 0 : shrunk ? ranks[0] + (ranks[0] >= dead) : dead;
    return code;
}

static int fake_Group_free(MPI_Group *group)
{
    (void)group;
    groups--;
    return called("Group_free");
}

static int fake_Error_class(int code, int *class)
{
    const int result = called("Error_class");

    if (result == MPI_SUCCESS)
        *class = code;
    return result;
}

static int fake_Error_string(int code, char *text, int *bytes)
{
    const int result = called("Error_string");

    (void)code;
    if (result == MPI_SUCCESS)
        *bytes = sprintf(text, "made to fail");
    return result;
}

static int fake_Comm_get_parent(MPI_Comm *parent)
{
    *parent = came_later ? MPI_COMM_WORLD : MPI_COMM_NULL;
    return called("Comm_get_parent");
}

static int fake_Intercomm_merge(MPI_Comm between, int high, MPI_Comm *all)
{
    *all = between;
    CHECK_EQ(high, came_later);
    return called("Intercomm_merge");
}

static int fake_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
    (void)type, (void)comm;
    CHECK(count == RANKS && root == 0);
    if (came_later)
        memcpy(data, told, RANKS * sizeof(int));
    return called("Bcast");
}

static int fake_Ibarrier(MPI_Comm comm, MPI_Request *request)
{
    (void)comm;
    *request = MPI_REQUEST_NULL;
    return called("Ibarrier");
}

static int fake_Comm_shrink(MPI_Comm comm, MPI_Comm *left)
{
    *left = comm;
    shrunk = true;
    return called("Comm_shrink");
}

static int fake_Comm_agree(MPI_Comm comm, int *flag)
{
    (void)comm;
    *flag &= disagrees-- != 1;
    return called("Comm_agree");
}

static int fake_Comm_spawn(const char *program, char **argv, int count, MPI_Info info, int root,
                           MPI_Comm comm, MPI_Comm *between, int *codes)
{
    (void)info, (void)codes;
    CHECK(strcmp(program, "program") == 0 && strcmp(argv[0], "bench") == 0 && root == 0);
    *between = comm;
    spawned += count;
    return called("Comm_spawn");
}

static int fake_Comm_revoke(MPI_Comm comm)
{
    (void)comm;
    revoked++;
    return called("Comm_revoke");
}

static int fake_T_init_thread(int required, int *given)
{
    *given = required;
    return called("T_init_thread");
}

static int fake_T_cvar_get_index(const char *name, int *index)
{
    CHECK_STR(name, "mpi_ft_enable");
    *index = 37;
    return called("T_cvar_get_index");
}

static int fake_T_cvar_handle_alloc(int index, void *object, MPI_T_cvar_handle *handle, int *count)
{
    CHECK(index == 37 && object == NULL);
    *handle = MPI_T_CVAR_HANDLE_NULL;
    *count = 1;
    return called("T_cvar_handle_alloc");
}

static int fake_T_cvar_read(MPI_T_cvar_handle handle, void *value)
{
    (void)handle;
    *(bool *)value = !no_ft;
    return called("T_cvar_read");
}

static int fake_T_cvar_handle_free(MPI_T_cvar_handle *handle)
{
    (void)handle;
    return called("T_cvar_handle_free");
}

static int fake_T_finalize(void)
{
    return called("T_finalize");
}

static int fake_Finalize(void)
{
    finalized++;
    return called("Finalize");
}

#define MPI_Init_thread fake_Init_thread
#define MPI_Comm_set_errhandler fake_Comm_set_errhandler
#define MPI_Comm_dup fake_Comm_dup
#define MPI_Comm_rank fake_Comm_rank
#define MPI_Comm_size fake_Comm_size
#define MPI_Isend fake_Isend
#define MPI_Test fake_Test
#define MPI_Improbe fake_Improbe
#define MPI_Get_count fake_Get_count
#define MPI_Imrecv fake_Imrecv
#define MPIX_Comm_failure_ack fake_Comm_failure_ack
#define MPIX_Comm_failure_get_acked fake_Comm_failure_get_acked
#define MPI_Comm_group fake_Comm_group
#define MPI_Group_size fake_Group_size
#define MPI_Group_translate_ranks fake_Group_translate_ranks
#define MPI_Group_free fake_Group_free
#define MPI_Error_class fake_Error_class
#define MPI_Error_string fake_Error_string
#define MPI_Comm_get_parent fake_Comm_get_parent
#define MPI_Intercomm_merge fake_Intercomm_merge
#define MPI_Bcast fake_Bcast
#define MPI_Ibarrier fake_Ibarrier
#define MPIX_Comm_shrink fake_Comm_shrink
#define MPIX_Comm_agree fake_Comm_agree
#define MPI_Comm_spawn fake_Comm_spawn
#define MPIX_Comm_revoke fake_Comm_revoke
#define MPI_T_init_thread fake_T_init_thread
#define MPI_T_cvar_get_index fake_T_cvar_get_index
#define MPI_T_cvar_handle_alloc fake_T_cvar_handle_alloc
#define MPI_T_cvar_read fake_T_cvar_read
#define MPI_T_cvar_handle_free fake_T_cvar_handle_free
#define MPI_T_finalize fake_T_finalize
#define MPI_Finalize fake_Finalize

#endif
