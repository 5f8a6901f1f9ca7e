#ifndef MP_TESTS_TWO_LAYERS_H
#define MP_TESTS_TWO_LAYERS_H

/* Two layers of equal units for the pager. */
#include "tests/unit/policy/pager/pager_world.h"

#define UB WORLD_UNIT_BYTES

static const uint32_t ids[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };

/* 2 layers, room for 2 prefetches. */
static const struct world_options two_layers = {
    .layers = 2, .experts = 8, .top_k = 2, .slots = 8
};

#endif
