#ifndef MP_TEST_CLI_H
#define MP_TEST_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * Runs the built program as a person would and keeps what it said. The first argument of a test
 * program is the path of moepager; the working directory is the top of the tree. MOEPAGER_*
 * variables of the caller are not passed on.
 */
#define CLI_ARGS_MAX 48
#define CLI_MODEL "models/tiny-moe"

enum cli_output { CLI_CAPTURE, CLI_CLOSED, CLI_FULL, CLI_UNREAD };

struct cli {
    const char *args[CLI_ARGS_MAX]; /* NULL-terminated, without the program */
    const char *env[8];             /* "NAME=value", NULL-terminated */
    const char *input;              /* text for standard input; NULL: /dev/null */
    int input_fd;                   /* if not 0: becomes standard input */
    bool input_closed;
    enum cli_output output;
    int output_fd; /* if not 0: becomes standard output */
    bool errors_closed;
    int errors_fd;              /* if not 0: becomes standard error */
    size_t address_space_bytes; /* RLIMIT_AS; 0: as it is */
    size_t file_bytes;          /* RLIMIT_FSIZE; 0: as it is */
};

struct cli_result {
    int exit_code; /* -1: ended by a signal */
    int signal;
    char *out, *err; /* NUL-terminated; owned */
    size_t out_bytes, err_bytes;
};

/* Remember the program; exits if there is none. */
void cli_init(int argc, char **argv);
const char *cli_program(void);

/* Run to the end. */
void cli_run(const struct cli *cli, struct cli_result *result);
void cli_free(struct cli_result *result);

/* Start and leave running; its standard output is *out_fd, to be closed by the caller, and its
 * standard error goes to errors_fd, or is not kept. */
pid_t cli_start(const struct cli *cli, int *out_fd);

/* Wait for it; its exit code. Fails if a signal ended it. */
int cli_end(pid_t pid);

/* Text of 1800 tokens or so, hence as many batches with --prefill-tokens 1; owned by the caller. */
char *cli_long_prompt(void);

/* Run; check the exit code and that the errors contain `part` (NULL: that there are none), and that
 * a failing run says one line only. */
void cli_expect(const struct cli *cli, int exit_code, const char *part);

/* Run with success and parse its standard output as JSON. The caller owns the object. */
json_t *cli_json(const struct cli *cli);

/* A path in the test's own directory; static, 64 at a time. */
const char *cli_path(const char *name);
void cli_write(const char *path, const char *text, size_t bytes);
/* A whole file, NUL-terminated; owned by the caller. */
char *cli_read(const char *path, size_t *bytes_p);
/* Names in a directory, without . and .. */
unsigned cli_count_entries(const char *path);

/* Is this build instrumented by a sanitizer that needs more address space than a limit leaves? */
bool cli_is_sanitized(void);

#endif
