/*
 * DALI section 4: a fixed number of experts of each layer, chosen at random, is resident at the
 * start. From then on evict policy `workload` swaps within a layer, so the numbers stay; there are
 * no quotas beside that. The slots that are not given away (mp_residents_planned()) are for what is
 * loaded on demand or ahead, DALI's memory beside the cache.
 *
 * Departure: the paper sets the number as a share of the experts ("cache ratio"); here it follows
 * from the budget.
 */
#include "policy/builtins.h"
#include "policy/residents.h"
#include "policy/sorter.h"

struct random_part {
    struct mp_sorter sorter;
    uint64_t seed;
};

static enum mp_status random_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    struct random_part draft = {
        .sorter.super.info = &mp_partition_random.info,
        .seed = shape->seed,
    };

    (void)config;
    return mp_policy_make(&draft.sorter.super, sizeof(draft), mp_sorter_take, shape, policy_p);
}

static uint32_t random_first(struct mp_policy *policy, const struct mp_shape *shape, uint32_t *ids)
{
    struct random_part *self = (struct random_part *)policy;
    uint32_t count = 0;

    for (uint32_t l = 0; l < shape->layers; l++) {
        const uint32_t planned = mp_residents_planned(shape, l);
        const uint32_t each = planned < shape->experts ? planned : shape->experts;

        for (uint32_t e = 0; e < shape->experts; e++)
            self->sorter.key[e] =
                mp_policy_mix(self->seed ^ mp_policy_mix((uint64_t)l * shape->experts + e));
        mp_sorter_sort(self->sorter.order, shape->experts, self->sorter.key);
        for (uint32_t n = 0; n < each; n++)
            ids[count++] = l * shape->experts + self->sorter.order[n];
    }
    return count;
}

const struct mp_partition_ops mp_partition_random = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "random",
              .summary = "as many residents in each layer, at first by chance (DALI)" },
    .create = random_create,
    .destroy = mp_policy_free,
    .global = true,
    .first = random_first,
};
