/*
 * A thread that looks now and then.
 *
 * Once a second: has a file changed? Then its experts are the file's again, for good. Have few
 * mappings been left to the program? Then it gets ours. Is somebody watching (`moepager top`)? Then
 * it is told.
 *
 * Where no hook says what is read: what has been touched? A page in the middle of each expert is
 * looked up in the process's own page tables (/proc/self/pagemap), and taken out of them when it is
 * there; the next touch brings it back for the price of one minor fault. Nothing is protected and
 * no signal is used, so nothing can break. What was touched counts as used, and is read into a slot
 * if the policies want it to stay: past the first time it is then there.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/pager/paged.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/thread.h"

#define CHECK_NS UINT64_C(1000000000)
#define LOOK_NS UINT64_C(10000000)

/* A look takes this part of the time at most. */
#define LOOK_SHARE 50

#define PRESENT (UINT64_C(1) << 63)

struct mp_paged_watch {
    struct mp_paged *paged;
    pthread_t thread;
    struct mp_mutex lock;
    struct mp_cond changed;
    bool stop MP_GUARDED_BY(lock);
    uint32_t *counts; // (experts): of the layer that is looked at
    uint32_t asked;   /* reports that were asked for, of mp_paged_report_asked */
};

/* The page in the middle of an expert's first piece. */
static char *middle_of(struct mp_paged *paged, uint32_t unit)
{
    const struct mp_piece *piece = &paged->experts.units[unit].pieces[0];
    const uint64_t offset =
        mp_round_down_u64(piece->offset_bytes + piece->bytes / 2, MP_SPACE_PAGE_BYTES);

    return mp_mappings_address(paged->mappings, piece->file, offset, MP_SPACE_PAGE_BYTES);
}

bool mp_paged_was_touched(struct mp_paged *paged, uint32_t unit)
{
    char *at = middle_of(paged, unit);
    uint64_t entry;

    if (at == NULL ||
        pread(paged->pagemap_fd, &entry, sizeof(entry),
              (off_t)((uintptr_t)at / MP_SPACE_PAGE_BYTES * sizeof(entry))) != sizeof(entry) ||
        (entry & PRESENT) == 0)
        return false;
    (void)paged->host.real.madvise(at, MP_SPACE_PAGE_BYTES, MADV_DONTNEED);
    return true;
}

/* Returns how long looking took, without what followed from it. */
static uint64_t look(struct mp_paged_watch *watch)
{
    struct mp_paged *paged = watch->paged;
    struct mp_clock *clock = mp_clock_monotonic();
    const uint32_t experts = paged->experts.experts;
    uint64_t took_ns = 0;

    for (uint32_t l = 0; l < paged->experts.layers && !atomic_load(&paged->off); l++) {
        const uint64_t start_ns = mp_clock_now_ns(clock);
        uint32_t touched = 0;

        for (uint32_t e = 0; e < experts; e++) {
            watch->counts[e] = mp_paged_was_touched(paged, l * experts + e);
            touched += watch->counts[e];
        }
        took_ns += mp_clock_now_ns(clock) - start_ns;
        if (touched == 0)
            continue;
        atomic_fetch_add_explicit(&paged->touches, touched, memory_order_relaxed);
        mp_paged_note_touches(paged, l, watch->counts);
    }
    return took_ns;
}

static void check_files(struct mp_paged *paged)
{
    if (atomic_load(&paged->off))
        return;
    for (uint32_t f = 0; f < mp_files_count(paged->experts.files); f++) {
        if (mp_files_check(paged->experts.files, f) == MP_OK)
            continue;
        pthread_mutex_lock(&paged->mutex);
        mp_paged_stop(paged, mp_error_last()->text);
        pthread_mutex_unlock(&paged->mutex);
    }
    mp_error_clear();
}

_Atomic uint32_t mp_paged_report_asked;

static void *run(void *arg)
{
    struct mp_paged_watch *watch = arg;
    struct mp_clock *clock = mp_clock_monotonic();
    uint64_t wait_ns = watch->paged->pagemap_fd >= 0 ? LOOK_NS : CHECK_NS, checked_ns = 0;

    mp_lock(&watch->lock);
    while (!watch->stop) {
        uint64_t start_ns, took_ns;

        (void)mp_cond_wait_for(&watch->changed, &watch->lock, wait_ns);
        if (watch->stop)
            continue;
        mp_unlock(&watch->lock);
        if (atomic_load(&mp_paged_report_asked) != watch->asked) {
            watch->asked = atomic_load(&mp_paged_report_asked);
            mp_paged_report(watch->paged);
        }
        start_ns = mp_clock_now_ns(clock);
        if (start_ns - checked_ns >= CHECK_NS) {
            check_files(watch->paged);
            mp_mappings_keep_room(watch->paged->mappings);
            mp_paged_tell_top(watch->paged);
            checked_ns = start_ns;
        }
        if (watch->paged->pagemap_fd >= 0 && watch->paged->source == MP_SOURCE_TOUCHES) {
            took_ns = look(watch);
            wait_ns = took_ns * LOOK_SHARE > LOOK_NS ? took_ns * LOOK_SHARE : LOOK_NS;
            wait_ns = wait_ns < CHECK_NS ? wait_ns : CHECK_NS;
        }
        mp_lock(&watch->lock);
    }
    mp_unlock(&watch->lock);
    return NULL;
}

struct mp_paged_watch *mp_paged_watch_create(struct mp_paged *paged)
{
    struct mp_paged_watch *watch = calloc(1, sizeof(*watch));

    if (watch == NULL)
        return NULL;
    watch->paged = paged;
    watch->asked = atomic_load(&mp_paged_report_asked); /* the thread may begin after a signal */
    paged->pagemap_fd = -1;
    watch->counts = calloc(paged->experts.experts, sizeof(*watch->counts));
    if (paged->source == MP_SOURCE_TOUCHES)
        paged->pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    mp_mutex_init(&watch->lock, MP_LOCK_CONTEXT, "watch");
    mp_cond_init(&watch->changed);
    if (watch->counts != NULL && mp_thread_start(&watch->thread, "mp-watch", run, watch) == 0)
        return watch;
    if (paged->pagemap_fd >= 0)
        close(paged->pagemap_fd);
    free(watch->counts);
    free(watch);
    return NULL;
}

void mp_paged_watch_destroy(struct mp_paged_watch *watch)
{
    if (watch == NULL)
        return;
    mp_lock(&watch->lock);
    watch->stop = true;
    mp_cond_signal(&watch->changed);
    mp_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    mp_cond_fini(&watch->changed);
    mp_mutex_fini(&watch->lock);
    if (watch->paged->pagemap_fd >= 0)
        close(watch->paged->pagemap_fd);
    free(watch->counts);
    free(watch);
}
