/*
 * libmoepager: what opens and closes a pager, over space and pager.
 */
#include "policy/library/library_int.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "vmm/backend/backend.h"
#include "vmm/base/arena.h"
#include "vmm/base/error.h"
#include "vmm/io/io_options.h"

static uint32_t slices_of(const struct moepager_config *c)
{
    return c->slices > 1 ? c->slices : 1;
}

static enum mp_status check_config(const struct moepager_config *c)
{
    if (c->size != sizeof(*c))
        return mp_fail(MP_ERR_INVALID, "E_CONFIG_SIZE",
                       "config of %zu bytes, need %zu; begin with MOEPAGER_CONFIG_INIT", c->size,
                       sizeof(*c));
    if (c->files == NULL || c->file_count == 0 || c->pieces == NULL)
        return mp_fail(MP_ERR_INVALID, "E_INVALID", "a config without files or without pieces");
    if (c->layers == 0 || c->layers > 4096 || c->experts == 0 || c->experts > 4096 ||
        c->top_k == 0 || c->top_k > c->experts)
        return mp_fail(MP_ERR_INVALID, "E_INVALID",
                       "%u layers of %u experts, %u per token: need 1 to 4096 layers and experts, "
                       "and 1 to all of them per token",
                       c->layers, c->experts, c->top_k);
    if (c->pieces_per_expert == 0 || c->pieces_per_expert > MOEPAGER_PIECES_MAX)
        return mp_fail(MP_ERR_INVALID, "E_INVALID", "%u pieces per expert, need 1 to %d",
                       c->pieces_per_expert, MOEPAGER_PIECES_MAX);
    if (c->slices > MP_SLICES_MAX)
        return mp_fail(MP_ERR_INVALID, "E_INVALID", "%u slices per expert, need at most %u",
                       c->slices, MP_SLICES_MAX);
    return MP_OK;
}

static enum mp_status open_files(const struct moepager_config *c, struct mp_files *files)
{
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; i < c->file_count && status == MP_OK; i++) {
        uint32_t index;

        status = mp_files_add(files, AT_FDCWD, c->files[i], &index);
    }
    return status;
}

static enum mp_status make_units(const struct moepager_config *c, struct mp_unit **units_p)
{
    const size_t count = (size_t)c->layers * c->experts * slices_of(c);
    struct mp_unit *units = calloc(count, sizeof(*units));

    if (units == NULL)
        return mp_fail_no_memory("the list of experts", count * sizeof(*units));
    for (size_t u = 0; u < count; u++) {
        units[u].piece_count = c->pieces_per_expert;
        for (uint32_t p = 0; p < c->pieces_per_expert; p++) {
            const struct moepager_piece *from = &c->pieces[u * c->pieces_per_expert + p];

            units[u].pieces[p] = (struct mp_piece){ from->file, from->offset_bytes, from->bytes };
        }
    }
    *units_p = units;
    return MP_OK;
}

static enum mp_status choose_policies(const struct moepager_config *c, struct mp_profile *chosen_p)
{
    const struct mp_policy_names names = {
        .profile = c->profile,
        .policy = { [MP_POLICY_ADMIT] = c->admit,
                    [MP_POLICY_EVICT] = c->evict,
                    [MP_POLICY_PARTITION] = c->partition },
    };

    return mp_policy_resolve(&names, chosen_p);
}

/* What open and plan have in common: files, backend and the description of the space. */
static enum mp_status prepare(const struct moepager_config *c, struct moepager *pager,
                              struct mp_unit **units_p, struct mp_space_config *space_p)
{
    const struct mp_backend_config backend_config = { .numa_node = -1, .huge_pages = true };
    struct mp_io_config io;
    enum mp_status status = check_config(c);

    if (status == MP_OK)
        status = mp_files_create(&pager->files);
    if (status == MP_OK)
        status = open_files(c, pager->files);
    if (status == MP_OK)
        status = mp_backend_open("host", &backend_config, &pager->backend);
    if (status == MP_OK)
        status = make_units(c, units_p);
    if (status != MP_OK)
        return status;
    mp_opt_load(mp_io_opts, "MOEPAGER_", &io);
    *space_p = (struct mp_space_config){
        .backend = pager->backend,
        .files = pager->files,
        .units = *units_p,
        .unit_count = c->layers * c->experts * slices_of(c),
        .budget_bytes = c->budget_bytes,
        .io_mode = (enum mp_io_mode)io.mode,
        .reader = mp_io_reader_config(&io, NULL, mp_clock_monotonic(), NULL),
        .clock = mp_clock_monotonic(),
        .counters = &pager->counters,
    };
    return MP_OK;
}

enum moepager_status moepager_plan(const struct moepager_config *config,
                                   struct moepager_plan *plan_p)
{
    struct moepager pager = { 0 };
    struct mp_space_config space = { 0 };
    struct mp_space_plan full, plan;
    struct mp_unit *units = NULL;
    enum mp_status status;

    moepager_enter();
    status = prepare(config, &pager, &units, &space);
    if (status == MP_OK) {
        space.budget_bytes = UINT64_MAX;
        status = mp_space_make_plan(&space, &full);
    }
    if (status == MP_OK && config->budget_bytes >= full.smallest_bytes) {
        space.budget_bytes = config->budget_bytes;
        status = mp_space_make_plan(&space, &plan);
    } else {
        plan.slots = 0;
    }
    if (status == MP_OK)
        *plan_p = (struct moepager_plan){
            .expert_bytes = full.unit_bytes,
            .smallest_bytes = full.smallest_bytes,
            .full_bytes = full.full_bytes,
            .slots = plan.slots / slices_of(config),
        };
    free(units);
    mp_backend_close(pager.backend);
    mp_files_destroy(pager.files);
    return (enum moepager_status)status;
}

static enum mp_status make_pager(const struct moepager_config *c, struct moepager *pager)
{
    struct mp_pager_config config = {
        .space = pager->space,
        .policies = &pager->policies,
        .clock = mp_clock_monotonic(),
        .counters = &pager->counters,
        .deterministic = c->deterministic != 0,
    };
    struct mp_profile chosen;
    enum mp_status status = choose_policies(c, &chosen);

    if (status != MP_OK)
        return status;
    config.shape = (struct mp_shape){
        .layers = c->layers,
        .experts = c->experts,
        .top_k = c->top_k,
        .tokens_max = 1,
        .seed = c->seed,
        .slices = slices_of(c),
    };
    mp_pager_fit_shape(pager->space, &config.shape);
    status = mp_policies_create(&chosen, &config.shape, NULL, &pager->policies);
    return status == MP_OK ? mp_pager_create(&config, &pager->pager) : status;
}

static void take_tables(struct moepager *pager, struct mp_arena *arena)
{
    pager->needs = mp_arena_take(arena, pager->experts, sizeof(*pager->needs));
    pager->handed = mp_arena_take(arena, (uint64_t)pager->experts * pager->slices, 1);
}

static enum mp_status make_tables(struct moepager *pager)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    take_tables(pager, &arena);
    status = mp_arena_open(&arena, "a layer's experts");
    if (status != MP_OK)
        return status;
    pager->block = arena.block;
    take_tables(pager, &arena);
    return MP_OK;
}

enum moepager_status moepager_open(const struct moepager_config *config, struct moepager **pager_p)
{
    struct mp_space_config space = { 0 };
    struct mp_unit *units = NULL;
    struct moepager *pager;
    enum mp_status status;

    moepager_enter();
    pager = calloc(1, sizeof(*pager));
    if (pager == NULL)
        return (enum moepager_status)mp_fail_no_memory("a pager", sizeof(*pager));
    mp_counters_reset(&pager->counters);
    pager->event_fd = -1;
    pager->budget_bytes = config->budget_bytes;
    status = prepare(config, pager, &units, &space);
    if (status == MP_OK)
        status = mp_space_create(&space, &pager->space);
    free(units);
    if (status == MP_OK)
        status = make_pager(config, pager);
    if (status == MP_OK) {
        pager->layers = config->layers;
        pager->experts = config->experts;
        pager->slices = slices_of(config);
        status = make_tables(pager);
    }
    if (status != MP_OK) {
        moepager_close(pager);
        return (enum moepager_status)status;
    }
    *pager_p = pager;
    return MOEPAGER_OK;
}

void moepager_close(struct moepager *pager)
{
    if (pager == NULL)
        return;
    moepager_abort(pager);
    mp_pager_destroy(pager->pager);
    mp_policies_destroy(&pager->policies);
    mp_space_destroy(pager->space);
    mp_backend_close(pager->backend);
    mp_files_destroy(pager->files);
    if (pager->event_fd >= 0)
        (void)close(pager->event_fd);
    free(pager->block);
    free(pager);
}
