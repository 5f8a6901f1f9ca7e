/*
 * Symptom: `run --trace DIR/model.safetensors` of the running model put 3 KB of trace in the place
 * of the weights, with exit code 0; of `--trace X --timeline X` one was lost; `--trace -` made a
 * file called "-", and /dev/stdout was refused as a symbolic link.
 * Cause: nobody looked whether an output is a file that is read, or another output.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARGS(...) (&(const struct cli){ .args = { __VA_ARGS__ } })
#define RUN_MODEL "run", "--model", dir, "--prompt", "a", "--max-tokens", "1"
#define BENCH_MODEL "bench", "--model", dir, "--prompt-tokens", "2", "--gen-tokens", "2"

/* Paths of cli_path() do not last through so many runs. */
#define PATH(name) strdup(cli_path(name))

static char *dir;
static char weights[4400];

static void make_model(void)
{
    static const char *const names[] = { "config.json", "tokenizer.json", "tokenizer_config.json",
                                         "generation_config.json", "model.safetensors" };
    char from[4400], to[4400], *text;
    size_t bytes;

    dir = PATH("model");
    CHECK_EQ(mkdir(dir, 0700), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(from, sizeof(from), CLI_MODEL "/%s", names[i]);
        snprintf(to, sizeof(to), "%s/%s", dir, names[i]);
        text = cli_read(from, &bytes);
        cli_write(to, text, bytes);
        free(text);
    }
    snprintf(weights, sizeof(weights), "%s/model.safetensors", dir);
}

static void an_output_is_no_input(void)
{
    char *text = PATH("text"), *twin = PATH("hard-link"), *ids = PATH("ids");
    char *trace = PATH("trace");
    static const char *const flags[] = { "--trace", "--timeline", "--logits-out",
                                         "--decision-log" };
    char other[4500], learned[4500];
    struct stat before, after;

    CHECK_EQ(stat(weights, &before), 0);
    cli_write(text, "one two three four five six seven eight", 39);
    cli_write(ids, "1 2 3 4", 7);
    CHECK_EQ(link(weights, twin), 0);
    snprintf(other, sizeof(other), "%s/../model/./config.json", dir);
    for (size_t i = 0; i < 4; i++) {
        cli_expect(ARGS(RUN_MODEL, flags[i], weights), 2,
                   "is the same file as model.safetensors of --model; name another one");
        cli_expect(ARGS(BENCH_MODEL, flags[i], twin), 2, "model.safetensors of --model");
        cli_expect(ARGS(RUN_MODEL, flags[i], other), 2, "config.json of --model");
    }
    cli_expect(ARGS("run", "--model", dir, "--prompt-file", text, "--trace", text), 2,
               "error[E_SAME_FILE]: --trace '");
    cli_expect(ARGS("run", "--model", dir, "--batch-file", text, "--timeline", text), 2,
               "is the same file as --batch-file");
    cli_expect(ARGS(BENCH_MODEL, "--tokens-file", ids, "--trace", ids), 2, "--tokens-file");
    cli_expect(ARGS(RUN_MODEL, "--trace", trace), 0, "tokens");
    cli_expect(ARGS(BENCH_MODEL, "--from-trace", trace, "--trace", trace), 2, "--from-trace");
    cli_expect(ARGS("replay", trace, "--budget", "10%,25%", "--log-file", trace), 2,
               "is the same file as the replayed file");
    cli_expect(ARGS("simulate", "--machine", "h200", "--model", "mixtral-8x7b", "--trace", trace,
                    "--timeline", trace),
               2, "is the same file as --from-trace");
    cli_expect(ARGS("calibrate", "--model", dir, "--text", text, "--out", text), 2, "--text");
    cli_expect(ARGS("calibrate", "--model", dir, "--text", text, "--out", weights), 2,
               "model.safetensors of --model");
    cli_expect(&(const struct cli){ .args = { RUN_MODEL, "--log-file", text, "--trace", text } }, 2,
               "E_SAME_FILE");
    /* What was learned is read by a run, and written anew by who learns it. */
    snprintf(learned, sizeof(learned), "%s/moepager-calibration.safetensors", dir);
    cli_expect(ARGS("calibrate", "--model", dir, "--text", text, "--window", "8", "--json"), 0,
               NULL);
    cli_expect(ARGS("calibrate", "--model", dir, "--text", text, "--window", "8", "--json"), 0,
               NULL);
    cli_expect(ARGS(RUN_MODEL, "--trace", learned), 2, "moepager-calibration.safetensors");
    CHECK_EQ(stat(weights, &after), 0);
    CHECK(before.st_size == after.st_size && before.st_ino == after.st_ino);
    free(text);
    free(twin);
    free(ids);
    free(trace);
}

static void standard_input_is_an_input(void)
{
    const char *text = cli_path("stdin-text");
    struct cli cli = { .args = { "run", "--model", dir, "--prompt-file", "-", "--trace", text } };

    cli_write(text, "a", 1);
    cli.input_fd = open(text, O_RDONLY);
    cli_expect(&cli, 2, "is the same file as --prompt-file");
    close(cli.input_fd);
}

/* Also those that do not exist yet, by any spelling; a device may be named often. */
static void outputs_differ(void)
{
    char a[4500], b[4500];

    snprintf(a, sizeof(a), "%s/new", dir);
    snprintf(b, sizeof(b), "%s/../model/new", dir);
    cli_expect(ARGS(RUN_MODEL, "--trace", a, "--timeline", b), 2,
               "error[E_SAME_FILE]: --timeline '");
    CHECK_EQ(access(a, F_OK), -1);
    cli_write(a, "x", 1);
    cli_expect(ARGS(RUN_MODEL, "--logits-out", a, "--decision-log", b), 2, "E_SAME_FILE");
    cli_expect(ARGS(RUN_MODEL, "--trace", "-", "--timeline", "/dev/stdout"), 2,
               "are both standard output");
    cli_expect(ARGS(RUN_MODEL, "--trace", "/dev/null", "--timeline", "/dev/null"), 0, "tokens");
    CHECK_EQ(unlink(a), 0);
}

/* It gets the file and nothing else; the text is said on standard error. */
static void standard_output_can_be_a_file(void)
{
    static const char *const names[] = { "-", "/dev/stdout", "/dev/fd/1" };
    const char *file = cli_path("alone");
    struct cli_result result;
    char *want;

    cli_expect(ARGS(RUN_MODEL, "--trace", file), 0, "tokens");
    want = cli_read(file, NULL);
    for (size_t i = 0; i < 3; i++) {
        cli_run(ARGS(RUN_MODEL, "--trace", names[i]), &result);
        CHECK_EQ(result.exit_code, 0);
        CHECK_STR(result.out, want);
        CHECK(strstr(result.err, "hit rate") != NULL);
        cli_free(&result);
        CHECK_EQ(access(names[i][0] == '-' ? "-" : "/dev/fd", F_OK), names[i][0] == '-' ? -1 : 0);
    }
    free(want);
    cli_expect(&(const struct cli){ .args = { RUN_MODEL, "--trace", "-" }, .output = CLI_CLOSED },
               6, "error[E_OUTPUT]");
}

/* As in --trace >(gzip): the shell names a pipe. */
static void a_pipe_can_be_a_file(void)
{
    char command[9000], *text;
    const char *to = cli_path("from-pipe");

    snprintf(command, sizeof(command),
             "%s run --model %s --prompt a --max-tokens 1 --trace /dev/fd/7 7>&1 >/dev/null "
             "2>/dev/null | cat >%s",
             cli_program(), dir, to);
    CHECK_EQ(system(command), 0);
    text = cli_read(to, NULL);
    CHECK(strncmp(text, "# moepager", 10) == 0);
    free(text);
    snprintf(command, sizeof(command),
             "%s run --model %s --prompt a --logits-out /dev/fd/7 7>&1 >/dev/null 2>%s | cat",
             cli_program(), dir, to);
    CHECK_EQ(system(command), 0);
    text = cli_read(to, NULL);
    CHECK(strstr(text, "error[E_OUTPUT]: cannot write '/dev/fd/7': Illegal seek; a pipe takes no "
                       "file") != NULL);
    free(text);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    make_model();
    RUN(an_output_is_no_input);
    RUN(standard_input_is_an_input);
    RUN(outputs_differ);
    RUN(standard_output_can_be_a_file);
    RUN(a_pipe_can_be_a_file);
    free(dir);
    return 0;
}
