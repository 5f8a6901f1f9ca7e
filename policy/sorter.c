/*
 * Sorting numbers of experts by a key without an allocation, and instances of policies that need
 * nothing else. Ties go to the lower number.
 */
#include "policy/sorter.h"

#include "policy/builtins.h"

void mp_sorter_take(struct mp_policy *policy, const struct mp_shape *shape, struct mp_arena *arena)
{
    struct mp_sorter *sorter = (struct mp_sorter *)policy;

    sorter->order = mp_arena_take(arena, shape->experts, sizeof(uint32_t));
    sorter->key = mp_arena_take(arena, shape->experts, sizeof(uint64_t));
}

enum mp_status mp_sorter_create(const struct mp_policy_info *info, const struct mp_shape *shape,
                                struct mp_policy **policy_p)
{
    struct mp_sorter draft = { .super.info = info };

    return mp_policy_make(&draft.super, sizeof(draft), mp_sorter_take, shape, policy_p);
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
