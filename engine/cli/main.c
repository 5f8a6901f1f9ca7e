/*
 * The program: finds the command, turns a status into one line and an exit code.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cli/args/apart.h"
#include "engine/cli/commands.h"
#include "engine/cli/args/flags.h"
#include "engine/session/model_name.h"
#include "vmm/backend/cuda/cuda_watchdog.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/base/version.h"
#include "vmm/output/json_out.h"

#define STACK_BYTES (256u << 10)

static void on_signal(int number)
{
    (void)number;
    mp_interrupted = 1;
}

/*
 * A standard descriptor that was closed stays so: without this the next file that is opened would
 * take its number, and text or reports would be written into it. What stands in its place refuses
 * reading or writing as a closed one does; a program that is started finds it closed.
 */
static void hold_standard_descriptors(void)
{
    static const int flags[3] = { O_WRONLY, O_RDONLY, O_RDONLY };

    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF)
            continue;
        if (open("/dev/null", flags[fd] | O_CLOEXEC) !=
            fd) /* the lowest free one, as those below are open */
            exit(70);
    }
}

/*
 * Kernels keep up to 200 KiB on the stack. The first thread's grows when it is touched, and where
 * addresses are limited that can fail, which the kernel answers with a signal. So it grows here,
 * before anything else has taken them.
 */
static void __attribute__((noinline)) grow_stack(void)
{
    volatile char below[STACK_BYTES];

    for (size_t i = STACK_BYTES; i > 0; i -= 4096)
        below[i - 4096] = 0;
    (void)below[0];
}

/* One Ctrl-C ends the run in order, a second one at once; so do SIGTERM and a closed terminal. */
static void catch_signals(void)
{
    const struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };
    const struct sigaction ignore = { .sa_handler = SIG_IGN };
    struct sigaction hangup;

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) /* nohup */
        sigaction(SIGHUP, &action, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL); /* write() fails instead */
}

/* Is --json among the arguments, understood or not? Then errors are JSON, too. */
static bool json_errors;

static void look_for_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        json_errors = json_errors || strcmp(argv[i], "--json") == 0;
}

/* One line on standard error: text, or with --json an object. */
static void print_error(const struct mp_error *error, int exit_code)
{
    struct mp_json_out json;

    if (!json_errors && error->code[0] != '\0') {
        dprintf(STDERR_FILENO, "moepager: error[%s]: %s\n", error->code, error->text);
    } else if (!json_errors) {
        dprintf(STDERR_FILENO, "moepager: error: %s\n", mp_status_str(error->status));
    } else {
        mp_json_begin(&json, stderr, false);
        mp_json_object_begin(&json, NULL);
        mp_json_object_begin(&json, "error");
        mp_json_put_string(&json, "code", error->code);
        mp_json_put_string(&json, "message", error->text);
        mp_json_put_u64(&json, "exit_code", (uint64_t)exit_code);
        mp_json_object_end(&json);
        mp_json_object_end(&json);
        mp_json_end(&json);
    }
}

/* That of the status, but for a command that could not be started, as a shell has it. */
static int exit_code_of(enum mp_status status)
{
    const char *code = mp_error_last()->code;

    if (status != MP_OK && strcmp(code, "E_COMMAND_MISSING") == 0)
        return 127;
    if (status != MP_OK && strcmp(code, "E_COMMAND") == 0)
        return 126;
    return mp_status_exit_code(status);
}

static int finish(enum mp_status status)
{
    if (status != MP_OK)
        print_error(mp_error_last(), exit_code_of(status));
    return exit_code_of(status);
}

/* A thread hangs in the driver and others may wait for it, so nothing is taken down. */
static void end_at_once(const struct mp_error *error)
{
    print_error(error, mp_status_exit_code(error->status));
    _exit(mp_status_exit_code(error->status));
}

typedef enum mp_status command_fn(const struct mp_args *args, const struct mp_settings *settings);

static command_fn *const command_functions[MP_COMMAND_COUNT] = {
#define X(upper, lower) [MP_COMMAND_##upper] = mp_cmd_##lower,
    MP_COMMAND_MAP(X)
#undef X
};

static enum mp_status unknown_command(const char *name)
{
    static const char *const names[] = { "help", "version",
#define X(upper, lower) #lower,
                                         MP_COMMAND_MAP(X)
#undef X
                                             NULL };
    const char *renamed = mp_flag_new_name(MP_COMMAND_COUNT, name);
    const char *nearest = mp_opt_nearest(names, name);
    char quoted[MP_QUOTE_BYTES];

    mp_quote(quoted, name, strlen(name));
    if (renamed != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "command '%s' is now '%s'", quoted, renamed);
    if (nearest != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "unknown command '%s'; did you mean '%s'?", quoted,
                       nearest);
    return mp_fail(MP_ERR_CONFIG, "E_USAGE", "unknown command '%s'; moepager --help lists them",
                   quoted);
}

/* `moepager help [COMMAND]`: argv becomes that of `moepager COMMAND --help`, or of --help. */
static void turn_help(int *argc, char **argv, char *turned[4])
{
    static char help[] = "--help";

    if (*argc < 2 || strcmp(argv[1], "help") != 0)
        return;
    turned[0] = argv[0];
    turned[1] = *argc > 2 ? argv[2] : help;
    turned[2] = *argc > 2 ? help : NULL;
    turned[3] = NULL;
    *argc = *argc > 2 ? 3 : 2;
}

/* A model may be a name; `path` stays as long as the arguments. */
static enum mp_status find_model(const char **model, char path[MP_MODEL_PATH_BYTES])
{
    struct mp_environment environment;
    enum mp_status status;

    if (*model == NULL)
        return MP_OK;
    status = mp_environment_copy(&environment);
    if (status != MP_OK)
        return status;
    status = mp_model_find(&environment, *model, path);
    mp_environment_fini(&environment);
    if (status == MP_OK)
        *model = path;
    return status;
}

int main(int argc, char **argv)
{
    static char path[MP_MODEL_PATH_BYTES], reference[MP_MODEL_PATH_BYTES];
    static struct mp_settings settings;
    char *turned[4] = { NULL };
    struct mp_args args;
    enum mp_command command;
    enum mp_status status;

    grow_stack();
    hold_standard_descriptors();
    /* What is preloaded finds signals as they were, for ignored ones stay so. */
    if (argc < 2 || strcmp(argv[1], "preload") != 0)
        catch_signals();
    look_for_json(argc, argv);
    turn_help(&argc, argv, turned);
    argv = turned[0] != NULL ? turned : argv;
    if (argc >= 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        mp_args_print_usage(stdout);
        return finish(mp_check_stdout());
    }
    if (argc >= 2 &&
        (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-v") || !strcmp(argv[1], "version"))) {
        printf("moepager %s\n", mp_version);
        return finish(mp_check_stdout());
    }
    if (argc < 2)
        return finish(mp_fail(MP_ERR_CONFIG, "E_USAGE",
                              "no command; moepager --help lists them, moepager run --help has "
                              "examples"));
    command = mp_command_find(argv[1]);
    if (command == MP_COMMAND_COUNT)
        return finish(unknown_command(argv[1]));

    status = mp_settings_load(&settings);
    if (status == MP_OK)
        status = mp_args_parse(command, argc, argv, &args, &settings);
    if (status == MP_OK && (args.help || args.help_all)) {
        mp_args_print_help(command, &settings, args.help_all, stdout);
        return finish(mp_check_stdout());
    }
    if (status == MP_OK && command != MP_COMMAND_SIMULATE)
        status = find_model(&args.model, path);
    if (status == MP_OK)
        status = find_model(&args.reference, reference);
    if (status == MP_OK)
        status = mp_files_apart(command, &args, &settings);
    if (status == MP_OK)
        status = mp_settings_start_log(&settings);
    mp_cuda_watchdog_set((unsigned)settings.run.watchdog_s, end_at_once);
    mp_gpu_configure(&settings.gpu);
    if (status == MP_OK)
        status = command_functions[command](&args, &settings);
    mp_log_fini();
    return finish(status);
}
