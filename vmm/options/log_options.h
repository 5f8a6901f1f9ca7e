#ifndef MP_OPTIONS_LOG_OPTIONS_H
#define MP_OPTIONS_LOG_OPTIONS_H

#include "vmm/options/opt.h"

/*
 * The option table of the log. It is separate from vmm/base/log.h because option tables log invalid
 * values, and the log must not depend on them.
 *
 * It fills struct mp_log_config; list it with the prefix "MOEPAGER_".
 */
extern const struct mp_opt mp_log_opts[];

#endif
