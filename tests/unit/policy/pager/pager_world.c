/* A pager over a temporary file; see pager_world.h. */
#include "tests/unit/policy/calibration.h"
#include "tests/unit/policy/pager/pager_world.h"

#include <sched.h>

#include "tests/unit/vmm/space/space_files.h"

#define FILE_BYTES 1500001u
#define PIECE_BYTES 1500u

void world_prepare(void)
{
    struct mp_files *files;

    CHECK_EQ(mp_files_create(&files), MP_OK);
    test_add_file(files, 0, FILE_BYTES);
    mp_files_destroy(files);
}

/* Three pieces at odd places each, of once, twice or three times the size. */
static void make_units(struct world *world, uint32_t sizes)
{
    const uint64_t span = FILE_BYTES / 3;

    CHECK(sizes <= 3);
    for (uint32_t u = 0; u < world->unit_count; u++) {
        world->units[u].piece_count = 3;
        for (uint32_t p = 0; p < 3; p++)
            world->units[u].pieces[p] = (struct mp_piece){
                .offset_bytes = span * p + (uint64_t)u * 3 * PIECE_BYTES % (span - 3 * PIECE_BYTES),
                .bytes = PIECE_BYTES * (sizes > 1 ? 1 + u % sizes : 1),
            };
    }
}

static enum mp_status open_space(const struct world_options *options, struct world *world)
{
    const bool held = options->reads_clock != NULL, mixed = options->sizes > 1;
    struct mp_space_config config = {
        .units = world->units,
        .unit_count = world->unit_count,
        .io_mode = MP_IO_BUFFERED,
        .reader = { .uring = options->uring,
                    .depth = held ? 1 : 4,
                    .threads = held ? 1 : 3,
                    .chunk_bytes = 4096 },
        .clock = held ? options->reads_clock : mp_clock_monotonic(),
        .counters = &world->counters,
        .budget_bytes = UINT64_MAX,
    };
    struct mp_space_plan plan;
    enum mp_status status;

    config.backend = world->backend;
    config.files = world->files;
    status = mp_space_make_plan(&config, &plan);
    if (status != MP_OK)
        return status;
    config.budget_bytes = plan.smallest_bytes;
    if (mixed)
        config.budget_bytes +=
            (plan.full_bytes - plan.smallest_bytes) * options->slots / world->unit_count;
    for (;;) {
        status = mp_space_make_plan(&config, &plan);
        if (status != MP_OK)
            return status;
        if (mixed || plan.slots >= options->slots)
            break;
        config.budget_bytes += plan.slot_bytes_max;
    }
    if (!mixed)
        CHECK_EQ(plan.slots, options->slots);
    status = mp_space_create(&config, &world->space);
    if (status == MP_OK)
        mp_pager_fit_shape(world->space, &world->shape);
    return status;
}

static enum mp_status open_policies(const struct world_options *options, struct world *world)
{
    struct mp_policy_names names = options->names;
    struct mp_profile chosen;
    enum mp_status status;

    if (options->set != NULL) {
        world->policies = *options->set;
        return MP_OK;
    }
    if (names.profile == NULL)
        names.profile = "lru";
    status = mp_policy_resolve(&names, &chosen);
    if (status == MP_OK)
        status = mp_policies_create(&chosen, &world->shape, NULL, &world->policies);
    world->own_policies = status == MP_OK;
    return status;
}

static enum mp_status open_parts(const struct world_options *options, struct world *world)
{
    const struct mp_backend_config backend = { .numa_node = -1 };
    enum mp_status status = mp_backend_open("host", &backend, &world->backend);
    char path[4200];
    uint32_t index;

    if (status == MP_OK)
        status = mp_files_create(&world->files);
    snprintf(path, sizeof(path), "%s/weights-0.bin", test_tmpdir_path);
    if (status == MP_OK)
        status = mp_files_add(world->files, AT_FDCWD, path, &index);
    if (status == MP_OK)
        status = open_space(options, world);
    if (status == MP_OK)
        status = open_policies(options, world);
    if (status != MP_OK)
        return status;
    world->config = (struct mp_pager_config){
        .space = world->space,
        .policies = &world->policies,
        .shape = world->shape,
        .clock = mp_clock_monotonic(),
        .counters = &world->counters,
        .deterministic = options->deterministic,
    };
    return mp_pager_create(&world->config, &world->pager);
}

enum mp_status world_try_open(const struct world_options *options, struct world *world)
{
    enum mp_status status;

    memset(world, 0, sizeof(*world));
    mp_counters_reset(&world->counters);
    world->unit_count =
        options->layers * options->experts * (options->slices > 1 ? options->slices : 1);
    world->shape = (struct mp_shape){
        .layers = options->layers,
        .experts = options->experts,
        .top_k = options->top_k,
        .tokens_max = 16,
        .seed = options->seed,
        .calibration = test_calibration(options->layers, options->experts),
        .slices = options->slices,
    };
    world->units = calloc(world->unit_count, sizeof(*world->units));
    if (world->units == NULL)
        return mp_fail_no_memory("units", 0);
    make_units(world, options->sizes);
    status = open_parts(options, world);
    if (status != MP_OK)
        world_close(world);
    return status;
}

void world_open(const struct world_options *options, struct world *world)
{
    const enum mp_status status = world_try_open(options, world);

    if (status != MP_OK)
        fprintf(stderr, "%s\n", mp_error_last()->text);
    CHECK_EQ(status, MP_OK);
    CHECK(mp_pager_check(world->pager));
}

void world_close(struct world *world)
{
    mp_pager_destroy(world->pager);
    if (world->own_policies)
        mp_policies_destroy(&world->policies);
    mp_space_destroy(world->space);
    mp_files_destroy(world->files);
    mp_backend_close(world->backend);
    free(world->units);
    world->pager = NULL;
    world->units = NULL;
}

bool world_pieces_are_right(const struct world *world, uint32_t unit, const void *const *pieces)
{
    return test_pieces_are_right(&world->units[unit], pieces);
}

enum mp_status world_begin(struct world *world, uint32_t layer, const uint32_t *experts,
                           uint32_t count)
{
    struct mp_need needs[256];

    CHECK(count <= 256);
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct mp_need){ .expert = experts[i], .tokens = 1 };
    return mp_pager_begin(world->pager, layer, needs, count);
}

enum mp_status world_finish(struct world *world, uint32_t layer, const uint32_t *experts,
                            uint32_t count)
{
    const uint32_t slices = world->shape.slices > 1 ? world->shape.slices : 1;
    uint32_t given[256] = { 0 }; /* slices of each */

    for (uint32_t i = 0; i <= count * slices; i++) {
        struct mp_ready ready;
        const enum mp_status status = mp_pager_next(world->pager, &ready);

        if (status != MP_OK)
            return status;
        if (ready.need == MP_NEED_NONE) {
            CHECK_EQ(i, count * slices);
            break;
        }
        CHECK(ready.need < count * slices);
        CHECK_EQ(ready.need % slices, given[ready.need / slices]);
        given[ready.need / slices]++;
        CHECK(world_pieces_are_right(world,
                                     (layer * world->shape.experts + experts[ready.need / slices]) *
                                             slices +
                                         ready.need % slices,
                                     ready.pieces));
        mp_pager_done(world->pager, ready.need);
    }
    mp_pager_end(world->pager);
    return MP_OK;
}

void world_run(struct world *world, uint32_t layer, const uint32_t *experts, uint32_t count)
{
    enum mp_status status = world_begin(world, layer, experts, count);

    if (status == MP_OK)
        status = world_finish(world, layer, experts, count);
    if (status != MP_OK)
        fprintf(stderr, "%s\n", mp_error_last()->text);
    CHECK_EQ(status, MP_OK);
    CHECK(mp_pager_check(world->pager));
    CHECK(world->counters.prefetch_unused_bytes <= world->counters.prefetch_bytes);
}

void world_wait_until_idle(const struct world *world)
{
    while (!mp_space_reader_idle(world->space))
        sched_yield();
}

bool world_is_resident(struct world *world, uint32_t layer, uint32_t expert)
{
    uint8_t resident[64];

    CHECK(world->shape.experts <= sizeof(resident));
    mp_pager_residents(world->pager, layer, false, resident);
    return resident[expert] == 1;
}

static uint64_t gate_now(struct mp_clock *clock)
{
    struct world_gate *gate = (struct world_gate *)clock;

    if (!pthread_equal(pthread_self(), gate->owner)) {
        pthread_mutex_lock(&gate->lock);
        gate->held++;
        pthread_cond_broadcast(&gate->changed);
        while (gate->closed)
            pthread_cond_wait(&gate->changed, &gate->lock);
        gate->held--;
        pthread_mutex_unlock(&gate->lock);
    }
    return mp_clock_now_ns(mp_clock_monotonic());
}

void world_gate_init(struct world_gate *gate)
{
    *gate = (struct world_gate){
        .super = { gate_now },
        .owner = pthread_self(),
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER,
    };
}

void world_gate_set(struct world_gate *gate, bool closed)
{
    pthread_mutex_lock(&gate->lock);
    gate->closed = closed;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

void world_gate_wait(struct world_gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    while (gate->held == 0)
        pthread_cond_wait(&gate->changed, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}
