/*
 * libmoepager: calls on an open pager, errors and the log. Errors of the caller are reported here
 * by a status, because the pager only asserts.
 */
#include "policy/library/library_int.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>

#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/base/version.h"

#define X(name, value, exit_code, text) \
    _Static_assert((int)MOEPAGER_##name == (value), "status " #name " differs");
MP_STATUS_MAP(X)
#undef X
_Static_assert(MOEPAGER_PIECES_MAX == MP_UNIT_PIECES_MAX, "pieces of a unit");
_Static_assert(MOEPAGER_NONE == MP_NEED_NONE, "no need left");

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

void moepager_enter(void)
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

    moepager_enter();
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

    moepager_enter();
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

    moepager_enter();
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
    moepager_enter();
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
    moepager_enter();
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
    moepager_enter();
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

    moepager_enter();
    status = check_experts(pager, layer, experts, count);
    if (status == MP_OK)
        mp_pager_prefetch(pager->pager, layer, experts, count);
    return (enum moepager_status)status;
}

enum moepager_status moepager_set_budget(struct moepager *pager, uint64_t budget_bytes)
{
    enum mp_status status;

    moepager_enter();
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

    moepager_enter();
    if (all.size < sizeof(all.size) || all.size > sizeof(all))
        return (enum moepager_status)mp_fail(
            MP_ERR_INVALID, "E_INVALID",
            "statistics of %zu bytes, need at most %zu; begin with MOEPAGER_STATISTICS_INIT",
            all.size, sizeof(all));
    all.reading = mp_pager_reading(pager->pager);
    memcpy(statistics_p, &all, all.size);
    return MOEPAGER_OK;
}
