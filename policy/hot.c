/*
 * The order of a calibration's hot experts, and how many slots a placement leaves free. No policy:
 * the partitions and evict policies that place by heat call it.
 */
#include "policy/hot.h"

#include <stdlib.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"

struct place {
    float share;
    uint32_t id;
};

static int compare_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->share != y->share)
        return x->share > y->share ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

enum mp_status mp_hot_require(enum mp_policy_kind kind, const struct mp_policy_info *info,
                              const struct mp_shape *shape)
{
    if (shape->calibration != NULL && shape->calibration->hot != NULL)
        return MP_OK;
    return mp_fail(MP_ERR_CONFIG, "E_CALIBRATION",
                   "%s policy '%s' needs to know which experts of the model are hot; "
                   "`moepager calibrate` measures it",
                   mp_policy_kind_name(kind), info->name);
}

enum mp_status mp_hot_order(const struct mp_shape *shape, uint32_t *ids)
{
    const size_t count = (size_t)shape->layers * shape->experts;
    struct place *places = calloc(count, sizeof(*places));

    mp_assert(shape->calibration != NULL && shape->calibration->hot != NULL);
    if (places == NULL)
        return mp_fail_no_memory("the order of hot experts", count * sizeof(*places));
    for (size_t u = 0; u < count; u++)
        places[u] = (struct place){ shape->calibration->hot[u], (uint32_t)u };
    qsort(places, count, sizeof(*places), compare_place);
    for (size_t u = 0; u < count; u++)
        ids[u] = places[u].id;
    free(places);
    return MP_OK;
}

uint32_t mp_buffer_slots(const struct mp_shape *shape)
{
    const uint32_t wanted = 2 + 2 * shape->top_k;
    const uint32_t most = shape->slots / 4 > 2 ? shape->slots / 4 : 2;

    mp_assert(shape->top_k > 0);
    return wanted < most ? wanted : most;
}
