/*
 * "Redundance" of Prism, IV-A: experts are distributed at random up to each device's capacity: all
 * of them once, then any that a server lacks into its free slots. O(servers * experts).
 */
#include "policy/place/place_int.h"

static void redundance_place(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    const uint32_t ids = mp_place_ids(facts);
    uint64_t random = mp_policy_mix(facts->seed);

    mp_place_scatter(facts, placement, &random);
    for (uint32_t n = 0; n < facts->servers; n++) {
        uint32_t next = 0;

        mp_place_shuffle(placement->order, ids, &random);
        for (uint32_t d = facts->first_device[n]; d < facts->first_device[n + 1]; d++) {
            for (; placement->free[d] > 0 && next < ids; next++) {
                if (!mp_place_keeps(facts, placement, n, placement->order[next]))
                    mp_place_put(facts, placement, d, placement->order[next]);
            }
        }
    }
}

const struct mp_place_ops mp_place_redundance = {
    .name = "redundance",
    .summary = "random experts up to each device's capacity, every one at least once",
    .calls = true,
    .place = redundance_place,
};
