/*
 * Threads that touch frames before they are needed; see populate.h. They write no byte of them.
 *
 * Where reads are faster than they are, the kernel makes single pages on the thread that reads, and
 * whoever computes waits for that: so there are two, which give way to nobody, and memory that has
 * to come at all has come before most of it is used.
 *
 * Where something has been read before they came by, single pages are there already. To make a huge
 * page of them is to copy them, which helps later reads only: that waits until all the rest is
 * there, and takes little of the time. So it is where huge pages come slowly: a virtual machine may
 * have given free memory back in whole huge pages, while single pages lie about, and a program that
 * waits for the former for seconds is better served by the latter.
 */
#include "vmm/space/populate.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/base/clock.h"
#include "vmm/base/error.h"
#include "vmm/base/lock.h"
#include "vmm/base/log.h"
#include "vmm/base/thread.h"

/* What the kernel clears in one go, with the process's map of memory locked: whoever maps something
 * meanwhile waits. */
#define STEP_BYTES (UINT64_C(64) << 10)

/* What becomes one huge page; the file behind frames and their addresses agree modulo this. */
#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)

#define MIN_PAGE_BYTES 4096

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

/* Copying takes one part of so many of the time. */
#define COPY_SHARE 20

/* Copying gives way to compute, but not for ever: it may hold the map of memory while it waits. */
#define NICE 10

/* Huge pages come slowly if so many took longer than this on average (800 MB/s, a tenth of what a
 * processor clears; one that waits for its hypervisor gets 250). */
#define TRIAL_COUNT 8
#define SLOW_NS UINT64_C(2500000)

/* What is worth a second thread. */
#define SECOND_BYTES (UINT64_C(64) << 20)

struct run {
    char *at;
    uint64_t bytes;
};

struct mp_populate {
    pthread_t thread;
    struct mp_clock *clock;
    _Atomic(bool) stop; /* relaxed: only the value itself is shared */
    struct mp_mutex lock;
    struct mp_cond changed;  /* `stop` */
    _Atomic(bool) collapse;  /* relaxed; so are those that follow */
    _Atomic(bool) later;     /* huge pages come slowly: single ones first */
    _Atomic(uint32_t) tried; /* huge pages that were made, and what that took */
    _Atomic(uint64_t) tried_ns;
    _Atomic(uint64_t) next; /* relaxed: of the parts of all runs, which nobody has taken yet */
    uint32_t count;
    struct run runs[];
};

static bool stopped(const struct mp_populate *populate)
{
    return atomic_load_explicit(&populate->stop, memory_order_relaxed);
}

/* False: the kernel cannot or will not. */
static bool touch(const struct mp_populate *populate, char *at, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes; done += STEP_BYTES) {
        const uint64_t left = bytes - done;

        if (stopped(populate))
            return false;
        if (madvise(at + done, left < STEP_BYTES ? left : STEP_BYTES, MADV_POPULATE_WRITE) != 0) {
            mp_log_debug("populate", "memory comes when it is used: %s", strerror(errno));
            return false;
        }
    }
    return true;
}

/* Pages of a memory file lie anywhere, and a disk takes up to twice as long to fill single ones.
 * One page has to be there for the rest to come. What is being read into stays as it is. */
static bool collapse(struct mp_populate *populate, char *at)
{
    if (!touch(populate, at, 1))
        return false;
    if (madvise(at, HUGE_PAGE_BYTES, MADV_COLLAPSE) == 0)
        return true;
    if (errno == EINVAL) {
        mp_log_debug("populate", "this kernel makes no huge pages of a file's pages");
        atomic_store_explicit(&populate->collapse, false, memory_order_relaxed);
    }
    return touch(populate, at, HUGE_PAGE_BYTES);
}

/* Of a huge page: has any part of it been used? Nobody knows: it has not. */
static bool is_used(char *at)
{
    unsigned char there[HUGE_PAGE_BYTES / MIN_PAGE_BYTES];
    const size_t pages = HUGE_PAGE_BYTES / (size_t)sysconf(_SC_PAGESIZE);

    if (mincore(at, HUGE_PAGE_BYTES, there) != 0)
        return false;
    for (size_t i = 0; i < pages; i++) {
        if ((there[i] & 1) != 0)
            return true;
    }
    return false;
}

/* Lets the program compute; `took_ns` was spent on copying. */
static void rest(struct mp_populate *populate, uint64_t took_ns)
{
    mp_lock(&populate->lock);
    if (!stopped(populate))
        (void)mp_cond_wait_for(&populate->changed, &populate->lock, took_ns * (COPY_SHARE - 1));
    mp_unlock(&populate->lock);
}

static bool collapses(const struct mp_populate *populate)
{
    return atomic_load_explicit(&populate->collapse, memory_order_relaxed);
}

/* The parts of a run: huge pages, and what is before and behind them. */
static uint64_t part_of(const struct run *run, uint64_t at)
{
    const uint64_t to_huge = HUGE_PAGE_BYTES - ((uintptr_t)run->at + at) % HUGE_PAGE_BYTES;

    return to_huge < run->bytes - at ? to_huge : run->bytes - at;
}

static void note_collapse(struct mp_populate *populate, uint64_t took_ns)
{
    const uint32_t tried = atomic_fetch_add_explicit(&populate->tried, 1, memory_order_relaxed) + 1;
    const uint64_t all_ns =
        atomic_fetch_add_explicit(&populate->tried_ns, took_ns, memory_order_relaxed) + took_ns;

    if (tried >= TRIAL_COUNT && all_ns / tried > SLOW_NS &&
        !atomic_exchange_explicit(&populate->later, true, memory_order_relaxed))
        mp_log_debug("populate", "huge pages come slowly, so later");
}

static bool populate_part(struct mp_populate *populate, char *at, uint64_t bytes)
{
    const uint64_t start_ns = mp_clock_now_ns(populate->clock);
    bool right;

    if (bytes < HUGE_PAGE_BYTES || !collapses(populate) ||
        atomic_load_explicit(&populate->later, memory_order_relaxed))
        return touch(populate, at, bytes);
    if (is_used(at))
        return true;
    right = collapse(populate, at);
    note_collapse(populate, mp_clock_now_ns(populate->clock) - start_ns);
    return right;
}

/* Takes one part after the other that nobody has taken yet. False: the kernel cannot. */
static bool populate_parts(struct mp_populate *populate)
{
    uint64_t mine = atomic_fetch_add_explicit(&populate->next, 1, memory_order_relaxed), number = 0;

    for (uint32_t i = 0; i < populate->count; i++) {
        const struct run *run = &populate->runs[i];

        for (uint64_t at = 0; at < run->bytes; at += part_of(run, at), number++) {
            if (number != mine)
                continue;
            if (stopped(populate) || !populate_part(populate, run->at + at, part_of(run, at)))
                return false;
            mine = atomic_fetch_add_explicit(&populate->next, 1, memory_order_relaxed);
        }
    }
    return true;
}

static void *populate_beside(void *arg)
{
    (void)populate_parts(arg);
    return NULL;
}

/* What was used before, all the rest being there. */
static void collapse_used(struct mp_populate *populate)
{
    for (uint32_t i = 0; i < populate->count; i++) {
        const struct run *run = &populate->runs[i];

        for (uint64_t at = 0; at < run->bytes; at += part_of(run, at)) {
            const uint64_t start_ns = mp_clock_now_ns(populate->clock);

            if (part_of(run, at) < HUGE_PAGE_BYTES)
                continue;
            if (stopped(populate) || !collapses(populate) || !collapse(populate, run->at + at))
                return;
            rest(populate, mp_clock_now_ns(populate->clock) - start_ns);
        }
    }
}

static uint64_t bytes_of(const struct mp_populate *populate)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < populate->count; i++)
        bytes += populate->runs[i].bytes;
    return bytes;
}

static void *populate_all(void *arg)
{
    struct mp_populate *populate = arg;
    pthread_t second;
    const bool two = bytes_of(populate) >= SECOND_BYTES &&
                     mp_thread_start(&second, "mp-populate", populate_beside, populate) == 0;
    const bool right = populate_parts(populate);

    if (two)
        pthread_join(second, NULL);
    /* Of this thread alone; without it there is more competition, nothing else. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    if (right)
        collapse_used(populate);
    return NULL;
}

/* Frames that lie one behind the other are one run: a huge page may have parts of two. */
static void add_frame(struct mp_populate *populate, const struct mp_frame *frame)
{
    struct run *last = populate->count > 0 ? &populate->runs[populate->count - 1] : NULL;

    mp_assert(frame->bytes == 0 || frame->alias != NULL);
    if (frame->bytes == 0)
        return;
    if (last != NULL && last->at + last->bytes == frame->alias)
        last->bytes += frame->bytes;
    else
        populate->runs[populate->count++] = (struct run){ frame->alias, frame->bytes };
}

static void end(struct mp_populate *populate)
{
    if (populate == NULL)
        return;
    mp_cond_fini(&populate->changed);
    mp_mutex_fini(&populate->lock);
    free(populate);
}

struct mp_populate *mp_populate_start(const struct mp_frame *frames, uint32_t count, bool collapse,
                                      struct mp_clock *clock)
{
    struct mp_populate *populate = malloc(sizeof(*populate) + count * sizeof(*populate->runs));
    int error_number = ENOMEM;

    mp_assert(frames != NULL);
    if (populate != NULL) {
        populate->clock = clock;
        atomic_init(&populate->stop, false);
        mp_mutex_init(&populate->lock, MP_LOCK_LEAF, "populate");
        mp_cond_init(&populate->changed);
        atomic_init(&populate->collapse, collapse);
        atomic_init(&populate->later, false);
        atomic_init(&populate->tried, 0);
        atomic_init(&populate->tried_ns, 0);
        atomic_init(&populate->next, 0);
        populate->count = 0;
        for (uint32_t i = 0; i < count; i++)
            add_frame(populate, &frames[i]);
        error_number = mp_thread_start(&populate->thread, "mp-populate", populate_all, populate);
    }
    if (error_number != 0) {
        mp_log_info("populate", "memory comes when it is used: %s", strerror(error_number));
        end(populate);
        return NULL;
    }
    return populate;
}

void mp_populate_stop(struct mp_populate *populate)
{
    if (populate == NULL)
        return;
    mp_lock(&populate->lock);
    atomic_store_explicit(&populate->stop, true, memory_order_relaxed);
    mp_cond_signal(&populate->changed);
    mp_unlock(&populate->lock);
    pthread_join(populate->thread, NULL);
    end(populate);
}
