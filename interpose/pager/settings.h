#ifndef MP_INTERPOSE_SETTINGS_H
#define MP_INTERPOSE_SETTINGS_H

#include "policy/policy.h"
#include "vmm/base/log.h"
#include "vmm/io/io_options.h"
#include "vmm/live/live.h"
#include "vmm/options/preload_options.h"

/*
 * Settings of the interposer: the usual environment variables, and a few of its own. `moepager
 * preload` converts flags to these variables.
 */
struct mp_interpose_settings {
    struct mp_share budget;
    struct mp_preload_config files;
    uint32_t first_number; /* files of models that earlier programs of the process have written */
    bool no_report;        /* its file could not be written at the start, which was logged */
    uint64_t seed;
    uint64_t huge_pages;
    uint64_t populate;
    char profile[MP_POLICY_NAME_MAX];
    char policy[MP_POLICY_KIND_COUNT][MP_POLICY_NAME_MAX];
    struct mp_log_config log;
    struct mp_io_config io;
    struct mp_live_config live;
    struct mp_live_dirs live_dirs; /* read once: later the program may change the environment */
};

/* Read the environment. An invalid value causes one warning, and the default is used. */
void mp_interpose_settings_load(struct mp_interpose_settings *settings);

/*
 * The named policies, or MP_ERR_CONFIG E_POLICY, E_PROFILE. The scores of the program's routers are
 * unknown here, and policies that need them are replaced by others that do not. `routers`: scores
 * of the next layer's router can be computed; predictors that need more than that then use them.
 */
enum mp_status mp_interpose_settings_policies(const struct mp_interpose_settings *settings,
                                              bool routers,
                                              struct mp_profile *chosen_p) MP_MUST_CHECK;

#endif
