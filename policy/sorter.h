#ifndef MP_POLICY_SORTER_H
#define MP_POLICY_SORTER_H

#include "policy/policy.h"
#include "vmm/base/arena.h"

/* An instance for policies that only need to sort the experts of a layer. */
struct mp_sorter {
    struct mp_policy super;
    uint32_t *order; // (experts)
    uint64_t *key;   // (experts)
};

/* Its arrays, for mp_policy_make() of an instance that begins with a struct mp_sorter. */
void mp_sorter_take(struct mp_policy *policy, const struct mp_shape *shape, struct mp_arena *arena);

/* Create an instance that is only a sorter. */
enum mp_status mp_sorter_create(const struct mp_policy_info *info, const struct mp_shape *shape,
                                struct mp_policy **policy_p) MP_MUST_CHECK;

/* order(count) := 0..count-1 by descending key[], ties by ascending number. */
void mp_sorter_sort(uint32_t *order, uint32_t count, const uint64_t *key);

#endif
