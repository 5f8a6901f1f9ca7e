/*
 * Any expert, equally likely: the floor that other policies are compared with. The choice depends
 * on the seed and on the number of insertions and removals so far, so a run repeats exactly and
 * asking twice gives the same result.
 */
#include "policy/builtins.h"

#include "policy/residents.h"

struct evict_random {
    struct mp_policy super;
    struct mp_residents residents;
    uint64_t seed, changes;
};

static void random_take(struct mp_policy *policy, const struct mp_shape *shape,
                        struct mp_arena *arena)
{
    mp_residents_take(&((struct evict_random *)policy)->residents, shape, arena);
}

static enum mp_status random_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    struct evict_random draft = { .super.info = &mp_evict_random.info, .seed = shape->seed };

    (void)config;
    return mp_policy_make(&draft.super, sizeof(draft), random_take, shape, policy_p);
}

static void random_on_insert(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct evict_random *random = (struct evict_random *)policy;

    (void)now;
    mp_residents_add(&random->residents, id);
    random->changes++;
}

static void random_on_remove(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct evict_random *random = (struct evict_random *)policy;

    (void)now;
    mp_residents_remove(&random->residents, id);
    random->changes++;
}

static uint32_t random_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct evict_random *random = (const struct evict_random *)policy;
    const uint32_t count = random->residents.count;
    uint32_t allowed = 0, left;

    for (uint32_t i = 0; i < count; i++)
        allowed += mp_evict_allows(query, random->residents.id[i]);
    if (allowed == 0)
        return MP_EXPERT_NONE;
    left = (uint32_t)(mp_policy_mix(random->seed ^ random->changes) % allowed);
    for (uint32_t i = 0; i < count; i++) {
        if (mp_evict_allows(query, random->residents.id[i]) && left-- == 0)
            return random->residents.id[i];
    }
    return MP_EXPERT_NONE;
}

const struct mp_evict_ops mp_evict_random = {
    .info = { .abi = MP_POLICY_ABI, .name = "random", .summary = "any expert, equally likely" },
    .create = random_create,
    .destroy = mp_policy_free,
    .on_insert = random_on_insert,
    .on_remove = random_on_remove,
    .pick = random_pick,
};
