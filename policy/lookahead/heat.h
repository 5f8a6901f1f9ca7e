#ifndef MP_LOOKAHEAD_HEAT_H
#define MP_LOOKAHEAD_HEAT_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * Token-conditional heat: the share of a token id's earlier occurrences at which a layer chose an
 * expert. The id of a token is known before its first layer runs, so this predicts all layers of a
 * step at once, and of later tokens as far as their ids are guessed.
 *
 * It learns while running and keeps the ids seen most; older occurrences count less. Memory is
 * fixed when it is created.
 *
 * Thread safety: one thread at a time.
 */
struct mp_heat;

struct mp_heat_shape {
    uint32_t layers, experts, top_k;
    uint32_t vocab; /* ids are below it */
};

enum mp_status mp_heat_create(const struct mp_heat_shape *shape,
                              struct mp_heat **heat_p) MP_MUST_CHECK;
void mp_heat_destroy(struct mp_heat *heat);

/* The layer chose chosen(top_k) for a token with this id. The layers of a token in ascending order.
 */
void mp_heat_learn(struct mp_heat *heat, uint32_t layer, uint32_t id, const uint32_t *chosen);

/* share(experts) := 1 - (1 - share) * (1 - weight * p): p of each expert that the layer has chosen
 * for this id. So shares of several tokens become that of all of them together. */
void mp_heat_add(const struct mp_heat *heat, uint32_t layer, uint32_t id, float weight,
                 float *share);

/*
 * What is known of an id, as numbers for a file: how often it was seen, and for each layer the
 * experts that were counted, expert(layers, entries) and how often, count(layers, entries); 0:
 * nothing. entries: the same for all heats of one shape.
 */
struct mp_heat_row {
    float id, seen;
    float *expert, *count;
};

#define MP_HEAT_PLACES_MAX 4100u /* of ids, in any heat */
#define MP_HEAT_SEEN_MAX 64u
uint32_t mp_heat_entries(const struct mp_heat_shape *shape);
uint32_t mp_heat_places(const struct mp_heat *heat);

/* Fill the row of a place, whose arrays are there. False: no id has it. */
bool mp_heat_get(const struct mp_heat *heat, uint32_t place, struct mp_heat_row *row);

/* Know this of an id that has not been seen yet, unless as many others of its hash have been seen
 * more. A row is not trusted: numbers that are none of a heat of this shape count as 0. */
void mp_heat_put(struct mp_heat *heat, const struct mp_heat_row *row);

/* Put the experts with a share of at least `least` into list(experts), the largest share first, at
 * most `max`; returns their number. */
uint32_t mp_heat_list(const float *share, uint32_t experts, float least, uint32_t max,
                      uint32_t *list);

#endif
