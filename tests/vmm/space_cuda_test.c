/*
 * Spaces on the CUDA backend, on the driver without a device. Variants are ways of addressing and
 * machines:
 *
 *     table     slots that share frames
 *     window    every unit at an address of its own
 *     pinned    no host handles: host frames are pinned memory
 */
#include "tests/vmm/cuda_world.h"

#define FILES 2
#define UNITS 24

static enum mp_addressing addressing;
static struct mp_unit units[UNITS];

/* Three pieces apart in two files, of two sizes, at odd places; some touch. */
static void make_units(uint64_t piece_bytes)
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

static void open_world(struct world *w)
{
    const uint64_t piece_bytes = addressing == MP_ADDRESSING_WINDOW ? 650000 : 50001;

    world_open(w, "cuda");
    for (uint32_t f = 0; f < FILES; f++)
        test_add_file(w->files, f, 1600000 + f * 4097);
    make_units(piece_bytes);
    w->config.units = units;
    w->config.unit_count = UNITS;
    w->config.addressing = addressing;
}

static void create_space(struct world *w, uint64_t budget_part, uint64_t parts)
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

int main(int argc, char **argv)
{
    const char *variant = argc > 1 ? argv[1] : "table";

    setenv("FAKECUDA_MEMORY", "134217728", 1);
    if (strcmp(variant, "pinned") == 0)
        setenv("FAKECUDA_HOST_NUMA", "0", 1);
    if (strcmp(variant, "window") == 0)
        addressing = MP_ADDRESSING_WINDOW;
    find_fake();
    RUN(units_come_with_all_their_bytes);
    return 0;
}
