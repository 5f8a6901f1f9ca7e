#ifndef BENCH_ARGS_H
#define BENCH_ARGS_H

#include "engine/cli/commands.h"
#include "vmm/base/error.h"

#define BENCH_WORDS_MAX 64

/* Settings from the environment and from the flags of `moepager bench`, for programs that take the
 * same. `args` points into `argv`, `settings` is the only one of the program. */
static inline enum mp_status bench_args_load(int argc, char **argv, struct mp_args *args,
                                             struct mp_settings *settings)
{
    static char command[] = "bench";
    char *words[BENCH_WORDS_MAX] = { argv[0], command };
    enum mp_status status;

    if (argc + 1 >= BENCH_WORDS_MAX)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "got %d words, need at most %d", argc,
                       BENCH_WORDS_MAX - 2);
    for (int i = 1; i < argc; i++)
        words[i + 1] = argv[i];
    status = mp_settings_load(settings);
    if (status == MP_OK)
        status = mp_args_parse(MP_COMMAND_BENCH, argc + 1, words, args, settings);
    return status == MP_OK ? mp_settings_start_log(settings) : status;
}

#endif
