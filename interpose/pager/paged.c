/*
 * The life of a paged model: whether it is one, how much RAM it gets, and its pager.
 */
#include "interpose/pager/paged.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interpose/pager/scores.h"
#include "interpose/pager/uploads.h"
#include "vmm/base/arena.h"
#include "vmm/base/error.h"
#include "vmm/output/timeline.h"
#include "vmm/topo/memory_room.h"

/* Addresses of our threads, and of those that the program has not started yet. */
#define ADDRESSES_SPARE (UINT64_C(256) << 20)

bool mp_paged_find_path(int fd, char path[PATH_MAX])
{
    char link[64];
    ssize_t bytes;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    bytes = readlink(link, path, PATH_MAX - 1);
    if (bytes <= 0)
        return false;
    path[bytes] = '\0';
    return true;
}

bool mp_paged_is_gguf(int fd)
{
    _Alignas(MP_SPACE_PAGE_BYTES) char head[MP_SPACE_PAGE_BYTES]; /* as O_DIRECT wants it */
    struct stat st;

    /* A read may start or empty a device, and wait in files of /proc, which have no size. */
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= (off_t)sizeof(head) &&
           pread(fd, head, sizeof(head), 0) == (ssize_t)sizeof(head) &&
           memcmp(head, "GGUF", 4) == 0;
}

uint32_t mp_paged_file_of(const struct mp_paged *paged, int fd)
{
    struct stat program, own;

    if (fstat(fd, &program) != 0)
        return UINT32_MAX;
    for (uint32_t f = 0; f < mp_files_count(paged->experts.files); f++) {
        if (fstat(mp_files_fd(paged->experts.files, f), &own) == 0 &&
            own.st_dev == program.st_dev && own.st_ino == program.st_ino)
            return f;
    }
    return UINT32_MAX;
}

static bool unmap(void *ctx, uint32_t unit)
{
    struct mp_paged *paged = ctx;

    if (mp_mappings_unmap_unit(paged->mappings, unit))
        return true;
    paged->why = "the program has written to them, or the file cannot be mapped any more";
    return false;
}

static struct mp_space_config space_config(struct mp_paged *paged)
{
    return (struct mp_space_config){
        .backend = paged->backend,
        .files = paged->experts.files,
        .units = paged->experts.units,
        .unit_count = paged->experts.layers * paged->experts.experts,
        .budget_bytes = paged->budget_bytes,
        .io_mode = (enum mp_io_mode)paged->settings.io.mode,
        .populate = paged->settings.populate != 0,
        .whole_pages = true,
        .by_piece = true,
        .leaving = unmap,
        .leaving_ctx = paged,
        .reader = mp_io_reader_config(&paged->settings.io, NULL, mp_clock_monotonic(), NULL),
        .clock = mp_clock_monotonic(),
        .timeline = paged->timeline,
        .counters = &paged->counters,
    };
}

static uint64_t less(uint64_t bytes, uint64_t taken)
{
    return bytes > taken ? bytes - taken : 0;
}

/* The most mappings that so many resident units take: two for each piece, its own and the file's
 * behind it, but no more than there are pieces. */
static uint64_t maps_of(const struct mp_experts *experts, uint64_t units)
{
    uint64_t pieces = experts->tensor_count;
    uint32_t most = 1;

    for (uint32_t u = 0; u < experts->layers * experts->experts; u++) {
        const uint32_t count = experts->units[u].piece_count;

        pieces += count;
        most = count > most ? count : most;
    }
    return 2 * most * units < pieces ? 2 * most * units : pieces;
}

/* The budget that the kernel has mappings for. */
static uint64_t bytes_of_mappings(const struct mp_experts *experts,
                                  const struct mp_paged_others *others,
                                  const struct mp_space_plan *plan)
{
    const uint64_t left = less(mp_memory_maps_left(), others->maps);

    if (maps_of(experts, UINT32_MAX) <= left)
        return UINT64_MAX;
    return left / maps_of(experts, 1) * plan->slot_bytes_max;
}

void mp_paged_add_other(const struct mp_paged *paged, struct mp_paged_others *others)
{
    uint64_t empty;

    if (paged == NULL)
        return;
    /* It may be counting: a guess will do. */
    empty = less(paged->budget_bytes, paged->counters.resident_peak_bytes);
    others->budget_bytes += paged->budget_bytes;
    others->empty_bytes += empty;
    if (paged->plan.slot_bytes_max > 0)
        others->maps += maps_of(&paged->experts, empty / paged->plan.slot_bytes_max);
}

/* A program that runs within `ulimit -v` must go on to: the files are about to be mapped, and our
 * threads' stacks and heaps are addresses too. */
static enum mp_status check_addresses(const struct mp_paged *paged,
                                      const struct mp_memory_room *room)
{
    uint64_t need = paged->budget_bytes + ADDRESSES_SPARE;

    for (uint32_t f = 0; f < mp_files_count(paged->experts.files); f++)
        need += mp_files_bytes(paged->experts.files, f);
    if (room->address_bytes >= need)
        return MP_OK;
    return mp_fail(MP_ERR_CONFIG, "E_BUDGET_SMALL",
                   "the limit on addresses leaves %" PRIu64 " bytes, and %" PRIu64 " are needed to "
                   "map the model and page it; raise ulimit -v",
                   room->address_bytes, need);
}

/* Copies of the other weights cannot be dropped when memory runs short, as the file's pages can:
 * there must be room for them and for the program when all slots are full. */
static bool has_room_for_dense(const struct mp_paged *paged, const struct mp_paged_others *others,
                               const struct mp_memory_room *room)
{
    return room->room_bytes >= paged->budget_bytes + others->empty_bytes +
                                   mp_paged_dense_bytes(&paged->experts) + MP_MEMORY_PROGRAM_BYTES;
}

/* MP_ERR_UNSUPPORTED: the budget holds all there is. A size is for all models together, and who
 * comes first takes it; a part is one of each model. */
static enum mp_status choose_budget(struct mp_paged *paged, const struct mp_paged_others *others,
                                    const struct mp_space_plan *full)
{
    const struct mp_share *share = &paged->settings.budget;
    const uint64_t mappings = bytes_of_mappings(&paged->experts, others, full);
    struct mp_memory_room room;
    uint64_t budget, spare = 0;

    mp_memory_room_read("", &room);
    if (share->kind == MP_SHARE_AUTO)
        spare = less(mp_memory_room_beside(&room, mp_paged_dense_bytes(&paged->experts)),
                     others->empty_bytes);
    budget = mp_share_resolve(share, full->unit_bytes, spare);
    if (share->kind == MP_SHARE_BYTES)
        budget = less(budget, others->budget_bytes);
    if (share->kind == MP_SHARE_ALL || budget >= full->full_bytes ||
        (share->kind == MP_SHARE_PPM && share->amount == 1000000)) {
        /* Who wants a report would look for it. */
        mp_log_once(paged->settings.files.report[0] != '\0' ? MP_LOG_WARN : MP_LOG_INFO, "preload",
                    "the budget holds all experts of a model, so nothing is paged");
        return MP_ERR_UNSUPPORTED;
    }
    if (share->kind == MP_SHARE_AUTO && budget < full->smallest_bytes)
        budget = full->smallest_bytes;
    if (mappings < full->smallest_bytes)
        return mp_fail(MP_ERR_CONFIG, "E_BUDGET_SMALL",
                       "vm.max_map_count allows for %" PRIu64 " bytes of experts beside the "
                       "program's mappings, and %" PRIu64 " are needed (two slots)",
                       mappings, full->smallest_bytes);
    if (budget > mappings) {
        mp_log_warn("preload",
                    "vm.max_map_count allows for %" PRIu64 " of %" PRIu64 " bytes of experts",
                    mappings, budget);
        budget = mappings;
    }
    if (budget < full->smallest_bytes)
        return mp_fail(MP_ERR_CONFIG, "E_BUDGET_SMALL",
                       "budget of %" PRIu64 " bytes is below the smallest for this model: need "
                       "%" PRIu64 " (two slots); raise MOEPAGER_BUDGET",
                       budget, full->smallest_bytes);
    paged->budget_bytes = budget;
    paged->dense_fits = has_room_for_dense(paged, others, &room);
    return check_addresses(paged, &room);
}

static enum mp_status plan(struct mp_paged *paged, const struct mp_paged_others *others)
{
    const struct mp_backend_config anywhere = { .numa_node = -1 };
    struct mp_space_config config;
    struct mp_space_plan full;
    enum mp_status status = mp_backend_host.open(&anywhere, NULL, &paged->backend);

    if (status != MP_OK)
        return status;
    config = space_config(paged);
    config.budget_bytes = UINT64_MAX;
    status = mp_space_make_plan(&config, &full);
    paged->backend->ops->close(paged->backend);
    paged->backend = NULL;
    return status == MP_OK ? choose_budget(paged, others, &full) : status;
}

/* Slots are parts of a memory file: not every sandbox has those, nor every limit on files room. */
static enum mp_status open_backend(struct mp_paged *paged)
{
    const struct mp_backend_config config = { .numa_node = -1,
                                              .huge_pages = paged->settings.huge_pages != 0,
                                              .memory_file_bytes = paged->budget_bytes };

    return mp_backend_host.open(&config, NULL, &paged->backend);
}

static enum mp_status make_space(struct mp_paged *paged)
{
    enum mp_status status = open_backend(paged);
    struct mp_space_config config;

    if (status != MP_OK)
        return status;
    config = space_config(paged);
    status = mp_space_create(&config, &paged->space);
    if (status == MP_OK)
        mp_space_get_plan(paged->space, &paged->plan);
    return status;
}

static enum mp_status make_pager(struct mp_paged *paged)
{
    struct mp_pager_config config = {
        .space = paged->space,
        .policies = &paged->policies,
        .clock = mp_clock_monotonic(),
        .timeline = paged->timeline,
        .counters = &paged->counters,
    };
    enum mp_status status;

    paged->shape = (struct mp_shape){
        .layers = paged->experts.layers,
        .experts = paged->experts.experts,
        .top_k = paged->experts.top_k,
        .tokens_max = MP_PAGED_TOKENS_MAX,
        .seed = paged->settings.seed,
        .slices = 1,
        .costs = &paged->costs,
    };
    mp_pager_fit_shape(paged->space, &paged->shape);
    config.shape = paged->shape;
    status = mp_policies_create(&paged->profile, &paged->shape, NULL, &paged->policies);
    return status == MP_OK ? mp_pager_create(&config, &paged->pager) : status;
}

static void take_tables(struct mp_paged *paged, struct mp_arena *arena)
{
    const uint64_t experts = paged->experts.experts, units = paged->experts.layers * experts;

    paged->ready = mp_arena_take(arena, units, sizeof(*paged->ready));
    paged->unreadable = mp_arena_take(arena, units, sizeof(*paged->unreadable));
    paged->needs = mp_arena_take(arena, experts, sizeof(*paged->needs));
    paged->leased = mp_arena_take(arena, experts, sizeof(*paged->leased));
    paged->slots = mp_arena_take(arena, experts, sizeof(*paged->slots));
    paged->resident = mp_arena_take(arena, experts, sizeof(*paged->resident));
    paged->counts = mp_arena_take(arena, experts, sizeof(*paged->counts));
    paged->chosen = mp_arena_take(arena, MP_PAGED_TOKENS_MAX * experts, sizeof(*paged->chosen));
}

static enum mp_status make_tables(struct mp_paged *paged)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    take_tables(paged, &arena);
    status = mp_arena_open(&arena, "the tables of a model");
    if (status != MP_OK)
        return status;
    paged->tables = arena.block;
    take_tables(paged, &arena);
    return MP_OK;
}

/* As far as nothing is made: is it to be paged, and with which budget? */
static enum mp_status decide(struct mp_paged *paged, const struct mp_paged_others *others, int fd)
{
    char magic[4];
    enum mp_status status = MP_ERR_UNSUPPORTED;

    if (mp_paged_find_path(fd, paged->path) &&
        pread(fd, magic, sizeof(magic), 0) == (ssize_t)sizeof(magic))
        status = mp_experts_open(paged->path, memcmp(magic, "GGUF", sizeof(magic)) != 0,
                                 &paged->experts);
    /* Somebody else's file by that name is not what the program has open. */
    if (status == MP_OK && mp_paged_file_of(paged, fd) == UINT32_MAX)
        status = MP_ERR_UNSUPPORTED;
    return status == MP_OK ? plan(paged, others) : status;
}

/* The best that the program has, or what was asked for. */
static enum mp_paged_source choose_source(const struct mp_paged *paged)
{
    const mp_find_fn find = paged->host.find;

    switch ((enum mp_preload_hooks)paged->settings.files.hooks) {
    case MP_PRELOAD_HOOKS_EXPERT: return MP_SOURCE_EXPERT;
    case MP_PRELOAD_HOOKS_ROUTER: return MP_SOURCE_CHOSEN;
    case MP_PRELOAD_HOOKS_TOUCHES: return MP_SOURCE_TOUCHES;
    default: break;
    }
    if (find(NULL, "ggml_compute_forward_mul_mat_id_tiled") != NULL)
        return MP_SOURCE_EXPERT;
    return find(NULL, "ggml_backend_sched_set_eval_callback") != NULL ? MP_SOURCE_CHOSEN
                                                                      : MP_SOURCE_TOUCHES;
}

static enum mp_status make(struct mp_paged *paged, const struct mp_paged_others *others, int fd)
{
    enum mp_status status = decide(paged, others, fd);

    if (status != MP_OK)
        return status;
    paged->source = choose_source(paged);
    status = mp_interpose_settings_policies(&paged->settings, paged->experts.hidden > 0,
                                            &paged->profile);
    if (status == MP_OK)
        status = mp_mappings_create(&paged->host, &paged->experts, &paged->mappings);
    if (status == MP_OK) {
        mp_paged_timeline_create(paged);
        status = make_space(paged);
    }
    if (status == MP_OK)
        status = make_pager(paged);
    if (status == MP_OK)
        status = make_tables(paged);
    return status;
}

static struct mp_paged *make_empty(const struct mp_host *host,
                                   const struct mp_interpose_settings *settings)
{
    struct mp_paged *paged = calloc(1, sizeof(*paged));

    if (paged == NULL)
        return NULL;
    paged->settings = *settings;
    paged->host = *host;
    paged->costs = (struct mp_costs){ .executor_count = 1, .executors = { { .name = "program" } } };
    mp_counters_reset(&paged->counters);
    pthread_mutex_init(&paged->mutex, NULL);
    return paged;
}

bool mp_paged_would_be(const struct mp_host *host, const struct mp_interpose_settings *settings,
                       const struct mp_paged_others *others, int fd)
{
    struct mp_paged *paged = make_empty(host, settings);
    const bool would =
        paged != NULL && decide(paged, others, fd) == MP_OK && open_backend(paged) == MP_OK;

    mp_paged_destroy(paged);
    mp_error_clear();
    return would;
}

enum mp_status mp_paged_create(const struct mp_host *host,
                               const struct mp_interpose_settings *settings,
                               const struct mp_paged_others *others, int fd,
                               struct mp_paged **paged_p)
{
    struct mp_paged *paged = make_empty(host, settings);
    enum mp_status status;

    if (paged == NULL)
        return mp_fail_no_memory("a paged model", sizeof(*paged));
    paged->index = others->index;
    paged->started_ns = mp_clock_now_ns(mp_clock_monotonic());
    status = make(paged, others, fd);
    if (status != MP_OK) {
        mp_paged_destroy(paged);
        return status;
    }
    paged->record = mp_paged_record_create(paged);
    paged->ahead = mp_paged_ahead_create(paged);
    paged->scores = mp_paged_scores_create(paged);
    paged->watch = mp_paged_watch_create(paged);
    if (settings->files.dense != 0)
        paged->dense = mp_paged_dense_create(paged);
    if (settings->files.dense != 0 && !paged->dense_fits)
        mp_log_info("preload",
                    "%s: weights that are no experts stay the file's: there is no room for them "
                    "beside the budget",
                    paged->path);
    mp_log_info("preload",
                "%s: %" PRIu32 " layers of %" PRIu32 " experts, %" PRIu32 " of them in %" PRIu64
                " bytes, reads by %s",
                paged->path, paged->experts.layers, paged->experts.experts, paged->plan.slots,
                paged->budget_bytes, mp_space_reader_engine(paged->space));
    if (paged->experts.table_count > 0)
        mp_log_info("preload",
                    "%s: %" PRIu64
                    " bytes of tables stay the file's: tokens read few of their rows",
                    paged->path, mp_experts_table_bytes(&paged->experts));
    *paged_p = paged;
    return MP_OK;
}

/* Also takes a half-made one. */
void mp_paged_destroy(struct mp_paged *paged)
{
    if (paged == NULL)
        return;
    if (paged->mappings != NULL && mp_mappings_lost_descriptor(paged->mappings)) {
        atomic_store(&paged->off, true); /* it stays as it is: what we would close is not ours */
        return;
    }
    mp_paged_dense_destroy(paged->dense);
    mp_paged_watch_destroy(paged->watch);
    if (paged->open)
        mp_paged_close_layer(paged);
    if (paged->mappings != NULL)
        mp_mappings_unmap_units(paged->mappings);
    mp_paged_record_end(paged);
    mp_paged_ahead_destroy(paged->ahead);
    mp_paged_scores_destroy(paged->scores);
    mp_pager_destroy(paged->pager);
    mp_policies_destroy(&paged->policies);
    mp_upload_close(paged);
    mp_space_destroy(paged->space);
    if (paged->backend != NULL)
        paged->backend->ops->close(paged->backend);
    mp_mappings_destroy(paged->mappings);
    mp_experts_close(&paged->experts);
    mp_timeline_destroy(paged->timeline);
    free(paged->tables);
    pthread_mutex_destroy(&paged->mutex);
    free(paged);
}
