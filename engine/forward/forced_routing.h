#ifndef MP_FORCED_ROUTING_H
#define MP_FORCED_ROUTING_H

#include <stdint.h>

#include "vmm/base/status.h"

/*
 * Replaces a model's routing by that of a recorded trace, for measurements: a model with random
 * weights can have the shape of a real model, but not its routing. The output is then meaningless.
 *
 * The token at position p of sequence s gets the experts of the trace's decode step (p + s * 17)
 * modulo the number of steps. Thread safety: any thread; constant after load.
 */
struct mp_batch;
struct mp_forced_routing;

/*
 * Read a trace (policy/replay/replay.h) for a model of `layers` MoE layers; it may have more.
 * MP_ERR_CONFIG E_FORCED_ROUTING: other numbers of experts or of experts per token, fewer layers,
 * or no decode steps with one token; E_TRACE_*.
 */
enum mp_status mp_forced_routing_load(const char *path, uint32_t layers, uint32_t experts,
                                      uint32_t top_k,
                                      struct mp_forced_routing **from_p) MP_MUST_CHECK;
/* The same of a trace in memory, which is copied; `name` stands in errors. */
struct mp_replay_trace;
enum mp_status mp_forced_routing_make(const struct mp_replay_trace *trace, const char *name,
                                      uint32_t layers, uint32_t experts, uint32_t top_k,
                                      struct mp_forced_routing **from_p) MP_MUST_CHECK;
void mp_forced_routing_destroy(struct mp_forced_routing *from); /* NULL is allowed */

/* Decode steps of the trace, at least 1. */
uint32_t mp_forced_routing_steps(const struct mp_forced_routing *from);
/* The choice of a step in a layer: top_k experts, best first. */
const uint32_t *mp_forced_routing_chosen(const struct mp_forced_routing *from, uint32_t step,
                                         uint32_t layer);

/* scores(batch->count, experts) := probabilities whose k best are those of the trace. */
void mp_forced_routing_scores(const struct mp_forced_routing *from, const struct mp_batch *batch,
                              uint32_t layer, float *scores);

#endif
