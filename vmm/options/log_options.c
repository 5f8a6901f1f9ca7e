/*
 * The option table of the log: names, defaults and help. What the values mean is read by
 * vmm/base/log.c.
 */
#include "vmm/options/log_options.h"

#include "vmm/base/log.h"

const struct mp_opt mp_log_opts[] = {
    MP_OPT_TEXT("LOG", struct mp_log_config, levels, "warn",
                "What to log: a level (error, warn, info, debug, trace), then levels of single "
                "modules, as in info,pager:debug."),
    MP_OPT_TEXT("LOG_FILE", struct mp_log_config, file, "",
                "Append the log to this file instead of stderr; symbolic links are refused."),
    MP_OPT_END
};
