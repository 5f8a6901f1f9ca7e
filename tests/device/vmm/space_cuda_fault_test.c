/*
 * A space on the CUDA backend in which every call that can fail does: those of the system, and
 * those of the driver, each place in the program once and for good. What the space says must fit,
 * nothing may stay behind but what the driver refused to take back, and afterwards everything must
 * work.
 */
#include "tests/support/fault/wrap.h"
#include "tests/device/vmm/cuda_world.h"

#define UNITS 16
#define FILES 2
#define FILE_BYTES 200000
#define SITES_MAX 256

struct variant {
    const char *name;
    enum mp_io_mode mode;
    bool uring;
    enum mp_addressing addressing;
    enum mp_host_residency residency;
    bool small_host;
    bool unpinned; /* no host frame can be pinned: a program of its own */
};

static const struct variant variants[] = {
    { "table, inclusive, buffered", MP_IO_BUFFERED, false, MP_ADDRESSING_TABLE, MP_HOST_INCLUSIVE,
      false, false },
    { "window, inclusive in part, direct", MP_IO_AUTO, true, MP_ADDRESSING_WINDOW,
      MP_HOST_INCLUSIVE, true, false },
    { "table, exclusive, direct", MP_IO_AUTO, false, MP_ADDRESSING_TABLE, MP_HOST_EXCLUSIVE, true,
      false },
    { "table, exclusive, not pinned", MP_IO_AUTO, false, MP_ADDRESSING_TABLE, MP_HOST_EXCLUSIVE,
      true, true },
};

static struct mp_unit units[UNITS];
static unsigned failed_runs;

static void make_units(const struct variant *variant)
{
    const uint64_t bytes = variant->addressing == MP_ADDRESSING_WINDOW ? 20000 : 9000;

    for (uint32_t u = 0; u < UNITS; u++) {
        units[u].piece_count = 3;
        for (uint32_t i = 0; i < 3; i++)
            units[u].pieces[i] =
                (struct mp_piece){ .file = i % FILES, .offset_bytes = 5000 * u + 333 * i, bytes };
    }
}

static enum mp_status build(struct world *w, const struct variant *variant)
{
    struct mp_space_plan plan;
    enum mp_status status = mp_backend_open("cuda", &test_backend_config, &w->backend);

    if (status == MP_OK)
        status = mp_files_create(&w->files);
    if (status == MP_OK)
        status = test_open_files(w->files, FILES);
    if (status != MP_OK)
        return status;
    w->config = (struct mp_space_config){
        .backend = w->backend,
        .files = w->files,
        .units = units,
        .unit_count = UNITS,
        .budget_bytes = UINT64_MAX,
        .host_budget_bytes = UINT64_MAX,
        .host_residency = variant->residency,
        .addressing = variant->addressing,
        .io_mode = variant->mode,
        .reader = test_reader_config(),
        .clock = mp_clock_monotonic(),
        .counters = &w->counters,
    };
    mp_counters_reset(&w->counters);
    w->config.reader.uring = variant->uring;
    status = mp_space_make_plan(&w->config, &plan);
    if (status != MP_OK)
        return status;
    w->config.budget_bytes = plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) / 4;
    if (variant->small_host)
        w->config.host_budget_bytes = plan.host_bytes / 2;
    return mp_space_create(&w->config, &w->space);
}

static void tear_down(struct world *w)
{
    mp_space_destroy(w->space);
    mp_files_destroy(w->files);
    mp_backend_close(w->backend);
    *w = (struct world){ .backend = NULL };
}

static void make_room(struct mp_space *space)
{
    for (uint32_t u = 0; u < UNITS && mp_space_class_free(space, 0) == 0; u++) {
        if (mp_space_state(space, u) == MP_RES_VALID)
            CHECK_EQ(mp_space_evict(space, u), MP_OK);
    }
}

/* All units, one after the other; the first failure, if any. With `look` at every byte. */
static enum mp_status load_all(struct world *w, bool look)
{
    struct mp_space *space = w->space;
    enum mp_status result = MP_OK;

    for (uint32_t u = 0; u < UNITS; u++) {
        enum mp_status status = MP_OK;

        if (mp_space_state(space, u) != MP_RES_VALID) {
            make_room(space);
            CHECK_EQ(mp_space_load(space, u, MP_PRIORITY_DEMAND), MP_OK);
            status = mp_space_wait(space, u);
        }
        CHECK_EQ(mp_space_state(space, u), status == MP_OK ? MP_RES_VALID : MP_RES_FAILED);
        CHECK(mp_space_check(space));
        if (status != MP_OK)
            result = result == MP_OK ? status : result;
        else if (look)
            world_verify(w, u);
        if (look && mp_space_in_host(space, u))
            world_verify_host(w, u);
    }
    return result;
}

/* Eyes for a world that was built here. */
static void open_eyes(struct world *w)
{
    const struct mp_backend_ops *ops = w->backend->ops;

    CHECK_EQ(ops->stream_open(w->backend, &w->stream), MP_OK);
    CHECK_EQ(ops->frame_create(w->backend, MP_TIER_HOST, LOOK_BYTES, &w->frame), MP_OK);
}

static void close_eyes(struct world *w)
{
    w->backend->ops->stream_close(w->backend, w->stream);
    w->backend->ops->frame_destroy(w->backend, &w->frame);
}

/* What could not be given back outlives its context; nothing else may be seen. */
static void check_only_losses(void)
{
    char text[256] = "";

    if (fake_api.violations(text, sizeof(text)) > 0 && strstr(text, "of its memory alive") == NULL)
        CHECK_STR(text, "");
}

/* What was built under failures, or a new one where that came to nothing or the device was lost for
 * it, must work to the last byte. */
static void check_it_works(struct world *w, const struct variant *variant)
{
    if (w->space != NULL && load_all(w, false) != MP_OK) {
        tear_down(w);
    } else if (w->space == NULL) {
        mp_files_destroy(w->files);
        mp_backend_close(w->backend);
        *w = (struct world){ .backend = NULL };
    }
    if (w->space == NULL)
        CHECK_EQ(build(w, variant), MP_OK);
    open_eyes(w);
    CHECK_EQ(load_all(w, true), MP_OK);
    CHECK_EQ(load_all(w, true), MP_OK);
    close_eyes(w);
    check_only_losses();
    tear_down(w);
}

static void note_failure(enum mp_status status)
{
    if (status == MP_OK)
        return;
    CHECK(status != MP_ERR_INVALID);
    CHECK_EQ(mp_error_last()->status, status);
    CHECK(mp_error_last()->code[0] != '\0' && mp_error_last()->text[0] != '\0');
    failed_runs++;
}

static void set_machine(const struct variant *variant)
{
    if (variant->unpinned)
        fake_api.fail("cuMemHostRegister_v2", 0, MP_CU_ERROR_OUT_OF_MEMORY, true);
}

static void run_once(const struct fault_plan *plan, void *ctx)
{
    const struct variant *variant = ctx;
    struct world w = { .backend = NULL };
    enum mp_status status;

    mp_error_clear();
    set_machine(variant);
    fault_begin(plan);
    status = build(&w, variant);
    if (status == MP_OK)
        status = load_all(&w, false);
    fault_end();
    note_failure(status);
    check_it_works(&w, variant);
    check_nothing_lives();
}

static void every_call_of_the_system_fails_cleanly(const struct variant *variant)
{
    struct variant copy = *variant;
    uint32_t runs;

    failed_runs = 0;
    runs = fault_sweep(FAULT_ANY, run_once, &copy);
    fprintf(stderr, "  %s: %u sites, %u runs, %u of them with an error\n", variant->name,
            fault_sites_failed(FAULT_ANY), runs, failed_runs);
    CHECK(fault_sites_failed(FAULT_ANY) >= 20);
    CHECK(failed_runs > 20 && failed_runs < runs);
}

/* How a place fails: its call number `nth`, once or from then on, and what would undo it too. */
struct way {
    uint64_t nth;
    int result;
    bool forever, undo, end; /* end: until the space is gone */
};

static void run_site(const struct variant *variant, const void *site, const struct way *way)
{
    struct world w = { .backend = NULL };
    enum mp_status status;

    mp_error_clear();
    set_machine(variant);
    if (site != NULL) {
        fake_api.fail_site(site, way->nth, way->result, way->forever);
        fake_api.fail_undo(way->undo ? 999 : 0);
    }
    status = build(&w, variant);
    if (status == MP_OK)
        status = load_all(&w, false);
    note_failure(status);
    check_only_losses();
    if (site != NULL && way->end && w.space != NULL)
        tear_down(&w);
    fake_api.reset(); /* with the law that nothing may live when a context ends */
    check_it_works(&w, variant);
    fake_api.clear();
}

static void every_call_of_the_driver_fails_cleanly(const struct variant *variant)
{
    static const struct way ways[] = {
        { 0, 2, false, false, false },  { 0, 999, false, true, false },
        { 1, 999, true, false, true },  { 2, 700, false, false, false },
        { 0, 999, false, false, true },
    };
    static struct fakecuda_site sites[SITES_MAX];
    unsigned count, runs = 0;

    failed_runs = 0;
    run_site(variant, NULL, NULL);
    CHECK_EQ(failed_runs, 0);
    for (unsigned i = 0; i < (count = fake_api.sites(sites, SITES_MAX)); i++) {
        for (size_t k = 0; k < MP_ARRAY_LEN(ways); k++, runs++)
            run_site(variant, sites[i].address, &ways[k]);
    }
    fprintf(stderr, "  %s: %u places that call the driver, %u runs, %u of them with an error\n",
            variant->name, count, runs, failed_runs);
    CHECK(count > 25 && count < SITES_MAX);
    CHECK(failed_runs > 25 && failed_runs < runs);
}

int main(int argc, char **argv)
{
    const bool driver = argc > 1 && strncmp(argv[1], "driver", 6) == 0;
    const bool unpinned = argc > 1 && strstr(argv[1], "unpinned") != NULL;
    struct mp_files *files;

    setenv("FAKECUDA_MEMORY", "17179869184", 1); /* what is lost stays so for all runs */
    setenv("FAKECUDA_GRANULE", "65536", 1);      /* little to copy */
    if (unpinned)
        setenv("FAKECUDA_HOST_NUMA", "0", 1);
    mp_log_set_sink(world_keep_line, NULL);
    find_fake();
    CHECK_EQ(mp_files_create(&files), MP_OK);
    for (uint32_t f = 0; f < FILES; f++)
        test_add_file(files, f, FILE_BYTES);
    mp_files_destroy(files);
    for (size_t i = 0; i < MP_ARRAY_LEN(variants); i++) {
        if (variants[i].unpinned != unpinned)
            continue;
        make_units(&variants[i]);
        if (driver)
            every_call_of_the_driver_fails_cleanly(&variants[i]);
        else
            every_call_of_the_system_fails_cleanly(&variants[i]);
    }
    return 0;
}
