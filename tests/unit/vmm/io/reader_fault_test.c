/*
 * What the reader does when the system fails it: each kind of failure by itself with the promised
 * outcome, then a sweep over every call site of files and reader.
 */
#include "tests/unit/vmm/io/reader_under.h"
#include "vmm/io/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/unit/vmm/io/reader_files.h"
#include "vmm/base/log.h"

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
    RUN(five_alignments_are_tried);
    RUN(refused_direct_read_is_done_buffered);
    RUN(thread_wakes_without_its_eventfd);
    RUN(ring_that_cannot_be_made_means_threads_and_one_line);
    RUN(fewer_threads_than_wanted_are_enough);
    RUN(broken_ring_loses_nothing);
    RUN(every_call_site_fails_cleanly);
    return 0;
}
