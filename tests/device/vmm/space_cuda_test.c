/*
 * Spaces on the CUDA backend, on the driver without a device. Variants are ways of addressing and
 * machines:
 *
 *     table     slots that share frames
 *     window    every unit at an address of its own
 *     pinned    no host handles: host frames are registered memory
 *     unpinned  nor can that be registered: copies go through a buffer
 */
#include "tests/device/vmm/cuda_units.h"
#include "tests/device/vmm/cuda_world.h"

static void units_come_with_all_their_bytes(void)
{
    struct world w;

    for (int mode = 0; mode < MP_IO_MODE_COUNT; mode++) {
        open_world(&w);
        w.config.io_mode = (enum mp_io_mode)mode;
        create_space(&w, 1, 1);
        for (uint32_t u = 0; u < UNITS; u++) {
            CHECK_EQ(mp_space_load(w.space, u, u % 2 ? MP_PRIORITY_DEMAND : MP_PRIORITY_PREFETCH),
                     MP_OK);
            CHECK(mp_space_check(w.space));
        }
        for (uint32_t u = 0; u < UNITS; u++) {
            CHECK_EQ(mp_space_wait(w.space, u), MP_OK);
            world_verify(&w, u);
        }
        CHECK(mp_space_reader_idle(w.space));
        mp_space_wait_filled(w.space);
        for (uint32_t u = 0; u < UNITS; u++) {
            CHECK(mp_space_in_host(w.space, u));
            world_verify_host(&w, u);
        }
        CHECK(mp_space_check(w.space));
        world_close(&w);
        check_nothing_lives();
    }
}

/* A unit that is evicted and loaded again, among others, through fewer slots than units. */
static void units_come_and_go(void)
{
    const void *first[UNITS][MP_UNIT_PIECES_MAX], *again[MP_UNIT_PIECES_MAX];
    struct world w;
    uint32_t moved = 0;

    open_world(&w);
    create_space(&w, 1, 4);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < UNITS; i++) {
            const uint32_t u = (i * 7 + round * 5) % UNITS;

            if (mp_space_state(w.space, u) == MP_RES_VALID)
                continue;
            for (uint32_t v = 0; mp_space_class_free(w.space, mp_space_unit_class(w.space, u)) == 0;
                 v++) {
                if (mp_space_unit_class(w.space, v) == mp_space_unit_class(w.space, u) &&
                    mp_space_state(w.space, v) == MP_RES_VALID)
                    CHECK_EQ(mp_space_evict(w.space, v), MP_OK);
            }
            world_load(&w, u);
            world_verify(&w, u);
            CHECK(mp_space_check(w.space));
            CHECK_EQ(mp_space_lease(w.space, u, again), MP_OK);
            mp_space_release(w.space, u);
            moved += round > 0 && memcmp(first[u], again, 3 * sizeof(void *)) != 0;
            memcpy(first[u], again, 3 * sizeof(void *));
        }
    }
    if (addressing == MP_ADDRESSING_WINDOW)
        CHECK_EQ(moved, 0); /* an address for life */
    else
        CHECK(moved > 0);
    CHECK_EQ(w.counters.load_bytes / mp_space_unit_bytes(w.space, 0) > UNITS, true);
    world_close(&w);
    check_nothing_lives();
}

/* A host tier for some of the units: which ones stay is fixed, the others pass through. */
static void a_small_host_tier_holds_some(void)
{
    struct mp_space_plan plan;
    struct world w;
    uint32_t held = 0;
    uint64_t reads;

    open_world(&w);
    CHECK_EQ(mp_space_make_plan(&w.config, &plan), MP_OK);
    w.config.host_budget_bytes = plan.host_bytes / 2;
    create_space(&w, 1, 2);
    mp_space_get_plan(w.space, &plan);
    CHECK(plan.host_bytes <= w.config.host_budget_bytes);
    CHECK(plan.host_slots > 0 && plan.host_slots < UNITS);
    mp_space_wait_filled(w.space);
    for (uint32_t u = 0; u < UNITS; u++)
        held += mp_space_in_host(w.space, u);
    CHECK_EQ(held, plan.host_slots);
    for (uint32_t u = 0; u < UNITS; u++) {
        const bool here = mp_space_in_host(w.space, u);
        const void *pieces[MP_UNIT_PIECES_MAX];

        reads = w.counters.read_bytes;
        world_load(&w, u);
        world_verify(&w, u);
        if (here)
            world_verify_host(&w, u);
        else
            CHECK_EQ(mp_space_lease_host(w.space, u, pieces), MP_ERR_NO_SPACE);
        CHECK(here || w.counters.read_bytes > reads); /* from its file */
        CHECK_EQ(mp_space_in_host(w.space, u), here);
        CHECK_EQ(mp_space_evict(w.space, u), MP_OK);
    }
    /* More at once than slots to pass through: they take turns. */
    for (uint32_t u = 0; u < UNITS; u++) {
        if (mp_space_class_free(w.space, mp_space_unit_class(w.space, u)) > 0)
            CHECK_EQ(mp_space_load(w.space, u, MP_PRIORITY_DEMAND), MP_OK);
    }
    for (uint32_t u = 0; u < UNITS; u++) {
        if (mp_space_state(w.space, u) == MP_RES_FILLING)
            CHECK_EQ(mp_space_wait(w.space, u), MP_OK);
        CHECK(mp_space_check(w.space));
    }
    world_close(&w);
    check_nothing_lives();
}

/* Each unit in one tier only; leaving the device brings it back without a read. */
static void exclusive_units_come_back(void)
{
    uint32_t here[8], count = 0;
    struct world w;
    uint64_t reads;

    open_world(&w);
    w.config.host_residency = MP_HOST_EXCLUSIVE;
    create_space(&w, 1, 2);
    mp_space_wait_filled(w.space);
    for (uint32_t u = 0; u < UNITS && count < 8; u++) {
        if (mp_space_in_host(w.space, u))
            here[count++] = u;
    }
    CHECK_EQ(count, 8);
    for (uint32_t i = 0; i < 4; i++) {
        world_load(&w, here[i]);
        world_verify(&w, here[i]);
        CHECK(!mp_space_in_host(w.space, here[i]));
    }
    reads = w.counters.read_bytes;
    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQ(mp_space_evict(w.space, here[i]), MP_OK);
    for (uint32_t i = 4; i < 8; i++) {
        /* The slots of those are taken at once, behind the copies down. */
        CHECK_EQ(mp_space_load(w.space, here[i], MP_PRIORITY_DEMAND), MP_OK);
        CHECK(mp_space_check(w.space));
    }
    for (uint32_t i = 4; i < 8; i++) {
        CHECK_EQ(mp_space_wait(w.space, here[i]), MP_OK);
        world_verify(&w, here[i]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        CHECK(mp_space_in_host(w.space, here[i]));
        world_verify_host(&w, here[i]);
        CHECK_EQ(mp_space_poll(w.space, here[i]), MP_RES_ABSENT);
        CHECK_EQ(mp_space_evict(w.space, here[4 + i]), MP_OK);
        world_load(&w, here[i]);
        world_verify(&w, here[i]);
    }
    /* One that is being copied down can be loaded, behind that copy. */
    CHECK_EQ(mp_space_evict(w.space, here[0]), MP_OK);
    CHECK_EQ(mp_space_state(w.space, here[0]), MP_RES_DRAINING);
    world_load(&w, here[0]);
    world_verify(&w, here[0]);
    CHECK_EQ(w.counters.read_bytes, reads);
    CHECK(mp_space_check(w.space));
    world_close(&w);
    check_nothing_lives();
}

/* A unit that comes back takes no slot that a load is to find free: it is dropped instead. */
static void loads_find_their_host_slots_free(void)
{
    struct mp_space_plan plan;
    struct world w;
    uint32_t dropped = 0;

    open_world(&w);
    w.config.host_residency = MP_HOST_EXCLUSIVE;
    CHECK_EQ(mp_space_make_plan(&w.config, &plan), MP_OK);
    w.config.host_budget_bytes = plan.host_bytes / 2;
    create_space(&w, 1, 2);
    mp_space_wait_filled(w.space);
    for (uint32_t u = 0; u < UNITS; u++) {
        if (mp_space_in_host(w.space, u))
            continue;
        world_load(&w, u);
        CHECK_EQ(mp_space_evict(w.space, u), MP_OK);
        CHECK_EQ(mp_space_state(w.space, u), MP_RES_ABSENT);
        CHECK(!mp_space_in_host(w.space, u));
        dropped++;
    }
    CHECK(dropped > 0);
    world_close(&w);
    check_nothing_lives();
}

/* A lease of the host's copy keeps it there, whatever the device does. */
static void a_leased_copy_stays(void)
{
    const void *pieces[MP_UNIT_PIECES_MAX];
    struct world w;

    open_world(&w);
    w.config.host_residency = MP_HOST_EXCLUSIVE;
    create_space(&w, 1, 2);
    mp_space_wait_filled(w.space);
    CHECK_EQ(mp_space_lease_host(w.space, 2, pieces), MP_OK);
    world_load(&w, 2);
    CHECK(test_pieces_are_right(&units[2], pieces));
    CHECK_EQ(mp_space_evict(w.space, 2), MP_OK); /* it is there still: nothing to copy */
    CHECK_EQ(mp_space_state(w.space, 2), MP_RES_ABSENT);
    CHECK(test_pieces_are_right(&units[2], pieces));
    mp_space_release_host(w.space, 2);
    CHECK(mp_space_in_host(w.space, 2));
    CHECK(mp_space_check(w.space));
    world_close(&w);
    check_nothing_lives();
}

/* Until a copy has started it can be taken back, also where the unit is still in its file. */
static void loads_can_be_taken_back(void)
{
    struct world w;
    unsigned canceled = 0;

    open_world(&w);
    create_space(&w, 1, 1);
    fake_api.stall(true);
    for (uint32_t u = 0; u < UNITS; u++)
        CHECK_EQ(mp_space_load(w.space, u, u < 4 ? MP_PRIORITY_DEMAND : MP_PRIORITY_PREFETCH),
                 MP_OK);
    mp_space_promote(w.space, 9);
    for (uint32_t u = UNITS; u-- > 8;) {
        const enum mp_status status = mp_space_cancel(w.space, u);

        CHECK(status == MP_OK || status == MP_ERR_BUSY);
        canceled += status == MP_OK;
        CHECK(mp_space_check(w.space));
    }
    CHECK(canceled > 8);
    fake_api.stall(false);
    for (uint32_t u = 0; u < UNITS; u++) {
        if (mp_space_state(w.space, u) == MP_RES_ABSENT)
            CHECK_EQ(mp_space_load(w.space, u, MP_PRIORITY_DEMAND), MP_OK);
        CHECK_EQ(mp_space_wait(w.space, u), MP_OK);
        world_verify(&w, u);
    }
    world_close(&w);
    check_nothing_lives();
}

/* Chunks of 4 MiB, of which three are queued, or two where nobody waits for the unit. An event is
 * behind each, and one before the first. */
static void a_long_copy_is_queued_in_a_few_chunks(void)
{
    static const struct mp_unit large = { { { 0, 0, 13 * MIB } }, 1 };

    for (int priority = 0; priority < MP_PRIORITY_COUNT; priority++) {
        const uint64_t depth = priority == MP_PRIORITY_DEMAND ? 3 : 2;
        struct world w;
        uint64_t before;

        world_open(&w, "cuda");
        test_add_file(w.files, 0, 13 * MIB);
        w.config.units = &large;
        w.config.unit_count = 1;
        w.config.addressing = addressing;
        CHECK_EQ(mp_space_create(&w.config, &w.space), MP_OK);
        mp_space_wait_filled(w.space);
        before = fake_api.calls("cuEventRecord");
        fake_api.stall(true);
        CHECK_EQ(mp_space_load(w.space, 0, (enum mp_priority)priority), MP_OK);
        for (int i = 0; i < 5000 && fake_api.calls("cuEventRecord") - before < 1 + depth; i++)
            usleep(1000);
        usleep(50000); /* for one more, which must not come */
        CHECK_EQ(fake_api.calls("cuEventRecord") - before, 1 + depth);
        fake_api.stall(false);
        CHECK_EQ(mp_space_wait(w.space, 0), MP_OK);
        CHECK_EQ(fake_api.calls("cuEventRecord") - before, 1 + 4);
        world_close(&w);
        check_nothing_lives();
    }
}

/* Through wrappers, with a failure of each call that they can fail. */
static void wrappers_pass_everything_on(void)
{
    static const char *const chains[] = { "trace:cuda", "fault:trace:cuda" };
    struct world w;

    for (size_t i = 0; i < MP_ARRAY_LEN(chains); i++) {
        open_world_on(&w, chains[i]);
        create_space(&w, 1, 1);
        mp_space_wait_filled(w.space);
        for (uint32_t u = 0; u < UNITS; u++) {
            world_load(&w, u);
            world_verify(&w, u);
        }
        if (i == 1) {
            for (int64_t n = 0; n < 5; n++) { /* the last one only tells the time */
                CHECK_EQ(mp_space_evict(w.space, 3), MP_OK);
                mp_backend_fault_set(w.backend, n, true, MP_ERR_DEVICE);
                CHECK_EQ(mp_space_load(w.space, 3, MP_PRIORITY_DEMAND), MP_OK);
                if (mp_space_wait(w.space, 3) != MP_OK) {
                    CHECK_STR(mp_error_last()->code, "E_INJECTED");
                    mp_backend_fault_set(w.backend, -1, true, MP_OK);
                    world_load(&w, 3);
                }
                mp_backend_fault_set(w.backend, -1, true, MP_OK);
                world_verify(&w, 3);
                CHECK(mp_space_check(w.space));
            }
        }
        world_close(&w);
    }
}

int main(int argc, char **argv)
{
    const char *variant = argc > 1 ? argv[1] : "table";

    setenv("FAKECUDA_MEMORY", "134217728", 1);
    if (strstr(variant, "pinned") != NULL)
        setenv("FAKECUDA_HOST_NUMA", "0", 1);
    if (strcmp(variant, "unpinned") == 0)
        setenv("FAKECUDA_REGISTER", "0", 1);
    if (strcmp(variant, "window") != 0)
        setenv("FAKECUDA_GRANULE", "65536", 1);
    else
        addressing = MP_ADDRESSING_WINDOW;
    find_fake();
    RUN(units_come_with_all_their_bytes);
    RUN(units_come_and_go);
    RUN(a_small_host_tier_holds_some);
    RUN(exclusive_units_come_back);
    RUN(loads_find_their_host_slots_free);
    RUN(a_leased_copy_stays);
    RUN(loads_can_be_taken_back);
    if (strcmp(variant, "unpinned") != 0) /* whose buffer has events of its own */
        RUN(a_long_copy_is_queued_in_a_few_chunks);
    RUN(wrappers_pass_everything_on);
    return 0;
}
