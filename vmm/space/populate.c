/*
 * A thread that touches frames before they are needed; see populate.h. It writes no byte of them.
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
#include "vmm/base/log.h"
#include "vmm/base/error.h"
#include "vmm/base/thread.h"

/* What the kernel clears in one go, with the process's map of memory locked: whoever maps something
 * meanwhile waits. */
#define STEP_BYTES (UINT64_C(64) << 10)

/* What becomes one huge page; the file behind frames and their addresses agree modulo this. */
#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

/* Gives way to compute, but not for ever: it may hold the map of memory while it waits. */
#define NICE 10

struct run {
    char *at;
    uint64_t bytes;
};

struct mp_populate {
    pthread_t thread;
    _Atomic(bool) stop; /* relaxed: only the value itself is shared */
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

static bool populate_run(struct mp_populate *populate, const struct run *run)
{
    const uint64_t to_huge = -(uintptr_t)run->at % HUGE_PAGE_BYTES;
    uint64_t done = to_huge < run->bytes ? to_huge : run->bytes;

    if (!touch(populate, run->at, done))
        return false;
    while (populate->collapse && run->bytes - done >= HUGE_PAGE_BYTES) {
        if (stopped(populate) || !collapse(populate, run->at + done))
            return false;
        done += HUGE_PAGE_BYTES;
    }
    return touch(populate, run->at + done, run->bytes - done);
}

static void *populate_all(void *arg)
{
    struct mp_populate *populate = arg;

    /* Of this thread alone; without it there is more competition, nothing else. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    for (uint32_t i = 0; i < populate->count; i++) {
        if (!populate_run(populate, &populate->runs[i]))
            break;
    }
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

struct mp_populate *mp_populate_start(const struct mp_frame *frames, uint32_t count, bool collapse)
{
    struct mp_populate *populate = malloc(sizeof(*populate) + count * sizeof(*populate->runs));
    int error_number = ENOMEM;

    mp_assert(frames != NULL);
    if (populate != NULL) {
        atomic_init(&populate->stop, false);
        populate->collapse = collapse;
        populate->count = 0;
        for (uint32_t i = 0; i < count; i++)
            add_frame(populate, &frames[i]);
        error_number = mp_thread_start(&populate->thread, "mp-populate", populate_all, populate);
    }
    if (error_number != 0) {
        mp_log_info("populate", "memory comes when it is used: %s", strerror(error_number));
        free(populate);
        return NULL;
    }
    return populate;
}

void mp_populate_stop(struct mp_populate *populate)
{
    if (populate == NULL)
        return;
    atomic_store_explicit(&populate->stop, true, memory_order_relaxed);
    pthread_join(populate->thread, NULL);
    free(populate);
}
