#ifndef MP_PRELOAD_LAUNCH_H
#define MP_PRELOAD_LAUNCH_H

#include <limits.h>

#include "engine/session/settings.h"
#include "vmm/options/environment.h"

/*
 * Starts a command with the preloaded library: finds the library, prepares the environment that
 * makes the dynamic loader load it and passes the settings, and calls exec. The command replaces
 * this process, so signals, descriptors and the exit code are its own.
 */
#define MP_PRELOAD_LIBRARY "libmoepager_preload.so"

/* Beside the program, as in a build folder, or where `cmake --install` puts it. MP_ERR_IO
 * E_PRELOAD_LIBRARY: it is in neither place, or its path cannot be expressed in LD_PRELOAD. */
enum mp_status mp_preload_find_library(char path[PATH_MAX]) MP_MUST_CHECK;

/* A file of the project's data by its name in there, found in the same way; false: not found. */
bool mp_preload_find_data(const char *name, char path[PATH_MAX]);

/* The folder of the project's Python module, found in the same way; false: not found. */
bool mp_preload_find_python(char path[PATH_MAX]) MP_MUST_CHECK;

/*
 * The file that execvp() would start for the word `name`; false: there is none, or none that may be
 * executed, and *exit_code_p is the exit code of a shell (127, 126).
 */
bool mp_preload_find_program(const struct mp_environment *environment, const char *name,
                             char path[PATH_MAX], int *exit_code_p) MP_MUST_CHECK;

/* True if it is Python or a Python script, by its name and first line. */
bool mp_preload_is_python(const char *path);

/*
 * The environment for a program: this process's with the settings as variables, the library last in
 * LD_PRELOAD (once), and the folder of our Python module first in PYTHONPATH. The budget is always
 * set, because the library does nothing without one.
 */
enum mp_status mp_preload_environment(const struct mp_settings *settings, const char *library,
                                      const char *program,
                                      struct mp_environment *environment_p) MP_MUST_CHECK;

/* Start the command in place of this process. Returns only if that failed: MP_ERR_CONFIG with
 * E_COMMAND_MISSING or E_COMMAND. */
enum mp_status mp_preload_exec(char **argv, const struct mp_environment *environment) MP_MUST_CHECK;

#endif
