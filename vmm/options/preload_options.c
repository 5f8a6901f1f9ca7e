/*
 * The option table of the preloaded library: names, defaults and help.
 */
#include "vmm/options/preload_options.h"

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
    MP_OPT_END
};
