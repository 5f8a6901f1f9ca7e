/*
 * The placement part of SmartMoE, as Prism compares itself with it (IV-A): every expert once, the
 * same number of each layer on every device, and among such placements one that spreads the load:
 * the busiest expert first, to the device with the least load. A device's load is in tokens of all
 * servers. O(experts * (devices + log(experts))).
 */
#include "policy/place/place_int.h"

/* Devices with less than `most` of the layer come first, then the least loaded. number[d]:
 * experts of the layer on device d. */
static uint32_t idlest(const struct mp_placement *placement, uint32_t devices, uint32_t most)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t d = 0; d < devices; d++) {
        bool full, best_full;

        if (placement->free[d] == 0)
            continue;
        if (best == UINT32_MAX) {
            best = d;
            continue;
        }
        full = placement->number[d] >= most;
        best_full = placement->number[best] >= most;
        if (full != best_full ? best_full : placement->load[d] < placement->load[best])
            best = d;
    }
    return best;
}

static void smartmoe_place(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    const uint32_t devices = mp_place_devices(facts);
    const uint32_t most = (facts->experts + devices - 1) / devices;

    mp_place_add_up(facts, placement);
    for (uint32_t l = 0; l < facts->layers; l++) {
        for (uint32_t d = 0; d < devices; d++)
            placement->number[d] = 0;
        for (uint32_t e = 0; e < facts->experts; e++)
            placement->order[e] = l * facts->experts + e;
        mp_place_sort(placement->order, facts->experts, placement->total);
        for (uint32_t e = 0; e < facts->experts; e++) {
            const uint32_t d = idlest(placement, devices, most);

            placement->number[d]++;
            placement->load[d] += placement->total[placement->order[e]];
            mp_place_put(facts, placement, d, placement->order[e]);
        }
    }
}

const struct mp_place_ops mp_place_smartmoe = {
    .name = "smartmoe",
    .summary = "every expert once, load spread over devices",
    .calls = true,
    .migrates = true,
    .place = smartmoe_place,
};
