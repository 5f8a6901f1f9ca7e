/* Extents and places in the slot, number by number, for both kinds of reads; the bounds at which a
 * layout is decided one way or the other. */
#include "vmm/space/space_layout.h"

#include "tests/support/test.h"
#include "tests/unit/vmm/space/space_files.h"

#define FILE_BYTES 100001

static struct mp_backend *backend;
static struct mp_files *files;
static struct mp_space_layout layout;

static const struct mp_unit_layout *lay_out(const struct mp_unit *unit, enum mp_io_mode mode)
{
    const struct mp_space_config config = { .backend = backend,
                                            .files = files,
                                            .units = unit,
                                            .unit_count = 1,
                                            .budget_bytes = UINT64_MAX,
                                            .io_mode = mode };

    mp_space_layout_fini(&layout);
    CHECK_EQ(mp_space_layout_init(&config, &layout), MP_OK);
    CHECK_EQ(layout.plan.direct, mode == MP_IO_DIRECT);
    return &layout.units[0];
}

static void check_extent(const struct mp_unit_layout *unit, uint32_t index,
                         struct mp_unit_extent want)
{
    const struct mp_unit_extent *got = &unit->extents[index];

    CHECK(index < unit->extent_count);
    CHECK_EQ(got->file, want.file);
    CHECK_EQ(got->offset_bytes, want.offset_bytes);
    CHECK_EQ(got->bytes, want.bytes);
    CHECK_EQ(got->need_bytes, want.need_bytes);
    CHECK_EQ(got->slot_bytes, want.slot_bytes);
}

static void direct_extents_are_aligned_supersets_that_share_blocks(void)
{
    /* Two that touch after alignment, one in another file, one apart. */
    static const struct mp_unit apart = {
        { { 0, 50000, 100 }, { 0, 4095, 2 }, { 1, 5, 4096 }, { 0, 8192, 1 } }, 4
    };
    static const struct mp_unit inside = { { { 0, 9000, 10 }, { 0, 4097, 20000 } }, 2 };
    static const struct mp_unit at_end = { { { 0, FILE_BYTES - 3000, 3000 } }, 1 };
    const struct mp_unit_layout *unit = lay_out(&apart, MP_IO_DIRECT);

    CHECK_EQ(unit->extent_count, 3);
    check_extent(unit, 0, (struct mp_unit_extent){ 0, 0, 12288, 8193, 0 });
    check_extent(unit, 1, (struct mp_unit_extent){ 0, 49152, 4096, 948, 12288 });
    check_extent(unit, 2, (struct mp_unit_extent){ 1, 0, 8192, 4101, 16384 });
    CHECK_EQ(unit->piece_offset_bytes[0], 12288 + 848);
    CHECK_EQ(unit->piece_offset_bytes[1], 4095);
    CHECK_EQ(unit->piece_offset_bytes[2], 16384 + 5);
    CHECK_EQ(unit->piece_offset_bytes[3], 8192);
    CHECK_EQ(unit->slot_bytes, 24576);
    CHECK_EQ(unit->bytes, 4199);

    unit = lay_out(&inside, MP_IO_DIRECT);
    CHECK_EQ(unit->extent_count, 1);
    check_extent(unit, 0, (struct mp_unit_extent){ 0, 4096, 20480, 20001, 0 });
    CHECK_EQ(unit->piece_offset_bytes[0], 9000 - 4096);
    CHECK_EQ(unit->piece_offset_bytes[1], 1);

    unit = lay_out(&at_end, MP_IO_DIRECT); /* reaches past the end, where nothing is needed */
    CHECK_EQ(unit->extent_count, 1);
    check_extent(unit, 0, (struct mp_unit_extent){ 0, 94208, 8192, FILE_BYTES - 94208, 0 });
}

static void buffered_pieces_stand_one_after_the_other(void)
{
    static const struct mp_unit apart = { { { 0, 50000, 100 }, { 0, 4095, 2 }, { 1, 5, 4096 } },
                                          3 };
    static const struct mp_unit joined = { { { 0, 1064, 128 }, { 0, 1000, 64 }, { 0, 1192, 63 } },
                                           3 };
    static const struct mp_unit doubled = { { { 0, 1000, 64 }, { 0, 1000, 64 } }, 2 };
    const struct mp_unit_layout *unit = lay_out(&apart, MP_IO_BUFFERED);

    CHECK_EQ(unit->extent_count, 3);
    check_extent(unit, 0, (struct mp_unit_extent){ 0, 4095, 2, 2, 0 });
    check_extent(unit, 1, (struct mp_unit_extent){ 0, 50000, 100, 100, 64 });
    check_extent(unit, 2, (struct mp_unit_extent){ 1, 5, 4096, 4096, 192 });
    CHECK_EQ(unit->piece_offset_bytes[0], 64);
    CHECK_EQ(unit->piece_offset_bytes[1], 0);
    CHECK_EQ(unit->piece_offset_bytes[2], 192);
    CHECK_EQ(unit->slot_bytes, 8192);

    unit = lay_out(&joined, MP_IO_BUFFERED); /* one read where file and slot have no gap */
    CHECK_EQ(unit->extent_count, 1);
    check_extent(unit, 0, (struct mp_unit_extent){ 0, 1000, 255, 255, 0 });
    CHECK_EQ(unit->piece_offset_bytes[0], 64);
    CHECK_EQ(unit->piece_offset_bytes[1], 0);
    CHECK_EQ(unit->piece_offset_bytes[2], 192);

    unit = lay_out(&doubled, MP_IO_BUFFERED);
    CHECK_EQ(unit->extent_count, 2);
    CHECK_EQ(unit->piece_offset_bytes[1] - unit->piece_offset_bytes[0], 64);
}

static void sizes_beyond_the_classes_are_lifted_where_it_costs_least(void)
{
    struct mp_unit units[20] = { { { { 0 } }, 0 } };
    const struct mp_space_config config = { .backend = backend,
                                            .files = files,
                                            .units = units,
                                            .unit_count = 20,
                                            .budget_bytes = UINT64_MAX,
                                            .io_mode = MP_IO_BUFFERED };

    /* 18 sizes: 1 to 17 pages and a last one far away; pages 3 and 5 occur twice. */
    for (uint32_t i = 0; i < 20; i++)
        units[i] = (struct mp_unit){ { { 0, 0, 4096 * (1 + i) } }, 1 };
    units[17] = units[2];
    units[18] = units[4];
    units[19] = (struct mp_unit){ { { 0, 0, 98304 } }, 1 };
    mp_space_layout_fini(&layout);
    CHECK_EQ(mp_space_layout_init(&config, &layout), MP_OK);
    CHECK_EQ(layout.class_count, MP_TIER_CLASSES_MAX);
    CHECK_EQ(layout.classes[0].slot_bytes, 2 * 4096); /* one page: lifted first */
    CHECK_EQ(layout.classes[0].slots, 2);
    CHECK_EQ(layout.classes[1].slot_bytes, 3 * 4096); /* kept: lifting would cost two pages */
    CHECK_EQ(layout.classes[1].slots, 2);
    CHECK_EQ(layout.classes[2].slot_bytes, 5 * 4096); /* four pages lifted to the two of five */
    CHECK_EQ(layout.classes[2].slots, 3);
    CHECK_EQ(layout.classes[15].slot_bytes, 98304);
    CHECK_EQ(layout.classes[15].slots, 1);
    for (uint32_t i = 0; i < 20; i++)
        CHECK(layout.classes[layout.units[i].class_index].slot_bytes >= layout.units[i].slot_bytes);
}

/* Direct reads are chosen where they cost a sixteenth, and not where they cost more. */
static void direct_slots_may_be_a_sixteenth_larger(void)
{
    struct mp_unit unit = { { { 0, 1, 16 * 4096 } }, 1 };
    const struct mp_space_config config = { .backend = backend,
                                            .files = files,
                                            .units = &unit,
                                            .unit_count = 1,
                                            .budget_bytes = UINT64_MAX };

    for (uint32_t pages = 16; pages >= 15; pages--) {
        unit.pieces[0].bytes = pages * 4096;
        mp_space_layout_fini(&layout);
        CHECK_EQ(mp_space_layout_init(&config, &layout), MP_OK);
        CHECK_EQ(layout.plan.direct, pages == 16);
        CHECK_EQ(layout.units[0].slot_bytes, pages == 16 ? 17 * 4096 : 15 * 4096);
    }
}

static enum mp_status no_stream(struct mp_backend *self, struct mp_stream **stream_p)
{
    (void)self;
    (void)stream_p;
    return MP_ERR_UNSUPPORTED;
}

/* A backend that is filled from a host tier, of which only layouts are made. */
static struct mp_backend behind_a_host_tier(uint64_t granule_bytes)
{
    static struct mp_backend_ops ops;
    struct mp_backend other = { .ops = &ops, .caps = backend->caps };

    ops = *backend->ops;
    ops.stream_open = no_stream;
    other.caps.granule_bytes = other.caps.alias_align_bytes = granule_bytes;
    other.caps.layouts = 1u << MP_LAYOUT_PACKED;
    other.caps.file_target = other.caps.cpu_access = false;
    other.caps.windows = true;
    return other;
}

/* An eighth of the host tier's slots, but from 2 to 4, and none where every unit has its own. */
static void units_pass_through_an_eighth_of_the_host_slots(void)
{
    static const struct {
        uint32_t slots, passing;
    } cases[] = { { 2, 2 },  { 3, 2 },  { 16, 2 }, { 23, 2 }, { 24, 3 },
                  { 31, 3 }, { 32, 4 }, { 40, 4 }, { 41, 0 } };
    struct mp_backend other = behind_a_host_tier(4096);
    struct mp_unit units[41];
    struct mp_space_config config = { .backend = &other,
                                      .files = files,
                                      .units = units,
                                      .unit_count = 41,
                                      .budget_bytes = UINT64_MAX,
                                      .io_mode = MP_IO_BUFFERED };

    for (uint32_t i = 0; i < 41; i++)
        units[i] = (struct mp_unit){ { { 0, i, 4096 } }, 1 };
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        config.host_budget_bytes = (uint64_t)cases[i].slots * 4096;
        mp_space_layout_fini(&layout);
        CHECK_EQ(mp_space_layout_init(&config, &layout), MP_OK);
        CHECK_EQ(layout.host_classes[0].slots, cases[i].slots);
        CHECK_EQ(layout.passing[0], cases[i].passing);
        CHECK_EQ(layout.plan.host_slots, cases[i].slots - cases[i].passing);
    }
}

/* 100 granules of 16 pages: 240 pages are 15 %. */
static void a_window_may_waste_fifteen_percent(void)
{
    struct mp_backend other = behind_a_host_tier(16 * 4096);
    struct mp_unit units[100];
    const struct mp_space_config config = { .backend = &other,
                                            .files = files,
                                            .units = units,
                                            .unit_count = 100,
                                            .budget_bytes = UINT64_MAX,
                                            .host_budget_bytes = UINT64_MAX,
                                            .addressing = MP_ADDRESSING_WINDOW,
                                            .io_mode = MP_IO_BUFFERED };

    for (uint32_t smaller = 40; smaller <= 41; smaller++) {
        for (uint32_t i = 0; i < 100; i++)
            units[i] = (struct mp_unit){ { { 0, i, (i < smaller ? 13 : 14) * 4096 } }, 1 };
        mp_space_layout_fini(&layout);
        CHECK_EQ(mp_space_layout_init(&config, &layout), MP_OK);
        CHECK_EQ(layout.addressing, smaller == 40 ? MP_ADDRESSING_WINDOW : MP_ADDRESSING_TABLE);
        CHECK_EQ(layout.plan.window_bytes, smaller == 40 ? 100 * 16 * 4096 : 0);
    }
}

/* Pieces on multiples of 256 bytes; read in place unless they are apart and reads are direct. */
static void packed_pieces_stand_on_256_bytes(void)
{
    static const struct mp_unit apart = { { { 0, 40, 300 }, { 0, 340, 256 }, { 1, 7, 1 } }, 3 };
    static const struct mp_unit overlapping = { { { 0, 40, 300 }, { 0, 339, 256 } }, 2 };
    struct mp_backend other = behind_a_host_tier(4096);
    struct mp_space_config config = { .backend = &other,
                                      .files = files,
                                      .units = &apart,
                                      .unit_count = 1,
                                      .budget_bytes = UINT64_MAX,
                                      .host_budget_bytes = UINT64_MAX,
                                      .io_mode = MP_IO_DIRECT };

    mp_space_layout_fini(&layout);
    CHECK_EQ(mp_space_layout_init(&config, &layout), MP_OK);
    CHECK(layout.units[0].direct);
    CHECK_EQ(layout.units[0].piece_offset_bytes[0], 0);
    CHECK_EQ(layout.units[0].piece_offset_bytes[1], 512);
    CHECK_EQ(layout.units[0].piece_offset_bytes[2], 768);
    CHECK_EQ(layout.units[0].packed_bytes, 769);
    config.units = &overlapping;
    mp_space_layout_fini(&layout);
    CHECK_EQ(mp_space_layout_init(&config, &layout), MP_OK);
    CHECK(!layout.units[0].direct);
}

int main(void)
{
    CHECK_EQ(mp_backend_open("host", &test_backend_config, &backend), MP_OK);
    CHECK_EQ(mp_files_create(&files), MP_OK);
    test_add_file(files, 0, FILE_BYTES);
    test_add_file(files, 1, FILE_BYTES);
    RUN(direct_extents_are_aligned_supersets_that_share_blocks);
    RUN(buffered_pieces_stand_one_after_the_other);
    RUN(sizes_beyond_the_classes_are_lifted_where_it_costs_least);
    RUN(direct_slots_may_be_a_sixteenth_larger);
    RUN(units_pass_through_an_eighth_of_the_host_slots);
    RUN(a_window_may_waste_fifteen_percent);
    RUN(packed_pieces_stand_on_256_bytes);
    mp_space_layout_fini(&layout);
    mp_files_destroy(files);
    mp_backend_close(backend);
    return 0;
}
