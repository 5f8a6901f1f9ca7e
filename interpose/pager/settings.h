#ifndef MP_INTERPOSE_SETTINGS_H
#define MP_INTERPOSE_SETTINGS_H

#include "policy/policy.h"
#include "vmm/base/log.h"
#include "vmm/io/io_options.h"
#include "vmm/options/preload_options.h"

/*
 * What a user can set of the interposer: the variables of the same names as everywhere, and a few
 * of its own. Flags are `moepager preload`'s affair, which turns them into variables.
 */
struct mp_interpose_settings {
    struct mp_share budget;
    struct mp_preload_config files;
    uint64_t seed;
    uint64_t populate;
    char profile[MP_POLICY_NAME_MAX];
    char policy[MP_POLICY_KIND_COUNT][MP_POLICY_NAME_MAX];
    struct mp_log_config log;
    struct mp_io_config io;
};

/* Read the environment; what is wrong there is warned of once, and the default is used. */
void mp_interpose_settings_load(struct mp_interpose_settings *settings);

/*
 * The policies that are named, or MP_ERR_CONFIG E_POLICY, E_PROFILE. The scores that the program's
 * routers have given nobody knows here, and what needs them is replaced by what does without.
 * `routers`: what the next layer's router would say can be asked; then also by predictors that
 * wanted to know more than that.
 */
enum mp_status mp_interpose_settings_policies(const struct mp_interpose_settings *settings,
                                              bool routers,
                                              struct mp_profile *chosen_p) MP_MUST_CHECK;

#endif
