/*
 * Counts for experts that are loaded in parts; see slices.h. States of units are not read here: the
 * pager reports each change.
 */
#include "policy/pager/slices.h"

#include <string.h>

#include "policy/policy.h"
#include "vmm/base/assert.h"

void mp_slices_take(struct mp_slices *s, struct mp_arena *arena)
{
    const uint64_t layers = s->layers, experts = layers * s->experts;

    mp_assert(s->count > 0);
    s->present = mp_arena_take(arena, experts, 1);
    s->going = mp_arena_take(arena, experts, 1);
    s->surplus = mp_arena_take(arena, experts, 1);
    s->evictable = mp_arena_take(arena, experts, 1);
    s->retained = mp_arena_take(arena, layers, sizeof(uint32_t));
    s->held = mp_arena_take(arena, layers, sizeof(uint32_t));
    s->quota = mp_arena_take(arena, layers, sizeof(uint32_t));
}

struct mp_unit_range mp_slices_part_of(const struct mp_slices *s, uint32_t expert,
                                       enum mp_slices_part part)
{
    struct mp_unit_range units = mp_slices_of_expert(s, expert);
    const uint32_t border = units.first + s->retained[expert / s->experts];

    mp_assert(expert < s->layers * s->experts);
    if (!(part & MP_SLICES_RETAINED))
        units.first = border;
    if (!(part & MP_SLICES_SURPLUS))
        units.end = border;
    return units;
}

uint32_t mp_slices_going(const struct mp_slices *s, uint32_t expert, enum mp_slices_part part)
{
    const uint32_t surplus = s->surplus[expert], retained = s->going[expert] - surplus;

    mp_assert(s->surplus[expert] <= s->going[expert]);
    return (part & MP_SLICES_RETAINED ? retained : 0) + (part & MP_SLICES_SURPLUS ? surplus : 0);
}

bool mp_slices_is_all(const struct mp_slices *s, enum mp_slices_part part)
{
    mp_assert(part != 0);
    return (part & MP_SLICES_RETAINED) && ((part & MP_SLICES_SURPLUS) || !s->has_surplus);
}

bool mp_slices_insert(struct mp_slices *s, uint32_t unit)
{
    const uint32_t expert = mp_slices_expert(s, unit);

    mp_assert(s->present[expert] < s->count);
    if (!mp_slices_is_surplus(s, unit))
        s->held[mp_slices_layer(s, unit)]++;
    return s->present[expert]++ == 0;
}

bool mp_slices_remove(struct mp_slices *s, uint32_t unit)
{
    const uint32_t expert = mp_slices_expert(s, unit), layer = mp_slices_layer(s, unit);

    mp_assert(s->present[expert] > 0);
    if (!mp_slices_is_surplus(s, unit)) {
        mp_assert(s->held[layer] > 0);
        s->held[layer]--;
    }
    return --s->present[expert] == 0;
}

void mp_slices_set_going(struct mp_slices *s, uint32_t unit, bool going)
{
    const uint32_t expert = mp_slices_expert(s, unit);
    const int change = going ? 1 : -1;

    mp_assert(going ? s->going[expert] < s->count : s->going[expert] > 0);
    s->going[expert] = (uint8_t)(s->going[expert] + change);
    s->evictable[expert] = s->going[expert] > 0;
    if (mp_slices_is_surplus(s, unit)) {
        s->surplus[expert] = (uint8_t)(s->surplus[expert] + change);
        s->surplus_going += (uint32_t)change;
    }
}

bool mp_slices_over_quota(const struct mp_slices *s, uint32_t unit)
{
    const uint32_t layer = mp_slices_layer(s, unit);

    mp_assert(layer < s->layers);
    return s->held[layer] >= s->quota[layer] && !mp_slices_is_surplus(s, unit);
}

uint32_t mp_slices_greediest_layer(const struct mp_slices *s)
{
    uint32_t worst = MP_LAYER_ANY, worst_excess = 0;

    for (uint32_t l = 0; l < s->layers; l++) {
        if (s->held[l] > s->quota[l] && s->held[l] - s->quota[l] > worst_excess) {
            worst_excess = s->held[l] - s->quota[l];
            worst = l;
        }
    }
    return worst;
}

void mp_slices_retain(struct mp_slices *s, const uint32_t *retained)
{
    s->has_surplus = false;
    s->surplus_going = 0;
    memset(s->surplus, 0, (size_t)s->layers * s->experts);
    for (uint32_t l = 0; l < s->layers; l++) {
        mp_assert(retained[l] >= 1 && retained[l] <= s->count);
        s->retained[l] = retained[l];
        s->held[l] = 0;
        s->has_surplus |= retained[l] < s->count;
    }
}

void mp_slices_recount(struct mp_slices *s, uint32_t unit, bool present, bool going)
{
    mp_assert(!going || present);
    if (mp_slices_is_surplus(s, unit)) {
        s->surplus[mp_slices_expert(s, unit)] += going;
        s->surplus_going += going;
    } else {
        s->held[mp_slices_layer(s, unit)] += present;
    }
}

bool mp_slices_check(const struct mp_slices *s, uint32_t expert, const bool *present,
                     const bool *going, uint32_t *held)
{
    const uint32_t retained = s->retained[expert / s->experts];
    uint32_t all_present = 0, all_going = 0, surplus = 0;

    mp_assert(expert < s->layers * s->experts);
    for (uint32_t i = 0; i < s->count; i++) {
        all_present += present[i];
        all_going += going[i];
        surplus += going[i] && i >= retained;
        *held += present[i] && i < retained;
    }
    return all_present == s->present[expert] && all_going == s->going[expert] &&
           surplus == s->surplus[expert] && s->evictable[expert] == (all_going > 0);
}
