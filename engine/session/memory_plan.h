#ifndef MP_MEMORY_PLAN_H
#define MP_MEMORY_PLAN_H

#include "engine/session/session.h"

/*
 * What a run takes of RAM, and of a device's memory, against what there is; chooses the budgets.
 * Part of engine/session.
 *
 * On the host backend the budget, and all else, is RAM. On a device budget, weights, KV cache and
 * activations are its memory: automatic, the budget is what they leave of its free memory less a
 * margin of 5 %, at least 1.5 GiB where the device is large, because a device that is full to the
 * brim fails others, and itself at the next allocation. Graphs and cuBLAS are beside that margin: a
 * run does without them where there is no room, so no sum is refused for them. RAM then holds the
 * host tier, whose automatic size is what this process and its control group can spare.
 *
 * Needs session->checkpoint, model and engine_config; fills memory, direct_io and the budgets of
 * engine_config. MP_ERR_CONFIG E_BUDGET_SMALL, E_SLICES; MP_ERR_NO_MEMORY E_RAM, E_DEVICE_ROOM with
 * the parts of the sum. With config->plan_only the sum may be more than there is, so that the sizes
 * of a model that is too large for the machine can be shown.
 */
enum mp_status mp_memory_plan_make(const struct mp_settings *settings,
                                   const struct mp_session_config *config,
                                   struct mp_session *session) MP_MUST_CHECK;

/* What an automatic budget leaves free of a device with so much memory. */
uint64_t mp_memory_device_margin(uint64_t total_bytes);

#endif
