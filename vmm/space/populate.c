/*
 * A thread that touches frames before they are needed; see populate.h. It writes no byte of them.
 *
 * Where something has been read before it came by, single pages are there already. To make a huge
 * page of them is to copy them, which helps later reads only: that waits until all the rest is
 * there, and takes little of the time.
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

/* Gives way to compute, but not for ever: it may hold the map of memory while it waits. */
#define NICE 10

struct run {
    char *at;
    uint64_t bytes;
};

struct mp_populate {
    pthread_t thread;
    _Atomic(bool) stop; /* relaxed: only the value itself is shared */
    struct mp_mutex lock;
    struct mp_cond changed; /* `stop` */
    bool collapse;
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
        populate->collapse = false;
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

/* Huge pages of what is used, or of what is not. */
static bool collapse_run(struct mp_populate *populate, char *at, uint64_t bytes, bool used)
{
    struct mp_clock *clock = mp_clock_monotonic();

    for (uint64_t done = 0; populate->collapse && bytes - done >= HUGE_PAGE_BYTES;
         done += HUGE_PAGE_BYTES) {
        const uint64_t start_ns = mp_clock_now_ns(clock);

        if (stopped(populate))
            return false;
        if (is_used(at + done) != used)
            continue;
        if (!collapse(populate, at + done))
            return false;
        if (used)
            rest(populate, mp_clock_now_ns(clock) - start_ns);
    }
    return true;
}

static bool populate_run(struct mp_populate *populate, const struct run *run, bool used)
{
    const uint64_t to_huge = -(uintptr_t)run->at % HUGE_PAGE_BYTES;
    const uint64_t head = to_huge < run->bytes ? to_huge : run->bytes;
    const uint64_t tail = (run->bytes - head) % HUGE_PAGE_BYTES;
    char *const at = run->at + head;
    const uint64_t bytes = run->bytes - head - tail;

    if (used)
        return collapse_run(populate, at, bytes, true);
    if (!touch(populate, run->at, head) || !collapse_run(populate, at, bytes, false))
        return false;
    return touch(populate, populate->collapse ? at + bytes : at,
                 populate->collapse ? tail : bytes + tail);
}

static bool populate_runs(struct mp_populate *populate, bool used)
{
    for (uint32_t i = 0; i < populate->count; i++) {
        if (!populate_run(populate, &populate->runs[i], used))
            return false;
    }
    return true;
}

static void *populate_all(void *arg)
{
    struct mp_populate *populate = arg;

    /* Of this thread alone; without it there is more competition, nothing else. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    if (populate_runs(populate, false) && populate->collapse)
        (void)populate_runs(populate, true);
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

struct mp_populate *mp_populate_start(const struct mp_frame *frames, uint32_t count, bool collapse)
{
    struct mp_populate *populate = malloc(sizeof(*populate) + count * sizeof(*populate->runs));
    int error_number = ENOMEM;

    mp_assert(frames != NULL);
    if (populate != NULL) {
        atomic_init(&populate->stop, false);
        mp_mutex_init(&populate->lock, MP_LOCK_LEAF, "populate");
        mp_cond_init(&populate->changed);
        populate->collapse = collapse;
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
