#ifndef MP_POLICY_HOT_H
#define MP_POLICY_HOT_H

#include "policy/policy.h"

/*
 * The hot-expert table of a calibration, for policies that place experts by it.
 */

/* MP_ERR_CONFIG E_CALIBRATION, naming the policy, if the shape has no hot-expert table. */
enum mp_status mp_hot_require(enum mp_policy_kind kind, const struct mp_policy_info *info,
                              const struct mp_shape *shape) MP_MUST_CHECK;

/* ids(layers * experts) := all of them, hottest first, ties to the lower id. The shape must have
 * a table. */
enum mp_status mp_hot_order(const struct mp_shape *shape, uint32_t *ids) MP_MUST_CHECK;

/*
 * Slots that a static placement leaves for temporary experts: two for demands, and two groups of
 * top_k for prefetches of this layer and the next (PreScope 4.4); at most a quarter of all slots,
 * and at least the two that the pager needs.
 */
uint32_t mp_buffer_slots(const struct mp_shape *shape);

#endif
