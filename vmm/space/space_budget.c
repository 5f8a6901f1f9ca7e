/*
 * Size classes, and the number of slots of each that fit into a budget, in the device tier and, if
 * there is one, in the host tier.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/space/space_layout.h"

/* A window costs a frame for each unit; more than 15/100 of that lost to granules is too much. */
#define WINDOW_WASTE_PERCENT 15

/* Slots of a host tier that is too small for all units, through which the others pass: an eighth,
 * but from 2 to 4 of each class. */
#define PASSING_DIVISOR 8
#define PASSING_MIN 2
#define PASSING_MAX 4

struct size_group {
    uint64_t slot_bytes;
    uint64_t units;
};

static int compare_sizes(const void *a, const void *b)
{
    const struct size_group *left = a, *right = b;

    return left->slot_bytes < right->slot_bytes ? -1 : left->slot_bytes > right->slot_bytes;
}

/* Lift the units of one group to the next size, where that costs the fewest bytes. */
static void merge_cheapest(struct size_group *groups, uint32_t *count)
{
    uint32_t best = 0;
    uint64_t best_cost = UINT64_MAX;

    mp_assert(*count > 1);
    for (uint32_t i = 0; i + 1 < *count; i++) {
        uint64_t cost;

        if (mp_mul_u64(groups[i + 1].slot_bytes - groups[i].slot_bytes, groups[i].units, &cost) &&
            cost < best_cost) {
            best_cost = cost;
            best = i;
        }
    }
    groups[best + 1].units += groups[best].units;
    memmove(&groups[best], &groups[best + 1], (*count - best - 1) * sizeof(*groups));
    (*count)--;
}

/* Equal sizes share a class; more sizes than classes are rounded up to the next one kept. */
enum mp_status mp_space_make_classes(struct mp_space_layout *layout)
{
    const uint64_t table_bytes = (uint64_t)layout->unit_count * sizeof(struct size_group);
    struct size_group *groups = malloc(table_bytes);
    uint32_t count = 0;

    if (groups == NULL)
        return mp_fail_no_memory("the list of unit sizes", table_bytes);
    for (uint32_t i = 0; i < layout->unit_count; i++)
        groups[i] = (struct size_group){ layout->units[i].slot_bytes, 1 };
    qsort(groups, layout->unit_count, sizeof(*groups), compare_sizes);
    for (uint32_t i = 0; i < layout->unit_count; i++) {
        if (count > 0 && groups[count - 1].slot_bytes == groups[i].slot_bytes)
            groups[count - 1].units++;
        else
            groups[count++] = groups[i];
    }
    while (count > MP_TIER_CLASSES_MAX)
        merge_cheapest(groups, &count);
    for (uint32_t c = 0; c < count; c++)
        layout->classes[c] = (struct mp_tier_class){ .slot_bytes = groups[c].slot_bytes,
                                                     .slots = (uint32_t)groups[c].units,
                                                     .slots_max = (uint32_t)groups[c].units };
    layout->class_count = count;
    free(groups);

    for (uint32_t i = 0; i < layout->unit_count; i++) {
        struct mp_unit_layout *unit = &layout->units[i];

        while (layout->classes[unit->class_index].slot_bytes < unit->slot_bytes)
            unit->class_index++;
        mp_assert(unit->class_index < count);
        layout->class_units[unit->class_index]++;
    }
    return MP_OK;
}

/* Bytes of the device tier's frames that no slot uses. */
static uint64_t wasted_bytes(const struct mp_space_config *config,
                             const struct mp_space_layout *layout)
{
    uint64_t used = 0, bytes = 0;

    if (mp_tier_cost(config->backend, layout->classes, layout->class_count, &bytes) != MP_OK)
        return 0;
    for (uint32_t c = 0; c < layout->class_count; c++)
        used += layout->classes[c].slot_bytes * layout->classes[c].slots;
    mp_assert(bytes >= used);
    return bytes - used;
}

/* Windows, if they are wanted, the backend has them, and granules do not eat too much. */
static enum mp_status choose_addressing(const struct mp_space_config *config,
                                        struct mp_space_layout *layout)
{
    const struct mp_backend_caps *caps = &config->backend->caps;
    uint64_t bytes, waste;
    enum mp_status status;

    for (uint32_t c = 0; c < layout->class_count; c++)
        layout->classes[c].small_frames = layout->host_tier;
    if (config->addressing != MP_ADDRESSING_WINDOW || !layout->host_tier || !caps->windows)
        return MP_OK;
    for (uint32_t c = 0; c < layout->class_count; c++)
        layout->classes[c].own_frames = true;
    status = mp_tier_cost(config->backend, layout->classes, layout->class_count, &bytes);
    if (status != MP_OK)
        return status;
    waste = wasted_bytes(config, layout);
    if (waste > bytes / 100 * WINDOW_WASTE_PERCENT) {
        mp_log_once(MP_LOG_WARN, "space",
                    "addressing by table: with a window %" PRIu64 " of %" PRIu64
                    " bytes would be lost to granules of %" PRIu64 " bytes",
                    waste, bytes, caps->granule_bytes);
        for (uint32_t c = 0; c < layout->class_count; c++)
            layout->classes[c].own_frames = false;
        return MP_OK;
    }
    layout->addressing = MP_ADDRESSING_WINDOW;
    for (uint32_t c = 0; c < layout->class_count; c++) {
        struct mp_tier_class one = layout->classes[c];

        one.slots = 1;
        status = mp_tier_cost(config->backend, &one, 1, &layout->stride_bytes[c]);
        if (status != MP_OK)
            return status;
        mp_assert(layout->stride_bytes[c] % caps->alias_align_bytes == 0);
        layout->plan.window_bytes += layout->stride_bytes[c] * layout->class_units[c];
    }
    return MP_OK;
}

static uint32_t passing_of(uint32_t slots)
{
    uint32_t passing = slots / PASSING_DIVISOR;

    if (passing < PASSING_MIN)
        passing = PASSING_MIN;
    if (passing > PASSING_MAX)
        passing = PASSING_MAX;
    mp_assert(passing <= slots); /* a class keeps two slots where it has not all */
    return passing;
}

/* Slots of the host tier: for all units, or for those that the device tier has no room for. */
static enum mp_status fit_host(const struct mp_space_config *config, struct mp_space_layout *layout)
{
    struct mp_tier_class *host = layout->host_classes;
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; i < layout->unit_count; i++) {
        const struct mp_unit_layout *unit = &layout->units[i];
        struct mp_tier_class *class = &host[unit->class_index];

        if (unit->host_slot_bytes > class->slot_bytes)
            class->slot_bytes = unit->host_slot_bytes;
    }
    for (uint32_t c = 0; c < layout->class_count; c++) {
        const uint32_t units = layout->class_units[c];
        uint64_t want = units;

        if (config->host_residency == MP_HOST_EXCLUSIVE)
            want = (uint64_t)units - layout->classes[c].slots + PASSING_MAX;
        host[c].slots = want < units ? (uint32_t)want : units;
    }
    if (config->host_budget_bytes != UINT64_MAX)
        status = mp_tier_fit(config->backend, config->host_budget_bytes, "--host-budget", host,
                             layout->class_count);
    if (status == MP_OK)
        status = mp_tier_cost(config->backend, host, layout->class_count, &layout->plan.host_bytes);
    if (status != MP_OK)
        return status;
    for (uint32_t c = 0; c < layout->class_count; c++) {
        layout->passing[c] = host[c].slots < layout->class_units[c] ? passing_of(host[c].slots) : 0;
        mp_assert(layout->passing[c] <= host[c].slots);
        layout->plan.host_slots += host[c].slots - layout->passing[c];
    }
    return MP_OK;
}

enum mp_status mp_space_fit_budget(const struct mp_space_config *config,
                                   struct mp_space_layout *layout)
{
    struct mp_space_plan *plan = &layout->plan;
    struct mp_tier_class least[MP_TIER_CLASSES_MAX];
    enum mp_status status = choose_addressing(config, layout);

    if (status != MP_OK)
        return status;
    memcpy(least, layout->classes, sizeof(least));
    for (uint32_t c = 0; c < layout->class_count; c++)
        least[c].slots = least[c].slots < 2 ? least[c].slots : 2;
    status = mp_tier_cost(config->backend, least, layout->class_count, &plan->smallest_bytes);
    if (status == MP_OK)
        status =
            mp_tier_cost(config->backend, layout->classes, layout->class_count, &plan->full_bytes);
    if (status == MP_OK && config->budget_bytes != UINT64_MAX)
        status = mp_tier_fit(config->backend, config->budget_bytes, "--budget", layout->classes,
                             layout->class_count);
    if (status != MP_OK)
        return status;

    mp_assert(plan->smallest_bytes <= plan->full_bytes);
    plan->slot_bytes_max = layout->classes[layout->class_count - 1].slot_bytes;
    for (uint32_t c = 0; c < layout->class_count; c++)
        plan->slots += layout->classes[c].slots;
    if (!layout->host_tier)
        return MP_OK;
    plan->waste_bytes = wasted_bytes(config, layout);
    return fit_host(config, layout);
}
