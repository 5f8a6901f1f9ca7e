/*
 * `moepager plot`: starts the Python program that draws (tools/python/moepager/plot.py).
 */
#include "engine/cli/commands.h"
#include "engine/preload/launch.h"
#include "vmm/base/error.h"

#define SCRIPT "python/moepager/plot.py"
#define ARGUMENTS_MAX 256

/* Returns only if it could not be started. */
enum mp_status mp_cmd_plot(const struct mp_args *args, const struct mp_settings *settings)
{
    static char python[] = "python3";
    struct mp_environment environment;
    char script[PATH_MAX];
    char *argv[ARGUMENTS_MAX + 3] = { python, script };
    size_t count = 0;
    enum mp_status status;

    (void)settings;
    if (args->program == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "plot what? moepager plot hits, heat, timeline or speed, and files");
    while (args->program[count] != NULL && count < ARGUMENTS_MAX) {
        argv[count + 2] = args->program[count];
        count++;
    }
    if (args->program[count] != NULL)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "moepager plot takes at most %d arguments",
                       ARGUMENTS_MAX);
    if (!mp_preload_find_data(SCRIPT, script))
        return mp_fail(MP_ERR_IO, "E_PLOT",
                       SCRIPT " is neither beside the program nor where it is installed; build or "
                              "install it");
    status = mp_environment_copy(&environment);
    if (status != MP_OK)
        return status;
    status = mp_preload_exec(argv, &environment);
    mp_environment_fini(&environment);
    return status;
}
