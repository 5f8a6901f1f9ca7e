/*
 * Every call that can fail below a space is made to fail once, always, and always but twice, at
 * every place in the code that makes it, from opening the backend to loading every unit. After each
 * failure: a status with a text, nothing half-made, no frame and no descriptor left, and what
 * failed works when it is tried again, with the right bytes.
 */
#include "tests/support/fault/wrap.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/unit/vmm/space/space_files.h"

#define FILES 2
#define FILE_BYTES 400001

static const struct mp_unit units[] = {
    { { { 0, 1, 30000 }, { 1, 50001, 30000 }, { 0, 300000, 30000 } }, 3 },
    { { { 0, 40001, 30000 }, { 1, 90001, 30000 }, { 0, 200000, 30000 } }, 3 },
    { { { 1, 1, 30000 }, { 1, 30001, 30000 }, { 1, 60001, 30000 } }, 3 },
    { { { 0, FILE_BYTES - 5000, 5000 } }, 1 },
    { { { 1, FILE_BYTES - 5000, 5000 } }, 1 },
    { { { 1, 100000, 5000 } }, 1 },
};

#define UNITS ((uint32_t)MP_ARRAY_LEN(units))

struct variant {
    const char *name;
    enum mp_io_mode mode;
    bool uring;
};

struct world {
    struct mp_backend *backend;
    struct mp_files *files;
    struct mp_space *space;
};

static unsigned live_frames, failed_runs;
static struct mp_backend_ops counting_ops;

static enum mp_status counting_create(struct mp_backend *backend, enum mp_tier_kind tier,
                                      uint64_t bytes, struct mp_frame *frame_p)
{
    const enum mp_status status = mp_backend_host.frame_create(backend, tier, bytes, frame_p);

    live_frames += status == MP_OK;
    return status;
}

static void counting_destroy(struct mp_backend *backend, struct mp_frame *frame)
{
    live_frames--;
    mp_backend_host.frame_destroy(backend, frame);
}

static enum mp_status build(struct world *world, const struct variant *variant)
{
    struct mp_space_config config = {
        .units = units,
        .unit_count = UNITS,
        .budget_bytes = UINT64_MAX,
        .io_mode = variant->mode,
        .reader = test_reader_config(),
        .clock = mp_clock_monotonic(),
    };
    struct mp_space_plan plan;
    enum mp_status status = mp_backend_open("host", &test_backend_config, &world->backend);

    if (status != MP_OK)
        return status;
    counting_ops = mp_backend_host;
    counting_ops.frame_create = counting_create;
    counting_ops.frame_destroy = counting_destroy;
    world->backend->ops = &counting_ops;
    status = mp_files_create(&world->files);
    if (status == MP_OK)
        status = test_open_files(world->files, FILES);
    if (status != MP_OK)
        return status;

    config.backend = world->backend;
    config.files = world->files;
    config.reader.uring = variant->uring;
    status = mp_space_make_plan(&config, &plan);
    if (status != MP_OK)
        return status;
    config.budget_bytes = plan.smallest_bytes;
    return mp_space_create(&config, &world->space);
}

static void tear_down(struct world *world)
{
    mp_space_destroy(world->space);
    mp_files_destroy(world->files);
    mp_backend_close(world->backend);
    *world = (struct world){ NULL, NULL, NULL };
    CHECK_EQ(live_frames, 0);
}

static void make_room(struct mp_space *space, uint32_t class_index)
{
    for (uint32_t u = 0; u < UNITS && mp_space_class_free(space, class_index) == 0; u++) {
        if (mp_space_unit_class(space, u) == class_index &&
            mp_space_state(space, u) == MP_RES_VALID)
            CHECK_EQ(mp_space_evict(space, u), MP_OK);
    }
}

/* All units, one after the other through two slots per class; the first failure, if any. */
static enum mp_status load_all(struct mp_space *space)
{
    enum mp_status result = MP_OK;

    for (uint32_t u = 0; u < UNITS; u++) {
        enum mp_status status = MP_OK;

        if (mp_space_state(space, u) != MP_RES_VALID) {
            make_room(space, mp_space_unit_class(space, u));
            CHECK_EQ(mp_space_load(space, u, MP_PRIORITY_DEMAND), MP_OK);
            status = mp_space_wait(space, u);
        }
        CHECK_EQ(mp_space_state(space, u), status == MP_OK ? MP_RES_VALID : MP_RES_FAILED);
        CHECK(mp_space_check(space));
        if (status == MP_OK)
            test_verify_unit(space, units, u);
        else
            result = status;
    }
    return result;
}

static void run_once(const struct fault_plan *plan, void *ctx)
{
    const struct variant *variant = ctx;
    struct world world = { NULL, NULL, NULL };
    enum mp_status status;
    uint64_t hits;

    mp_error_clear();
    fault_begin(plan);
    status = build(&world, variant);
    if (status == MP_OK)
        status = load_all(world.space);
    else
        CHECK(world.space == NULL);
    hits = fault_end();
    if (status != MP_OK) {
        CHECK(hits > 0);
        CHECK(status != MP_ERR_INVALID);
        CHECK_EQ(mp_error_last()->status, status);
        CHECK(mp_error_last()->code[0] != '\0' && mp_error_last()->text[0] != '\0');
        failed_runs++;
    }

    if (world.space == NULL) {
        tear_down(&world);
        CHECK_EQ(build(&world, variant), MP_OK);
    }
    CHECK_EQ(load_all(world.space), MP_OK);
    CHECK_EQ(load_all(world.space), MP_OK);
    tear_down(&world);
}

static void every_call_site_fails_cleanly(const struct variant *variant)
{
    struct variant copy = *variant;
    uint32_t runs;

    failed_runs = 0;
    runs = fault_sweep(FAULT_ANY, run_once, &copy);
    fprintf(stderr, "  %s: %u sites, %u runs, %u of them with an error\n", variant->name,
            fault_sites_failed(FAULT_ANY), runs, failed_runs);
    CHECK(fault_sites_failed(FAULT_ANY) >= 15);
    CHECK(failed_runs > 20 && failed_runs < runs);
}

static void open_chain_once(const struct fault_plan *plan, void *ctx)
{
    const struct mp_backend_config config = { .numa_node = 0, .huge_pages = true };
    struct mp_backend *backend = NULL;
    enum mp_status status;

    (void)ctx;
    mp_error_clear();
    fault_begin(plan);
    status = mp_backend_open("trace:fault:trace:host", &config, &backend);
    fault_end();
    CHECK_EQ(backend != NULL, status == MP_OK);
    if (status != MP_OK) {
        CHECK_EQ(status, MP_ERR_NO_MEMORY);
        CHECK(mp_error_last()->text[0] != '\0');
        failed_runs++;
    }
    mp_backend_close(backend);
}

static void every_link_of_a_chain_fails_cleanly(void)
{
    failed_runs = 0;
    fault_sweep(FAULT_ANY, open_chain_once, NULL);
    CHECK(failed_runs >= 3);
}

/* The kernel may return less than was asked for at any time; nothing may come of it. The probes of
 * direct reads, one per file, go through: to them a short read says that it does not work here. */
static void short_reads_change_nothing(const struct variant *variant)
{
    static const uint32_t lengths[] = { 1, 100, 511, 4095, 4096, 4097, 60000 };

    for (size_t i = 0; i < MP_ARRAY_LEN(lengths); i++) {
        const struct fault_plan plan = { .mode = lengths[i] < 1000 ? FAULT_ONCE : FAULT_ALWAYS,
                                         .calls = FAULT_BIT(pread) | FAULT_BIT(io_uring_read),
                                         .skip = FILES + i,
                                         .short_bytes = lengths[i] };
        struct variant copy = *variant;

        failed_runs = 0;
        run_once(&plan, &copy);
        CHECK_EQ(failed_runs, 0);
    }
}

int main(void)
{
    static const struct variant variants[] = {
        { "buffered, threads", MP_IO_BUFFERED, false },
        { "buffered, io_uring", MP_IO_BUFFERED, true },
        { "direct, threads", MP_IO_DIRECT, false },
        { "auto, io_uring", MP_IO_AUTO, true },
    };
    struct mp_files *files;

    mp_test_drop_log(); /* injected failures are warned of, rightly */
    CHECK_EQ(mp_files_create(&files), MP_OK);
    for (uint32_t f = 0; f < FILES; f++)
        test_add_file(files, f, FILE_BYTES);
    mp_files_destroy(files);
    every_link_of_a_chain_fails_cleanly();
    for (size_t i = 0; i < MP_ARRAY_LEN(variants); i++) {
        every_call_site_fails_cleanly(&variants[i]);
        short_reads_change_nothing(&variants[i]);
    }
    return 0;
}
