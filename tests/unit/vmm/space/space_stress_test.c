/*
 * Random loads, prefetches, promotions, cancels, waits, leases and evictions against a model that
 * remembers what must be true: leased units keep their bytes, every valid unit has the right ones,
 * and the space's own check holds after every step. One round per mode of reads and engine.
 *
 *     vmm_space_stress_test [steps [seed]]
 */
#include <inttypes.h>

#include "tests/support/test.h"
#include "tests/unit/vmm/space/space_files.h"

#define UNITS 96
#define LEASES_MAX 3
#define FILES 3

static uint64_t random_state;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 24) % limit);
}

struct model {
    struct mp_space *space;
    struct mp_unit units[UNITS];
    uint32_t leases[UNITS];
    const void *pieces[UNITS][MP_UNIT_PIECES_MAX];
    unsigned loaded, canceled, full, evicted, busy;
};

static const uint64_t file_bytes[FILES] = { 1500001, 700777, 65536 };

static void make_units(struct mp_unit *units)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        const uint64_t bytes = u % 8 == 0 ? 1 + random_below(200) : 2000 * (1 + u % 3);

        units[u].piece_count = 1 + random_below(MP_UNIT_PIECES_MAX);
        for (uint32_t i = 0; i < units[u].piece_count; i++) {
            struct mp_piece *piece = &units[u].pieces[i];

            piece->file = random_below(FILES);
            piece->bytes = bytes;
            piece->offset_bytes = random_below((uint32_t)(file_bytes[piece->file] - bytes + 1));
            if (i > 0 && random_below(3) == 0)
                *piece =
                    (struct mp_piece){ piece[-1].file,
                                       piece[-1].offset_bytes - piece[-1].offset_bytes / 2, bytes };
        }
    }
}

static void try_load(struct model *model, uint32_t unit)
{
    const enum mp_res_state before = mp_space_state(model->space, unit);
    const enum mp_status status = mp_space_load(
        model->space, unit, random_below(2) ? MP_PRIORITY_DEMAND : MP_PRIORITY_PREFETCH);

    if (before == MP_RES_FILLING || before == MP_RES_VALID) {
        CHECK_EQ(status, MP_ERR_INVALID);
    } else if (status == MP_ERR_NO_SPACE) {
        CHECK_EQ(mp_space_class_free(model->space, mp_space_unit_class(model->space, unit)), 0);
        model->full++;
    } else {
        CHECK_EQ(status, MP_OK);
        model->loaded++;
    }
}

static void try_evict(struct model *model, uint32_t unit)
{
    const enum mp_res_state before = mp_space_state(model->space, unit);
    const enum mp_status status = mp_space_evict(model->space, unit);

    if (before == MP_RES_VALID && model->leases[unit] == 0)
        CHECK_EQ(status, MP_OK);
    else
        CHECK_EQ(status,
                 before == MP_RES_VALID || before == MP_RES_FILLING ? MP_ERR_BUSY : MP_ERR_INVALID);
    model->evicted += status == MP_OK;
    model->busy += status == MP_ERR_BUSY;
}

static void try_lease(struct model *model, uint32_t unit)
{
    const void *pieces[MP_UNIT_PIECES_MAX];
    const bool valid = mp_space_state(model->space, unit) == MP_RES_VALID;

    if (model->leases[unit] == LEASES_MAX)
        return;
    CHECK_EQ(mp_space_lease(model->space, unit, pieces), valid ? MP_OK : MP_ERR_INVALID);
    if (!valid)
        return;
    CHECK(test_pieces_are_right(&model->units[unit], pieces));
    for (uint32_t i = 0; i < model->units[unit].piece_count; i++) {
        CHECK(model->leases[unit] == 0 || model->pieces[unit][i] == pieces[i]);
        model->pieces[unit][i] = pieces[i];
    }
    model->leases[unit]++;
}

static void try_release(struct model *model, uint32_t unit)
{
    if (model->leases[unit] == 0)
        return;
    CHECK(test_pieces_are_right(&model->units[unit], model->pieces[unit]));
    mp_space_release(model->space, unit);
    model->leases[unit]--;
}

static void wait_for_some(struct model *model)
{
    uint32_t waiting[UNITS], count = 0;

    for (uint32_t u = 0; u < UNITS; u++) {
        if (mp_space_state(model->space, u) == MP_RES_FILLING && random_below(2))
            waiting[count++] = u;
    }
    if (count == 0)
        return;
    count = mp_space_wait_any(model->space, waiting, count, NULL);
    CHECK_EQ(mp_space_state(model->space, waiting[count]), MP_RES_VALID);
}

static void step(struct model *model)
{
    const uint32_t unit = random_below(UNITS);
    struct mp_space *space = model->space;
    const enum mp_res_state state = mp_space_state(space, unit);
    enum mp_status status;

    switch (random_below(12)) {
    case 0:
    case 1:
    case 2:
    case 3: try_load(model, unit); break;
    case 4:
    case 5: try_evict(model, unit); break;
    case 6: try_lease(model, unit); break;
    case 7:
        for (uint32_t u = 0; u < UNITS; u++)
            try_release(model, u);
        break;
    case 8:
        status = mp_space_cancel(space, unit);
        CHECK(state == MP_RES_FILLING ? status == MP_OK || status == MP_ERR_BUSY
                                      : status == MP_ERR_INVALID);
        model->canceled += status == MP_OK;
        break;
    case 9:
        mp_space_promote(space, unit);
        mp_space_poll(space, unit);
        break;
    case 10:
        status = mp_space_wait(space, unit);
        CHECK_EQ(status, state == MP_RES_FILLING || state == MP_RES_VALID ? MP_OK : MP_ERR_INVALID);
        break;
    default: wait_for_some(model); break;
    }
    CHECK_EQ(mp_space_leases(space, unit), model->leases[unit]);
    CHECK(mp_space_check(space));
}

static void run(struct mp_backend *backend, struct mp_files *files, enum mp_io_mode mode,
                bool uring, unsigned steps)
{
    static struct model model;
    struct mp_counters counters;
    struct mp_space_plan plan;
    struct mp_space_config config = {
        .backend = backend,
        .files = files,
        .units = model.units,
        .unit_count = UNITS,
        .budget_bytes = UINT64_MAX,
        .io_mode = mode,
        .reader = test_reader_config(),
        .clock = mp_clock_monotonic(),
        .counters = &counters,
    };

    memset(&model, 0, sizeof(model));
    mp_counters_reset(&counters);
    make_units(model.units);
    config.reader.uring = uring;
    config.reader.chunk_bytes = 4096;
    CHECK_EQ(mp_space_make_plan(&config, &plan), MP_OK);
    config.budget_bytes = plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) / 3;
    CHECK_EQ(mp_space_create(&config, &model.space), MP_OK);
    for (unsigned i = 0; i < steps; i++)
        step(&model);

    for (uint32_t u = 0; u < UNITS; u++) {
        while (model.leases[u] > 0)
            try_release(&model, u);
    }
    fprintf(stderr,
            "  %s %s: %u loaded, %u canceled, %u full, %u evicted, %u busy; "
            "%" PRIu64 " reads of %" PRIu64 " bytes\n",
            mode == MP_IO_DIRECT ? "direct" : "buffered", mp_space_reader_engine(model.space),
            model.loaded, model.canceled, model.full, model.evicted, model.busy,
            counters.read_requests, counters.read_bytes);
    CHECK(model.loaded > steps / 100 && model.full > 0 && model.evicted > 0 && model.busy > 0);
    CHECK_EQ(counters.evictions, model.evicted);
    CHECK(counters.resident_peak_bytes > 0);
    mp_space_destroy(model.space);
    CHECK_EQ(counters.resident_bytes, 0);
}

int main(int argc, char **argv)
{
    const unsigned steps = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 10000;
    struct mp_backend *backend;
    struct mp_files *files;

    random_state = argc > 2 ? strtoull(argv[2], NULL, 10) : UINT64_C(20240607);
    fprintf(stderr, "%u steps, seed %" PRIu64 "\n", steps, random_state);
    CHECK_EQ(mp_backend_open("host", &test_backend_config, &backend), MP_OK);
    CHECK_EQ(mp_files_create(&files), MP_OK);
    for (uint32_t f = 0; f < FILES; f++)
        test_add_file(files, f, file_bytes[f]);
    for (int uring = 0; uring < 2; uring++) {
        run(backend, files, MP_IO_BUFFERED, uring == 1, steps);
        run(backend, files, MP_IO_DIRECT, uring == 1, steps);
    }
    mp_files_destroy(files);
    mp_backend_close(backend);
    return 0;
}
