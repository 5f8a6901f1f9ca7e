#ifndef MP_POLICY_ASSIGN_QUEUE_H
#define MP_POLICY_ASSIGN_QUEUE_H

#include "policy/assign/times.h"

/*
 * HybriMoE's schedule of a layer on three queues: the device, the CPU and the link. What assign
 * policy `queue` decides, and by what prefetch policy `impact` weighs experts.
 *
 * The costs have a helper. tokens, resident: (count), none of the tokens 0. `sorter` is scratch.
 * executors(count) may be NULL. Returns the time at which the last of the queues is done.
 */
uint64_t mp_queue_plan(struct mp_sorter *sorter, const struct mp_costs *costs,
                       const uint32_t *tokens, const uint8_t *resident, uint32_t count,
                       uint32_t *executors);

#endif
