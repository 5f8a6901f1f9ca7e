/* Units in a space: their bytes at every budget, modes, leases and limits. */
#include "tests/unit/vmm/space/odd_units.h"
#include "vmm/space/space.h"

#include <sys/stat.h>

#include "tests/support/test.h"
#include "tests/unit/vmm/space/space_files.h"
#include "vmm/space/tier.h"

/* Load, making room by evicting the first unit of the class that can go. */
static void load_with_room(struct mp_space *space, uint32_t unit)
{
    enum mp_status status = mp_space_load(space, unit, MP_PRIORITY_DEMAND);

    for (uint32_t i = 0; status == MP_ERR_NO_SPACE; i++) {
        CHECK(i < mp_space_unit_count(space));
        if (mp_space_unit_class(space, i) == mp_space_unit_class(space, unit) &&
            mp_space_state(space, i) == MP_RES_VALID) {
            CHECK_EQ(mp_space_evict(space, i), MP_OK);
            status = mp_space_load(space, unit, MP_PRIORITY_DEMAND);
        }
    }
    CHECK_EQ(status, MP_OK);
}

static void every_piece_is_the_files_at_every_budget_and_mode(void)
{
    struct mp_space_plan plan;
    struct mp_space_config config = config_of(odd_units, ODD_UNITS);

    for (config.io_mode = 0; config.io_mode < MP_IO_MODE_COUNT; config.io_mode++) {
        config.budget_bytes = UINT64_MAX;
        CHECK_EQ(mp_space_make_plan(&config, &plan), MP_OK);
        CHECK_EQ(plan.slots, ODD_UNITS);
        CHECK(plan.smallest_bytes <= plan.full_bytes && plan.unit_bytes <= plan.full_bytes);
        for (unsigned step = 0; step <= 6; step++) {
            struct mp_counters counters;
            struct mp_space_plan same;
            struct mp_space *space;

            mp_counters_reset(&counters);
            config.counters = &counters;
            config.budget_bytes =
                plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) * step / 6;
            space = create(&config);
            mp_space_get_plan(space, &same);
            CHECK_EQ(same.direct, plan.direct);
            CHECK(same.slots <= ODD_UNITS && (step < 6 || same.slots == ODD_UNITS));
            for (unsigned round = 0; round < 2; round++) {
                for (uint32_t i = 0; i < ODD_UNITS; i++) {
                    const uint32_t unit = round == 0 ? i : ODD_UNITS - 1 - i;

                    if (mp_space_state(space, unit) != MP_RES_VALID) {
                        load_with_room(space, unit);
                        CHECK_EQ(mp_space_wait(space, unit), MP_OK);
                    }
                    CHECK(mp_space_check(space));
                    test_verify_unit(space, odd_units, unit);
                    CHECK(counters.resident_peak_bytes <= config.budget_bytes);
                }
            }
            if (step == 6)
                CHECK_EQ(counters.loads, ODD_UNITS);
            else
                CHECK(counters.loads - counters.evictions <= same.slots);
            CHECK(counters.read_bytes >= counters.load_bytes || plan.direct);
            CHECK(counters.read_requests > 0);
            mp_space_destroy(space);
            CHECK_EQ(counters.resident_bytes, 0);
        }
    }
}

static uint32_t departures[ODD_UNITS];
static struct mp_space *leaving_from;

static bool may_leave = true;

static bool note_leaving(void *ctx, uint32_t unit)
{
    CHECK(ctx == departures);
    CHECK_EQ(mp_space_state(leaving_from, unit), MP_RES_VALID);
    departures[unit] += may_leave;
    return may_leave;
}

/* Every byte of every page that a piece touches, as far as its file goes. */
static void verify_pages(struct mp_space *space, uint32_t unit)
{
    const void *pieces[MP_UNIT_PIECES_MAX];

    CHECK_EQ(mp_space_lease(space, unit, pieces), MP_OK);
    for (uint32_t i = 0; i < odd_units[unit].piece_count; i++) {
        const struct mp_piece *piece = &odd_units[unit].pieces[i];
        const uint64_t page = MP_SPACE_PAGE_BYTES, head = piece->offset_bytes % page;
        const unsigned char *bytes = (const unsigned char *)pieces[i] - head;
        const uint64_t start = piece->offset_bytes - head;
        uint64_t end = (piece->offset_bytes + piece->bytes + page - 1) / page * page;

        CHECK_EQ((uintptr_t)bytes % page, 0);
        if (end > mp_files_bytes(files, piece->file))
            end = mp_files_bytes(files, piece->file);
        for (uint64_t at = start; at < end; at++)
            CHECK_EQ(bytes[at - start], test_byte(piece->file, at));
    }
    mp_space_release(space, unit);
}

/* Each piece is found at its place once it has come, whatever the order in which pieces are read.
 */
static void verify_piece_by_piece(struct mp_space *space, uint32_t unit)
{
    const void *pieces[MP_UNIT_PIECES_MAX];

    CHECK_EQ(mp_space_lease(space, unit, pieces), MP_OK);
    for (uint32_t k = 0; k < odd_units[unit].piece_count; k++)
        CHECK(mp_space_piece(space, unit, k) == pieces[k]);
    mp_space_release(space, unit);
}

static void whole_pages_are_the_files_and_leaving_is_reported_once(bool by_piece)
{
    struct mp_space_config config = config_of(odd_units, ODD_UNITS);
    uint32_t class_index, evict;

    config.whole_pages = true;
    config.by_piece = by_piece;
    config.leaving = note_leaving;
    config.leaving_ctx = departures;
    for (config.io_mode = 0; config.io_mode < MP_IO_MODE_COUNT; config.io_mode++) {
        struct mp_space *space = leaving_from = create(&config);
        struct mp_space_plan plan;

        mp_space_get_plan(space, &plan);
        CHECK_EQ(plan.direct, config.io_mode != MP_IO_BUFFERED);
        memset(departures, 0, sizeof(departures));
        for (uint32_t i = 0; i < ODD_UNITS; i++) {
            CHECK(mp_space_piece(space, i, 0) == NULL);
            CHECK_EQ(mp_space_load(space, i, MP_PRIORITY_DEMAND), MP_OK);
            CHECK_EQ(mp_space_wait(space, i), MP_OK);
            verify_piece_by_piece(space, i);
            verify_pages(space, i);
            test_verify_unit(space, odd_units, i);
            CHECK_EQ(departures[i], 0);
            may_leave = false;
            CHECK_EQ(mp_space_evict(space, i), MP_ERR_BUSY);
            CHECK_EQ(mp_space_state(space, i), MP_RES_VALID);
            may_leave = true;
            CHECK_EQ(mp_space_evict(space, i), MP_OK);
            CHECK_EQ(departures[i], 1);
            CHECK(mp_space_piece(space, i, 0) == NULL);
            CHECK_EQ(mp_space_evict(space, i), MP_ERR_INVALID);
            CHECK_EQ(departures[i], 1);
        }
        CHECK_EQ(mp_space_set_budget(space, UINT64_MAX, &class_index, &evict), MP_ERR_INVALID);
        mp_space_destroy(space);
    }
}

static void whole_pages_are_read_in_one_go(void)
{
    whole_pages_are_the_files_and_leaving_is_reported_once(false);
}

static void whole_pages_are_read_piece_by_piece(void)
{
    whole_pages_are_the_files_and_leaving_is_reported_once(true);
}

static void forced_modes_are_what_they_say_and_auto_minds_the_slack(void)
{
    static const struct mp_unit large[] = { { { { 0, 5, 1 * MIB } }, 1 },
                                            { { { 0, 1 * MIB + 5, 1 * MIB } }, 1 } };
    static const struct mp_unit small[] = { { { { 0, 4000, 5000 } }, 1 },
                                            { { { 0, 12000, 5000 } }, 1 } };
    struct mp_space_config config = config_of(large, 2);
    struct mp_space_plan plan;

    config.io_mode = MP_IO_DIRECT;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_OK);
    CHECK(plan.direct);
    CHECK_EQ(plan.slot_bytes_max, MIB + 4096);
    config.io_mode = MP_IO_BUFFERED;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_OK);
    CHECK(!plan.direct);
    CHECK_EQ(plan.slot_bytes_max, MIB);
    CHECK_EQ(plan.unit_bytes, 2 * MIB);
    CHECK_EQ(plan.smallest_bytes, 2 * MIB);
    CHECK_EQ(plan.full_bytes, 2 * MIB);
    config.io_mode = MP_IO_AUTO;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_OK);
    CHECK(plan.direct);
    config.units = small;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_OK);
    CHECK(!plan.direct);
    CHECK_EQ(plan.slot_bytes_max, 8192);
    config.io_mode = MP_IO_DIRECT;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_OK);
    CHECK(plan.direct);
    CHECK_EQ(plan.slot_bytes_max, 3 * 4096);
}

/* Files of sysfs are regular, have a size and refuse O_DIRECT. */
static void without_direct_reads_auto_falls_back_and_direct_names_the_file(void)
{
    static const char *const name = "/sys/kernel/mm/transparent_hugepage/enabled";
    const struct mp_unit units[] = { { { { 0, 0, 3 * MIB } }, 1 }, { { { 3, 0, 4096 } }, 1 } };
    struct mp_space_config config = config_of(units, 2);
    struct mp_space_plan plan;
    struct stat st;
    uint32_t index;

    if (stat(name, &st) != 0 || st.st_size != 4096 ||
        mp_files_add(files, AT_FDCWD, name, &index) != MP_OK) {
        fprintf(stderr, "    not checked: %s is not what it is on Linux\n", name);
        return;
    }
    CHECK_EQ(index, 3);
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_OK);
    CHECK(!plan.direct);
    config.io_mode = MP_IO_DIRECT;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_DIRECT");
    CHECK(strstr(mp_error_last()->text, name) != NULL);
    config.unit_count = 1; /* a file that no unit lies in does not matter */
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_OK);
    CHECK(plan.direct);
}

static void units_outside_their_files_are_a_bad_model(void)
{
    static const struct mp_piece bad[] = {
        { 0, FILE_0_BYTES, 1 },       { 0, FILE_0_BYTES - 10, 11 }, { 0, UINT64_MAX, 1 },
        { 0, UINT64_MAX - 5, 6 },     { 0, 1, UINT64_MAX },         { 0, 0, FILE_0_BYTES + 1 },
        { 0, UINT64_C(1) << 63, 16 },
    };
    struct mp_unit units[8] = { { { { 0 } }, 0 } };
    struct mp_space_config config = config_of(units, 8);
    struct mp_space_plan plan = { .slots = 77 };
    struct mp_space *space = NULL;

    for (size_t i = 0; i < MP_ARRAY_LEN(bad); i++) {
        for (size_t u = 0; u < 8; u++)
            units[u] = odd_units[1];
        units[6].pieces[2] = bad[i];
        CHECK_EQ(mp_space_make_plan(&config, &plan), MP_ERR_MODEL);
        CHECK_EQ(plan.slots, 77);
        CHECK_EQ(mp_space_create(&config, &space), MP_ERR_MODEL);
        CHECK(space == NULL);
        CHECK_STR(mp_error_last()->code, "E_UNIT_RANGE");
        CHECK(strstr(mp_error_last()->text, "unit 6 in '") != NULL);
        CHECK(strstr(mp_error_last()->text, "weights-0.bin") != NULL);
    }
}

static void impossible_configurations_are_refused(void)
{
    struct mp_unit unit = odd_units[0];
    struct mp_space_config config = config_of(&unit, 1);
    struct mp_space_plan plan;

    unit.piece_count = 0;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_ERR_INVALID);
    unit.piece_count = MP_UNIT_PIECES_MAX + 1;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_ERR_INVALID);
    unit.piece_count = 1;
    unit.pieces[0].bytes = 0;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_ERR_INVALID);
    unit.pieces[0] = (struct mp_piece){ 99, 0, 1 };
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_ERR_INVALID);
    unit = odd_units[0];
    config.unit_count = 0;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_ERR_INVALID);
    config.unit_count = 1;
    config.io_mode = MP_IO_MODE_COUNT;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_ERR_INVALID);
    config.io_mode = MP_IO_AUTO;
    backend->caps.file_target = false;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_ERR_UNSUPPORTED);
    backend->caps.file_target = true;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_OK);
}

static void a_budget_below_the_smallest_is_refused_with_both_numbers(void)
{
    struct mp_space_config config = config_of(odd_units, ODD_UNITS);
    struct mp_space_plan plan;
    struct mp_space *space = NULL;
    char number[32];

    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_OK);
    config.budget_bytes = plan.smallest_bytes - 1;
    CHECK_EQ(mp_space_create(&config, &space), MP_ERR_CONFIG);
    CHECK(space == NULL);
    CHECK_STR(mp_error_last()->code, "E_BUDGET_SMALL");
    snprintf(number, sizeof(number), "%llu", (unsigned long long)plan.smallest_bytes);
    CHECK(strstr(mp_error_last()->text, number) != NULL);
    config.budget_bytes = 0;
    CHECK_EQ(mp_space_create(&config, &space), MP_ERR_CONFIG);
}

static void more_sizes_than_classes_share_the_next_larger_slot(void)
{
    struct mp_unit units[60] = { { { { 0 } }, 0 } };
    struct mp_space_config config = config_of(units, 60);
    struct mp_space *space;

    for (uint32_t i = 0; i < 60; i++)
        units[i] = (struct mp_unit){ { { 0, i * 1001, 3000 + 4096 * (i % 30) } }, 1 };
    config.io_mode = MP_IO_BUFFERED;
    space = create(&config);
    CHECK_EQ(mp_space_class_count(space), MP_TIER_CLASSES_MAX);
    for (uint32_t i = 0; i < 60; i++) {
        CHECK(mp_space_unit_class(space, i) < MP_TIER_CLASSES_MAX);
        CHECK_EQ(mp_space_unit_bytes(space, i), 3000 + 4096 * (i % 30));
        CHECK_EQ(mp_space_load(space, i, MP_PRIORITY_PREFETCH), MP_OK);
    }
    for (uint32_t i = 0; i < 60; i++)
        CHECK_EQ(mp_space_wait(space, i), MP_OK);
    for (uint32_t i = 0; i < 60; i++)
        test_verify_unit(space, units, i);
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
    RUN(every_piece_is_the_files_at_every_budget_and_mode);
    RUN(whole_pages_are_read_in_one_go);
    RUN(whole_pages_are_read_piece_by_piece);
    RUN(forced_modes_are_what_they_say_and_auto_minds_the_slack);
    RUN(without_direct_reads_auto_falls_back_and_direct_names_the_file);
    RUN(units_outside_their_files_are_a_bad_model);
    RUN(impossible_configurations_are_refused);
    RUN(a_budget_below_the_smallest_is_refused_with_both_numbers);
    RUN(more_sizes_than_classes_share_the_next_larger_slot);
    mp_files_destroy(files);
    mp_backend_close(backend);
    return 0;
}
