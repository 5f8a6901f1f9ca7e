/*
 * Any unit, equally likely: the floor that other policies are compared with. The draw depends on
 * the seed and on the number of insertions and removals so far, so a run repeats exactly and asking
 * twice gives the same result.
 */
#include "policy/builtins.h"

#include <stdlib.h>

#include "policy/residents.h"
#include "vmm/base/error.h"

struct evict_random {
    struct mp_policy super;
    struct mp_residents residents;
    uint64_t seed, changes;
};

static void random_destroy(struct mp_policy *policy)
{
    struct evict_random *random = (struct evict_random *)policy;

    mp_residents_fini(&random->residents);
    free(random);
}

static enum mp_status random_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    struct evict_random *random = calloc(1, sizeof(*random));
    enum mp_status status;

    (void)config;
    if (random == NULL)
        return mp_fail_no_memory("an evict policy", sizeof(*random));
    random->super.info = &mp_evict_random.info;
    random->seed = shape->seed;
    status = mp_residents_init(&random->residents, shape);
    if (status != MP_OK) {
        random_destroy(&random->super);
        return status;
    }
    *policy_p = &random->super;
    return MP_OK;
}

static void random_on_insert(struct mp_policy *policy, uint32_t unit, uint64_t now)
{
    struct evict_random *random = (struct evict_random *)policy;

    (void)now;
    mp_residents_add(&random->residents, unit);
    random->changes++;
}

static void random_on_remove(struct mp_policy *policy, uint32_t unit, uint64_t now)
{
    struct evict_random *random = (struct evict_random *)policy;

    (void)now;
    mp_residents_remove(&random->residents, unit);
    random->changes++;
}

static uint32_t random_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct evict_random *random = (const struct evict_random *)policy;
    const uint32_t count = random->residents.count;
    uint32_t allowed = 0, left;

    for (uint32_t i = 0; i < count; i++)
        allowed += mp_evict_allows(query, random->residents.unit[i]);
    if (allowed == 0)
        return MP_UNIT_NONE;
    left = (uint32_t)(mp_policy_mix(random->seed ^ random->changes) % allowed);
    for (uint32_t i = 0; i < count; i++) {
        if (mp_evict_allows(query, random->residents.unit[i]) && left-- == 0)
            return random->residents.unit[i];
    }
    return MP_UNIT_NONE;
}

const struct mp_evict_ops mp_evict_random = {
    .info = { .abi = MP_POLICY_ABI, .name = "random", .summary = "any unit, equally likely" },
    .create = random_create,
    .destroy = random_destroy,
    .on_insert = random_on_insert,
    .on_remove = random_on_remove,
    .pick = random_pick,
};
