/*
 * `moepager preload` as the one that starts a program: what it hands on, what it leaves alone, and
 * how it ends. The programs are a shell's; none of them maps a model.
 */
#include "tests/system/cli/cli.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

#define LIBRARY "libmoepager_preload.so"

/* The library as `moepager preload` names it: beside the program. */
static const char *library(void)
{
    static char path[4400];
    char real[4096];

    CHECK(realpath(cli_program(), real) != NULL);
    *strrchr(real, '/') = '\0';
    snprintf(path, sizeof(path), "%s/" LIBRARY, real);
    return path;
}

/* What the run printed; owned by the caller. */
static char *output_of(const struct cli *cli, int exit_code)
{
    struct cli_result result;
    char *out;

    cli_run(cli, &result);
    if (result.exit_code != exit_code || result.err_bytes > 0)
        fprintf(stderr, "exit code %d, errors: %s\n", result.exit_code, result.err);
    CHECK_EQ(result.exit_code, exit_code);
    CHECK_EQ(result.err_bytes, 0);
    out = result.out;
    free(result.err);
    return out;
}

/* The line "NAME=value" of `env`; owned by the caller, NULL: not there. */
static char *variable(const char *out, const char *name)
{
    char line[64];
    const char *at;

    snprintf(line, sizeof(line), "\n%s=", name);
    at = strstr(out, line);
    if (at == NULL)
        return NULL;
    at += strlen(line);
    return strndup(at, strcspn(at, "\n"));
}

static void expect_variable(const char *out, const char *name, const char *value)
{
    char *got = variable(out, name);

    if ((got == NULL) != (value == NULL) || (got != NULL && strcmp(got, value) != 0))
        fprintf(stderr, "%s is '%s', expected '%s'\n", name, got != NULL ? got : "(unset)",
                value != NULL ? value : "(unset)");
    CHECK((got == NULL) == (value == NULL));
    CHECK(got == NULL || strcmp(got, value) == 0);
    free(got);
}

/* The first line has no newline before it. */
#define ENV "sh", "-c", "echo; env"

static void settings_become_variables(void)
{
    const struct cli cli = { .args = { "preload", "--budget", "3GiB", "--evict=lru", "--seed", "7",
                                       "--report", "1", "--", ENV },
                             .env = { "MOEPAGER_SEED=5", "MOEPAGER_TRACE=t" } };
    char *out = output_of(&cli, 0), *path;

    expect_variable(out, "MOEPAGER_BUDGET", "3GiB");
    expect_variable(out, "MOEPAGER_EVICT", "lru");
    expect_variable(out, "MOEPAGER_SEED", "7");
    expect_variable(out, "MOEPAGER_REPORT", "1");
    expect_variable(out, "MOEPAGER_TRACE", "t");
    expect_variable(out, "MOEPAGER_PROFILE", NULL);
    expect_variable(out, "LD_PRELOAD", library());
    path = variable(out, "PYTHONPATH"); /* a shell may start Python */
    CHECK(path != NULL && strstr(path, "/python") != NULL);
    free(path);
    free(out);
}

/* A value that is the default goes before a variable that is not. */
static void a_default_replaces_a_variable(void)
{
    const struct cli cli = { .args = { "preload", "--seed", "1", ENV },
                             .env = { "MOEPAGER_SEED=5", "MOEPAGER_BUDGET=25%" } };
    char *out = output_of(&cli, 0);

    expect_variable(out, "MOEPAGER_SEED", "1");
    expect_variable(out, "MOEPAGER_BUDGET", "25%");
    free(out);
    out = output_of(&(const struct cli){ .args = { "preload", ENV } }, 0);
    expect_variable(out, "MOEPAGER_BUDGET", "auto");
    free(out);
}

/* Others stay, in their order; ours stands once and behind them. */
static void other_libraries_stay(void)
{
    char before[9000], after[9000];
    struct cli cli = { .args = { "preload", ENV }, .env = { before } };
    char *out;

    snprintf(before, sizeof(before), "LD_PRELOAD=%s libm.so.6:libdl.so.2", library());
    snprintf(after, sizeof(after), "libm.so.6:libdl.so.2:%s", library());
    out = output_of(&cli, 0);
    expect_variable(out, "LD_PRELOAD", after);
    free(out);
}

/* Children of the program have what it has. */
static void children_inherit(void)
{
    char *out =
        output_of(&(const struct cli){ .args = { "preload", "--budget", "1MiB", "--", "sh", "-c",
                                                 "sh -c 'echo; env' | cat; grep -c " LIBRARY
                                                 " /proc/self/maps > /dev/null && echo mapped" } },
                  0);

    expect_variable(out, "MOEPAGER_BUDGET", "1MiB");
    expect_variable(out, "LD_PRELOAD", library());
    CHECK(strstr(out, "\nmapped\n") != NULL);
    free(out);
}

static void the_exit_code_is_the_programs(void)
{
    struct cli_result result;

    free(output_of(&(const struct cli){ .args = { "preload", "--", "sh", "-c", "exit 42" } }, 42));
    free(output_of(&(const struct cli){ .args = { "preload", "true", "--json", "--budget" } }, 0));
    cli_run(&(const struct cli){ .args = { "preload", "sh", "-c", "kill -TERM $$" } }, &result);
    CHECK_EQ(result.exit_code, -1);
    CHECK_EQ(result.signal, SIGTERM);
    cli_free(&result);
}

static void what_cannot_be_started(void)
{
    const char *text = cli_path("text"), *script = cli_path("script");

    cli_write(text, "echo no", 7);
    cli_write(script, "#!/no/such/interpreter\n", 23);
    CHECK_EQ(chmod(script, 0755), 0);
#define PRELOAD(...) (&(const struct cli){ .args = { "preload", __VA_ARGS__ } })
    cli_expect(PRELOAD("--", "no-such-program"), 127,
               "error[E_COMMAND_MISSING]: cannot start 'no-such-program': it is in no folder");
    cli_expect(PRELOAD("/no/such"), 127, "cannot start '/no/such': there is no such file");
    cli_expect(PRELOAD(script), 127, "or what it names as its interpreter is not there");
    cli_expect(PRELOAD("--", ""), 127, "error[E_COMMAND_MISSING]: cannot start ''");
    cli_expect(PRELOAD(text), 126, "error[E_COMMAND]");
    cli_expect(PRELOAD("/"), 126, "error[E_COMMAND]: cannot start '/'");
    cli_expect(PRELOAD("--json", "--", "no-such-program"), 127, "\"exit_code\":127");
}

/* It is started all the same, whatever it then does. */
static void a_static_program_is_named(void)
{
    const char *path = cli_path("static");
    struct cli_result result;
    size_t bytes;
    char *data = cli_read("tests/data/fuzz/elf_fuzz/static", &bytes);

    cli_write(path, data, bytes);
    free(data);
    CHECK_EQ(chmod(path, 0755), 0);
    cli_run(PRELOAD(path), &result);
    CHECK(strstr(result.err, "is linked statically: nothing can be preloaded") != NULL);
    cli_free(&result);
    if (!cli_is_sanitized()) /* whose library is in no other program */
        free(output_of(PRELOAD("sh", "-c", "exit 0"), 0)); /* without a word */
}

static void wrong_flags(void)
{
    cli_expect(PRELOAD(NULL), 2, "error[E_USAGE]: no command; moepager preload [--flag value]...");
    cli_expect(PRELOAD("--budget", "1GiB", "--"), 2, "error[E_USAGE]: no command");
    cli_expect(PRELOAD("--budget", "much", "--", "true"), 2, "option '--budget': got 'much'");
    cli_expect(PRELOAD("--budgte", "1", "--", "true"), 2, "did you mean '--budget'?");
    cli_expect(PRELOAD("--evict", "lrru", "--", "true"), 2, "known are lru, lfu");
    cli_expect(PRELOAD("-m", "model.gguf"), 2, "'-m' is not a flag");
    /* Its own settings are flags of no other command. */
    cli_expect(&(const struct cli){ .args = { "info", "--report", "1" } }, 2,
               "unknown option '--report'");
}

/* Signals that the command line itself would catch or ignore are as they were. */
static void signals_are_as_they_were(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ };
    struct cli_result result;

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        char command[64];

        snprintf(command, sizeof(command), "kill -%d $$; echo survived", numbers[i]);
        cli_run(PRELOAD("sh", "-c", command), &result);
        CHECK_EQ(result.signal, numbers[i]);
        CHECK_EQ(result.out_bytes, 0);
        cli_free(&result);
    }
}

/* The program has taken the place of ours: a Ctrl-C from outside is its own. */
static void ctrl_c_goes_to_the_program(void)
{
    int out;
    char byte;
    const pid_t pid = cli_start(
        PRELOAD("sh", "-c", "trap 'exit 5' INT; echo x; while :; do sleep 0.05; done"), &out);

    CHECK_EQ(read(out, &byte, 1), 1);
    kill(pid, SIGINT);
    CHECK_EQ(cli_end(pid), 5);
    close(out);
}

static void descriptors_are_as_they_were(void)
{
    const struct cli cli = { .args = { "preload", "sh", "-c",
                                       "test -e /proc/$$/fd/0 && echo open || echo closed" },
                             .input_closed = true };
    char *out = output_of(&cli, 0);

    CHECK_STR(out, "closed\n");
    free(out);
}

static bool has_python(void)
{
    return system("python3 -c '' >/dev/null 2>&1") == 0;
}

/* Our module runs, the next one of its name too, and the path is as it was. */
static void python_gets_the_module(void)
{
    const char *dir = cli_path("site"), *script = cli_path("tool");
    char path[4400], variable_[4400], code[4400];
    struct cli cli = { .args = { "preload", "--budget", "1MiB", "python3", "-c", code },
                       .env = { variable_ } };
    char *out;

    if (!has_python()) {
        fprintf(stderr, "no python3: not tried\n");
        return;
    }
    CHECK_EQ(mkdir(dir, 0700), 0);
    snprintf(path, sizeof(path), "%s/sitecustomize.py", dir);
    cli_write(path, "print('next')\n", 14);
    snprintf(variable_, sizeof(variable_), "PYTHONPATH=%s", dir);
    snprintf(code, sizeof(code),
             "import sys, os; print(sys.modules['sitecustomize'].__file__ == '%s', "
             "any(hasattr(f, 'folder') for f in sys.meta_path), "
             "'%s' in sys.path, os.environ['PYTHONPATH'].split(':')[0] in sys.path, "
             "os.environ['PYTHONPATH'].endswith('/python:%s'))",
             path, dir, dir);
    out = output_of(&cli, 0);
    CHECK_STR(out, "next\nTrue True True False True\n");
    free(out);
    /* A script names its Python in the first line. */
    cli_write(script, "#!/usr/bin/env python3\nimport os; print(os.environ['PYTHONPATH'])\n", 66);
    CHECK_EQ(chmod(script, 0755), 0);
    out = output_of(PRELOAD(script), 0);
    CHECK(strstr(out, "/python\n") != NULL);
    free(out);
}

/* A program that runs with the rights of its file's owner gets neither library nor variables from
 * the loader, and works. Needs the rights to make one. */
static void a_privileged_program_is_left_alone(void)
{
    const char *copy = cli_path("privileged");
    char command[9000];
    struct stat info;
    int status;
    pid_t pid;

    snprintf(command, sizeof(command), "cp /bin/cat %s && chmod 4755 %s && chmod 711 $(dirname %s)",
             copy, copy, copy);
    if (getuid() != 0 || system(command) != 0 || stat(copy, &info) != 0 ||
        (info.st_mode & S_ISUID) == 0) {
        fprintf(stderr, "not root: not tried\n");
        return;
    }
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        const int out = open("/dev/null", O_WRONLY);

        if (dup2(out, STDOUT_FILENO) < 0 || setgid(65534) != 0 || setuid(65534) != 0)
            _exit(99);
        execl(cli_program(), cli_program(), "preload", "--budget", "1MiB", copy, "/dev/null",
              (char *)NULL);
        _exit(98);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    if (WEXITSTATUS(status) == 98) /* a folder above that others cannot enter */
        fprintf(stderr, "the program cannot be started by others: not tried\n");
    else
        CHECK_EQ(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(what_cannot_be_started);
    RUN(a_static_program_is_named);
    RUN(wrong_flags);
    if (cli_is_sanitized()) {
        fprintf(stderr, "instrumented: its library is in no other program\n");
        return 77;
    }
    RUN(settings_become_variables);
    RUN(a_default_replaces_a_variable);
    RUN(other_libraries_stay);
    RUN(children_inherit);
    RUN(the_exit_code_is_the_programs);
    RUN(signals_are_as_they_were);
    RUN(ctrl_c_goes_to_the_program);
    RUN(descriptors_are_as_they_were);
    RUN(python_gets_the_module);
    RUN(a_privileged_program_is_left_alone);
    return 0;
}
