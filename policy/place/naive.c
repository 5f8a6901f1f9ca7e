/*
 * "Naive Collaboration" of Prism's Table I: every expert once, on a random device; larger ones get
 * more. O(experts * devices).
 */
#include "policy/place/place_int.h"

static void naive_place(const struct mp_place_facts *facts, struct mp_placement *placement)
{
    uint64_t random = mp_policy_mix(facts->seed);

    mp_place_scatter(facts, placement, &random);
}

const struct mp_place_ops mp_place_naive = {
    .name = "naive",
    .summary = "every expert once, on a random device",
    .calls = true,
    .migrates = true,
    .place = naive_place,
};
