#include "policy/residents.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/error.h"

enum mp_status mp_residents_init(struct mp_residents *set, const struct mp_shape *shape)
{
    const size_t units = (size_t)shape->layers * shape->experts;

    *set = (struct mp_residents){
        .unit = calloc(units, sizeof(uint32_t)),
        .place = malloc(units * sizeof(uint32_t)),
        .held = calloc(shape->layers, sizeof(uint32_t)),
        .experts = shape->experts,
        .layers = shape->layers,
        .slots = shape->slots,
    };
    if (set->unit == NULL || set->place == NULL || set->held == NULL) {
        mp_residents_fini(set);
        return mp_fail_no_memory("an evict policy", units * 8);
    }
    memset(set->place, 0xff, units * sizeof(uint32_t));
    return MP_OK;
}

void mp_residents_fini(struct mp_residents *set)
{
    free(set->unit);
    free(set->place);
    free(set->held);
    memset(set, 0, sizeof(*set));
}

void mp_residents_add(struct mp_residents *set, uint32_t unit)
{
    if (set->place[unit] != MP_UNIT_NONE)
        return;
    set->place[unit] = set->count;
    set->unit[set->count++] = unit;
    set->held[unit / set->experts]++;
}

void mp_residents_remove(struct mp_residents *set, uint32_t unit)
{
    const uint32_t place = set->place[unit];

    if (place == MP_UNIT_NONE)
        return;
    set->unit[place] = set->unit[--set->count];
    set->place[set->unit[place]] = place;
    set->place[unit] = MP_UNIT_NONE;
    set->held[unit / set->experts]--;
}

uint32_t mp_residents_min(const struct mp_residents *set, const struct mp_evict_query *query,
                          uint32_t layer, const uint64_t *key, const uint64_t *second)
{
    uint32_t best = MP_UNIT_NONE;

    for (uint32_t i = 0; i < set->count; i++) {
        const uint32_t unit = set->unit[i];

        if ((layer != MP_LAYER_ANY && unit / set->experts != layer) ||
            !mp_evict_allows(query, unit))
            continue;
        if (best == MP_UNIT_NONE || key[unit] < key[best]) {
            best = unit;
        } else if (key[unit] == key[best]) {
            const uint64_t mine = second != NULL ? second[unit] : 0;
            const uint64_t other = second != NULL ? second[best] : 0;

            if (mine < other || (mine == other && unit < best))
                best = unit;
        }
    }
    return best;
}

static uint32_t share_of(const struct mp_residents *set, uint32_t layer)
{
    return set->slots / set->layers + (layer < set->slots % set->layers ? 1 : 0);
}

uint32_t mp_residents_victim_layer(const struct mp_residents *set,
                                   const struct mp_evict_query *query)
{
    const uint32_t own = query->for_unit / set->experts;
    uint32_t worst = MP_LAYER_ANY, worst_excess = 0;

    if (set->held[own] > 0 && set->held[own] >= share_of(set, own))
        return own;
    for (uint32_t l = 0; l < set->layers; l++) {
        const uint32_t share = share_of(set, l);

        if (set->held[l] > share && set->held[l] - share > worst_excess) {
            worst_excess = set->held[l] - share;
            worst = l;
        }
    }
    return worst;
}

uint32_t mp_residents_planned(const struct mp_shape *shape)
{
    uint32_t spare = shape->slots / 4;

    if (spare > 2 * shape->top_k)
        spare = 2 * shape->top_k;
    if (spare < 2)
        spare = 2;
    return shape->slots > spare ? (shape->slots - spare) / shape->layers : 0;
}
