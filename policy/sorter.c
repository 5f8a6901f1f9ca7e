#include "policy/sorter.h"

#include <stdlib.h>

#include "vmm/base/error.h"

enum mp_status mp_sorter_create(const struct mp_policy_info *info, const struct mp_shape *shape,
                                size_t bytes, struct mp_policy **policy_p)
{
    struct mp_sorter *sorter = calloc(1, bytes);

    if (sorter == NULL)
        return mp_fail_no_memory("a policy", bytes);
    sorter->super.info = info;
    sorter->order = calloc(shape->experts, sizeof(uint32_t));
    sorter->key = calloc(shape->experts, sizeof(uint64_t));
    if (sorter->order == NULL || sorter->key == NULL) {
        mp_sorter_destroy(&sorter->super);
        return mp_fail_no_memory("a policy", shape->experts * 12u);
    }
    *policy_p = &sorter->super;
    return MP_OK;
}

void mp_sorter_destroy(struct mp_policy *policy)
{
    struct mp_sorter *sorter = (struct mp_sorter *)policy;

    free(sorter->order);
    free(sorter->key);
    free(sorter);
}

void mp_sorter_sort(uint32_t *order, uint32_t count, const uint64_t *key)
{
    uint32_t gap = 1;

    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    while (gap < count / 3)
        gap = 3 * gap + 1;
    /* Shell's sort: no memory, and quick enough for the experts of a layer. The order is total, so
     * that it need not be stable. */
    for (; gap > 0; gap /= 3) {
        for (uint32_t i = gap; i < count; i++) {
            const uint32_t one = order[i];
            uint32_t at = i;

            for (; at >= gap; at -= gap) {
                const uint32_t other = order[at - gap];

                if (key[other] > key[one] || (key[other] == key[one] && other < one))
                    break;
                order[at] = other;
            }
            order[at] = one;
        }
    }
}
