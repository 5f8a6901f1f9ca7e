/*
 * Who works: the gate, and the streams that the driver is asked about.
 */
#include "interpose/cuda/work.h"

#include <pthread.h>
#include <stdatomic.h>

#include "interpose/cuda/cudart_abi.h"
#include "vmm/base/error.h"
#include "vmm/base/lock.h"

#define STREAMS_MAX 1024u
#define CONTEXTS_MAX 16u
#define NOT_KNOWN UINT32_MAX

/* Who frees a window must get through, however many launch. */
static pthread_rwlock_t gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

static struct mp_mutex lock = MP_MUTEX_INIT(MP_LOCK_LEAF, "work");
static const struct mp_cuda *cuda;
static mp_cu_context contexts[CONTEXTS_MAX] MP_GUARDED_BY(lock);
static uint32_t context_count MP_GUARDED_BY(lock);
static struct {
    void *stream;
    mp_cu_context context; /* in which it was made; NULL: not known */
} streams[STREAMS_MAX] MP_GUARDED_BY(lock);
static uint32_t stream_count MP_GUARDED_BY(lock);
static bool too_many MP_GUARDED_BY(lock); /* streams: nothing is ever quiet */
static uint32_t captures MP_GUARDED_BY(lock);
static uint64_t orphans MP_GUARDED_BY(lock); /* streams that ended busy; grows */
static uint64_t orphans_seen MP_GUARDED_BY(lock);

/* Threads' own streams: how often they were given work, by all; and threads that have unseen. */
static uint64_t per_thread MP_GUARDED_BY(lock);
static uint64_t per_thread_seen MP_GUARDED_BY(lock); /* up to here by waits for the device */
static uint32_t per_thread_busy MP_GUARDED_BY(lock);
static _Thread_local uint64_t own; /* the last of this thread; 0: seen */

/* Threads that have given the device work, and whether calls that a runtime makes of the driver are
 * seen. If they are not, work of other threads may go past the gate (through a library with a
 * runtime of its own), so then there may be one thread. Relaxed: they only ever grow. */
static _Atomic(uint32_t) thread_count;
static _Thread_local bool counted;
static _Atomic(bool) sees_driver;

void mp_work_open(const struct mp_cuda *driver, mp_cu_context context)
{
    mp_lock(&lock);
    cuda = driver;
    if (context_count < CONTEXTS_MAX)
        contexts[context_count++] = context;
    else
        too_many = true;
    mp_unlock(&lock);
}

static bool is_own(void *stream, enum mp_gpu_default meaning)
{
    return stream == MP_RT_STREAM_PER_THREAD || (stream == NULL && meaning == MP_GPU_PER_THREAD);
}

void mp_work_sees_driver(void)
{
    if (!atomic_load_explicit(&sees_driver, memory_order_relaxed))
        atomic_store_explicit(&sees_driver, true, memory_order_relaxed);
}

void mp_work_begin(void *stream, enum mp_gpu_default meaning)
{
    if (!counted) {
        counted = true;
        atomic_fetch_add_explicit(&thread_count, 1, memory_order_relaxed);
    }
    pthread_rwlock_rdlock(&gate);
    if (!is_own(stream, meaning))
        return;
    mp_lock(&lock);
    if (own <= per_thread_seen)
        per_thread_busy++;
    own = ++per_thread;
    mp_unlock(&lock);
}

void mp_work_end(void)
{
    pthread_rwlock_unlock(&gate);
}

/* ---- streams */

static uint32_t find_stream(const void *stream)
{
    for (uint32_t s = 0; s < stream_count; s++) {
        if (streams[s].stream == stream)
            return s;
    }
    return NOT_KNOWN;
}

/* The thread that has made a stream has its device's context. */
static mp_cu_context context_now(void)
{
    const struct mp_cuda *driver;
    mp_cu_context context = NULL;

    return mp_cuda_get(&driver) == MP_OK && driver->call.context_get(&context) == MP_CU_SUCCESS
               ? context
               : NULL;
}

void mp_work_stream_made(void *stream)
{
    const struct mp_error before = *mp_error_last();
    const mp_cu_context context = context_now();

    mp_error_set(&before);
    mp_lock(&lock);
    if (find_stream(stream) == NOT_KNOWN) {
        if (stream_count < STREAMS_MAX) {
            streams[stream_count].stream = stream;
            streams[stream_count++].context = context;
        } else {
            too_many = true;
        }
    }
    mp_unlock(&lock);
}

void mp_work_stream_ends(void *stream)
{
    uint32_t place;
    bool done;

    mp_lock(&lock);
    place = find_stream(stream);
    done = place != NOT_KNOWN && captures == 0 && cuda != NULL &&
           cuda->call.stream_query(stream) == MP_CU_SUCCESS;
    if (!done)
        orphans++;
    if (place != NOT_KNOWN)
        streams[place] = streams[--stream_count];
    mp_unlock(&lock);
}

void mp_work_capture(bool begins)
{
    mp_lock(&lock);
    if (begins)
        captures++;
    else if (captures > 0)
        captures--;
    mp_unlock(&lock);
}

bool mp_work_is_captured(void)
{
    bool captured;

    mp_lock(&lock);
    captured = captures > 0;
    mp_unlock(&lock);
    return captured;
}

static void forget_context(mp_cu_context context)
{
    uint32_t left = 0;

    too_many |= context == NULL;
    for (uint32_t c = 0; c < context_count; c++) {
        if (contexts[c] != context)
            contexts[left++] = contexts[c];
    }
    context_count = left;
    left = 0;
    for (uint32_t s = 0; s < stream_count; s++) {
        /* Whose is not known cannot be asked any more: it may be gone. */
        if (streams[s].context == NULL)
            too_many = true;
        else if (streams[s].context != context)
            streams[left++] = streams[s];
    }
    stream_count = left;
}

void mp_work_forget(mp_cu_context context, bool alone)
{
    mp_lock(&lock);
    if (alone) {
        stream_count = context_count = captures = 0;
        orphans_seen = orphans;
        per_thread_seen = per_thread;
        per_thread_busy = 0;
    } else {
        forget_context(context);
    }
    mp_unlock(&lock);
}

/* ---- waits */

void mp_work_wait_begins(struct mp_gpu_wait *wait)
{
    mp_lock(&lock);
    wait->per_thread = per_thread;
    wait->orphans = orphans;
    mp_unlock(&lock);
}

void mp_work_waited(const struct mp_gpu_wait *wait, bool all, void *stream,
                    enum mp_gpu_default meaning)
{
    mp_lock(&lock);
    if (all) {
        orphans_seen = wait->orphans > orphans_seen ? wait->orphans : orphans_seen;
        /* Who has been given nothing since then has nothing. */
        if (wait->per_thread == per_thread) {
            per_thread_seen = per_thread;
            per_thread_busy = 0;
        }
    } else if (is_own(stream, meaning) && own > per_thread_seen) {
        per_thread_busy--;
    }
    if (all ? wait->per_thread == per_thread : is_own(stream, meaning))
        own = 0;
    mp_unlock(&lock);
}

/* ---- is it quiet? */

static bool is_done(void *stream)
{
    return cuda->call.stream_query(stream) == MP_CU_SUCCESS;
}

/* Each device has a default stream that nobody created, which is asked about like the others. */
static bool are_defaults_done(void)
{
    bool done = true;

    for (uint32_t c = 0; c < context_count && done; c++)
        done = cuda->call.context_set(contexts[c]) == MP_CU_SUCCESS && is_done(MP_RT_STREAM_LEGACY);
    return done;
}

static bool is_quiet(void)
{
    bool quiet;

    mp_lock(&lock);
    quiet = cuda != NULL && !too_many && captures == 0 && orphans == orphans_seen &&
            per_thread_busy == 0 && are_defaults_done();
    for (uint32_t s = 0; s < stream_count && quiet; s++)
        quiet = is_done(streams[s].stream);
    mp_unlock(&lock);
    return quiet;
}

bool mp_work_stop(void)
{
    if (!atomic_load_explicit(&sees_driver, memory_order_relaxed) &&
        atomic_load_explicit(&thread_count, memory_order_relaxed) > 1)
        return false;
    if (pthread_rwlock_trywrlock(&gate) != 0)
        return false;
    if (is_quiet())
        return true;
    pthread_rwlock_unlock(&gate);
    return false;
}

void mp_work_close(void)
{
    pthread_rwlock_wrlock(&gate);
}

void mp_work_go(void)
{
    pthread_rwlock_unlock(&gate);
}
