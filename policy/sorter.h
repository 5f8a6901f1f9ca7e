#ifndef MP_POLICY_SORTER_H
#define MP_POLICY_SORTER_H

#include "policy/policy.h"

/* An instance for policies that need no more than to sort the experts of a layer. */
struct mp_sorter {
    struct mp_policy super;
    uint32_t *order; // (experts)
    uint64_t *key;   // (experts)
};

/* `bytes` of the instance, which begins with a struct mp_sorter and is otherwise zero. */
enum mp_status mp_sorter_create(const struct mp_policy_info *info, const struct mp_shape *shape,
                                size_t bytes, struct mp_policy **policy_p) MP_MUST_CHECK;
void mp_sorter_destroy(struct mp_policy *policy);

/* order(count) := 0..count-1 by descending key[], ties by ascending number. */
void mp_sorter_sort(uint32_t *order, uint32_t count, const uint64_t *key);

#endif
