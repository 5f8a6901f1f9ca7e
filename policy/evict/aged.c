/*
 * Frequency that counts less with age, two forms that other projects use:
 *
 * `lfru`: the expert with the smallest count / age leaves, age being uses of any expert since its
 * last one, plus one (tinyserve, src/cache_policy.py; the caches proposed to vLLM and llama.cpp
 * under that name). Departure: a count survives eviction, as with `lfu`.
 *
 * `class-lru`: counts halve every HALF_LIFE tokens; an expert's class is the logarithm (base 2) of
 * its count at its last use, 0 to 7, and the expert with the greatest age / 2^class leaves
 * (llama.cpp, src/llama-moe-cache.cpp: one LRU list per class, counts kept across evictions).
 * Departures: time is batches of the expert's layer, so a prompt counts as one; all residents are
 * looked at instead of the oldest of each list, which finds the same expert.
 *
 * Ties go to the oldest use, then the lower id. on_* O(1), pick O(residents).
 */
#include "policy/builtins.h"

#include <math.h>

#include "policy/residents.h"

#define CLASSES 8

struct aged_config {
    uint64_t half_life;
};

static const struct mp_opt class_lru_opts[] = {
    MP_OPT(MP_OPT_U64, "HALF_LIFE", struct aged_config, half_life, "128", 1, 1000000,
           "Tokens after which evict policy class-lru counts a use half."),
    MP_OPT_END,
};

struct aged {
    struct mp_evict_base base;
    double keep;        /* what is left of a count after one batch of its layer */
    uint64_t *layer;    // (layers): batches so far
    uint32_t *layer_of; // (ids): pick would have to divide
    uint64_t *moment;   // (layers): `now` of the latest, plus 1
    uint64_t *last;     // (ids): batches of the layer at the last use
    double *count;      // (ids)
    float *class_size;  // (ids): 2^class
};

static void aged_take(struct mp_policy *policy, const struct mp_shape *shape,
                      struct mp_arena *arena)
{
    struct aged *aged = (struct aged *)policy;
    const size_t ids = (size_t)shape->layers * shape->experts;

    mp_residents_take(&aged->base.set, shape, arena);
    aged->layer = mp_arena_take(arena, shape->layers, sizeof(uint64_t));
    aged->layer_of = mp_arena_take(arena, ids, sizeof(uint32_t));
    aged->moment = mp_arena_take(arena, shape->layers, sizeof(uint64_t));
    aged->last = mp_arena_take(arena, ids, sizeof(uint64_t));
    aged->count = mp_arena_take(arena, ids, sizeof(double));
    aged->class_size = mp_arena_take(arena, ids, sizeof(float));
}

static enum mp_status create_as(const struct mp_policy_info *info, const struct mp_shape *shape,
                                double keep, struct mp_policy **policy_p)
{
    struct aged draft = { .base.super.info = info, .keep = keep }, *aged;
    enum mp_status status =
        mp_policy_make(&draft.base.super, sizeof(draft), aged_take, shape, policy_p);

    if (status != MP_OK)
        return status;
    aged = (struct aged *)*policy_p;
    for (uint32_t u = 0; u < shape->layers * shape->experts; u++) {
        aged->class_size[u] = 1;
        aged->layer_of[u] = u / shape->experts;
    }
    return MP_OK;
}

static enum mp_status lfru_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    (void)config;
    return create_as(&mp_evict_lfru.info, shape, 1, policy_p);
}

static enum mp_status class_create(const void *config_, const struct mp_shape *shape,
                                   struct mp_policy **policy_p)
{
    const struct aged_config *config = config_;

    return create_as(&mp_evict_class_lru.info, shape, exp2(-1.0 / (double)config->half_life),
                     policy_p);
}

static void aged_on_access(struct mp_policy *policy, uint32_t id, uint32_t tokens, uint64_t now)
{
    struct aged *aged = (struct aged *)policy;
    const uint32_t layer = id / aged->base.set.experts;

    (void)tokens;
    if (aged->moment[layer] != now + 1) {
        aged->moment[layer] = now + 1;
        aged->layer[layer]++;
    }
    aged->count[id] =
        aged->count[id] * pow(aged->keep, (double)(aged->layer[layer] - aged->last[id])) + 1;
    aged->class_size[id] =
        ldexpf(1, ilogb(aged->count[id]) < CLASSES ? ilogb(aged->count[id]) : CLASSES - 1);
    aged->last[id] = aged->layer[layer];
    mp_residents_use(&aged->base.set, id);
}

/*
 * Which of two leaves? lfru: count / age since the last use, compared without dividing; class-lru:
 * age / 2^class, where age is that since the last use, so the class is one of that time too.
 */
struct value {
    double count, age;
};

static struct value value_of(const struct aged *aged, uint32_t id, bool classes)
{
    if (classes)
        return (struct value){ aged->class_size[id],
                               (double)(aged->layer[aged->layer_of[id]] - aged->last[id]) };
    return (struct value){ aged->count[id],
                           (double)(aged->base.set.uses - aged->base.set.stamp[id] + 1) };
}

static uint32_t pick_lowest(const struct aged *aged, const struct mp_evict_query *query,
                            bool classes)
{
    struct value lowest = { 0, 0 };
    uint32_t best = MP_EXPERT_NONE;

    for (uint32_t i = 0; i < aged->base.set.count; i++) {
        const uint32_t id = aged->base.set.id[i];
        const struct value mine = value_of(aged, id, classes);
        const double left = mine.count * lowest.age, right = lowest.count * mine.age;

        if ((best != MP_EXPERT_NONE &&
             (left > right ||
              (!(left < right) && aged->base.set.stamp[id] > aged->base.set.stamp[best]))) ||
            !mp_evict_allows(query, id))
            continue;
        best = id;
        lowest = mine;
    }
    return best;
}

static uint32_t lfru_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    return pick_lowest((const struct aged *)policy, query, false);
}

static uint32_t class_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    return pick_lowest((const struct aged *)policy, query, true);
}

const struct mp_evict_ops mp_evict_lfru = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "lfru",
              .summary = "least frequently used, counted less the longer ago" },
    .create = lfru_create,
    .destroy = mp_policy_free,
    .on_insert = mp_evict_insert,
    .on_remove = mp_evict_remove,
    .on_access = aged_on_access,
    .pick = lfru_pick,
};

const struct mp_evict_ops mp_evict_class_lru = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "class-lru",
              .summary = "least recently used, among classes of fading counts (llama.cpp)",
              .opts = class_lru_opts,
              .config_size = sizeof(struct aged_config) },
    .create = class_create,
    .destroy = mp_policy_free,
    .on_insert = mp_evict_insert,
    .on_remove = mp_evict_remove,
    .on_access = aged_on_access,
    .pick = class_pick,
};
