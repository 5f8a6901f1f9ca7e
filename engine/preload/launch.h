#ifndef MP_PRELOAD_LAUNCH_H
#define MP_PRELOAD_LAUNCH_H

#include <limits.h>

#include "engine/session/settings.h"
#include "vmm/options/environment.h"

/*
 * Starts a command with the preloaded library: where the library is, the environment that makes the
 * dynamic loader load it and tells it the settings, and exec. The command takes the place of this
 * process, so signals, descriptors and the exit code are its own.
 */
#define MP_PRELOAD_LIBRARY "libmoepager_preload.so"

/* Beside the program, as in a build folder, or where `cmake --install` puts it. MP_ERR_IO
 * E_PRELOAD_LIBRARY: it is in neither place, or in one that the loader cannot be told of. */
enum mp_status mp_preload_find_library(char path[PATH_MAX]) MP_MUST_CHECK;

/* The folder of our Python module, found likewise; false: it is not there. */
bool mp_preload_find_python(char path[PATH_MAX]) MP_MUST_CHECK;

/*
 * The file that execvp() would start for the word `name`; false: there is none, or none that may be
 * executed, and *exit_code_p is what a shell would end with (127, 126).
 */
bool mp_preload_find_program(const struct mp_environment *environment, const char *name,
                             char path[PATH_MAX], int *exit_code_p) MP_MUST_CHECK;

/* Is it Python, or a script of it? By its name and its first line. */
bool mp_preload_is_python(const char *path);

/*
 * The environment for a program: this process's with the settings as variables, our library behind
 * all others of LD_PRELOAD (once), and for Python our module first in PYTHONPATH. The budget is
 * always set, because without one the library does nothing.
 */
enum mp_status mp_preload_environment(const struct mp_settings *settings, const char *library,
                                      const char *program,
                                      struct mp_environment *environment_p) MP_MUST_CHECK;

/* Start the command in place of this process. Returns only if that failed: MP_ERR_CONFIG with
 * E_COMMAND_MISSING or E_COMMAND. */
enum mp_status mp_preload_exec(char **argv, const struct mp_environment *environment) MP_MUST_CHECK;

#endif
