/*
 * Reads that come in parts or fail: how often each kind is tried again, and that progress counts.
 * Variants are the engines.
 */
#include "tests/unit/vmm/io/reader_under.h"
#include "vmm/io/reader.h"

#include <errno.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/unit/vmm/io/reader_files.h"
#include "vmm/base/log.h"

static void short_reads_are_continued(void)
{
    const uint32_t shorts[] = { 3, 511, 4096, 5000, BLOCK - 1 };
    struct mp_files *files = open_probed();
    struct mp_reader *reader = reader_new(files);

    for (int direct = 0; direct < 2; direct++) {
        for (size_t i = 0; i < sizeof(shorts) / sizeof(shorts[0]); i++) {
            const uint64_t need = shorts[i] < 100 ? 3001 : 3 * BLOCK - 1234;
            struct fault_plan plan = { .mode = FAULT_ALWAYS,
                                       .calls = READS,
                                       .short_bytes = shorts[i] };
            struct mp_reader_stats before, after;
            struct mp_ticket ticket;

            mp_reader_get_stats(reader, &before);
            set_ticket(&ticket, direct != 0, 2, need);
            CHECK(read_under(reader, &ticket, &plan) > 0);
            check_done(&ticket);
            mp_reader_get_stats(reader, &after);
            CHECK(after.short_reads > before.short_reads ||
                  (direct != 0 && with_uring && need < 4096));

            plan.mode = FAULT_ONCE;
            CHECK_EQ(read_under(reader, &ticket, &plan), 1);
            check_done(&ticket);
        }
    }
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

/* Not two of the longest and a short rest: three of 11 blocks of 4 KiB, and 1234 bytes less. */
static void chunks_are_equally_long(void)
{
    struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = READS, .short_bytes = 45056 };
    struct mp_files *files = open_probed();
    struct mp_reader *reader = reader_new(files);
    struct mp_reader_stats stats;
    struct mp_ticket ticket;

    set_ticket(&ticket, false, 2, 3 * 45056 - 1234);
    read_under(reader, &ticket, &plan);
    check_done(&ticket);
    mp_reader_get_stats(reader, &stats);
    CHECK_EQ(stats.requests, 3);
    CHECK_EQ(stats.short_reads, 0);

    plan.short_bytes = 45056 - 1235;
    read_under(reader, &ticket, &plan);
    check_done(&ticket);
    mp_reader_get_stats(reader, &stats);
    CHECK_EQ(stats.requests, 3 + 6);
    CHECK_EQ(stats.short_reads, 3);
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void single_eio_is_retried(void)
{
    struct mp_files *files = open_probed();
    struct mp_reader *reader = reader_new(files);
    struct mp_reader_stats stats;
    struct mp_ticket ticket;

    for (int direct = 0; direct < 2; direct++) {
        const struct fault_plan plan = { .mode = FAULT_ONCE, .calls = READS };

        set_ticket(&ticket, direct != 0, 1, 3 * BLOCK + 1234);
        CHECK_EQ(read_under(reader, &ticket, &plan), 1);
        check_done(&ticket);
        mp_reader_get_stats(reader, &stats);
        CHECK_EQ(stats.retries, 1 + direct);
    }
    CHECK_EQ(stats.errors, 0);
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void persistent_eio_fails_after_three_tries_and_works_again_later(void)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = READS };
    struct mp_files *files = open_probed();
    struct mp_reader *reader = reader_new(files);
    struct mp_reader_stats stats;
    struct mp_ticket ticket;

    for (int direct = 0; direct < 2; direct++) {
        set_ticket(&ticket, direct != 0, 0, 1000);
        ticket.extents[0].offset = BLOCK;
        CHECK(read_under(reader, &ticket, &plan) >= 3);
        check_failed(&ticket, "E_READ", "at byte 65536: EIO (Input/output error)");
        mp_reader_get_stats(reader, &stats);
        CHECK_EQ(stats.requests, 3 + direct * 4);
        CHECK_EQ(stats.errors, 1 + direct);
        check_works_again(reader, &ticket);
    }
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

/* A broken kernel does not interrupt for ever. */
static void the_thousandth_interruption_in_a_row_fails(void)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS,
                                     .calls = FAULT_BIT(pread),
                                     .error_number = EINTR };
    struct mp_files *files = open_probed();
    enum mp_status status;
    char byte;

    fault_begin(&plan);
    status = mp_files_read(files, 0, 0, 1, &byte);
    CHECK_EQ(fault_end(), 1000);
    CHECK_EQ(status, MP_ERR_IO);
    CHECK(strstr(mp_error_last()->text, "EINTR") != NULL);
    mp_files_destroy(files);
}

/* Failures and progress by turns: more failures in all than are borne in a row. */
static void progress_makes_all_tries_available_again(void)
{
    static const struct {
        int error_number;
        uint32_t borne, short_bytes, need_bytes;
    } cases[] = { { EIO, 3, 300, 3001 }, { EINTR, 1000, 1, 1200 } };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct fault_plan fails = { .mode = FAULT_ALWAYS,
                                          .calls = READS,
                                          .error_number = cases[i].error_number };
        const struct fault_plan plan = { .mode = FAULT_ALWAYS,
                                         .calls = READS,
                                         .every = 2,
                                         .short_bytes = cases[i].short_bytes,
                                         .also = &fails };
        struct mp_files *files = open_probed();
        struct mp_reader *reader = reader_new(files);
        struct mp_reader_stats stats;
        struct mp_ticket ticket;

        set_ticket(&ticket, false, 2, cases[i].need_bytes);
        if (cases[i].error_number != EINTR || !with_uring) { /* the ring is never interrupted */
            CHECK(read_under(reader, &ticket, &plan) > 0);
            check_done(&ticket);
            mp_reader_get_stats(reader, &stats);
            CHECK(stats.retries > cases[i].borne);
        }
        mp_reader_destroy(reader);
        mp_files_destroy(files);
    }
}

static void end_of_file_that_nobody_expected_is_an_error(void)
{
    struct fault_plan plan = { .mode = FAULT_ONCE, .calls = READS, .short_bytes = FAULT_EOF };
    struct mp_files *files = open_probed();
    struct mp_reader *reader = reader_new(files);
    struct mp_ticket ticket;

    for (int direct = 0; direct < 2; direct++) {
        set_ticket(&ticket, direct != 0, 0, 1000);
        ticket.extents[0].offset = BLOCK;
        CHECK_EQ(read_under(reader, &ticket, &plan), 1);
        check_failed(&ticket, "E_TRUNCATED", "ends at byte 65536");
        check_works_again(reader, &ticket);
    }
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void endless_interruptions_end_in_an_error(void)
{
    struct fault_plan plan = { .mode = FAULT_ALWAYS,
                               .calls = FAULT_BIT(pread),
                               .error_number = EINTR };
    struct mp_files *files = open_probed();
    struct mp_reader *reader = reader_new(files);
    struct mp_ticket ticket;
    unsigned char byte;

    fault_begin(&plan);
    CHECK_EQ(mp_files_read(files, 0, 5, 1, &byte), MP_ERR_IO);
    CHECK(fault_end() > 3);
    plan.mode = FAULT_ONCE;
    fault_begin(&plan);
    CHECK_EQ(mp_files_read(files, 0, 5, 1, &byte), MP_OK);
    CHECK_EQ(fault_end(), 1);
    CHECK_EQ(byte, test_byte(0, 5));

    if (!with_uring) {
        plan.mode = FAULT_ALWAYS;
        set_ticket(&ticket, false, 0, 100);
        CHECK(read_under(reader, &ticket, &plan) > 3);
        check_failed(&ticket, "E_READ", "EINTR");
        check_works_again(reader, &ticket);
    }
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

/* The kernel wants to be asked again: a read in the ring becomes a pread(). */
static void would_block_is_read_another_way(void)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS,
                                     .calls = FAULT_BIT(io_uring_read),
                                     .error_number = EAGAIN };
    struct mp_files *files = open_probed();
    struct mp_reader *reader = reader_new(files);
    struct mp_ticket ticket;

    for (int direct = 0; direct < 2; direct++) {
        set_ticket(&ticket, direct != 0, 2, 3 * BLOCK + 500);
        CHECK((read_under(reader, &ticket, &plan) > 0) == with_uring);
        check_done(&ticket);
    }
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    engine_name = argv[1];
    with_uring = strcmp(engine_name, "io_uring") == 0;
    if (with_uring && !test_uring_works())
        SKIP("io_uring cannot be used here");
    test_files_write();
    RUN(short_reads_are_continued);
    RUN(chunks_are_equally_long);
    RUN(single_eio_is_retried);
    RUN(persistent_eio_fails_after_three_tries_and_works_again_later);
    RUN(progress_makes_all_tries_available_again);
    RUN(the_thousandth_interruption_in_a_row_fails);
    RUN(end_of_file_that_nobody_expected_is_an_error);
    RUN(endless_interruptions_end_in_an_error);
    RUN(would_block_is_read_another_way);
    return 0;
}
