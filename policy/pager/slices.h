#ifndef MP_PAGER_SLICES_H
#define MP_PAGER_SLICES_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/arena.h"

/*
 * Slices: maps units of the space to experts, and keeps the counts that depend on it.
 *
 * The space moves units; policies decide about experts, numbered layer * experts + expert. An
 * expert consists of `count` adjacent units, its slices in order; with one slice it is one unit.
 * The other files of the pager work on units and use this module for the mapping.
 *
 * A partition may retain a part of each expert of a layer: the first `retained` slices. The slices
 * after them are surplus: they count for no quota and are evicted before all retained ones. A unit
 * is present from the start of its read until it is evicted, and evictable as set by the pager.
 *
 *     present[expert]      == units of it that are present
 *     held[layer]          == those of them, over the layer, that are not surplus
 *     going[expert]        == units of it that are evictable; evictable[expert] == going > 0
 *     surplus[expert]      == those of them that are surplus; surplus_going == all of them
 *
 * States, flags and leases of units, and policies, are not known here. One thread at a time; no
 * function allocates or fails. Other files may read all fields, and write only `quota`.
 */
enum mp_slices_part {
    MP_SLICES_RETAINED = 1,
    MP_SLICES_SURPLUS = 2,
    MP_SLICES_ALL = MP_SLICES_RETAINED | MP_SLICES_SURPLUS
};

struct mp_slices {
    uint32_t count; /* of an expert, >= 1 */
    uint32_t layers, experts;
    uint8_t *present;       // (layers * experts)
    uint8_t *going;         // (layers * experts)
    uint8_t *surplus;       // (layers * experts)
    uint8_t *evictable;     // (layers * experts): as passed to policies
    uint32_t *retained;     // (layers): slices, 1..count
    uint32_t *held;         // (layers): units
    uint32_t *quota;        // (layers): units; UINT32_MAX: no bound
    uint32_t surplus_going; /* units */
    bool has_surplus;       /* in any layer */
};

/* Units first, first + 1, ... end - 1. */
struct mp_unit_range {
    uint32_t first, end;
};

static inline uint32_t mp_slices_expert(const struct mp_slices *s, uint32_t unit)
{
    return unit / s->count;
}

static inline uint32_t mp_slices_layer(const struct mp_slices *s, uint32_t unit)
{
    return unit / s->count / s->experts;
}

static inline bool mp_slices_is_surplus(const struct mp_slices *s, uint32_t unit)
{
    return unit % s->count >= s->retained[mp_slices_layer(s, unit)];
}

static inline bool mp_slices_is_in(const struct mp_slices *s, uint32_t unit,
                                   enum mp_slices_part part)
{
    return part & (mp_slices_is_surplus(s, unit) ? MP_SLICES_SURPLUS : MP_SLICES_RETAINED);
}

/* The units of an expert, and those of a layer. */
static inline struct mp_unit_range mp_slices_of_expert(const struct mp_slices *s, uint32_t expert)
{
    return (struct mp_unit_range){ expert * s->count, (expert + 1) * s->count };
}

static inline struct mp_unit_range mp_slices_of_layer(const struct mp_slices *s, uint32_t layer)
{
    return (struct mp_unit_range){ layer * s->experts * s->count,
                                   (layer + 1) * s->experts * s->count };
}

/* Take the tables from the arena, zeroed; called twice, before and after mp_arena_open(). `count`,
 * `layers` and `experts` must be set. */
void mp_slices_take(struct mp_slices *s, struct mp_arena *arena);

/* The units of a part of an expert. */
struct mp_unit_range mp_slices_part_of(const struct mp_slices *s, uint32_t expert,
                                       enum mp_slices_part part);

/* Number of evictable units of the part. */
uint32_t mp_slices_going(const struct mp_slices *s, uint32_t expert, enum mp_slices_part part);

/* True if the part contains all units of all experts. */
bool mp_slices_is_all(const struct mp_slices *s, enum mp_slices_part part);

/* The unit became present. True: the first of its expert. */
bool mp_slices_insert(struct mp_slices *s, uint32_t unit);

/* The unit is no longer present. True: it was the last of its expert. */
bool mp_slices_remove(struct mp_slices *s, uint32_t unit);

/* Set whether the unit is evictable. */
void mp_slices_set_going(struct mp_slices *s, uint32_t unit, bool going);

/* True if the unit's layer would exceed its quota with this unit. Surplus units never do. */
bool mp_slices_over_quota(const struct mp_slices *s, uint32_t unit);

/* The layer that exceeds its quota most, or MP_LAYER_ANY. */
uint32_t mp_slices_greediest_layer(const struct mp_slices *s);

/*
 * Set the retained slices of each layer. Counts that depend on it are reset; the caller must then
 * call mp_slices_recount() for each unit.
 */
void mp_slices_retain(struct mp_slices *s, const uint32_t *retained);
void mp_slices_recount(struct mp_slices *s, uint32_t unit, bool present, bool going);

/* Check the counts of an expert against its units: present(count), going(count). Adds to *held. */
bool mp_slices_check(const struct mp_slices *s, uint32_t expert, const bool *present,
                     const bool *going, uint32_t *held);

#endif
