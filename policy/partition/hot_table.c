/*
 * PreScope's hot-expert table (sections 4.1 and 5): all (layer, expert) pairs
 * ranked by how often they were used in a calibration, loaded from the top until the memory for
 * experts is full. The table is never replaced: that is evict policy `none`, which holds what is
 * loaded before the first layer. Here it is only the first residents; with another evict policy it
 * is a warm start.
 *
 * Departures: the buffers of section 4.4 (two for demands, two groups for what is loaded ahead) are
 * slots that the table leaves free; their number is not in the paper and set by BUFFERS.
 */
#include "policy/builtins.h"

#include <string.h>

#include "policy/hot.h"

struct hot_table_config {
    uint64_t buffers;
};

static const struct mp_opt hot_table_opts[] = {
    MP_OPT(MP_OPT_U64, "BUFFERS", struct hot_table_config, buffers, "0", 0, 1000000,
           "Slots that the table of hot experts leaves free for loads; 0: two, and two for each "
           "expert of a token, but a quarter of all at most."),
    MP_OPT_END,
};

struct hot_table {
    struct mp_policy super;
    uint32_t *order; // (ids): hottest first
    uint32_t ids;
    uint64_t buffers;
};

static void hot_table_take(struct mp_policy *policy, const struct mp_shape *shape,
                           struct mp_arena *arena)
{
    ((struct hot_table *)policy)->order =
        mp_arena_take(arena, (uint64_t)shape->layers * shape->experts, sizeof(uint32_t));
}

static enum mp_status hot_table_create(const void *config, const struct mp_shape *shape,
                                       struct mp_policy **policy_p)
{
    struct hot_table draft = {
        .super.info = &mp_partition_hot_table.info,
        .ids = shape->layers * shape->experts,
        .buffers = ((const struct hot_table_config *)config)->buffers,
    };
    enum mp_status status =
        mp_hot_require(MP_POLICY_PARTITION, &mp_partition_hot_table.info, shape);
    struct mp_policy *policy;

    if (status == MP_OK)
        status = mp_policy_make(&draft.super, sizeof(draft), hot_table_take, shape, &policy);
    if (status != MP_OK)
        return status;
    status = mp_hot_order(shape, ((struct hot_table *)policy)->order);
    if (status != MP_OK) {
        mp_policy_free(policy);
        return status;
    }
    *policy_p = policy;
    return MP_OK;
}

static uint32_t hot_table_first(struct mp_policy *policy, const struct mp_shape *shape,
                                uint32_t *ids)
{
    const struct hot_table *table = (const struct hot_table *)policy;
    const uint64_t buffers = table->buffers > 0 ? table->buffers : mp_buffer_slots(shape);
    const uint64_t left = shape->slots > buffers ? shape->slots - buffers : 0;
    const uint32_t count = left < table->ids ? (uint32_t)left : table->ids;

    memcpy(ids, table->order, count * sizeof(ids[0]));
    return count;
}

const struct mp_partition_ops mp_partition_hot_table = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "hot-table",
              .summary = "the experts that a calibration found hot are loaded first (PreScope)",
              .opts = hot_table_opts,
              .config_size = sizeof(struct hot_table_config),
              .calibrated = true },
    .create = hot_table_create,
    .destroy = mp_policy_free,
    .global = true,
    .first = hot_table_first,
};
