/*
 * What the reader does when the system fails it: each kind of failure by itself with the promised
 * outcome, then a sweep over every call site of files and reader.
 */
#include "vmm/io/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/unit/vmm/io/reader_files.h"
#include "vmm/base/log.h"

#define READS (FAULT_BIT(pread) | FAULT_BIT(io_uring_read))
#define BLOCK 65536

static bool with_uring;
static const char *engine_name;

/* The largest alignment there is, so that any direct descriptor takes it. */
static unsigned char memory[8 * BLOCK] __attribute__((aligned(BLOCK)));

/* With the probes for direct descriptors behind them, so that failures hit reads of tickets. */
static struct mp_files *open_probed(void)
{
    struct mp_files *files = test_files_open();
    uint32_t align;

    for (uint32_t i = 0; i < TEST_FILES; i++)
        (void)mp_files_direct_fd(files, i, &align);
    return files;
}

static struct mp_reader_config config_for(struct mp_files *files)
{
    return (struct mp_reader_config){
        .files = files,
        .clock = mp_clock_monotonic(),
        .uring = with_uring,
        .depth = 3,
        .threads = 3,
        .chunk_bytes = BLOCK,
    };
}

static struct mp_reader *reader_new(struct mp_files *files)
{
    const struct mp_reader_config config = config_for(files);
    struct mp_reader *reader = NULL;

    CHECK_EQ(mp_reader_create(&config, &reader), MP_OK);
    CHECK_STR(mp_reader_engine(reader), engine_name);
    return reader;
}

static void set_ticket(struct mp_ticket *ticket, bool direct, uint32_t file, uint64_t need_bytes)
{
    memset(ticket, 0, sizeof(*ticket));
    ticket->direct = direct;
    ticket->extent_count = 1;
    ticket->extents[0] = (struct mp_extent){
        .file = file,
        .bytes = (need_bytes + BLOCK - 1) / BLOCK * BLOCK,
        .need_bytes = need_bytes,
        .dst = memory,
    };
}

/* Submit and wait under the plan. Returns how many calls it changed. */
static uint64_t read_under(struct mp_reader *reader, struct mp_ticket *ticket,
                           const struct fault_plan *plan)
{
    memset(memory, 0x11, sizeof(memory));
    fault_begin(plan);
    mp_reader_submit(reader, ticket);
    mp_reader_wait(reader, ticket);
    return fault_end();
}

static void check_done(struct mp_ticket *ticket)
{
    if (mp_ticket_state(ticket) != MP_TICKET_DONE)
        fprintf(stderr, "%s\n", ticket->error.text);
    CHECK_EQ(mp_ticket_state(ticket), MP_TICKET_DONE);
    test_check_ticket(ticket);
}

static void check_failed(const struct mp_ticket *ticket, const char *code, const char *part)
{
    CHECK_EQ(mp_ticket_state(ticket), MP_TICKET_FAILED);
    CHECK_EQ(ticket->error.status, MP_ERR_IO);
    CHECK_STR(ticket->error.code, code);
    if (strstr(ticket->error.text, part) == NULL || strstr(ticket->error.text, "file-") == NULL) {
        fprintf(stderr, "\"%s\" lacks \"%s\" or the file\n", ticket->error.text, part);
        exit(1);
    }
}

static void check_works_again(struct mp_reader *reader, struct mp_ticket *ticket)
{
    memset(memory, 0x22, sizeof(memory));
    mp_reader_submit(reader, ticket);
    mp_reader_wait(reader, ticket);
    check_done(ticket);
    CHECK_EQ(ticket->error.status, MP_OK);
}

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

/* From 4096 to 65536, by powers of two; then reads go through the page cache. */
static void five_alignments_are_tried(void)
{
    const struct fault_plan silent = { .mode = FAULT_ALWAYS, .calls = FAULT_BIT(statx) };
    const struct fault_plan plan = {
        .mode = FAULT_ALWAYS, .calls = FAULT_BIT(pread), .error_number = EINVAL, .also = &silent
    };
    struct mp_files *files = test_files_open();
    uint32_t align = 0;
    int fd;

    fault_begin(&plan);
    fd = mp_files_direct_fd(files, 0, &align);
    (void)fault_end();
    CHECK_EQ(fd, -1);
    CHECK_EQ(align, 0);
    if (fault_matched() == 0)
        fprintf(stderr, "    no O_DIRECT in %s\n", test_tmpdir());
    else
        CHECK_EQ(fault_matched(), 5);
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

static void check_refused_direct(int error_number, const char *name)
{
    struct fault_plan plan = { .mode = FAULT_ONCE, .calls = READS, .error_number = error_number };
    struct mp_files *files = open_probed();
    struct mp_reader *reader = reader_new(files);
    struct mp_ticket ticket;
    uint32_t align;

    set_ticket(&ticket, true, 0, BLOCK + 77);
    if (mp_files_direct_fd(files, 0, &align) >= 0) {
        CHECK_EQ(read_under(reader, &ticket, &plan), 1);
        check_done(&ticket);
    } else {
        fprintf(stderr, "    no O_DIRECT here\n");
    }
    plan.mode = FAULT_ALWAYS;
    CHECK(read_under(reader, &ticket, &plan) > 0);
    check_failed(&ticket, "E_READ", name);
    check_works_again(reader, &ticket);
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void refused_direct_read_is_done_buffered(void)
{
    check_refused_direct(EINVAL, "EINVAL");
    check_refused_direct(EFAULT, "EFAULT");
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

/* So many failures that the read of the eventfd is given up: the thread must wake all the same. */
static void thread_wakes_without_its_eventfd(void)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = READS };
    struct mp_files *files = open_probed();
    struct mp_reader *reader = reader_new(files);
    struct mp_ticket ticket;

    set_ticket(&ticket, false, 2, BLOCK);
    fault_begin(&plan);
    for (int i = 0; i < 20; i++) {
        mp_reader_submit(reader, &ticket);
        mp_reader_wait(reader, &ticket);
        check_failed(&ticket, "E_READ", "EIO");
    }
    CHECK(fault_end() >= 60);
    for (int i = 0; i < 5; i++) {
        check_works_again(reader, &ticket);
        usleep(2000); /* asleep again */
    }
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static char last_line[600];
static unsigned lines;

static void note_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx, (void)level;
    snprintf(last_line, sizeof(last_line), "%s", line);
    lines++;
}

static void ring_that_cannot_be_made_means_threads_and_one_line(void)
{
    const int numbers[] = { ENOSYS, EPERM, EMFILE, ENOMEM };
    const struct mp_log_config log_info = { .levels = "info" };
    const struct mp_log_config log_default = { .levels = "warn" };
    struct mp_files *files = test_files_open();

    CHECK_EQ(mp_log_init(&log_info), 0);
    mp_log_set_sink(note_line, NULL);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const struct fault_plan plan = { .mode = FAULT_ALWAYS,
                                         .calls = FAULT_BIT(io_uring_queue_init),
                                         .error_number = numbers[i] };
        const struct mp_reader_config config = config_for(files);
        struct mp_reader *reader = NULL;
        struct mp_ticket ticket;

        lines = 0;
        fault_begin(&plan);
        CHECK_EQ(mp_reader_create(&config, &reader), MP_OK);
        CHECK_EQ(fault_end(), with_uring);
        CHECK_STR(mp_reader_engine(reader), "threads");
        CHECK_EQ(lines, 1);
        CHECK(strstr(last_line, with_uring ? "io_uring cannot be used" : "threads") != NULL);
        set_ticket(&ticket, true, 2, 3 * BLOCK);
        check_works_again(reader, &ticket);
        mp_reader_destroy(reader);
    }
    mp_log_set_sink(NULL, NULL);
    CHECK_EQ(mp_log_init(&log_default), 0);
    mp_files_destroy(files);
}

static void fewer_threads_than_wanted_are_enough(void)
{
    struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = FAULT_BIT(pthread_create) };
    struct mp_files *files = test_files_open();
    const struct mp_reader_config config = config_for(files);
    struct mp_reader *reader = NULL;
    struct mp_ticket ticket;

    for (plan.skip = 1; plan.skip < 3; plan.skip++) {
        fault_begin(&plan);
        CHECK_EQ(mp_reader_create(&config, &reader), MP_OK);
        CHECK_EQ(fault_end(), !with_uring);
        set_ticket(&ticket, false, 2, 4 * BLOCK);
        check_works_again(reader, &ticket);
        mp_reader_destroy(reader);
    }
    reader = NULL;
    plan.skip = 0;
    fault_begin(&plan);
    CHECK_EQ(mp_reader_create(&config, &reader), MP_ERR_NO_MEMORY);
    CHECK_EQ(fault_end(), 1 + with_uring);
    CHECK(reader == NULL);
    CHECK_STR(mp_error_last()->code, "E_THREADS");
    mp_files_destroy(files);
}

/* Whenever the ring stops working, every ticket is still read. */
static void broken_ring_loses_nothing(void)
{
    const int numbers[] = { EPERM, EAGAIN, EINTR, EBADF };
    struct mp_files *files = test_files_open();

    for (uint64_t skip = 0; skip < 8; skip++) {
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
            const struct fault_plan plan = { .mode = FAULT_ALWAYS,
                                             .calls = FAULT_BIT(io_uring_submit_and_wait),
                                             .skip = skip,
                                             .error_number = numbers[i] };
            struct mp_reader *reader = reader_new(files);
            struct mp_ticket tickets[6];

            memset(memory, 0x33, sizeof(memory));
            fault_begin(&plan);
            for (int t = 0; t < 6; t++) {
                set_ticket(&tickets[t], t % 2 == 0, 2, BLOCK);
                tickets[t].extents[0].offset = (uint64_t)t * BLOCK;
                tickets[t].extents[0].dst = memory + t * BLOCK;
                mp_reader_submit(reader, &tickets[t]);
            }
            for (int t = 0; t < 6; t++) {
                mp_reader_wait(reader, &tickets[t]);
                check_done(&tickets[t]);
            }
            fault_end();
            check_works_again(reader, &tickets[0]);
            mp_reader_destroy(reader);
        }
    }
    mp_files_destroy(files);
}

/* All but the last by names relative to a directory, as models are opened. */
static struct mp_files *try_open(int dir, enum mp_status *status_p)
{
    struct mp_files *files = NULL;
    char path[4200];
    uint32_t index;

    *status_p = mp_files_create(&files);
    for (uint32_t i = 0; i < TEST_FILES && *status_p == MP_OK; i++) {
        test_file_path(path, i);
        *status_p =
            mp_files_add(files, dir, i + 1 < TEST_FILES ? strrchr(path, '/') + 1 : path, &index);
    }
    if (*status_p == MP_OK)
        return files;
    mp_files_destroy(files);
    return NULL;
}

struct sweep {
    int dir;
    unsigned reads;
};

static void sweep_body(const struct fault_plan *plan, void *ctx)
{
    struct mp_reader_config config = config_for(NULL);
    struct mp_reader *reader = NULL;
    struct mp_ticket tickets[8];
    struct sweep *run = ctx;
    enum mp_status status;
    unsigned char bytes[100];

    mp_error_clear();
    memset(memory, 0x44, sizeof(memory));
    fault_begin(plan);
    config.files = try_open(run->dir, &status);
    if (status == MP_OK)
        status = mp_reader_create(&config, &reader);
    if (status != MP_OK) {
        if (fault_end() == 0) {
            fprintf(stderr, "%s\n", mp_error_last()->text);
            exit(1);
        }
        CHECK_EQ(mp_error_last()->status, status);
        CHECK(mp_error_last()->text[0] != '\0');
        mp_files_destroy(config.files);
        return;
    }
    for (int t = 0; t < 8; t++) {
        set_ticket(&tickets[t], t % 2 == 0, t < 6 ? 2 : 1, t < 6 ? BLOCK : 1234);
        tickets[t].extents[0].offset = t < 6 ? (uint64_t)t * BLOCK : 3 * BLOCK;
        tickets[t].extents[0].dst = memory + t * BLOCK;
        mp_reader_submit(reader, &tickets[t]);
    }
    status = mp_files_read(config.files, 0, 10, sizeof(bytes), bytes);
    CHECK(status == MP_OK ? bytes[0] == test_byte(0, 10) : mp_error_last()->text[0] != '\0');
    for (int t = 0; t < 8; t++)
        mp_reader_wait(reader, &tickets[t]);
    (void)fault_end();
    for (int t = 0; t < 8; t++) {
        if (mp_ticket_state(&tickets[t]) == MP_TICKET_DONE) {
            test_check_ticket(&tickets[t]);
        } else {
            CHECK_EQ(mp_ticket_state(&tickets[t]), MP_TICKET_FAILED);
            CHECK_EQ(tickets[t].error.status, MP_ERR_IO);
            CHECK(tickets[t].error.text[0] != '\0');
            CHECK(plan->mode != FAULT_COUNT);
        }
    }
    for (int t = 0; t < 8; t++) {
        check_works_again(reader, &tickets[t]);
        run->reads++;
    }
    mp_reader_destroy(reader);
    mp_files_destroy(config.files);
}

static void every_call_site_fails_cleanly(void)
{
    struct sweep sweep = { .dir = open(test_tmpdir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) };
    uint32_t runs;

    CHECK(sweep.dir >= 0);
    runs = fault_sweep(FAULT_ANY, sweep_body, &sweep);
    fprintf(stderr, "    %u runs, %u of %u sites failed, %u tickets read in the end\n", runs,
            fault_sites_failed(FAULT_ANY), fault_sites_seen(FAULT_ANY), sweep.reads);
    CHECK(sweep.reads > runs);
    close(sweep.dir);
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
    RUN(five_alignments_are_tried);
    RUN(end_of_file_that_nobody_expected_is_an_error);
    RUN(refused_direct_read_is_done_buffered);
    RUN(endless_interruptions_end_in_an_error);
    RUN(would_block_is_read_another_way);
    RUN(thread_wakes_without_its_eventfd);
    RUN(ring_that_cannot_be_made_means_threads_and_one_line);
    RUN(fewer_threads_than_wanted_are_enough);
    RUN(broken_ring_loses_nothing);
    RUN(every_call_site_fails_cleanly);
    return 0;
}
