/*
 * Every test runs with both engines. Contents are compared byte by byte with what the tests wrote;
 * each byte follows from file and place, so that a byte from a wrong place is seen. Order is tested
 * with one chunk in flight and a clock that holds the reader while tickets are queued.
 */
#include "tests/unit/vmm/io/reader_either.h"
#include "vmm/io/reader.h"

#include <fcntl.h>

#include "tests/support/test.h"
#include "tests/unit/vmm/io/reader_files.h"

static void random_extents_of_several_files_arrive_unchanged(void)
{
    struct mp_files *files = test_files_open();
    uint64_t seed = 42;

    for (int round = 0; round < 60; round++) {
        struct mp_reader *reader =
            reader_new(files, 1 + (uint32_t)(round % 5), 4096u << (round % 4));
        struct mp_ticket tickets[6];
        unsigned char *memory[6];

        for (int t = 0; t < 6; t++) {
            memory[t] = test_random_ticket(files, &tickets[t], &seed);
            mp_reader_submit(reader, &tickets[t]);
        }
        for (int t = 0; t < 6; t++) {
            mp_reader_wait(reader, &tickets[t]);
            CHECK_EQ(mp_ticket_state(&tickets[t]), MP_TICKET_DONE);
            CHECK(tickets[t].submitted_ns <= tickets[t].started_ns);
            CHECK(tickets[t].started_ns <= tickets[t].done_ns);
            test_check_ticket(&tickets[t]);
            free(memory[t]);
        }
        CHECK(mp_reader_idle(reader));
        mp_reader_destroy(reader);
    }
    mp_files_destroy(files);
}

static void ticket_without_bytes_is_done(void)
{
    struct mp_files *files = test_files_open();
    struct mp_reader *reader = reader_new(files, 2, 4096);
    struct mp_ticket ticket;

    one_extent(&ticket, 0, 0, 0, NULL);
    mp_reader_submit(reader, &ticket);
    mp_reader_wait(reader, &ticket);
    CHECK_EQ(mp_ticket_state(&ticket), MP_TICKET_DONE);
    ticket.extent_count = 0;
    mp_reader_submit(reader, &ticket);
    mp_reader_wait(reader, &ticket);
    CHECK_EQ(mp_ticket_state(&ticket), MP_TICKET_DONE);
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void need_beyond_the_end_fails_and_names_the_byte(void)
{
    struct mp_files *files = test_files_open();
    struct mp_reader *reader = reader_new(files, 4, 8192);
    const uint64_t file_bytes = mp_files_bytes(files, 1);
    const uint64_t start = file_bytes / 4096 * 4096 - 3 * 4096;
    struct mp_reader_stats stats;
    struct mp_ticket ticket;
    char expect[100];
    void *dst;

    CHECK_EQ(posix_memalign(&dst, 65536, 8 * 65536), 0);
    snprintf(expect, sizeof(expect), "ends at byte %llu", (unsigned long long)file_bytes);
    for (int direct = 0; direct < 2; direct++) {
        one_extent(&ticket, 1, start, 6 * 4096, dst);
        ticket.direct = direct != 0;
        mp_reader_submit(reader, &ticket);
        mp_reader_wait(reader, &ticket);
        CHECK_EQ(mp_ticket_state(&ticket), MP_TICKET_FAILED);
        CHECK_EQ(ticket.error.status, MP_ERR_IO);
        CHECK_STR(ticket.error.code, "E_TRUNCATED");
        CHECK(strstr(ticket.error.text, expect) != NULL);
        CHECK(strstr(ticket.error.text, mp_files_name(files, 1)) != NULL);
        CHECK_EQ(ticket.read_bytes, 0); /* found before anything was read */

        /* The same bytes without the need for those that do not exist. */
        ticket.extents[0].need_bytes = file_bytes - start;
        mp_reader_submit(reader, &ticket);
        mp_reader_wait(reader, &ticket);
        CHECK_EQ(mp_ticket_state(&ticket), MP_TICKET_DONE);
        CHECK_EQ(ticket.error.status, MP_OK);
        test_check_ticket(&ticket);
    }
    mp_reader_get_stats(reader, &stats);
    CHECK_EQ(stats.errors, 2);
    free(dst);
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void changed_file_fails_its_tickets_only(void)
{
    struct mp_files *files = test_files_open();
    struct mp_reader *reader = reader_new(files, 4, 4096);
    char path[4200], other[4200];
    struct mp_ticket bad, good;
    unsigned char a[5000], b[5000];
    uint32_t index;

    snprintf(path, sizeof(path), "%s/replaced", test_tmpdir());
    snprintf(other, sizeof(other), "%s/other", test_tmpdir());
    test_write_file(path, 9, 20000);
    CHECK_EQ(mp_files_add(files, AT_FDCWD, path, &index), MP_OK);
    test_write_file(other, 9, 20000);
    CHECK_EQ(rename(other, path), 0);

    one_extent(&bad, index, 100, sizeof(a), a);
    one_extent(&good, 0, 100, sizeof(b), b);
    mp_reader_submit(reader, &bad);
    mp_reader_submit(reader, &good);
    mp_reader_wait(reader, &bad);
    mp_reader_wait(reader, &good);
    CHECK_EQ(mp_ticket_state(&bad), MP_TICKET_FAILED);
    CHECK_STR(bad.error.code, "E_FILE_CHANGED");
    CHECK_EQ(bad.read_bytes, 0);
    CHECK_EQ(mp_ticket_state(&good), MP_TICKET_DONE);
    test_check_ticket(&good);
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void transfers_appear_on_the_timeline(void)
{
    struct mp_files *files = test_files_open();
    struct mp_timeline *timeline = NULL;
    struct mp_reader_config config = {
        .files = files,
        .clock = mp_clock_monotonic(),
        .uring = with_uring,
        .depth = 4,
        .threads = 2,
        .chunk_bytes = 4096,
    };
    struct mp_reader *reader = NULL;
    struct mp_ticket ticket;
    unsigned char memory[5000];
    unsigned before;

    CHECK_EQ(mp_timeline_create(config.clock, 100, &timeline), MP_OK);
    config.timeline = timeline;
    before = mp_timeline_add_track(timeline, "before");
    CHECK_EQ(mp_reader_create(&config, &reader), MP_OK);
    CHECK_EQ(mp_timeline_add_track(timeline, "after"), before + 1 + 8); /* eight are the reader's */
    one_extent(&ticket, 0, 0, sizeof(memory), memory);
    for (int i = 0; i < 3; i++) {
        mp_reader_submit(reader, &ticket);
        mp_reader_wait(reader, &ticket);
    }
    CHECK_EQ(mp_timeline_recorded(timeline), 3);
    mp_reader_destroy(reader);
    mp_timeline_destroy(timeline);
    mp_files_destroy(files);
}

static void numbers_out_of_range_are_refused(void)
{
    struct mp_files *files = test_files_open();
    const struct mp_reader_config good = {
        .files = files,
        .clock = mp_clock_monotonic(),
        .uring = with_uring,
        .depth = 1,
        .threads = 1,
        .chunk_bytes = 4096,
    };
    struct mp_reader_config bad[8], most = good;
    struct mp_reader *reader = NULL;

    for (int i = 0; i < 8; i++)
        bad[i] = good;
    bad[0].depth = 0;
    bad[1].depth = 257;
    bad[2].threads = 0;
    bad[3].threads = 65;
    bad[4].chunk_bytes = 0;
    bad[5].chunk_bytes = 4097;
    bad[6].chunk_bytes = UINT64_C(2) << 30;
    bad[7].prefetch_depth = 257;
    for (int i = 0; i < 8; i++) {
        CHECK_EQ(mp_reader_create(&bad[i], &reader), MP_ERR_INVALID);
        CHECK(reader == NULL);
    }
    most.depth = most.prefetch_depth = 256;
    most.threads = 64;
    most.chunk_bytes = UINT64_C(1) << 30;
    CHECK_EQ(mp_reader_create(&most, &reader), MP_OK);
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void run_all(void)
{
    RUN(random_extents_of_several_files_arrive_unchanged);
    RUN(ticket_without_bytes_is_done);
    RUN(need_beyond_the_end_fails_and_names_the_byte);
    RUN(changed_file_fails_its_tickets_only);
    RUN(transfers_appear_on_the_timeline);
    RUN(numbers_out_of_range_are_refused);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    with_uring = strcmp(argv[1], "io_uring") == 0;
    test_files_write();
    if (with_uring && !test_uring_works())
        SKIP("io_uring cannot be used here");
    run_all();
    return 0;
}
