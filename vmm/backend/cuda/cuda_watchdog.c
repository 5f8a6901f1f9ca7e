/*
 * The watchdog of the CUDA driver; see cuda_watchdog.h. It reports a hang and ends nothing itself.
 *
 * Each thread that calls the driver registers and gets a word: a count of calls and, in its lowest
 * byte, 1 + the call that it is in, or 0. The watchdog polls the words. A word that stays the same
 * with a call in it for as many polls as make up the limit is a call that hangs. Polls are counted,
 * not time, so a process that is stopped and goes on is not blamed.
 */
#include "vmm/backend/cuda/cuda_watchdog.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "vmm/base/assert.h"
#include "vmm/base/log.h"
#include "vmm/base/error.h"
#include "vmm/base/thread.h"

#define THREADS_MAX 512
#define POLLS 20 /* per limit */
#define CALL_MASK UINT64_C(0xff)

enum call {
#define X(member, name, parameters, arguments) CALL_##member,
    MP_CU_CALL_MAP(X)
#undef X
        CALL_COUNT
};

_Static_assert(CALL_COUNT < CALL_MASK, "a call is a byte of the word");

static const char *const names[] = {
#define X(member, name, parameters, arguments) #name,
    MP_CU_CALL_MAP(X)
#undef X
};

/* Of one thread, which alone writes word and device. All relaxed: nothing else is read by them. */
struct watched_thread {
    _Alignas(64) _Atomic(uint64_t) word;
    _Atomic(int) device; /* -1: none yet */
    _Atomic(bool) taken;
};

static struct {
    unsigned limit_s;
    void (*report)(const struct mp_error *error);
    struct mp_cu_calls driver;
    struct mp_error error;
    _Atomic(bool) reported; /* set with release after `error` */
    pthread_key_t key;      /* unregisters a thread that ends */
    struct watched_thread threads[THREADS_MAX];
    struct watched_thread overflow; /* shared by threads beyond THREADS_MAX; not polled */
} watchdog;

static _Thread_local struct watched_thread *mine;

static void unregister_thread(void *thread)
{
    mp_assert(thread != &watchdog.overflow);
    atomic_store_explicit(&((struct watched_thread *)thread)->taken, false, memory_order_relaxed);
}

static struct watched_thread *register_thread(void)
{
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        struct watched_thread *thread = &watchdog.threads[i];

        if (atomic_exchange_explicit(&thread->taken, true, memory_order_relaxed))
            continue;
        if (pthread_setspecific(watchdog.key, thread) != 0) {
            unregister_thread(thread);
            break;
        }
        atomic_store_explicit(&thread->device, -1, memory_order_relaxed);
        return thread;
    }
    return &watchdog.overflow;
}

static struct watched_thread *this_thread(void)
{
    if (mine == NULL)
        mine = register_thread();
    return mine;
}

void mp_cuda_watchdog_device(mp_cu_device device)
{
    if (watchdog.limit_s > 0)
        atomic_store_explicit(&this_thread()->device, device, memory_order_relaxed);
}

static bool call_begins(struct watched_thread *thread, enum call call)
{
    const uint64_t word = atomic_load_explicit(&thread->word, memory_order_relaxed);

    mp_assert(call < CALL_COUNT);
    atomic_store_explicit(&thread->word, (word | CALL_MASK) + 2 + call, memory_order_relaxed);
    return !atomic_load_explicit(&watchdog.reported, memory_order_relaxed);
}

static mp_cu_result call_ends(struct watched_thread *thread, mp_cu_result given)
{
    const uint64_t word = atomic_load_explicit(&thread->word, memory_order_relaxed);

    mp_assert(thread == &watchdog.overflow || (word & CALL_MASK) != 0);
    atomic_store_explicit(&thread->word, word & ~CALL_MASK, memory_order_relaxed);
    return atomic_load_explicit(&watchdog.reported, memory_order_relaxed) ? MP_CU_NOT_RESPONDING
                                                                          : given;
}

#define X(member, name, parameters, arguments)                          \
    static mp_cu_result watched_##member parameters                     \
    {                                                                   \
        struct watched_thread *thread = this_thread();                  \
                                                                        \
        return call_ends(thread, call_begins(thread, CALL_##member)     \
                                     ? watchdog.driver.member arguments \
                                     : MP_CU_NOT_RESPONDING);           \
    }
MP_CU_CALL_MAP(X)
#undef X

static void report_hang(const struct watched_thread *thread, unsigned call)
{
    const int device = atomic_load_explicit(&thread->device, memory_order_relaxed);
    const char *name = names[call];
    char object[32] = "the CUDA driver";

    mp_assert(call < CALL_COUNT);
    if (device >= 0)
        snprintf(object, sizeof(object), "device %d", device);
    (void)mp_fail(
        MP_ERR_DEVICE, "E_CUDA_HANG",
        "%s not responding for %u s in %.*s; the kernel's log (dmesg, lines with Xid) may "
        "say why, and another process may need a reset of the device",
        object, watchdog.limit_s, (int)strcspn(name, "_"), name);
    watchdog.error = *mp_error_last();
    atomic_store_explicit(&watchdog.reported, true, memory_order_release);
    if (watchdog.report != NULL)
        watchdog.report(&watchdog.error);
    else
        mp_log_failure("cuda");
}

static void *poll_threads(void *arg)
{
    const uint64_t poll_ns = UINT64_C(1000000000) * watchdog.limit_s / POLLS;
    const struct timespec pause = { (time_t)(poll_ns / 1000000000), (long)(poll_ns % 1000000000) };
    uint64_t before[THREADS_MAX] = { 0 };
    uint8_t polls[THREADS_MAX] = { 0 };

    mp_assert(watchdog.limit_s > 0);
    for (;;) {
        nanosleep(&pause, NULL);
        for (unsigned i = 0; i < THREADS_MAX; i++) {
            const struct watched_thread *thread = &watchdog.threads[i];
            const uint64_t word = atomic_load_explicit(&thread->word, memory_order_relaxed);

            polls[i] = word == before[i] && (word & CALL_MASK) != 0 ? polls[i] + 1 : 0;
            before[i] = word;
            if (polls[i] < POLLS)
                continue;
            report_hang(thread, (unsigned)(word & CALL_MASK) - 1);
            return arg;
        }
    }
}

void mp_cuda_watchdog_set(unsigned limit_s, void (*report)(const struct mp_error *error))
{
    watchdog.limit_s = limit_s;
    watchdog.report = report;
}

void mp_cuda_watchdog_wrap(struct mp_cu_calls *calls)
{
    pthread_t thread;

    if (watchdog.limit_s == 0)
        return;
    if (pthread_key_create(&watchdog.key, unregister_thread) != 0 ||
        mp_thread_start(&thread, "mp-watchdog", poll_threads, NULL) != 0) {
        mp_log_warn("cuda", "nobody watches whether the device responds: no thread for it");
        watchdog.limit_s = 0;
        return;
    }
    pthread_detach(thread);
    watchdog.driver = *calls;
#define X(member, name, parameters, arguments) calls->member = watched_##member;
    MP_CU_CALL_MAP(X)
#undef X
}

bool mp_cuda_watchdog_fired(struct mp_error *error_p)
{
    if (!atomic_load_explicit(&watchdog.reported, memory_order_acquire))
        return false;
    *error_p = watchdog.error;
    return true;
}
