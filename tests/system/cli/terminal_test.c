/* The progress bar, which only a terminal gets to see. */
#include "tests/system/cli/cli.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/test.h"

/* On a terminal a bar shows what is done of a long prompt; Ctrl-C then clears its line. */
static void a_terminal_shows_the_progress_of_a_long_prompt(void)
{
    char *prompt = cli_long_prompt(), shown[65536] = "";
    const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", prompt,
                                 "--prefill-tokens", "1", "--budget", "147456", "--ctx", "2048" } };
    size_t bytes = 0;
    ssize_t got;
    int out;
    pid_t pid;

    if (master < 0)
        SKIP("this machine has no pseudo terminals");
    CHECK(grantpt(master) == 0 && unlockpt(master) == 0);
    cli.errors_fd = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(cli.errors_fd > 0);
    pid = cli_start(&cli, &out);
    close(cli.errors_fd);
    while (strstr(shown, "prompt [") == NULL || strstr(shown, " s left") == NULL) {
        got = read(master, shown + bytes, sizeof(shown) - 1 - bytes);
        CHECK(got > 0);
        bytes += (size_t)got;
        shown[bytes] = '\0';
    }
    kill(pid, SIGINT);
    /* Linux returns EIO when the other end has been closed. */
    while ((got = read(master, shown + bytes, sizeof(shown) - 1 - bytes)) > 0)
        shown[bytes += (size_t)got] = '\0';
    CHECK_EQ(cli_end(pid), 130);
    CHECK(strstr(shown, "\r\033[K") != NULL);
    CHECK(strstr(shown, "error[E_CANCELED]") != NULL);
    close(master);
    close(out);
    free(prompt);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(a_terminal_shows_the_progress_of_a_long_prompt);
    return 0;
}
