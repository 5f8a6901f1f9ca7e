/*
 * Spaces on the CUDA backend when something goes wrong: files cut off, copies that fail later, a
 * budget that cannot change, a lost device. Variants are those of space_cuda_test.c.
 */
#include "tests/device/vmm/cuda_units.h"
#include "tests/device/vmm/cuda_world.h"
#include "tests/support/log_guard.h"

/* The file is cut off, and later whole again: the units that lay beyond fail with its name and the
 * byte, and can be loaded afterwards. */
static void a_file_that_is_cut_off_fails_its_units(void)
{
    char path[4200];
    struct world w;
    unsigned failed = 0;

    open_world(&w);
    w.config.host_budget_bytes = 0;
    CHECK_EQ(mp_space_create(&w.config, &w.space), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_BUDGET_SMALL");
    CHECK(strstr(mp_error_last()->text, "--host-budget") != NULL);
    snprintf(path, sizeof(path), "%s/weights-1.bin", test_tmpdir_path);
    w.config.host_budget_bytes = UINT64_MAX;
    CHECK_EQ(truncate(path, 4096), 0);
    mp_test_drop_log(); /* the stager warns of what it could not read ahead */
    create_space(&w, 1, 1);
    for (uint32_t u = 0; u < UNITS; u++) {
        CHECK_EQ(mp_space_load(w.space, u, MP_PRIORITY_DEMAND), MP_OK);
        if (mp_space_wait(w.space, u) == MP_OK)
            continue;
        failed++;
        CHECK_EQ(mp_space_state(w.space, u), MP_RES_FAILED);
        CHECK(strstr(mp_error_last()->text, "weights-1.bin") != NULL);
        CHECK(strstr(mp_space_unit_error(w.space, u)->text, "weights-1.bin") != NULL);
        CHECK(!mp_space_in_host(w.space, u));
        CHECK(mp_space_check(w.space));
    }
    CHECK_EQ(failed, UNITS);
    mp_log_set_sink(NULL, NULL);
    world_close(&w);
    check_nothing_lives();
}

/* The copy is taken and fails when it is done: the unit is FAILED, its slot is free, and the next
 * try works. */
static void a_copy_that_fails_later_is_reported(void)
{
    struct world w;

    open_world(&w);
    create_space(&w, 1, 1);
    mp_space_wait_filled(w.space);
    fake_api.fail("later:cuMemcpyHtoDAsync_v2", 0, 1, false);
    CHECK_EQ(mp_space_load(w.space, 0, MP_PRIORITY_DEMAND), MP_OK);
    CHECK_EQ(mp_space_wait(w.space, 0), MP_ERR_DEVICE);
    CHECK_EQ(mp_space_state(w.space, 0), MP_RES_FAILED);
    CHECK(mp_space_check(w.space));
    fake_api.reset();
    world_load(&w, 0);
    world_verify(&w, 0);
    world_close(&w);
    check_nothing_lives();
}

/* D6: everything that comes after a fault of the device fails at once with what it was; what the
 * host has stays readable, and the end does not wait for the device. */
static void a_lost_device_fails_what_comes_after(void)
{
    const uint64_t errors = mp_test_expected_errors;
    struct world w;

    open_world(&w);
    create_space(&w, 1, 1);
    mp_space_wait_filled(w.space);
    world_load(&w, 0);
    fake_api.lose(700);
    for (uint32_t u = 1; u < 6; u++) {
        CHECK_EQ(mp_space_load(w.space, u, MP_PRIORITY_DEMAND), MP_OK);
        CHECK_EQ(mp_space_wait(w.space, u), MP_ERR_DEVICE);
        CHECK(strstr(mp_error_last()->text, "700") != NULL);
        CHECK(mp_space_check(w.space));
    }
    fake_api.reset();
    for (uint32_t u = 6; u < UNITS; u++) {
        CHECK_EQ(mp_space_load(w.space, u, MP_PRIORITY_DEMAND), MP_OK);
        CHECK_EQ(mp_space_wait(w.space, u), MP_ERR_DEVICE);
        world_verify_host(&w, u);
    }
    mp_log_set_sink(world_keep_line, NULL);
    world_close(&w);
    CHECK_EQ(fake_api.calls(NULL), 0);
    CHECK_EQ(mp_test_expected_errors, errors); /* each unit's error has said it */
    fake_api.lose(0);
}

/* Units leave in order where the new budget asks for that. */
static enum mp_status set_budget(struct world *w, uint64_t budget_bytes)
{
    for (;;) {
        uint32_t class_index = 0, count = 0;
        const enum mp_status status =
            mp_space_set_budget(w->space, budget_bytes, &class_index, &count);

        if (status != MP_ERR_NO_SPACE || count == 0)
            return status;
        for (uint32_t u = 0; u < UNITS && count > 0; u++) {
            if (mp_space_unit_class(w->space, u) == class_index &&
                mp_space_state(w->space, u) == MP_RES_VALID) {
                CHECK_EQ(mp_space_evict(w->space, u), MP_OK);
                count--;
            }
        }
        CHECK_EQ(count, 0);
    }
}

/* Each call on the way of a smaller budget fails once: what is there stays right, and the budget
 * can be changed again, down and up. */
static void a_budget_that_fails_to_change_leaves_order(void)
{
    unsigned failures = 0;

    for (uint32_t part = 1; part < 8; part += 2) {
        bool failed = true;

        for (int64_t n = 0; failed; n++) {
            struct mp_space_plan plan;
            struct world w;
            uint64_t budget;

            open_world_on(&w, "fault:cuda");
            create_space(&w, 1, 1);
            mp_space_wait_filled(w.space);
            for (uint32_t u = 0; u < UNITS; u++)
                world_load(&w, u);
            mp_space_get_plan(w.space, &plan);
            budget = plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) * part / 8;
            mp_backend_fault_set(w.backend, n, true, MP_ERR_DEVICE);
            failed = set_budget(&w, budget) != MP_OK;
            mp_backend_fault_set(w.backend, -1, true, MP_OK);
            failures += failed;
            CHECK(mp_space_check(w.space));
            CHECK_EQ(set_budget(&w, budget), MP_OK);
            CHECK(mp_space_check(w.space) && mp_space_frame_bytes(w.space) <= budget);
            for (uint32_t u = 0; u < UNITS; u++) {
                if (mp_space_state(w.space, u) == MP_RES_VALID)
                    world_verify(&w, u);
            }
            CHECK_EQ(set_budget(&w, UINT64_MAX), MP_OK);
            CHECK(mp_space_check(w.space));
            /* More where the frame that a failed change made is still there. */
            CHECK(mp_space_frame_bytes(w.space) >= plan.full_bytes);
            world_close(&w);
            check_nothing_lives();
        }
    }
    CHECK(failures > 10);
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
    RUN(a_file_that_is_cut_off_fails_its_units);
    RUN(a_copy_that_fails_later_is_reported);
    if (addressing != MP_ADDRESSING_WINDOW) /* an unmap that fails there loses its memory */
        RUN(a_budget_that_fails_to_change_leaves_order);
    RUN(a_lost_device_fails_what_comes_after); /* last: what it held stays lost */
    return 0;
}
