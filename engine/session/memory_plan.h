#ifndef MP_MEMORY_PLAN_H
#define MP_MEMORY_PLAN_H

#include "engine/session/session.h"

/*
 * Private to engine/session. Compares the RAM and device memory that a run needs with what is
 * available, and chooses automatic budgets.
 *
 * On the host backend everything is in RAM. With a device, budget, weights, KV cache and
 * activations are in its memory: an automatic budget is the free memory that the others leave, less
 * a margin of 5 %, at least 1.5 GiB on a large device, because on a full device the next allocation
 * of any process fails. Graphs and cuBLAS are not part of the margin: a run does without them if
 * there is no room, so no sum is refused because of them. RAM then holds the host tier, whose
 * automatic size is what this process and its control group can spare.
 *
 * With `draft` the model's layer that drafts has a part of it: session->memory.draft.
 *
 * Needs session->checkpoint, model and engine_config; fills memory, direct_io and the budgets of
 * engine_config. MP_ERR_CONFIG E_BUDGET_SMALL, E_SLICES; MP_ERR_NO_MEMORY E_RAM, E_DEVICE_ROOM with
 * the parts of the sum. With config->plan_only the sum may exceed the available memory, so that the
 * sizes of a model that is too large for the machine can be shown.
 */
enum mp_status mp_memory_plan_make(const struct mp_settings *settings,
                                   const struct mp_session_config *config, bool draft,
                                   struct mp_session *session) MP_MUST_CHECK;

/* Memory that an automatic budget leaves free on a device of this size. */
uint64_t mp_memory_device_margin(uint64_t total_bytes);

#endif
