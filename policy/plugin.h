#ifndef MP_POLICY_PLUGIN_H
#define MP_POLICY_PLUGIN_H

#include "policy/builtins.h"
#include "policy/residents.h"
#include "vmm/base/error.h"

/*
 * A plug-in: a shared library with policies that the program loads at its start (MOEPAGER_PLUGINS).
 * What stands in such a library is written as the built-in policies are: the same ops tables, the
 * same facts, the same rules (policy/policy.h). It calls no other functions of ours than those of
 * policy/plugin.list, which the program exports; all others are missing when it is loaded.
 *
 *     static const struct mp_plugin_policy policies[] = { { MP_POLICY_EVICT, &mine.info }, { 0 } };
 *     const struct mp_plugin mp_plugin = { MP_POLICY_ABI, policies };
 *
 * The library is compiled for one ABI number. A program with another one refuses it.
 */
struct mp_plugin_policy {
    enum mp_policy_kind kind;
    const struct mp_policy_info *info; /* first member of an ops table; NULL ends the list */
};

struct mp_plugin {
    unsigned abi; /* MP_POLICY_ABI; looked at before anything else is */
    const struct mp_plugin_policy *policies;
};

/* The one symbol that a plug-in must export. */
extern const struct mp_plugin mp_plugin __attribute__((visibility("default")));

#endif
