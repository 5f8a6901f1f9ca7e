/*
 * The option table of the preloaded library: names, defaults and help.
 */
#include "vmm/options/preload_options.h"

static const char *const hook_names[] = { "auto", "expert", "router", "touches", NULL };

_Static_assert(sizeof(hook_names) / sizeof(hook_names[0]) == MP_PRELOAD_HOOKS_COUNT + 1,
               "the names are those of enum mp_preload_hooks");

const struct mp_opt mp_preload_opts[] = {
    MP_OPT_TEXT("REPORT", struct mp_preload_config, report, "",
                "Preloaded, write a report at the end and on SIGUSR1: 1 is text and json is JSON "
                "on standard error, else a file, JSON if its name ends in .json; %p in the name is "
                "the process's number."),
    MP_OPT_TEXT("TRACE", struct mp_preload_config, trace, "",
                "Preloaded, write which experts the router chose to this file "
                "(docs/trace-format.md); %p as above."),
    MP_OPT_TEXT("TIMELINE", struct mp_preload_config, timeline, "",
                "Preloaded, write a timeline for ui.perfetto.dev to this file; %p as above."),
    MP_OPT_ENUM("HOOKS", struct mp_preload_config, hooks, "auto", hook_names,
                "Preloaded, how it is learned which experts are going to be read: ggml says so of "
                "each (expert), the scheduler's callback shows what a router chose (router), or "
                "only what has been touched is seen (touches); auto: the first of these that the "
                "program has."),
    MP_OPT(MP_OPT_BOOL, "DENSE", struct mp_preload_config, dense, "on", 0, 1,
           "Preloaded, read what is not an expert into memory of its own in the background, "
           "instead of leaving it to the page cache."),
    MP_OPT_END
};
