/*
 * Leases, generations, waiting and cancelling: what holds a unit and what gives its slot back.
 */
#include "tests/unit/vmm/space/odd_units.h"
#include "vmm/space/space.h"

#include "tests/support/test.h"
#include "tests/unit/vmm/space/space_files.h"

static void leases_hold_units_and_a_full_class_is_a_result(void)
{
    static const struct mp_unit units[] = { { { { 0, 0, 9000 } }, 1 },
                                            { { { 0, 9000, 9000 } }, 1 },
                                            { { { 0, 18000, 9000 } }, 1 } };
    struct mp_space_config config = config_of(units, 3);
    const void *pieces[MP_UNIT_PIECES_MAX];
    struct mp_counters counters;
    struct mp_space *space;

    mp_counters_reset(&counters);
    config.counters = &counters;
    config.io_mode = MP_IO_BUFFERED;
    config.budget_bytes = 2 * 12288;
    space = create(&config);
    CHECK_EQ(mp_space_class_slots(space, 0), 2);
    CHECK_EQ(mp_space_lease(space, 0, pieces), MP_ERR_INVALID);
    CHECK_EQ(mp_space_evict(space, 0), MP_ERR_INVALID);
    CHECK_EQ(mp_space_cancel(space, 0), MP_ERR_INVALID);
    CHECK_EQ(mp_space_wait(space, 0), MP_ERR_INVALID);
    CHECK_EQ(mp_space_load(space, 0, MP_PRIORITY_DEMAND), MP_OK);
    CHECK_EQ(mp_space_load(space, 0, MP_PRIORITY_DEMAND), MP_ERR_INVALID);
    CHECK_EQ(mp_space_load(space, 1, MP_PRIORITY_PREFETCH), MP_OK);
    CHECK_EQ(mp_space_evict(space, 1), MP_ERR_BUSY);
    mp_error_clear();
    CHECK_EQ(mp_space_load(space, 2, MP_PRIORITY_DEMAND), MP_ERR_NO_SPACE);
    CHECK_EQ(mp_error_last()->status, MP_OK);
    CHECK_EQ(mp_space_class_free(space, 0), 0);
    mp_space_promote(space, 1);
    CHECK_EQ(mp_space_wait(space, 0), MP_OK);
    CHECK_EQ(mp_space_wait(space, 0), MP_OK);
    CHECK_EQ(mp_space_wait(space, 1), MP_OK);
    CHECK_EQ(counters.loads, 1);
    CHECK_EQ(counters.load_bytes, 9000);
    CHECK_EQ(counters.resident_bytes, 18000);

    CHECK_EQ(mp_space_lease(space, 0, pieces), MP_OK);
    CHECK_EQ(mp_space_lease(space, 0, pieces), MP_OK);
    CHECK_EQ(mp_space_leases(space, 0), 2);
    CHECK_EQ(mp_space_evict(space, 0), MP_ERR_BUSY);
    mp_space_release(space, 0);
    CHECK_EQ(mp_space_evict(space, 0), MP_ERR_BUSY);
    CHECK_EQ(mp_space_evict(space, 1), MP_OK);
    CHECK_EQ(mp_space_load(space, 2, MP_PRIORITY_DEMAND), MP_OK);
    CHECK_EQ(mp_space_wait(space, 2), MP_OK);
    CHECK(test_pieces_are_right(&units[0], pieces));
    test_verify_unit(space, units, 2);
    mp_space_release(space, 0);
    CHECK_EQ(mp_space_leases(space, 0), 0);
    CHECK_EQ(mp_space_evict(space, 0), MP_OK);
    CHECK_EQ(counters.evictions, 2);
    CHECK_EQ(counters.evicted_bytes, 18000);
    CHECK_EQ(counters.resident_bytes, 9000);
    CHECK_EQ(counters.resident_peak_bytes, 18000);
    CHECK(mp_space_check(space));
    mp_space_destroy(space);
}

/* What a table of addresses has to follow, and nothing else, makes a new generation. */
static void a_new_generation_follows_each_change_of_placement(void)
{
    const struct mp_unit units[] = { { { { 0, 0, 9000 } }, 1 },
                                     { { { 0, 9000, 9000 } }, 1 },
                                     { { { 0, 18000, 9000 } }, 1 } };
    struct mp_space_config config = config_of(units, 3);
    const void *pieces[MP_UNIT_PIECES_MAX];
    struct mp_space *space = create(&config);
    uint64_t before = mp_space_generation(space);

    CHECK_EQ(mp_space_load(space, 0, MP_PRIORITY_DEMAND), MP_OK);
    CHECK(mp_space_generation(space) != before);
    before = mp_space_generation(space);
    CHECK_EQ(mp_space_wait(space, 0), MP_OK);
    CHECK(mp_space_generation(space) != before);

    before = mp_space_generation(space);
    CHECK_EQ(mp_space_lease(space, 0, pieces), MP_OK);
    mp_space_release(space, 0);
    CHECK_EQ(mp_space_wait(space, 0), MP_OK);
    CHECK_EQ(mp_space_poll(space, 0), MP_RES_VALID);
    CHECK_EQ(mp_space_generation(space), before);

    CHECK_EQ(mp_space_evict(space, 0), MP_OK);
    CHECK(mp_space_generation(space) != before);
    mp_space_destroy(space);
}

static void wait_any_returns_each_unit_once_it_is_there(void)
{
    struct mp_space_config config = config_of(odd_units, ODD_UNITS);
    struct mp_space *space = create(&config);
    uint32_t waiting[ODD_UNITS], left = ODD_UNITS;

    for (uint32_t i = 0; i < ODD_UNITS; i++) {
        waiting[i] = i;
        CHECK_EQ(mp_space_load(space, i, i % 2 ? MP_PRIORITY_DEMAND : MP_PRIORITY_PREFETCH), MP_OK);
    }
    while (left > 0) {
        const uint32_t at = mp_space_wait_any(space, waiting, left, NULL);

        CHECK(at < left);
        CHECK_EQ(mp_space_state(space, waiting[at]), MP_RES_VALID);
        test_verify_unit(space, odd_units, waiting[at]);
        waiting[at] = waiting[--left];
    }
    waiting[0] = 3;
    CHECK_EQ(mp_space_wait_any(space, waiting, 1, NULL), 0); /* not filling counts as finished */
    CHECK(mp_space_reader_idle(space));
    CHECK(mp_space_reader_engine(space)[0] != '\0');
    mp_space_destroy(space);
}

/* Whether a read has started is the reader's affair; both results must leave the unit usable. */
static void cancelled_loads_give_their_slot_back(void)
{
    struct mp_unit units[24] = { { { { 0 } }, 0 } };
    struct mp_space_config config = config_of(units, 24);
    struct mp_space *space;
    unsigned canceled = 0;

    for (uint32_t i = 0; i < 24; i++)
        units[i] = (struct mp_unit){ { { 0, i * 100003, 500000 } }, 1 };
    config.reader.threads = 1;
    config.reader.depth = 1;
    space = create(&config);
    for (unsigned round = 0; round < 200 && canceled < 50; round++) {
        for (uint32_t i = 0; i < 24; i++)
            CHECK_EQ(mp_space_load(space, i, MP_PRIORITY_PREFETCH), MP_OK);
        for (uint32_t i = 24; i-- > 0;) {
            const enum mp_status status = mp_space_cancel(space, i);

            CHECK(status == MP_OK || status == MP_ERR_BUSY);
            CHECK_EQ(mp_space_state(space, i), status == MP_OK ? MP_RES_ABSENT : MP_RES_FILLING);
            canceled += status == MP_OK;
            CHECK(mp_space_check(space));
        }
        for (uint32_t i = 0; i < 24; i++) {
            if (mp_space_state(space, i) == MP_RES_ABSENT)
                continue;
            CHECK_EQ(mp_space_wait(space, i), MP_OK);
            test_verify_unit(space, units, i);
            CHECK_EQ(mp_space_evict(space, i), MP_OK);
        }
        CHECK_EQ(mp_space_class_free(space, 0), mp_space_class_slots(space, 0));
    }
    CHECK(canceled > 0);
    for (uint32_t i = 0; i < 24; i++)
        CHECK_EQ(mp_space_load(space, i, MP_PRIORITY_PREFETCH), MP_OK);
    mp_space_destroy(space); /* with reads queued and in flight */
}

/* Every unit of a file that has changed fails, those of other files go on. */
static void a_changed_file_fails_its_units_and_no_others(void)
{
    static const struct mp_unit units[] = { { { { 0, 100, 20000 } }, 1 },
                                            { { { 2, 100, 20000 } }, 1 },
                                            { { { 0, 40000, 20000 }, { 2, 30000, 20000 } }, 2 } };
    struct mp_space_config config = config_of(units, 3);
    struct mp_counters counters;
    struct mp_space *space;
    char path[4200];

    mp_counters_reset(&counters);
    config.counters = &counters;
    space = create(&config);
    snprintf(path, sizeof(path), "%s/weights-2.bin", test_tmpdir());
    CHECK_EQ(truncate(path, 20000), 0);
    for (unsigned round = 0; round < 2; round++) {
        for (uint32_t i = 1; i < 3; i++) {
            const uint32_t class_index = mp_space_unit_class(space, i);
            const uint32_t free_before = mp_space_class_free(space, class_index);

            CHECK_EQ(mp_space_load(space, i, MP_PRIORITY_DEMAND), MP_OK);
            mp_error_clear();
            CHECK_EQ(mp_space_wait(space, i), MP_ERR_IO);
            CHECK(strstr(mp_error_last()->text, "weights-2.bin") != NULL);
            CHECK(strstr(mp_error_last()->text, "changed on disk") != NULL);
            CHECK_EQ(mp_space_state(space, i), MP_RES_FAILED);
            CHECK_STR(mp_space_unit_error(space, i)->text, mp_error_last()->text);
            CHECK_EQ(mp_space_class_free(space, class_index), free_before);
            CHECK_EQ(mp_space_evict(space, i), MP_ERR_INVALID);
            CHECK_EQ(mp_space_poll(space, i), MP_RES_FAILED);
            CHECK(mp_space_check(space));
        }
    }
    CHECK_EQ(mp_space_load(space, 0, MP_PRIORITY_DEMAND), MP_OK);
    CHECK_EQ(mp_space_wait(space, 0), MP_OK);
    test_verify_unit(space, units, 0);
    CHECK_EQ(counters.loads, 1);
    CHECK_EQ(counters.read_errors, 4);
    mp_space_destroy(space);
}

/* Whether units of failed reads may leave, and how many were asked. */
struct pages {
    bool free;
    uint32_t asked;
};

static bool ask_pages(void *ctx, uint32_t unit)
{
    struct pages *pages = ctx;

    CHECK_EQ(unit, 1);
    pages->asked++;
    return pages->free;
}

/* Pieces that had come may be in use: they are asked for, and if they are not given back nothing is
 * read into slots any more. After a_changed_file..., which has shortened file 2. */
static void a_failed_read_asks_for_its_pages(void)
{
    static const struct mp_unit units[] = { { { { 0, 100, 20000 } }, 1 },
                                            { { { 0, 40000, 20000 }, { 2, 100, 20000 } }, 2 } };
    struct mp_space_config config = config_of(units, 2);
    struct pages pages = { .free = true };
    struct mp_space *space;

    config.whole_pages = config.by_piece = true;
    config.leaving = ask_pages;
    config.leaving_ctx = &pages;
    space = create(&config);
    for (uint32_t round = 1; round <= 2; round++) {
        CHECK_EQ(mp_space_load(space, 1, MP_PRIORITY_DEMAND), MP_OK);
        pages.free = round == 1;
        CHECK_EQ(mp_space_wait(space, 1), MP_ERR_IO);
        CHECK_EQ(pages.asked, round);
        CHECK(mp_space_piece(space, 1, 0) == NULL);
        CHECK(mp_space_check(space));
    }
    mp_error_clear();
    CHECK_EQ(mp_space_load(space, 0, MP_PRIORITY_DEMAND), MP_ERR_IO);
    CHECK(strstr(mp_error_last()->text, "weights-2.bin") != NULL);
    CHECK_EQ(mp_space_state(space, 0), MP_RES_ABSENT);
    CHECK(mp_space_check(space));
    mp_space_destroy(space);
}

int main(void)
{
    CHECK_EQ(mp_backend_open("host", &test_backend_config, &backend), MP_OK);
    CHECK_EQ(mp_files_create(&files), MP_OK);
    test_add_file(files, 0, FILE_0_BYTES);
    test_add_file(files, 1, FILE_1_BYTES);
    test_add_file(files, 2, FILE_2_BYTES);
    RUN(leases_hold_units_and_a_full_class_is_a_result);
    RUN(a_new_generation_follows_each_change_of_placement);
    RUN(wait_any_returns_each_unit_once_it_is_there);
    RUN(cancelled_loads_give_their_slot_back);
    RUN(a_changed_file_fails_its_units_and_no_others);
    RUN(a_failed_read_asks_for_its_pages);
    mp_files_destroy(files);
    mp_backend_close(backend);
    return 0;
}
