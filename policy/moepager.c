/*
 * The public library interface over space and pager. Errors of the caller are reported here by a
 * status, because the pager only asserts.
 */
#include "policy/moepager.h"

#include <fcntl.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "policy/pager/pager.h"
#include "vmm/backend/backend.h"
#include "vmm/base/arena.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/base/version.h"
#include "vmm/io/io_options.h"

#define X(name, value, exit_code, text) \
    _Static_assert((int)MOEPAGER_##name == (value), "status " #name " differs");
MP_STATUS_MAP(X)
#undef X
_Static_assert(MOEPAGER_PIECES_MAX == MP_UNIT_PIECES_MAX, "pieces of a unit");
_Static_assert(MOEPAGER_NONE == MP_NEED_NONE, "no need left");

struct moepager {
    struct mp_files *files;
    struct mp_backend *backend;
    struct mp_space *space;
    struct mp_policies policies;
    struct mp_pager *pager;
    struct mp_counters counters;
    uint32_t layers, experts, slices;
    void *block;           /* both arrays */
    struct mp_need *needs; // (experts)
    uint8_t *handed;       // (experts * slices): of the open layer: 1 handed out, 2 given back
    uint32_t need_count, done_count; /* slices */
    bool open;
    uint64_t budget_bytes;
    int event_fd; /* -1: nobody has asked for it */
};

static struct {
    void (*line)(void *ctx, int level, const char *text);
    void *ctx;
} log_target;

static void log_line(void *unused, enum mp_log_level level, const char *line)
{
    (void)unused;
    if (log_target.line != NULL)
        log_target.line(log_target.ctx, (int)level, line);
}

static void take_log(void)
{
    mp_log_set_sink(log_line, NULL);
}

/* First thing in every call that can fail. */
static void enter(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, take_log);
    mp_error_clear();
}

const char *moepager_version(void)
{
    return mp_version;
}

const char *moepager_status_text(enum moepager_status status)
{
    return mp_status_str((enum mp_status)status);
}

const char *moepager_error_code(void)
{
    return mp_error_last()->code;
}

const char *moepager_error_text(void)
{
    return mp_error_last()->text;
}

void moepager_set_log(void (*line)(void *ctx, int level, const char *text), void *ctx)
{
    log_target.line = line;
    log_target.ctx = ctx;
}

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

    enter();
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

    enter();
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

/* Is it a layer of this pager, and are the experts in range? */
static enum mp_status check_experts(const struct moepager *pager, uint32_t layer,
                                    const uint32_t *experts, uint32_t count)
{
    if (layer >= pager->layers || count > pager->experts)
        return mp_fail(MP_ERR_INVALID, "E_INVALID",
                       "%u experts of layer %u: there are %u layers of %u experts", count, layer,
                       pager->layers, pager->experts);
    for (uint32_t i = 0; i < count; i++) {
        if (experts[i] >= pager->experts)
            return mp_fail(MP_ERR_INVALID, "E_INVALID", "expert %u of layer %u: there are %u",
                           experts[i], layer, pager->experts);
    }
    return MP_OK;
}

enum moepager_status moepager_begin(struct moepager *pager, uint32_t layer, const uint32_t *experts,
                                    const uint32_t *tokens, uint32_t count)
{
    enum mp_status status;

    enter();
    status = check_experts(pager, layer, experts, count);
    for (uint32_t i = 0; i < count && status == MP_OK; i++) {
        pager->needs[i].expert = experts[i];
        pager->needs[i].tokens = tokens != NULL ? tokens[i] : 1;
        if (pager->needs[i].tokens == 0)
            status =
                mp_fail(MP_ERR_INVALID, "E_INVALID", "expert %u is needed by no token", experts[i]);
    }
    if (status == MP_OK)
        status = mp_pager_begin(pager->pager, layer, pager->needs, count);
    if (status == MP_OK) {
        memset(pager->handed, 0, (size_t)pager->experts * pager->slices);
        pager->need_count = count * pager->slices;
        pager->done_count = 0;
        pager->open = true;
    }
    return (enum moepager_status)status;
}

static void hand_out(struct moepager *pager, const struct mp_ready *ready,
                     struct moepager_ready *ready_p)
{
    ready_p->index = ready->need;
    if (ready->need == MP_NEED_NONE)
        return;
    pager->handed[ready->need] = 1;
    memcpy(ready_p->pieces, ready->pieces, sizeof(ready_p->pieces));
}

enum moepager_status moepager_next(struct moepager *pager, struct moepager_ready *ready_p)
{
    struct mp_ready ready;
    enum mp_status status;

    enter();
    status = mp_pager_next(pager->pager, &ready);
    if (status == MP_ERR_BUSY)
        return (enum moepager_status)mp_fail(
            MP_ERR_BUSY, "E_BUSY",
            "all room is taken by experts that are handed out; call moepager_done() first");
    if (status == MP_OK)
        hand_out(pager, &ready, ready_p);
    return (enum moepager_status)status;
}

static bool at_once(void *unused)
{
    (void)unused;
    return true;
}

enum moepager_status moepager_try_next(struct moepager *pager, struct moepager_ready *ready_p)
{
    const struct mp_interrupt never_wait = { .ready = at_once };
    struct mp_ready ready;
    enum mp_status status;

    enter();
    status = mp_pager_next_or(pager->pager, &never_wait, &ready);
    if (status == MP_ERR_BUSY) {
        mp_error_clear();
        ready_p->index = MOEPAGER_PENDING;
        return MOEPAGER_OK;
    }
    if (status == MP_OK)
        hand_out(pager, &ready, ready_p);
    return (enum moepager_status)status;
}

enum moepager_status moepager_event_fd(struct moepager *pager, int *fd_p)
{
    enter();
    if (pager->event_fd < 0) {
        const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

        if (fd < 0)
            return (enum moepager_status)mp_fail(MP_ERR_IO, "E_EVENT_FD",
                                                 "cannot make an eventfd: %s", strerror(errno));
        pager->event_fd = fd;
        mp_space_tell(pager->space, fd);
    }
    *fd_p = pager->event_fd;
    return MOEPAGER_OK;
}

enum moepager_status moepager_done(struct moepager *pager, uint32_t index)
{
    enter();
    if (!pager->open || index >= pager->need_count || pager->handed[index] != 1)
        return (enum moepager_status)mp_fail(MP_ERR_INVALID, "E_INVALID",
                                             "index %u is not handed out", index);
    mp_pager_done(pager->pager, index);
    pager->handed[index] = 2;
    pager->done_count++;
    return MOEPAGER_OK;
}

enum moepager_status moepager_end(struct moepager *pager)
{
    enter();
    if (!pager->open || pager->done_count < pager->need_count)
        return (enum moepager_status)mp_fail(
            MP_ERR_INVALID, "E_INVALID", "%s: %u of %u experts were handed out and given back",
            pager->open ? "the layer is not done" : "no layer is open", pager->done_count,
            pager->need_count);
    mp_pager_end(pager->pager);
    pager->open = false;
    return MOEPAGER_OK;
}

void moepager_abort(struct moepager *pager)
{
    if (!pager->open)
        return;
    mp_pager_abort(pager->pager);
    pager->open = false;
}

enum moepager_status moepager_prefetch(struct moepager *pager, uint32_t layer,
                                       const uint32_t *experts, uint32_t count)
{
    enum mp_status status;

    enter();
    status = check_experts(pager, layer, experts, count);
    if (status == MP_OK)
        mp_pager_prefetch(pager->pager, layer, experts, count);
    return (enum moepager_status)status;
}

enum moepager_status moepager_set_budget(struct moepager *pager, uint64_t budget_bytes)
{
    enum mp_status status;

    enter();
    status = mp_pager_set_budget(pager->pager, budget_bytes);
    if (status == MP_OK)
        pager->budget_bytes = budget_bytes;
    return (enum moepager_status)status;
}

void moepager_get_counters(const struct moepager *pager, struct moepager_counters *counters_p)
{
    const struct mp_counters *c = &pager->counters;

    *counters_p = (struct moepager_counters){
        .hits = c->hits,
        .misses = c->misses,
        .load_bytes = c->load_bytes,
        .prefetch_bytes = c->prefetch_bytes,
        .prefetch_unused_bytes = c->prefetch_unused_bytes,
        .evictions = c->evictions,
        .exposed_wait_ns = c->exposed_wait_ns,
        .resident_bytes = c->resident_bytes,
        .resident_peak_bytes = c->resident_peak_bytes,
    };
}

enum moepager_status moepager_get_statistics(struct moepager *pager,
                                             struct moepager_statistics *statistics_p)
{
    const struct mp_counters *c = &pager->counters;
    struct moepager_statistics all = {
        .size = statistics_p->size,
        .hits = c->hits,
        .misses = c->misses,
        .loads = c->loads,
        .load_bytes = c->load_bytes,
        .prefetches = c->prefetch_issued,
        .prefetches_used = c->prefetch_used,
        .prefetch_bytes = c->prefetch_bytes,
        .prefetch_unused_bytes = c->prefetch_unused_bytes,
        .evictions = c->evictions,
        .evicted_bytes = c->evicted_bytes,
        .exposed_wait_ns = c->exposed_wait_ns,
        .budget_bytes = pager->budget_bytes,
        .slots = mp_pager_slots(pager->pager),
        .resident_bytes = c->resident_bytes,
        .resident_peak_bytes = c->resident_peak_bytes,
        .reader = mp_space_reader_engine(pager->space),
    };

    enter();
    if (all.size < sizeof(all.size) || all.size > sizeof(all))
        return (enum moepager_status)mp_fail(
            MP_ERR_INVALID, "E_INVALID",
            "statistics of %zu bytes, need at most %zu; begin with MOEPAGER_STATISTICS_INIT",
            all.size, sizeof(all));
    all.reading = mp_pager_reading(pager->pager);
    memcpy(statistics_p, &all, all.size);
    return MOEPAGER_OK;
}
