#ifndef MP_OPTIONS_LOG_OPTIONS_H
#define MP_OPTIONS_LOG_OPTIONS_H

#include "vmm/options/opt.h"

/*
 * The option table of the log. It stands apart from vmm/base/log.h because option tables log what
 * is wrong with a value, and the log must not need them.
 *
 * It fills struct mp_log_config; list it with the prefix "MOEPAGER_".
 */
extern const struct mp_opt mp_log_opts[];

#endif
