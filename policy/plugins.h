#ifndef MP_POLICY_PLUGINS_H
#define MP_POLICY_PLUGINS_H

#include "policy/policy.h"

/*
 * Loads plug-ins (policy/plugin.h) at the start of the program. Their policies then stand behind
 * the built-in ones in every list.
 *
 * A plug-in runs with the rights of the process, so who could have written it decides whether it is
 * loaded: the library and its folder must belong to root or to the user, and nobody else may be
 * able to write to them. The library that is looked at is the one that is loaded, whatever happens
 * to its name meanwhile. Privileged programs ignore the variable, as all of the environment.
 *
 * Thread safety: none; start-up code only.
 */
struct mp_plugin_config {
    char path[1024]; /* empty: none */
};

/* It fills struct mp_plugin_config; list it with the prefix "MOEPAGER_". */
extern const struct mp_opt mp_plugin_opts[];

#define MP_PLUGIN_FILES_MAX 16
#define MP_PLUGIN_POLICIES_MAX 16     /* of one plug-in */
#define MP_PLUGIN_OPTIONS_MAX 64      /* of one policy */
#define MP_PLUGIN_CONFIG_BYTES 1024u  /* largest config_size of a policy */
#define MP_PLUGIN_OPTION_NAME_MAX 32u /* letters of an option's name */

/*
 * Load the plug-in `path`, or all *.so files of the folder `path`, in the order of their names.
 * An empty path loads nothing. MP_ERR_CONFIG E_PLUGIN names the file and says why it is refused;
 * what was loaded before it stays. Loaded libraries stay until the process ends.
 */
enum mp_status mp_plugins_load(const char *path) MP_MUST_CHECK;

#endif
