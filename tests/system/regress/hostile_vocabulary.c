/*
 * Symptom: escape sequences in a model's vocabulary reached the terminal as they are: they can
 * rename it, clear it, or answer for the user.
 * Cause: generated text was written to a terminal like to a file.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[4300];

/* Puts `text` into the place of `what`, of the same length. */
static void replace(char *in, const char *what, const char *text)
{
    char *at = strstr(in, what);

    CHECK(at != NULL);
    memcpy(at, text, strlen(text));
}

/* The bundled model, whose token 62 is the escape character instead of '_'. */
static void make_model(void)
{
    static const char *const names[] = { "config.json", "tokenizer.json", "tokenizer_config.json",
                                         "generation_config.json", "model.safetensors" };
    char path[4400], *text;
    size_t bytes;

    snprintf(dir, sizeof(dir), "%s", cli_path("model"));
    CHECK_EQ(mkdir(dir, 0700), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), CLI_MODEL "/%s", names[i]);
        text = cli_read(path, &bytes);
        if (strcmp(names[i], "tokenizer.json") == 0) {
            replace(text, "\"_\": 62,\n", "\"_\":215,\n");
            replace(text, "\"ě\": 215,", "\"ě\": 62 ,");
        }
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        cli_write(path, text, bytes);
        free(text);
    }
}

/* What a run with these arguments shows on a terminal. */
static void show(const struct cli *cli, char shown[8192])
{
    const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    size_t bytes = 0;
    ssize_t got;
    pid_t pid;
    int out;

    if (master < 0)
        SKIP("this machine has no pseudo terminals");
    CHECK(grantpt(master) == 0 && unlockpt(master) == 0);
    const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct cli on_terminal = *cli;

    CHECK(terminal > 0);
    on_terminal.output_fd = terminal;
    pid = cli_start(&on_terminal, &out);
    close(terminal);
    while ((got = read(master, shown + bytes, 8191 - bytes)) > 0)
        bytes += (size_t)got;
    shown[bytes] = '\0';
    CHECK_EQ(cli_end(pid), 0);
    close(master);
    close(out);
}

static void streamed_text_is_shown_escaped(void)
{
    const struct cli cli = { .args = { "run", "--model", dir, "--prompt", "def", "--max-tokens",
                                       "3" } };
    struct cli_result result;
    char shown[8192];

    show(&cli, shown);
    CHECK(strncmp(shown, "\\x1bundef\r\n", 11) == 0);
    cli_run(&cli, &result); /* a file gets the bytes */
    CHECK_STR(result.out, "\033undef\n");
    cli_free(&result);
}

static void so_are_the_texts_of_a_batch(void)
{
    static const char prompts[] = "a\033[2J\xc2\x9b\xff\xc3\xa9\tb\ndef\n";
    const char *path = cli_path("prompts");
    const struct cli cli = { .args = { "run", "--model", dir, "--batch-file", path, "--max-tokens",
                                       "3" } };
    struct cli_result result;
    char shown[8192];

    cli_write(path, prompts, sizeof(prompts) - 1);
    show(&cli, shown);
    CHECK(strstr(shown, "[0] a\\x1b[2J\\xc2\\x9b\\xff\xc3\xa9\tb") != NULL);
    CHECK(strstr(shown, "[1] def\\x1bundef") != NULL);
    CHECK(strchr(shown, '\033') == NULL);
    cli_run(&cli, &result);
    CHECK(strstr(result.out, "[0] a\033[2J\xc2\x9b\xff\xc3\xa9\tb") != NULL);
    CHECK(strstr(result.out, "[1] def\033undef") != NULL);
    cli_free(&result);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    make_model();
    RUN(streamed_text_is_shown_escaped);
    RUN(so_are_the_texts_of_a_batch);
    return 0;
}
