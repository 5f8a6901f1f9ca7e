/*
 * Windows: addresses for life, page tables that change only under units without lease, and what
 * happens when the driver refuses. On the driver without a device, which sees everything that is
 * forbidden.
 */
#include <inttypes.h>

#include "tests/device/vmm/cuda_world.h"

#define UNITS 8
#define PIECE 200000 /* three of them: a little less than ten granules */

static struct mp_unit units[UNITS];

static void open_small(struct world *w)
{
    struct mp_space_plan plan;

    world_open(w, "cuda");
    test_add_file(w->files, 0, 3 * PIECE + 9 * UNITS);
    for (uint32_t u = 0; u < UNITS; u++) {
        units[u].piece_count = 3;
        for (uint32_t i = 0; i < 3; i++)
            units[u].pieces[i] =
                (struct mp_piece){ .offset_bytes = 9 * u + PIECE * i, .bytes = PIECE };
    }
    w->config.units = units;
    w->config.unit_count = UNITS;
    w->config.addressing = MP_ADDRESSING_WINDOW;
    CHECK_EQ(mp_space_make_plan(&w->config, &plan), MP_OK);
    w->config.budget_bytes = plan.full_bytes / UNITS * 3;
    CHECK_EQ(mp_space_create(&w->config, &w->space), MP_OK);
    mp_space_get_plan(w->space, &plan);
    CHECK_EQ(plan.slots, 3);
    CHECK_EQ(plan.window_bytes, plan.full_bytes);
    CHECK(plan.waste_bytes * 100 < plan.full_bytes * 15);
    mp_space_wait_filled(w->space);
}

static const void *address_of(struct world *w, uint32_t unit)
{
    const void *pieces[MP_UNIT_PIECES_MAX];

    CHECK_EQ(mp_space_lease(w->space, unit, pieces), MP_OK);
    CHECK(world_pieces_are_right(w, &units[unit], pieces));
    mp_space_release(w->space, unit);
    return pieces[0];
}

/* Load the unit into a slot of its own, or in the place of another. */
static void swap_in(struct world *w, uint32_t unit, uint32_t victim)
{
    if (victim < UNITS)
        CHECK_EQ(mp_space_evict(w->space, victim), MP_OK);
    world_load(w, unit);
    CHECK(mp_space_check(w->space));
}

static void addresses_are_for_life(void)
{
    const void *first[UNITS];
    struct world w;
    uint64_t stride;

    open_small(&w);
    for (uint32_t u = 0; u < UNITS; u++) {
        swap_in(&w, u, u >= 3 ? u - 3 : UNITS);
        first[u] = address_of(&w, u);
    }
    stride = (uint64_t)((const char *)first[1] - (const char *)first[0]);
    CHECK(stride > 3 * PIECE && stride < 4 * PIECE);
    for (uint32_t u = 0; u < UNITS; u++)
        CHECK((const char *)first[u] == (const char *)first[0] + u * stride);
    for (uint32_t i = 0; i < 3 * UNITS; i++) {
        const uint32_t unit = (i * 5) % UNITS, victim = (unit + 3) % UNITS;

        if (mp_space_state(w.space, unit) == MP_RES_VALID ||
            mp_space_state(w.space, victim) != MP_RES_VALID)
            continue;
        swap_in(&w, unit, victim);
        CHECK(address_of(&w, unit) == first[unit]);
    }
    CHECK_EQ(mp_space_lost_bytes(w.space), 0);
    world_close(&w);
    check_nothing_lives();
}

/* Work on a leased unit goes on while others come and go; nobody pulls its pages away. */
static void leased_units_are_left_alone(void)
{
    const void *pieces[MP_UNIT_PIECES_MAX];
    struct world w;
    unsigned operation;

    open_small(&w);
    for (uint32_t u = 0; u < 3; u++)
        swap_in(&w, u, UNITS);
    CHECK_EQ(mp_space_lease(w.space, 1, pieces), MP_OK);
    operation = fake_api.begin((uintptr_t)pieces[0], PIECE, false);
    CHECK_EQ(mp_space_evict(w.space, 1), MP_ERR_BUSY);
    for (uint32_t u = 3; u < UNITS; u++) {
        swap_in(&w, u, u == 3 ? 0 : u - 1);
        address_of(&w, u);
    }
    fake_api.end(operation);
    mp_space_release(w.space, 1);
    check_no_violation();

    /* The driver would have seen it: this time nobody waits for the work. */
    operation = fake_api.begin((uintptr_t)pieces[0], PIECE, false);
    swap_in(&w, 0, 1);
    check_violation("unmap");
    fake_api.end(operation);
    world_close(&w);
    check_nothing_lives();
}

/* A place that cannot be unmapped is never used again; its unit is found at the slot's alias. */
static void a_lost_place_is_not_used_again(void)
{
    const uint64_t errors = mp_test_expected_errors;
    const void *before, *after;
    struct fakecuda_live live;
    struct world w;

    open_small(&w);
    for (uint32_t u = 0; u < 3; u++)
        swap_in(&w, u, UNITS);
    before = address_of(&w, 0);
    fake_api.fail("cuMemUnmap", 0, 999, false);
    swap_in(&w, 3, 0); /* takes the slot of 0, whose place stays mapped */
    CHECK_EQ(mp_test_expected_errors, errors + 1);
    CHECK(mp_space_lost_bytes(w.space) > 0);
    address_of(&w, 3);
    swap_in(&w, 0, 1);
    after = address_of(&w, 0);
    CHECK(after != before);
    for (uint32_t i = 0; i < 5; i++) { /* and so it stays */
        swap_in(&w, 1, 0);
        swap_in(&w, 0, 1);
        CHECK(address_of(&w, 0) != before);
    }
    check_no_violation();
    fake_api.reset();
    world_close(&w);
    fake_api.live(&live); /* the window, and the frame that is mapped there */
    CHECK_EQ(live.mappings, 1);
    CHECK_EQ(live.reservations, 1);
    check_violation("of its memory alive");
    fake_api.clear();
}

/* What cannot be mapped this time is used at its alias, and mapped when it comes again. */
static void a_refused_map_costs_only_the_address(void)
{
    static const char *const calls[] = { "cuMemMap", "cuMemSetAccess" };
    struct world w;

    for (size_t i = 0; i < MP_ARRAY_LEN(calls); i++) {
        const void *before;

        open_small(&w);
        swap_in(&w, 0, UNITS);
        before = address_of(&w, 0);
        swap_in(&w, 1, 0);
        swap_in(&w, 2, UNITS);
        fake_api.fail(calls[i], 0, 2, false);
        swap_in(&w, 0, UNITS);
        CHECK(address_of(&w, 0) != before);
        CHECK_EQ(mp_space_lost_bytes(w.space), 0);
        swap_in(&w, 3, 0);
        swap_in(&w, 0, 1);
        CHECK(address_of(&w, 0) == before);
        fake_api.reset();
        world_close(&w);
        check_nothing_lives();
    }
}

/* A budget that shrinks takes mapped frames away; their units have left. */
static void frames_go_and_come(void)
{
    struct mp_space_plan plan;
    uint32_t class_index, count;
    struct world w;
    const void *before;

    open_small(&w);
    mp_space_get_plan(w.space, &plan);
    for (uint32_t u = 0; u < 3; u++)
        swap_in(&w, u, UNITS);
    before = address_of(&w, 2);
    CHECK_EQ(mp_space_set_budget(w.space, plan.smallest_bytes, &class_index, &count),
             MP_ERR_NO_SPACE);
    CHECK_EQ(count, 1);
    CHECK_EQ(mp_space_evict(w.space, 1), MP_OK);
    CHECK_EQ(mp_space_set_budget(w.space, plan.smallest_bytes, &class_index, &count), MP_OK);
    CHECK_EQ(mp_space_class_slots(w.space, 0), 2);
    CHECK_EQ(mp_space_frame_bytes(w.space), plan.smallest_bytes);
    CHECK(address_of(&w, 2) == before);
    CHECK_EQ(mp_space_set_budget(w.space, UINT64_MAX, &class_index, &count), MP_OK);
    CHECK_EQ(mp_space_class_slots(w.space, 0), UNITS);
    for (uint32_t u = 0; u < UNITS; u++) {
        if (mp_space_state(w.space, u) != MP_RES_VALID)
            swap_in(&w, u, UNITS);
        address_of(&w, u);
    }
    CHECK(address_of(&w, 2) == before);
    world_close(&w);
    check_nothing_lives();
}

int main(void)
{
    setenv("FAKECUDA_GRANULE", "65536", 1);
    mp_log_set_sink(world_keep_line, NULL);
    find_fake();
    RUN(addresses_are_for_life);
    RUN(leased_units_are_left_alone);
    RUN(a_refused_map_costs_only_the_address);
    RUN(frames_go_and_come);
    RUN(a_lost_place_is_not_used_again);
    return 0;
}
