/*
 * "Uniform" of Prism, IV-A: random experts, the same number of each layer on every device, each
 * expert once; what does not fit on a small device goes to the others. As expert parallelism in
 * Megatron-LM. O(experts * devices).
 */
#include "policy/place/place_int.h"

/* The device with the fewest experts of this layer that has a slot; ties from `first` on. number[]
 * counts them. */
static uint32_t emptiest(const struct mp_placement *placement, uint32_t devices, uint32_t first)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t i = 0; i < devices; i++) {
        const uint32_t d = (first + i) % devices;

        if (placement->free[d] > 0 &&
            (best == UINT32_MAX || placement->number[d] < placement->number[best]))
            best = d;
    }
    return best;
}

static void uniform_place(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    const uint32_t devices = mp_place_devices(facts);
    uint64_t random = mp_policy_mix(facts->seed);

    for (uint32_t l = 0; l < facts->layers; l++) {
        for (uint32_t d = 0; d < devices; d++)
            placement->number[d] = 0;
        mp_place_shuffle(placement->order, facts->experts, &random);
        for (uint32_t i = 0; i < facts->experts; i++) {
            const uint32_t d = emptiest(placement, devices, l % devices);

            placement->number[d]++;
            mp_place_put(facts, placement, d, l * facts->experts + placement->order[i]);
        }
    }
}

const struct mp_place_ops mp_place_uniform = {
    .name = "uniform",
    .summary = "every expert once, as many of each layer on every device",
    .calls = true,
    .place = uniform_place,
};
