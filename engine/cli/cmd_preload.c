/*
 * `moepager preload`: starts a program with the pager under it (engine/preload/launch.h).
 */
#include "engine/cli/commands.h"

#include "engine/preload/check.h"
#include "engine/preload/launch.h"
#include "vmm/base/error.h"

static enum mp_status start(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_environment environment;
    char library[PATH_MAX], program[PATH_MAX];
    int exit_code; /* exec says it again, with the reason */
    enum mp_status status = mp_preload_find_library(library);

    if (status == MP_OK)
        status = mp_environment_copy(&environment);
    if (status != MP_OK)
        return status;
    if (!mp_preload_find_program(&environment, args->program[0], program, &exit_code))
        snprintf(program, sizeof(program), "%s", args->program[0]);
    else if (mp_check_is_static(program))
        mp_log_warn("preload",
                    "'%s' is linked statically: nothing can be preloaded, and no "
                    "experts are paged",
                    program);
    mp_environment_fini(&environment);
    status = mp_preload_environment(settings, library, program, &environment);
    if (status != MP_OK)
        return status;
    status = mp_preload_exec(args->program, &environment);
    mp_environment_fini(&environment);
    return status;
}

static enum mp_status check(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_check *check;
    enum mp_status status = mp_check_make(args->program, settings, &check);

    if (status != MP_OK)
        return status;
    if (args->json)
        mp_check_json(check, settings, stdout);
    else
        mp_check_print(check, settings, stdout);
    mp_check_destroy(check);
    return mp_check_stdout();
}

enum mp_status mp_cmd_preload(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_profile unused;
    enum mp_status status;

    if (args->program == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "no command; moepager preload [--flag value]... -- COMMAND [ARGUMENT]...");
    status = mp_settings_policies(settings, &unused);
    if (status != MP_OK)
        return status;
    return args->check ? check(args, settings) : start(args, settings);
}
