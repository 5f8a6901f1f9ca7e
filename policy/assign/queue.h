#ifndef MP_POLICY_ASSIGN_QUEUE_H
#define MP_POLICY_ASSIGN_QUEUE_H

#include "policy/assign/times.h"

/*
 * HybriMoE's schedule of a layer on three queues: the device, the CPU and the link. Assign policy
 * `queue` returns it; prefetch policy `impact` ranks experts by its length.
 *
 * The costs must have a helper. tokens, resident: (count), tokens >= 1. `sorter` is scratch.
 * executors(count) := the schedule; may be NULL. Returns the time at which the last queue is done,
 * in ns.
 */
uint64_t mp_queue_plan(struct mp_sorter *sorter, const struct mp_costs *costs,
                       const uint32_t *tokens, const uint8_t *resident, uint32_t count,
                       uint32_t *executors);

#endif
