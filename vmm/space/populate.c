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

/* Gives way to compute, but not for ever: it may hold the map of memory while it waits. */
#define NICE 10

struct mp_populate {
    pthread_t thread;
    _Atomic(bool) stop; /* relaxed: only the value itself is shared */
    uint32_t count;
    struct mp_frame frames[];
};

/* False: the kernel cannot or will not. */
static bool populate_frame(struct mp_populate *populate, const struct mp_frame *frame)
{
    mp_assert(frame->bytes == 0 || frame->alias != NULL);
    for (uint64_t at = 0; at < frame->bytes; at += STEP_BYTES) {
        const uint64_t left = frame->bytes - at;

        if (atomic_load_explicit(&populate->stop, memory_order_relaxed))
            return false;
        if (madvise((char *)frame->alias + at, left < STEP_BYTES ? left : STEP_BYTES,
                    MADV_POPULATE_WRITE) != 0) {
            mp_log_debug("populate", "memory comes when it is used: %s", strerror(errno));
            return false;
        }
    }
    return true;
}

static void *run(void *arg)
{
    struct mp_populate *populate = arg;

    /* Of this thread alone; without it there is more competition, nothing else. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    for (uint32_t i = 0; i < populate->count; i++) {
        if (!populate_frame(populate, &populate->frames[i]))
            break;
    }
    return NULL;
}

struct mp_populate *mp_populate_start(const struct mp_frame *frames, uint32_t count)
{
    struct mp_populate *populate = malloc(sizeof(*populate) + count * sizeof(*frames));
    int error_number = ENOMEM;

    mp_assert(frames != NULL);
    if (populate != NULL) {
        atomic_init(&populate->stop, false);
        populate->count = count;
        memcpy(populate->frames, frames, count * sizeof(*frames));
        error_number = mp_thread_start(&populate->thread, "mp-populate", run, populate);
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
