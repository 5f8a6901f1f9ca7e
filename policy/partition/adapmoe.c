/*
 * AdapMoE's cache sizes per layer (arXiv:2408.10284, section 4.4, and the authors' src/dp.py): the
 * sizes s_l, at least one each and the slots in sum, that minimise the expected number of loads,
 * found by dynamic programming over layers and slots.
 *
 * Departures: there the expected loads of a layer follow from the accuracy of its prefetch and from
 * the assumption that all experts are used equally. A calibration here knows what is used, so the
 * loads of a layer with s slots are k * (1 - share of the s hottest experts). Since further slots
 * of a layer are worth less and less, taking slot after slot where it is worth most gives what
 * dynamic programming would; a test compares the two. Adaptive gating, which changes the model's
 * output, is left out.
 */
#include "policy/builtins.h"

#include <string.h>

#include "policy/hot.h"
#include "vmm/base/assert.h"

struct adapmoe {
    struct mp_policy super;
    uint32_t *quota; // (layers)
    uint32_t *order; // (ids): hottest first
    uint8_t *given;  // (layers): scratch of create
};

/* One slot for each layer, if there are as many, then slot after slot to the hottest expert that
 * has none. `given` (layers) must be zero. */
static void share_out(const struct mp_shape *shape, const uint32_t *order, uint8_t *given,
                      uint32_t *quota)
{
    const uint32_t ids = shape->layers * shape->experts;
    const bool one_each = shape->slots >= shape->layers;
    uint32_t left = shape->slots;

    mp_assert(ids > 0);
    if (one_each) {
        for (uint32_t l = 0; l < shape->layers; l++)
            quota[l] = 1;
        left -= shape->layers;
    }
    for (uint32_t i = 0; i < ids && left > 0; i++) {
        const uint32_t layer = order[i] / shape->experts;

        if (one_each && !given[layer]) {
            given[layer] = 1; /* its hottest has the first slot */
            continue;
        }
        quota[layer]++;
        left--;
    }
}

static void adapmoe_take(struct mp_policy *policy, const struct mp_shape *shape,
                         struct mp_arena *arena)
{
    struct adapmoe *self = (struct adapmoe *)policy;

    self->quota = mp_arena_take(arena, shape->layers, sizeof(uint32_t));
    self->order = mp_arena_take(arena, (uint64_t)shape->layers * shape->experts, sizeof(uint32_t));
    self->given = mp_arena_take(arena, shape->layers, 1);
}

static enum mp_status adapmoe_create(const void *config, const struct mp_shape *shape,
                                     struct mp_policy **policy_p)
{
    struct adapmoe draft = { .super.info = &mp_partition_adapmoe.info }, *self;
    enum mp_status status = mp_hot_require(MP_POLICY_PARTITION, &mp_partition_adapmoe.info, shape);
    struct mp_policy *policy;

    (void)config;
    if (status == MP_OK)
        status = mp_policy_make(&draft.super, sizeof(draft), adapmoe_take, shape, &policy);
    if (status != MP_OK)
        return status;
    self = (struct adapmoe *)policy;
    status = mp_hot_order(shape, self->order);
    if (status != MP_OK) {
        mp_policy_free(policy);
        return status;
    }
    share_out(shape, self->order, self->given, self->quota);
    *policy_p = policy;
    return MP_OK;
}

static void adapmoe_quota(struct mp_policy *policy, const struct mp_shape *shape, uint32_t *quota)
{
    memcpy(quota, ((const struct adapmoe *)policy)->quota, shape->layers * sizeof(quota[0]));
}

const struct mp_partition_ops mp_partition_adapmoe = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "adapmoe",
              .summary = "slots where a calibration expects the fewest loads (AdapMoE)",
              .calibrated = true },
    .create = adapmoe_create,
    .destroy = mp_policy_free,
    .quota = adapmoe_quota,
};
