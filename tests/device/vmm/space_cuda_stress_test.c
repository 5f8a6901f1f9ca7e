/*
 * Random loads, prefetches, promotions, cancels, waits, leases of both tiers, evictions and changes
 * of the budget on the CUDA backend over the driver without a device, against a model that
 * remembers what must be true: leased units keep their place and their bytes, every valid unit has
 * the right ones on the device, units that the host tier holds have them there, the space's own
 * check holds after every step, and the driver saw nothing that it forbids. One round per kind of
 * space.
 *
 *     vmm_space_cuda_stress_test [steps [seed]]
 */
#include <inttypes.h>

#include "tests/device/vmm/cuda_world.h"

#define UNITS 48
#define LEASES_MAX 3
#define FILES 3
#define GRANULE 65536

static uint64_t random_state;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 24) % limit);
}

struct model {
    struct world w;
    struct mp_unit units[UNITS];
    uint32_t leases[UNITS], host_leases[UNITS];
    const void *pieces[UNITS][MP_UNIT_PIECES_MAX];
    const void *host_pieces[UNITS][MP_UNIT_PIECES_MAX];
    const void *placed[UNITS]; /* where valid units were found, by placed_at; NULL: not valid */
    uint64_t placed_at;
    struct mp_space_plan plan; /* at the start */
    unsigned loaded, canceled, full, evicted, busy, in_place, resized;
};

static const uint64_t file_bytes[FILES] = { 500001, 300777, 65536 * 2 };

/* Two sizes near a frame, so that windows are worth it; pieces may overlap. */
static void make_units(struct mp_unit *units)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        units[u].piece_count = 1 + random_below(MP_UNIT_PIECES_MAX);
        for (uint32_t i = 0; i < units[u].piece_count; i++) {
            struct mp_piece *piece = &units[u].pieces[i];

            piece->file = random_below(FILES);
            piece->bytes =
                (u % 3 == 0 ? 2 : 1) * (UINT64_C(60000) / units[u].piece_count) - random_below(200);
            piece->offset_bytes =
                random_below((uint32_t)(file_bytes[piece->file] - piece->bytes + 1));
        }
    }
}

static void try_load(struct model *m, uint32_t unit)
{
    const enum mp_res_state before = mp_space_state(m->w.space, unit);
    const enum mp_status status = mp_space_load(
        m->w.space, unit, random_below(2) ? MP_PRIORITY_DEMAND : MP_PRIORITY_PREFETCH);

    if (before == MP_RES_FILLING || before == MP_RES_VALID) {
        CHECK_EQ(status, MP_ERR_INVALID);
    } else if (status == MP_ERR_NO_SPACE) {
        CHECK_EQ(mp_space_class_free(m->w.space, mp_space_unit_class(m->w.space, unit)), 0);
        m->full++;
    } else {
        CHECK_EQ(status, MP_OK);
        m->loaded++;
    }
}

static void try_evict(struct model *m, uint32_t unit)
{
    const enum mp_res_state before = mp_space_poll(m->w.space, unit);
    const enum mp_status status = mp_space_evict(m->w.space, unit);

    if (before == MP_RES_VALID && m->leases[unit] == 0)
        CHECK_EQ(status, MP_OK);
    else if (before == MP_RES_VALID || before == MP_RES_FILLING || before == MP_RES_DRAINING)
        CHECK_EQ(status, MP_ERR_BUSY);
    else
        CHECK_EQ(status, MP_ERR_INVALID);
    m->evicted += status == MP_OK;
    m->busy += status == MP_ERR_BUSY;
}

static void try_lease(struct model *m, uint32_t unit)
{
    const void *pieces[MP_UNIT_PIECES_MAX];
    const bool valid = mp_space_state(m->w.space, unit) == MP_RES_VALID;

    if (m->leases[unit] == LEASES_MAX)
        return;
    CHECK_EQ(mp_space_lease(m->w.space, unit, pieces), valid ? MP_OK : MP_ERR_INVALID);
    if (!valid)
        return;
    CHECK(world_pieces_are_right(&m->w, &m->units[unit], pieces));
    for (uint32_t i = 0; i < m->units[unit].piece_count; i++) {
        CHECK(m->leases[unit] == 0 || m->pieces[unit][i] == pieces[i]);
        m->pieces[unit][i] = pieces[i];
    }
    m->leases[unit]++;
}

static void try_release(struct model *m, uint32_t unit)
{
    if (m->leases[unit] == 0)
        return;
    CHECK(world_pieces_are_right(&m->w, &m->units[unit], m->pieces[unit]));
    mp_space_release(m->w.space, unit);
    m->leases[unit]--;
}

static void try_lease_host(struct model *m, uint32_t unit)
{
    const enum mp_status status = mp_space_lease_host(m->w.space, unit, m->host_pieces[unit]);

    CHECK(status == MP_OK || (status == MP_ERR_NO_SPACE && m->host_leases[unit] == 0) ||
          m->w.config.host_residency == MP_HOST_EXCLUSIVE);
    if (status != MP_OK)
        return;
    CHECK(test_pieces_are_right(&m->units[unit], m->host_pieces[unit]));
    m->host_leases[unit]++;
    m->in_place++;
}

static void release_host(struct model *m, uint32_t unit)
{
    while (m->host_leases[unit] > 0) {
        CHECK(test_pieces_are_right(&m->units[unit], m->host_pieces[unit]));
        mp_space_release_host(m->w.space, unit);
        m->host_leases[unit]--;
    }
}

static void wait_for_some(struct model *m)
{
    uint32_t waiting[UNITS], count = 0;

    for (uint32_t u = 0; u < UNITS; u++) {
        if (mp_space_state(m->w.space, u) == MP_RES_FILLING && random_below(2))
            waiting[count++] = u;
    }
    /* Slots to pass through may all be under a lease of ours. */
    for (uint32_t u = 0; u < UNITS; u++)
        release_host(m, u);
    if (count == 0)
        return;
    count = mp_space_wait_any(m->w.space, waiting, count, NULL);
    CHECK_EQ(mp_space_state(m->w.space, waiting[count]), MP_RES_VALID);
}

/* As a pager does it, but whoever comes first leaves. */
static void resize(struct model *m)
{
    const uint64_t range = m->plan.full_bytes - m->plan.smallest_bytes;
    const uint64_t budget = m->plan.smallest_bytes + range * random_below(17) / 16;
    uint32_t class_index, count;
    enum mp_status status;

    for (;;) {
        status = mp_space_set_budget(m->w.space, budget, &class_index, &count);
        CHECK(mp_space_check(m->w.space));
        if (status != MP_ERR_NO_SPACE)
            break;
        CHECK(count > 0);
        for (uint32_t u = 0; u < UNITS && count > 0; u++) {
            if (mp_space_unit_class(m->w.space, u) == class_index && m->leases[u] == 0 &&
                mp_space_state(m->w.space, u) == MP_RES_VALID) {
                CHECK_EQ(mp_space_evict(m->w.space, u), MP_OK);
                m->evicted++;
                count--;
            }
        }
        if (count > 0)
            return;
    }
    if (status != MP_OK && status != MP_ERR_BUSY)
        CHECK_STR(mp_error_last()->text, "");
    if (status == MP_OK)
        CHECK(mp_space_frame_bytes(m->w.space) <= budget);
    m->resized += status == MP_OK;
}

/* While the generation stays the same every unit is where it was. */
static void check_placement(struct model *m)
{
    const uint64_t generation = mp_space_generation(m->w.space);

    for (uint32_t u = 0; u < UNITS; u++) {
        const void *pieces[MP_UNIT_PIECES_MAX] = { NULL };

        if (mp_space_state(m->w.space, u) == MP_RES_VALID) {
            CHECK_EQ(mp_space_lease(m->w.space, u, pieces), MP_OK);
            mp_space_release(m->w.space, u);
        }
        if (generation == m->placed_at)
            CHECK(m->placed[u] == pieces[0]);
        m->placed[u] = pieces[0];
    }
    m->placed_at = generation;
}

static void step(struct model *m)
{
    const uint32_t unit = random_below(UNITS);
    struct mp_space *space = m->w.space;
    const enum mp_res_state state = mp_space_state(space, unit);
    enum mp_status status;

    switch (random_below(15)) {
    case 0:
    case 1:
    case 2:
    case 3: try_load(m, unit); break;
    case 4:
    case 5: try_evict(m, unit); break;
    case 6: try_lease(m, unit); break;
    case 7:
        for (uint32_t u = 0; u < UNITS; u++)
            try_release(m, u);
        break;
    case 8:
        status = mp_space_cancel(space, unit);
        CHECK(state == MP_RES_FILLING ? status == MP_OK || status == MP_ERR_BUSY
                                      : status == MP_ERR_INVALID);
        m->canceled += status == MP_OK;
        break;
    case 9:
        mp_space_promote(space, unit);
        mp_space_poll(space, unit);
        break;
    case 10:
        for (uint32_t u = 0; u < UNITS; u++)
            release_host(m, u);
        status = mp_space_wait(space, unit);
        CHECK_EQ(status, state == MP_RES_FILLING || state == MP_RES_VALID ? MP_OK : MP_ERR_INVALID);
        break;
    case 11:
    case 12: try_lease_host(m, unit); break;
    case 13:
        if (random_below(4) == 0)
            resize(m);
        break;
    default: wait_for_some(m); break;
    }
    CHECK_EQ(mp_space_leases(space, unit), m->leases[unit]);
    CHECK(mp_space_check(space));
    check_placement(m);
}

struct kind {
    const char *name;
    enum mp_io_mode mode;
    enum mp_addressing addressing;
    enum mp_host_residency residency;
    uint32_t host_percent; /* 100: all */
    unsigned seed;         /* of the driver's timing */
};

static void run(const struct kind *kind, unsigned steps)
{
    static struct model m;
    struct mp_space_plan plan;

    memset(&m, 0, sizeof(m));
    fake_api.timing(kind->seed, 0);
    world_open(&m.w, "cuda");
    for (uint32_t f = 0; f < FILES; f++)
        test_add_file(m.w.files, f, file_bytes[f]);
    make_units(m.units);
    m.w.config.units = m.units;
    m.w.config.unit_count = UNITS;
    m.w.config.io_mode = kind->mode;
    m.w.config.addressing = kind->addressing;
    m.w.config.host_residency = kind->residency;
    m.w.config.reader.chunk_bytes = 16384;
    CHECK_EQ(mp_space_make_plan(&m.w.config, &m.plan), MP_OK);
    m.w.config.budget_bytes =
        m.plan.smallest_bytes + (m.plan.full_bytes - m.plan.smallest_bytes) / 3;
    CHECK_EQ(mp_space_make_plan(&m.w.config, &plan), MP_OK);
    if (kind->host_percent < 100)
        m.w.config.host_budget_bytes = plan.host_bytes * kind->host_percent / 100;
    CHECK_EQ(mp_space_create(&m.w.config, &m.w.space), MP_OK);
    for (unsigned i = 0; i < steps; i++)
        step(&m);
    for (uint32_t u = 0; u < UNITS; u++) {
        release_host(&m, u);
        while (m.leases[u] > 0)
            try_release(&m, u);
    }
    fprintf(stderr,
            "  %s: %u loaded, %u canceled, %u full, %u evicted, %u busy, %u in place, %u budgets; "
            "%" PRIu64 " reads of %" PRIu64 " bytes\n",
            kind->name, m.loaded, m.canceled, m.full, m.evicted, m.busy, m.in_place, m.resized,
            m.w.counters.read_requests, m.w.counters.read_bytes);
    CHECK(m.loaded > steps / 100 && m.full > 0 && m.evicted > 0 && m.busy > 0 && m.in_place > 0);
    CHECK(m.resized > 0);
    CHECK_EQ(m.w.counters.evictions, m.evicted);
    world_close(&m.w);
    fake_api.timing(0, 0);
    check_nothing_lives();
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {
        { "table, inclusive", MP_IO_AUTO, MP_ADDRESSING_TABLE, MP_HOST_INCLUSIVE, 100, 0 },
        { "table, inclusive in part", MP_IO_BUFFERED, MP_ADDRESSING_TABLE, MP_HOST_INCLUSIVE, 30,
          1 },
        { "window, inclusive in part", MP_IO_AUTO, MP_ADDRESSING_WINDOW, MP_HOST_INCLUSIVE, 50, 2 },
        { "table, exclusive", MP_IO_DIRECT, MP_ADDRESSING_TABLE, MP_HOST_EXCLUSIVE, 100, 3 },
        { "window, exclusive in part", MP_IO_AUTO, MP_ADDRESSING_WINDOW, MP_HOST_EXCLUSIVE, 40, 4 },
    };
    const unsigned steps = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 3000;

    setenv("FAKECUDA_GRANULE", "65536", 1);
    random_state = argc > 2 ? strtoull(argv[2], NULL, 10) : UINT64_C(20250218);
    fprintf(stderr, "%u steps, seed %" PRIu64 "\n", steps, random_state);
    find_fake();
    for (size_t i = 0; i < MP_ARRAY_LEN(kinds); i++)
        run(&kinds[i], steps);
    return 0;
}
