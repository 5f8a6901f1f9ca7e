#ifndef MP_TESTS_AUTO_LAYER_H
#define MP_TESTS_AUTO_LAYER_H

/* A small model for the parts of profile `auto`, and the facts of one of its layers. */
#include "policy/builtins.h"
#include "tests/support/test.h"

#define LAYERS 3
#define EXPERTS 8
#define UNITS (LAYERS * EXPERTS)
#define REQUESTS 6000
#define HYSTERESIS 100

static inline struct mp_policy *create(const struct mp_evict_ops *ops, const struct mp_shape *shape)
{
    static _Alignas(16) char config[1024];
    struct mp_policy *policy;

    CHECK(ops->info.config_size <= sizeof(config));
    if (ops->info.opts != NULL)
        CHECK_EQ(mp_opt_load(ops->info.opts, "UNSET_", config), 0);
    CHECK_EQ(ops->create(ops->info.opts != NULL ? config : NULL, shape, &policy), MP_OK);
    return policy;
}

static inline struct mp_assign_facts facts_of(uint32_t count, const uint32_t *tokens,
                                              const uint8_t *resident, const struct mp_costs *costs)
{
    static const uint32_t ids[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };

    return (struct mp_assign_facts){
        .count = count,
        .experts = ids,
        .tokens = tokens,
        .resident = resident,
        .costs = costs,
    };
}

#endif
