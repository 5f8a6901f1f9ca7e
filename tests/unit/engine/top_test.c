/*
 * Processes and `moepager top`: what is sent and what is understood of it; who is kept out; that
 * nothing happens without a top, and nothing is waited for with one.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "engine/top/top.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"
#include "vmm/base/compiler.h"

#define SECOND UINT64_C(1000000000)
#define MESSAGE_BYTES 4096
#define COUNTERS(hits)                                            \
    "\"counters\": {\"hits\": " #hits                             \
    ", \"misses\": 10, \"load_bytes\": 4, \"prefetch_bytes\": 5," \
    " \"exposed_wait_ns\": 6, \"resident_bytes\": 7}"
#define BEGIN                                                                                   \
    "{\"moepager_top\": 1, \"index\": 0, \"program\": \"p\", \"command\": \"run\", \"model\": " \
    "\"m\", \"age_ns\": 5, \"budget_bytes\": 1, \"expert_bytes\": 2, \"weights_bytes\": 3, "

static struct mp_live_dirs dirs;
static const struct mp_live_config on = { .top = 1 }, off = { .top = 0 };
static const volatile sig_atomic_t go_on;

struct test_clock {
    struct mp_clock super;
    uint64_t now_ns;
};

static uint64_t test_now(struct mp_clock *clock)
{
    return mp_container_of(clock, struct test_clock, super)->now_ns;
}

static struct mp_live_facts facts(void)
{
    struct mp_live_facts f = {
        .command = "run",
        .model = "dir/model",
        .started_ns = mp_clock_now_ns(mp_clock_monotonic()),
        .budget_bytes = 100,
        .expert_bytes = 200,
        .weights_bytes = 300,
    };

    mp_counters_reset(&f.counters);
    return f;
}

static struct mp_top *open_top(void)
{
    struct mp_top *top;

    CHECK_EQ(mp_top_open(&dirs, mp_clock_monotonic(), &top), MP_OK);
    return top;
}

static unsigned count_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned count = 0;

    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* XDG_RUNTIME_DIR where it is the user's alone, and the folder in /tmp in any case. */
static void directories_are_the_users(void)
{
    char runtime[sizeof(test_tmpdir_path)];

    snprintf(runtime, sizeof(runtime), "%s", test_tmpdir());
    CHECK_EQ(setenv("XDG_RUNTIME_DIR", runtime, 1), 0);
    mp_live_dirs_find(&dirs);
    CHECK_EQ(dirs.count, 2);
    CHECK(strncmp(dirs.path[0], runtime, strlen(runtime)) == 0);
    CHECK_STR(dirs.path[0] + strlen(runtime), "/moepager");
    CHECK(strncmp(dirs.path[1], "/tmp/moepager-", 14) == 0);

    CHECK_EQ(chmod(runtime, 0750), 0);
    mp_live_dirs_find(&dirs);
    CHECK_EQ(dirs.count, 1);
    CHECK_EQ(chmod(runtime, 0700), 0);
    CHECK_EQ(setenv("XDG_RUNTIME_DIR", "moepager", 1), 0);
    mp_live_dirs_find(&dirs);
    CHECK_EQ(dirs.count, 1);
    CHECK_EQ(setenv("XDG_RUNTIME_DIR", runtime, 1), 0);
    mp_live_dirs_find(&dirs);
    dirs.count = 1; /* other tests use the one in /tmp */
}

static void without_a_top_nothing_is_made(void)
{
    const struct mp_live_facts f = facts();
    const unsigned before = count_files();
    struct mp_live *live;

    mp_live_send(&dirs, &f, mp_clock_monotonic());
    CHECK(!mp_live_is_watched(&dirs));
    CHECK_EQ(count_files(), before);

    live = mp_live_start(&on, &f, mp_clock_monotonic());
    CHECK(live != NULL);
    mp_live_note(live, 1, 1, &f.counters);
    mp_live_stop(live);
    CHECK_EQ(count_files(), before);
    CHECK(access(dirs.path[0], F_OK) != 0);

    CHECK(mp_live_start(&off, &f, mp_clock_monotonic()) == NULL);
    mp_live_note(NULL, 1, 1, &f.counters);
    mp_live_stop(NULL);
}

static void a_top_sees_what_was_noted(void)
{
    struct mp_live_facts f = facts();
    struct mp_top *top = open_top();
    struct mp_live *live = mp_live_start(&on, &f, mp_clock_monotonic());
    const struct mp_top_process *p;
    struct mp_top_rates rates;
    size_t count;

    CHECK(mp_live_is_watched(&dirs));
    f.counters.hits = 30;
    f.counters.misses = 10;
    f.counters.load_bytes = 50;
    f.counters.resident_bytes = 90;
    mp_live_note(live, 7, 3, &f.counters);
    mp_live_note(live, 1, 1, &f.counters);
    for (int tries = 0; tries < 50; tries++) {
        mp_top_listen(top, SECOND / 10, &go_on);
        p = mp_top_processes(top, &count);
        if (count == 1 && p->last.tokens > 0)
            break;
    }
    CHECK_EQ(count, 1);
    CHECK_EQ(p->pid, getpid());
    CHECK_STR(p->command, "run");
    CHECK_STR(p->model, "dir/model");
    CHECK_STR(p->program, program_invocation_short_name);
    CHECK_EQ(p->budget_bytes, 100);
    CHECK_EQ(p->expert_bytes, 200);
    CHECK_EQ(p->weights_bytes, 300);
    CHECK(p->has_tokens);
    CHECK_EQ(p->last.tokens, 8);
    CHECK_EQ(p->last.generated, 4);
    CHECK_EQ(p->last.resident_bytes, 90);
    mp_top_rates_of(p, &rates);
    CHECK(rates.hit_rate == 0.75);
    CHECK(mp_top_resident_bytes(p->pid) > 0);
    CHECK_EQ(mp_top_resident_bytes(UINT64_MAX), 0);
    CHECK_EQ(mp_top_refused(top), 0);
    mp_live_stop(live);
    mp_top_close(top);
    CHECK(!mp_live_is_watched(&dirs));
}

/* Paths end where they are told apart; preloaded programs' tokens are not known. */
static void long_paths_and_unknown_tokens(void)
{
    static char path[4000];
    struct mp_live_facts f = facts();
    struct mp_top *top = open_top();
    const struct mp_top_process *p;
    size_t count;

    memset(path, '\1', sizeof(path) - 2);
    path[sizeof(path) - 2] = 'z';
    f.model = path;
    f.tokens = UINT64_MAX;
    memset(&f.counters, 0x7f, sizeof(f.counters));
    f.counters.version = MP_COUNTERS_VERSION;
    mp_live_send(&dirs, &f, mp_clock_monotonic());
    mp_top_listen(top, SECOND / 5, &go_on);
    p = mp_top_processes(top, &count);
    CHECK_EQ(count, 1);
    CHECK_EQ(strlen(p->model), 399);
    CHECK_STR(p->model + 397, "\1z");
    CHECK(!p->has_tokens);
    mp_top_close(top);
}

/* A top that does not read makes nobody wait. */
static void nobody_waits_for_a_top(void)
{
    const struct mp_live_facts f = facts();
    struct mp_top *top = open_top();
    const uint64_t start_ns = mp_clock_now_ns(mp_clock_monotonic());

    for (unsigned i = 0; i < 2000; i++)
        mp_live_send(&dirs, &f, mp_clock_monotonic());
    CHECK(mp_clock_now_ns(mp_clock_monotonic()) - start_ns < 20 * SECOND);
    mp_top_close(top);
}

static void texts_that_are_no_message_are_refused(void)
{
    static const char *const refused[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"moepager_top\": 2}",
        BEGIN "\"now_ns\": 1}",
        BEGIN "\"now_ns\": -1, " COUNTERS(1) "}",
        BEGIN "\"now_ns\": 1, \"tokens\": \"many\", " COUNTERS(1) "}",
        BEGIN "\"now_ns\": 1, \"tokens\": 1, " COUNTERS(1) "}",
        BEGIN "\"now_ns\": 1, \"now_ns\": 1, " COUNTERS(1) "}",
        BEGIN "\"now_ns\": 1, " COUNTERS(1.5) "}",
    };
    static const char good[] = BEGIN "\"now_ns\": 1, " COUNTERS(1) "}";
    struct mp_top *top = open_top();
    size_t count;

    for (size_t i = 0; i < MP_ARRAY_LEN(refused); i++) {
        CHECK(!mp_top_take(top, 1, refused[i], strlen(refused[i])));
        CHECK_EQ(mp_top_refused(top), i + 1);
    }
    (void)mp_top_processes(top, &count);
    CHECK_EQ(count, 0);
    for (uint64_t pid = MP_TOP_PROCESSES_MAX; pid > 0; pid--)
        CHECK(mp_top_take(top, pid, good, sizeof(good) - 1));
    CHECK(!mp_top_take(top, 1000, good, sizeof(good) - 1)); /* the list is full */
    CHECK(mp_top_take(top, 1, good, sizeof(good) - 1));
    for (uint64_t i = 0; i < MP_TOP_PROCESSES_MAX; i++)
        CHECK_EQ(mp_top_processes(top, &count)[i].pid, i + 1);
    CHECK_EQ(count, MP_TOP_PROCESSES_MAX);
    mp_top_close(top);
}

/* Rates are those of the last one to two seconds; who is silent is forgotten. */
static void rates_and_silence(void)
{
    struct test_clock clock = { { test_now }, 10 * SECOND };
    char message[MESSAGE_BYTES];
    struct mp_top *top;
    const struct mp_top_process *p;
    struct mp_top_rates rates;
    size_t count;

    CHECK_EQ(mp_top_open(&dirs, &clock.super, &top), MP_OK);
    for (unsigned i = 0; i <= 10; i++) {
        snprintf(message, sizeof(message),
                 "{\"moepager_top\": 1, \"index\": 1, \"program\": \"p\", \"command\": \"run\", "
                 "\"model\": \"m\", \"age_ns\": %u, \"budget_bytes\": 1, \"expert_bytes\": 2, "
                 "\"weights_bytes\": 3, \"now_ns\": %llu, \"tokens\": %u, \"generated\": 0, "
                 "\"counters\": {\"hits\": %u, \"misses\": %u, \"load_bytes\": %u, "
                 "\"prefetch_bytes\": %u, \"exposed_wait_ns\": %u, \"resident_bytes\": 7}}",
                 i, (unsigned long long)(i * SECOND / 2), i < 6 ? i : 6 + 10 * (i - 6), 3 * i, i,
                 100 * i, 50 * i, 100000000 * i);
        CHECK(mp_top_take(top, 9, message, strlen(message)));
    }
    p = mp_top_processes(top, &count);
    CHECK_EQ(count, 1);
    mp_top_rates_of(p, &rates);
    CHECK(rates.tokens_per_s == 20);
    CHECK(rates.read_bytes_per_s == 300);
    CHECK(rates.hit_rate == 0.75);
    CHECK(rates.wait_share > 0.199 && rates.wait_share < 0.201);

    CHECK(mp_top_take(top, 9, BEGIN "\"now_ns\": 1, " COUNTERS(1) "}",
                      strlen(BEGIN "\"now_ns\": 1, " COUNTERS(1) "}")));
    p = mp_top_processes(top, &count);
    CHECK_EQ(count, 2); /* the first model of the process, by its index */
    mp_top_rates_of(p, &rates);
    CHECK(rates.tokens_per_s == 0 && rates.wait_share == 0);

    clock.now_ns += 3 * SECOND - 1;
    mp_top_listen(top, 0, &go_on);
    (void)mp_top_processes(top, &count);
    CHECK_EQ(count, 2);
    clock.now_ns++;
    mp_top_listen(top, 0, &go_on);
    (void)mp_top_processes(top, &count);
    CHECK_EQ(count, 0);
    mp_top_close(top);
}

/* The number is used again: what it counts from is its own beginning. */
static void a_number_that_is_used_again(void)
{
    static const char old[] = BEGIN "\"now_ns\": 2000000000, " COUNTERS(500) "}";
    static const char young[] = BEGIN "\"now_ns\": 1000000000, " COUNTERS(700) "}";
    struct mp_top *top = open_top();
    size_t count;

    CHECK(mp_top_take(top, 1, old, sizeof(old) - 1));
    CHECK(mp_top_take(top, 1, young, sizeof(young) - 1));
    CHECK_EQ(mp_top_processes(top, &count)->first.hits, 700);
    mp_top_close(top);
}

/* A socket of somebody else, however he came to it, is not listened to. */
static void messages_of_others_are_refused(void)
{
    static const char good[] = BEGIN "\"now_ns\": 1, " COUNTERS(1) "}";
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    struct mp_top *top = open_top();
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    size_t count;
    int status;
    pid_t child;

    snprintf(to.sun_path, sizeof(to.sun_path), "%s/top.0", dirs.path[0]);
    CHECK_EQ(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    if (geteuid() == 0) {
        child = fork();
        if (child == 0)
            _exit(setuid(65534) != 0 || send(fd, good, sizeof(good) - 1, 0) < 0);
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(status, 0);
        mp_top_listen(top, SECOND / 5, &go_on);
        (void)mp_top_processes(top, &count);
        CHECK_EQ(count, 0);
        CHECK_EQ(mp_top_refused(top), 1);
    }
    CHECK(send(fd, good, sizeof(good) - 1, 0) > 0);
    mp_top_listen(top, SECOND / 5, &go_on);
    CHECK_EQ(mp_top_processes(top, &count)->pid, getpid());
    CHECK_EQ(count, 1);
    close(fd);
    mp_top_close(top);
}

/* Descriptors that come with a message are closed, and one that is too long is refused whole. */
static void messages_bring_nothing_else(void)
{
    static char large[MP_LIVE_MESSAGE_BYTES + 1];
    static const char good[] = BEGIN "\"now_ns\": 1, " COUNTERS(1) "}";
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    struct mp_top *top = open_top();
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec part = { (void *)(uintptr_t)good, sizeof(good) - 1 };
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
    };
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    unsigned before;
    size_t count;

    snprintf(to.sun_path, sizeof(to.sun_path), "%s/top.0", dirs.path[0]);
    CHECK_EQ(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    before = count_files();
    *rights = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
    memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
    CHECK(sendmsg(fd, &header, 0) > 0);
    memset(large, ' ', sizeof(large));
    memcpy(large, good, sizeof(good) - 1);
    CHECK_EQ(send(fd, large, sizeof(large), 0), sizeof(large));
    mp_top_listen(top, SECOND / 5, &go_on);
    CHECK_EQ(count_files(), before);
    (void)mp_top_processes(top, &count);
    CHECK_EQ(count, 1);
    CHECK_EQ(mp_top_refused(top), 1);
    close(fd);
    mp_top_close(top);
}

static void expect_refused(const char *part)
{
    struct mp_top *top;

    CHECK_EQ(mp_top_open(&dirs, mp_clock_monotonic(), &top), MP_ERR_IO);
    CHECK_STR(mp_error_last()->code, "E_TOP");
    CHECK(strstr(mp_error_last()->text, part) != NULL);
    CHECK(!mp_live_is_watched(&dirs));
}

static void directories_of_others_are_refused(void)
{
    const struct mp_live_dirs none = { .count = 0 };
    struct mp_top *top;
    char elsewhere[sizeof(dirs.path[0]) + 2];

    CHECK_EQ(chmod(dirs.path[0], 0711), 0);
    expect_refused("nobody else may enter");
    CHECK_EQ(chmod(dirs.path[0], 0700), 0);
    if (geteuid() == 0) {
        CHECK_EQ(chown(dirs.path[0], 65534, (gid_t)-1), 0);
        expect_refused("nobody else may enter");
        CHECK_EQ(chown(dirs.path[0], 0, (gid_t)-1), 0);
    }
    snprintf(elsewhere, sizeof(elsewhere), "%s-2", dirs.path[0]);
    CHECK_EQ(rename(dirs.path[0], elsewhere), 0);
    CHECK_EQ(symlink(elsewhere, dirs.path[0]), 0);
    expect_refused("nobody else may enter");
    CHECK_EQ(unlink(dirs.path[0]), 0);
    CHECK_EQ(rename(elsewhere, dirs.path[0]), 0);
    CHECK_EQ(mp_top_open(&none, mp_clock_monotonic(), &top), MP_ERR_IO);
}

static void as_many_tops_as_there_are_names(void)
{
    struct mp_top *tops[MP_LIVE_TOPS], *more;
    const struct mp_live_facts f = facts();
    size_t count;

    for (unsigned i = 0; i < MP_LIVE_TOPS; i++)
        tops[i] = open_top();
    CHECK_EQ(mp_top_open(&dirs, mp_clock_monotonic(), &more), MP_ERR_IO);
    CHECK(strstr(mp_error_last()->text, "4 times") != NULL);
    mp_live_send(&dirs, &f, mp_clock_monotonic());
    for (unsigned i = 0; i < MP_LIVE_TOPS; i++) {
        mp_top_listen(tops[i], SECOND / 20, &go_on);
        (void)mp_top_processes(tops[i], &count);
        CHECK_EQ(count, 1);
        mp_top_close(tops[i]);
    }
}

/* A top that was killed leaves its socket; processes pass it over, and the next top takes it. */
static void a_socket_that_is_left_is_replaced(void)
{
    const struct mp_live_facts f = facts();
    const pid_t child = fork();
    struct mp_top *top;
    size_t count;
    int status;

    if (child == 0) {
        (void)open_top();
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK(mp_live_is_watched(&dirs));
    mp_live_send(&dirs, &f, mp_clock_monotonic());
    top = open_top();
    mp_live_send(&dirs, &f, mp_clock_monotonic());
    mp_top_listen(top, SECOND / 10, &go_on);
    (void)mp_top_processes(top, &count);
    CHECK_EQ(count, 1);
    mp_top_close(top);
}

static void run_failing(const struct fault_plan *plan, void *ctx)
{
    const struct mp_live_facts f = facts();
    struct mp_top *top = NULL;
    struct mp_live *live;

    (void)ctx;
    fault_begin(plan);
    if (mp_top_open(&dirs, mp_clock_monotonic(), &top) == MP_OK) {
        live = mp_live_start(&on, &f, mp_clock_monotonic());
        mp_live_note(live, 1, 1, &f.counters);
        mp_live_send(&dirs, &f, mp_clock_monotonic());
        mp_top_listen(top, 1, &go_on);
        (void)mp_top_resident_bytes((uint64_t)getpid());
        mp_live_stop(live);
        mp_top_close(top);
    }
    fault_end();
    CHECK(!mp_live_is_watched(&dirs));
}

static void whatever_fails_nothing_is_left(void)
{
    const unsigned before = count_files();

    CHECK(fault_sweep(FAULT_ANY, run_failing, NULL) > 0);
    CHECK_EQ(count_files(), before);
}

int main(void)
{
    RUN(directories_are_the_users);
    RUN(without_a_top_nothing_is_made);
    RUN(a_top_sees_what_was_noted);
    RUN(long_paths_and_unknown_tokens);
    RUN(nobody_waits_for_a_top);
    RUN(texts_that_are_no_message_are_refused);
    RUN(rates_and_silence);
    RUN(a_number_that_is_used_again);
    RUN(messages_of_others_are_refused);
    RUN(messages_bring_nothing_else);
    RUN(directories_of_others_are_refused);
    RUN(as_many_tops_as_there_are_names);
    RUN(a_socket_that_is_left_is_replaced);
    RUN(whatever_fails_nothing_is_left);
    return 0;
}
