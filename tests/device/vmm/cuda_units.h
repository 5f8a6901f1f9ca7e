#ifndef MP_TESTS_CUDA_UNITS_H
#define MP_TESTS_CUDA_UNITS_H

/* Units of two sizes in two files, and a space for them on the CUDA backend. */
#include "tests/device/vmm/cuda_world.h"

#define FILES 2
#define UNITS 24

static enum mp_addressing addressing;
static struct mp_unit units[UNITS];

/* Three pieces apart in two files, of two sizes, at odd places; some touch. */
static inline void make_units(uint64_t piece_bytes)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        const uint64_t bytes = piece_bytes + (u % 2) * 30000;

        units[u].piece_count = 3;
        for (uint32_t i = 0; i < 3; i++)
            units[u].pieces[i] = (struct mp_piece){
                .file = i == 2,
                .offset_bytes = 1000 * u + (i == 1 && u % 3 == 0 ? bytes : i * 777u),
                .bytes = bytes,
            };
    }
}

static inline void open_world_on(struct world *w, const char *chain)
{
    const uint64_t piece_bytes = addressing == MP_ADDRESSING_WINDOW ? 650000 : 50001;

    world_open(w, chain);
    for (uint32_t f = 0; f < FILES; f++)
        test_add_file(w->files, f, 1600000 + f * 4097);
    make_units(piece_bytes);
    w->config.units = units;
    w->config.unit_count = UNITS;
    w->config.addressing = addressing;
}

static inline void open_world(struct world *w)
{
    open_world_on(w, "cuda");
}

static inline void create_space(struct world *w, uint64_t budget_part, uint64_t parts)
{
    struct mp_space_plan plan;

    CHECK_EQ(mp_space_make_plan(&w->config, &plan), MP_OK);
    w->config.budget_bytes =
        plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) * budget_part / parts;
    CHECK_EQ(mp_space_create(&w->config, &w->space), MP_OK);
    mp_space_get_plan(w->space, &plan);
    CHECK(plan.slots >= 4);
    CHECK_EQ(plan.window_bytes > 0, addressing == MP_ADDRESSING_WINDOW);
}

#endif
