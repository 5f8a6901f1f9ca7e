/*
 * A plug-in, built outside the tree: evict policy `newest`. The expert that was used last leaves
 * first, which is best where a loop over more experts than the slots hold comes round again and
 * again. Being loaded counts as a use. on_access, on_insert and on_remove take O(1), pick
 * O(resident experts).
 */
#include <policy/plugin.h>

struct newest_config {
    uint64_t by_layer;
};

static const struct mp_opt newest_opts[] = {
    MP_OPT(MP_OPT_BOOL, "BY_LAYER", struct newest_config, by_layer, "0", 0, 1,
           "Evict from the layer of the new expert while it has one that may leave."),
    MP_OPT_END,
};

struct newest {
    struct mp_evict_base base; /* the set of resident experts; begins with struct mp_policy */
    int by_layer;
    uint64_t *age; /* (ids): the smaller, the later it was used */
};

static void newest_take(struct mp_policy *policy, const struct mp_shape *shape,
                        struct mp_arena *arena)
{
    struct newest *newest = (struct newest *)policy;

    mp_evict_take(policy, shape, arena);
    newest->age =
        mp_arena_take(arena, (uint64_t)shape->layers * shape->experts, sizeof(*newest->age));
}

static enum mp_status newest_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p);

static void newest_on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    (void)tokens;
    ((struct newest *)policy)->age[id] = UINT64_MAX - now;
}

static void newest_on_insert(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    mp_evict_insert(policy, id, now);
    ((struct newest *)policy)->age[id] = UINT64_MAX - now;
}

static uint32_t newest_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct newest *newest = (const struct newest *)policy;
    const struct mp_residents *set = &newest->base.set;
    uint32_t id = MP_EXPERT_NONE;

    if (newest->by_layer)
        id = mp_residents_min(set, query, query->for_id / query->experts, newest->age, NULL);
    return id != MP_EXPERT_NONE ? id
                                : mp_residents_min(set, query, MP_LAYER_ANY, newest->age, NULL);
}

static const struct mp_evict_ops newest_ops = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "newest",
              .summary = "used last, evicted first",
              .opts = newest_opts,
              .config_size = sizeof(struct newest_config) },
    .create = newest_create,
    .destroy = mp_policy_free,
    .on_insert = newest_on_insert,
    .on_remove = mp_evict_remove,
    .on_access = newest_on_access,
    .pick = newest_pick,
};

static enum mp_status newest_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    struct newest draft = {
        .base.super.info = &newest_ops.info,
        .by_layer = ((const struct newest_config *)config)->by_layer != 0,
    };

    return mp_policy_make(&draft.base.super, sizeof(draft), newest_take, shape, policy_p);
}

static const struct mp_plugin_policy policies[] = {
    { MP_POLICY_EVICT, &newest_ops.info },
    { .info = NULL },
};

const struct mp_plugin mp_plugin = { MP_POLICY_ABI, policies };
