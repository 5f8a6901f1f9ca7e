#ifndef MP_ROUTE_FROM_H
#define MP_ROUTE_FROM_H

#include <stdint.h>

#include "vmm/base/status.h"

/*
 * Routing of a recorded trace in place of a model's own, for measuring: weights of a made-up model
 * can have a real model's shape, but not its routing. Output is then noise, and says nothing.
 *
 * Token at position p of sequence s gets what the trace's decode step (p + s * 17) modulo their
 * number chose. Read only after load; any thread.
 */
struct mp_batch;
struct mp_route_from;

/*
 * Read a trace (policy/replay.h) for a model of `layers` MoE layers; it may have more.
 * MP_ERR_CONFIG E_ROUTE_FROM: other numbers of experts or of experts per token, fewer layers, or no
 * decode steps of one token; E_TRACE_*.
 */
enum mp_status mp_route_from_load(const char *path, uint32_t layers, uint32_t experts,
                                  uint32_t top_k, struct mp_route_from **from_p) MP_MUST_CHECK;
void mp_route_from_destroy(struct mp_route_from *from); /* NULL is allowed */

/* scores(batch->count, experts) := probabilities whose k best are those of the trace. */
void mp_route_from_scores(const struct mp_route_from *from, const struct mp_batch *batch,
                          uint32_t layer, float *scores);

#endif
