/*
 * Same-address tiering on the driver without a device: windows are whole, bytes stay, the worthier
 * units end up on the device, and every call of the driver fails once.
 *
 * Device memory is looked at as a program does: copied to pinned memory through a window's
 * addresses, on a stream whose end is waited for.
 */
#include "interpose/cuda/tiers.h"
#include "tests/device/fakecuda/test/two_streams.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/log_guard.h"
#include "vmm/base/error.h"

#define GRANULE (64u << 10)
#define UNIT (2 * GRANULE)
#define UNITS 8u

static struct mp_backend *backend;
static unsigned char *pinned;

static struct mp_tiers *open_tiers(unsigned device_units, unsigned host_units)
{
    const struct mp_tiers_config config = { .backend = backend,
                                            .unit_bytes = UNIT,
                                            .device_bytes = (uint64_t)device_units * UNIT,
                                            .host_bytes = (uint64_t)host_units * UNIT,
                                            .evict = "lfru" };
    struct mp_tiers *tiers;

    CHECK_EQ(mp_tiers_open(&config, &tiers), MP_OK);
    return tiers;
}

static void set_up(void)
{
    const struct mp_backend_config config = { .numa_node = -1 };

    use_device();
    OK(cu.stream_create(&a, MP_CU_STREAM_NON_BLOCKING, 0));
    OK(cu.host_alloc((void **)&pinned, UNITS * UNIT, MP_CU_HOST_DEVICE_MAP));
    CHECK_EQ(mp_backend_open("cuda", &config, &backend), MP_OK);
}

static void tear_down(void)
{
    mp_backend_close(backend);
    OK(cu.host_free(pinned));
    OK(cu.stream_destroy(a));
    OK(cu.context_release(0));
    check_nothing_lives();
}

/* Unit u of a window holds its number in every byte. */
static void write_units(char *window, unsigned units)
{
    for (unsigned u = 0; u < units; u++)
        memset(pinned + u * UNIT, (int)(u + 1), UNIT);
    for (unsigned u = 0; u < units; u++)
        OK(cu.copy_to_device((uintptr_t)window + u * UNIT, pinned + u * UNIT, UNIT, a));
    OK(cu.stream_synchronize(a));
}

static void check_units(char *window, unsigned units)
{
    memset(pinned, 0, UNITS * UNIT);
    for (unsigned u = 0; u < units; u++)
        OK(cu.copy_to_host(pinned + u * UNIT, (uintptr_t)window + u * UNIT, UNIT, a));
    OK(cu.stream_synchronize(a));
    for (unsigned u = 0; u < units; u++) {
        for (unsigned i = 0; i < UNIT; i++) {
            if (pinned[u * UNIT + i] != u + 1)
                CHECK_EQ(pinned[u * UNIT + i], u + 1);
        }
    }
}

static enum mp_tier_kind tier_of(struct mp_tiers *tiers, const char *window, unsigned unit)
{
    uint64_t run;

    return mp_tiers_run(tiers, window + unit * UNIT, 1, &run);
}

static char *make_window(struct mp_tiers *tiers)
{
    void *window;

    CHECK_EQ(mp_tiers_reserve(tiers, UNITS * UNIT - 5, &window), MP_OK);
    CHECK(mp_tiers_check(tiers));
    return window;
}

/* ---- */

static void window_is_whole_and_ends_without_a_trace(void)
{
    struct mp_tiers *tiers = open_tiers(4, 6);
    char *window = make_window(tiers);
    uint64_t device_room, host_room, run;
    struct mp_tiers_stats stats;

    mp_tiers_get_stats(tiers, &stats);
    CHECK_EQ(stats.units, UNITS);
    CHECK_EQ(stats.device_units, 3); /* one frame is spare */
    mp_tiers_room(tiers, &device_room, &host_room);
    CHECK_EQ(device_room, 0);
    CHECK_EQ(host_room, UNIT);
    CHECK(mp_tiers_holds(tiers, window) && mp_tiers_holds(tiers, window + UNITS * UNIT - 1));
    CHECK(!mp_tiers_holds(tiers, window - 1) && !mp_tiers_holds(tiers, window + UNITS * UNIT));
    CHECK(mp_tiers_is_begin(tiers, window) && !mp_tiers_is_begin(tiers, window + 1));
    CHECK_EQ(mp_tiers_run(tiers, window + 7, UNITS * UNIT - 7, &run), MP_TIER_DEVICE);
    CHECK_EQ(run, 3 * UNIT - 7);
    CHECK_EQ(mp_tiers_run(tiers, window + 3 * UNIT, 5 * UNIT, &run), MP_TIER_HOST);
    CHECK_EQ(run, UNIT); /* each host frame is a piece of its own */
    CHECK_EQ(mp_tiers_run(tiers, window - 64, 32, &run), MP_TIER_KIND_COUNT);
    CHECK_EQ(run, 32);
    write_units(window, UNITS);
    check_units(window, UNITS);
    CHECK(!mp_tiers_free(tiers, window + UNIT));
    CHECK(mp_tiers_free(tiers, window));
    CHECK(!mp_tiers_holds(tiers, window));
    CHECK(mp_tiers_check(tiers));
    mp_tiers_close(tiers);
    check_no_violation();
}

static void window_that_frames_do_not_cover_is_refused(void)
{
    struct mp_tiers *tiers = open_tiers(4, 4);
    struct mp_tiers_stats stats;
    void *window = NULL;

    CHECK_EQ(mp_tiers_reserve(tiers, UNITS * UNIT, &window), MP_ERR_NO_SPACE); /* 3 + 4 */
    CHECK(window == NULL && mp_tiers_check(tiers));
    CHECK_EQ(mp_tiers_reserve(tiers, UINT64_MAX, &window), MP_ERR_NO_SPACE);
    mp_tiers_get_stats(tiers, &stats);
    CHECK_EQ(stats.refused, 2);
    CHECK_EQ(stats.units, 0);
    CHECK_EQ(mp_tiers_reserve(tiers, 7 * UNIT, &window), MP_OK);
    CHECK_EQ(mp_tiers_reserve(tiers, 1, &window), MP_ERR_NO_SPACE);
    mp_tiers_close(tiers);
    check_no_violation();
}

static void touched_units_change_places_and_keep_their_bytes(void)
{
    struct mp_tiers *tiers = open_tiers(4, 6);
    char *window = make_window(tiers);
    struct mp_tiers_stats stats;

    write_units(window, UNITS);
    mp_tiers_mark(tiers, window, UNITS * UNIT, MP_TIERS_EXPERT);
    CHECK_EQ(mp_tiers_move(tiers, 8), 0); /* nothing is hotter than anything */
    CHECK(!mp_tiers_wants(tiers));
    for (unsigned i = 0; i < 5; i++) {
        mp_tiers_touch(tiers, window + 6 * UNIT + 100, 1);
        mp_tiers_touch(tiers, window + UNIT, 1);
    }
    CHECK(mp_tiers_wants(tiers));
    CHECK_EQ(mp_tiers_move(tiers, 8), 2);
    CHECK_EQ(tier_of(tiers, window, 6), MP_TIER_DEVICE);
    CHECK_EQ(tier_of(tiers, window, 1), MP_TIER_DEVICE); /* as hot: it stays */
    mp_tiers_get_stats(tiers, &stats);
    CHECK_EQ(stats.device_units, 3);
    CHECK_EQ(stats.moves, 2);
    CHECK_EQ(stats.moved_bytes, 2 * UNIT);
    check_units(window, UNITS);
    CHECK(mp_tiers_check(tiers));
    mp_tiers_close(tiers);
    check_no_violation();
}

static void worthier_kinds_come_first(void)
{
    struct mp_tiers *tiers = open_tiers(4, 6);
    char *window = make_window(tiers);

    write_units(window, UNITS);
    mp_tiers_mark(tiers, window, 6 * UNIT, MP_TIERS_EXPERT); /* 6 is dense, 7 a cache */
    mp_tiers_mark(tiers, window + 6 * UNIT, UNIT, MP_TIERS_DENSE);
    for (unsigned i = 0; i < 50; i++)
        mp_tiers_touch(tiers, window, 3 * UNIT);
    CHECK_EQ(mp_tiers_move(tiers, 1), 2);
    CHECK_EQ(tier_of(tiers, window, 7), MP_TIER_DEVICE);
    CHECK_EQ(mp_tiers_move(tiers, 8), 2);
    CHECK_EQ(tier_of(tiers, window, 6), MP_TIER_DEVICE);
    check_units(window, UNITS);
    /* What is written over is what it is now. */
    mp_tiers_mark(tiers, window + 6 * UNIT, 2 * UNIT, MP_TIERS_EXPERT);
    for (unsigned i = 0; i < 200; i++)
        mp_tiers_touch(tiers, window + 3 * UNIT, 2 * UNIT);
    CHECK_EQ(mp_tiers_move(tiers, 8), 4);
    CHECK_EQ(tier_of(tiers, window, 3), MP_TIER_DEVICE);
    CHECK_EQ(tier_of(tiers, window, 4), MP_TIER_DEVICE);
    check_units(window, UNITS);
    mp_tiers_close(tiers);
    check_no_violation();
}

static void pinned_units_stay(void)
{
    struct mp_tiers *tiers = open_tiers(4, 6);
    char *window = make_window(tiers);

    write_units(window, UNITS);
    mp_tiers_mark(tiers, window, 3 * UNIT, MP_TIERS_EXPERT);
    mp_tiers_pin(tiers, window, 3 * UNIT);
    CHECK_EQ(mp_tiers_move(tiers, 8), 0);
    for (unsigned u = 0; u < 3; u++)
        CHECK_EQ(tier_of(tiers, window, u), MP_TIER_DEVICE);
    check_units(window, UNITS);
    mp_tiers_close(tiers);
    check_no_violation();
}

static void budgets_and_policies_that_cannot_be_are_refused(void)
{
    struct mp_tiers_config config = { .backend = backend, .unit_bytes = UNIT, .evict = "lfru" };
    struct mp_tiers *tiers = NULL;

    config.device_bytes = 2 * UNIT - 1;
    CHECK_EQ(mp_tiers_open(&config, &tiers), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_BUDGET_SMALL");
    config.device_bytes = 4 * UNIT;
    config.evict = "score"; /* wants routers' scores and options */
    CHECK_EQ(mp_tiers_open(&config, &tiers), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_POLICY");
    CHECK(tiers == NULL);
}

/* ---- failures */

/* One life of a window; what fails on the way must leave all bytes where they were. */
static void live(uint64_t *ok_p)
{
    struct mp_tiers *tiers = NULL;
    const struct mp_tiers_config config = { .backend = backend,
                                            .unit_bytes = UNIT,
                                            .device_bytes = 4 * UNIT,
                                            .host_bytes = 6 * UNIT,
                                            .evict = "lru" };
    struct mp_tiers_stats stats;
    void *window = NULL;

    if (mp_tiers_open(&config, &tiers) != MP_OK)
        return;
    if (mp_tiers_reserve(tiers, UNITS * UNIT, &window) == MP_OK) {
        write_units(window, UNITS);
        mp_tiers_mark(tiers, window, 3 * UNIT, MP_TIERS_EXPERT);
        (void)mp_tiers_move(tiers, 2);
        (void)mp_tiers_move(tiers, 2);
        mp_tiers_get_stats(tiers, &stats);
        CHECK(!stats.broken);
        CHECK(mp_tiers_check(tiers));
        CHECK_EQ(stats.device_units, 3 + stats.moves % 2); /* half of a swap: one more */
        check_units(window, UNITS);
        *ok_p += stats.moves == 6;
    }
    mp_tiers_close(tiers);
}

static void every_call_fails_once(void)
{
    static const char *const calls[] = {
        "cuMemAddressReserve", "cuMemCreate",  "cuMemMap",
        "cuMemSetAccess",      "cuMemUnmap",   "cuStreamCreateWithPriority",
        "cuEventCreate",       "cuEventRecord"
    };
    uint64_t whole = 0, failures = 0;

    mp_test_drop_log();
    for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
        uint64_t count, unharmed = 0;

        fake_api.reset();
        live(&unharmed);
        count = fake_api.calls(calls[c]);
        CHECK(count > 0);
        for (uint64_t n = 0; n < count; n++) {
            fake_api.reset();
            fake_api.fail(calls[c], n, MP_CU_ERROR_OUT_OF_MEMORY, false);
            live(&whole);
            failures++;
            check_no_violation();
        }
    }
    CHECK(failures > 40);
    mp_test_expected_errors = mp_log_lines(MP_LOG_ERROR);
}

/* Who still asks finds nothing. */
static void what_ended_has_no_windows(void)
{
    struct mp_tiers *tiers = open_tiers(4, 6);
    char *window = make_window(tiers);
    struct mp_tiers_stats stats;
    struct fakecuda_live live;
    void *another = NULL;

    mp_tiers_end(tiers);
    fake_api.live(&live);
    CHECK_EQ(live.reservations + live.handles, 0);
    CHECK(!mp_tiers_holds(tiers, window) && !mp_tiers_is_begin(tiers, window));
    CHECK(!mp_tiers_free(tiers, window));
    CHECK_EQ(mp_tiers_reserve(tiers, UNIT, &another), MP_ERR_NO_SPACE);
    mp_tiers_touch(tiers, window, UNIT);
    CHECK_EQ(mp_tiers_move(tiers, 4), 0);
    mp_tiers_get_stats(tiers, &stats);
    CHECK(stats.windows == 0 && stats.units == 0 && stats.made == 1);
    CHECK(mp_tiers_check(tiers));
    mp_tiers_end(tiers);
    mp_tiers_close(tiers);
    check_no_violation();
}

/* Memory of the program that is not there: refused, and nothing is kept. */
static void memory_body(const struct fault_plan *plan, void *ctx)
{
    const struct mp_tiers_config config = { .backend = backend,
                                            .unit_bytes = UNIT,
                                            .device_bytes = 4 * UNIT,
                                            .host_bytes = 6 * UNIT,
                                            .evict = "lfru" };
    struct mp_tiers *tiers = NULL;
    void *window = NULL;
    enum mp_status status;
    uint64_t failures;

    (void)ctx;
    fault_begin(plan);
    status = mp_tiers_open(&config, &tiers);
    if (status == MP_OK)
        status = mp_tiers_reserve(tiers, UNITS * UNIT, &window);
    failures = fault_end();
    CHECK(status == MP_OK || failures > 0);
    CHECK((status == MP_OK) == (window != NULL));
    if (tiers != NULL)
        CHECK(mp_tiers_check(tiers));
    mp_tiers_close(tiers);
    check_no_violation();
}

static void every_allocation_fails_once(void)
{
    CHECK(fault_sweep(FAULT_ALLOCATIONS, memory_body, NULL) > 5);
}

int main(void)
{
    setenv("FAKECUDA_GRANULE", "65536", 1);
    setenv("FAKECUDA_VERBOSE", "1", 0);
    find_fake();
    set_up();
    RUN(window_is_whole_and_ends_without_a_trace);
    RUN(window_that_frames_do_not_cover_is_refused);
    RUN(touched_units_change_places_and_keep_their_bytes);
    RUN(worthier_kinds_come_first);
    RUN(pinned_units_stay);
    RUN(budgets_and_policies_that_cannot_be_are_refused);
    RUN(what_ended_has_no_windows);
    RUN(every_allocation_fails_once);
    fake_api.reset();
    tear_down();
    set_up();
    RUN(every_call_fails_once);
    return 0;
}
