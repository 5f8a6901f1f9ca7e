#ifndef MP_ENGINE_LOOKAHEAD_H
#define MP_ENGINE_LOOKAHEAD_H

#include <stdint.h>

#include "vmm/base/status.h"

/*
 * Lookahead over tokens: what the ids of the tokens of a batch, and guessed ids of the next ones,
 * say about the experts of the layers that follow, as prefetches for the pager. The pager reads
 * them when no demand is left and does not evict what is predicted. Time only: no bit changes.
 */
struct mp_engine;
struct mp_lookahead;

/* For config.lookahead > 0. */
enum mp_status mp_lookahead_create(const struct mp_engine *engine,
                                   struct mp_lookahead **lookahead_p) MP_MUST_CHECK;
void mp_lookahead_destroy(struct mp_lookahead *lookahead);

/* The ids guessed for the tokens after the next batch, of all its sequences, nearest first, and how
 * likely each is; until the batch has run. */
void mp_lookahead_expect(struct mp_lookahead *lookahead, const uint32_t *ids, const float *chances,
                         uint32_t count);

/* The layer has been routed: chosen(tokens, top_k). NULL is allowed in both. */
void mp_lookahead_routed(struct mp_lookahead *lookahead, uint32_t layer, const uint32_t *chosen);

/* The layer is open, and its demands have been made: ask for what the next layers may need. */
void mp_lookahead_prefetch(struct mp_lookahead *lookahead, uint32_t layer);

#endif
