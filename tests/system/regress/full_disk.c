/*
 * Symptom: `run --logits-out FILE` on a full disk ended with 0 and put half a file in the place of
 * a good one; with a limit on file sizes a signal ended the program and a temporary file stayed.
 * Cause: going back to the head of the file cleared the stream's error; SIGXFSZ was not ignored.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIMIT_BYTES 512
#define RUN_MODEL "run", "--model", CLI_MODEL, "--prompt", "def main", "--max-tokens", "8"
#define BENCH_MODEL \
    "bench", "--model", CLI_MODEL, "--prompt-tokens", "4", "--gen-tokens", "4", "--repeat", "1"
#define GOOD "the good older file"

static char *name_in(const char *dir, const char *name)
{
    static char path[4400];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

/* `cli` writes `path`, which it cannot: it says so, and the older file is what it was. */
static void check(const struct cli *cli, const char *dir, const char *path, const char *why)
{
    struct cli_result result;
    char *text;

    cli_write(path, GOOD, strlen(GOOD));
    cli_run(cli, &result);
    if (result.exit_code != 6 || strstr(result.err, "error[E_OUTPUT]: cannot write '") == NULL ||
        strstr(result.err, why) == NULL)
        fprintf(stderr, "%s: %d, signal %d: %s\n", path, result.exit_code, result.signal,
                result.err);
    CHECK_EQ(result.exit_code, 6);
    CHECK(strstr(result.err, "error[E_OUTPUT]: cannot write '") != NULL);
    CHECK(strstr(result.err, path) != NULL);
    CHECK(strstr(result.err, " at byte ") != NULL);
    CHECK(strstr(result.err, why) != NULL);
    CHECK(strchr(result.err, '\n') == result.err + result.err_bytes - 1);
    text = cli_read(path, NULL);
    CHECK_STR(text, GOOD);
    free(text);
    CHECK_EQ(cli_count_entries(dir), 1);
    CHECK_EQ(unlink(path), 0);
    cli_free(&result);
}

static void files_have_a_limit(void)
{
    const char *dir = cli_path("limit"), *text = cli_path("text"), *trace = cli_path("trace");
    char path[4400];
    const struct cli all[] = {
        { .args = { RUN_MODEL, "--logits-out", path } },
        { .args = { RUN_MODEL, "--trace", path } },
        { .args = { RUN_MODEL, "--timeline", path } },
        { .args = { RUN_MODEL, "--decision-log", path } },
        { .args = { BENCH_MODEL, "--logits-out", path } },
        { .args = { BENCH_MODEL, "--trace", path } },
        { .args = { BENCH_MODEL, "--timeline", path } },
        { .args = { BENCH_MODEL, "--decision-log", path } },
        { .args = { "calibrate", "--model", CLI_MODEL, "--text", text, "--window", "8", "--out",
                    path } },
        { .args = { "simulate", "--machine", "h200", "--model", "mixtral-8x7b", "--gen-tokens", "1",
                    "--prompt-tokens", "4", "--budget", "50%", "--timeline", path } },
    };

    CHECK_EQ(mkdir(dir, 0700), 0);
    cli_write(text, "one two three four five six seven eight nine ten", 48);
    snprintf(path, sizeof(path), "%s", trace);
    cli_expect(&all[1], 0, "tokens");
    snprintf(path, sizeof(path), "%s", name_in(dir, "out"));
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct cli cli = all[i];

        cli.file_bytes = LIMIT_BYTES;
        check(&cli, dir, path, "File too large; raise the limit on file sizes (ulimit -f)");
    }
}

/* Room for one file of 16 KiB, the head of the array among it. */
static void the_disk_is_full(void)
{
    const char *dir = cli_path("small");
    char path[4400];
    const struct cli run = { .args = { RUN_MODEL, "--logits-out", path } };
    const struct cli bench = { .args = { BENCH_MODEL, "--logits-out", path } };
    const struct cli trace = { .args = { RUN_MODEL, "--trace", path, "--trace-scores" } };

    CHECK_EQ(mkdir(dir, 0700), 0);
    if (mount("tmpfs", dir, "tmpfs", 0, "size=16k") != 0)
        return; /* only root may, and not everywhere */
    snprintf(path, sizeof(path), "%s", name_in(dir, "out"));
    check(&run, dir, path, "No space left on device; free some space there");
    check(&bench, dir, path, "No space left on device; free some space there");
    check(&trace, dir, path, "No space left on device; free some space there");
    CHECK_EQ(umount(dir), 0);
}

/* Killed at once, a run leaves nothing beside its output. */
static void nothing_stays_after_a_kill(void)
{
    const char *dir = cli_path("killed");
    char path[4400], byte;
    const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "def",
                                       "--max-tokens", "2000", "--ignore-eos", "--trace", path,
                                       "--logits-out", "/dev/null" } };
    int out;
    pid_t pid;

    CHECK_EQ(mkdir(dir, 0700), 0);
    snprintf(path, sizeof(path), "%s", name_in(dir, "out"));
    pid = cli_start(&cli, &out);
    CHECK_EQ(read(out, &byte, 1), 1); /* the trace has been begun */
    kill(pid, SIGKILL);
    while (read(out, &byte, 1) > 0)
        ;
    CHECK_EQ(cli_count_entries(dir), 0);
    close(out);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(files_have_a_limit);
    RUN(the_disk_is_full);
    RUN(nothing_stays_after_a_kill);
    return 0;
}
