/* Many frames at once, on a few threads. Knows nothing of slots. */
#include "vmm/backend/frames.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/thread.h"

#define THREADS_MAX 4

const char *mp_tier_kind_name(enum mp_tier_kind kind)
{
    static const char *const names[] = { "device", "host", "file" };

    return (unsigned)kind < MP_TIER_KIND_COUNT ? names[kind] : "unknown tier";
}

struct work {
    struct mp_backend *backend;
    enum mp_tier_kind kind;
    const struct mp_frame_order *orders;
    uint32_t count;
    /* Relaxed: which frame is next, and whether it is worth the trouble; joining orders the rest.
     */
    _Atomic(uint32_t) next;
    _Atomic(bool) failed;
    struct mp_error error; /* of the thread that raised `failed` */
};

static void *run(void *arg)
{
    struct work *work = arg;

    while (!atomic_load_explicit(&work->failed, memory_order_relaxed)) {
        const uint32_t i = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed);
        const struct mp_frame_order *order;

        if (i >= work->count)
            break;
        order = &work->orders[i];
        mp_assert(order->bytes > 0);
        if (work->backend->ops->frame_create(work->backend, work->kind, order->bytes,
                                             order->frame_p) == MP_OK)
            continue;
        if (!atomic_exchange_explicit(&work->failed, true, memory_order_relaxed))
            work->error = *mp_error_last();
    }
    return NULL;
}

enum mp_status mp_frames_make(struct mp_backend *backend, enum mp_tier_kind kind,
                              const struct mp_frame_order *orders, uint32_t count)
{
    struct work work = { .backend = backend, .kind = kind, .orders = orders, .count = count };
    pthread_t threads[THREADS_MAX];
    uint32_t started = 0;

    mp_assert((unsigned)kind < MP_TIER_KIND_COUNT);
    for (uint32_t i = 0; i < count; i++)
        *orders[i].frame_p = (struct mp_frame){ .handle = 0 };
    /* This thread makes frames too; where there are no others it only takes longer. */
    while (backend->caps.parallel_frames && started < THREADS_MAX - 1 && started + 1 < count &&
           mp_thread_start(&threads[started], "mp-frames", run, &work) == 0)
        started++;
    run(&work);
    while (started > 0)
        pthread_join(threads[--started], NULL);
    if (!atomic_load_explicit(&work.failed, memory_order_relaxed))
        return MP_OK;
    for (uint32_t i = 0; i < count; i++) {
        if (orders[i].frame_p->handle != 0)
            backend->ops->frame_destroy(backend, orders[i].frame_p);
    }
    mp_error_set(&work.error);
    return work.error.status;
}
