/* The progress bar on a terminal: when it is drawn, on a clock of the test's own. */
#include "engine/session/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include "tests/support/test.h"

#define MS UINT64_C(1000000)

static uint64_t now_ns;

static uint64_t read_now(struct mp_clock *clock)
{
    (void)clock;
    return now_ns;
}

/* Does the call draw? The other end of the terminal then has something. */
static bool draws(int master, struct mp_progress_bar *bar, uint64_t ns)
{
    char shown[256];

    now_ns = ns;
    mp_progress_bar_show(bar, 1, 2);
    return read(master, shown, sizeof(shown)) > 0;
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

int main(void)
{
    RUN(it_waits_first_and_between);
    return 0;
}
