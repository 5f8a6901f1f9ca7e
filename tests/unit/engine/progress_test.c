/* The progress bar: when it is drawn on a terminal, and the lines elsewhere, on a clock of the
 * test's own. */
#include "engine/session/progress.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "tests/support/test.h"

#define MS UINT64_C(1000000)

static uint64_t now_ns;

static uint64_t read_now(struct mp_clock *clock)
{
    (void)clock;
    return now_ns;
}

/*
 * All that has been written to the terminal since the last call. It comes to the other end in its
 * own time, so a last byte that nobody else writes tells that nothing is on its way.
 */
static const char *read_shown(int master)
{
    static char shown[256];
    size_t bytes = 0;

    CHECK_EQ(write(STDERR_FILENO, "\001", 1), 1);
    while (bytes == 0 || shown[bytes - 1] != '\001') {
        struct pollfd end = { .fd = master, .events = POLLIN };
        ssize_t more;

        CHECK_EQ(poll(&end, 1, 10000), 1);
        more = read(master, shown + bytes, sizeof(shown) - bytes);
        CHECK(more > 0);
        bytes += (size_t)more;
    }
    shown[bytes - 1] = '\0';
    return shown;
}

static bool draws(int master, struct mp_progress_bar *bar, uint64_t ns)
{
    now_ns = ns;
    mp_progress_bar_show(bar, 1, 2);
    return *read_shown(master) != '\0';
}

static void check_shown(int master, const char *want)
{
    const char *shown = read_shown(master);

    if (strcmp(shown, want) != 0) {
        printf("shown '%s', expected '%s'\n", shown, want);
        exit(1);
    }
}

/* Thirty cells, whole percent, and the time that the rest takes at the speed so far. */
static void it_shows_this(void)
{
    const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    struct mp_clock clock = { .now_ns = read_now };
    struct mp_progress_bar bar;
    int terminal, kept;

    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        SKIP("this machine has no pseudo terminals");
    terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(terminal >= 0);
    kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    CHECK_EQ(dup2(terminal, STDERR_FILENO), STDERR_FILENO);
    now_ns = 1000 * MS;
    mp_progress_bar_begin(&bar, "test", "texts", &clock);
    mp_progress_bar_end(&bar); /* nothing was drawn */
    check_shown(master, "");
    now_ns = 3000 * MS;
    mp_progress_bar_show(&bar, 1, 4);
    check_shown(master, "\rtest [#######                       ]  25 %  1 of 4 texts, 6 s left ");
    now_ns = 4000 * MS;
    mp_progress_bar_show(&bar, 0, 0);
    check_shown(master, "\rtest [##############################] 100 %  0 of 0 texts, 0 s left ");
    mp_progress_bar_end(&bar);
    check_shown(master, "\r\033[K");
    mp_progress_bar_begin(&bar, "load", NULL, &clock);
    now_ns = 6000 * MS;
    mp_progress_bar_show(&bar, 3 << 20, 6 << 20);
    check_shown(master, "\rload [###############               ]  50 %  3 of 6 MiB, 2 s left ");
    mp_progress_bar_show(&bar, 0, 6);
    check_shown(master, "");
    now_ns = 7000 * MS;
    mp_progress_bar_show(&bar, 0, 6 << 20);
    check_shown(master, "\rload [                              ]   0 %  0 of 6 MiB, 0 s left ");
    CHECK_EQ(dup2(kept, STDERR_FILENO), STDERR_FILENO);
    close(kept);
    close(terminal);
    close(master);
}

static void it_waits_first_and_between(void)
{
    static const struct {
        uint64_t ns;
        bool drawn;
    } calls[] = {
        { 1000 * MS, false }, { 1200 * MS - 1, false }, { 1200 * MS, true },
        { 1201 * MS, false }, { 1300 * MS - 1, false }, { 1300 * MS, true },
    };
    const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    struct mp_clock clock = { .now_ns = read_now };
    struct mp_progress_bar bar;
    bool drawn[6];
    int terminal, kept;

    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        SKIP("this machine has no pseudo terminals");
    terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(terminal >= 0);
    kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    CHECK_EQ(dup2(terminal, STDERR_FILENO), STDERR_FILENO);
    now_ns = 1000 * MS;
    mp_progress_bar_begin(&bar, "test", NULL, &clock);
    for (size_t i = 0; i < 6; i++)
        drawn[i] = draws(master, &bar, calls[i].ns);
    mp_progress_bar_end(&bar);
    CHECK_EQ(dup2(kept, STDERR_FILENO), STDERR_FILENO);
    for (size_t i = 0; i < 6; i++)
        CHECK_EQ(drawn[i], calls[i].drawn);
    close(kept);
    close(terminal);
    close(master);
}

/* Into a file: nothing, or a line now and then. */
static void elsewhere_lines_are_seldom(void)
{
    struct mp_clock clock = { .now_ns = read_now };
    struct mp_progress_bar bar;
    char shown[256] = "";
    const int kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    int ends[2];

    CHECK_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    CHECK_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    now_ns = 1000 * MS;
    mp_progress_bar_begin(&bar, "test", NULL, &clock);
    now_ns = 100000 * MS;
    mp_progress_bar_show(&bar, 1, 4); /* not asked for */
    now_ns = 101000 * MS;
    mp_progress_bar_begin(&bar, "test", NULL, &clock);
    mp_progress_bar_want_lines(&bar);
    for (uint64_t ms = 0; ms < 71000; ms += 100) {
        now_ns = (101000 + ms) * MS;
        mp_progress_bar_show(&bar, ms << 20, UINT64_C(80000) << 20);
    }
    mp_progress_bar_end(&bar);
    CHECK_EQ(dup2(kept, STDERR_FILENO), STDERR_FILENO);
    CHECK(read(ends[0], shown, sizeof(shown) - 1) > 0);
    if (strcmp(shown, "test  12 %  10000 of 80000 MiB, 70 s left\n"
                      "test  50 %  40000 of 80000 MiB, 40 s left\n"
                      "test  87 %  70000 of 80000 MiB, 10 s left\n") != 0) {
        printf("shown '%s'\n", shown);
        exit(1);
    }
    close(kept);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    RUN(elsewhere_lines_are_seldom);
    RUN(it_shows_this);
    RUN(it_waits_first_and_between);
    return 0;
}
