/*
 * Which frames go and come when a budget changes, where several would do. Frames are made to hold
 * few slots, so that a handful of small units shows each choice.
 */
#include "tests/support/test.h"
#include "tests/unit/vmm/space/space_files.h"
#include "vmm/space/space.h"

#define PAGE MP_SPACE_PAGE_BYTES
#define UNITS_MAX 16

static struct mp_backend *backend;
static struct mp_files *files;
static struct mp_unit units[UNITS_MAX];

/* `small` units of a page, then `large` ones of `pages` pages. */
static struct mp_space *create(uint32_t small, uint32_t large, uint32_t pages)
{
    const struct mp_space_config config = { .backend = backend,
                                            .files = files,
                                            .units = units,
                                            .unit_count = small + large,
                                            .budget_bytes = UINT64_MAX,
                                            .io_mode = MP_IO_BUFFERED,
                                            .reader = test_reader_config(),
                                            .clock = mp_clock_monotonic() };
    struct mp_space *space = NULL;

    for (uint32_t i = 0; i < small + large; i++)
        units[i] = (struct mp_unit){ { { 0, i * 5000, i < small ? PAGE : pages * PAGE } }, 1 };
    CHECK_EQ(mp_space_create(&config, &space), MP_OK);
    for (uint32_t i = 0; i < small + large; i++) {
        CHECK_EQ(mp_space_load(space, i, MP_PRIORITY_DEMAND), MP_OK);
        CHECK_EQ(mp_space_wait(space, i), MP_OK);
    }
    return space;
}

static const char *address_of(struct mp_space *space, uint32_t unit)
{
    const void *piece[MP_UNIT_PIECES_MAX];

    CHECK_EQ(mp_space_lease(space, unit, piece), MP_OK);
    mp_space_release(space, unit);
    return piece[0];
}

static enum mp_status set_budget(struct mp_space *space, uint64_t bytes, uint32_t *class_p,
                                 uint32_t *evict_p)
{
    const enum mp_status status = mp_space_set_budget(space, bytes, class_p, evict_p);

    CHECK(mp_space_check(space));
    return status;
}

static void frames(uint64_t granule, uint64_t most)
{
    backend->caps.granule_bytes = granule;
    backend->caps.frame_bytes_max = most;
}

/* In frames of four pages, of all units only unit 4 is there, and it is leased. */
static struct mp_space *create_leased(uint32_t small, uint32_t large, const void **piece)
{
    struct mp_space *space;

    frames(4 * PAGE, 4 * PAGE);
    space = create(small, large, 4);
    for (uint32_t i = 0; i < small + large; i++) {
        if (i != 4)
            CHECK_EQ(mp_space_evict(space, i), MP_OK);
    }
    CHECK_EQ(mp_space_lease(space, 4, piece), MP_OK);
    return space;
}

/* The leased unit's frame has one slot then, and so has one beside it. */
static struct mp_space *create_apart(const void **piece)
{
    struct mp_space *space = create_leased(5, 0, piece);
    uint32_t class_index, evict;

    CHECK_EQ(set_budget(space, 4 * PAGE, &class_index, &evict), MP_ERR_BUSY);
    CHECK_EQ(mp_space_class_slots(space, 0), 2);
    CHECK_EQ(mp_space_frame_bytes(space), 8 * PAGE);
    return space;
}

static void the_last_of_the_emptiest_frames_goes(void)
{
    static const uint32_t gone[] = { 1, 2, 4 };
    struct mp_space *space;
    const char *moved_to, *before[8];
    uint32_t class_index, evict;

    frames(PAGE, 2 * PAGE);
    space = create(8, 0, 0); /* frames of units 0 and 1, 2 and 3, 4 and 5, 6 and 7 */
    for (uint32_t i = 0; i < 8; i++)
        before[i] = address_of(space, i);
    moved_to = before[1];
    for (uint32_t i = 0; i < 3; i++)
        CHECK_EQ(mp_space_evict(space, gone[i]), MP_OK);
    CHECK_EQ(set_budget(space, 6 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_frame_bytes(space), 6 * PAGE);
    /* Three frames have one unit each: that of unit 5 goes, which moves to the lowest free slot. */
    CHECK(address_of(space, 5) == moved_to);
    CHECK(address_of(space, 0) == before[0]);
    CHECK(address_of(space, 3) == before[3]);
    CHECK(address_of(space, 6) == before[6] && address_of(space, 7) == before[7]);
    for (uint32_t i = 0; i < 8; i++) {
        if (mp_space_state(space, i) == MP_RES_VALID)
            test_verify_unit(space, units, i);
    }
    mp_space_destroy(space);
}

static void the_first_of_equal_classes_makes_way(void)
{
    struct mp_space *space;
    uint32_t class_index = 9, evict = 9;

    frames(PAGE, 2 * PAGE);
    space = create(4, 4, 2); /* 12 pages; 9 pay for three of each */
    CHECK_EQ(set_budget(space, 9 * PAGE, &class_index, &evict), MP_ERR_NO_SPACE);
    CHECK_EQ(class_index, 0);
    CHECK_EQ(evict, 1);
    mp_space_destroy(space);

    space = create(5, 4, 2); /* five for four are fewer parts too many than four for two */
    CHECK_EQ(set_budget(space, 8 * PAGE, &class_index, &evict), MP_ERR_NO_SPACE);
    CHECK_EQ(class_index, 1);
    CHECK_EQ(evict, 1);
    mp_space_destroy(space);
}

/* A lease keeps the small frame, so a second one is made that is not full either; then frames cost
 * too much although there are no more slots than the budget pays for. */
static void frames_that_are_not_full_go_below_the_target(void)
{
    const void *piece[MP_UNIT_PIECES_MAX];
    struct mp_space *space;
    uint32_t class_index, evict;

    space = create_leased(6, 0, piece); /* frames of four slots and of two */
    CHECK_EQ(set_budget(space, 4 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_frame_bytes(space), 4 * PAGE);
    CHECK_EQ(mp_space_class_slots(space, 0), 2);
    mp_space_release(space, 4);
    CHECK(address_of(space, 4) == piece[0]);
    mp_space_destroy(space);
}

/* A frame with as many slots as are to go, rather than an emptier one with more. */
static void a_frame_that_fits_goes_before_an_emptier_one(void)
{
    struct mp_space *space;
    uint32_t class_index, evict;

    frames(4 * PAGE, 4 * PAGE);
    space = create(6, 0, 0);
    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQ(mp_space_evict(space, i), MP_OK);
    CHECK_EQ(set_budget(space, 4 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 4);
    CHECK_EQ(mp_space_frame_bytes(space), 4 * PAGE);
    mp_space_destroy(space);
}

/* Below the target the class with most slots goes first, of equal ones the first; never below two
 * slots. */
static void classes_below_their_target_keep_two_slots(void)
{
    const void *piece[MP_UNIT_PIECES_MAX];
    struct mp_space *space;
    uint32_t class_index, evict;

    space = create_leased(6, 4, piece);
    CHECK_EQ(set_budget(space, 16 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 2);
    CHECK_EQ(mp_space_class_slots(space, 1), 3);
    mp_space_release(space, 4);
    mp_space_destroy(space);

    space = create_leased(6, 8, piece); /* one slot of the class that has five, not two of four */
    CHECK_EQ(set_budget(space, 24 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 4);
    CHECK_EQ(mp_space_class_slots(space, 1), 4);
    mp_space_release(space, 4);
    mp_space_destroy(space);

    space = create_apart(piece);
    mp_space_release(space, 4);
    mp_space_destroy(space);
}

/* What a lease kept apart is one frame again when the lease has ended, and a full one. */
static void frames_that_are_not_full_are_joined(void)
{
    const void *piece[MP_UNIT_PIECES_MAX];
    struct mp_space *space;
    uint32_t class_index, evict;

    space = create_apart(piece);
    CHECK_EQ(mp_space_load(space, 2, MP_PRIORITY_DEMAND), MP_OK);
    CHECK_EQ(mp_space_wait(space, 2), MP_OK);
    mp_space_release(space, 4);
    CHECK_EQ(set_budget(space, 4 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 4);
    CHECK_EQ(mp_space_frame_bytes(space), 4 * PAGE);
    test_verify_unit(space, units, 2);
    test_verify_unit(space, units, 4);
    CHECK_EQ(set_budget(space, 8 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 5);
    mp_space_destroy(space);
}

/* Frames of three slots and of one become one of four, rather than that a slot goes. */
static void frames_are_joined_before_a_class_goes_below_its_target(void)
{
    const void *piece[MP_UNIT_PIECES_MAX];
    struct mp_space *space;
    uint32_t class_index, evict;

    space = create_leased(5, 6, piece);
    CHECK_EQ(set_budget(space, 24 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 4);
    CHECK_EQ(mp_space_class_slots(space, 1), 4);
    mp_space_release(space, 4);
    CHECK_EQ(set_budget(space, 20 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 4);
    CHECK_EQ(mp_space_class_slots(space, 1), 4);
    CHECK_EQ(mp_space_frame_bytes(space), 20 * PAGE);
    test_verify_unit(space, units, 4);
    mp_space_destroy(space);
}

/* A frame that goes as a whole, because no number is left for a smaller one, may leave just the two
 * slots that a class needs. */
static void a_frame_without_a_smaller_one_goes_down_to_two_slots(void)
{
    const void *piece[MP_UNIT_PIECES_MAX];
    struct mp_space *space;
    uint32_t class_index, evict;

    frames(PAGE, 2 * PAGE);
    space = create(4, 0, 0); /* two frames of two, and a number left */
    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQ(mp_space_evict(space, i), MP_OK);
    CHECK_EQ(set_budget(space, 3 * PAGE, &class_index, &evict), MP_OK); /* two and one */
    CHECK_EQ(set_budget(space, 4 * PAGE, &class_index, &evict), MP_OK); /* two, one, one */
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ(mp_space_load(space, i, MP_PRIORITY_DEMAND), MP_OK);
        CHECK_EQ(mp_space_wait(space, i), MP_OK);
    }
    for (uint32_t i = 0; i < 2; i++) /* the lowest slots: those of the frame of two */
        CHECK_EQ(mp_space_evict(space, i), MP_OK);
    for (uint32_t i = 2; i < 4; i++)
        CHECK_EQ(mp_space_lease(space, i, piece), MP_OK);
    CHECK_EQ(set_budget(space, 3 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 2);
    for (uint32_t i = 2; i < 4; i++)
        mp_space_release(space, i);
    mp_space_destroy(space);
}

/* What is left of a budget is not for slots beyond the targets. */
static void classes_stop_at_their_target(void)
{
    struct mp_space *space;
    uint32_t class_index, evict;

    frames(PAGE, 4 * PAGE);
    space = create(4, 8, 4);
    for (uint32_t i = 0; i < 12; i++)
        CHECK_EQ(mp_space_evict(space, i), MP_OK);
    CHECK_EQ(set_budget(space, 13 * PAGE, &class_index, &evict), MP_OK); /* 2 + 1 and 2 */
    CHECK_EQ(mp_space_class_slots(space, 0), 3);
    CHECK_EQ(mp_space_class_slots(space, 1), 2);
    CHECK_EQ(mp_space_frame_bytes(space), 11 * PAGE);
    mp_space_destroy(space);
}

static void classes_grow_in_turn_to_the_last_byte(void)
{
    struct mp_space *space;
    uint32_t class_index, evict;

    frames(PAGE, 2 * PAGE);
    space = create(8, 8, 2);
    for (uint32_t i = 0; i < 16; i++)
        CHECK_EQ(mp_space_evict(space, i), MP_OK);
    CHECK_EQ(set_budget(space, 6 * PAGE, &class_index, &evict), MP_OK); /* the smallest */
    CHECK_EQ(mp_space_class_slots(space, 0), 2);
    CHECK_EQ(mp_space_class_slots(space, 1), 2);
    CHECK_EQ(mp_space_frame_bytes(space), 6 * PAGE);
    CHECK_EQ(set_budget(space, 10 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 4);
    CHECK_EQ(mp_space_class_slots(space, 1), 3);
    CHECK_EQ(mp_space_frame_bytes(space), 10 * PAGE);
    CHECK_EQ(set_budget(space, 6 * PAGE - 1, &class_index, &evict), MP_ERR_CONFIG);
    mp_space_destroy(space);
}

/* A full frame has eight slots; one has three, then five, seven and eight. What is in it goes
 * along, unless it is leased. */
static void a_frame_that_is_not_full_becomes_larger(void)
{
    const void *piece[MP_UNIT_PIECES_MAX];
    struct mp_space *space;
    uint32_t class_index, evict;

    frames(PAGE, 8 * PAGE);
    space = create(8, 0, 0);
    for (uint32_t i = 3; i < 8; i++)
        CHECK_EQ(mp_space_evict(space, i), MP_OK);
    CHECK_EQ(set_budget(space, 3 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 3);
    CHECK_EQ(set_budget(space, 6 * PAGE - 1, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 5);
    CHECK_EQ(mp_space_frame_bytes(space), 5 * PAGE);
    for (uint32_t i = 0; i < 3; i++)
        test_verify_unit(space, units, i);
    CHECK_EQ(mp_space_lease(space, 1, piece), MP_OK);
    CHECK_EQ(set_budget(space, 7 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 5);
    mp_space_release(space, 1);
    CHECK_EQ(set_budget(space, 7 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 7);
    CHECK_EQ(set_budget(space, UINT64_MAX, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 8);
    CHECK_EQ(mp_space_frame_bytes(space), 8 * PAGE);
    mp_space_destroy(space);
}

/* Where all frames are full, what is left pays for a small one. */
static void a_small_frame_is_added(void)
{
    struct mp_space *space;
    uint32_t class_index, evict;

    frames(PAGE, 4 * PAGE);
    space = create(12, 0, 0);
    for (uint32_t i = 4; i < 12; i++)
        CHECK_EQ(mp_space_evict(space, i), MP_OK);
    CHECK_EQ(set_budget(space, 4 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(set_budget(space, 7 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 7);
    CHECK_EQ(set_budget(space, 9 * PAGE, &class_index, &evict), MP_OK);
    CHECK_EQ(mp_space_class_slots(space, 0), 9);
    CHECK_EQ(mp_space_frame_bytes(space), 9 * PAGE);
    mp_space_destroy(space);
}

int main(void)
{
    CHECK_EQ(mp_backend_open("host", &test_backend_config, &backend), MP_OK);
    CHECK_EQ(mp_files_create(&files), MP_OK);
    test_add_file(files, 0, UNITS_MAX * 5000 + 8 * PAGE);
    RUN(the_last_of_the_emptiest_frames_goes);
    RUN(the_first_of_equal_classes_makes_way);
    RUN(frames_that_are_not_full_go_below_the_target);
    RUN(a_frame_that_fits_goes_before_an_emptier_one);
    RUN(classes_below_their_target_keep_two_slots);
    RUN(frames_that_are_not_full_are_joined);
    RUN(frames_are_joined_before_a_class_goes_below_its_target);
    RUN(a_frame_without_a_smaller_one_goes_down_to_two_slots);
    RUN(classes_grow_in_turn_to_the_last_byte);
    RUN(classes_stop_at_their_target);
    RUN(a_frame_that_is_not_full_becomes_larger);
    RUN(a_small_frame_is_added);
    mp_files_destroy(files);
    mp_backend_close(backend);
    return 0;
}
