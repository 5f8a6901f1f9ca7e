/*
 * As `local`, and a request moves to the server that can start it first: "MoE-Infinity (w/ LB)" in
 * Prism's Table I.
 */
#include "policy/place/place_int.h"

const struct mp_place_ops mp_place_redirect = {
    .name = "redirect",
    .summary = "as local, and requests go to the server that is free first",
    .pages = true,
    .redirects = true,
    .migrates = true,
    .place = mp_place_own,
};
