/*
 * Ctrl-C in every phase: the run ends with 130 and leaves no file. A phase is known by what it
 * leaves behind (a caught signal, an open file, text), never by the clock; where only time can
 * tell, the signal is sent at many moments and each outcome must be one of those allowed.
 */
#include "tests/system/cli/cli.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/test.h"

#define POLLS_MAX 60000

static void nap_us(long us)
{
    const struct timespec time = { us / 1000000, us % 1000000 * 1000 };

    nanosleep(&time, NULL);
}

/* Has the process installed its handler? False when it has ended. */
static bool catches_sigint(pid_t pid)
{
    char path[64], *text;
    const char *at;
    unsigned long long caught = 0;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    if (access(path, R_OK) != 0)
        return false;
    text = cli_read(path, NULL);
    at = strstr(text, "SigCgt:");
    if (at != NULL)
        caught = strtoull(at + 7, NULL, 16);
    free(text);
    return (caught & 1ull << (SIGINT - 1)) != 0;
}

static void wait_until_caught(pid_t pid)
{
    int polls = 0;

    while (!catches_sigint(pid)) {
        CHECK(polls++ < POLLS_MAX);
        nap_us(1000);
    }
}

/* Has the process a file open in the directory, with a name or without? */
static bool writes_into(pid_t pid, const char *dir)
{
    char path[64], link[4400], target[4400];
    struct dirent *entry;
    bool found = false;
    DIR *fds;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    fds = opendir(path);
    while (fds != NULL && !found && (entry = readdir(fds)) != NULL) {
        ssize_t bytes;

        snprintf(link, sizeof(link), "%s/%s", path, entry->d_name);
        bytes = readlink(link, target, sizeof(target));
        found = bytes > (ssize_t)strlen(dir) && memcmp(target, dir, strlen(dir)) == 0;
    }
    if (fds != NULL)
        closedir(fds);
    return found;
}

/* It would take minutes: the first Ctrl-C ends it, between two steps. */
static void while_it_simulates(void)
{
    const struct cli cli = { .args = { "simulate", "--machine", "h200", "--model", "mixtral-8x7b",
                                       "--budget", "50%", "--gen", "1048576" } };
    int out;
    const pid_t pid = cli_start(&cli, &out);

    wait_until_caught(pid);
    nap_us(300000); /* until it simulates, most likely; the result is the same if it does not yet */
    kill(pid, SIGINT);
    CHECK_EQ(cli_end(pid), 130);
    close(out);
}

static void while_the_prompt_is_awaited(void)
{
    int input[2], out;
    struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt-file", "-" } };
    pid_t pid;

    CHECK_EQ(pipe2(input, O_CLOEXEC), 0);
    cli.input_fd = input[0];
    pid = cli_start(&cli, &out);
    wait_until_caught(pid);
    nap_us(50000); /* until it reads, most likely; the result is the same if it does not yet */
    kill(pid, SIGINT);
    nap_us(50000);
    close(input[1]);
    CHECK_EQ(cli_end(pid), 130);
    close(input[0]);
    close(out);
}

/* The trace is opened when everything is loaded; 900 batches follow. */
static void while_the_prompt_is_processed(void)
{
    const char *dir = cli_path("prefill");
    char trace[4300], *prompt = cli_long_prompt();
    struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", prompt, "--trace", trace,
                                 "--prefill-tokens", "1", "--budget", "147456", "--ctx", "2048" } };
    int out, polls = 0;
    pid_t pid;

    CHECK_EQ(mkdir(dir, 0700), 0);
    snprintf(trace, sizeof(trace), "%s/trace", dir);
    pid = cli_start(&cli, &out);
    while (!writes_into(pid, dir)) {
        CHECK(polls++ < POLLS_MAX);
        nap_us(1000);
    }
    kill(pid, SIGINT);
    CHECK_EQ(cli_end(pid), 130);
    CHECK_EQ(cli_count_entries(dir), 0);
    close(out);
    free(prompt);
}

static void while_text_is_written(int number)
{
    const char *dir = cli_path(number == SIGINT ? "decode-int" : "decode-term");
    char timeline[4300], logits[4300], byte;
    struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "def", "--max-tokens",
                                 "2000", "--ignore-eos", "--budget", "147456", "--timeline",
                                 timeline, "--logits-out", logits } };
    int out;
    pid_t pid;

    CHECK_EQ(mkdir(dir, 0700), 0);
    snprintf(timeline, sizeof(timeline), "%s/timeline", dir);
    snprintf(logits, sizeof(logits), "%s/logits", dir);
    pid = cli_start(&cli, &out);
    CHECK_EQ(read(out, &byte, 1), 1); /* the text so far has been printed */
    kill(pid, number);
    while (read(out, &byte, 1) > 0)
        ;
    CHECK_EQ(cli_end(pid), 130);
    CHECK_EQ(cli_count_entries(dir), 0);
    close(out);
}

static void while_text_is_written_by_ctrl_c(void)
{
    while_text_is_written(SIGINT);
}

static void while_text_is_written_by_sigterm(void)
{
    while_text_is_written(SIGTERM);
}

/* Loading is too short to be met: forty moments from the first on, each a little later. */
static void at_any_moment(void)
{
    const char *dir = cli_path("moments");
    char trace[4300];
    struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "def", "--max-tokens",
                                 "8", "--trace", trace } };
    unsigned interrupted = 0;

    CHECK_EQ(mkdir(dir, 0700), 0);
    snprintf(trace, sizeof(trace), "%s/trace", dir);
    for (long moment = 0; moment < 40; moment++) {
        int out, code;
        pid_t pid = cli_start(&cli, &out);

        wait_until_caught(pid);
        nap_us(moment * 1000);
        kill(pid, SIGINT);
        code = cli_end(pid);
        CHECK(code == 130 || code == 0);
        CHECK_EQ(cli_count_entries(dir), code == 0 ? 1 : 0);
        interrupted += code == 130;
        unlink(trace);
        close(out);
    }
    CHECK(interrupted > 0);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(while_the_prompt_is_awaited);
    RUN(while_it_simulates);
    RUN(while_the_prompt_is_processed);
    RUN(while_text_is_written_by_ctrl_c);
    RUN(while_text_is_written_by_sigterm);
    RUN(at_any_moment);
    return 0;
}
