/*
 * The watch over calls of the driver; see cuda_watch.h.
 *
 * The word of a thread is a count of calls and, in its lowest byte, 1 + the call that it is in, or
 * 0. A word that stands still with a call in it for as many looks as make up the limit is a call
 * that hangs. Looks are counted, not time, so a process that is stopped and goes on is not blamed.
 */
#include "vmm/backend/cuda/cuda_watch.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "vmm/base/log.h"
#include "vmm/base/error.h"
#include "vmm/base/thread.h"

#define SEATS 512
#define LOOKS 20 /* per limit */
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
struct seat {
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
    pthread_key_t key;      /* gives the seat of a thread that ends back */
    struct seat seats[SEATS];
    struct seat standing; /* of threads for whom there was no seat; not looked at */
} watch;

static _Thread_local struct seat *mine;

static void stand_up(void *seat)
{
    atomic_store_explicit(&((struct seat *)seat)->taken, false, memory_order_relaxed);
}

static struct seat *sit_down(void)
{
    for (unsigned i = 0; i < SEATS; i++) {
        struct seat *seat = &watch.seats[i];

        if (atomic_exchange_explicit(&seat->taken, true, memory_order_relaxed))
            continue;
        if (pthread_setspecific(watch.key, seat) != 0) {
            stand_up(seat);
            break;
        }
        atomic_store_explicit(&seat->device, -1, memory_order_relaxed);
        return seat;
    }
    return &watch.standing;
}

static struct seat *seat_of_thread(void)
{
    if (mine == NULL)
        mine = sit_down();
    return mine;
}

void mp_cuda_watch_device(mp_cu_device device)
{
    if (watch.limit_s > 0)
        atomic_store_explicit(&seat_of_thread()->device, device, memory_order_relaxed);
}

static bool call_begins(struct seat *seat, enum call call)
{
    const uint64_t word = atomic_load_explicit(&seat->word, memory_order_relaxed);

    atomic_store_explicit(&seat->word, (word | CALL_MASK) + 2 + call, memory_order_relaxed);
    return !atomic_load_explicit(&watch.reported, memory_order_relaxed);
}

static mp_cu_result call_ends(struct seat *seat, mp_cu_result given)
{
    const uint64_t word = atomic_load_explicit(&seat->word, memory_order_relaxed);

    atomic_store_explicit(&seat->word, word & ~CALL_MASK, memory_order_relaxed);
    return atomic_load_explicit(&watch.reported, memory_order_relaxed) ? MP_CU_NOT_RESPONDING
                                                                       : given;
}

#define X(member, name, parameters, arguments)                                                  \
    static mp_cu_result watched_##member parameters                                             \
    {                                                                                           \
        struct seat *seat = seat_of_thread();                                                   \
                                                                                                \
        return call_ends(seat, call_begins(seat, CALL_##member) ? watch.driver.member arguments \
                                                                : MP_CU_NOT_RESPONDING);        \
    }
MP_CU_CALL_MAP(X)
#undef X

static void report_hang(const struct seat *seat, unsigned call)
{
    const int device = atomic_load_explicit(&seat->device, memory_order_relaxed);
    const char *name = names[call];
    char object[32] = "the CUDA driver";

    if (device >= 0)
        snprintf(object, sizeof(object), "device %d", device);
    (void)mp_fail(
        MP_ERR_DEVICE, "E_CUDA_HANG",
        "%s not responding for %u s in %.*s; the kernel's log (dmesg, lines with Xid) may "
        "say why, and another process may need a reset of the device",
        object, watch.limit_s, (int)strcspn(name, "_"), name);
    watch.error = *mp_error_last();
    atomic_store_explicit(&watch.reported, true, memory_order_release);
    if (watch.report != NULL)
        watch.report(&watch.error);
    else
        mp_log_failure("cuda");
}

static void *look(void *arg)
{
    const uint64_t look_ns = UINT64_C(1000000000) * watch.limit_s / LOOKS;
    const struct timespec pause = { (time_t)(look_ns / 1000000000), (long)(look_ns % 1000000000) };
    uint64_t before[SEATS] = { 0 };
    uint8_t looks[SEATS] = { 0 };

    for (;;) {
        nanosleep(&pause, NULL);
        for (unsigned i = 0; i < SEATS; i++) {
            const struct seat *seat = &watch.seats[i];
            const uint64_t word = atomic_load_explicit(&seat->word, memory_order_relaxed);

            looks[i] = word == before[i] && (word & CALL_MASK) != 0 ? looks[i] + 1 : 0;
            before[i] = word;
            if (looks[i] < LOOKS)
                continue;
            report_hang(seat, (unsigned)(word & CALL_MASK) - 1);
            return arg;
        }
    }
}

void mp_cuda_watch(unsigned limit_s, void (*report)(const struct mp_error *error))
{
    watch.limit_s = limit_s;
    watch.report = report;
}

void mp_cuda_watch_calls(struct mp_cu_calls *calls)
{
    pthread_t thread;

    if (watch.limit_s == 0)
        return;
    if (pthread_key_create(&watch.key, stand_up) != 0 ||
        mp_thread_start(&thread, "mp-watch", look, NULL) != 0) {
        mp_log_warn("cuda", "nobody watches whether the device responds: no thread for it");
        watch.limit_s = 0;
        return;
    }
    pthread_detach(thread);
    watch.driver = *calls;
#define X(member, name, parameters, arguments) calls->member = watched_##member;
    MP_CU_CALL_MAP(X)
#undef X
}

bool mp_cuda_watch_reported(struct mp_error *error_p)
{
    if (!atomic_load_explicit(&watch.reported, memory_order_acquire))
        return false;
    *error_p = watch.error;
    return true;
}
