#ifndef MP_TESTS_POLICY_GROUPS_H
#define MP_TESTS_POLICY_GROUPS_H

#include "policy/policy.h"
#include "tests/support/test.h"
#include "vmm/options/opt.h"

#define TEST_GROUPS_MAX 96

/* Options of all policies with their defaults, the environment left aside. */
static inline const struct mp_opt_group *test_default_groups(void)
{
    static struct mp_opt_group groups[TEST_GROUPS_MAX + 1];
    static _Alignas(16) char configs[TEST_GROUPS_MAX][2048];
    const struct mp_policy_info *info;
    size_t count = 0;

    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        for (size_t i = 0; (info = mp_policy_builtin(kind, i)) != NULL; i++) {
            if (info->opts == NULL)
                continue;
            CHECK(count < TEST_GROUPS_MAX && info->config_size <= sizeof(configs[0]));
            groups[count] =
                (struct mp_opt_group){ "MOEPAGER_X_", info->opts, configs[count], NULL };
            for (const struct mp_opt *opt = info->opts; opt->name != NULL; opt++)
                CHECK(mp_opt_parse(opt, opt->dfl, configs[count] + opt->offset));
            count++;
        }
    }
    groups[count] = (struct mp_opt_group){ .prefix = NULL };
    return groups;
}

#endif
