/* Running the built program; see cli.h. */
#include "tests/system/cli/cli.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

extern char **environ;

static const char *program;

void cli_init(int argc, char **argv)
{
    if (argc < 2 || access(argv[1], X_OK) != 0) {
        fprintf(stderr, "usage: %s MOEPAGER\n", argv[0]);
        exit(1);
    }
    program = argv[1];
}

const char *cli_program(void)
{
    return program;
}

static void point(int fd, const char *path, int flags)
{
    const int opened = open(path, flags, 0600);

    if (opened < 0 || dup2(opened, fd) < 0)
        _exit(126);
    if (opened != fd)
        close(opened);
}

/* Is one of the test's own settings of this name? */
static bool sets(const struct cli *cli, const char *name)
{
    for (size_t i = 0; i < 8 && cli->env[i] != NULL; i++) {
        if (strncmp(cli->env[i], name, strlen(name)) == 0)
            return true;
    }
    return false;
}

static void set_environment(const struct cli *cli)
{
    static char no_cache[] = "MOEPAGER_CACHE_DIR=none";
    static char *kept[512];
    size_t count = 0;

    for (char **entry = environ; *entry != NULL && count < 480; entry++) {
        if (strncmp(*entry, "MOEPAGER_", 9) != 0)
            kept[count++] = *entry;
    }
    for (size_t i = 0; i < 8 && cli->env[i] != NULL; i++)
        kept[count++] = (char *)cli->env[i];
    /* What is found out about a made-up device is not kept in somebody's home. */
    if (sets(cli, "LD_LIBRARY_PATH=") && !sets(cli, "MOEPAGER_CACHE_DIR="))
        kept[count++] = no_cache;
    kept[count] = NULL;
    environ = kept;
}

/* Its reader has gone: every write fails, however short. */
static void point_at_unread_pipe(int fd)
{
    int ends[2];

    if (pipe(ends) != 0 || dup2(ends[1], fd) < 0)
        _exit(127);
    close(ends[0]);
    close(ends[1]);
}

/* In the child. */
static void become(const struct cli *cli, const char *in)
{
    const char *argv[CLI_ARGS_MAX + 2] = { program };

    for (size_t i = 0; i < CLI_ARGS_MAX && cli->args[i] != NULL; i++)
        argv[i + 1] = cli->args[i];
    if (cli->input_closed)
        close(STDIN_FILENO);
    else if (cli->input_fd != 0)
        dup2(cli->input_fd, STDIN_FILENO);
    else
        point(STDIN_FILENO, in, O_RDONLY);
    if (cli->output == CLI_CLOSED)
        close(STDOUT_FILENO);
    else if (cli->output == CLI_FULL)
        point(STDOUT_FILENO, "/dev/full", O_WRONLY);
    else if (cli->output == CLI_UNREAD)
        point_at_unread_pipe(STDOUT_FILENO);
    if (cli->output_fd != 0)
        dup2(cli->output_fd, STDOUT_FILENO);
    if (cli->errors_fd != 0)
        dup2(cli->errors_fd, STDERR_FILENO);
    if (cli->errors_closed)
        close(STDERR_FILENO);
    if (cli->address_space_bytes > 0) {
        const struct rlimit limit = { cli->address_space_bytes, cli->address_space_bytes };

        setrlimit(RLIMIT_AS, &limit);
    }
    if (cli->file_bytes > 0) {
        const struct rlimit limit = { cli->file_bytes, cli->file_bytes };

        setrlimit(RLIMIT_FSIZE, &limit);
    }
    set_environment(cli);
    execve(program, (char **)argv, environ);
    _exit(127);
}

static const char *make_input(const struct cli *cli)
{
    const char *path = cli_path("stdin");

    if (cli->input == NULL)
        return "/dev/null";
    cli_write(path, cli->input, strlen(cli->input));
    return path;
}

void cli_run(const struct cli *cli, struct cli_result *result)
{
    const char *in = make_input(cli), *out = cli_path("stdout"), *err = cli_path("stderr");
    int status;
    pid_t pid;

    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        point(STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC);
        point(STDERR_FILENO, err, O_WRONLY | O_CREAT | O_TRUNC);
        become(cli, in);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    result->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    result->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    result->out = cli_read(out, &result->out_bytes);
    result->err = cli_read(err, &result->err_bytes);
}

void cli_free(struct cli_result *result)
{
    free(result->out);
    free(result->err);
}

pid_t cli_start(const struct cli *cli, int *out_fd)
{
    const char *in = make_input(cli);
    int ends[2];
    pid_t pid;

    CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        if (dup2(ends[1], STDOUT_FILENO) < 0)
            _exit(126);
        point(STDERR_FILENO, "/dev/null", O_WRONLY); /* unless errors_fd says otherwise */
        become(cli, in);
    }
    close(ends[1]);
    *out_fd = ends[0];
    return pid;
}

int cli_end(pid_t pid)
{
    int status;

    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

char *cli_long_prompt(void)
{
    char *text = calloc(1, 8192);

    CHECK(text != NULL);
    for (int i = 0; i < 900; i++)
        sprintf(text + strlen(text), "%d ", i % 10);
    return text;
}

static void show(const struct cli *cli, const struct cli_result *result)
{
    fprintf(stderr, "moepager");
    for (size_t i = 0; i < CLI_ARGS_MAX && cli->args[i] != NULL; i++)
        fprintf(stderr, " '%.60s'", cli->args[i]);
    fprintf(stderr, "\nended with %d (signal %d)\n--- stdout\n%.2000s\n--- stderr\n%.2000s\n",
            result->exit_code, result->signal, result->out, result->err);
}

void cli_expect(const struct cli *cli, int exit_code, const char *part)
{
    struct cli_result result;
    bool ok;

    cli_run(cli, &result);
    ok = result.exit_code == exit_code;
    if (part == NULL)
        ok = ok && result.err_bytes == 0;
    else
        ok = ok && strstr(result.err, part) != NULL;
    if (exit_code != 0 && part != NULL)
        ok = ok && strchr(result.err, '\n') == result.err + result.err_bytes - 1;
    if (!ok) {
        show(cli, &result);
        fprintf(stderr, "expected exit code %d and '%s'\n", exit_code, part != NULL ? part : "");
        exit(1);
    }
    cli_free(&result);
}

json_t *cli_json(const struct cli *cli)
{
    struct cli_result result;
    json_error_t error;
    json_t *json;

    cli_run(cli, &result);
    json = json_loadb(result.out, result.out_bytes, JSON_REJECT_DUPLICATES, &error);
    if (result.exit_code != 0 || json == NULL) {
        show(cli, &result);
        fprintf(stderr, "expected success and JSON: %s\n", json == NULL ? error.text : "");
        exit(1);
    }
    cli_free(&result);
    return json;
}

const char *cli_path(const char *name)
{
    static char paths[64][4200];
    static unsigned next;
    char *path = paths[next++ % 64];

    snprintf(path, sizeof(paths[0]), "%s/%s", test_tmpdir(), name);
    return path;
}

void cli_write(const char *path, const char *text, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    CHECK(file != NULL);
    CHECK_EQ(fwrite(text, 1, bytes, file), bytes);
    CHECK_EQ(fclose(file), 0);
}

char *cli_read(const char *path, size_t *bytes_p)
{
    FILE *file = fopen(path, "rb");
    size_t capacity = 1u << 16, bytes = 0;
    char *text = malloc(capacity);

    CHECK(file != NULL && text != NULL);
    for (;;) {
        const size_t got = fread(text + bytes, 1, capacity - bytes - 1, file);

        bytes += got;
        if (got == 0)
            break;
        if (capacity - bytes < 4096) {
            capacity *= 2;
            text = realloc(text, capacity);
            CHECK(text != NULL);
        }
    }
    fclose(file);
    text[bytes] = '\0';
    if (bytes_p != NULL)
        *bytes_p = bytes;
    return text;
}

unsigned cli_count_entries(const char *path)
{
    DIR *dir = opendir(path);
    unsigned count = 0;

    CHECK(dir != NULL);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return count;
}

bool cli_is_sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
    return __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
    return false;
#endif
}
