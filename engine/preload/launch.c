/*
 * Finds the library and the command, makes the environment, starts the command.
 */
#include "engine/preload/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* The folder of this program, without a slash at the end; false: /proc does not say. */
static bool own_folder(char folder[PATH_MAX])
{
    const ssize_t bytes = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    char *slash;

    if (bytes <= 0)
        return false;
    folder[bytes] = '\0';
    slash = strrchr(folder, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    return true;
}

/* FOLDER/WAY/NAME, if it is there. */
static bool is_there(const char *folder, const char *way, const char *name, char path[PATH_MAX])
{
    const int bytes = snprintf(path, PATH_MAX, "%s/%s%s", folder, way, name);

    return bytes > 0 && bytes < PATH_MAX && access(path, R_OK) == 0;
}

enum mp_status mp_preload_find_library(char path[PATH_MAX])
{
    char folder[PATH_MAX], quoted[MP_QUOTE_BYTES];

    if (!own_folder(folder))
        return mp_fail(MP_ERR_IO, "E_PRELOAD_LIBRARY",
                       "cannot find the program's own folder in /proc/self/exe: %s",
                       strerror(errno));
    mp_quote(quoted, folder, strlen(folder));
    if (!is_there(folder, "", MP_PRELOAD_LIBRARY, path) &&
        !is_there(folder, MP_INSTALL_BIN_TO_LIB "/", MP_PRELOAD_LIBRARY, path))
        return mp_fail(MP_ERR_IO, "E_PRELOAD_LIBRARY",
                       "%s is neither in '%s' nor in " MP_INSTALL_BIN_TO_LIB
                       " from there; build or install it",
                       MP_PRELOAD_LIBRARY, quoted);
    if (strpbrk(path, ": \t") != NULL)
        return mp_fail(MP_ERR_IO, "E_PRELOAD_LIBRARY",
                       "%s is in '%s', and the dynamic loader takes no path with a space or a "
                       "colon; install it elsewhere",
                       MP_PRELOAD_LIBRARY, quoted);
    return MP_OK;
}

bool mp_preload_find_data(const char *name, char path[PATH_MAX])
{
    char folder[PATH_MAX];

    return own_folder(folder) && (is_there(folder, "", name, path) ||
                                  is_there(folder, MP_INSTALL_BIN_TO_DATA "/", name, path));
}

bool mp_preload_find_python(char path[PATH_MAX])
{
    return mp_preload_find_data("python/sitecustomize.py", path) &&
           (*strrchr(path, '/') = '\0', strchr(path, ':') == NULL);
}

static bool is_program(const char *path, int *exit_code)
{
    struct stat info;

    if (stat(path, &info) != 0) {
        *exit_code = errno == ENOENT || errno == ENOTDIR ? *exit_code : 126;
        return false;
    }
    if (S_ISREG(info.st_mode) && access(path, X_OK) == 0)
        return true;
    *exit_code = 126;
    return false;
}

bool mp_preload_find_program(const struct mp_environment *environment, const char *name,
                             char path[PATH_MAX], int *exit_code_p)
{
    const char *at = mp_environment_get(environment, "PATH");
    int exit_code = 127;
    bool found = false;

    if (strchr(name, '/') != NULL) {
        snprintf(path, PATH_MAX, "%s", name);
        found = is_program(path, &exit_code);
    } else if (*name != '\0') {
        at = at != NULL ? at : "/bin:/usr/bin";
        for (bool more = true; more && !found; at++) {
            const size_t bytes = strcspn(at, ":");

            more = at[bytes] == ':';
            if (snprintf(path, PATH_MAX, "%.*s%s%s", (int)bytes, at, bytes > 0 ? "/" : "", name) <
                PATH_MAX)
                found = is_program(path, &exit_code);
            at += bytes;
        }
    }
    *exit_code_p = found ? 0 : exit_code;
    return found;
}

bool mp_preload_is_python(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    char line[256] = "";
    int fd;

    if (strncmp(name, "python", 6) == 0 || strncmp(name, "pypy", 4) == 0)
        return true;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    if (read(fd, line, sizeof(line) - 1) < 2 || memcmp(line, "#!", 2) != 0)
        line[0] = '\0';
    close(fd);
    line[strcspn(line, "\n")] = '\0';
    return strstr(line, "python") != NULL || strstr(line, "pypy") != NULL;
}

/* Our library behind the others: some, such as sanitizers, must be the first. An entry of its name
 * is an older one of ours. */
static enum mp_status add_library(struct mp_environment *environment, const char *library)
{
    const char *at = mp_environment_get(environment, "LD_PRELOAD");
    const size_t capacity = (at != NULL ? strlen(at) : 0) + strlen(library) + 2;
    char *list = malloc(capacity);
    enum mp_status status;
    size_t used = 0;

    if (list == NULL)
        return mp_fail_no_memory("LD_PRELOAD", capacity);
    while (at != NULL && *at != '\0') {
        const size_t bytes = strcspn(at, ": ");
        const size_t name = strlen(MP_PRELOAD_LIBRARY);
        const bool ours = bytes >= name && !memcmp(at + bytes - name, MP_PRELOAD_LIBRARY, name) &&
                          (bytes == name || at[bytes - name - 1] == '/');

        if (bytes > 0 && !ours)
            used += (size_t)snprintf(list + used, capacity - used, "%.*s:", (int)bytes, at);
        at += bytes + (at[bytes] != '\0');
    }
    snprintf(list + used, capacity - used, "%s", library);
    status = mp_environment_set(environment, "LD_PRELOAD", list);
    free(list);
    return status;
}

/* Our module before the others, unless it is there. */
static enum mp_status add_python(struct mp_environment *environment, const char *folder)
{
    const char *old = mp_environment_get(environment, "PYTHONPATH");
    const size_t bytes = strlen(folder);
    enum mp_status status;
    char *path;

    if (old == NULL || *old == '\0')
        return mp_environment_set(environment, "PYTHONPATH", folder);
    if (strncmp(old, folder, bytes) == 0 && (old[bytes] == ':' || old[bytes] == '\0'))
        return MP_OK;
    path = malloc(bytes + strlen(old) + 2);
    if (path == NULL)
        return mp_fail_no_memory("PYTHONPATH", bytes + strlen(old) + 2);
    snprintf(path, bytes + strlen(old) + 2, "%s:%s", folder, old);
    status = mp_environment_set(environment, "PYTHONPATH", path);
    free(path);
    return status;
}

enum mp_status mp_preload_environment(const struct mp_settings *settings, const char *library,
                                      const char *program, struct mp_environment *environment_p)
{
    const struct mp_opt_group *group = NULL;
    const struct mp_opt *budget = mp_opt_find(settings->groups, "MOEPAGER_BUDGET", &group);
    struct mp_environment environment;
    char folder[PATH_MAX], text[MP_OPT_TEXT_BYTES];
    enum mp_status status = mp_environment_copy(&environment);

    if (status == MP_OK)
        status = mp_environment_set_options(&environment, settings->groups);
    if (status == MP_OK)
        status = mp_environment_set(&environment, "MOEPAGER_BUDGET",
                                    mp_opt_format(budget, &settings->run.budget, text));
    if (status == MP_OK)
        status = add_library(&environment, library);
    /* Any program may start Python: env, shells, launchers. */
    if (status == MP_OK && mp_preload_find_python(folder))
        status = add_python(&environment, folder);
    else if (status == MP_OK && mp_preload_is_python(program))
        mp_log_warn("preload", "the Python module is not installed: experts are known by what "
                               "the program reads, not by what its router says");
    if (status != MP_OK) {
        mp_environment_fini(&environment);
        return status;
    }
    *environment_p = environment;
    return MP_OK;
}

enum mp_status mp_preload_exec(char **argv, const struct mp_environment *environment)
{
    char quoted[MP_QUOTE_BYTES];

    execvpe(argv[0], argv, environment->entries);
    mp_quote(quoted, argv[0], strlen(argv[0]));
    if (errno == ENOENT)
        return mp_fail(MP_ERR_CONFIG, "E_COMMAND_MISSING", "cannot start '%s': %s", quoted,
                       strchr(argv[0], '/') != NULL ? "there is no such file, or what it names as "
                                                      "its interpreter is not there"
                                                    : "it is in no folder of PATH");
    return mp_fail(MP_ERR_CONFIG, "E_COMMAND", "cannot start '%s': %s", quoted, strerror(errno));
}
