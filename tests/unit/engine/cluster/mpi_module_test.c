/*
 * Every call of MPI fails once, at a stand-in for MPI (fake_mpi.h): what the module says then, who
 * counts as lost, and that nothing leaks. Real MPI is for cluster_mpi_test.py.
 */
#include "tests/unit/engine/cluster/fake_mpi.h"

#include "tests/support/fault/wrap.h"

#include "engine/cluster/mpi_listen.c"
#include "engine/cluster/mpi_module.c"
#include "engine/cluster/mpi_restart.c"

/* ---- tests */

#define MODULE (&mp_mpi_module_2)

static void fails(int number, const char *call, int skip, int code)
{
    plans[number] = (struct plan){ call, skip, code };
    failed = 0;
}

static struct mp_mpi *start_again(void)
{
    char error[64] = "";
    struct mp_mpi *mpi;

    memset(plans, 0, sizeof(plans));
    mails = failed = isends = finalized = stuck = slow = revoked = spawned = disagrees = 0;
    shrunk = came_later = false;
    dead = -1;
    mpi = MODULE->open(error, sizeof(error));
    CHECK(mpi != NULL);
    CHECK_EQ(groups, 0);
    return mpi;
}

static void post(int from, int bytes)
{
    mail[mails].from = from;
    mail[mails].bytes = bytes;
    memcpy(mail[mails++].data, "abcdefg", 8);
}

static int found_from;
static void *found_data;
static size_t found_bytes;

static enum mp_mpi_result poll(struct mp_mpi *mpi)
{
    return MODULE->poll(mpi, 8, &found_from, &found_data, &found_bytes);
}

static enum mp_mpi_result send_to(struct mp_mpi *mpi, int to)
{
    return MODULE->send(mpi, to, "hello", 6);
}

static void check_lost_once(struct mp_mpi *mpi, int rank)
{
    const int before = isends;

    CHECK_EQ(poll(mpi), MP_MPI_LOST);
    CHECK_EQ(found_from, rank);
    CHECK_EQ(poll(mpi), MP_MPI_NONE);
    CHECK_EQ(send_to(mpi, rank), MP_MPI_LOST);
    CHECK_EQ(isends, before);
}

static void nothing_fails(void)
{
    struct mp_mpi *mpi = start_again();

    CHECK_EQ(MODULE->rank(mpi), 0);
    CHECK_EQ(MODULE->ranks(mpi), RANKS);
    CHECK_EQ(MODULE->survives(mpi), 1);
    CHECK_EQ(send_to(mpi, 1), MP_MPI_SENT);
    CHECK_EQ(poll(mpi), MP_MPI_NONE);
    post(2, 8);
    CHECK_EQ(poll(mpi), MP_MPI_MESSAGE);
    CHECK(found_from == 2 && found_bytes == 8 && memcmp(found_data, "abcdefg", 8) == 0);
    MODULE->close(mpi);
    CHECK_EQ(finalized, 1);
}

/* An MPI with ULFM that was started without it ends all; one that does not say is believed. */
static void mpi_says_whether_it_survives(void)
{
    static const char *const calls[] = { "T_init_thread",       "T_cvar_get_index",
                                         "T_cvar_handle_alloc", "T_cvar_read",
                                         "T_cvar_handle_free",  "T_finalize" };
    struct mp_mpi *mpi;

    no_ft = true;
    mpi = start_again();
    CHECK_EQ(MODULE->survives(mpi), 0);
    MODULE->close(mpi);
    no_ft = false;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        char error[64];

        fails(0, calls[i], 0, MPI_ERR_OTHER);
        mpi = MODULE->open(error, sizeof(error));
        CHECK(mpi != NULL && MODULE->survives(mpi) == 1);
        CHECK_EQ(failed, 1);
        MODULE->close(mpi);
    }
}

static void a_start_fails(void)
{
    static const struct plan calls[] = {
        { "Init_thread", 0, MPI_ERR_OTHER },         { "Comm_set_errhandler", 0, MPI_ERR_OTHER },
        { "Comm_set_errhandler", 1, MPI_ERR_OTHER }, { "Comm_dup", 0, MPI_ERR_OTHER },
        { "Comm_rank", 0, MPI_ERR_OTHER },           { "Comm_size", 0, MPI_ERR_OTHER },
        { "Comm_get_parent", 0, MPI_ERR_OTHER },
    };
    char error[64];

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        fails(0, calls[i].call, calls[i].skip, calls[i].code);
        CHECK(MODULE->open(error, sizeof(error)) == NULL);
        CHECK_EQ(failed, 1);
        CHECK_STR(error, "MPI cannot start: made to fail");
    }
    fails(0, "Comm_dup", 0, MPI_ERR_OTHER);
    fails(1, "Error_string", 0, MPI_ERR_OTHER);
    CHECK(MODULE->open(error, sizeof(error)) == NULL);
    CHECK_EQ(failed, 2);
    CHECK_STR(error, "MPI cannot start: ");
}

static void a_send_fails(void)
{
    struct mp_mpi *mpi = start_again();

    fails(0, "Isend", 0, MPI_ERR_OTHER);
    CHECK_EQ(send_to(mpi, 1), MP_MPI_FAILED);
    CHECK_STR(MODULE->text(mpi), "MPI_Isend: made to fail");
    CHECK_EQ(send_to(mpi, 1), MP_MPI_SENT);
    fails(0, "Isend", 0, DEATH);
    fails(1, "Error_class", 0, MPI_ERR_OTHER); /* then it is any error */
    CHECK_EQ(send_to(mpi, 1), MP_MPI_FAILED);
    fails(0, "Isend", 0, DEATH);
    CHECK_EQ(send_to(mpi, 1), MP_MPI_LOST);
    check_lost_once(mpi, 1);
    MODULE->close(mpi);
}

static void a_send_fails_later(void)
{
    static const int codes[] = { MPI_ERR_OTHER, DEATH };

    for (size_t i = 0; i < 2; i++) {
        struct mp_mpi *mpi = start_again();

        CHECK_EQ(send_to(mpi, 2), MP_MPI_SENT);
        fails(0, "Test", 0, codes[i]);
        check_lost_once(mpi, 2);
        CHECK_EQ(send_to(mpi, 1), MP_MPI_SENT);
        stuck = 5; /* what is under way to a live rank is waited for */
        MODULE->close(mpi);
        CHECK_EQ(stuck, 0);
        CHECK_EQ(finalized, 0);
    }
}

static void a_receive_fails(void)
{
    static const char *const calls[] = { "Improbe", "Get_count", "Imrecv" };

    for (size_t i = 0; i < 3; i++) {
        struct mp_mpi *mpi = start_again();
        char text[64];

        post(1, 4);
        fails(0, calls[i], 0, MPI_ERR_OTHER);
        CHECK_EQ(poll(mpi), MP_MPI_FAILED);
        CHECK_EQ(failed, 1);
        snprintf(text, sizeof(text), "MPI_%s: made to fail", calls[i]);
        CHECK_STR(MODULE->text(mpi), text);
        MODULE->close(mpi);
    }
}

/* It is on its way when its sender dies. */
static void a_receive_fails_later(void)
{
    struct mp_mpi *mpi = start_again();

    post(1, 4);
    fails(0, "Test of a receive", 0, DEATH);
    check_lost_once(mpi, 1);
    CHECK(mpi->arriving == NULL);
    MODULE->close(mpi);
}

/* A message that comes slowly lets those of others pass, and none of the same rank. */
static void long_messages_keep_nobody(void)
{
    struct mp_mpi *mpi = start_again();

    post(1, 3);
    slow = 1;
    CHECK_EQ(poll(mpi), MP_MPI_NONE);
    post(1, 5);
    post(2, 4);
    slow = 3; /* as often the first one is not there: the second one is not asked for */
    CHECK_EQ(poll(mpi), MP_MPI_MESSAGE);
    CHECK(found_from == 2 && found_bytes == 4);
    CHECK_EQ(poll(mpi), MP_MPI_MESSAGE);
    CHECK(found_from == 1 && found_bytes == 3 && memcmp(found_data, "abc", 3) == 0);
    CHECK_EQ(poll(mpi), MP_MPI_MESSAGE);
    CHECK(found_from == 1 && found_bytes == 5 && memcmp(found_data, "abcde", 5) == 0);
    CHECK_EQ(poll(mpi), MP_MPI_NONE);
    MODULE->close(mpi);
}

static void a_rank_dies(void)
{
    struct mp_mpi *mpi = start_again();

    post(2, 4); /* what it sent before comes first */
    dead = 2;
    fails(0, "Improbe", 0, DEATH);
    CHECK_EQ(poll(mpi), MP_MPI_MESSAGE);
    CHECK_EQ(found_from, 2);
    check_lost_once(mpi, 2);
    MODULE->close(mpi);

    mpi = start_again();
    dead = 2;
    fails(0, "Improbe", 0, DEATH);
    fails(1, "Improbe", 1, DEATH);
    check_lost_once(mpi, 2);
    MODULE->close(mpi);

    mpi = start_again();
    post(2, 4);
    dead = 2;
    fails(0, "Imrecv", 0, DEATH);
    check_lost_once(mpi, 2);
    MODULE->close(mpi);
    CHECK_EQ(groups, 0);
}

/* Then nobody is named, until MPI says it again. */
static void who_has_died_is_not_said(void)
{
    static const char *const calls[] = { "Comm_failure_ack", "Comm_failure_get_acked", "Comm_group",
                                         "Group_size", "Group_translate_ranks" };

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct mp_mpi *mpi = start_again();

        dead = 1;
        fails(0, "Improbe", 0, DEATH);
        fails(1, calls[i], 0, MPI_ERR_OTHER);
        CHECK_EQ(poll(mpi), MP_MPI_NONE);
        CHECK_EQ(failed, 2);
        CHECK_EQ(groups, 0);
        fails(0, "Improbe", 0, DEATH);
        check_lost_once(mpi, 1);
        MODULE->close(mpi);
    }
}

static enum mp_mpi_result restart(struct mp_mpi *mpi)
{
    char program[] = "program", word[] = "bench";
    char *words[] = { program, word, NULL };

    return MODULE->restart(mpi, words);
}

static struct mp_mpi *start_and_lose(int rank)
{
    struct mp_mpi *mpi = start_again();

    stuck = 2;
    CHECK_EQ(send_to(mpi, rank), MP_MPI_SENT); /* and it stays under way */
    dead = rank;
    fails(0, "Improbe", 0, DEATH);
    CHECK_EQ(poll(mpi), MP_MPI_LOST);
    stuck = 1 << 20;
    return mpi;
}

/* The new communicator has 0, 2 and then 1. */
static void a_rank_comes_back(void)
{
    struct mp_mpi *mpi = start_and_lose(1);
    struct sent *under_way = mpi->sends;
    struct arriving *arriving;

    post(1, 4);
    post(2, 4);
    slow = 2;
    CHECK_EQ(poll(mpi), MP_MPI_MESSAGE); /* of 2: that of 1 does not end */
    CHECK_EQ(found_from, 2);
    arriving = mpi->arriving;
    CHECK_EQ(restart(mpi), MP_MPI_SENT);
    CHECK(spawned == 1 && groups == 0 && revoked == 0);
    CHECK(mpi->sends == NULL && mpi->arriving == NULL && mpi->under_way[1] == 0);
    free(under_way); /* real MPI may still use them */
    free(arriving);
    stuck = 0;
    CHECK_EQ(send_to(mpi, 1), MP_MPI_SENT);
    CHECK_EQ(sent_to, 2);
    CHECK_EQ(send_to(mpi, 2), MP_MPI_SENT);
    CHECK_EQ(sent_to, 1);
    post(2, 4);
    CHECK_EQ(poll(mpi), MP_MPI_MESSAGE);
    CHECK_EQ(found_from, 1);
    shrunk = false;
    dead = 1; /* in the new order */
    fails(0, "Improbe", 0, DEATH);
    check_lost_once(mpi, 2);
    MODULE->close(mpi);
    CHECK_EQ(finalized, 0);
}

static void one_who_comes_back_is_told_who_it_is(void)
{
    static const int order[] = { 0, 2, 1 }, wrong[] = { 0, 3, 1 };
    static const struct plan calls[] = {
        { "Comm_get_parent", 0, MPI_ERR_OTHER },
        { "Comm_set_errhandler", 1, MPI_ERR_OTHER },
        { "Intercomm_merge", 0, MPI_ERR_OTHER },
        { "Bcast", 0, MPI_ERR_OTHER },
    };
    char error[64];
    struct mp_mpi *mpi;

    memset(plans, 0, sizeof(plans));
    came_later = true;
    told = order;
    mpi = MODULE->open(error, sizeof(error));
    CHECK(mpi != NULL && MODULE->rank(mpi) == 1 && MODULE->returned(mpi) == 1);
    CHECK_EQ(send_to(mpi, 2), MP_MPI_SENT);
    CHECK_EQ(sent_to, 1);
    MODULE->close(mpi);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        fails(0, calls[i].call, calls[i].skip, calls[i].code);
        CHECK(MODULE->open(error, sizeof(error)) == NULL);
        CHECK_EQ(failed, 1);
    }
    told = wrong;
    CHECK(MODULE->open(error, sizeof(error)) == NULL);
}

/* Then nobody comes, all is as before, and it can be tried again. */
static void a_restart_fails(void)
{
    static const struct plan calls[] = {
        { "Comm_shrink", 0, MPI_ERR_OTHER },
        { "Comm_set_errhandler", 0, MPI_ERR_OTHER },
        { "Comm_rank", 0, MPI_ERR_OTHER },
        { "Comm_group", 0, MPI_ERR_OTHER },
        { "Comm_group", 1, MPI_ERR_OTHER },
        { "Group_size", 0, MPI_ERR_OTHER },
        { "Group_translate_ranks", 1, DEATH },
        { "Comm_agree", 0, DEATH },
        { "Comm_spawn", 0, MPI_ERR_OTHER },
        { "Comm_set_errhandler", 1, MPI_ERR_OTHER },
        { "Intercomm_merge", 0, MPI_ERR_OTHER },
        { "Comm_set_errhandler", 2, MPI_ERR_OTHER },
        { "Comm_agree", 1, DEATH },
        { "Bcast", 0, DEATH },
    };
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct mp_mpi *mpi = start_and_lose(2);
        struct sent *under_way = mpi->sends;

        fails(0, calls[i].call, calls[i].skip, calls[i].code);
        CHECK_EQ(restart(mpi), MP_MPI_FAILED);
        CHECK(failed == 1 && groups == 0 && mpi->lost[2] != 0 && mpi->place[1] == 1);
        CHECK(strncmp(MODULE->text(mpi), "ranks cannot be started again", 29) == 0);
        CHECK_EQ(restart(mpi), MP_MPI_SENT);
        free(under_way);
        stuck = 0;
        MODULE->close(mpi);
    }
}

static void another_rank_gives_up(void)
{
    struct mp_mpi *mpi = start_and_lose(2);
    struct sent *under_way = mpi->sends;

    disagrees = 1;
    CHECK_EQ(restart(mpi), MP_MPI_FAILED);
    CHECK_EQ(spawned, 0);
    CHECK_EQ(MODULE->restart(mpi, NULL), MP_MPI_FAILED); /* nothing to start on this rank */
    disagrees = 2;
    CHECK_EQ(restart(mpi), MP_MPI_FAILED);
    CHECK(spawned == 1 && revoked == 1);
    fails(0, "Comm_revoke", 0, MPI_ERR_OTHER);
    disagrees = 2;
    CHECK_EQ(restart(mpi), MP_MPI_FAILED);
    CHECK_EQ(failed, 1);
    CHECK_EQ(restart(mpi), MP_MPI_SENT);
    free(under_way);
    stuck = 0;
    MODULE->close(mpi);
}

static void an_end_fails(void)
{
    struct mp_mpi *mpi = start_again();

    fails(0, "Finalize", 0, MPI_ERR_OTHER);
    MODULE->close(mpi);
    CHECK_EQ(failed, 1);
}

/* What the others still send is taken; then all meet. */
static void the_end_waits_for_all(void)
{
    static const struct plan calls[] = { { "Ibarrier", 0, DEATH }, { "Test", 0, DEATH } };
    struct mp_mpi *mpi = start_again();

    post(1, 4);
    post(2, 9);
    stuck = 3;
    MODULE->close(mpi);
    CHECK(mails == 0 && stuck == 0 && finalized == 1);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        mpi = start_again(); /* somebody dies before that */
        fails(0, calls[i].call, calls[i].skip, calls[i].code);
        MODULE->close(mpi);
        CHECK(failed == 1 && finalized == 0);
    }
}

static void too_much(void)
{
    struct mp_mpi *mpi = start_again();

    stuck = 1 << 20;
    for (int i = 0; i < SENDS_MAX; i++)
        CHECK_EQ(send_to(mpi, 1), MP_MPI_SENT);
    CHECK_EQ(send_to(mpi, 1), MP_MPI_FULL);
    CHECK_EQ(send_to(mpi, 2), MP_MPI_SENT);
    stuck = 0;
    post(2, 9); /* more than poll() allows */
    check_lost_once(mpi, 2);
    MODULE->close(mpi);
}

static void memory_is_short(void)
{
    struct mp_mpi *mpi = start_again();
    char error[64];

    for (uint64_t n = 0; n < 6; n++) {
        struct mp_mpi *none;

        fault_nth(FAULT_ALLOCATIONS, n);
        none = MODULE->open(error, sizeof(error));
        CHECK_EQ(fault_end(), 1);
        CHECK(none == NULL);
        CHECK_STR(error, "no memory");
    }
    fault_nth(FAULT_ALLOCATIONS, 0);
    CHECK_EQ(send_to(mpi, 1), MP_MPI_FAILED);
    CHECK_EQ(fault_end(), 1);
    CHECK_STR(MODULE->text(mpi), "no memory for a message of 6 bytes");
    post(1, 4);
    fault_nth(FAULT_ALLOCATIONS, 0);
    CHECK_EQ(poll(mpi), MP_MPI_FAILED);
    CHECK_EQ(fault_end(), 1);
    CHECK_STR(MODULE->text(mpi), "no memory for a message of 4 bytes");
    MODULE->close(mpi);
}

/* Whoever died is known by then, and a group that stays is no harm. */
static void a_group_is_not_freed(void)
{
    struct mp_mpi *mpi = start_and_lose(2);
    struct sent *under_way = mpi->sends;

    fails(0, "Group_free", 0, MPI_ERR_OTHER);
    CHECK_EQ(restart(mpi), MP_MPI_SENT);
    CHECK_EQ(failed, 1);
    free(under_way);
    stuck = 0;
    MODULE->close(mpi);
}

static void all_calls_of(const char *path)
{
    char line[256];
    FILE *file = fopen(path, "r");
    uint32_t seen = 0;

    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL) {
        for (const char *at = line; (at = strstr(at, "MPI")) != NULL; at++) {
            const char *name = at + (strncmp(at, "MPIX_", 5) == 0 ? 5 : 4);
            const size_t bytes =
                strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_");

            if (name[-1] != '_' || name[bytes] != '(' || name[bytes + 1] == ')')
                continue; /* a comment's is MPI_Name() */
            seen++;
            if (!has_failed(name, bytes)) {
                fprintf(stderr, "%s: MPI_%.*s has failed in no test\n", path, (int)bytes, name);
                exit(1);
            }
        }
    }
    CHECK(seen >= 10);
    fclose(file);
}

/* The last test: whatever the sources call has failed in one before. */
static void no_call_is_left_out(void)
{
    all_calls_of("engine/cluster/mpi_module.c");
    all_calls_of("engine/cluster/mpi_restart.c");
}

int main(void)
{
    RUN(nothing_fails);
    RUN(mpi_says_whether_it_survives);
    RUN(a_start_fails);
    RUN(a_send_fails);
    RUN(a_send_fails_later);
    RUN(a_receive_fails);
    RUN(a_receive_fails_later);
    RUN(long_messages_keep_nobody);
    RUN(a_rank_dies);
    RUN(who_has_died_is_not_said);
    RUN(a_rank_comes_back);
    RUN(one_who_comes_back_is_told_who_it_is);
    RUN(a_restart_fails);
    RUN(another_rank_gives_up);
    RUN(an_end_fails);
    RUN(the_end_waits_for_all);
    RUN(too_much);
    RUN(memory_is_short);
    RUN(a_group_is_not_freed);
    RUN(no_call_is_left_out);
    return 0;
}
