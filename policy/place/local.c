/*
 * Every server on its own: it keeps what it uses most and reads the rest when needed, as
 * MoE-Infinity does in Prism's Table I. O(servers * experts * log(experts)).
 */
#include "policy/place/place_int.h"

const struct mp_place_ops mp_place_local = {
    .name = "local",
    .summary = "every server keeps its own most used experts and reads the others",
    .pages = true,
    .migrates = true,
    .place = mp_place_own,
};
