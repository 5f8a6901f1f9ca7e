#ifndef MP_RECURRENT_H
#define MP_RECURRENT_H

#include <stddef.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * What recurrent layers remember of a sequence, beside the KV cache: a state of fixed size for each
 * of these layers and sequence, that a batch continues. It is kept twice, before and after the last
 * batch of its sequence, so that a batch that failed, or was a prediction, can be done again. There
 * is no way further back: a sequence goes on, repeats its last batch or begins again at position 0.
 */
struct mp_engine;
struct mp_batch;
struct mp_model_config;

#define MP_RECURRENT_SEQUENCES 64u /* of a batch, at most */

/* Layers that have a state, and the floats of one. */
uint64_t mp_recurrent_layers(const struct mp_model_config *model);
uint64_t mp_recurrent_floats(const struct mp_model_config *model);

/* MP_ERR_INVALID E_BATCH: a sequence of the batch would have to go back. */
enum mp_status mp_recurrent_check(const struct mp_engine *engine,
                                  const struct mp_batch *batch) MP_MUST_CHECK;

/* The state of the layer before `position` (NULL: all zeros), and where to write the one after
 * `count` more tokens. */
void mp_recurrent_open(struct mp_engine *engine, uint32_t layer, uint32_t sequence,
                       uint32_t position, uint32_t count, const float **before_p, float **after_p);

#endif
