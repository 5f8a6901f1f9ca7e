/*
 * mp_reader_push(): reads begin on the calling thread. The ring's thread is not notified of new
 * tickets here (eventfd_write() does nothing while `muted`), so that what begins is what was
 * pushed.
 */
#include "vmm/io/reader.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/unit/vmm/io/reader_files.h"

#define BLOCK 4096
#define DEPTH 4

int __real_eventfd_write(int fd, eventfd_t value);
int __wrap_eventfd_write(int fd, eventfd_t value);

static _Atomic bool muted;

int __wrap_eventfd_write(int fd, eventfd_t value)
{
    return muted ? 0 : __real_eventfd_write(fd, value);
}

/* Each look at this clock takes `step_ns`: a busy machine does not end a push, only a test does. */
static _Atomic uint64_t time_ns, step_ns;
static _Thread_local unsigned looks; /* of this thread */

static uint64_t stepping(struct mp_clock *clock)
{
    (void)clock;
    looks++;
    return atomic_fetch_add(&time_ns, step_ns);
}

static struct mp_clock clock_of_test = { .now_ns = stepping };

static unsigned char memory[4][16 * BLOCK] __attribute__((aligned(BLOCK)));
static struct mp_files *files;
static struct mp_reader *reader;
static struct mp_ticket tickets[4];

/* Does the ring's thread sleep? It has nothing to do, so it does so in the kernel's wait. */
static bool sleeps(void)
{
    char path[300], line[300];
    DIR *tasks = opendir("/proc/self/task");
    bool found = false;

    CHECK(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks)) != NULL && !found;) {
        FILE *file;

        snprintf(path, sizeof(path), "/proc/self/task/%s/stat", task->d_name);
        file = fopen(path, "r");
        found = file != NULL && fgets(line, sizeof(line), file) != NULL &&
                strstr(line, "(mp-uring) S ") != NULL;
        if (file != NULL)
            fclose(file);
    }
    closedir(tasks);
    return found;
}

static void begin(void)
{
    const struct mp_reader_config config = {
        .files = files,
        .clock = &clock_of_test,
        .uring = true,
        .depth = DEPTH,
        .prefetch_depth = 1,
        .threads = 1,
        .chunk_bytes = BLOCK,
    };

    CHECK_EQ(mp_reader_create(&config, &reader), MP_OK);
    CHECK_STR(mp_reader_engine(reader), "io_uring");
    while (!sleeps())
        usleep(1000);
    muted = true;
}

static void end(void)
{
    muted = false;
    CHECK(mp_reader_idle(reader));
    mp_reader_destroy(reader);
}

static void submit(int i, uint64_t bytes, enum mp_priority priority)
{
    struct mp_ticket *ticket = &tickets[i];

    memset(ticket, 0, sizeof(*ticket));
    memset(memory[i], 0x11, sizeof(memory[i]));
    ticket->extent_count = 1;
    ticket->extents[0] =
        (struct mp_extent){ 2, (uint64_t)i * BLOCK, bytes, bytes, memory[i], NULL };
    ticket->priority = priority;
    mp_reader_submit(reader, ticket);
}

static void check_done(int i)
{
    mp_reader_wait(reader, &tickets[i]);
    CHECK_EQ(mp_ticket_state(&tickets[i]), MP_TICKET_DONE);
    test_check_ticket(&tickets[i]);
}

static bool has_begun(int i)
{
    return mp_ticket_state(&tickets[i]) != MP_TICKET_QUEUED;
}

static void demands_begin_on_the_callers_thread(void)
{
    begin();
    submit(0, 2 * BLOCK, MP_PRIORITY_DEMAND);
    submit(1, BLOCK, MP_PRIORITY_DEMAND);
    CHECK(!has_begun(0) && !has_begun(1));
    mp_reader_push(reader);
    CHECK(has_begun(0) && has_begun(1));
    check_done(0);
    check_done(1);
    mp_reader_push(reader); /* nothing is queued */
    end();
}

static void more_than_may_be_in_flight_goes_on_when_something_has_come(void)
{
    begin();
    submit(0, 3 * BLOCK, MP_PRIORITY_DEMAND);
    submit(1, 8 * BLOCK, MP_PRIORITY_DEMAND);
    submit(2, BLOCK, MP_PRIORITY_DEMAND);
    mp_reader_push(reader);
    CHECK(has_begun(0) && has_begun(1));
    for (int i = 0; i < 3; i++)
        check_done(i);
    end();
}

/*
 * Half a millisecond. A push looks at the clock when it begins, before it takes a read and as it
 * takes it: with 100 us between looks it has taken two reads when 500 us are over. The others are
 * left to the ring's thread.
 */
static void a_push_ends_when_its_time_is_over(void)
{
    begin();
    for (int i = 0; i < 4; i++)
        submit(i, BLOCK, MP_PRIORITY_DEMAND);
    looks = 0;
    step_ns = 100000;
    mp_reader_push(reader);
    step_ns = 0;
    CHECK_EQ(looks, 1 + 2 * 2 + 1);
    for (int i = 0; i < 4; i++)
        check_done(i);
    end();
}

static void prefetches_are_left_to_the_rings_thread(void)
{
    begin();
    submit(0, BLOCK, MP_PRIORITY_PREFETCH);
    mp_reader_push(reader);
    CHECK(!has_begun(0));
    submit(1, BLOCK, MP_PRIORITY_DEMAND);
    mp_reader_push(reader);
    check_done(1);
    check_done(0); /* the thread that completes a demand looks for more */
    end();
}

static void *submit_push_and_end(void *arg)
{
    (void)arg;
    submit(0, 3 * BLOCK, MP_PRIORITY_DEMAND);
    mp_reader_push(reader);
    CHECK(has_begun(0));
    return NULL;
}

/* The kernel may give up what a thread has asked for when that thread ends. */
static void reads_survive_the_thread_that_pushed_them(void)
{
    begin();
    for (int i = 0; i < 200; i++) {
        pthread_t thread;

        CHECK_EQ(pthread_create(&thread, NULL, submit_push_and_end, NULL), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        check_done(0);
    }
    end();
}

/* What the kernel does not take from a caller, now or ever, the ring's thread hands over or reads.
 */
static void what_the_kernel_refuses_is_read_all_the_same(void)
{
    static const int numbers[] = { EAGAIN, EBUSY, EINTR, EPERM };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        for (int always = 0; always < 2; always++) {
            const struct fault_plan plan = {
                .mode = always ? FAULT_ALWAYS : FAULT_ONCE,
                .calls = FAULT_BIT(io_uring_submit_and_wait),
                .error_number = numbers[i],
            };

            begin();
            submit(0, 5 * BLOCK, MP_PRIORITY_DEMAND);
            submit(1, BLOCK, MP_PRIORITY_DEMAND);
            muted = false; /* for the push, whose call is the first */
            fault_begin(&plan);
            mp_reader_push(reader);
            CHECK(has_begun(0));
            check_done(0);
            check_done(1);
            CHECK(fault_end() > 0);
            muted = true;
            end();
        }
    }
}

static void a_ticket_that_fails_at_once_leaves_no_error_with_the_caller(void)
{
    begin();
    submit(0, BLOCK, MP_PRIORITY_DEMAND);
    mp_reader_push(reader);
    check_done(0);
    memset(&tickets[0], 0, sizeof(tickets[0]));
    tickets[0].extent_count = 1;
    tickets[0].extents[0] =
        (struct mp_extent){ 2, UINT64_C(1) << 40, BLOCK, BLOCK, memory[0], NULL };
    mp_reader_submit(reader, &tickets[0]);
    mp_reader_push(reader);
    CHECK_EQ(mp_ticket_state(&tickets[0]), MP_TICKET_FAILED);
    CHECK_STR(tickets[0].error.code, "E_TRUNCATED");
    CHECK_EQ(mp_error_last()->status, MP_OK);
    end();
}

int main(void)
{
    test_files_write();
    files = test_files_open();
    if (!test_uring_works())
        SKIP("io_uring is not to be had here");
    RUN(demands_begin_on_the_callers_thread);
    RUN(more_than_may_be_in_flight_goes_on_when_something_has_come);
    RUN(a_push_ends_when_its_time_is_over);
    RUN(prefetches_are_left_to_the_rings_thread);
    RUN(reads_survive_the_thread_that_pushed_them);
    RUN(what_the_kernel_refuses_is_read_all_the_same);
    RUN(a_ticket_that_fails_at_once_leaves_no_error_with_the_caller);
    mp_files_destroy(files);
    return 0;
}
