/*
 * Whole layers in the device tier, as llama.cpp (--n-cpu-moe) and KTransformers place them: as many
 * as fit, the first ones or, as llama.cpp does it, the last ones. A layer that fits only in part
 * has its first experts there. With evict policy `none` nothing moves afterwards.
 */
#include "policy/builtins.h"

#include "policy/hot.h"

struct static_layers_config {
    uint64_t last;
};

static const struct mp_opt static_layers_opts[] = {
    MP_OPT(MP_OPT_BOOL, "LAST", struct static_layers_config, last, "0", 0, 1,
           "Keep the experts of the last layers instead of those of the first."),
    MP_OPT_END,
};

struct static_layers {
    struct mp_policy super;
    bool last;
};

static enum mp_status static_layers_create(const void *config, const struct mp_shape *shape,
                                           struct mp_policy **policy_p)
{
    struct static_layers draft = {
        .super.info = &mp_partition_static_layers.info,
        .last = ((const struct static_layers_config *)config)->last != 0,
    };

    return mp_policy_make(&draft.super, sizeof(draft), NULL, shape, policy_p);
}

static uint32_t static_layers_first(struct mp_policy *policy, const struct mp_shape *shape,
                                    uint32_t *ids)
{
    const struct static_layers *self = (const struct static_layers *)policy;
    const uint32_t buffers = mp_buffer_slots(shape);
    const uint32_t left = shape->slots > buffers ? shape->slots - buffers : 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < shape->layers; i++) {
        const uint32_t layer = self->last ? shape->layers - 1 - i : i;

        for (uint32_t e = 0; e < shape->experts && count < left; e++)
            ids[count++] = layer * shape->experts + e;
    }
    return count;
}

const struct mp_partition_ops mp_partition_static_layers = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "static-layers",
              .summary = "whole layers are loaded first (llama.cpp, KTransformers)",
              .opts = static_layers_opts,
              .config_size = sizeof(struct static_layers_config) },
    .create = static_layers_create,
    .destroy = mp_policy_free,
    .global = true,
    .first = static_layers_first,
};
