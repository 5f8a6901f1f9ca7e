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

#include <stdlib.h>
#include <string.h>

#include "policy/hot.h"
#include "vmm/base/error.h"

struct adapmoe {
    struct mp_policy super;
    uint32_t *quota; // (layers)
};

static void adapmoe_destroy(struct mp_policy *policy)
{
    free(((struct adapmoe *)policy)->quota);
    free(policy);
}

/* One slot for each layer, if there are as many, then slot after slot to the hottest unit that has
 * none. `given` (layers) must be zero. */
static void share_out(const struct mp_shape *shape, const uint32_t *order, uint8_t *given,
                      uint32_t *quota)
{
    const uint32_t units = shape->layers * shape->experts;
    const bool one_each = shape->slots >= shape->layers;
    uint32_t left = shape->slots;

    for (uint32_t l = 0; one_each && l < shape->layers; l++, left--)
        quota[l] = 1;
    for (uint32_t i = 0; i < units && left > 0; i++) {
        const uint32_t layer = order[i] / shape->experts;

        if (one_each && !given[layer]) {
            given[layer] = 1; /* its hottest has the first slot */
            continue;
        }
        quota[layer]++;
        left--;
    }
}

static enum mp_status adapmoe_create(const void *config, const struct mp_shape *shape,
                                     struct mp_policy **policy_p)
{
    enum mp_status status = mp_hot_require(MP_POLICY_PARTITION, &mp_partition_adapmoe.info, shape);
    struct adapmoe *self;
    uint32_t *order;
    uint8_t *given;

    (void)config;
    if (status != MP_OK)
        return status;
    self = calloc(1, sizeof(*self));
    if (self == NULL)
        return mp_fail_no_memory("partition 'adapmoe'", sizeof(*self));
    self->super.info = &mp_partition_adapmoe.info;
    self->quota = calloc(shape->layers, sizeof(uint32_t));
    given = calloc(shape->layers, 1);
    status = self->quota == NULL || given == NULL
                 ? mp_fail_no_memory("partition 'adapmoe'", shape->layers * 5u)
                 : mp_hot_order(shape, &order);
    if (status != MP_OK) {
        free(given);
        adapmoe_destroy(&self->super);
        return status;
    }
    share_out(shape, order, given, self->quota);
    free(order);
    free(given);
    *policy_p = &self->super;
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
    .destroy = adapmoe_destroy,
    .quota = adapmoe_quota,
};
