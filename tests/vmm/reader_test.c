/*
 * Every test runs with both engines. Contents are compared byte by byte with what the tests wrote;
 * each byte follows from file and place, so that a byte from a wrong place is seen. Order is tested
 * with one chunk in flight, where it is visible in the start times.
 */
#include "vmm/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/test.h"
#include "tests/vmm/reader_files.h"

static bool with_uring;

static struct mp_reader *reader_new(struct mp_files *files, uint32_t width, uint64_t chunk_bytes)
{
    const struct mp_reader_config config = {
        .files = files,
        .clock = mp_clock_monotonic(),
        .uring = with_uring,
        .depth = width,
        .threads = width,
        .chunk_bytes = chunk_bytes,
    };
    struct mp_reader *reader = NULL;

    CHECK_EQ(mp_reader_create(&config, &reader), MP_OK);
    CHECK_STR(mp_reader_engine(reader), with_uring ? "io_uring" : "threads");
    return reader;
}

static void one_extent(struct mp_ticket *ticket, uint32_t file, uint64_t offset, uint64_t bytes,
                       void *dst)
{
    memset(ticket, 0, sizeof(*ticket));
    ticket->extent_count = 1;
    ticket->extents[0] = (struct mp_extent){
        .file = file, .offset = offset, .bytes = bytes, .need_bytes = bytes, .dst = dst
    };
}

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

/*
 * A FIFO-like stop for order tests: nothing is handed out while the first file's check or read is
 * under way, so enough tickets are queued before the order of the rest is decided.
 */
#define ORDER_TICKETS 40

static void demand_is_started_before_queued_prefetch(void)
{
    struct mp_files *files = test_files_open();
    struct mp_reader *reader = reader_new(files, 1, 4096);
    struct mp_ticket first, prefetch[ORDER_TICKETS], demand[4];
    static unsigned char memory[1 << 20];
    bool overtaken = false;

    one_extent(&first, 2, 0, mp_files_bytes(files, 2), memory);
    first.priority = MP_PRIORITY_PREFETCH;
    mp_reader_submit(reader, &first);
    for (int i = 0; i < ORDER_TICKETS; i++) {
        one_extent(&prefetch[i], 0, 0, 4096, memory);
        prefetch[i].priority = MP_PRIORITY_PREFETCH;
        mp_reader_submit(reader, &prefetch[i]);
    }
    for (int i = 0; i < 4; i++) {
        one_extent(&demand[i], 0, 0, 4096, memory);
        mp_reader_submit(reader, &demand[i]);
    }
    for (int i = 0; i < 4; i++)
        mp_reader_wait(reader, &demand[i]);
    for (int i = 0; i < ORDER_TICKETS; i++)
        mp_reader_wait(reader, &prefetch[i]);
    mp_reader_wait(reader, &first);

    for (int i = 0; i < ORDER_TICKETS; i++) {
        /* Whatever had not started when the last demand came, started after it. */
        if (prefetch[i].started_ns > demand[3].submitted_ns) {
            CHECK(prefetch[i].started_ns >= demand[3].started_ns);
            overtaken = true;
        }
        if (i > 0)
            CHECK(prefetch[i].started_ns >= prefetch[i - 1].started_ns);
    }
    for (int i = 1; i < 4; i++)
        CHECK(demand[i].started_ns >= demand[i - 1].started_ns);
    if (!overtaken)
        fprintf(stderr, "    reads were faster than submits, nothing was overtaken\n");
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void promoted_prefetch_is_demand(void)
{
    struct mp_files *files = test_files_open();
    struct mp_reader *reader = reader_new(files, 1, 4096);
    struct mp_ticket tickets[ORDER_TICKETS];
    static unsigned char memory[1 << 20];
    struct mp_ticket *last = &tickets[ORDER_TICKETS - 1];

    for (int i = 0; i < ORDER_TICKETS; i++) {
        one_extent(&tickets[i], 2, 0, 65536, memory);
        tickets[i].priority = MP_PRIORITY_PREFETCH;
        mp_reader_submit(reader, &tickets[i]);
    }
    mp_reader_promote(reader, last);
    mp_reader_wait(reader, last);
    CHECK_EQ(mp_ticket_state(last), MP_TICKET_DONE);
    mp_reader_promote(reader, last); /* no effect on a final one */
    for (int i = 0; i < ORDER_TICKETS; i++) {
        mp_reader_wait(reader, &tickets[i]);
        CHECK_EQ(mp_ticket_state(&tickets[i]), MP_TICKET_DONE);
    }
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void cancelled_ticket_is_idle_and_untouched(void)
{
    struct mp_files *files = test_files_open();
    struct mp_reader *reader = reader_new(files, 1, 4096);
    struct mp_ticket tickets[ORDER_TICKETS];
    static unsigned char memory[ORDER_TICKETS][65536];
    int cancelled = 0;

    memset(memory, 0x77, sizeof(memory));
    for (int i = 0; i < ORDER_TICKETS; i++) {
        one_extent(&tickets[i], 2, 0, 65536, memory[i]);
        mp_reader_submit(reader, &tickets[i]);
    }
    for (int i = ORDER_TICKETS - 1; i >= 0; i--) {
        if (mp_reader_cancel(reader, &tickets[i])) {
            CHECK_EQ(mp_ticket_state(&tickets[i]), MP_TICKET_IDLE);
            for (int b = 0; b < 65536; b++)
                CHECK_EQ(memory[i][b], 0x77);
            cancelled++;
        }
    }
    CHECK(cancelled > 0);
    for (int i = 0; i < ORDER_TICKETS; i++) {
        if (mp_ticket_state(&tickets[i]) == MP_TICKET_IDLE)
            mp_reader_submit(reader, &tickets[i]);
        mp_reader_wait(reader, &tickets[i]);
        CHECK_EQ(mp_ticket_state(&tickets[i]), MP_TICKET_DONE);
        CHECK(!mp_reader_cancel(reader, &tickets[i]));
        test_check_ticket(&tickets[i]);
    }
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void wait_any_returns_a_final_ticket(void)
{
    struct mp_files *files = test_files_open();
    struct mp_reader *reader = reader_new(files, 4, 4096);
    struct mp_ticket tickets[8], *left[8];
    static unsigned char memory[8][65536];
    uint32_t count = 8;

    for (uint32_t i = 0; i < 8; i++) {
        one_extent(&tickets[i], 2, i, 65536, memory[i]);
        left[i] = &tickets[i];
        mp_reader_submit(reader, &tickets[i]);
    }
    while (count > 0) {
        uint32_t i = mp_reader_wait_any(reader, left, count);

        CHECK(i < count);
        CHECK_EQ(mp_ticket_state(left[i]), MP_TICKET_DONE);
        test_check_ticket(left[i]);
        left[i] = left[--count];
    }
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void destroy_cancels_what_is_queued_and_finishes_what_started(void)
{
    struct mp_files *files = test_files_open();
    static unsigned char memory[ORDER_TICKETS][65536];
    int idle = 0;

    for (int round = 0; round < 10; round++) {
        struct mp_reader *reader = reader_new(files, 2, 4096);
        struct mp_ticket tickets[ORDER_TICKETS];

        for (int i = 0; i < ORDER_TICKETS; i++) {
            one_extent(&tickets[i], 2, 1, 65535, memory[i]);
            tickets[i].priority = i % 2;
            mp_reader_submit(reader, &tickets[i]);
        }
        mp_reader_destroy(reader);
        for (int i = 0; i < ORDER_TICKETS; i++) {
            const enum mp_ticket_state state = mp_ticket_state(&tickets[i]);

            CHECK(state == MP_TICKET_IDLE || state == MP_TICKET_DONE);
            if (state == MP_TICKET_DONE)
                test_check_ticket(&tickets[i]);
            idle += state == MP_TICKET_IDLE;
        }
    }
    CHECK(idle > 0);
    mp_reader_destroy(NULL);
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

    CHECK_EQ(mp_timeline_create(config.clock, 100, &timeline), MP_OK);
    config.timeline = timeline;
    CHECK_EQ(mp_reader_create(&config, &reader), MP_OK);
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
    struct mp_reader_config bad[7];
    struct mp_reader *reader = NULL;

    for (int i = 0; i < 7; i++)
        bad[i] = good;
    bad[0].depth = 0;
    bad[1].depth = 257;
    bad[2].threads = 0;
    bad[3].threads = 65;
    bad[4].chunk_bytes = 0;
    bad[5].chunk_bytes = 4097;
    bad[6].chunk_bytes = UINT64_C(2) << 30;
    for (int i = 0; i < 7; i++) {
        CHECK_EQ(mp_reader_create(&bad[i], &reader), MP_ERR_INVALID);
        CHECK(reader == NULL);
    }
    mp_files_destroy(files);
}

static void run_all(void)
{
    RUN(random_extents_of_several_files_arrive_unchanged);
    RUN(ticket_without_bytes_is_done);
    RUN(need_beyond_the_end_fails_and_names_the_byte);
    RUN(changed_file_fails_its_tickets_only);
    RUN(demand_is_started_before_queued_prefetch);
    RUN(promoted_prefetch_is_demand);
    RUN(cancelled_ticket_is_idle_and_untouched);
    RUN(wait_any_returns_a_final_ticket);
    RUN(destroy_cancels_what_is_queued_and_finishes_what_started);
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
