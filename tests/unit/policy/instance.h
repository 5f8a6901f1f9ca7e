#ifndef MP_TESTS_POLICY_INSTANCE_H
#define MP_TESTS_POLICY_INSTANCE_H

#include <stdarg.h>

#include "policy/policy.h"
#include "tests/support/test.h"

/*
 * One instance of a policy, with its default options but for those named: pairs of name and value,
 * ended by NULL. The last status is kept for those that refuse.
 */
static inline enum mp_status instance_try(const struct mp_policy_info *info,
                                          mp_policy_create_fn create, const struct mp_shape *shape,
                                          struct mp_policy **policy_p, va_list pairs)
{
    _Alignas(16) char config[1024] = { 0 };
    const char *name;

    CHECK(info->config_size <= sizeof(config));
    if (info->opts != NULL)
        CHECK_EQ(mp_opt_load(info->opts, "UNSET_", config), 0);
    while ((name = va_arg(pairs, const char *)) != NULL)
        CHECK_EQ(mp_opt_set_one(info->opts, "UNSET_", config, name, va_arg(pairs, const char *)),
                 MP_OK);
    return create(info->opts != NULL ? config : NULL, shape, policy_p);
}

static inline struct mp_policy *instance(const struct mp_policy_info *info,
                                         mp_policy_create_fn create, const struct mp_shape *shape,
                                         ...)
{
    struct mp_policy *policy;
    va_list pairs;

    va_start(pairs, shape);
    CHECK_EQ(instance_try(info, create, shape, &policy, pairs), MP_OK);
    va_end(pairs);
    return policy;
}

#endif
